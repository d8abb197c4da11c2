// The inside of a Runtime: everything that the control thread owns.
//
//   runtime_state.cc      start and stop           queue_pairs.cc        making, connecting by exchanged information
//   sessions.cc           opening and closing      queue_pair_ends.cc    closing and resetting (H1)
//   memory.cc             domains, regions         completion_queues.cc  which CQ a queue goes to
//   windows.cc            memory windows           connecting.cc         listeners, rdma_cm or names, their events
//   by_hand.cc            by modify(), queries     client_devices.cc     devices of attached processes
//   device_queries.cc     what a device says       slots.hpp             what is known of each object
//   address_handles.cc    address handles          events.cc             events of devices and reports of workers
//   workers.cc            starting workers         flow_control.cc       flow control of queue pairs
//   shared_receive_queues.cc, receive_pools.cc
//   inventory.cc           what there is
//
// Thread safety: the functions of ControlSide may be called from any thread. Most of them do their work in jobs on the
// control thread (executor_). Functions named *_here must be called on the control thread. Application threads wait for
// changes of attempts_ and requests_, which waiting_mutex_ guards.
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

#include "base/called.hpp"
#include "base/foreign_fd.hpp"
#include "base/line_budget.hpp"
#include "connect/connector.hpp"
#include "connect/transitions.hpp"
#include "control/handle_pool.hpp"
#include "control/inventory.hpp"
#include "control/platform.hpp"
#include "control/runtime_statistics.hpp"
#include "control/slots.hpp"
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

/// A device's index, and one of its connections.
using ConnectionKey = std::pair<std::uint32_t, ConnectionId>;

/// What an attached process is, and what it holds, for the statistics.
struct ProcessFigures {
    std::uint32_t number = 0;  ///< the daemon's number for it
    std::uint32_t pid = 0;
    std::uint32_t uid = 0;
    std::string_view name;  ///< valid during the call that has the figures
    bool ending = false;
    bool own_memory = false;  ///< it has a context of its own
    std::uint64_t sessions = 0;
    std::uint64_t queue_pairs = 0;
    std::uint64_t shared_receive_queues = 0;
    std::uint64_t receive_pools = 0;
    std::uint64_t listeners = 0;
    std::uint64_t memory_regions = 0;
    std::uint64_t memory_windows = 0;
    std::uint64_t address_handles = 0;
    std::uint64_t protection_domains = 0;
    std::uint64_t work_requests = 0;  ///< room in its queues
    std::uint64_t bytes = 0;          ///< of registered memory and rings
    std::uint64_t pinned_bytes = 0;
    std::uint64_t refused = 0;  ///< calls that the daemon refused
};

/// The part of the runtime that serves other processes (runtime/attach). The runtime calls these functions to report
/// what happens.
class ClientHost {
public:
    virtual ~ClientHost() = default;
    /// An attempt to connect may have ended, or a connection request may have come.
    virtual void connections_changed() = 0;
    /// An event of a connection: of a queue pair of process `client`, or of a listener of any process.
    virtual void connection_event(std::uint32_t client, Event&& event) noexcept = 0;
    /// `client` is the process whose own device the event comes from, or 0 if the event is for all.
    virtual void event(const Event& event, std::uint32_t client) = 0;
    /// The session's rings contain data that a correct session never writes. Returns false if the session belongs to
    /// none of the served processes.
    virtual bool session_broken(std::uint32_t session) = 0;
    /// The attached process that has this listener; 0: none.
    [[nodiscard]] virtual std::uint32_t owner_of_listener(std::uint32_t device,
                                                          std::uint64_t listener) const noexcept = 0;
    /// Calls `take` for each attached process.
    virtual void each_process(const std::function<void(const ProcessFigures&)>& take) = 0;
    /// The runtime ends. After this call returns, the host must not use the runtime.
    virtual void runtime_stops() = 0;
};

