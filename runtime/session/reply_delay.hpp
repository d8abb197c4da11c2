// How long a session that waits for an answer in a request's own line puts off its first look there (D16,
// base/look.hpp).
//
// It is best to look just when the answer comes: a later look loses time, and an earlier one delays the worker's write.
// The best delay depends on the CPUs and the device, so it is learned: a first look that finds the answer makes the
// delay a little shorter, one that does not makes it longer by eight times as much. So one first look in nine is too
// early.
//
// Thread safety: the session's.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/look.hpp"

namespace pollcore {

class ReplyDelay {
public:
    /// A request was submitted, and nothing is there yet.
    void begin() noexcept {
        if (cycles_ >= kFar) {
            settle_stores();
        }
        delay_look(cycles_);
        first_ = true;
    }
    /// Whether a look found the answer. Only the first look after begin() counts.
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
    // In cycles. Between near CPUs the delay is some 200, and waiting for the stores costs more than it gains; between
    // far ones it is 300 and more. A device takes longer than that, but kMost keeps the delay below a tenth of a
    // microsecond.
    static constexpr std::uint32_t kLeast = 10;
    static constexpr std::uint32_t kFar = 250;
    static constexpr std::uint32_t kMost = 400;

    std::uint32_t cycles_ = 150;
    bool first_ = false;
};

}  // namespace pollcore
