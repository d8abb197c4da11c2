#include "../books.hpp"

namespace sample {

struct Twin {};
using TwinNumber = long;

// Makes a cycle with one.cc, through an inline function of a header.
void three() {
    Reader reader;
    reader.through_a_header();
}

}  // namespace sample