/// Identifies a queue pair in the log, even after the queue pair has ended: "queue pair 17 of client 3". A client is an
/// attached process.
struct QpAndOwner {
    std::uint32_t qp_num = 0;
    NameText name;
    std::uint32_t client = 0;  ///< 0: this process

    [[nodiscard]] Called called() const noexcept { return {qp_num, name.view()}; }
};

/// A queue pair on its way out of service (H1).
struct Retirement {
    QpHandle handle;
    std::chrono::steady_clock::time_point deadline;
    std::chrono::steady_clock::time_point last_wqe_deadline;
    std::chrono::milliseconds limit{0};
    std::uint32_t quiet = 0;
    bool device_lags = false;   ///< the device did not move the QP to ERR
    std::uint64_t command = 0;  ///< number of the worker's retire command; 0: the command has not been given yet
};

/// Who learns how an operation has ended.
enum class Report : std::uint8_t {
    to_waiter,  ///< a thread or an attached process that waits for the outcome
    by_event,   ///< the application, by an event
    to_nobody,
};

/// A close or a reset of a queue pair that is under way.
struct QpEnding {
    bool reset = false;  ///< else a close
    Report report = Report::to_waiter;
    QpHandle qp{};
    std::uint32_t client = 0;           ///< the process that owns the queue pair; 0: this process
    std::chrono::milliseconds limit{};  ///< the time that the drain may take, from its beginning
    bool begun = false;
    std::optional<Retirement> retirement{};  ///< not set if nothing had to be retired
    bool retired = false;                    ///< `drained` is known
    QpEnding* next = nullptr;

    // The outcome. A waiter waits for `ended_changed`, and owns the object. All others are owned by the list.
    bool ended = false;
    bool drained = true;
    QpHandle renewed{};
    std::exception_ptr failure{};
    std::condition_variable ended_changed{};
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
    void modify_qp(QpHandle handle, const QpAttributes& attributes) override;
    QpQuery query_qp(QpHandle handle) override;
    void begin_connect(QpHandle handle, const std::string& address, const ConnectOptions& options) override;
    void begin_accept(std::uint32_t device, ConnectionId request, QpHandle handle, const FlowBlock& flow,
                      const ConnectOptions& options) override;
    void begin_reset(QpHandle handle, std::chrono::milliseconds timeout) override;
    void begin_close(QpHandle handle, std::chrono::milliseconds timeout) override;
    void cancel(QpHandle handle) override;
    bool abandon_qp(QpHandle handle) override;
    void disconnect(QpHandle handle) override;
    bool disconnected(QpHandle handle) override;
    std::uint32_t qp_num(QpHandle handle) override;
    std::optional<RnrCounts> rnr_counts(QpHandle handle) override;
    std::optional<RnrCounts> rnr_counts(const std::string& device) override;

    DeviceAttributes query_device(const std::string& device) override;
    PortAttributes query_port(const std::string& device) override;
    std::vector<GidAttributes> gids(const std::string& device) override;
    std::uint16_t query_pkey(std::uint32_t index, const std::string& device) override;

    OpenedListener listen(const std::string& address, const std::string& device, PrivateDataForm form) override;
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
    RegionInfo register_dmabuf(const DmabufRange& range, std::uint64_t iova, Access access, const std::string& device,
                               PdId pd) override;
    void deregister(std::uint64_t id) override;
    MwHandle create_window(std::uint32_t session, WindowType type, const std::string& device, PdId pd) override;
    std::uint32_t window_rkey(MwHandle handle) override;
    void deallocate(MwHandle handle) override;

    AhHandle create_ah(const QpInfo& peer, const PathAttributes& path, const std::string& device, PdId pd) override;
    AhHandle create_ah(const AddressAttributes& address, const std::string& device, PdId pd) override;
    AhHandle create_ah(const WideCompletion& received, std::span<const std::byte, kGrhBytes> grh,
                       const std::string& device, PdId pd) override;
    void destroy_ah(AhHandle handle) override;

