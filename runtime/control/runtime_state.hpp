// The inside of a Runtime: everything that the control thread owns.
//
//   runtime_state.cc      start and stop           queue_pairs.cc        making, connecting by exchanged information
//   sessions.cc           opening and closing      queue_pair_ends.cc    closing and resetting (H1)
//   memory.cc             domains, regions         completion_queues.cc  which CQ a queue goes to
//   windows.cc            memory windows           connecting.cc         listeners, rdma_cm or names, their events
//   address_handles.cc    address handles          events.cc             events of devices and reports of workers
//   workers.cc            starting workers         flow_control.cc       flow control of queue pairs
//   shared_receive_queues.cc, receive_pools.cc
//
// Thread safety: public functions may be called from any thread; they do their work on the control thread (executor_).
// Functions named *_here run on the control thread. waiting_mutex_ guards what application threads wait for: attempts_
// and requests_.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include <fmt/core.h>

#include "base/foreign_fd.hpp"
#include "base/line_budget.hpp"
#include "connect/connector.hpp"
#include "connect/transitions.hpp"
#include "control/handle_pool.hpp"
#include "control/platform.hpp"
#include "control/use_search.hpp"
#include "device/device.hpp"
#include "flow/flow_kind.hpp"
#include "flow/shared_grants.hpp"
#include "pollcore/runtime.hpp"
#include "session/control_side.hpp"
#include "worker/ring_pool.hpp"
#include "worker/worker.hpp"
#include "worker/worker_proxy.hpp"

namespace pollcore {

struct DeviceSlot {
    DeviceConfig config;
    std::uint32_t index = 0;
    std::unique_ptr<Device> device;
    std::unique_ptr<Connector> connector;
    std::map<std::uint32_t, std::unique_ptr<ThreadDomain>> domains;        // by worker
    std::map<std::uint32_t, std::unique_ptr<CompletionChannel>> channels;  // by worker, for workers that may sleep
    // Worker, and whether with time stamps: the log says already how this worker polls here.
    std::set<std::pair<std::uint32_t, bool>> polls_logged;
    std::uint32_t next_vector = 0;
    std::uint32_t default_pd = 0;
    bool lost = false;     // fatal or removed: nothing more is made on it
    bool removed = false;  // the application was told so
};

struct PdSlot {
    std::uint32_t device = 0;
    std::uint32_t client = 0;  // ClientShare::id of the process whose addresses its regions have; 0: this process
    UniquePd pd;
};

struct RegionSlot {
    void* data = nullptr;
    std::uint64_t iova = 0;
    HostMemory memory;  // empty: the memory is the program's own
    UniqueMr mr;        // ends before the memory does
    std::uint32_t pd = 0;
    MrHandle handle;  // valid: windows may be bound to the region, and the workers know it
    bool ending = false;
};

/// What the provider is asked for to make a region.
struct RegionPlan {
    Device* device = nullptr;
    std::uint32_t pd = 0;
    ibv_pd* verbs_pd = nullptr;
    void* data = nullptr;
    std::size_t bytes = 0;
    std::uint64_t iova = 0;
    Access access;

    /// Any thread; may take long, since it pins memory. The protection domain must stay meanwhile. Throws Error.
    [[nodiscard]] UniqueMr carry_out() const;
};

/// A region that its provider still has to end. No work request names it any more.
struct RegionEnd {
    std::uint64_t region = 0;
    Device* device = nullptr;
    ibv_mr* mr = nullptr;

    /// Any thread; may take long, since it unpins memory. Returns an errno value, or 0.
    [[nodiscard]] int carry_out() const noexcept { return device->destroy(mr); }
};

/// What is asked for to make an address handle, or to connect a queue pair to an address.
struct AhPlan {
    Device* device = nullptr;
    std::uint32_t device_index = 0;
    PdId pd = 0;
    ibv_pd* verbs_pd = nullptr;
    ibv_ah_attr address{};

