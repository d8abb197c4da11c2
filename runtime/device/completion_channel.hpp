// Where a thread that sleeps learns of completions: a completion channel, for one thread and one device (H21).
//
// As ibv_create_comp_channel(3), ibv_get_cq_event(3) and ibv_ack_cq_events(3), which look inside their context and so
// cannot serve a software device (H24). To sleep: arm the CQs by ibv_req_notify_cq, poll each once, take the events
// that there are, and only if there was nothing wait on fd(), for no longer than until look_again_ns().
//
// Thread safety: all but the constructor and destructor are the sleeping thread's.
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
    /// Takes an event: 0 and its CQ. EAGAIN: there is none now. Anything else is an errno value: nothing comes any
    /// more.
    [[nodiscard]] virtual int next_event(ibv_cq*& cq) noexcept = 0;
    virtual void acknowledge(ibv_cq& cq, std::uint32_t events) noexcept = 0;
    /// When next_event() wants to be called again although fd() is not readable, after it has said that there is none:
    /// in nanoseconds of the steady clock, or of the one that the device was given. A software device moves only while
    /// somebody looks, and has timers.
    [[nodiscard]] virtual std::uint64_t look_again_ns() noexcept { return kNever; }

    /// The thread does not sleep any more, so that nobody need wake it: after next_event() has said that there is none.
    virtual void awake() noexcept {}

    static constexpr std::uint64_t kNever = std::numeric_limits<std::uint64_t>::max();

protected:
    CompletionChannel() = default;
};

}  // namespace pollcore
