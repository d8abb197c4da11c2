// The CPUs that a test may use.
#pragma once

#include <sched.h>

#include <cstdint>
#include <stdexcept>
#include <vector>

namespace pollcore::test {

/// The CPUs that this thread may run on, in ascending order.
inline std::vector<std::uint32_t> allowed_cpus() {
    cpu_set_t set;
    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof(set), &set) != 0) {
        throw std::runtime_error("the kernel does not say on which CPUs this thread may run");
    }
    std::vector<std::uint32_t> cpus;
    for (std::uint32_t cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
        if (CPU_ISSET(cpu, &set)) {
            cpus.push_back(cpu);
        }
    }
    return cpus;
}

/// A CPU for a worker. It is not the first CPU, because machines do most other work there.
inline std::uint32_t last_cpu() {
    return allowed_cpus().back();
}

}  // namespace pollcore::test
