// The turns of a worker that took longer than a threshold.
//
// Thread safety: the worker's thread writes; any thread may read.
#pragma once

#include <cstdint>

#include "base/recent_log.hpp"

namespace pollcore {

class StallLog {
public:
    static constexpr std::uint64_t kKept = RecentLog<2>::kKept;

    struct Stall {
        std::uint64_t began = 0;   ///< in cycles, on the worker's clock
        std::uint64_t cycles = 0;  ///< how long it took
    };

    void note(const Stall& stall) noexcept { log_.note({stall.began, stall.cycles}); }
    /// The number of stalls since the worker started.
    [[nodiscard]] std::uint64_t count() const noexcept { return log_.count(); }
    /// Calls `take` for each stall that the log still has, from number `next` on. Returns the number of the next one.
    template <class Take>
    std::uint64_t take_from(std::uint64_t next, Take&& take) const {
        return log_.take_from(next, [&](const RecentLog<2>::Entry& entry) { take(Stall{entry[0], entry[1]}); });
    }

private:
    RecentLog<2> log_;
};

}  // namespace pollcore
