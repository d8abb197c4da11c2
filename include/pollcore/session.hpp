// A session: one application thread's way to one worker, embedded or attached.
//
// Thread safety: a session is used by one thread at a time. Two at once lose requests without a word; SessionOptions::check_thread finds
// that. Control calls on queue pairs may come from other threads meanwhile.
// No call here makes a system call, takes a lock or allocates, except close(), wait() and arm(); and try_submit where the
// worker may sleep (IdlePolicy::event) and does: it writes the worker's eventfd.
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
#include "pollcore/latency.hpp"
#include "pollcore/own_lines.hpp"
#include "pollcore/queue_pair.hpp"
#include "pollcore/spsc_ring.hpp"
#include "pollcore/work_request.hpp"

namespace pollcore {

struct SessionOptions {
    std::string worker{};                 ///< name from the configuration; empty: the one with the fewest sessions
    std::uint32_t submission_slots = 1024;  ///< a power of two; 64 bytes each
    std::uint32_t completion_slots = 1024;  ///< a power of two; 32 bytes each: the most work requests in flight
    /// Completions beside those, for messages of receive pools: as many as the session's pools have buffers together.
    std::uint32_t pool_buffers = 0;
    /// Completions of 64 bytes: Session::poll can give WideCompletions, which say where datagrams came from.
    bool wide_completions = false;
    /// Only with wide_completions: successful completions have the device's time stamp, CompletionExtension::device_time. The session's
    /// queue pairs complete on CQs that only such queue pairs have, and that are polled by ibv_start_poll whatever WorkerConfig::poll
    /// says; each completion there is a little more work for the worker. A queue pair is refused with EOPNOTSUPP on a device whose
    /// DeviceReport::completion_timestamp_mask is 0.
    bool device_time = false;
    /// Session::wait() may sleep, and event_fd() and arm() are there. For each step that completes something the worker looks
    /// whether this session's thread sleeps, which takes an atomic operation, and a system call where it does.
    bool events = false;
    std::chrono::nanoseconds wait_spin{20'000};  ///< Session::wait() looks for so long before it sleeps
    /// Ends the program with a line in the log when a second thread uses the session. It is the first caller's until it is moved or
    /// Session::hand_over() is called. The environment variable POLLCORE_CHECK_THREAD=1 does this for all sessions of a process, and
    /// a library that was built with assertions always does. Switched off it costs nothing.
    bool check_thread = false;
};

/// Why a work request was not accepted. Nothing was done. See is_temporary().
enum class Refusal : std::uint8_t {
    none,
    // No room now.
    submission_ring_full,
    completion_ring_full,  ///< as many requests in flight as the session has completion slots
    send_queue_full,       ///< this session's share of the QP's send queue is in flight
    receive_queue_full,
    srq_full,  ///< as many receives of the shared receive queue in flight as it has room for
    // Not like this.
    stale_handle,    ///< no such queue pair, or it was closed or reset; no such shared receive queue of this session
    not_connected,   ///< a send before the QP is ready
    qp_in_error,     ///< see Session::cause
    bad_opcode,      ///< no opcode, or not one of this QP's type: see opcodes_of
    bad_flags,
    too_many_sges,
    no_sge,             ///< WorkRequest::num_sge is 0, and the length of its SGE is not: nothing of it would be sent or received
    inline_too_long,
    misaligned_atomic,  ///< the remote address of an atomic is no multiple of 8, or it has not one SGE of 8 bytes
    not_receiver,       ///< receives of this QP belong to another session, or come from a shared receive queue or a pool
    no_share,           ///< this session has no part in the queue pair, or none in its send queue: see QueuePairOptions::shares
    message_too_long,   ///< with credits: longer than Session::message_max, and not for rendezvous (see Session::rendezvous_max)
    session_closed,
};
[[nodiscard]] std::string_view refusal_name(Refusal refusal) noexcept;
/// Whether the same call may succeed later, once completions were polled.
[[nodiscard]] constexpr bool is_temporary(Refusal refusal) noexcept {
    return refusal > Refusal::none && refusal <= Refusal::srq_full;
}

/// What try_submit took: the first `accepted` requests. When fewer than asked, `refusal` says which limit
/// stopped the next one.
struct [[nodiscard]] Submitted {
    std::size_t accepted = 0;
    Refusal refusal = Refusal::none;
};

/// The runtime's side of closing a session. Lives as long as any session made by it.
class SessionHost {
public:
    SessionHost() noexcept;
    virtual ~SessionHost() = default;
    /// This is a forked child of the process that made it: none of its threads are here, and what it has is the parent's.
    [[nodiscard]] bool is_forked() const noexcept;
    /// Its process has made this queue pair and has not closed it. Any thread; does not wait.
    [[nodiscard]] virtual bool has_queue_pair(QpHandle qp) const noexcept = 0;
    /// Retires the session's queue pairs and detaches it from its worker; afterwards the rings are the
    /// caller's alone, with the last completions in them.
    virtual void close_session(std::uint32_t session_id) noexcept = 0;
    /// Releases the session's shared memory.
    virtual void release_session(std::uint32_t session_id) noexcept = 0;

private:
    int process_;
};

/// By what the two sides of a session wake each other. The descriptors live as long as the SessionHost.
struct SessionWaking {
    int worker_fd = -1;       ///< eventfd on which the worker sleeps; -1: it does not
    int application_fd = -1;  ///< the one that the worker writes: Session::event_fd()
    std::chrono::nanoseconds spin{0};  ///< for so long wait() looks by itself before it sleeps
    bool application_socket = false;  ///< that is no eventfd but the receiving end of a socket pair: its worker trusts no other process
};

class InFlightLog;
class RequestHead;
struct SessionLayout;
struct SessionHeader;
struct QpRecord;
struct SrqRecord;
struct SessionStages;

/// Figures of one session since it was opened. Accepted = completed + retired + in flight, always.
struct SessionFigures {
    std::uint64_t accepted = 0;   ///< work requests that try_submit took
    std::uint64_t completed = 0;  ///< completions that poll gave
    std::uint64_t retired = 0;    ///< unsignaled requests that succeeded, as far as known here
    std::uint64_t refused = 0;
    /// Of an attached process: requests that its worker left in the ring for a step or more, since the process had had its share of
    /// the step. Each has a part in requests and bytes, so that one with many sessions or long messages leaves the others theirs.
    std::uint64_t throttled = 0;
    [[nodiscard]] std::uint64_t in_flight() const noexcept { return accepted - completed - retired; }
};

/// When the daemon that serves an attached session ends without a word, each request in flight completes with
/// Status::daemon_gone, once the kernel says that it is gone, and no device writes the buffers any more.
class alignas(kCacheLine) Session {
public:
    Session() = default;
    /// Joins a formatted session block; made by Context::open_session.
    /// With a log where the worker may end without a word, since it is in another process.
    Session(std::shared_ptr<SessionHost> host, std::uint32_t id, std::uint32_t worker, void* block,
            const SessionLayout& layout, const SessionWaking& waking = {}, std::shared_ptr<InFlightLog> log = nullptr,
            bool check_thread = false);
    ~Session();
    Session(Session&& other) noexcept;
    Session& operator=(Session&& other) noexcept;
    Session(const Session&) = delete;
    Session& operator=(const Session&) = delete;