    /// Makes the address handle. Any thread; may take a second, when the kernel asks the network who has the address
    /// (H15). The protection domain must stay meanwhile. Throws Error.
    [[nodiscard]] UniqueAh carry_out() const;
    /// As carry_out(), but makes no address handle.
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

// A CQ of one worker on one device, with the entries that its QPs have reserved (I3).
struct CqSlot {
    std::uint32_t device = 0;
    std::uint32_t capacity = 0;
    std::uint32_t reserved = 0;
    std::uint32_t queues = 0;  // send and receive queues that complete here
    bool failed = false;       // takes no more queue pairs
    bool device_time = false;  // only for queue pairs of sessions with SessionOptions::device_time (D37)
    std::map<std::uint16_t, std::uint32_t> srqs;  // queue pairs here, by SRQ; its depth is reserved once (D21)
    UniqueCq cq;
    std::unique_ptr<WorkerCq> end;
};

/// How a session and its worker wake each other. A descriptor is invalid if the side that it wakes never sleeps.
struct SessionBells {
    ForeignFd visitor;     ///< wakes the worker: an eventfd; only for a session of another process, which has it, too
    UniqueFd application;  ///< wakes the application: the sending end of a socket pair; in this process an eventfd
};

struct SessionSlot {
    std::uint32_t id = 0;
    std::uint32_t worker = 0;
    std::uint32_t index = 0;  // at the worker
    SessionLayout layout;
    HostMemory block;
    std::shared_ptr<ClientShare> client;
    ForeignFd visitor_fd;     // eventfd with which another process wakes the worker; invalid: the worker never sleeps
    UniqueFd application_fd;  // eventfd, or a socket to another process; invalid: the application never sleeps
    // A closed pool whose completions may still stand in the ring: those of `buffers` buffers, until the application
    // has taken the ring up to `produced`.
    struct Unpolled {
        std::uint32_t buffers = 0;
        std::uint32_t produced = 0;
    };
    std::vector<Unpolled> unpolled;
    std::unique_ptr<WorkerSession> end;           // null once detached
    std::optional<std::uint64_t> remove_command;  // the command to its worker that removes it
    std::uint64_t refused = 0;                    // submissions that the worker refused; set once detached
};

struct WorkerSlot {
    WorkerConfig config;
    UniqueFd bell;      // eventfd that wakes the worker; invalid: it never sleeps
    UniqueFd visitors;  // epoll of the eventfds with which other processes wake it
    std::unique_ptr<Worker> worker;
    std::unique_ptr<WorkerProxy> proxy;
    std::vector<std::unique_ptr<CqSlot>> cqs;  // by index at the worker
    std::vector<std::uint32_t> sessions;       // id by index at the worker; 0 is free
    std::unique_ptr<WorkerThread> thread;
};

struct PoolSlot {
    std::uint32_t device = 0;
    std::uint32_t pd = 0;
    std::uint32_t worker = 0;
    std::uint32_t session = 0;                       // id
    std::uint32_t takers = 0;                        // queue pairs and shared receive queues that have a share
    std::uint32_t shares = 0;                        // buffers of all shares together
    std::uint32_t places = 0;                        // completions that it may have in its session's ring
    bool attached = true;                            // its worker knows it
    std::shared_ptr<ReceivePoolCounters> published;  // its counters; null: they are in `end`
    std::unique_ptr<WorkerPool> end;
    // One of these is set.
    BufferPool* buffers = nullptr;
    RingPool* ring = nullptr;
};

// What a queue pair or a shared receive queue has of a pool.
struct PoolShare {
    PoolSlot* pool = nullptr;  // null: nothing
    std::uint32_t buffers = 0;
};

struct SrqSlot {
    SrqHandle handle;
    std::uint32_t device = 0;
    std::uint32_t worker = 0;
    std::uint32_t session = 0;  // id
    std::uint32_t depth = 0;
    std::uint32_t qps = 0;  // queue pairs that use it
    std::uint32_t credit_connections = 0;
    UniqueSrq srq;  // null once its device was lost
    PoolShare pool;
    std::unique_ptr<WorkerSrq> end;
    std::unique_ptr<SharedGrants> grants;  // null: no credit_connections
};

struct QpSlot {
    QpHandle handle;
    std::uint32_t device = 0;
    std::uint32_t worker = 0;
    std::uint32_t pd = 0;
    std::uint32_t psn = 0;
    std::uint32_t qkey = 0;
    QpType type = QpType::rc;
    RemoteAccess remote_access;
    FlowControl flow = FlowControl::off;
    QpState state = QpState::init;
    bool moved = false;  // beyond INIT, so that a failed connection leaves it unusable
    std::uint32_t send_cq = 0;
    std::uint32_t recv_cq = 0;
    std::uint32_t send_entries = 0;  // reserved in the CQs
    std::uint32_t recv_entries = 0;
    SrqSlot* srq = nullptr;
    PoolShare pool;
    PoolShare rendezvous;
    bool last_wqe_reached = false;  // with an SRQ: it takes no more receives, and those that it took have completed
    std::uint32_t qp_num = 0;
    UniqueAh marker_ah;        // UD: to itself, for the marker (D41)
    HostMemory control_block;  // with flow control: the block, and the entries behind it; ends after the queue pair
    UniqueMr control_mr;
    UniqueMr entries_mr;
    UniqueQp qp;  // null once its device was lost
    std::unique_ptr<WorkerQp> end;
    std::uint64_t retire_command = 0;  // the last command to its worker that retires it
    ConnectionId connection = 0;
    FlowBlock peer_flow;  // from the connection request that it accepted
    bool disconnected = false;
};

/// A device's index, and one of its connections.
using ConnectionKey = std::pair<std::uint32_t, ConnectionId>;

/// Serves other processes, and is told here what happens on the control thread.
class ClientHost {
public:
    virtual ~ClientHost() = default;
    /// An attempt has ended, or a request has come.
    virtual void connections_changed() = 0;
    virtual void event(const Event& event) = 0;
    /// The session's rings were tampered with. False: the session belongs to none of these processes.
    virtual bool session_broken(std::uint32_t session) = 0;
    /// The runtime ends. When this returns, nothing that uses it may be under way any more.
    virtual void runtime_stops() = 0;
};

/// What the log says of a queue pair that may be gone: "queue pair 17 of client 3". A client is an attached process.
struct QpAndOwner {
    std::uint32_t qp_num = 0;
    std::uint32_t client = 0;  ///< 0: this process
};

/// A queue pair on its way out of service (H1).
struct Retirement {
    QpHandle handle;
    std::chrono::steady_clock::time_point deadline;
    std::chrono::steady_clock::time_point last_wqe_deadline;
    std::chrono::milliseconds limit{0};
    std::uint32_t quiet = 0;
    bool device_lags = false;   ///< the device did not move it to ERR
    std::uint64_t command = 0;  ///< 0: the worker has not been asked yet
};

class RuntimeState final : public ControlSide {
public:
    RuntimeState(const Config& config, std::unique_ptr<Platform> platform);
    ~RuntimeState() override;

