// A completion channel informs one sleeping thread about completions on one device (H21).
//
// Works like ibv_create_comp_channel(3), ibv_get_cq_event(3) and ibv_ack_cq_events(3). These functions use internals of
// the ibv_context, so they do not work for a software device (H24). Before a thread sleeps, it arms all CQs by
// ibv_req_notify_cq, polls each CQ once, and takes all events. It waits on fd() only if it has found neither a
// completion nor an event, and at most until look_again_ns().
//
// Thread safety: the thread that sleeps calls the functions. The control thread makes and destroys the channel, and
// calls verbs(). Ownership: a channel must outlive the CQs that were made with it. Each event that was taken must be
// acknowledged before its CQ is destroyed (I9).
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

    /// The value for CqOptions::channel.
    [[nodiscard]] virtual ibv_comp_channel* verbs() noexcept = 0;
    /// Non-blocking. After next_event() has returned EAGAIN, the descriptor becomes readable when there may be an
    /// event.
    [[nodiscard]] virtual int fd() const noexcept = 0;
    /// Takes an event: sets `cq` and returns 0. Returns EAGAIN if there is no event now, and any other errno value if
    /// no event will ever come again.
    [[nodiscard]] virtual int next_event(ibv_cq*& cq) noexcept = 0;
    virtual void acknowledge(ibv_cq& cq, std::uint32_t events) noexcept = 0;
    /// Called after next_event() has returned EAGAIN. Returns the time at which next_event() must be called again even
    /// if fd() is not readable. The time is in nanoseconds of the steady clock, or of the clock that the device was
    /// given. kNever means that no such call is needed. A software device needs such calls for its timers, because it
    /// works only during the calls of its users.
    [[nodiscard]] virtual std::uint64_t look_again_ns() noexcept { return kNever; }

    /// Called after next_event() has returned EAGAIN, when the thread has woken up or does not sleep after all. From
    /// now on nobody needs to wake the thread.
    virtual void awake() noexcept {}

    static constexpr std::uint64_t kNever = std::numeric_limits<std::uint64_t>::max();

protected:
    CompletionChannel() = default;
};

}  // namespace pollcore