    /// All of these take receives too, for a queue pair or, as Opcode::srq_recv, for a shared receive queue.
    ///
    /// Takes work requests with at most one SGE each, in order, until one is refused. The worker sees those that were
    /// taken at once. One without kSignaled has no completion when it succeeds: see retired().
    Submitted try_submit(std::span<const WorkRequest> requests) noexcept;
    [[nodiscard]] Refusal try_submit(const WorkRequest& request) noexcept;
    /// A work request with any number of SGEs: `sges` replaces request.sge and request.num_sge.
    [[nodiscard]] Refusal try_submit(const WorkRequest& request, std::span<const Sge> sges) noexcept;
    /// A send or RDMA write whose bytes are taken before the call returns; they need not be registered.
    [[nodiscard]] Refusal try_submit_inline(const WorkRequest& request,
                                            std::span<const std::byte> payload) noexcept;

    /// Takes up to `out.size()` completions; 0 when there are none now. Either form works on every session: a wide
    /// one's extensions can be left, and those of one that is not wide are all 0.
    [[nodiscard]] std::size_t poll(std::span<Completion> out) noexcept;
    [[nodiscard]] std::size_t poll(std::span<WideCompletion> out) noexcept;

    /// Gives buffers of receive pools back, of completions that name one (kPooled); others are passed over. They are not to
    /// be touched any more. Says how many completions were dealt with; when those are fewer than given, it is since the
    /// submission ring was full (for the rest: try again) or the session is closed. Several at once take fewer slots of it.
    [[nodiscard]] Submitted release(std::span<const Completion> completions) noexcept;
    [[nodiscard]] Refusal release(const Completion& completion) noexcept { return release({&completion, 1}).refusal; }

