// A completion channel tells one sleeping thread of completions on one device (H21).
//
// Works like ibv_create_comp_channel(3), ibv_get_cq_event(3) and ibv_ack_cq_events(3). These look inside their context
// and so cannot serve a software device (H24). To sleep: arm the CQs by ibv_req_notify_cq, poll each CQ once, and take
// the events that there are. Only if there was nothing, wait on fd(), at most until look_again_ns().
//
// Thread safety: only the sleeping thread calls it, but for the constructor and destructor.
// Ownership: a channel outlives the CQs that were made with it. Each event that was taken is acknowledged before its CQ
// is destroyed (I9).
#pragma once

#include <cstdint>
#include <limits>

#include <infiniband/verbs.h>

namespace pollcore {

class CompletionChannel {
public:
    virtual ~CompletionChannel() = default;
    CompletionChannel(const CompletionChannel&) = delete;
    CompletionChannel& operator=(const CompletionChannel&) = delete;

    /// For CqOptions::channel.
    [[nodiscard]] virtual ibv_comp_channel* verbs() noexcept = 0;
    /// Non-blocking. Readable when there may be an event, once next_event() has said that there is none.
    [[nodiscard]] virtual int fd() const noexcept = 0;
    /// Takes an event. Returns 0 and sets `cq`. EAGAIN: there is none now. Any other errno value: no event will come
    /// any more.
    [[nodiscard]] virtual int next_event(ibv_cq*& cq) noexcept = 0;
    virtual void acknowledge(ibv_cq& cq, std::uint32_t events) noexcept = 0;
    /// After next_event() has found no event: when it must be called again even if fd() is not readable. In nanoseconds
    /// of the steady clock, or of the clock that the device was given. A software device needs such calls: it moves
    /// only while somebody looks, and has timers.
    [[nodiscard]] virtual std::uint64_t look_again_ns() noexcept { return kNever; }

    /// After next_event() has found no event: the thread does not sleep after all, so nobody need wake it.
    virtual void awake() noexcept {}

    static constexpr std::uint64_t kNever = std::numeric_limits<std::uint64_t>::max();

protected:
    CompletionChannel() = default;
};

}  // namespace pollcore
