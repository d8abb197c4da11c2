// A completion in the line of its request, instead of in the completion ring.
//
// A session marks a request of which it has no other in that send queue (Session::expect_reply), one at a time. Its line is in the worker's
// cache, and its application looks there as well as in the ring; so an answer there moves no other line. It may be written as
// long as the application has not been told that the slot is free again. Telling it is put off while such a request is in flight, though not
// of more than a quarter of the ring, not in a small ring, and not by a worker that falls asleep. What failed, and what comes when it has been
// told, goes by the ring and says so (kNotInLine), so that the session always knows whether it still has to look.
//
// The 64-bit indices of a session's ring begin at 0 and never come round, so one more than an index says "none" by 0.
//
// Thread safety: the worker's.
#pragma once

#include <cstdint>

#include "base/planted.hpp"
#include "session/request_head.hpp"
#include "worker/worker.hpp"

namespace pollcore {

/// A marked request stands in the i-th slot, and is being taken.
[[gnu::always_inline]] inline void Worker::expect_reply(WorkerSession& session, std::size_t i) noexcept {
    static_assert(kSlotsPerWorkRequestMax <= decltype(session.submissions)::kAnsweredInFrom * 3 / 4, "room for any request beside what is put off");
    const std::uint64_t index = session.submissions.released() + i;
    session.reply_at = index + 1;
    session.submissions.prefetch(index);  // fetched from the application, which watches it, while the device works
}

/// What the session's marked request completes with, a success. False: it is to go by the ring.
[[gnu::always_inline]] inline bool Worker::reply(WorkerSession& session, std::uint32_t byte_len, std::uint32_t sampled_at) noexcept {
    const std::uint64_t index = session.reply_at - 1;
    if (session.reply_at == 0 || !session.submissions.holds(index)) [[unlikely]] {
        return false;
    }
    if (planted(Bug::lost_in_line)) {
        return true;
    }
    session.submissions.answer(index, RequestHead::kReplyWord, std::uint64_t{sampled_at} << 32 | byte_len,
                               std::uint64_t{RequestHead::kReplied} << RequestHead::kFlags);
    session.reply_at = 0;
    session.submissions.release(0);  // what was put off
    counters_.delivered.add();
    if (session.tells) [[unlikely]] {
        tell(session);
    }
    return true;
}

}  // namespace pollcore