    /// Waits until poll() has something to give, or there may be room for what was refused: unsignaled requests were retired
    /// since this was last said, or the worker has taken from a ring that was full. For SessionOptions::wait_spin by looking,
    /// then asleep. False when the time was over before; max() is no time limit, and saves the kernel a timer. Without
    /// SessionOptions::events it does not sleep, and looks all the time; nor while the submission ring is full, which takes
    /// the worker microseconds.
    [[nodiscard]] bool wait(std::chrono::nanoseconds timeout) noexcept;
    /// For a program with an event loop of its own: readable when wait() may have nothing to wait for, once arm() has returned
    /// true. It may be readable for nothing. -1 without SessionOptions::events. The session's; poll it, and leave reading it
    /// to arm().
    [[nodiscard]] int event_fd() const noexcept { return waking_.application_fd; }
    /// Asks the worker to make event_fd() readable with the next completion or retirement, once. False: there is one already,
    /// or something was refused since the submission ring was full, and nothing was asked for: try again. As
    /// ibv_req_notify_cq(3), and the look after it.
    [[nodiscard]] bool arm() noexcept;

    /// Unsignaled work requests of this session on this QP that succeeded, since the QP was opened, modulo
    /// 2^32: the oldest ones, in post order. Those that failed are not among them: each has a completion, which stands in
    /// the ring before a later one is counted. So take the count, poll until nothing is left, and then the oldest without
    /// a completion are the ones. Of a handle that is stale, since the QP was closed or reset: as last seen.
    [[nodiscard]] std::uint32_t retired(QpHandle qp) noexcept;

    /// State of a queue pair as its worker last published it; `closed` for a stale handle, and where this session has no part in it.
    [[nodiscard]] QpState state(QpHandle qp) const noexcept;
    /// With credits, once the peer has said it: the longest message that it receives. Else 0.
    [[nodiscard]] std::uint32_t message_max(QpHandle qp) const noexcept;
    /// The same of messages that the peer reads by rendezvous (QueuePairOptions::rendezvous_pool); 0: it reads none.
    [[nodiscard]] std::uint32_t rendezvous_max(QpHandle qp) const noexcept;
    /// What put the QP into error; success when it is not.
    [[nodiscard]] Status cause(QpHandle qp) const noexcept;

    [[nodiscard]] SessionFigures figures() noexcept;
    /// Where the time of this session's requests went since it was opened, in a sample of them. Any thread.
    [[nodiscard]] StageLatency stage_latency() const noexcept;
    [[nodiscard]] std::uint32_t id() const noexcept { return id_; }
    [[nodiscard]] std::uint32_t worker() const noexcept { return worker_; }
    [[nodiscard]] bool valid() const noexcept { return header_ != nullptr; }

    /// The next call may come from another thread, for SessionOptions::check_thread. What this thread did so far must be visible there,
    /// by a mutex for example.
    void hand_over() noexcept { owner_ = 0; }

    /// Closes the session's queue pairs and takes it off its worker. Every request still in flight gets its
    /// completion; poll() still gives what is left. Blocks for the time that retiring queue pairs takes.
    /// The destructor closes too.
    void close() noexcept;

private:
    // What the application's side counts per queue pair; private to this side.
    struct QpAccount {
        // As long as QpRecord::status is this: what an ordinary request may be, and what it may have.
        std::uint64_t known_status = 0;
        std::uint32_t send_depth = 0;
        OpcodeMask ordinary = 0;
        std::uint16_t inline_max = 0;

