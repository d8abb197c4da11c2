// The delay before a session's first look for an answer in a request's own cache line (D16, base/look.hpp).
//
// The best time for a look is when the answer has just come: a later look loses time, and an earlier look delays the
// worker's write. The best delay depends on the CPUs and the device, so it is learned. A first look that finds the
// answer makes the delay a little shorter. A first look that does not find the answer makes the delay longer, by eight
// times as much. So one first look in nine is too early.
//
// Thread safety: only the session's thread.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/look.hpp"

namespace pollcore {

class ReplyDelay {
public:
    /// Waits before the first look for the answer to a request that was submitted.
    void begin() noexcept {
        if (cycles_ >= kFar) {
            settle_stores();
        }
        delay_look(cycles_);
        first_ = true;
    }
    /// Tells whether a look has found the answer. Only the first look after begin() changes the delay.
    [[gnu::always_inline]] void looked(bool found) noexcept {
        if (first_) {
            first_ = false;
            cycles_ = found ? std::max(cycles_ - kForward, kLeast) : std::min(cycles_ + kBack, kMost);
        }
    }

    /// The delay before the first look, in cycles of this core.
    [[nodiscard]] std::uint32_t cycles() const noexcept { return cycles_; }

private:
    static constexpr std::uint32_t kForward = 1;
    static constexpr std::uint32_t kBack = 8;
    // In cycles. Between near CPUs the delay is about 200, and settle_stores() costs more than it gains. Between far
    // CPUs the delay is 300 and more. A device takes longer than that, but kMost limits the delay to about a tenth of a
    // microsecond.
    static constexpr std::uint32_t kLeast = 10;
    static constexpr std::uint32_t kFar = 250;
    static constexpr std::uint32_t kMost = 400;

    std::uint32_t cycles_ = 150;
    bool first_ = false;
};

}  // namespace pollcore