    SrqHandle create_srq(const SrqSpec& spec) override;
    void close_srq(SrqHandle handle) override;
    void arm_limit(SrqHandle handle, std::uint32_t limit) override;
    std::uint32_t limit(SrqHandle handle) override;

    PoolInfo create_pool(const PoolSpec& spec) override { return create_pool(spec, nullptr); }
    /// `published` holds counters that another process can read, too. If it is null, the pool has private counters.
    PoolInfo create_pool(const PoolSpec& spec, std::shared_ptr<ReceivePoolCounters> published);
    void close_pool(PoolHandle handle, std::uint64_t region) override;
    std::vector<HeldBuffer> held_buffers(PoolHandle handle) override;

    ApplicationEvents& events() noexcept override { return application_events; }
    RuntimeReport report() override { return report_; }
    std::size_t worker_count() noexcept override { return config.workers.size(); }
    const WorkerCounters& worker_counters(std::size_t worker) override;
    const ControlCounters& control_counters() override { return counters; }
    statistics::Snapshot statistics() override;

    // ---- For runtime/attach, which serves other processes. On the control thread, except post() and call(). ----

    /// Runs `job` on the control thread. An exception of the job is logged.
    void post(std::function<void()> job);
    /// Runs `job` on the control thread and waits for it. Must be called from another thread. Throws the job's
    /// exception.
    void call(std::function<void()> job);
    /// Runs `job` on the control thread and returns its result. On the control thread itself, runs `job` at once.
    /// Throws as the calls of ControlSide: Error(ETIMEDOUT) if `job` has not begun within Config::hang_limit.
    template <class F>
    auto ask(F&& job) {
        return executor_->run(std::forward<F>(job));
    }
    /// From now on the runtime calls `host`, or nobody if `host` is null.
    void set_host(ClientHost* host) noexcept { host_ = host; }
    void require_running() const;
    /// Updates the numbers of objects in ControlCounters. The control thread also calls this about every 50 ms.
    void count_things_here() noexcept;
    /// `block` has layout.bytes() bytes, and must exist as long as the worker may write to it. If `block` is empty, the
    /// runtime allocates the memory. `client` is the other process's share of the worker, or null for a session of this
    /// process.
    [[nodiscard]] std::uint32_t open_session_here(const SessionOptions& options, HostMemory block, SessionBells bells,
                                                  std::shared_ptr<ClientShare> client);
    /// If `abandoned` is true, does not wait for the requests in the session's ring, because the session's process
    /// could add requests without end.
    bool close_session_here(std::uint32_t session_id, std::chrono::steady_clock::time_point deadline,
                            bool abandoned = false);
    /// The first part of close_session_here(): closes the session's queue pairs and shared receive queues, and tells
    /// the worker to release the session. Does not wait for the release. Throws Error if the provider does not destroy
    /// a queue pair.
    void begin_closing_session_here(std::uint32_t session_id, std::chrono::steady_clock::time_point deadline,
                                    bool abandoned = false);
    /// Returns whether the session is closed. Called after begin_closing_session_here().
    [[nodiscard]] bool session_closed_here(std::uint32_t session_id);
    /// Returns the number of submissions that the worker refused. The session's own library should have refused them
    /// earlier. Valid until release_session().
    [[nodiscard]] std::uint64_t submissions_refused(std::uint32_t session) const noexcept;
    [[nodiscard]] std::uint32_t choose_worker(const std::string& name) const;
    [[nodiscard]] const WorkerConfig& worker_config(std::uint32_t worker) const { return workers_[worker]->config; }
    [[nodiscard]] bool worker_sleeps(std::uint32_t worker) const { return workers_[worker]->bell.valid(); }
    ConnectionKey begin_connect_here(QpHandle handle, const std::string& address, const ConnectOptions& options,
                                     Report report = Report::to_waiter);
    ConnectionKey begin_accept_here(std::uint32_t device, ConnectionId request, QpHandle handle, const FlowBlock& flow,
                                    const ConnectOptions& options, Report report = Report::to_waiter);
    /// Begins to close or reset the queue pair; an event reports the end.
    void begin_ending_here(QpHandle handle, bool reset, std::chrono::milliseconds timeout);
    /// Throws Error if the queue pair cannot be reset now: ENODEV if its device was lost, EBUSY while an attempt to
    /// connect it is under way.
    void require_resettable_here(QpHandle handle) { require_not_connecting(live_qp_slot(handle)); }
    /// Whether the queue pair is being closed or reset by begin_ending_here().
    [[nodiscard]] bool is_ending_here(QpHandle handle) noexcept { return find_ending(handle) != nullptr; }
    /// Makes a reset that is under way a close, because nobody will use the queue pair.
    void close_instead_here(QpHandle handle) noexcept;
    /// The queue pair's handle, also if `handle` is the one from before its last reset. Not valid if it is unknown.
    [[nodiscard]] QpHandle current_handle_here(QpHandle handle) noexcept;
    /// As ControlSide::cancel() and ControlSide::abandon_qp().
    void cancel_here(QpHandle handle);
    [[nodiscard]] bool abandon_here(QpHandle handle);
    [[nodiscard]] bool has_outcome(const ConnectionKey& key);
    /// Forgets the attempt. Called when nobody waits for its outcome.
    void drop_attempt_here(const ConnectionKey& key) noexcept;
    std::vector<std::byte> conclude_here(const ConnectionKey& key, QpHandle handle, const ConnectOptions& options,
                                         const std::string& what);
    /// Returns nothing if the queue pair does not exist, or has ended with its lost device.
    [[nodiscard]] std::optional<Retirement> begin_retiring_here(QpHandle handle,
                                                                std::chrono::steady_clock::time_point deadline);
    /// Returns nothing until the queue pair is retired. Then returns whether all its work was flushed in time.
    [[nodiscard]] std::optional<bool> retired_here(Retirement& retirement);
    /// Ends the queue pair. `drained` is the result of retired_here().
    void end_retired_here(QpHandle handle, bool drained);
    std::pair<QpHandle, bool> restart_retired_here(QpHandle handle, bool drained);
    [[nodiscard]] bool has_qp(QpHandle handle) noexcept { return find_qp(handle) != nullptr; }
    /// Makes a protection domain whose regions have addresses of another process (H8). Throws Error(EOPNOTSUPP) if the
    /// provider's code may touch memory at these addresses.
    [[nodiscard]] PdId create_foreign_pd_here(const std::string& device, std::uint32_t client);
    /// Returns false if the domain is still in use. The domain then stays.
    [[nodiscard]] bool release_pd_here(PdId pd);
    /// Adds a device that was opened for process `client` alone. Returns the name by which the other functions know it.
    /// Throws Error, and closes the device, if a worker may sleep.
    [[nodiscard]] std::string add_client_device_here(const std::string& name, std::uint32_t client,
                                                     std::unique_ptr<Device> opened);
    /// Called when the process ends: from now on its objects on this device end, whatever it does to keep them.
    void let_go_of_client_device_here(const std::string& name) noexcept;
    /// The process has used its descriptor against the daemon's objects (Device::abused()).
    [[nodiscard]] bool is_client_device_abused_here(const std::string& name) noexcept;
    /// Closes a device of add_client_device_here(), on which only idle CQs are left.
    void remove_client_device_here(const std::string& name) noexcept;
    [[nodiscard]] std::uint32_t pd_handle_here(PdId pd) const { return pds_.at(pd).pd->handle; }
    /// Searches for work requests that name `lkey`, or bind a window to `region`.
    [[nodiscard]] UseSearch search_key_here(PdId pd, std::uint32_t lkey, MrHandle region = {});
    [[nodiscard]] RegionPlan plan_region_here(void* data, std::size_t bytes, std::uint64_t iova, Access access,
                                              const std::string& device, PdId pd);
    /// Takes ownership of `mr`, unless it throws.
    RegionInfo add_region_here(const RegionPlan& plan, UniqueMr& mr, HostMemory memory);
    // To end a region, a window or an address handle: work requests may still name the object. So the caller first
    // begins a search, waits until the search is over, and passes it to the function that begins the end. That function
    // throws Error(EBUSY) if the search has found a work request. An empty search is enough if no queue pair is left
    // that could name the object.
    [[nodiscard]] UseSearch search_region_here(std::uint64_t id);
    /// Returns nothing if the registration has already ended with the runtime. Then the region is removed at once.
    [[nodiscard]] std::optional<RegionEnd> begin_deregistering_here(std::uint64_t id, const UseSearch& search);
    /// Called after begin_deregistering_here(). `error` is the result of RegionEnd::carry_out(), or ECANCELED if
    /// carry_out() was not called. If the region has not ended, throws `error` as an Error, and the region stays as it
    /// was before.
    void end_deregistering_here(std::uint64_t id, int error);
    [[nodiscard]] UseSearch search_window_here(MwHandle handle);
    void end_window_here(MwHandle handle, const UseSearch& search);
    [[nodiscard]] UseSearch search_ah_here(AhHandle handle);
    /// From now on the workers refuse new sends with this address handle. The caller must call end_ah_here() or
    /// restore_ah_here() next. Returns a search for sends that the workers took earlier.
    [[nodiscard]] UseSearch begin_removing_ah_here(AhHandle handle, const UseSearch& search);
    void end_ah_here(AhHandle handle, const UseSearch& removal);
    void restore_ah_here(AhHandle handle) noexcept;
    /// May be called only when no queue pair is left that could name the address handle.
    void end_unused_ah_here(AhHandle handle);
    /// From now on the worker takes no more buffers from the pool. Throws Error(EBUSY) while a queue pair or shared
    /// receive queue uses the pool. The caller ends the pool's region next.
    void begin_closing_pool_here(PoolHandle handle);
    void end_closing_pool_here(PoolHandle handle) noexcept;
    [[nodiscard]] AhPlan plan_ah_here(const QpInfo& peer, const PathAttributes& path, const std::string& device,
                                      PdId pd);
    [[nodiscard]] AhPlan plan_ah_here(const AddressAttributes& address, const std::string& device, PdId pd);
    [[nodiscard]] AhPlan plan_ah_here(const WideCompletion& received, std::span<const std::byte, kGrhBytes> grh,
                                      const std::string& device, PdId pd);
    AhHandle add_ah_here(const AhPlan& plan, UniqueAh ah);
    /// Returns the address to which connect() connects the queue pair. The caller calls AhPlan::find_neighbour() before
    /// connect_here(), so that the queue pair is not parked while the kernel asks the network.
    [[nodiscard]] AhPlan plan_way_here(QpHandle handle, const QpInfo& peer, const PathAttributes& path);
    void connect_here(QpHandle handle, const QpInfo& peer, const PathAttributes& path);
    /// Checks what modify_here() will do. Returns the address whose neighbour has to be found before, if there is one.
    [[nodiscard]] std::optional<AhPlan> plan_modify_here(QpHandle handle, const QpAttributes& attributes);
    void modify_here(QpHandle handle, const QpAttributes& attributes);
    /// Waits briefly before the next check of a condition, in a job that has a time limit. This wait does not count as
    /// a hang. `looks`: see Platform::wait_for_worker. By default the thread sleeps.
    void wait_a_little_here(std::uint32_t looks = std::numeric_limits<std::uint32_t>::max());
    // The next two functions are for calls of the program that owns the runtime. They wait for the workers.
    void await_here(UseSearch& search);
    /// Calls `begin`, and repeats the call until the worker has room for the command.
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
    /// Keeps an object until the runtime is destroyed: memory that a device may reach, or counters that are in use.
    void keep_until_end(std::shared_ptr<void> what) { kept_.push_back(std::move(what)); }

