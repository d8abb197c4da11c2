#include "books.hpp"

namespace sample {

void one();

struct Twin {};
using TwinNumber = int;

void of_other_two();

namespace {

void known_here() {
    of_other_two();
}  // the function of this name in other/two.cc calls another function

}  // namespace

void calls_it() {
    known_here();
}

void two() {
    one();
}

void Books::virtually() {
    one();
}

}  // namespace sample
