// What a worker works on: its ends of sessions, CQs, queue pairs, address handles, windows and regions.
//
// Thread safety: each is made by the control thread, and the worker's alone from the command that adds it until the answer to the one that
// takes it away. Atomics and counters are read by others, too.
// Members stand in the order in which the hot path needs them, hot before cold.
#pragma once

#include <infiniband/verbs.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "device/completion_channel.hpp"
#include "flow/credits.hpp"
#include "flow/receive_pool.hpp"
#include "pollcore/counters.hpp"
#include "pollcore/own_lines.hpp"
#include "session/layout.hpp"
#include "worker/in_flight.hpp"
#include "worker/shared_receives.hpp"

namespace pollcore {

struct WorkerQp;

/// A session's part in one queue pair, as the worker counts it.
struct Share {
    WorkerQp* qp = nullptr;  ///< null: it has none
    QpHandle handle;         ///< the queue pair's
    std::uint32_t send_depth = 0;
    std::uint32_t recv_depth = 0;
    std::uint32_t sends = 0;  ///< in flight
    std::uint32_t recvs = 0;
    std::uint32_t retired = 0;  ///< modulo 2^32
};
static_assert(sizeof(Share) == 32);

/// What the sessions of one other process have of a worker together: in each step so much, whatever is left of the step before
/// (deficit round robin). The worker's.
struct ClientShare {
    /// What a request takes, or its bytes, if these are more.
    static constexpr std::int64_t kRequest = 4096;

    std::uint32_t id = 0;     ///< of the process; 0 is the worker's own
    std::uint64_t step = 0;   ///< that `left` is of
    std::int64_t left = 0;    ///< below 0: a long message has taken it in advance

    void use(std::uint64_t bytes) noexcept { left -= std::max(kRequest, static_cast<std::int64_t>(bytes)); }
};

/// The worker's end of a session. Made by the control thread, the worker's from add_session until the answer
/// to remove_session.
struct alignas(kCacheLine) WorkerSession {
    WorkerSession(void* block, const SessionLayout& layout);

    RingConsumer<WorkRequest> submissions;
    RingProducer<Completion> completions;
    std::uint32_t index = 0;
    std::uint32_t id = 0;  ///< the control thread's name for it; an index is used again
    std::uint32_t completion_slots = 0;
    std::uint32_t in_flight = 0;
    std::uint32_t pooled_posted = 0;  ///< receives of its pools that wait for a message
    std::uint32_t unsignaled = 0;  ///< of those, unsignaled ones that nothing has retired yet
    std::uint64_t reply_at = 0;  ///< one more than the index of the request that may be answered in its line; 0: none
    std::uint64_t retired = 0;
    ClientShare* client = nullptr;  ///< of the process whose it is; null: of this one, which takes what it likes
    std::uint64_t throttled = 0;
    std::uint64_t throttled_at = 0;  ///< one more than the slot that was counted last in SessionHeader::throttled
    bool closing = false;
    bool broken = false;
    bool wide = false;  ///< its completions take two slots of the ring
    bool tells = false;  ///< a completion puts it on the list of those whose application may have to be woken
    int application_fd = -1;  ///< its application sleeps on it; -1: never
    bool application_socket = false;  ///< that is no eventfd, but a socket to another process
    bool device_time = false;         ///< SessionOptions::device_time
    Counter refused;  ///< what its library should not have let through; read by the control thread
    std::uint64_t closing_since = 0;   ///< the step in which it began
    std::uint64_t remove_command = 0;  ///< to be answered when nothing is in flight
    SessionHeader* header = nullptr;
    QpRecord* records = nullptr;
    std::atomic<std::uint64_t>* retired_counts = nullptr;
    SrqRecord* srq_records = nullptr;
    SessionStages* stages = nullptr;
    bool sampling = false;         ///< a request of its is followed
    std::uint32_t sampled_at = 0;  ///< when that was taken
    OwnLines<Share> shares;  ///< by QP index
};

/// Its application sleeps, and has something to look at.
void wake(const WorkerSession& session) noexcept;

struct alignas(kCacheLine) WorkerCq {
    ibv_cq* cq = nullptr;
    ibv_cq_ex* extended = nullptr;  ///< the same, where it is polled by ibv_start_poll; else by ibv_poll_cq
    bool next_poll = true;          ///< DeviceLimits::next_poll
    bool device_time = false;       ///< it is an extended one with CqOptions::device_time
    std::uint32_t index = 0;
    std::uint32_t id = 0;       ///< the control thread's name for it; an index is used again
    std::uint32_t parked = 0;   ///< nesting
    bool failed = false;        ///< it is not polled any more
    int broken = 0;             ///< an extended poll failed with this error, which is dealt with once its batch was
    std::uint32_t depth = 0;    ///< entries it can hold
    std::uint32_t datagram_qps = 0;  ///< UD queue pairs whose receives complete here
    std::uint64_t emptied = 0;  ///< how often a poll came back with less than it could take
    std::uint64_t taken = 0;    ///< entries polled so far
    WorkerSession* served = nullptr;  ///< whose completion came last, hence likely the next one's
    CompletionChannel* channel = nullptr;  ///< null: it makes no events
    bool armed = false;                    ///< its next completion makes one
    std::uint32_t unacknowledged = 0;      ///< events that were taken
};

/// An address handle, as the worker looks it up. The control thread's, and unchanged from add_ah until the answer to
/// remove_ah.
struct WorkerAh {
    AhHandle handle;
    std::uint32_t pd = 0;  ///< the control thread's number of the protection domain
    std::uint32_t client = 0;  ///< whose that is (ClientShare::id)
    ibv_ah* ah = nullptr;
};

/// What a session may post to a queue pair.
struct ShareOptions {
    std::uint32_t session = 0;  ///< index at this worker
    std::uint32_t send_depth = 0;
    std::uint32_t recv_depth = 0;
};

/// The worker's end of a queue pair. Made by the control thread, the worker's from add_qp until the answer to
/// forget_qp.
struct alignas(kCacheLine) WorkerQp {
    // What a send and its completion look at: two lines.
    ibv_qp* qp = nullptr;
    ibv_send_wr* send_head = nullptr;
    ibv_send_wr** send_end = nullptr;  ///< where the chain goes on
    ibv_recv_wr* recv_head = nullptr;
    WorkerQp* next_chained = nullptr;
    std::unique_ptr<CreditFlow> flow;  ///< null: without flow control
    QpHandle handle;
    std::uint16_t parked = 0;  ///< nesting
    OpcodeMask opcodes = opcodes_of(QpType::rc);  ///< what its send queue takes
    OpcodeMask ordinary = 0;  ///< what of that goes by fast_path.cc, as it is now: Worker::choose_way
    QpState state = QpState::init;
    Status cause = Status::success;
    bool datagram = false;      ///< UD
    bool send_failed = false;   ///< in this life a request of its send queue has failed, or its completion was lost
    bool chained = false;       ///< stands in the list that begins with Worker::chained_
    bool cover_wanted = false;  ///< a marker is to follow when one can be posted

