#include "base/clock.hpp"

#include <algorithm>
#include <thread>

namespace pollcore {
namespace {

double measure() {
    using Clock = std::chrono::steady_clock;
    // The time span encloses the cycles, so a preemption between the two readings at either end lowers the rate. The
    // highest of three is nearest to the truth.
    double best = 0;
    for (int i = 0; i < 3; ++i) {
        const auto t0 = Clock::now();
        const std::uint64_t c0 = cycles_now();
        std::this_thread::sleep_for(std::chrono::milliseconds(6));
        const std::uint64_t c1 = cycles_now();
        const auto t1 = Clock::now();
        const auto span = std::chrono::duration_cast<std::chrono::nanoseconds>(t1 - t0);
        best = std::max(best, static_cast<double>(c1 - c0) / static_cast<double>(span.count()));
    }
    return best;
}

}  // namespace

double cycles_per_ns() noexcept {
    static const double rate = measure();
    return rate;
}

std::chrono::nanoseconds nanoseconds_from(std::uint64_t cycles) noexcept {
    using std::chrono::nanoseconds;
    const double ns = static_cast<double>(cycles) / cycles_per_ns();
    // The comparison is with 2^63, because a double cannot hold nanoseconds::max().
    return ns < 0x1p63 ? nanoseconds(static_cast<nanoseconds::rep>(ns)) : nanoseconds::max();
}

}  // namespace pollcore