    /// RuntimeStatistics::copy_for(). Throws Error(EOPNOTSUPP) if there are no statistics.
    [[nodiscard]] UniqueFd copy_statistics_here(std::uint32_t client);
    // inventory.cc: what there is. For a daemon, which calls these in jobs (ask(), post()).
    [[nodiscard]] std::vector<ListedWorker> workers_here() const;
    [[nodiscard]] std::vector<ListedDevice> devices_here() const;
    [[nodiscard]] std::vector<ListedSession> sessions_here() const;
    [[nodiscard]] std::vector<ListedQueuePair> queue_pairs_here() const;
    [[nodiscard]] std::vector<ListedSharedReceiveQueue> shared_receive_queues_here() const;
    [[nodiscard]] std::vector<ListedReceivePool> receive_pools_here() const;
    [[nodiscard]] std::vector<ListedListener> listeners_here();
    [[nodiscard]] std::vector<ListedMemoryRegion> memory_regions_here() const;

    /// Any thread may call this. Does not use the control thread.
    [[nodiscard]] Health health() const;

    const Config config;
    const std::unique_ptr<Platform> platform;
    ControlCounters counters;
    ApplicationEvents application_events;
    [[nodiscard]] WorkerSlot& worker(std::size_t index);
    [[nodiscard]] Device& device(const std::string& name);
    /// An empty name means the only device. Throws Error(ENODEV) if the configuration has no such device.
    [[nodiscard]] const DeviceConfig& configured_device(const std::string& name) const;

private:
    // An attempt to connect, and its outcome. With Report::to_waiter, the thread that called connect() or accept()
    // waits for `done`.
    struct Attempt {
        bool done = false;
        Report report = Report::to_waiter;
        QpHandle qp;
        std::uint32_t client = 0;                        // the process that owns the queue pair; 0: this process
        std::chrono::steady_clock::time_point deadline;  // only with Report::by_event
        std::string what;                                // what was begun, for messages
        ConnectEvent event;
        [[nodiscard]] bool established() const noexcept {
            return done && event.kind == ConnectEvent::Kind::established;
        }
    };
    using Attempts = std::map<ConnectionKey, Attempt>;

