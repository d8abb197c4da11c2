#include "hardware_counters.hpp"

#include <linux/perf_event.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "pollcore/error.hpp"

namespace pollcore::bench {
namespace {

constexpr std::uint64_t kEvents[] = {PERF_COUNT_HW_INSTRUCTIONS, PERF_COUNT_HW_CACHE_MISSES};

[[nodiscard]] int open_counter(std::uint64_t event) noexcept {
    perf_event_attr attr{};
    attr.type = PERF_TYPE_HARDWARE;
    attr.size = sizeof(attr);
    attr.config = event;
    attr.exclude_kernel = 1;
    attr.exclude_hv = 1;
    return static_cast<int>(::syscall(SYS_perf_event_open, &attr, 0, -1, -1, PERF_FLAG_FD_CLOEXEC));
}

[[nodiscard]] double value_of(const UniqueFd& counter) {
    std::uint64_t value = 0;
    if (::read(counter.get(), &value, sizeof(value)) != sizeof(value)) {
        throw Error(errno, "reading a counter of the CPU");
    }
    return static_cast<double>(value);
}

}  // namespace

HardwareCounters::HardwareCounters() {
    for (std::size_t i = 0; i < counters_.size(); ++i) {
        counters_[i] = UniqueFd(open_counter(kEvents[i]));
        if (counters_[i].get() < 0) {
            why_not_ = std::string("perf_event_open: ") + std::strerror(errno);
            return;
        }
    }
}

HardwareCounters::Reading HardwareCounters::read() const {
    return {value_of(counters_[0]), value_of(counters_[1])};
}

}  // namespace pollcore::bench
