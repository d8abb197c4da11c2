// What the worker's tests include first, compiled once.
#include "../support/stepped_world.hpp"

#include <array>
#include <map>
#include <random>
#include <set>