    bool stop() override;

    OpenedSession open_session(const SessionOptions& options) override;
    void close_session(std::uint32_t session_id) noexcept override;
    void release_session(std::uint32_t session_id) noexcept override;

    QpHandle create_qp(const QpSpec& spec) override;
    bool close_qp(QpHandle handle) override;
    std::pair<QpHandle, bool> reset(QpHandle handle) override;
    QpInfo info(QpHandle handle) override;
    void connect(QpHandle handle, const QpInfo& peer, const PathAttributes& path) override;
    std::vector<std::byte> connect(QpHandle handle, const std::string& address, const ConnectOptions& options) override;
    void disconnect(QpHandle handle) override;
    bool disconnected(QpHandle handle) override;
    std::uint32_t qp_num(QpHandle handle) override;
    std::optional<RnrCounts> rnr_counts(QpHandle handle) override;
    std::optional<RnrCounts> rnr_counts(const std::string& device) override;

    OpenedListener listen(const std::string& address, const std::string& device) override;
    void stop_listening(std::uint32_t device, ListenerId listener) noexcept override;
    std::optional<IncomingConnection> next_request(std::uint32_t device, ListenerId listener,
                                                   std::chrono::milliseconds timeout) override;
    void accept(std::uint32_t device, ConnectionId request, QpHandle handle, const FlowBlock& flow,
                const ConnectOptions& options) override;
    void reject(std::uint32_t device, ConnectionId request,
                const std::vector<std::byte>& private_data) noexcept override;

    PdId create_pd(const std::string& device) override;
    void release_pd(PdId pd) noexcept override;
    RegionInfo allocate(std::size_t bytes, Access access, const std::string& device, PdId pd) override;
    RegionInfo register_memory(void* data, std::size_t bytes, std::uint64_t iova, Access access,
                               const std::string& device, PdId pd) override;
    void deregister(std::uint64_t id) override;
    MwHandle create_window(std::uint32_t session, WindowType type, const std::string& device, PdId pd) override;
    std::uint32_t window_rkey(MwHandle handle) override;
    void deallocate(MwHandle handle) override;

