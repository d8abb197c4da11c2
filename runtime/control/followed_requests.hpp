// Joins what a worker and a session note of the requests that are followed through their stages (SessionTrace).
//
// Thread safety: one thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "session/layout.hpp"

namespace pollcore {

/// When a request passed from stage to stage, in cycles. An attached process may have written anything.
struct FollowedRequest {
    std::uint32_t qp = 0;  ///< bits of the handle
    std::uint8_t opcode = 0;
    std::uint64_t submitted = 0;
    std::uint64_t taken = 0;      ///< by the worker
    std::uint64_t completed = 0;  ///< the worker took its work completion
    std::uint64_t polled = 0;     ///< by the session; 0: not known
};

/// The followed requests of one session.
class FollowedRequests {
public:
    /// Calls `take` for each request that had completed at the look before: by now the session has most likely polled
    /// it. `now` is the time stamp counter. Between two looks must be less than kApart cycles, or requests are left
    /// out.
    template <class Take>
    void look(const SessionTrace& trace, std::uint64_t now, Take&& take) {
        const bool in_time = looked_at_ != 0 && now - looked_at_ < kApart;
        looked_at_ = now;
        if (!in_time) {
            // The notes have only the lower half of the time, which means nothing after so long.
            completed_.clear();
            polled_.clear();
            next_of_worker_ = trace.worker.count();
            next_of_session_ = trace.application.count();
            return;
        }
        const std::size_t polled_before = polled_.size();
        next_of_session_ = trace.application.take_from(next_of_session_, [&](const RecentLog<1>::Entry& note) {
            polled_.emplace_back(low(note[0]), whole(now, high(note[0])));
        });
        for (FollowedRequest& request : completed_) {
            const auto found = std::find_if(polled_.begin(), polled_.end(),
                                            [&](const auto& one) { return one.first == low(request.completed); });
            request.polled = found != polled_.end() ? found->second : 0;
            take(std::as_const(request));
        }
        completed_.clear();
        polled_.erase(polled_.begin(), polled_.begin() + static_cast<std::ptrdiff_t>(polled_before));
        next_of_worker_ = trace.worker.take_from(next_of_worker_, [&](const RecentLog<3>::Entry& note) {
            completed_.push_back({.qp = low(note[2]),
                                  .opcode = static_cast<std::uint8_t>(note[2] >> 32),
                                  .submitted = whole(now, low(note[0])),
                                  .taken = whole(now, high(note[0])),
                                  .completed = whole(now, low(note[1]))});
        });
    }

    static constexpr std::uint64_t kApart = std::uint64_t{1} << 31;
    /// A note that is written while look() reads may have a time that is this much later than `now`.
    static constexpr std::uint64_t kLate = std::uint64_t{1} << 30;

private:
    [[nodiscard]] static std::uint32_t low(std::uint64_t word) noexcept { return static_cast<std::uint32_t>(word); }
    [[nodiscard]] static std::uint32_t high(std::uint64_t word) noexcept {
        return static_cast<std::uint32_t>(word >> 32);
    }
    /// The last time before `now` + kLate that has this lower half.
    [[nodiscard]] static std::uint64_t whole(std::uint64_t now, std::uint32_t lower) noexcept {
        return now + kLate - static_cast<std::uint32_t>(low(now + kLate) - lower);
    }

    std::uint64_t looked_at_ = 0;
    std::uint64_t next_of_worker_ = 0;
    std::uint64_t next_of_session_ = 0;
    std::vector<FollowedRequest> completed_;                       // at the last look
    std::vector<std::pair<std::uint32_t, std::uint64_t>> polled_;  // lower half of `completed`, and when it was polled
};

}  // namespace pollcore
