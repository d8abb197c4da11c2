#include "control/program_threads.hpp"

#include <sched.h>

#include <array>
#include <cerrno>

#include "pollcore/error.hpp"

namespace pollcore {
namespace {

// The CPUs of a thread (sched_getaffinity(2)). There is room for the most CPUs that any kernel is built for.
class Affinity {
public:
    /// Reads the calling thread's. Returns false if the kernel refuses.
    [[nodiscard]] bool read() noexcept { return ::sched_getaffinity(0, sizeof(sets_), sets_.data()) == 0; }
    [[nodiscard]] bool write() const noexcept { return ::sched_setaffinity(0, sizeof(sets_), sets_.data()) == 0; }
    void remove(std::uint32_t cpu) noexcept { CPU_CLR_S(cpu, sizeof(sets_), sets_.data()); }
    [[nodiscard]] bool has(std::uint32_t cpu) const noexcept { return CPU_ISSET_S(cpu, sizeof(sets_), sets_.data()); }
    [[nodiscard]] int count() const noexcept { return CPU_COUNT_S(sizeof(sets_), sets_.data()); }

private:
    std::array<cpu_set_t, 16> sets_{};
};

}  // namespace

void keep_this_thread_off(const std::set<std::uint32_t>& cpus) {
    Affinity affinity;
    if (!affinity.read()) {
        throw Error(errno, "asking the kernel which CPUs this thread may use");
    }
    for (const std::uint32_t cpu : cpus) {
        affinity.remove(cpu);
    }
    if (affinity.count() == 0) {
        throw Error(EINVAL,
                    "each CPU that this thread may use belongs to a worker: give the thread other CPUs "
                    "(taskset(1), sched_setaffinity(2)), or the workers other cores");
    }
    if (!affinity.write()) {
        throw Error(errno, "keeping this thread off the workers' cores");
    }
}

std::optional<std::uint32_t> only_cpu_of_this_thread() noexcept {
    Affinity affinity;
    if (!affinity.read() || affinity.count() != 1) {
        return std::nullopt;
    }
    std::uint32_t cpu = 0;
    while (!affinity.has(cpu)) {
        ++cpu;
    }
    return cpu;
}

}  // namespace pollcore
