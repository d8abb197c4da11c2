#include "books.hpp"

namespace sample {

void one();

struct Twin {};

void two() { one(); }

void Books::virtually() { one(); }

}  // namespace sample
