// ring-bench: compares the ring with other rings, and with the limit of what two CPUs can exchange. The figures also
// depend on how a compiler arranges the loops around a ring. So scripts/bench builds this program with several
// compilers and combines the figures.
#include "program.hpp"
#include "ring_goals.hpp"

int main(int argc, char** argv) {
    using namespace pollcore::bench;
    constexpr Part kParts[] = {{"streams", ring_streams}, {"trips", ring_trips}};
    return run({"ring-bench", "Measures the ring beside other rings and the machine's limit", kParts, ring_goals}, argc,
               argv);
}