    InFlightTable sends;
    std::uint64_t budget_step = 0;  ///< the step that budget_used counts
    std::uint32_t budget_used = 0;
    std::uint32_t unsignaled_run = 0;
    std::uint32_t signal_interval = 1;  ///< a signal at least this often
    std::uint16_t inline_max = 0;
    std::uint8_t sges_max = 1;
    bool flush_held = false;  ///< in error, and its device not yet: the peer may still read what was announced to it

    // A receive besides these.
    ibv_recv_wr* recv_tail = nullptr;
    InFlightTable recvs;
    PoolTaker pool;
    PoolTaker rendezvous;  ///< of messages that are too long for its receives, one at a time; pool null: it takes none
    // Cold.
    std::uint32_t device = 0;  ///< whose keys its requests name
    std::uint32_t pd = 0;      ///< whose windows, regions and (UD) address handles they name; the control thread's number
    ibv_ah* marker_ah = nullptr;  ///< UD: for the marker, which no provider takes without
    std::uint32_t send_cq = 0;
    std::uint32_t recv_cq = 0;
    std::uint32_t qp_num = 0;
    std::uint16_t epoch = 0;   ///< Life::epoch
    WorkerSrq* srq = nullptr;  ///< where its receives are taken from; null: it has a receive queue
    bool marker_in_flight = false;
    bool in_lives = false;  ///< stands in Worker::lives_
    bool due = false;       ///< there, for end_life()
    bool failing = false;  ///< in error, and end_life() has not seen it yet
    bool device_lags = false;  ///< in error, and on its device maybe not: nothing is posted to it
    Status leftover_status = Status::qp_closed;   ///< of what no device completed
    Status unposted_status = Status::wr_flush_err;  ///< of what came when it was in error already
    std::vector<ShareOptions> shares;

    enum class Phase : std::uint8_t { serving, retiring, forgetting, renewing, losing };
    Phase phase = Phase::serving;
    std::uint32_t next_life = 0;  ///< renewing
    QpState next_state = QpState::init;
    std::uint64_t command = 0;          ///< to be answered
    std::uint64_t deadline = 0;
    std::uint32_t quiet = 0;  ///< Command::quiet
    std::uint32_t recvs_left = 0;
    std::uint64_t quiet_since = 0;  ///< recvs_left has not changed
    // A CQ as it was when the wait for it began.
    struct CqMark {
        std::uint64_t emptied = 0;
        std::uint64_t taken = 0;
    };
    CqMark send_cq_mark;
    CqMark recv_cq_mark;
    bool waiting_empty = false;
    bool timed_out = false;
};
static_assert(offsetof(WorkerQp, sends) == kCacheLine && offsetof(WorkerQp, recv_tail) == 2 * kCacheLine - sizeof(ibv_recv_wr*));

/// The worker's end of a memory window. Made by the control thread, the worker's from add_window until the answer to
/// remove_window.
struct WorkerWindow {
    MwHandle handle;
    std::uint32_t pd = 0;  ///< the control thread's number of it
    std::uint32_t client = 0;  ///< whose that is (ClientShare::id)
    ibv_mw* mw = nullptr;  ///< its rkey is as the binds posted so far will leave it
    std::uint32_t binds = 0;                    ///< in flight
    std::atomic<std::uint32_t> rkey{0};         ///< as the binds that completed left it
    std::atomic<std::uint32_t> bound_on{0};     ///< type 2: pack() of the queue pair of the last bind
    std::atomic<bool> lost{false};              ///< how a bind of it ended is not known, so neither is its key
};

/// A memory region that windows may be bound to.
struct WorkerRegion {
    MrHandle handle;
    std::uint32_t pd = 0;
    ibv_mr* mr = nullptr;
    std::uint32_t binds = 0;  ///< in flight, of this worker
};

[[nodiscard]] constexpr std::uint32_t pack(QpHandle handle) noexcept {
    return std::uint32_t{handle.generation} << 16 | handle.index;
}

/// A write ring that is looked at, and the queue pair whose it is.
struct WatchedRing {
    WorkerQp* qp = nullptr;
    WriteRing* ring = nullptr;
    bool operator==(const WatchedRing&) const = default;
};

/// Send-queue slots and CQEs that the runtime needs for itself on each queue pair: a marker, whose
/// completion says that everything before it has ended.
inline constexpr std::uint32_t kMarkersPerQp = 1;

}  // namespace pollcore
