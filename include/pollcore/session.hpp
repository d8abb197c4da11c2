// A session: one application thread's way to one worker, embedded or attached.
//
// Thread safety: a session is used by one thread at a time. Two threads at once lose requests silently;
// SessionOptions::check_thread detects that. Control calls on queue pairs may come from other threads meanwhile. No
// call here makes a system call, takes a lock or allocates memory, except close(), the destructor, assignment, wait(),
// arm(), and poll() with a time limit. try_submit and release() also make a system call when the worker sleeps
// (IdlePolicy::event): they write its eventfd.
//
// Who owns a buffer: the application until try_submit accepts the work request; then the device, until the
// request's completion was polled. An unsignaled request that succeeds makes no completion: its buffer is
// free once a later completion of the same send queue was polled, or retired() counts it.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "pollcore/completion.hpp"
#include "pollcore/export.h"
#include "pollcore/latency.hpp"
#include "pollcore/queue_pair.hpp"
#include "pollcore/work_request.hpp"

namespace pollcore {

/// What a session is made with. It cannot be changed later.
struct SessionOptions {
    std::string worker{};                   ///< name from the configuration; empty: the one with the fewest sessions
    std::uint32_t submission_slots = 1024;  ///< a power of two; 64 bytes each
    /// A power of two; 32 bytes each. At most this many work requests are in flight.
    std::uint32_t completion_slots = 1024;
    /// Further completion slots, for messages of receive pools: as many as the session's pools have buffers together.
    std::uint32_t pool_buffers = 0;
    /// Completions of 64 bytes: Session::poll can give WideCompletions, which say where datagrams came from.
    bool wide_completions = false;
    /// Only with wide_completions: successful completions have the device's time stamp,
    /// CompletionExtension::device_time. The session's queue pairs complete on separate CQs, which are polled by
    /// ibv_start_poll whatever WorkerConfig::poll says; a completion there costs the worker a little more (D37). A
    /// queue pair is refused with EOPNOTSUPP on a device whose DeviceReport::completion_timestamp_mask is 0.
    bool device_time = false;
    /// Session::wait() may sleep, and event_fd() and arm() work. Each step of the worker that completes something for
    /// this session then costs it an atomic operation, and a system call if the session's thread sleeps.
    bool events = false;
    std::chrono::nanoseconds wait_spin{20'000};  ///< how long Session::wait() spins before it sleeps
    /// Ends the program with a line in the log when a second thread uses the session. The session belongs to the first
    /// thread that calls it, until it is moved or Session::hand_over() is called. The environment variable
    /// POLLCORE_CHECK_THREAD=1 does this for all sessions of a process, and a library that was built with assertions
    /// always does. Switched off, it costs nothing.
    bool check_thread = false;
};

/// Why a work request was not accepted. Nothing was done. See is_temporary().
enum class Refusal : std::uint8_t {
    none,
    // Temporary: no room now.
    submission_ring_full,
    completion_ring_full,  ///< as many requests in flight as the session has completion slots
    send_queue_full,       ///< this session's share of the QP's send queue is in flight
    receive_queue_full,
    srq_full,  ///< as many receives in flight as the shared receive queue has room for
    // Not temporary.
    stale_handle,   ///< no such queue pair, or it was closed or reset; no such shared receive queue of this session
    not_connected,  ///< a send before the QP is ready
    qp_in_error,    ///< see Session::cause
    bad_opcode,     ///< no opcode, or not one of this QP's type: see opcodes_of
    bad_flags,
    too_many_sges,
    no_sge,  ///< WorkRequest::num_sge is 0 but sge.length is not: no byte would be sent or received
    inline_too_long,
    misaligned_atomic,  ///< an atomic whose remote address is no multiple of 8, or without exactly one SGE of 8 bytes
    not_receiver,  ///< receives of this QP belong to another session, or come from a shared receive queue or a pool
    no_share,  ///< this session has no share of the queue pair, or none of its send queue: see QueuePairOptions::shares
    /// With flow control: longer than Session::message_max, and not fit for rendezvous (see Session::rendezvous_max).
    message_too_long,
    session_closed,
};
[[nodiscard]] POLLCORE_API std::string_view refusal_name(Refusal refusal) noexcept;
/// Whether the same call may succeed later, once completions were polled.
[[nodiscard]] constexpr bool is_temporary(Refusal refusal) noexcept {
    return refusal > Refusal::none && refusal <= Refusal::srq_full;
}

/// The first `accepted` requests were taken. If those are not all, `refusal` says why the next one was not.
struct [[nodiscard]] Submitted {
    std::size_t accepted = 0;
    Refusal refusal = Refusal::none;
};

class SessionCore;

/// Figures of one session since it was opened. Accepted = completed + retired + in flight, always.
struct SessionFigures {
    std::uint64_t accepted = 0;   ///< work requests that try_submit took
    std::uint64_t completed = 0;  ///< completions that poll gave
    std::uint64_t retired = 0;    ///< unsignaled requests that succeeded, as far as known here
    std::uint64_t refused = 0;
    /// In an attached process: requests that the worker left in the ring for a step or more, because the process had
    /// used up its share of the step. Each process has a share of requests and bytes, so that one with many sessions or
    /// long messages does not take the others' shares.
    std::uint64_t throttled = 0;
    [[nodiscard]] std::uint64_t in_flight() const noexcept { return accepted - completed - retired; }
};

/// One application thread's way to one worker. Move-only. When the daemon that serves an attached session dies, each
/// request in flight completes with Status::daemon_gone once the kernel reports the death; no device writes the buffers
/// from then on.
class POLLCORE_API Session {
public:
    /// Names no session: it takes no requests and has no completions.
    Session() noexcept;
    /// Made by Context::open_session.
    POLLCORE_INTERNAL explicit Session(std::unique_ptr<SessionCore> core) noexcept;
    ~Session();
    Session(Session&&) noexcept;
    Session& operator=(Session&&) noexcept;
    Session(const Session&) = delete;
    Session& operator=(const Session&) = delete;