    AhHandle create_ah(const QpInfo& peer, const PathAttributes& path, const std::string& device, PdId pd) override;
    AhHandle create_ah(const WideCompletion& received, std::span<const std::byte, kGrhBytes> grh,
                       const std::string& device, PdId pd) override;
    void destroy_ah(AhHandle handle) override;

    SrqHandle create_srq(const SrqSpec& spec) override;
    void close_srq(SrqHandle handle) override;
    void arm_limit(SrqHandle handle, std::uint32_t limit) override;
    std::uint32_t limit(SrqHandle handle) override;

    PoolInfo create_pool(const PoolSpec& spec) override { return create_pool(spec, nullptr); }
    /// `published`: where the pool counts, so that another process sees it; null: in memory of its own.
    PoolInfo create_pool(const PoolSpec& spec, std::shared_ptr<ReceivePoolCounters> published);
    void close_pool(PoolHandle handle, std::uint64_t region) override;
    std::vector<HeldBuffer> held_buffers(PoolHandle handle) override;

    ApplicationEvents& events() noexcept override { return application_events; }
    RuntimeReport report() override { return report_; }
    std::size_t worker_count() noexcept override { return config.workers.size(); }
    const WorkerCounters& worker_counters(std::size_t worker) override;
    const ControlCounters& control_counters() override { return counters; }

    // ---- For runtime/attach, which serves other processes. On the control thread, but for post() and call(). ----