        std::uint16_t generation = 0;
        std::uint16_t epoch = 0;  ///< of the life that is counted
        std::uint32_t send_outstanding = 0;
        std::uint32_t recv_outstanding = 0;
        std::uint32_t retired_seen = 0;
    };
    static_assert(sizeof(QpAccount) == kCacheLine / 2);
    // Bits of attention_.
    static constexpr std::uint8_t kUnusable = 1;       // closed, or names nothing: takes no requests
    static constexpr std::uint8_t kThreadChecked = 2;  // SessionOptions::check_thread
    static constexpr std::uint8_t kLogged = 4;         // log_ is there

    struct SrqAccount {
        std::uint16_t generation = 0;
        std::uint32_t outstanding = 0;
    };

    [[nodiscard]] bool admits_at_once(RequestHead head, std::uint32_t inline_length) noexcept;
    [[nodiscard]] std::size_t ordinary_room(std::size_t wanted) noexcept;
    [[nodiscard]] std::size_t write_ordinary(std::span<const WorkRequest> requests, std::size_t ahead) noexcept;
    [[nodiscard]] Refusal admit(const WorkRequest& request, std::uint32_t num_sge, std::uint32_t inline_length,
                                std::uint64_t bytes, std::uint32_t slots, std::size_t ahead = 0) noexcept;
    [[nodiscard]] Refusal admit_own(const WorkRequest& request, std::size_t ahead = 0) noexcept;
    [[nodiscard]] Refusal admit_without_sge(const WorkRequest& request, std::size_t ahead) noexcept;
    [[gnu::cold]] Refusal refuse_unknown(QpHandle qp) const noexcept;
    [[nodiscard]] Refusal admit_shared(const WorkRequest& request, std::uint32_t num_sge, std::uint32_t slots,
                                       std::size_t ahead) noexcept;
    static void learn(QpAccount& account, std::uint64_t status, OpcodeMask opcodes, std::uint32_t send_depth) noexcept;
    [[nodiscard]] Refusal admit_slots(std::uint32_t slots, std::size_t ahead) noexcept;
    void count_refused() noexcept;
    [[nodiscard]] WorkRequest summed(const WorkRequest& request, std::span<const Sge> sges) noexcept;
    [[nodiscard]] QpAccount& account(QpHandle qp) noexcept;
    [[nodiscard]] SrqAccount& account(SrqHandle srq) noexcept;
    [[nodiscard]] bool begin_epoch(QpAccount& account, std::uint16_t epoch) noexcept;
    void refresh_retired(QpHandle qp) noexcept;
    [[nodiscard]] bool completion_room() noexcept;
    [[nodiscard]] bool refresh_completion_room() noexcept;
    void count_accepted(const WorkRequest& request) noexcept;
    void sample(WorkRequest& slot, Opcode opcode) noexcept;
    void follow(WorkRequest& slot, Opcode opcode) noexcept;
    void follow_one_of(std::span<const WorkRequest> requests) noexcept;
    void sampled(std::uint32_t since) noexcept;
    [[nodiscard]] std::uint64_t expect_reply(const WorkRequest& request) noexcept;
    [[nodiscard]] bool read_reply(Completion& completion) noexcept;
    void keep_reply() noexcept;
    [[nodiscard]] bool take_reply(Completion& completion) noexcept;
    [[nodiscard]] std::size_t reserve_slots(std::size_t wanted) noexcept;
    [[nodiscard]] bool has_reply() const noexcept;
    [[nodiscard]] std::uint64_t taken() const noexcept;
    void destroy() noexcept;
    template <class Record>
    [[nodiscard]] std::size_t take(std::span<Record> out) noexcept;
    template <class Record>
    [[nodiscard]] std::size_t take_from_ring(std::span<Record> out) noexcept;
    template <class Record>
    [[nodiscard]] std::size_t take_awaiting(std::span<Record> out) noexcept;
    template <class Record>
    [[nodiscard]] std::size_t complete_untaken(std::span<Record> out) noexcept;
    template <class Record>
    [[nodiscard]] std::size_t complete_gone(std::span<Record> out) noexcept;
    void take_stock() noexcept;
    [[nodiscard]] bool left_to_complete() noexcept;
    void note(const WorkRequest& request) noexcept;
    void settle_out_of_turn(const Completion& completion, std::uint32_t in_flight) noexcept;
    void submitted() noexcept;
    void wake_worker() noexcept;
    [[nodiscard]] bool need_not_wait() const noexcept;
    [[nodiscard]] bool tell_news() noexcept;
    [[nodiscard]] bool expect_news() noexcept;
    void sleep(std::chrono::nanoseconds most) noexcept;
    void settle(const Completion& completion) noexcept;
    void settle_sends(QpHandle qp, std::uint32_t ended) noexcept;
    void settle_other(const Completion& completion) noexcept;
    [[nodiscard]] bool logs() const noexcept { return (attention_ & kLogged) != 0; }
    void check_thread() noexcept;
    [[gnu::cold]] void check_owner() noexcept;

