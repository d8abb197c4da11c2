// The inside of a Runtime: everything that the control thread owns.
//
//   runtime_state.cc      start and stop           queue_pairs.cc        making, connecting by information
//   sessions.cc           opening and closing      queue_pair_ends.cc    closing and resetting (H1)
//   memory.cc             domains, regions         completion_queues.cc  which CQ a queue goes to
//   windows.cc            memory windows           connecting.cc        listeners, rdma_cm or names, their events
//   address_handles.cc    ways of datagrams        events.cc             what devices and workers say unasked
//   shared_receive_queues.cc, receive_pools.cc
//
// Thread safety: public functions come from any thread and do their work on the control thread (executor_);
// functions named *_here run on it. What application threads wait for is guarded by waiting_mutex_.
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
    std::map<std::uint32_t, std::unique_ptr<CompletionChannel>> channels;  // by worker, of those that sleep
    std::set<std::pair<std::uint32_t, bool>>
        polls_logged;  // workers of which the log says how they poll here, with times or not
    std::uint32_t next_vector = 0;
    std::uint32_t default_pd = 0;
    bool lost = false;     // fatal or removed: nothing more is made on it
    bool removed = false;  // the application was told so
};

struct PdSlot {
    std::uint32_t device = 0;
    std::uint32_t client = 0;  // ClientShare::id: of the process at whose addresses its regions lie; 0: this one
    UniquePd pd;
};

struct RegionSlot {
    void* data = nullptr;
    std::uint64_t iova = 0;
    HostMemory memory;  // empty when the program's own
    UniqueMr mr;        // ends before the memory does
    std::uint32_t pd = 0;
    MrHandle handle;  // valid when windows may be bound to it: then the workers know it
    bool ending = false;
};

/// A region to be: what the provider is asked for.
struct RegionPlan {
    Device* device = nullptr;
    std::uint32_t pd = 0;
    ibv_pd* verbs_pd = nullptr;
    void* data = nullptr;
    std::size_t bytes = 0;
    std::uint64_t iova = 0;
    Access access;

    /// Any thread; may take long, with what it pins. The protection domain stays meanwhile. Throws Error.
    [[nodiscard]] UniqueMr carry_out() const;
};

/// A region that nobody names any more, and that its provider still has to end.
struct RegionEnd {
    std::uint64_t region = 0;
    Device* device = nullptr;
    ibv_mr* mr = nullptr;

    /// Any thread; may take long, with what it unpins. An errno value, or 0.
    [[nodiscard]] int carry_out() const noexcept { return device->destroy(mr); }
};

/// A way of datagrams, or of a queue pair, to be.
struct AhPlan {
    Device* device = nullptr;
    std::uint32_t device_index = 0;
    PdId pd = 0;
    ibv_pd* verbs_pd = nullptr;
    ibv_ah_attr address{};

    /// Any thread; may take a second, when the kernel asks the network who has the address (H15). The protection domain
    /// stays meanwhile. Throws Error.
    [[nodiscard]] UniqueAh carry_out() const;
    /// As that, and without making one.
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
    bool device_time = false;  // for queue pairs of sessions with SessionOptions::device_time, and no others
    std::map<std::uint16_t, std::uint32_t> srqs;  // queue pairs here per SRQ, whose depth is reserved once
    UniqueCq cq;
    std::unique_ptr<WorkerCq> end;
};

/// By what a session of another process and its worker wake each other; of one of this process `application` alone.
/// Each is invalid where the one that it wakes never sleeps.
struct SessionBells {
    ForeignFd visitor;     ///< eventfd, which the other process has too
    UniqueFd application;  ///< the sending end of a socket pair; of this process an eventfd
};

struct SessionSlot {
    std::uint32_t id = 0;
    std::uint32_t worker = 0;
    std::uint32_t index = 0;  // at the worker
    SessionLayout layout;
    HostMemory block;
    std::shared_ptr<ClientShare> client;
    ForeignFd visitor_fd;     // eventfd by which another process wakes the worker, if that sleeps
    UniqueFd application_fd;  // eventfd, or a socket to another process, where the application may sleep
    // Completions of pools that were closed may still stand in the ring: so many buffers', until so much of it was
    // taken.
    struct Unpolled {
        std::uint32_t buffers = 0;
        std::uint32_t produced = 0;
    };
    std::vector<Unpolled> unpolled;
    std::unique_ptr<WorkerSession> end;           // null once detached
    std::optional<std::uint64_t> remove_command;  // that its worker was given
    std::uint64_t refused = 0;                    // submissions, then
};

