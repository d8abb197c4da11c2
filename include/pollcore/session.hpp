// A session connects one application thread to one worker, in this process (Runtime) or in a daemon (Attachment).
//
// Thread safety: a session is used by one thread at a time. If two threads use a session at once, requests may be
// lost silently; SessionOptions::check_thread detects such use. While a thread uses a session, other threads may call
// the functions of QueuePair. No call here makes a system call, takes a lock or allocates memory, except close(), the
// destructor, assignment, wait(), arm(), and poll() with a time limit. There are two more exceptions: if the worker
// sleeps (IdlePolicy::event), try_submit and release() write the worker's eventfd, and SessionOptions::check_thread
// costs each thread one system call.
//
// Who owns a buffer: the application owns it until try_submit accepts the work request. Then the device owns it until
// poll() has returned the request's completion. An unsignaled request that succeeds has no completion. Its buffer is
// free when poll() has returned a later completion of the same send queue, or when retired() counts the request.
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

/// The options of a session. They cannot be changed later.
struct SessionOptions {
    /// Names the session in the log and in messages, beside its number. At most kNameLengthMax printable ASCII
    /// characters; several sessions may have one name. Empty: no name.
    std::string name{};
    std::string worker{};                   ///< name from the configuration; empty: the worker with the fewest sessions
    std::uint32_t submission_slots = 1024;  ///< a power of two; 64 bytes each
    /// A power of two; 32 bytes each, or 64 with wide_completions. At most this many work requests are in flight.
    std::uint32_t completion_slots = 1024;
    /// Further completion slots, for the messages of receive pools. The number must be at least the number of buffers
    /// of all pools of this session; a write ring counts as WriteRingOptions::messages + 1 buffers.
    std::uint32_t pool_buffers = 0;
    /// Completions take 64 bytes. Session::poll can then return WideCompletions, which say where a datagram came from.
    bool wide_completions = false;
    /// Needs wide_completions. Successful completions have the device's time stamp (CompletionExtension::device_time).
    /// Queue pairs with time stamps have CQs of their own. The worker polls these CQs by ibv_start_poll, whatever value
    /// WorkerConfig::poll has, and a completion there costs the worker a little more (D37). On a device whose
    /// DeviceReport::completion_timestamp_mask is 0, making a queue pair for this session fails with EOPNOTSUPP.
    bool device_time = false;
    /// If true, Session::wait() may sleep, and event_fd() and arm() work. This costs the worker an atomic operation in
    /// each step that completes something for this session, and a system call if the session's thread sleeps.
    bool events = false;
    /// Requests to a queue pair in error are accepted, and complete with wr_flush_err after all earlier requests of
    /// their queue, as the verbs do it. By default they are refused (Refusal::qp_in_error). After the loss of the
    /// device the status is device_removed. A request that the worker has not taken yet when the queue pair is closed
    /// or reset completes with request_refused.
    bool flush_in_error = false;
    std::chrono::nanoseconds wait_spin{20'000};  ///< how long Session::wait() spins before it sleeps
    /// Ends the program with a line in the log when a second thread uses the session. The session belongs to the first
    /// thread that calls it, until the session is moved or Session::hand_over() is called. The environment variable
    /// POLLCORE_CHECK_THREAD=1 switches this check on for all sessions of a process. In a library that was built with
    /// assertions the check is always on. When it is off, it costs nothing.
    bool check_thread = false;
};

/// The reason why a work request was not accepted. A refused request has no effect. See retryable(). The compiler warns
/// of a call whose refusal is ignored.
enum class [[nodiscard]] Refusal : std::uint8_t{
    none,
    // Temporary: no room now.
    submission_ring_full,
    completion_ring_full,  ///< all completion slots of the session are reserved for requests in flight
    send_queue_full,       ///< this session's share of the QP's send queue is full
    receive_queue_full,
    srq_full,  ///< the shared receive queue has no room for another receive
    // Not temporary.
    /// The queue pair does not exist, or was closed or reset; or this session has no such shared receive queue.
    stale_handle,
    not_connected,  ///< the QP is not ready for sends, or is in RESET, where it takes no requests
    qp_in_error,    ///< see Session::cause
    bad_opcode,     ///< not an opcode, or not allowed on this QP: see opcodes_of
    bad_flags,
    too_many_sges,
    no_sge,  ///< WorkRequest::num_sge is 0 but sge.length is not: no byte would be sent or received
    inline_too_long,
    /// The remote address of an atomic is not a multiple of 8, or the atomic does not have exactly one SGE of 8 bytes.
    misaligned_atomic,
    /// Receives of this QP belong to another session, or come from a shared receive queue or a pool; or a pool posts
    /// the receives of this shared receive queue.
    not_receiver,
    no_share,  ///< this session has no share of the queue pair, or its QpShare::send_depth is 0
    /// With flow control: the message is longer than Session::message_max and cannot go by rendezvous (see
    /// Session::rendezvous_max).
    message_too_long,
    session_closed,
};
inline constexpr std::size_t kRefusalKinds = static_cast<std::size_t>(Refusal::session_closed) + 1;
[[nodiscard]] POLLCORE_API std::string_view refusal_name(Refusal refusal) noexcept;
/// A sentence that says what a refusal means, and what to do.
[[nodiscard]] POLLCORE_API std::string_view refusal_text(Refusal refusal) noexcept;
/// Whether the same call may succeed later, when there is room.
[[nodiscard]] constexpr bool retryable(Refusal refusal) noexcept {
    return refusal > Refusal::none && refusal <= Refusal::srq_full;
}

/// The result of a call with several requests. The first `accepted` requests were taken. If some requests were not
/// taken, `refusal` is the reason for the first of these.
struct [[nodiscard]] Submitted {
    std::size_t accepted = 0;
    Refusal refusal = Refusal::none;
};

class SessionCore;

/// Counts of one session since it was opened. At any time, accepted = completed + retired + in flight.
struct SessionFigures {
    std::uint64_t accepted = 0;   ///< work requests that try_submit took
    std::uint64_t completed = 0;  ///< completions that poll returned, without those of receive pools
    std::uint64_t retired = 0;    ///< unsignaled requests that succeeded, as far as this side knows
    std::uint64_t refused = 0;
    /// In an attached process: requests that the worker left at the front of the ring for at least one step, because
    /// the process had used up its share of that step. The share limits requests and bytes, so that a process with many
    /// sessions or long messages does not take the shares of other processes.
    std::uint64_t throttled = 0;
    [[nodiscard]] std::uint64_t in_flight() const noexcept { return accepted - completed - retired; }
};

/// Connects one application thread to one worker. Move-only. If the daemon that serves an attached session dies, each
/// request in flight completes with Status::daemon_gone after the kernel has reported the death. From then on no device
/// writes the buffers.
class POLLCORE_API Session {
public:
    /// Makes an object without a session. It takes no requests and has no completions.
    Session() noexcept;
    /// Made by Context::open_session.
    POLLCORE_INTERNAL explicit Session(std::unique_ptr<SessionCore> core) noexcept;
    ~Session();
    Session(Session&&) noexcept;
    Session& operator=(Session&&) noexcept;
    Session(const Session&) = delete;
    Session& operator=(const Session&) = delete;