    /// Runs `job` on the control thread. An exception of the job is logged.
    void post(std::function<void()> job);
    /// Runs `job` on the control thread and waits for it. From another thread. Throws what the job throws.
    void call(std::function<void()> job);
    /// `host` is told from here on; null: nobody is.
    void set_host(ClientHost* host) noexcept { host_ = host; }
    void require_running() const;
    /// Counts the objects in ControlCounters anew. Otherwise their counts may be 50 ms old.
    void count_things_here() noexcept;
    /// `block` has layout.bytes() and stays as long as the worker may write into it; empty: the runtime allocates one.
    /// `client`: its process's share of the worker; null: the session is of this process.
    [[nodiscard]] std::uint32_t open_session_here(const SessionOptions& options, HostMemory block, SessionBells bells,
                                                  std::shared_ptr<ClientShare> client);
    /// `abandoned`: does not wait for the requests in the session's ring, which its process could add to without end.
    bool close_session_here(std::uint32_t session_id, std::chrono::steady_clock::time_point deadline,
                            bool abandoned = false);
    /// Begins close_session_here() without waiting for the worker, which takes nothing more from the session. Throws
    /// Error when a queue pair of the session does not end.
    void begin_closing_session_here(std::uint32_t session_id, std::chrono::steady_clock::time_point deadline,
                                    bool abandoned = false);
    /// After begin_closing_session_here(): whether the session is closed.
    [[nodiscard]] bool session_closed_here(std::uint32_t session_id);
    /// Submissions that the worker refused, and that the session's own library should have refused. Until
    /// release_session().
    [[nodiscard]] std::uint64_t submissions_refused(std::uint32_t session) const noexcept;
    [[nodiscard]] std::uint32_t choose_worker(const std::string& name) const;
    [[nodiscard]] const WorkerConfig& worker_config(std::uint32_t worker) const { return workers_[worker]->config; }
    [[nodiscard]] bool worker_sleeps(std::uint32_t worker) const { return workers_[worker]->bell.valid(); }
    [[nodiscard]] ConnectionKey begin_connect_here(QpHandle handle, const std::string& address,
                                                   const ConnectOptions& options);
    [[nodiscard]] ConnectionKey begin_accept_here(std::uint32_t device, ConnectionId request, QpHandle handle,
                                                  const FlowBlock& flow, const ConnectOptions& options);
    [[nodiscard]] bool has_outcome(const ConnectionKey& key);
    /// Nobody waits for the attempt's outcome any more.
    void drop_attempt_here(const ConnectionKey& key) noexcept;
    std::vector<std::byte> conclude_here(const ConnectionKey& key, QpHandle handle, const ConnectOptions& options,
                                         const std::string& what);
    /// Nothing: the queue pair has nothing in flight, or does not exist.
    [[nodiscard]] std::optional<Retirement> begin_retiring_here(QpHandle handle,
                                                                std::chrono::steady_clock::time_point deadline);
    /// Nothing: not retired yet. Else whether all was flushed in time.
    [[nodiscard]] std::optional<bool> retired_here(Retirement& retirement);
    /// After retired_here(), with its result.
    void end_retired_here(QpHandle handle, bool drained);
    std::pair<QpHandle, bool> restart_retired_here(QpHandle handle, bool drained);
    [[nodiscard]] bool has_qp(QpHandle handle) noexcept { return find_qp(handle) != nullptr; }
    /// A protection domain whose regions have addresses of another process (H8). Throws Error(EOPNOTSUPP) where the
    /// provider's code may touch memory at these addresses.
    [[nodiscard]] PdId create_foreign_pd_here(const std::string& device, std::uint32_t client);
    /// False: the domain is in use, and stays.
    [[nodiscard]] bool release_pd_here(PdId pd);
    [[nodiscard]] RegionPlan plan_region_here(void* data, std::size_t bytes, std::uint64_t iova, Access access,
                                              const std::string& device, PdId pd);
    /// Takes `mr`, unless it throws.
    RegionInfo add_region_here(const RegionPlan& plan, UniqueMr& mr, HostMemory memory);
    // Work requests may still name an object that is to end. So a search comes first, and is over before the end
    // begins. An empty search will do where no queue pair is left that could name the object. The functions that begin
    // an end throw Error(EBUSY) when the search has found a work request.
    [[nodiscard]] UseSearch search_region_here(std::uint64_t id);
    /// Nothing: the registration ended with the runtime, and the region is gone now.
    [[nodiscard]] std::optional<RegionEnd> begin_deregistering_here(std::uint64_t id, const UseSearch& search);
    /// After begin_deregistering_here(). `error` is the provider's answer; ECANCELED: it was not asked. Throws it as an
    /// Error; the region then stays as it was before.
    void end_deregistering_here(std::uint64_t id, int error);
    [[nodiscard]] UseSearch search_window_here(MwHandle handle);
    void end_window_here(MwHandle handle, const UseSearch& search);
    [[nodiscard]] UseSearch search_ah_here(AhHandle handle);
    /// From here on no send finds the address handle, until end_ah_here() or restore_ah_here(). Returns a search for
    /// sends that came before.
    [[nodiscard]] UseSearch begin_removing_ah_here(AhHandle handle, const UseSearch& search);
    void end_ah_here(AhHandle handle, const UseSearch& removal);
    void restore_ah_here(AhHandle handle) noexcept;
    /// Only when no queue pair is left that could name the address handle.
    void end_unused_ah_here(AhHandle handle);
    /// The worker takes no more buffers of the pool. Throws Error(EBUSY) while the pool is used. The caller ends the
    /// pool's region next.
    void begin_closing_pool_here(PoolHandle handle);
    void end_closing_pool_here(PoolHandle handle) noexcept;
    [[nodiscard]] AhPlan plan_ah_here(const QpInfo& peer, const PathAttributes& path, const std::string& device,
                                      PdId pd);
    [[nodiscard]] AhPlan plan_ah_here(const WideCompletion& received, std::span<const std::byte, kGrhBytes> grh,
                                      const std::string& device, PdId pd);
    AhHandle add_ah_here(const AhPlan& plan, UniqueAh ah);
    /// The address that connect() would use. Once AhPlan::find_neighbour() has returned, moving the queue pair keeps
    /// its worker waiting no longer than one call takes.
    [[nodiscard]] AhPlan plan_way_here(QpHandle handle, const QpInfo& peer, const PathAttributes& path);
    void connect_here(QpHandle handle, const QpInfo& peer, const PathAttributes& path);
    /// Between two looks, in a job that has a time limit: this wait does not count as a hang.
    void wait_a_little_here();
    // For a program's own calls, which wait for its workers.
    void await_here(UseSearch& search);
    /// Calls `begin` again until there is room for its command.
    template <class Begin>
    auto begin_here(Begin&& begin) {
        for (;;) {
            try {
                return begin();
            } catch (const NoRoomForCommand&) {
                platform->sleep(std::chrono::microseconds(20));
            }
        }
    }
    /// Keeps an object until the runtime has stopped: memory that a device may reach, or counters that are in use.
    void keep_until_end(std::shared_ptr<void> what) { kept_.push_back(std::move(what)); }