    /// All submit calls take receives, too: for a queue pair, or as Opcode::srq_recv for a shared receive queue.
    ///
    /// Takes work requests with at most one SGE each, in order, until one is refused. The worker sees all taken
    /// requests together. A request without kSignaled has no completion when it succeeds: see retired().
    Submitted try_submit(std::span<const WorkRequest> requests) noexcept;
    /// One work request with at most one SGE.
    [[nodiscard]] Refusal try_submit(const WorkRequest& request) noexcept;
    /// A work request with any number of SGEs: `sges` replaces request.sge and request.num_sge.
    [[nodiscard]] Refusal try_submit(const WorkRequest& request, std::span<const Sge> sges) noexcept;
    /// A send or RDMA write whose payload is copied before the call returns; it need not be in registered memory.
    [[nodiscard]] Refusal try_submit_inline(const WorkRequest& request, std::span<const std::byte> payload) noexcept;

    /// Takes up to `out.size()` completions and returns how many; 0 when there are none now. Both forms work on every
    /// session: the first leaves out the extensions of wide completions, and the second fills extensions with 0 in a
    /// session that is not wide.
    [[nodiscard]] std::size_t poll(std::span<Completion> out) noexcept;
    [[nodiscard]] std::size_t poll(std::span<WideCompletion> out) noexcept;
    /// As poll(); when there are none now, wait(timeout) and poll() again. Returns 0 also when wait() reports something
    /// else, such as room for a request that was refused. A loop around this call gets an operation's completion sooner
    /// than a loop around poll() alone, since it times its looks so that they do not delay the worker. A thread that
    /// also waits for something else, such as memory that a peer writes, uses poll() alone.
    [[nodiscard]] std::size_t poll(std::span<Completion> out, std::chrono::nanoseconds timeout) noexcept;
    [[nodiscard]] std::size_t poll(std::span<WideCompletion> out, std::chrono::nanoseconds timeout) noexcept;

    /// Gives back the buffers that these completions name (kPooled); other completions are skipped. The application
    /// must not touch the buffers any more. `accepted` counts the completions dealt with: all, unless the submission
    /// ring was full (try again with the rest) or the session is closed. Buffers given back in one call take fewer
    /// slots of the ring.
    [[nodiscard]] Submitted release(std::span<const Completion> completions) noexcept;
    [[nodiscard]] Refusal release(const Completion& completion) noexcept { return release({&completion, 1}).refusal; }

