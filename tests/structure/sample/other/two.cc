#include "../books.hpp"

namespace sample {

void four();

namespace {

void known_here() {
    four();
}

}  // namespace

void of_other_two() {
    known_here();
}

}  // namespace sample