    /// try_submit takes receives, too: for a queue pair, or as Opcode::srq_recv for a shared receive queue.
    ///
    /// Takes work requests with at most one SGE each, or with an inline payload (WorkRequest::with_inline), in order,
    /// until a request is refused. The worker sees all taken requests together. A send-queue request without kSignaled
    /// has a completion only if it fails: see retired().
    Submitted try_submit(std::span<const WorkRequest> requests) noexcept;
    /// One work request with at most one SGE, or with an inline payload.
    [[nodiscard]] Refusal try_submit(const WorkRequest& request) noexcept;
    /// A work request with any number of SGEs: `sges` replaces request.sge and request.num_sge. It cannot be inline.
    [[nodiscard]] Refusal try_submit(const WorkRequest& request, std::span<const Sge> sges) noexcept;
    /// A send or RDMA write with this inline payload. For a single request this is the shortest way.
    [[nodiscard]] Refusal try_submit_inline(const WorkRequest& request, std::span<const std::byte> payload) noexcept;

    /// Takes up to `out.size()` completions and returns their number; 0 when there are none now. Both forms work on
    /// every session. The first form leaves out the extensions of wide completions. The second form fills the
    /// extensions with 0 in a session without wide completions.
    [[nodiscard]] std::size_t poll(std::span<Completion> out) noexcept;
    [[nodiscard]] std::size_t poll(std::span<WideCompletion> out) noexcept;
    /// Polls; if there is no completion now, does wait(timeout) and polls again. Returns 0 also when wait() returned
    /// for another reason, such as room for a request that was refused. A loop around this call gets an operation's
    /// completion sooner than a loop around poll() alone, because this call pauses between its reads of the ring, so
    /// that they do not delay the worker. A thread that also waits for something else, such as memory that a peer
    /// writes, uses poll() alone.
    [[nodiscard]] std::size_t poll(std::span<Completion> out, std::chrono::nanoseconds timeout) noexcept;
    [[nodiscard]] std::size_t poll(std::span<WideCompletion> out, std::chrono::nanoseconds timeout) noexcept;

    /// Gives back the buffers that these completions name (kPooled); other completions are skipped. The application
    /// must not touch the buffers afterwards. `accepted` counts the completions that this call has handled. It handles
    /// all of them, unless the submission ring was full (then call again with the others) or the session is closed.
    /// Many buffers in one call take fewer slots of the ring than one call for each.
    [[nodiscard]] Submitted release(std::span<const Completion> completions) noexcept;
    [[nodiscard]] Refusal release(const Completion& completion) noexcept { return release({&completion, 1}).refusal; }

