// What the control thread knows of each object of a runtime: a slot for each.
//
// Ownership: RuntimeState has the slots, in its tables. In a slot, `end` is the worker's part of the object.
// Thread safety: only the control thread, but for RegionPlan, RegionEnd and AhPlan.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/called.hpp"
#include "base/foreign_fd.hpp"
#include "base/host_memory.hpp"
#include "base/unique_fd.hpp"
#include "connect/connector.hpp"
#include "control/control_memory.hpp"
#include "control/figure_book.hpp"
#include "control/platform.hpp"
#include "device/device.hpp"
#include "flow/shared_grants.hpp"
#include "pollcore/config.hpp"
#include "session/control_side.hpp"
#include "worker/ring_pool.hpp"
#include "worker/worker.hpp"
#include "worker/worker_proxy.hpp"

namespace pollcore {

struct DeviceSlot {
    DeviceConfig config;
    std::uint32_t index = 0;
    std::uint64_t number = 0;  ///< in the statistics; from 1 on; a device that takes a free slot gets the next one
    /// The attached process for which the device was opened once more, and the device's name in the configuration. 0:
    /// it is a device of the configuration, for all.
    std::uint32_t client = 0;
    std::string shared_name;
    std::string description;         // Device::describe()
    std::unique_ptr<Device> device;  // null: the process has ended, and the slot is free
    std::unique_ptr<Connector> connector;
    std::map<std::uint32_t, std::unique_ptr<ThreadDomain>> domains;        // by worker
    std::map<std::uint32_t, std::unique_ptr<CompletionChannel>> channels;  // by worker, for workers that may sleep
    // The pairs (worker, with time stamps) for which the log already says how the worker polls this device's CQs.
    std::set<std::pair<std::uint32_t, bool>> polls_logged;
    std::uint32_t next_vector = 0;
    std::uint32_t default_pd = 0;
    bool lost = false;     // the device failed or was removed; no new objects are made on it
    bool removed = false;  // the application has been notified of the removal
};

struct PdSlot {
    std::uint32_t device = 0;
    // ClientShare::id of the process in whose address space the domain's regions lie. 0 means this process.
    std::uint32_t client = 0;
    UniquePd pd;
};

struct RegionSlot {
    void* data = nullptr;
    std::uint64_t iova = 0;
    HostMemory memory;  // empty if the program owns the memory
    UniqueMr mr;        // destroyed before `memory`
    std::uint32_t pd = 0;
    MrHandle handle;  // if valid, windows may be bound to the region, and all workers know the region
    bool ending = false;
};

/// Everything that is needed to register a region.
struct RegionPlan {
    Device* device = nullptr;
    std::uint32_t pd = 0;
    ibv_pd* verbs_pd = nullptr;
    void* data = nullptr;
    std::size_t bytes = 0;
    std::uint64_t iova = 0;
    Access access;

    /// Registers the region. Any thread may call this. The call may take long, because it pins memory. The protection
    /// domain must exist until the call returns. Throws Error.
    [[nodiscard]] UniqueMr carry_out() const;
};

/// A region that the provider still has to deregister. No work request names the region any more.
struct RegionEnd {
    std::uint64_t region = 0;
    Device* device = nullptr;
    ibv_mr* mr = nullptr;

    /// Deregisters the region. Any thread may call this. The call may take long, because it unpins memory. Returns an
    /// errno value, or 0.
    [[nodiscard]] int carry_out() const noexcept { return device->destroy(mr); }
};

/// Everything that is needed to make an address handle, or to connect a queue pair to an address.
struct AhPlan {
    Device* device = nullptr;
    std::uint32_t device_index = 0;
    PdId pd = 0;
    ibv_pd* verbs_pd = nullptr;
    ibv_ah_attr address{};

    /// Makes the address handle. Any thread may call this. The call may take a second if the kernel asks the network
    /// who has the address (H15). The protection domain must exist until the call returns. Throws Error.
    [[nodiscard]] UniqueAh carry_out() const;
    /// Waits for the neighbour's address as carry_out() does, but makes no address handle.
    void find_neighbour() const;
};

struct WindowSlot {
    std::uint32_t device = 0;
    std::uint32_t worker = 0;
    UniqueMw mw;
    std::unique_ptr<WorkerWindow> end;
};

struct AhSlot {
    std::uint32_t device = 0;
    UniqueAh ah;
    WorkerAh end;
};

// A CQ of one worker on one device, with the number of entries that the CQ's QPs have reserved (I3).
struct CqSlot {
    std::uint32_t device = 0;
    std::uint32_t capacity = 0;
    std::uint32_t reserved = 0;
    std::uint32_t queues = 0;  // send and receive queues that complete here
    bool failed = false;       // gets no more queue pairs
    bool device_time = false;  // only for queue pairs of sessions with SessionOptions::device_time (D37)
    // By SRQ index: how many of the SRQ's queue pairs complete on this CQ. The SRQ's depth is reserved only once (D21).
    std::map<std::uint16_t, std::uint32_t> srqs;
    UniqueCq cq;
    std::unique_ptr<WorkerCq> end;
};

/// The descriptors by which a session and its worker wake each other. A descriptor is invalid if the side that it wakes
/// never sleeps.
struct SessionBells {
    /// Wakes the worker: an eventfd that another process shares. Invalid if the session is of this process.
    ForeignFd visitor;
    /// Wakes the application: in this process an eventfd, for another process one end of a socket pair.
    UniqueFd application;
};

struct SessionSlot {
    std::uint32_t id = 0;
    NameText name;
    std::uint32_t worker = 0;
    std::uint32_t index = 0;  // at the worker
    SessionLayout layout;
    HostMemory block;
    std::shared_ptr<ClientShare> client;
    ForeignFd visitor_fd;     // SessionBells::visitor
    UniqueFd application_fd;  // SessionBells::application
    // A closed pool. The session's ring may still contain completions for `buffers` of the pool's buffers, until the
    // application has taken all entries before number `produced`.
    struct Unpolled {
        std::uint32_t buffers = 0;
        std::uint32_t produced = 0;
    };
    std::vector<Unpolled> unpolled;
    std::unique_ptr<WorkerSession> end;           // null after the worker has released the session
    std::optional<std::uint64_t> remove_command;  // number of the command that removes the session from its worker
    WorkerSession::Figures figures;               // set when the worker has released the session

