// A completion in the line of its request: the session's side; see worker/reply.hpp.
//
// At most one request is marked at a time, and when it is submitted nothing else of this session is in flight on its send queue, nor stands
// in the ring of it. So whatever else of that queue this session is given comes after it. poll() looks at its slot and at the completion
// ring, and one of them says that it has ended.
//
// Thread safety: the session's.
#pragma once

#include "pollcore/session.hpp"
#include "session/completion_opcode.hpp"
#include "session/request_head.hpp"

namespace pollcore {

/// Of a request that was counted and is being written: bits for its last word.
[[gnu::always_inline]] inline std::uint64_t Session::expect_reply(const WorkRequest& request) noexcept {
    const RequestHead head = head_of(request);
    if (marked_ || past_lives_ || wide_ != 0 || (head.flags() & kSignaled) == 0 || !allows(RequestHead::kRepliable, head.opcode()) ||
        accounts_[head.qp_index() & qps_mask_].send_outstanding != 1) {
        return 0;
    }
    marked_ = true;
    awaited_ = submissions_.produced() + 1;
    return std::uint64_t{RequestHead::kReplyInLine} << RequestHead::kFlags;
}

/// From the slot, when it is there.
[[gnu::always_inline]] inline bool Session::read_reply(Completion& completion) noexcept {
    std::uint64_t last = 0;
    const WorkRequest& request = submissions_.answered(awaited_ - 1, last);
    const RequestHead head(last);
    if ((head.flags() & RequestHead::kReplied) == 0) {
        return false;
    }
    const std::uint64_t word = SharedWords(words_of(const_cast<WorkRequest&>(request)))[RequestHead::kReplyWord];
    completion = Completion{};
    completion.tag = request.tag;
    completion.qp = request.qp;
    completion.byte_len = static_cast<std::uint32_t>(word);
    completion.opcode = completion_opcode(head.opcode());
    if (const auto since = static_cast<std::uint32_t>(word >> 32); since != 0) [[unlikely]] {
        sampled(since);
    }
    return true;
}

/// The awaited completion, when it is there.
[[gnu::always_inline]] inline bool Session::take_reply(Completion& completion) noexcept {
    if (awaited_ == kKept) [[unlikely]] {
        completion = kept_;
    } else if (!read_reply(completion)) {
        return false;
    }
    awaited_ = 0;
    marked_ = false;
    ++replied_;
    if (QpAccount& mine = accounts_[completion.qp.index & qps_mask_]; mine.generation == completion.qp.generation) [[likely]] {
        --mine.send_outstanding;
    }
    return true;
}

[[gnu::always_inline]] inline bool Session::has_reply() const noexcept {
    if (awaited_ == 0 || awaited_ == kKept) {
        return awaited_ == kKept;
    }
    std::uint64_t last = 0;
    (void)submissions_.answered(awaited_ - 1, last);
    return (RequestHead(last).flags() & RequestHead::kReplied) != 0;
}

/// RingProducer::reserve. When the worker has given back the slot of the marked request, an answer stands there already, and is kept
/// before the slot is written again, or the completion comes by the ring.
[[gnu::always_inline]] inline std::size_t Session::reserve_slots(std::size_t wanted) noexcept {
    const std::size_t n = submissions_.reserve(wanted);
    if (awaited_ != 0 && submissions_.produced() + n - awaited_ >= submissions_.capacity()) [[unlikely]] {
        keep_reply();
    }
    return n;
}

}  // namespace pollcore