    /// A call that does a part of its work on the caller's thread, with a device and a protection domain. As long as it
    /// lasts, the runtime does not stop, and ends no protection domain.
    class OutsideCall {
    public:
        /// Throws Error(ESHUTDOWN) when the runtime stops.
        explicit OutsideCall(RuntimeState& runtime);
        ~OutsideCall();
        OutsideCall(const OutsideCall&) = delete;
        OutsideCall& operator=(const OutsideCall&) = delete;

    private:
        RuntimeState& runtime_;
    };
    using ListenerKey = std::pair<std::uint32_t, ListenerId>;

    // runtime_state.cc
    void open_device(const DeviceConfig& config);
    void start_worker(const WorkerConfig& config, std::uint32_t index);
    /// Makes what the worker needs of the device. Returns the completion channel, or null if the worker never sleeps.
    [[nodiscard]] static CompletionChannel* make_worker_objects(DeviceSlot& device, std::uint32_t index,
                                                                const WorkerSlot& worker);
    bool stop_here();
    /// `lock` holds outside_mutex_. As long as it is held afterwards, no OutsideCall is under way.
    void await_outside_calls(std::unique_lock<std::mutex>& lock);

    [[nodiscard]] DeviceSlot& find_device(const std::string& name);
    /// The device that was opened for one process, by the name that add_client_device_here() returned, or null.
    [[nodiscard]] DeviceSlot* client_device_here(const std::string& name) noexcept;
    /// Throws Error if the device is lost.
    [[nodiscard]] DeviceSlot& device_slot(const std::string& name);
    [[nodiscard]] QpSlot* find_qp(QpHandle handle) noexcept;
    /// For calls that end the queue pair: also finds it by QpSlot::former.
    [[nodiscard]] QpSlot* find_qp_or_former(QpHandle handle) noexcept;
    [[nodiscard]] QpSlot& qp_slot(QpHandle handle);
    /// Throws Error if the queue pair's device is lost.
    [[nodiscard]] QpSlot& live_qp_slot(QpHandle handle);