    [[nodiscard]] Called called() const noexcept { return {id, name.view()}; }
    [[nodiscard]] WorkerSession::Figures figures_now() const noexcept {
        return end != nullptr ? end->figures() : figures;
    }
};

struct WorkerSlot {
    WorkerConfig config;
    UniqueFd bell;      // eventfd that wakes the worker; invalid if the worker never sleeps
    UniqueFd visitors;  // epoll over the eventfds with which other processes wake the worker
    std::unique_ptr<Worker> worker;
    std::unique_ptr<WorkerProxy> proxy;
    std::vector<std::unique_ptr<CqSlot>> cqs;  // by index at the worker
    std::vector<std::uint32_t> sessions;       // session ids, by index at the worker; 0: the index is free
    std::unique_ptr<WorkerThread> thread;
};

struct PoolSlot {
    std::uint32_t device = 0;
    std::uint32_t pd = 0;
    std::uint32_t worker = 0;
    std::uint32_t session = 0;                       // id
    std::uint32_t takers = 0;                        // queue pairs and shared receive queues that have a share
    std::uint32_t shares = 0;                        // buffers of all shares together
    std::uint32_t places = 0;                        // completions that the pool may have in its session's ring
    bool attached = true;                            // the worker knows the pool
    std::shared_ptr<ReceivePoolCounters> published;  // the pool's counters; null if they are in `end`
    std::unique_ptr<WorkerPool> end;
    // The pointer for the pool's kind points to `end`. The other pointer is null.
    BufferPool* buffers = nullptr;
    RingPool* ring = nullptr;
};

// The share that a queue pair or a shared receive queue has of a pool.
struct PoolShare {
    PoolSlot* pool = nullptr;  // null if there is no share
    std::uint32_t buffers = 0;
};

struct SrqSlot {
    SrqHandle handle;
    std::uint32_t device = 0;
    std::uint32_t worker = 0;
    std::uint32_t session = 0;  // id
    std::uint32_t depth = 0;
    std::uint32_t qps = 0;  // queue pairs that take receives from it
    std::uint32_t credit_connections = 0;
    UniqueSrq srq;  // null after the device was lost
    PoolShare pool;
    std::unique_ptr<WorkerSrq> end;
    std::unique_ptr<SharedGrants> grants;  // null if credit_connections is 0
};

struct QpSlot {
    QpHandle handle;
    /// The handle before the last reset, if that reset was begun by event. The application may still close the queue
    /// pair by this handle, because it may not have taken the event.
    QpHandle former;
    NameText name;
    std::uint32_t client = 0;  // the process that owns the queue pair; 0: this process
    std::uint32_t device = 0;
    std::uint32_t worker = 0;
    std::uint32_t pd = 0;
    std::uint32_t psn = 0;
    std::uint32_t qkey = 0;
    QpType type = QpType::rc;
    RemoteAccess remote_access;
    FlowControl flow = FlowControl::off;
    QpState state = QpState::init;
    bool moved = false;  // the QP has left INIT: after a failed connection it must be reset before it can be used again
    bool by_hand = false;  // QueuePairOptions::by_hand
    std::uint32_t send_cq = 0;
    std::uint32_t recv_cq = 0;
    std::uint32_t send_entries = 0;  // entries reserved in the send CQ
    std::uint32_t recv_entries = 0;
    SrqSlot* srq = nullptr;
    PoolShare pool;
    PoolShare rendezvous;
    // Only used with an SRQ. True if the QP takes no more receives, and all receives that it took have completed
    // (IBV_EVENT_QP_LAST_WQE_REACHED).
    bool last_wqe_reached = false;
    std::uint32_t qp_num = 0;
    UniqueAh marker_ah;            // UD: the QP's own address, to which the marker is sent (D41)
    ControlMemory control_memory;  // only with flow control; destroyed after the queue pair
    UniqueQp qp;                   // null after the device was lost
    std::unique_ptr<WorkerQp> end;
    std::uint64_t retire_command = 0;  // number of the last command that retires the queue pair at its worker
    ConnectionId connection = 0;
    FlowBlock peer_flow;  // from the connection request that was accepted with this queue pair
    bool disconnected = false;
    bool ending = false;      // it is being closed or reset (QpEnding)
    bool error_told = false;  // the application knows that it is in error, or has itself put it there
    FigureAccount figures;

    [[nodiscard]] Called called() const noexcept { return {qp_num, name.view()}; }
};

}  // namespace pollcore
