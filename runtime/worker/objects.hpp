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
#include "worker/in_flight.hpp"
#include "worker/shared_receives.hpp"
#include "worker/worker_session.hpp"

namespace pollcore {

struct WorkerQp;

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