    /// Waits until there is a completion, or until a refused request may have room. There may be room when unsignaled
    /// requests were retired, or when the worker has taken requests from a full submission ring. wait() and arm()
    /// report each of these only once. Spins for SessionOptions::wait_spin, then sleeps. Returns false when the timeout
    /// is over. Also returns true after poke(). Returns false at once when the session has ended and no completion is
    /// left. A timeout of max() never
    /// ends, and needs no timer in the kernel. This call never sleeps without SessionOptions::events. It does not sleep
    /// while the submission ring is full either, because the worker makes room within microseconds.
    [[nodiscard]] bool wait(std::chrono::nanoseconds timeout) noexcept;
    /// Ends a wait(), or a poll() with a time limit, of the thread that uses the session: wait() returns true. If no
    /// such call is under way, the next one ends at once. Any thread may call this, until the session is closed, moved
    /// or destroyed. This call makes a system call if SessionOptions::events is set.
    void poke() noexcept;
    /// A descriptor for the program's own event loop. After arm() has returned true, the descriptor becomes readable as
    /// soon as wait() might return true. It may also become readable without such a reason. Returns -1 without
    /// SessionOptions::events. The session owns the descriptor: a program may poll it, but must not read it.
    [[nodiscard]] int event_fd() const noexcept;
    /// Asks the worker to make event_fd() readable once, at the next completion or retirement. Returns false and arms
    /// nothing if there is a completion or retirement already, or if a request was refused because the submission ring
    /// was full: then poll, submit and call again. Always returns false without SessionOptions::events. This call has
    /// the effect of ibv_req_notify_cq(3) and of the poll that has to follow it.
    [[nodiscard]] bool arm() noexcept;

    /// Returns how many unsignaled work requests of this session on this QP have succeeded since the QP was opened
    /// or reset, modulo 2^32. Requests are counted in post order. A request that failed is not counted: it has a
    /// completion, which is in the ring before any later request is counted. To learn which requests have succeeded,
    /// take the count, and then poll until no completion is left. If the count is n, the first n unsignaled requests
    /// that have no completion have succeeded. For a stale handle (the QP was closed or reset), returns the count that
    /// this session read last, or 0 if the session has used a newer handle of the same index.
    [[nodiscard]] std::uint32_t retired(QpHandle qp) noexcept;

    /// The state of a queue pair, as its worker last published it. Returns `closed` for a stale handle, and for a queue
    /// pair of which this session has no share.
    [[nodiscard]] QpState state(QpHandle qp) const noexcept;
    /// With flow control: bytes of the longest message that the peer receives. Returns 0 without flow control, and
    /// until the peer has announced this limit.
    [[nodiscard]] std::uint32_t message_max(QpHandle qp) const noexcept;
    /// With flow control: bytes of the longest message that the peer reads by rendezvous
    /// (QueuePairOptions::rendezvous_pool). Returns 0 if the peer reads no messages by rendezvous, or has not announced
    /// this limit.
    [[nodiscard]] std::uint32_t rendezvous_max(QpHandle qp) const noexcept;
    /// Returns the status that put the QP into error, or `success` without an error. Returns `qp_closed` where state()
    /// returns `closed`.
    [[nodiscard]] Status cause(QpHandle qp) const noexcept;

    /// The counts of this session's requests so far.
    [[nodiscard]] SessionFigures figures() noexcept;
    /// Returns histograms of the time that a sample of this session's requests has spent in each stage. Any thread may
    /// call this.
    [[nodiscard]] StageLatency stage_latency() const noexcept;
    /// The number by which logs and errors name the session.
    [[nodiscard]] std::uint32_t id() const noexcept;
    /// SessionOptions::name. Valid as long as the session.
    [[nodiscard]] std::string_view name() const noexcept;
    [[nodiscard]] std::uint32_t worker() const noexcept;
    /// The worker's name from the configuration. A session that is opened with this name has the same worker. Valid as
    /// long as the session.
    [[nodiscard]] std::string_view worker_name() const noexcept;
    [[nodiscard]] bool valid() const noexcept { return core_ != nullptr; }

    /// Tells SessionOptions::check_thread that the next call may come from another thread. The program must make this
    /// thread's work visible to the other thread, for example by a mutex.
    void hand_over() noexcept;

    /// Closes the session's queue pairs and detaches the session from its worker. Every request still in flight gets
    /// its completion, and poll() still returns the completions that are left. Blocks until the queue pairs are closed.
    /// The destructor closes the session, too.
    void close() noexcept;

    /// For Context. Null if this object has no session.
    [[nodiscard]] POLLCORE_INTERNAL SessionCore* core() const noexcept { return core_.get(); }

private:
    /// The thread that uses the session, for SessionOptions::check_thread. 0 means that no thread has used the session
    /// since it was opened, moved or handed over.
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
