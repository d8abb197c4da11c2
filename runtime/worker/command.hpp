// The control thread's commands to a worker, and the worker's answers. Both go through bounded rings. Only WorkerProxy
// writes commands.
//
// Most commands name an object by its index at the worker. Commands that add an object contain its address.
#pragma once

#include <cstdint>
#include <type_traits>
#include <variant>

#include "pollcore/completion.hpp"
#include "pollcore/queue_pair.hpp"
#include "pollcore/spsc_ring.hpp"

namespace pollcore {

class CompletionChannel;
class WorkerCq;
class WorkerPool;
class WorkerQp;
class WorkerSession;
class WorkerSrq;
class WorkerWindow;
struct BindableRegion;
struct WorkerAh;

/// What a flow control must know about its connection when it starts.
struct FlowStart {
    std::uint64_t peer_addr = 0;  ///< address of the peer's control block
    std::uint32_t peer_rkey = 0;
    bool in_order = false;  ///< the peer's writes arrive in this side's memory in order
    bool reads = false;     ///< the queue pair may read from the peer's memory
    bool readable = false;  ///< the peer may read from the queue pair's memory
};

namespace command {

struct AddSession {
    WorkerSession* session;
    std::uint32_t index;
};
/// Refuses the session's requests from now on. The worker answers when the session has nothing in flight. If
/// `abandoned` is true, the worker does not wait for requests that are still in the session's ring.
struct RemoveSession {
    std::uint32_t index;
    bool abandoned;
};

/// From now on the worker waits for events of the channel too when it sleeps.
struct AddChannel {
    CompletionChannel* channel;
};
/// The channel's CQs are removed, so the worker forgets the channel.
struct RemoveChannel {
    CompletionChannel* channel;
};

struct AddCq {
    WorkerCq* cq;
    std::uint32_t index;
};
struct RemoveCq {
    std::uint32_t index;
};
/// Stops polling the CQ and waiting for its events. The CQ gives no more completions, and its queue pairs have nothing
/// in flight.
struct LoseCq {
    std::uint32_t index;
};

/// If `only_room` is true, only makes room for the QP, so that adding it later does not fail.
struct AddQp {
    WorkerQp* qp;
    bool only_room;
};
/// The worker does not touch the QP and its CQs until UnparkQp (D43).
struct ParkQp {
    std::uint32_t index;
};
/// The QP goes on in `state`. If this is the error state, `cause` is the reason, and `device_lags` is true if the
/// device may not have the QP in ERR yet.
struct UnparkQp {
    std::uint32_t index;
    QpState state;
    Status cause;
    bool device_lags;
};
/// The QP is in ERR, unless `device_lags` is true or its device is lost. The worker answers when the QP has nothing in
/// flight, or at the deadline.
struct RetireQp {
    std::uint32_t index;
    /// if only receives remain, the worker stops waiting after this many cycles without a completed receive. 0 means
    /// that it waits until the deadline
    std::uint32_t quiet;
    std::uint64_t deadline;  ///< in cycles of the worker's clock
    bool device_lags;        ///< see UnparkQp
};
/// The QP is destroyed. The worker completes its remaining requests, and removes it. Their status is `leftovers`,
/// unless an earlier error has determined it.
struct ForgetQp {
    std::uint32_t index;
    Status leftovers;
};
/// The QP was RESET. The worker completes the requests that remain from before the reset. Then the QP goes on in
/// `state`. `life` is the argument of life_of() for its new life.
struct RenewQp {
    std::uint32_t index;
    std::uint32_t life;
    QpState state;
};
/// The QP's device is lost. The worker completes the QP's remaining requests. Until ForgetQp, the QP is in error.
struct LoseQp {
    std::uint32_t index;
};
/// The QP is connected, so its flow control starts.
struct StartFlow {
    std::uint32_t index;
    FlowStart how;
};

struct AddSrq {
    WorkerSrq* srq;
};
/// The worker takes no more receives for the SRQ. Receives that the SRQ has stay in flight. Those that the device does
/// not complete will end with status `leftovers`.
struct RetireSrq {
    std::uint32_t index;
    Status leftovers;
};
/// The SRQ was retired and its device is lost. The worker completes the SRQ's remaining receives.
struct LoseSrq {
    std::uint32_t index;
};
/// The SRQ is destroyed, and no queue pair uses it. The worker completes its remaining receives, and removes it.
struct ForgetSrq {
    std::uint32_t index;
};

struct AddPool {
    WorkerPool* pool;
};
/// Removes a pool that no queue pair or SRQ uses.
struct RemovePool {
    std::uint32_t index;
};

struct AddAh {
    const WorkerAh* ah;
    bool only_room;
};
/// Removes the address handle. The answer says whether a request in flight names it (D40). If `unused` is true, no
/// request names it, and the worker does not search.
struct RemoveAh {
    const WorkerAh* ah;
    bool unused;
};
struct AddWindow {
    WorkerWindow* window;
};
/// Removes the window, unless binds of it are in flight.
struct RemoveWindow {
    MwHandle window;
};
/// Adds a region that windows may be bound to.
struct AddRegion {
    const BindableRegion* region;
    bool only_room;
};
/// Removes the region, unless binds to it are in flight.
struct RemoveRegion {
    MrHandle region;
};

/// Asks whether a work request, in flight or in a ring, names `lkey` or binds a window to `region`.
struct FindKey {
    std::uint32_t device;
    std::uint32_t pd;
    std::uint32_t client;  ///< the process that owns the protection domain
    std::uint32_t lkey;
    MrHandle region;
};
/// Asks whether a work request, in flight or in a ring, names the address handle.
struct FindAh {
    const WorkerAh* ah;
};
/// Asks whether a work request, in flight or in a ring, binds the window.
struct FindWindow {
    MwHandle window;
};

using Any = std::variant<AddSession, RemoveSession, AddChannel, RemoveChannel, AddCq, RemoveCq, LoseCq, AddQp, ParkQp,
                         UnparkQp, RetireQp, ForgetQp, RenewQp, LoseQp, StartFlow, AddSrq, RetireSrq, LoseSrq,
                         ForgetSrq, AddPool, RemovePool, AddAh, RemoveAh, AddWindow, RemoveWindow, AddRegion,
                         RemoveRegion, FindKey, FindAh, FindWindow>;

}  // namespace command

struct alignas(kCacheLine) Command {
    std::uint64_t id = 0;  ///< the answer has the same id
    command::Any what;
    std::uint8_t reserved[kCacheLine - sizeof(std::uint64_t) - sizeof(command::Any) - 1] = {};
    std::uint8_t ring_lap = 0;
};
static_assert(sizeof(Command) == kCacheLine && std::is_trivially_copyable_v<Command>);

enum class AnswerKind : std::uint8_t {
    done,
    timed_out,  ///< RetireQp: the deadline came before the QP was drained
    found,      ///< Find*, RemoveAh, RemoveWindow, RemoveRegion: a request that uses the object was found
    not_found,
    no_memory,       ///< Add*, Find*, RemoveAh: there is no memory; nothing has changed, and no search was begun
    cq_failed,       ///< unasked: polling CQ `index` failed; it gives no more completions, and its QPs are in error
    session_broken,  ///< unasked: session `index` wrote something that no correct session writes
    flow_failed,     ///< unasked: the flow control of QP `index` failed; object_id: generation << 8 | FlowFault
};

struct alignas(32) Answer {
    std::uint64_t id = 0;  ///< id of the command; 0 in an unasked report, which answers no command
    AnswerKind kind{};
    std::uint32_t index = 0;
    std::uint32_t object_id = 0;  ///< unasked: id of the WorkerSession or WorkerCq, or see AnswerKind::flow_failed
    std::uint8_t reserved[11] = {};
    std::uint8_t ring_lap = 0;
};
static_assert(sizeof(Answer) == 32);

inline constexpr std::uint32_t kCommandSlots = 256;
inline constexpr std::uint32_t kAnswerSlots = 1024;

}  // namespace pollcore
