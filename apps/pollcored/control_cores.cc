#include "control_cores.hpp"

#include <sched.h>

#include <cerrno>
#include <iterator>
#include <memory>

#include <fmt/format.h>

#include "base/log.hpp"

namespace pollcore::daemon {
namespace {

// The most CPUs that any kernel is built for, so that one call of sched_getaffinity(2) is enough.
constexpr std::size_t kCpusMax = 8192;

struct CpuSetDelete {
    void operator()(cpu_set_t* set) const noexcept { CPU_FREE(set); }
};
using CpuSet = std::unique_ptr<cpu_set_t, CpuSetDelete>;

std::string to_text(const cpu_set_t* set, std::size_t size) {
    std::string text;
    for (std::size_t cpu = 0; cpu < kCpusMax; ++cpu) {
        if (!CPU_ISSET_S(cpu, size, set)) {
            continue;
        }
        std::size_t last = cpu;
        while (last + 1 < kCpusMax && CPU_ISSET_S(last + 1, size, set)) {
            ++last;
        }
        text += text.empty() ? "" : ",";
        text += last == cpu ? fmt::format("{}", cpu) : fmt::format("{}-{}", cpu, last);
        cpu = last;
    }
    return text;
}

}  // namespace

std::string leave_worker_cores(const Config& config) {
    const std::size_t size = CPU_ALLOC_SIZE(kCpusMax);
    const CpuSet set(CPU_ALLOC(kCpusMax));
    if (set == nullptr) {
        throw Error(ENOMEM, "no memory for a set of CPUs");
    }
    CPU_ZERO_S(size, set.get());
    if (sched_getaffinity(0, size, set.get()) != 0) {
        throw Error(errno, "cannot ask which CPUs this thread may use (sched_getaffinity)");
    }
    const std::string before = to_text(set.get(), size);
    for (const WorkerConfig& worker : config.workers) {
        if (worker.core < kCpusMax) {
            CPU_CLR_S(worker.core, size, set.get());
        }
    }
    if (CPU_COUNT_S(size, set.get()) == 0) {
        log_warning(
            "all CPUs of this process ({}) are workers': services share them and peers wait longer; leave "
            "one "
            "CPU without a worker, or have the workers idle with \"yield\"",
            before);
        return before;
    }
    if (sched_setaffinity(0, size, set.get()) != 0) {
        throw Error(errno, fmt::format("cannot move the services' threads to CPUs {} (sched_setaffinity)",
                                       to_text(set.get(), size)));
    }
    return to_text(set.get(), size);
}

}  // namespace pollcore::daemon
