// When a session that waits for an answer in a request's own line looks there first (base/look.hpp).
//
// Just when the answer comes is best: a later look is late, an earlier one keeps the worker from writing it. How long
// that is depends on the CPUs and the device, so it is learned: a look that finds the answer moves the next one a
// little to the front, one that does not moves it eight times as far back. So one look in nine is too early.
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
    /// What a look has shown.
    [[gnu::always_inline]] void looked(bool found) noexcept {
        if (first_) {
            first_ = false;
            cycles_ = found ? std::max(cycles_ - kForward, kLeast) : std::min(cycles_ + kBack, kMost);
        }
    }

    /// Before the first look, of this core.
    [[nodiscard]] std::uint32_t cycles() const noexcept { return cycles_; }

private:
    static constexpr std::uint32_t kForward = 1;
    static constexpr std::uint32_t kBack = 8;
    // In cycles. Some 200 between near CPUs, where waiting for the stores costs more than it brings; 300 and more
    // between far ones. A device takes longer than that, and nobody is kept waiting for it for more than a tenth of a
    // microsecond.
    static constexpr std::uint32_t kLeast = 10;
    static constexpr std::uint32_t kFar = 250;
    static constexpr std::uint32_t kMost = 400;

    std::uint32_t cycles_ = 150;
    bool first_ = false;
};

}  // namespace pollcore