    /// Waits until poll() has something to give, or a refused request may have room: unsignaled requests were retired
    /// since wait() last reported it, or the worker has taken requests from a ring that was full. Spins for
    /// SessionOptions::wait_spin, then sleeps. Returns false when the time is over, and at once when the session has
    /// ended and nothing is left to poll. max() means no time limit, and saves the kernel a timer. It never sleeps
    /// without SessionOptions::events, nor while the submission ring is full, since the worker makes room within
    /// microseconds.
    [[nodiscard]] bool wait(std::chrono::nanoseconds timeout) noexcept;
    /// A descriptor for the program's own event loop: once arm() has returned true, it becomes readable as soon as
    /// wait() might return true. It may be readable for nothing. -1 without SessionOptions::events. The session owns
    /// it: poll it, but leave reading it to arm().
    [[nodiscard]] int event_fd() const noexcept;
    /// Asks the worker to make event_fd() readable with the next completion or retirement, once. False: nothing was
    /// armed, since there is one already, or a request was refused because the submission ring was full; poll, submit
    /// and try again. Always false without SessionOptions::events. Works as ibv_req_notify_cq(3) and the poll that has
    /// to follow it.
    [[nodiscard]] bool arm() noexcept;

    /// Counts the unsignaled work requests of this session on this QP that succeeded since the QP was opened, modulo
    /// 2^32. They are counted in post order. A request that failed is not counted: it has a completion, which is in the
    /// ring before any later request is counted. To learn which requests have succeeded, take the count and poll until
    /// nothing is left: the count stands for the oldest requests without a completion. For a stale handle (the QP was
    /// closed or reset): the count as last seen.
    [[nodiscard]] std::uint32_t retired(QpHandle qp) noexcept;

    /// State of a queue pair as its worker last published it; `closed` for a stale handle, or if this session has no
    /// share of it.
    [[nodiscard]] QpState state(QpHandle qp) const noexcept;
    /// With flow control: bytes of the longest message that the peer receives. 0 without flow control, and until the
    /// peer has announced it.
    [[nodiscard]] std::uint32_t message_max(QpHandle qp) const noexcept;
    /// With flow control: bytes of the longest message that the peer reads by rendezvous
    /// (QueuePairOptions::rendezvous_pool); 0: it reads none, or has not announced it.
    [[nodiscard]] std::uint32_t rendezvous_max(QpHandle qp) const noexcept;
    /// The status that put the QP into error; success when it is not in error, qp_closed for a stale handle.
    [[nodiscard]] Status cause(QpHandle qp) const noexcept;

    /// The counts of this session's requests so far.
    [[nodiscard]] SessionFigures figures() noexcept;
    /// How long a sample of this session's requests spent in each stage since it was opened. Any thread may call this.
    [[nodiscard]] StageLatency stage_latency() const noexcept;
    [[nodiscard]] std::uint32_t id() const noexcept;
    [[nodiscard]] std::uint32_t worker() const noexcept;
    [[nodiscard]] bool valid() const noexcept { return core_ != nullptr; }

    /// Tells SessionOptions::check_thread that the next call may come from another thread. The program must make this
    /// thread's work visible to that thread, by a mutex for example.
    void hand_over() noexcept;

    /// Closes the session's queue pairs and takes it off its worker. Every request still in flight gets its
    /// completion; poll() still gives what is left. Blocks for the time that retiring queue pairs takes.
    /// The destructor closes too.
    void close() noexcept;

private:
    /// The thread that uses the session, for SessionOptions::check_thread; 0: none so far. A session that was just
    /// moved has none.
    struct User {
        std::uint64_t thread = 0;
        User() noexcept = default;
        User(User&&) noexcept {}
        User& operator=(User&&) noexcept {
            thread = 0;
            return *this;
        }
    };

    std::unique_ptr<SessionCore> core_;
    User user_;
};

}  // namespace pollcore