    // sessions.cc
    void end_session_here(SessionSlot& session) noexcept;
    void unwatch_visitor_here(const SessionSlot& session) noexcept;
    [[nodiscard]] SessionSlot& session_slot(std::uint32_t id);
    /// Valid until the session is released.
    [[nodiscard]] Called called_session(std::uint32_t id) const noexcept;

    // shared_receive_queues.cc
    SrqHandle create_srq_here(const SrqSpec& spec);
    [[nodiscard]] SrqSlot* find_srq(SrqHandle handle) noexcept;
    [[nodiscard]] SrqSlot& srq_slot(SrqHandle handle);
    /// Throws Error if the shared receive queue's device is lost.
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
    /// Called when the connection is established. Throws Error if the two ends have different kinds of flow control.
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
    static void require_not_ending(const QpSlot& qp);
    void require_connectable(const QpSlot& qp) const;
    void require_connectable(const QpSlot& qp, const QpInfo& peer) const;

    // by_hand.cc
    void require_move_here(const QpSlot& qp, const Transition& move);
    /// Returns the attributes as the device has them.
    [[nodiscard]] ibv_qp_attr query_here(const QpSlot& qp);

    // queue_pair_ends.cc
    void await_end(QpEnding& ending);
    [[nodiscard]] std::unique_ptr<QpEnding> new_ending(const QpSlot& qp, bool reset, Report report,
                                                       std::chrono::milliseconds timeout);
    void start_here(QpEnding& ending) noexcept;
    [[nodiscard]] bool step_here(QpEnding& ending) noexcept;
    void conclude_here(QpEnding& ending) noexcept;
    void continue_endings_here() noexcept;
    void finish_endings_here() noexcept;
    void post_endings_here() noexcept;
    [[nodiscard]] QpEnding* find_ending(QpHandle handle) noexcept;
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
    static void require_port(std::uint8_t asked, const Device& device);
    template <class Plan>
    AhHandle create_ah_by(const Plan& plan_here);
    [[nodiscard]] ibv_ah_attr address_here(DeviceSlot& device, const QpInfo& peer, const PathAttributes& path);

