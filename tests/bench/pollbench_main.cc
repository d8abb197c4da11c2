// pollbench: measures the cost of a worker and of the path through it, and the limits of the machine, in one run.
#include "goals.hpp"
#include "program.hpp"

int main(int argc, char** argv) {
    using namespace pollcore::bench;
    constexpr Part kParts[] = {{"worker", worker_costs},    {"hop", hops},        {"bursts", bursts},
                               {"singles", singles},        {"flow", flow_costs}, {"hostile", hostile_costs},
                               {"processes", process_costs}};
    return run({"pollbench", "Measures a worker and the hop beside the machine's limit", kParts, worker_goals}, argc,
               argv);
}
