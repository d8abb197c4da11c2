// Cycles as nanoseconds.
#include "pollcore/cycles.hpp"

#include <chrono>
#include <cstdint>
#include <limits>

#include <gtest/gtest.h>

#include "base/clock.hpp"

namespace pollcore {
namespace {

using namespace std::chrono_literals;

// Each span of one clock contains a span of the other, so the comparisons hold on a busy machine, too.
TEST(Cycles, AreTheTimeOfTheSystemsClock) {
    using Clock = std::chrono::steady_clock;
    const auto outer_begin = Clock::now();
    const std::uint64_t middle_begin = cycles_now();
    const auto inner_begin = Clock::now();
    while (Clock::now() < inner_begin + 20ms) {
    }
    const auto inner = Clock::now() - inner_begin;
    const std::uint64_t middle = cycles_now() - middle_begin;
    const auto outer = Clock::now() - outer_begin;
    EXPECT_GE(nanoseconds_from(middle) * 1.01, inner);
    EXPECT_LE(nanoseconds_from(middle) * 0.99, outer);
}

TEST(Cycles, AreConvertedThereAndBack) {
    EXPECT_EQ(nanoseconds_from(0), 0ns);
    for (const auto duration : {1000ns, std::chrono::nanoseconds(3s), std::chrono::nanoseconds(24h * 365)}) {
        const auto back = nanoseconds_from(cycles_from(duration));
        EXPECT_GE(back * 1.0, duration * (1 - 1e-9) - 2ns);
        EXPECT_LE(back * 1.0, duration * (1 + 1e-9));
    }
    const auto most = nanoseconds_from(std::numeric_limits<std::uint64_t>::max());
    EXPECT_GT(most, nanoseconds_from(std::numeric_limits<std::uint64_t>::max() / 2)) << "it does not wrap";
}

}  // namespace
}  // namespace pollcore
