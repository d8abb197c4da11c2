// The control thread's commands to a worker, and the worker's answers. Both travel over bounded rings; only WorkerProxy
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
    std::uint64_t peer_addr = 0;  ///< address of the peer's control block
    std::uint32_t peer_rkey = 0;
    bool in_order = false;  ///< writes to the queue pair's memory arrive in order
    bool reads = false;     ///< the queue pair may read from the peer's memory
    bool readable = false;  ///< the peer may read from the queue pair's memory
};

namespace command {

struct AddSession {
    WorkerSession* session;
    std::uint32_t index;
};
/// Refuses its requests from now on. Answered when it has nothing in flight. `abandoned`: requests in its ring are not
/// waited for.
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
/// The CQ gives no more completions, and its queue pairs have nothing in flight: it is not polled and not slept for.
struct LoseCq {
    std::uint32_t index;
};

/// `only_room`: only makes room for the QP, so that adding it later does not fail.
struct AddQp {
    WorkerQp* qp;
    bool only_room;
};
/// Leaves the QP and its CQs alone until UnparkQp (D43).
struct ParkQp {
    std::uint32_t index;
};
/// The QP goes on, with `state` and `cause`. `device_lags`: it is in error, but its device may not have it in ERR yet.
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
    bool device_lags;        ///< see UnparkQp
};
/// The QP is destroyed: completes its remaining requests with `leftovers`, and drops it.
struct ForgetQp {
    std::uint32_t index;
    Status leftovers;
};
/// The QP was RESET: completes the remaining requests of its old life. It goes on in `state`, in its new `life`
/// (life_of()).
struct RenewQp {
    std::uint32_t index;
    std::uint32_t life;
    QpState state;
};
/// The QP is gone with its device: completes its remaining requests. It refuses work until ForgetQp.
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
/// Takes no more receives for the SRQ. Receives that it holds stay in flight, and will end with `leftovers`.
struct RetireSrq {
    std::uint32_t index;
    Status leftovers;
};
/// The SRQ was retired and is gone with its device: completes its remaining receives.
struct LoseSrq {
    std::uint32_t index;
};
/// The SRQ is destroyed, and no queue pair uses it: completes its remaining receives, and drops it.
struct ForgetSrq {
    std::uint32_t index;
};

struct AddPool {
    WorkerPool* pool;
};
/// No queue pair or SRQ uses the pool.
struct RemovePool {
    std::uint32_t index;
};

struct AddAh {
    const WorkerAh* ah;
    bool only_room;
};
/// Forgets the address handle, and then answers whether a request in flight names it (D40). `unused`: none does, so
/// there is no search.
struct RemoveAh {
    const WorkerAh* ah;
    bool unused;
};
struct AddWindow {
    WorkerWindow* window;
};
/// Forgets the window, unless binds of it are in flight.
struct RemoveWindow {
    MwHandle window;
};
/// Adds a region that windows may be bound to.
struct AddRegion {
    const BindableRegion* region;
    bool only_room;
};
/// Forgets the region, unless binds to it are in flight.
struct RemoveRegion {
    MrHandle region;
};

/// Is there a work request, in flight or in a ring, that names the key or binds a window to the region?
struct FindKey {
    std::uint32_t device;
    std::uint32_t pd;
    std::uint32_t client;  ///< process that the protection domain belongs to
    std::uint32_t lkey;
    MrHandle region;
};
/// Is there a work request, in flight or in a ring, that names the address handle?
struct FindAh {
    const WorkerAh* ah;
};
/// Is there a work request, in flight or in a ring, that binds the window?
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
    session_broken,  ///< unasked: session `index` wrote something that no correct session writes
    flow_failed,     ///< unasked: the peer of QP `index` broke the agreement; object_id: generation << 8 | FlowFault
};

struct alignas(32) Answer {
    std::uint64_t id = 0;  ///< 0 when unasked
    AnswerKind kind{};
    std::uint32_t index = 0;
    std::uint32_t object_id = 0;  ///< unasked: id of the WorkerSession or WorkerCq, since an index is used again
    std::uint8_t reserved[11] = {};
    std::uint8_t ring_lap = 0;
};
static_assert(sizeof(Answer) == 32);

inline constexpr std::uint32_t kCommandSlots = 256;
inline constexpr std::uint32_t kAnswerSlots = 1024;

}  // namespace pollcore
