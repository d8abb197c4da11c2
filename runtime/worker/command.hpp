// What the control thread may ask of a worker, and what comes back. Both travel over bounded rings; only
// WorkerProxy writes commands.
#pragma once

#include <cstdint>

#include "pollcore/completion.hpp"
#include "pollcore/queue_pair.hpp"
#include "pollcore/spsc_ring.hpp"

namespace pollcore {

struct WorkerAh;
class WorkerSession;
struct WorkerQp;
struct WorkerCq;
struct WorkerSrq;
struct WorkerWindow;
struct WorkerRegion;
struct WorkerPool;

enum class CommandKind : std::uint8_t {
    add_session,
    remove_session,  ///< takes nothing more from it; answered when nothing of it is in flight
    add_cq,
    remove_cq,
    lose_cq,  ///< nothing more comes from it, and nothing of its queue pairs is in flight: it is not polled and not slept for
    add_qp,
    park_qp,     ///< leaves the QP and its CQs alone until unpark_qp
    unpark_qp,   ///< goes on, with `state` and `cause` for the QP
    retire_qp,   ///< the QP is in ERR: answered when it is drained, or at the deadline
    forget_qp,   ///< the QP is destroyed: completes what is left and drops it
    renew_qp,    ///< the QP was RESET: completes what is left and goes on in `state`, as its `life`
    lose_qp,     ///< the QP is gone with its device: completes what is left; the QP refuses work until forget_qp
    add_srq,
    retire_srq,  ///< takes nothing more for it; what it holds stays in flight, and will end with `cause`
    lose_srq,    ///< the SRQ was retired and is gone with its device: completes what is left
    forget_srq,  ///< the SRQ is destroyed, and no queue pair uses it: completes what is left and drops it
    find_key,    ///< is a work request in flight, or in a ring, that names `lkey` or binds a window to the region?
    add_ah,
    find_ah,     ///< is a work request in flight, or in a ring, that names the address handle?
    remove_ah,   ///< forgets it, and then says whether one is in flight that names it
    add_window,
    find_window,    ///< is a bind of the window in flight, or in a ring?
    remove_window,  ///< forgets it, unless binds of it are in flight
    add_region,     ///< windows may be bound to it
    remove_region,  ///< forgets it, unless binds to it are in flight
    add_pool,
    remove_pool,  ///< no queue pair or SRQ uses it
    start_flow,   ///< the QP is connected, and its peer's control block is at `peer_addr` with key `lkey`
};

struct alignas(kCacheLine) Command {
    std::uint64_t id = 0;  ///< comes back in the answer
    CommandKind kind{};
    QpState state = QpState::init;
    Status cause = Status::success;
    std::uint32_t index = 0;  ///< of a session, CQ, QP or SRQ of this worker; find_key: of the device
    union {
        std::uint32_t lkey = 0;
        std::uint32_t life;  ///< renew_qp: see life_of()
    };
    union {
        std::uint32_t quiet = 0;  ///< retire_qp: cycles after which receives that nothing flushes are given up; 0: never
        MrHandle region_handle;
        MwHandle window_handle;
    };
    union {
        std::uint64_t deadline = 0;  ///< on the worker's clock
        std::uint64_t peer_addr;
        std::uint32_t pd;  ///< find_key: of the key
    };
    union {
        WorkerSession* session = nullptr;
        const WorkerAh* ah;
    };
    union {
        WorkerCq* cq = nullptr;
        WorkerWindow* window;
        const WorkerRegion* region;
        WorkerPool* pool;
    };
    union {
        WorkerQp* qp = nullptr;
        WorkerSrq* srq;
        std::uint32_t client;  ///< find_key: whose the protection domain is
    };
    // start_flow:
    bool in_order = false;  ///< what is written to the QP's memory arrives in order
    bool reads = false;     ///< the QP may read from the peer's memory
    bool readable = false;  ///< the peer may read from the QP's
    bool abandoned = false; ///< remove_session: what is in its ring is not waited for; remove_ah: nothing is in flight, so it is not looked
    bool device_lags = false;  ///< retire_qp, unpark_qp in error: the QP is not known to be in ERR at its device by now
    bool only_room = false;    ///< add_qp, add_region, add_ah: makes room for it, so that adding it does not fail
    std::uint8_t reserved[1] = {};
    std::uint8_t ring_lap = 0;
};
static_assert(sizeof(Command) == kCacheLine);

enum class AnswerKind : std::uint8_t {
    done,
    timed_out,  ///< retire_qp: the deadline came first
    found,      ///< find_*; remove_*: still in use
    not_found,
    no_memory,  ///< add_*, find_*, remove_ah: nothing has changed, and nothing was begun
    cq_failed,  ///< unasked: polling CQ `index` failed, its QPs are in error and nothing more comes from it
    session_broken,  ///< unasked: session `index` wrote what no session writes
    flow_failed,     ///< unasked: the peer of QP `index` broke the agreement; object_id: generation << 8 | FlowFault
};

struct alignas(32) Answer {
    std::uint64_t id = 0;  ///< 0 when unasked
    AnswerKind kind{};
    std::uint32_t index = 0;
    std::uint32_t object_id = 0;  ///< unasked: which one, WorkerSession::id or WorkerCq::id; an index is used again
    std::uint8_t reserved[11] = {};
    std::uint8_t ring_lap = 0;
};
static_assert(sizeof(Answer) == 32);

inline constexpr std::uint32_t kCommandSlots = 256;
inline constexpr std::uint32_t kAnswerSlots = 1024;

}  // namespace pollcore