    // connecting.cc
    [[nodiscard]] ConnectingQp connecting(QpSlot& qp, PrivateDataForm form = PrivateDataForm::framed);
    void take_connect_events(DeviceSlot& device);
    void on_connect_event(DeviceSlot& device, ConnectEvent event);
    void take_request(DeviceSlot& device, ConnectEvent request);
    void turn_away_here(std::uint32_t device, ConnectionId request,
                        std::span<const std::byte> private_data = {}) noexcept;
    [[nodiscard]] Attempts::node_type new_attempt(const QpSlot& qp, Report report, std::string what,
                                                  std::chrono::milliseconds timeout);
    void end_attempt_here(const ConnectionKey& key, ConnectEvent&& event);
    [[nodiscard]] ConnectionKey await_outcome_here(Attempts::node_type attempt, const ConnectionKey& key) noexcept;
    void drop_request(DeviceSlot& device, ConnectionId request);
    void look_for_withdrawn_requests_here();
    std::vector<std::byte> await_connection(const ConnectionKey& key, QpHandle handle, const ConnectOptions& options,
                                            const std::string& what);
    [[nodiscard]] Attempt take_attempt(const ConnectionKey& key, const std::string& what);
    std::vector<std::byte> conclude_here(Attempt& attempt, QpHandle handle, const ConnectOptions& options,
                                         const std::string& what);
    [[nodiscard]] static std::string why_failed(const std::string& what, const ConnectEvent& event);
    [[nodiscard]] Attempts::node_type take_attempt_by_event(const QpSlot& qp) noexcept;
    void expire_attempts_here() noexcept;
    [[nodiscard]] bool is_connecting_by_event(const QpSlot& qp) noexcept;
    void require_not_connecting(const QpSlot& qp);
    void tell_waiting();
    [[nodiscard]] QpSlot* qp_of_connection(std::uint32_t device, ConnectionId connection) noexcept;
    void fail_connection_here(QpSlot& qp) noexcept;
    void forget_connection_here(QpSlot& qp) noexcept;