struct WorkerSlot {
    WorkerConfig config;
    UniqueFd bell;      // eventfd, where the worker may sleep
    UniqueFd visitors;  // and an epoll of the eventfds by which other processes wake it
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
    std::uint32_t takers = 0;                        // queue pairs and shared receive queues
    std::uint32_t shares = 0;                        // their buffers, together
    std::uint32_t places = 0;                        // completions that it may have in its session's ring
    bool attached = true;                            // its worker knows it
    std::shared_ptr<ReceivePoolCounters> published;  // where it counts, if not in `end`
    std::unique_ptr<WorkerPool> end;
    // What it is: one of these.
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
    std::uint32_t qps = 0;  // that use it
    std::uint32_t credit_connections = 0;
    UniqueSrq srq;  // null once its device was lost
    PoolShare pool;
    std::unique_ptr<WorkerSrq> end;
    std::unique_ptr<SharedGrants> grants;  // with credits
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
    UniqueAh marker_ah;        // UD: to itself
    HostMemory control_block;  // with flow control, and then its entries; ends after the queue pair
    UniqueMr control_mr;
    UniqueMr entries_mr;
    UniqueQp qp;  // null once its device was lost
    std::unique_ptr<WorkerQp> end;
    std::uint64_t retire_command = 0;  // the last one that its worker was given
    ConnectionId connection = 0;
    FlowBlock peer_flow;  // of a request that it accepted
    bool disconnected = false;
};

/// Of a device.
using ConnectionKey = std::pair<std::uint32_t, ConnectionId>;

/// Hears of what happens on the control thread, for those whom it stands for.
class ClientHost {
public:
    virtual ~ClientHost() = default;
    /// An attempt has ended, or a request has come.
    virtual void connections_changed() = 0;
    virtual void event(const Event& event) = 0;
    /// Its rings were tampered with. False: it is not one of these.
    virtual bool session_broken(std::uint32_t session) = 0;
    /// What is made of it ends here: nothing of it may be under way any more when this returns.
    virtual void runtime_stops() = 0;
};

