// What the conformance tests include first, compiled once.
#include "../conformance/fixture.hpp"

#include <array>
#include <atomic>
#include <functional>
#include <future>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <thread>
