#include "books.hpp"

namespace sample {

void one();

struct Twin {};
using TwinNumber = int;

void of_other_two();

namespace {

void known_here() {
    of_other_two();
}  // its namesake in other/two.cc calls somebody else

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
