// The hot path for an instruction counter: so many bursts, each through the whole of submit, step and poll. See
// instruction_guard.py.
#include <cstdlib>
#include <iostream>

#include "stepped_load.hpp"

int main(int argc, char** argv) {
    if (argc != 6) {
        std::cerr << "usage: instruction-load ROUNDS BURST QPS SESSIONS CQS\n";
        return 2;
    }
    const auto number = [&](int i) { return static_cast<std::uint32_t>(std::strtoul(argv[i], nullptr, 10)); };
    pollcore::bench::SteppedLoad load({.burst = number(2), .qps = number(3), .sessions = number(4), .cqs = number(5)});
    for (std::uint32_t i = 0; i < number(1); ++i) {
        load.prepare();
        load.submit();
        load.step();
        load.poll();
        load.check();
    }
    return 0;
}
