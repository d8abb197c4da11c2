// ring-bench: the ring beside other rings and what two CPUs can exchange at all. How a compiler arranges the loops
// around a ring is a part of what such figures show, so scripts/bench builds this by several compilers and takes them
// together.
#include "program.hpp"
#include "ring_goals.hpp"

int main(int argc, char** argv) {
    using namespace pollcore::bench;
    constexpr Part kParts[] = {{"streams", ring_streams}, {"trips", ring_trips}};
    return run({"ring-bench", "Measures the ring beside other rings and the machine's limit", kParts, ring_goals}, argc,
               argv);
}
