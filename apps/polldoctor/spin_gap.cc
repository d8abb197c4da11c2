#include "spin_gap.hpp"

#include <sys/resource.h>

#include <algorithm>

#include <fmt/format.h>

#include "base/clock.hpp"
#include "pollcore/error.hpp"
#include "pollperf/threads.hpp"

namespace pollcore::doctor {
namespace {

long involuntary_switches() {
    rusage usage{};
    return ::getrusage(RUSAGE_THREAD, &usage) == 0 ? usage.ru_nivcsw : 0;
}

}  // namespace

std::string spin_on(std::uint32_t core, std::chrono::nanoseconds time) {
    try {
        const perf::PinnedScope pinned(core);
        const double rate = cycles_per_ns();
        const std::uint64_t least = cycles_from(std::chrono::microseconds(1));
        std::uint64_t longest = 0;
        std::uint64_t lost = 0;
        std::uint64_t gaps = 0;
        const long before = involuntary_switches();
        const std::uint64_t begin = cycles_now();
        const std::uint64_t end = begin + cycles_from(time);
        std::uint64_t last = begin;
        while (last < end) {
            const std::uint64_t now = cycles_now();
            const std::uint64_t gap = now > last ? now - last : 0;
            if (gap >= least) {
                longest = std::max(longest, gap);
                lost += gap;
                ++gaps;
            }
            last = std::max(now, last);
        }
        const auto ns = [&](std::uint64_t cycles) { return static_cast<double>(cycles) / rate; };
        return fmt::format("spun_ns {:.0f}\nlongest_ns {:.0f}\nlost_ns {:.0f}\ngaps {}\ninvoluntary {}\n",
                           ns(last - begin), ns(longest), ns(lost), gaps, involuntary_switches() - before);
    } catch (const Error& error) {
        return fmt::format("not_measured this process may not run there: {}\n", error.code().message());
    }
}

}  // namespace pollcore::doctor