    /// Any thread, and without the control thread.
    [[nodiscard]] Health health() const;

    const Config config;
    const std::unique_ptr<Platform> platform;
    ControlCounters counters;
    ApplicationEvents application_events;
    [[nodiscard]] WorkerSlot& worker(std::size_t index);
    [[nodiscard]] Device& device(const std::string& name);

private:
    // How a connection attempt ended. The thread that connects waits for `done`.
    struct Attempt {
        bool done = false;
        ConnectEvent event;
        [[nodiscard]] bool established() const noexcept {
            return done && event.kind == ConnectEvent::Kind::established;
        }
    };
    using Attempts = std::map<ConnectionKey, Attempt>;
    using ListenerKey = std::pair<std::uint32_t, ListenerId>;

    // runtime_state.cc
    void open_device(const DeviceConfig& config);
    void start_worker(const WorkerConfig& config, std::uint32_t index);
    bool stop_here();

    [[nodiscard]] DeviceSlot& find_device(const std::string& name);
    /// A device that is not lost.
    [[nodiscard]] DeviceSlot& device_slot(const std::string& name);
    [[nodiscard]] QpSlot* find_qp(QpHandle handle) noexcept;
    [[nodiscard]] QpSlot& qp_slot(QpHandle handle);
    /// A queue pair whose device is not lost.
    [[nodiscard]] QpSlot& live_qp_slot(QpHandle handle);

    // sessions.cc
    void end_session_here(SessionSlot& session) noexcept;
    void unwatch_visitor_here(const SessionSlot& session) noexcept;
    [[nodiscard]] SessionSlot& session_slot(std::uint32_t id);

    // shared_receive_queues.cc
    SrqHandle create_srq_here(const SrqSpec& spec);
    [[nodiscard]] SrqSlot* find_srq(SrqHandle handle) noexcept;
    [[nodiscard]] SrqSlot& srq_slot(SrqHandle handle);
    /// A shared receive queue whose device is not lost.
    [[nodiscard]] SrqSlot& live_srq_slot(SrqHandle handle);
    void close_srq_here(SrqSlot& srq);
    void lose_srq_here(SrqSlot& srq);
    void destroy_verbs_srq(SrqSlot& srq);

    // receive_pools.cc
    [[nodiscard]] PoolSlot& usable_pool(PoolHandle pool, std::uint32_t session, std::uint32_t device, PdId pd);
    static void shape_buffers(PoolSlot& slot, const WorkerPool::Options& options, const PoolSpec& spec,
                              const RegionSlot& region);
    void shape_ring(PoolSlot& slot, const WorkerPool::Options& options, const PoolSpec& spec, const RegionSlot& region);
    void require_ring_here(const PoolSlot& slot) const;
    [[nodiscard]] PoolSlot* find_pool(PoolHandle handle) noexcept;
    [[nodiscard]] PoolShare share_of(PoolHandle pool, std::uint32_t asked, std::uint32_t depth, std::uint32_t session,
                                     std::uint32_t device, PdId pd);
    static void take_share(const PoolShare& share) noexcept;
    static void return_share(const PoolShare& share) noexcept;
    void detach_pool_here(PoolSlot& pool);
    void detach_pools_here(std::uint32_t session_id);
    [[nodiscard]] static std::uint32_t unpolled_here(SessionSlot& session);

