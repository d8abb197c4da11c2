#include "../books.hpp"

namespace sample {

struct Twin {};
using TwinNumber = long;

// In a circle with one.cc, by way of a header.
void three() {
    Reader reader;
    reader.through_a_header();
}

}  // namespace sample