    // events.cc
    void tell_of_qp_here(std::uint32_t client, Event&& event) noexcept;
    void tell_of_error_here(QpSlot& qp) noexcept;
    void tell_outcome_here(Attempt&& attempt) noexcept;
    void take_async_events(DeviceSlot& device);
    [[nodiscard]] Event describe(const DeviceSlot& device, const ibv_async_event& taken) const noexcept;
    [[nodiscard]] const WorkerSlot* worker_of_cq(const DeviceSlot& device, const ibv_cq* verbs_cq) const noexcept;
    void on_async_event(DeviceSlot& device, const ibv_async_event& taken, const Event& event);
    [[nodiscard]] QpAndOwner with_owner(const QpSlot& qp) const noexcept;
    /// Logs a line about a queue pair, within a budget. If there is no memory for the line, it is left out and counted.
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

    // inventory.cc
    [[nodiscard]] const std::string& device_name_here(std::uint32_t device) const noexcept;
    [[nodiscard]] std::uint32_t process_of_session_here(std::uint32_t session) const noexcept;

    // client_devices.cc
    [[nodiscard]] bool is_device_in_use(const DeviceSlot& device) const noexcept;
    void remove_client_device_here(DeviceSlot& device) noexcept;

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
    std::uint64_t device_numbers_ = 0;  // given so far
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
    std::vector<std::uint32_t> qp_lives_;       // by index: number of lives (generations) that have begun
    std::vector<std::unique_ptr<AhSlot>> ahs_;  // by index
    std::vector<std::uint16_t> ah_generations_;
    std::map<ConnectionKey, std::uint16_t> qp_of_connection_;  // index of the queue pair that has QpSlot::connection
    std::unique_ptr<RuntimeStatistics> statistics_;            // null: there is no segment
    std::uint16_t next_qp_index_ = 0;
    std::uint32_t next_session_ = 1;
    std::uint32_t next_cq_ = 1;
    std::uint32_t next_pd_ = 1;
    std::uint64_t next_region_ = 1;
    std::chrono::steady_clock::time_point next_look_at_requests_{};
    // For log lines that peers and attached processes can cause as often as they like. Warnings and errors have
    // separate budgets, so that warnings do not suppress errors.
    LineBudget qp_warnings_{10};
    LineBudget qp_errors_{10};
    LineBudget cq_errors_{10};
    LineBudget refused_requests_{10};

    // Closes and resets that are under way, in the order in which they began, and where the next one goes.
    QpEnding* first_ending_ = nullptr;
    QpEnding** behind_last_ending_ = &first_ending_;
    bool endings_posted_ = false;   // a job that calls continue_endings_here() is posted
    std::uint32_t idle_looks_ = 0;  // calls of continue_endings_here() since one of them made progress
    // No attempt with Report::by_event has its deadline before this time.
    std::chrono::steady_clock::time_point next_expiry_ = std::chrono::steady_clock::time_point::max();

    std::mutex outside_mutex_;
    std::condition_variable outside_changed_;
    std::uint32_t outside_calls_ = 0;
    bool stopping_ = false;  // no OutsideCall begins any more

    std::mutex waiting_mutex_;
    std::condition_variable waiting_;
    Attempts attempts_;
    std::map<ListenerKey, std::deque<ConnectEvent>> requests_;

    // The destructor stops the loop, ends the executor, and then destroys the loop (see EventLoop::stop).
    std::unique_ptr<Executor> executor_;
    std::unique_ptr<EventLoop> loop_;
};

}  // namespace pollcore