    // queue_pairs.cc
    QpHandle create_qp_here(const QpSpec& spec);
    [[nodiscard]] SrqSlot* srq_for(const QpSpec& spec, const QpSlot& qp);
    void add_flow_control(const QpSpec& spec, QpSlot& qp, std::uint32_t send_depth);
    [[nodiscard]] static FlowBlock flow_block_of(const QpSlot& qp) noexcept;
    /// Once the connection is established. Throws where only one of its ends has flow control.
    void start_flow_here(QpSlot& qp, const FlowBlock& peer);
    static void require_same_flow(const QpSlot& qp, FlowControl peer);
    void fail_flow_here(const WorkerSlot& worker, std::uint32_t index, std::uint16_t generation, FlowFault fault);
    [[nodiscard]] PoolShare pool_for(const QpSpec& spec, const QpSlot& qp);
    [[nodiscard]] PoolShare ring_for(const QpSpec& spec, const QpSlot& qp);
    [[nodiscard]] PoolShare rendezvous_for(const QpSpec& spec, const QpSlot& qp);
    [[nodiscard]] std::uint32_t random_psn() { return platform->random() & 0xffffff; }
    [[nodiscard]] std::uint16_t free_qp_index() const;
    void modify_here(QpSlot& qp, ibv_qp_attr& attr, int mask, QpState after, Status cause = Status::success);
    void activate_here(QpSlot& qp);
    void require_connectable(const QpSlot& qp) const;
    void require_connectable(const QpSlot& qp, const QpInfo& peer) const;

    // queue_pair_ends.cc
    bool close_qp_here(QpHandle handle, std::chrono::steady_clock::time_point deadline);
    bool retire_qp_here(QpHandle handle, std::chrono::steady_clock::time_point deadline);
    void destroy_qp_here(QpSlot& qp, Status leftovers = Status::qp_closed);
    void stop_answering_here(const QpSlot& qp);
    void destroy_verbs_qp(QpSlot& qp, Status cause);
    void keep_in_error(QpSlot& qp, Status cause);
    void restart_verbs_qp(QpSlot& qp, std::uint32_t psn);

    // completion_queues.cc
    [[nodiscard]] std::uint32_t choose_cq(WorkerSlot& worker, DeviceSlot& device, std::uint32_t entries,
                                          const SrqSlot* srq, bool device_time,
                                          std::optional<std::uint32_t> other_than);
    void reserve_entries(const QpSlot& qp);
    void release_entries(const QpSlot& qp);
    void close_idle_cqs(WorkerSlot& worker, const DeviceSlot& device);

    // address_handles.cc
    [[nodiscard]] AhSlot* find_ah(AhHandle handle) noexcept;
    static void require_unused(AhHandle handle, const UseSearch& search);
    [[nodiscard]] AhPlan plan_ah_here(DeviceSlot& device, PdId pd, const ibv_ah_attr& address);
    [[nodiscard]] ibv_ah_attr address_here(DeviceSlot& device, const QpInfo& peer, const PathAttributes& path);

    // connecting.cc
    [[nodiscard]] ConnectingQp connecting(QpSlot& qp);
    void take_connect_events(DeviceSlot& device);
    void on_connect_event(DeviceSlot& device, ConnectEvent event);
    void take_request(DeviceSlot& device, ConnectEvent request);
    void turn_away_here(std::uint32_t device, ConnectionId request,
                        std::span<const std::byte> private_data = {}) noexcept;
    [[nodiscard]] static Attempts::node_type new_attempt();
    [[nodiscard]] ConnectionKey await_outcome_here(Attempts::node_type attempt, const ConnectionKey& key) noexcept;
    void drop_request(DeviceSlot& device, ConnectionId request);
    void look_for_withdrawn_requests_here();
    std::vector<std::byte> await_connection(const ConnectionKey& key, QpHandle handle, const ConnectOptions& options,
                                            const std::string& what);
    [[nodiscard]] Attempt take_attempt(const ConnectionKey& key, const std::string& what);
    std::vector<std::byte> conclude_here(Attempt& attempt, QpHandle handle, const ConnectOptions& options,
                                         const std::string& what);
    void tell_waiting();
    [[nodiscard]] QpSlot* qp_of_connection(std::uint32_t device, ConnectionId connection) noexcept;
    void fail_connection_here(QpSlot& qp) noexcept;
    void forget_connection_here(QpSlot& qp) noexcept;

