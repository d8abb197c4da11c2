// What the control thread may ask of a worker, and what comes back. Both travel over bounded rings; only WorkerProxy
// writes commands.
//
// Objects are named by their index at the worker.
#pragma once

#include <cstdint>
#include <type_traits>
#include <variant>

#include "pollcore/completion.hpp"
#include "pollcore/queue_pair.hpp"
#include "pollcore/spsc_ring.hpp"

namespace pollcore {

class WorkerCq;
class WorkerPool;
class WorkerQp;
class WorkerSession;
class WorkerSrq;
class WorkerWindow;
struct BindableRegion;
struct WorkerAh;

/// What the control thread knows of a connection when its flow control begins.
struct FlowStart {
    std::uint64_t peer_addr = 0;  ///< of its control block
    std::uint32_t peer_rkey = 0;
    bool in_order = false;  ///< what is written to the queue pair's memory arrives in order
    bool reads = false;     ///< the queue pair may read from the peer's memory
    bool readable = false;  ///< the peer may read from its
};

namespace command {

struct AddSession {
    WorkerSession* session;
    std::uint32_t index;
};
/// Takes nothing more from it; answered when nothing of it is in flight. `abandoned`: what is in its ring is not waited
/// for.
struct RemoveSession {
    std::uint32_t index;
    bool abandoned;
};

struct AddCq {
    WorkerCq* cq;
    std::uint32_t index;
};
struct RemoveCq {
    std::uint32_t index;
};
/// Nothing more comes from it, and nothing of its queue pairs is in flight: it is not polled and not slept for.
struct LoseCq {
    std::uint32_t index;
};

/// `only_room`: makes room for it, so that adding it does not fail.
struct AddQp {
    WorkerQp* qp;
    bool only_room;
};
/// Leaves the QP and its CQs alone until UnparkQp.
struct ParkQp {
    std::uint32_t index;
};
/// Goes on, with `state` and `cause` for the QP. `device_lags`: in error, and not known to be in ERR at its device by
/// now.
struct UnparkQp {
    std::uint32_t index;
    QpState state;
    Status cause;
    bool device_lags;
};
/// The QP is in ERR: answered when it is drained, or at the deadline.
struct RetireQp {
    std::uint32_t index;
    std::uint32_t quiet;     ///< cycles after which receives that nothing flushes are given up; 0: never
    std::uint64_t deadline;  ///< on the worker's clock
    bool device_lags;        ///< as of UnparkQp
};
/// The QP is destroyed: completes what is left, with `leftovers`, and drops it.
struct ForgetQp {
    std::uint32_t index;
    Status leftovers;
};
/// The QP was RESET: completes what is left and goes on in `state`, as its `life` (life_of()).
struct RenewQp {
    std::uint32_t index;
    std::uint32_t life;
    QpState state;
};
/// The QP is gone with its device: completes what is left; it refuses work until ForgetQp.
struct LoseQp {
    std::uint32_t index;
};
/// The QP is connected.
struct StartFlow {
    std::uint32_t index;
    FlowStart how;
};

struct AddSrq {
    WorkerSrq* srq;
};
/// Takes nothing more for it; what it holds stays in flight, and will end with `leftovers`.
struct RetireSrq {
    std::uint32_t index;
    Status leftovers;
};
/// It was retired and is gone with its device: completes what is left.
struct LoseSrq {
    std::uint32_t index;
};
/// It is destroyed, and no queue pair uses it: completes what is left and drops it.
struct ForgetSrq {
    std::uint32_t index;
};

struct AddPool {
    WorkerPool* pool;
};
/// No queue pair or SRQ uses it.
struct RemovePool {
    std::uint32_t index;
};

struct AddAh {
    const WorkerAh* ah;
    bool only_room;
};
/// Forgets it, and then says whether one is in flight that names it. `unused`: none is, so it is not looked.
struct RemoveAh {
    const WorkerAh* ah;
    bool unused;
};
struct AddWindow {
    WorkerWindow* window;
};
/// Forgets it, unless binds of it are in flight.
struct RemoveWindow {
    MwHandle window;
};
/// Windows may be bound to it.
struct AddRegion {
    const BindableRegion* region;
    bool only_room;
};
/// Forgets it, unless binds to it are in flight.
struct RemoveRegion {
    MrHandle region;
};

// Is a work request in flight, or in a ring, that ...
/// ... names the key, or binds a window to the region?
struct FindKey {
    std::uint32_t device;
    std::uint32_t pd;
    std::uint32_t client;  ///< whose the protection domain is
    std::uint32_t lkey;
    MrHandle region;
};
/// ... names the address handle?
struct FindAh {
    const WorkerAh* ah;
};
/// ... binds the window?
struct FindWindow {
    MwHandle window;
};

using Any =
    std::variant<AddSession, RemoveSession, AddCq, RemoveCq, LoseCq, AddQp, ParkQp, UnparkQp, RetireQp, ForgetQp,
                 RenewQp, LoseQp, StartFlow, AddSrq, RetireSrq, LoseSrq, ForgetSrq, AddPool, RemovePool, AddAh,
                 RemoveAh, AddWindow, RemoveWindow, AddRegion, RemoveRegion, FindKey, FindAh, FindWindow>;

}  // namespace command

struct alignas(kCacheLine) Command {
    std::uint64_t id = 0;  ///< comes back in the answer
    command::Any what;
    std::uint8_t reserved[kCacheLine - sizeof(std::uint64_t) - sizeof(command::Any) - 1] = {};
    std::uint8_t ring_lap = 0;
};
static_assert(sizeof(Command) == kCacheLine && std::is_trivially_copyable_v<Command>);

enum class AnswerKind : std::uint8_t {
    done,
    timed_out,  ///< RetireQp: the deadline came first
    found,      ///< Find*; Remove*: still in use
    not_found,
    no_memory,       ///< Add*, Find*, RemoveAh: nothing has changed, and nothing was begun
    cq_failed,       ///< unasked: polling CQ `index` failed, its QPs are in error and nothing more comes from it
    session_broken,  ///< unasked: session `index` wrote what no session writes
    flow_failed,     ///< unasked: the peer of QP `index` broke the agreement; object_id: generation << 8 | FlowFault
};

struct alignas(32) Answer {
    std::uint64_t id = 0;  ///< 0 when unasked
    AnswerKind kind{};
    std::uint32_t index = 0;
    std::uint32_t object_id = 0;  ///< unasked: which one, WorkerSession's or WorkerCq's id; an index is used again
    std::uint8_t reserved[11] = {};
    std::uint8_t ring_lap = 0;
};
static_assert(sizeof(Answer) == 32);

inline constexpr std::uint32_t kCommandSlots = 256;
inline constexpr std::uint32_t kAnswerSlots = 1024;

}  // namespace pollcore
