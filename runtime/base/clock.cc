#include "base/clock.hpp"

#include <thread>

namespace pollcore {
namespace {

double measure() {
    using Clock = std::chrono::steady_clock;
    // Takes the best of three measurements, because a preemption between the two readings falsifies the rate.
    double best = 0;
    auto narrowest = std::chrono::nanoseconds::max();
    for (int i = 0; i < 3; ++i) {
        const auto t0 = Clock::now();
        const std::uint64_t c0 = cycles_now();
        std::this_thread::sleep_for(std::chrono::milliseconds(6));
        const auto t1 = Clock::now();
        const std::uint64_t c1 = cycles_now();
        const auto span = std::chrono::duration_cast<std::chrono::nanoseconds>(t1 - t0);
        if (span < narrowest) {
            narrowest = span;
            best = static_cast<double>(c1 - c0) / static_cast<double>(span.count());
        }
    }
    return best;
}

}  // namespace

double cycles_per_ns() {
    static const double rate = measure();
    return rate;
}

}  // namespace pollcore