    // events.cc
    void take_async_events(DeviceSlot& device);
    [[nodiscard]] Event describe(const ibv_async_event& taken) const noexcept;
    [[nodiscard]] const WorkerSlot* worker_of_cq(const ibv_cq* cq) const noexcept;
    void on_async_event(DeviceSlot& device, const ibv_async_event& taken, const Event& event);
    [[nodiscard]] QpAndOwner with_owner(const QpSlot& qp) const noexcept;
    /// Logs within a budget. A line that there is no memory for is left out, and counted.
    template <class... Args>
    void log_of_qp(LogLevel level, const std::optional<QpAndOwner>& which, fmt::format_string<Args...> what,
                   Args&&... args) noexcept {
        log_line_of_qp(level, which, what, fmt::make_format_args(args...));
    }
    void log_line_of_qp(LogLevel level, const std::optional<QpAndOwner>& which, fmt::string_view what,
                        fmt::format_args args) noexcept;
    void tell_application(Event event, const DeviceSlot& device, const WorkerSlot* worker = nullptr) noexcept;
    void lose_device(DeviceSlot& device);
    [[nodiscard]] bool lost_meanwhile(DeviceSlot& device);
    void on_device_removed(DeviceSlot& device);
    void lose_qp_here(QpSlot& qp);
    void lose_cqs_here(const DeviceSlot& device);
    void lose_cq(const ibv_cq* cq);
    void take_worker_reports();
    void fail_qp(const ibv_qp* qp, Status cause);
    void replace_cq(WorkerSlot& worker, std::uint32_t index);
    [[nodiscard]] std::uint32_t worker_index(const WorkerSlot& worker) const;

    // memory.cc
    [[nodiscard]] PdId pd_of(DeviceSlot& device, PdId pd) const;
    RegionInfo add_region(HostMemory memory, void* data, std::size_t bytes, std::uint64_t iova, Access access,
                          const std::string& device, PdId pd);

    // windows.cc
    [[nodiscard]] MrHandle add_bindable_here(ibv_mr& mr, std::uint32_t pd);
    [[nodiscard]] WorkerSlot* remove_bindable_here(const RegionSlot& region);
    void restore_bindable_here(const RegionSlot& region, std::size_t workers) noexcept;
    void give_back_bindable_here(MrHandle handle) noexcept;
    [[nodiscard]] WindowSlot* window_slot(MwHandle handle) noexcept;
    void renew_windows_here(const QpSlot& qp);

    // Destroyed in reverse order: first the threads, then the objects that they use.
    RuntimeReport report_;
    ClientHost* host_ = nullptr;
    std::atomic<bool> running_{false};
    std::optional<bool> stopped_;  // the result of stop()
    std::vector<std::unique_ptr<DeviceSlot>> devices_;
    std::map<std::uint32_t, PdSlot> pds_;
    std::vector<std::shared_ptr<void>> kept_;
    std::map<std::uint64_t, RegionSlot> regions_;
    HandlePool<MrHandle> region_handles_{kBindableRegionsMax};
    HandlePool<MwHandle> window_handles_{kMemoryWindowsMax};
    std::vector<std::unique_ptr<WindowSlot>> windows_;  // by index
    std::vector<std::unique_ptr<WorkerSlot>> workers_;
    std::map<std::uint32_t, SessionSlot> sessions_;
    std::vector<std::unique_ptr<SrqSlot>> srqs_;  // by index
    std::vector<std::uint16_t> srq_generations_;
    std::vector<std::unique_ptr<PoolSlot>> pools_;  // by index
    HandlePool<PoolHandle> pool_handles_{kReceivePoolsMax};
    std::vector<std::unique_ptr<QpSlot>> qps_;  // by index
    std::vector<std::uint32_t> qp_lives_;       // by index: how many lives have begun
    std::vector<std::unique_ptr<AhSlot>> ahs_;  // by index
    std::vector<std::uint16_t> ah_generations_;
    std::uint16_t next_qp_index_ = 0;
    std::uint32_t next_session_ = 1;
    std::uint32_t next_cq_ = 1;
    std::uint32_t next_pd_ = 1;
    std::uint64_t next_region_ = 1;
    std::chrono::steady_clock::time_point next_look_at_requests_{};
    // For log lines that peers and attached processes can cause as often as they like. Warnings have a budget of their
    // own, so that they take none of the errors' room.
    LineBudget qp_warnings_{10};
    LineBudget qp_errors_{10};
    LineBudget refused_requests_{10};

    std::mutex waiting_mutex_;
    std::condition_variable waiting_;
    Attempts attempts_;
    std::map<ListenerKey, std::deque<ConnectEvent>> requests_;

    // The destructor ends them in the order that their comments ask for.
    std::unique_ptr<Executor> executor_;
    std::unique_ptr<EventLoop> loop_;
};

}  // namespace pollcore