/// For the log, when the queue pair may be gone: "queue pair 17 of client 3", as attached processes are called there.
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
    bool device_lags = false;   ///< its device did not take it to ERR
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
    /// Counting where another process sees it.
    PoolInfo create_pool(const PoolSpec& spec, std::shared_ptr<ReceivePoolCounters> published);
    void close_pool(PoolHandle handle, std::uint64_t region) override;
    std::vector<HeldBuffer> held_buffers(PoolHandle handle) override;

    ApplicationEvents& events() noexcept override { return application_events; }
    RuntimeReport report() override { return report_; }
    std::size_t worker_count() noexcept override { return config.workers.size(); }
    const WorkerCounters& worker_counters(std::size_t worker) override;
    const ControlCounters& control_counters() override { return counters; }

    // ---- For who stands for other processes (runtime/attach). All but post() and call() on the control thread. ----

    /// Runs `job` on the control thread; what it throws is logged.
    void post(std::function<void()> job);
    /// From another thread; waits until it has run, and throws what it throws.
    void call(std::function<void()> job);
    /// From here on `host` hears; null: nobody does.
    void set_host(ClientHost* host) noexcept { host_ = host; }
    void require_running() const;
    /// What ControlCounters say there is now; else as of the last 50 ms.
    void count_things_here() noexcept;
    /// In `block`, of layout.bytes(), which stays as long as its worker may write into it.
    /// `client`: what its process has of the worker; null: it is of this one.
    [[nodiscard]] std::uint32_t open_session_here(const SessionOptions& options, HostMemory block, SessionBells bells,
                                                  std::shared_ptr<ClientShare> client);
    /// Where it is not to be waited for what it still submits (`abandoned`), that has no end.
    bool close_session_here(std::uint32_t session_id, std::chrono::steady_clock::time_point deadline,
                            bool abandoned = false);
    /// Without waiting for its worker. It takes nothing more from here on. Throws Error when a queue pair of it does
    /// not end.
    void begin_closing_session_here(std::uint32_t session_id, std::chrono::steady_clock::time_point deadline,
                                    bool abandoned = false);
    /// After that: whether it is closed.
    [[nodiscard]] bool session_closed_here(std::uint32_t session_id);
    /// That its worker refused since its library should not have let them through; until release_session().
    [[nodiscard]] std::uint64_t submissions_refused(std::uint32_t session) const noexcept;
    [[nodiscard]] std::uint32_t choose_worker(const std::string& name) const;
    [[nodiscard]] const WorkerConfig& worker_config(std::uint32_t worker) const { return workers_[worker]->config; }
    [[nodiscard]] bool worker_sleeps(std::uint32_t worker) const { return workers_[worker]->bell.valid(); }
    [[nodiscard]] ConnectionKey begin_connect_here(QpHandle handle, const std::string& address,
                                                   const ConnectOptions& options);
    [[nodiscard]] ConnectionKey begin_accept_here(std::uint32_t device, ConnectionId request, QpHandle handle,
                                                  const FlowBlock& flow, const ConnectOptions& options);
    [[nodiscard]] bool has_outcome(const ConnectionKey& key);
    /// Nobody waits for its outcome any more.
    void drop_attempt_here(const ConnectionKey& key) noexcept;
    std::vector<std::byte> conclude_here(const ConnectionKey& key, QpHandle handle, const ConnectOptions& options,
                                         const std::string& what);
    /// Nothing: there is nothing in flight any more, or no such queue pair.
    [[nodiscard]] std::optional<Retirement> begin_retiring_here(QpHandle handle,
                                                                std::chrono::steady_clock::time_point deadline);
    /// Nothing: not yet. Else whether all was flushed in time.
    [[nodiscard]] std::optional<bool> retired_here(Retirement& retirement);
    /// After that.
    void end_retired_here(QpHandle handle, bool drained);
    std::pair<QpHandle, bool> restart_retired_here(QpHandle handle, bool drained);
    [[nodiscard]] bool has_qp(QpHandle handle) noexcept { return find_qp(handle) != nullptr; }
    /// Whose regions lie at addresses of another process (H8). Throws Error(EOPNOTSUPP) where the device cannot do
    /// without touching them.
    [[nodiscard]] PdId create_foreign_pd_here(const std::string& device, std::uint32_t client);
    /// False: something is left in it, and it is there as before.
    [[nodiscard]] bool release_pd_here(PdId pd);
    [[nodiscard]] RegionPlan plan_region_here(void* data, std::size_t bytes, std::uint64_t iova, Access access,
                                              const std::string& device, PdId pd);
    /// Takes `mr`, unless it throws.
    RegionInfo add_region_here(const RegionPlan& plan, UniqueMr& mr, HostMemory memory);
    // What is to be ended may still be named by work requests: the search says so, and is over before the end begins.
    // An empty one will do where there is no queue pair left that could name it. Each throws Error(EBUSY) when one was
    // found.
    [[nodiscard]] UseSearch search_region_here(std::uint64_t id);
    /// Nothing: its registration has ended with the runtime, and so has it.
    [[nodiscard]] std::optional<RegionEnd> begin_deregistering_here(std::uint64_t id, const UseSearch& search);
    /// After that, with what the provider answered; ECANCELED: it was not asked. Throws it as an Error; then the region
    /// is what it was before.
    void end_deregistering_here(std::uint64_t id, int error);
    [[nodiscard]] UseSearch search_window_here(MwHandle handle);
    void end_window_here(MwHandle handle, const UseSearch& search);
    [[nodiscard]] UseSearch search_ah_here(AhHandle handle);
    /// No send that comes from here on finds it, until end_ah_here() or restore_ah_here(). One that came before is
    /// searched for.
    [[nodiscard]] UseSearch begin_removing_ah_here(AhHandle handle, const UseSearch& search);
    void end_ah_here(AhHandle handle, const UseSearch& removal);
    void restore_ah_here(AhHandle handle) noexcept;
    /// There is no queue pair left that could name it.
    void end_unused_ah_here(AhHandle handle);
    /// Its worker takes no more buffers of it. Throws Error(EBUSY) when it is used. Its region is ended next.
    void begin_closing_pool_here(PoolHandle handle);
    void end_closing_pool_here(PoolHandle handle) noexcept;
    [[nodiscard]] AhPlan plan_ah_here(const QpInfo& peer, const PathAttributes& path, const std::string& device,
                                      PdId pd);
    [[nodiscard]] AhPlan plan_ah_here(const WideCompletion& received, std::span<const std::byte, kGrhBytes> grh,
                                      const std::string& device, PdId pd);
    AhHandle add_ah_here(const AhPlan& plan, UniqueAh ah);
    /// To where connect() would move it. Once find_neighbour() has returned, moving the queue pair, for which its
    /// worker waits, takes no longer than a call.
    [[nodiscard]] AhPlan plan_way_here(QpHandle handle, const QpInfo& peer, const PathAttributes& path);
    void connect_here(QpHandle handle, const QpInfo& peer, const PathAttributes& path);
    /// Between looks, in jobs that have a limit: the thread does not hang meanwhile.
    void wait_a_little_here();
    // For a program's own calls, which wait for its workers.
    void await_here(UseSearch& search);
    /// Begins something, once there is room for its command.
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
    /// Until the runtime has stopped: memory that a device may reach, and what still counts.
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
    // How a connection attempt of some thread ended; that thread waits for `done`.
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
    /// One that is not lost.
    [[nodiscard]] DeviceSlot& device_slot(const std::string& name);
    [[nodiscard]] QpSlot* find_qp(QpHandle handle) noexcept;
    [[nodiscard]] QpSlot& qp_slot(QpHandle handle);
    /// One whose device is not lost.
    [[nodiscard]] QpSlot& live_qp_slot(QpHandle handle);

    // sessions.cc
    void end_session_here(SessionSlot& session) noexcept;
    void unwatch_visitor_here(const SessionSlot& session) noexcept;
    [[nodiscard]] SessionSlot& session_slot(std::uint32_t id);

    // shared_receive_queues.cc
    SrqHandle create_srq_here(const SrqSpec& spec);
    [[nodiscard]] SrqSlot* find_srq(SrqHandle handle) noexcept;
    [[nodiscard]] SrqSlot& srq_slot(SrqHandle handle);
    /// One whose device is not lost.
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
    /// The connection is established. Throws where one of the two has flow control and the other has not.
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
    /// Within a budget. Without memory for it the line is left out, and counted.
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

    // Destroyed in reverse: threads first, then what they used.
    RuntimeReport report_;
    ClientHost* host_ = nullptr;
    std::atomic<bool> running_{false};
    std::optional<bool> stopped_;  // what the stop came to
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
    std::vector<std::uint32_t> qp_lives_;       // by index: how many have begun
    std::vector<std::unique_ptr<AhSlot>> ahs_;  // by index
    std::vector<std::uint16_t> ah_generations_;
    std::uint16_t next_qp_index_ = 0;
    std::uint32_t next_session_ = 1;
    std::uint32_t next_cq_ = 1;
    std::uint32_t next_pd_ = 1;
    std::uint64_t next_region_ = 1;
    std::chrono::steady_clock::time_point next_look_at_requests_{};
    // Lines that peers and attached processes can cause as often as they like. Warnings leave the room of errors alone.
    LineBudget qp_warnings_{10};
    LineBudget qp_errors_{10};
    LineBudget refused_requests_{10};

    std::mutex waiting_mutex_;
    std::condition_variable waiting_;
    Attempts attempts_;
    std::map<ListenerKey, std::deque<ConnectEvent>> requests_;

    // Ended by the destructor in the order that their comments ask for.
    std::unique_ptr<Executor> executor_;
    std::unique_ptr<EventLoop> loop_;
};

}  // namespace pollcore