    // Read on every call.
    RingProducer<WorkRequest> submissions_;
    RingConsumer<Completion> completions_;
    SessionHeader* header_ = nullptr;
    QpRecord* records_ = nullptr;               // written by the worker
    std::atomic<std::uint64_t>* retired_ = nullptr;  // per QP, written by the worker
    OwnLines<QpAccount> accounts_;  // by QP index
    std::uint32_t qps_mask_ = 0;
    std::uint32_t completion_slots_ = 0;
    std::uint32_t wide_ = 0;  // a completion takes 1 << wide_ slots of the ring
    std::uint8_t attention_ = kUnusable;  // 0: an open session that needs no care
    bool worker_sleeps_ = false;
    bool summing_ = false;  // the request that was just admitted needs the sum of its payload
    std::uint64_t accepted_ = 0;
    std::uint64_t next_sample_ = 0;  // the next that is followed is the first for which accepted_ has come so far
    std::uint32_t last_burst_ = 0;    // what the last poll that found something took from the ring
    std::uint32_t followed_ = 0;      // requests that were
    std::uint64_t retired_seen_ = 0;  // over all queue pairs
    // One more than the index of the slot where the marked request may be answered; 0: nowhere; kKept: it was, and kept_ is the answer.
    std::uint64_t awaited_ = 0;
    std::uint64_t replied_ = 0;  // completions that came so
    bool marked_ = false;        // a request that was marked to be answered in its line has not completed
    bool past_lives_ = false;    // the ring may hold completions of a queue pair's life before
    std::uint64_t refused_ = 0;
    std::uint64_t pooled_taken_ = 0;  // completions that no request of this session asked for
    SessionStages* stages_ = nullptr;
    SrqRecord* srq_records_ = nullptr;  // written by the worker
    OwnLines<SrqAccount> srq_accounts_;  // by SRQ index
    // Cold.
    SessionWaking waking_;
    std::uint32_t id_ = 0;
    std::uint32_t worker_ = 0;
    std::uint64_t untaken_slots_ = 0;     // of those that no worker will take, completed here
    std::uint64_t untaken_requests_ = 0;
    std::uint64_t retired_told_ = 0;  // by wait() or arm()
    bool end_told_ = false;           // by arm()
    bool wants_slots_ = false;        // a request was refused for want of them, and this has not been told
    std::shared_ptr<InFlightLog> log_;  // null: whoever serves this session ends it in order
    static constexpr std::uint64_t kKept = ~std::uint64_t{0};
    Completion kept_;                   // of a request whose slot was written again before this was polled
    bool stock_taken_ = false;          // the daemon is gone, and what is left is known
    std::uint32_t gone_left_ = 0;       // requests that complete as daemon_gone
    std::uint32_t gone_index_ = 0;      // queues below have none
    std::shared_ptr<SessionHost> host_;
    std::uint64_t owner_ = 0;  // the thread that uses it, where that is checked: its number in the kernel. 0: none so far
};

}  // namespace pollcore
