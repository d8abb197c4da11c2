// The runtime, embedded in a program: devices, workers, and everything that is set up before data flows.
//
//   pollcore::Runtime runtime(pollcore::load_config("app.toml"));
//   pollcore::Session session = runtime.open_session();
//   pollcore::MemoryRegion memory = runtime.allocate(1 << 20);
//   pollcore::QueuePair qp = runtime.create_queue_pair({.shares = {{.session = &session}}});
//   qp.connect("192.0.2.7:7471");
//   session.try_submit({.tag = 1, .sge = {memory.addr(), 64, memory.lkey()}, .qp = qp.handle(), ...});
//
// Thread safety: every call here may be made from any thread; they are carried out one after the other by
// the runtime's control thread and block until done. None belongs on a hot path.
// Errors: pollcore::Error, with a message that says what was tried, on what, and what to do.
// Ownership: objects made by a runtime keep it alive inside, so they may be destroyed in any order. After
// Runtime::stop() their calls throw Error(ESHUTDOWN); what was in flight has been completed.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "pollcore/address_handle.hpp"
#include "pollcore/config.hpp"
#include "pollcore/counters.hpp"
#include "pollcore/error.hpp"
#include "pollcore/event.hpp"
#include "pollcore/memory.hpp"
#include "pollcore/queue_pair.hpp"
#include "pollcore/receive_pool.hpp"
#include "pollcore/session.hpp"
#include "pollcore/shared_receive_queue.hpp"

struct ibv_context;

namespace pollcore {

class Device;
class Platform;

struct SessionOptions {
    std::string worker{};                 ///< name from the configuration; empty: the one with the fewest sessions
    std::uint32_t submission_slots = 1024;  ///< a power of two; 64 bytes each
    std::uint32_t completion_slots = 1024;  ///< a power of two; 32 bytes each: the most work requests in flight
    /// Completions beside those, for messages of receive pools: as many as the session's pools have buffers together.
    std::uint32_t pool_buffers = 0;
    /// Completions of 64 bytes: Session::poll can give WideCompletions, which say where datagrams came from.
    bool wide_completions = false;
    /// Session::wait() may sleep, and event_fd() and arm() are there. For each step that completes something the worker looks
    /// whether this session's thread sleeps, which takes an atomic operation, and a system call where it does.
    bool events = false;
    std::chrono::nanoseconds wait_spin{20'000};  ///< Session::wait() looks for so long before it sleeps
};

/// A queue pair that sessions post to. Move-only; closing it completes everything in flight.
class QueuePair {
public:
    QueuePair() = default;
    ~QueuePair();
    QueuePair(QueuePair&& other) noexcept;
    QueuePair& operator=(QueuePair&& other) noexcept;

    /// What goes into WorkRequest::qp.
    [[nodiscard]] QpHandle handle() const noexcept { return handle_; }
    [[nodiscard]] bool valid() const noexcept { return runtime_ != nullptr; }

    /// Connects to a listener: "ADDRESS:PORT" on a verbs device, a name on a software device. Returns the
    /// private data of its answer. Receives that shall be there for the peer's first message are submitted
    /// before. Throws Error: ECONNREFUSED (the private data of the rejection in the message), ETIMEDOUT, or
    /// what the network said.
    std::vector<std::byte> connect(const std::string& address, const ConnectOptions& options = {});
    /// For programs with a channel of their own: what the peer must know, and connecting with what it said.
    /// Both sides call both.
    [[nodiscard]] QpInfo info() const;
    void connect(const QpInfo& peer, const PathAttributes& path = {});
    /// Tells the peer and moves the QP to error: what is in flight is flushed.
    void disconnect();
    /// The peer left, or disconnect() was called. New work is refused until reset().
    [[nodiscard]] bool disconnected() const;
    /// The provider's number, for logs.
    [[nodiscard]] std::uint32_t qp_num() const;
    /// Since the QP was opened or reset. Nothing where the device does not count per QP; verbs do not, Runtime::rnr_counts may.
    [[nodiscard]] std::optional<RnrCounts> rnr_counts() const;

    /// Begins again, from any state: the QP is as a new one, in INIT, where it takes receives and can be connected, or,
    /// a UD QP, ready. What is in flight completes first, flushed by the device or, with status qp_closed, by the
    /// runtime; a connection is ended. Of a shared receive queue only what the QP had taken completes.
    /// handle() is another afterwards: the same index, a new generation, so that work meant for the connection before
    /// is refused (stale_handle), or, if it was submitted while this ran, completes with request_refused. False when
    /// draining was cut short by the configuration's drain_timeout. Not while another thread uses this object. Throws
    /// Error(ENODEV) when the device was lost. When the device refuses, it throws and the QP stays in error.
    bool reset();

    /// Takes the QP out of service: every work request in flight gets its completion, by the device or, with
    /// status qp_closed, by the runtime. False when it had to be cut short by the configuration's
    /// drain_timeout: the log says how many work requests that were, and both counters named cut_short count it. The
    /// destructor closes too.
    bool close();

private:
    friend class RuntimeState;
    std::shared_ptr<RuntimeState> runtime_;
    QpHandle handle_{};
};

/// A peer that asks for a connection. Unanswered, it is rejected when destroyed.
class ConnectionRequest {
public:
    ConnectionRequest() = default;
    ~ConnectionRequest();
    ConnectionRequest(ConnectionRequest&& other) noexcept;
    ConnectionRequest& operator=(ConnectionRequest&& other) noexcept;

    [[nodiscard]] const std::string& peer() const noexcept { return peer_; }
    [[nodiscard]] const std::vector<std::byte>& private_data() const noexcept { return private_data_; }
    /// What the queue pair that accepts it must have.
    [[nodiscard]] FlowControl flow() const noexcept { return flow_.kind; }

    /// Returns when the peer knows. A receive may complete before (H13).
    void accept(QueuePair& qp, const ConnectOptions& options = {});
    void reject(const std::vector<std::byte>& private_data = {});

private:
    friend class RuntimeState;
    std::shared_ptr<RuntimeState> runtime_;
    std::uint64_t connection_ = 0;
    std::uint32_t device_ = 0;
    std::string peer_;
    std::vector<std::byte> private_data_;
    FlowBlock flow_;
};

/// A place where peers connect.
class Listener {
public:
    Listener() = default;
    ~Listener();
    Listener(Listener&& other) noexcept;
    Listener& operator=(Listener&& other) noexcept;

    /// Where it really listens, with the port that was chosen for ":0".
    [[nodiscard]] const std::string& address() const noexcept { return address_; }
    /// The next peer that asks; nothing when none did within the time.
    [[nodiscard]] std::optional<ConnectionRequest> next_request(std::chrono::milliseconds timeout);

private:
    friend class RuntimeState;
    std::shared_ptr<RuntimeState> runtime_;
    std::uint64_t id_ = 0;
    std::uint32_t device_ = 0;
    std::string address_;
};

/// What a runtime found and decided at start, for logs and reports.
struct DeviceReport {
    std::string name;
    std::string description;
    std::uint32_t inline_max = 0;
    std::uint32_t qp_depth_max = 0;
    std::uint32_t cqes_max = 0;
    std::uint32_t sges_max = 0;
    bool extended_cqs = false;  ///< its CQs can be polled by ibv_start_poll
    // What it has of memory windows. Without, making one fails and their opcodes are refused.
    bool memory_windows_1 = false;
    bool memory_windows_2 = false;
    bool invalidation = false;  ///< local_inv and send_with_inv
};
struct RuntimeReport {
    std::vector<DeviceReport> devices;
    bool hugepages = false;
    std::string memory;  ///< in words: which memory the rings are in, and how to get better
    std::string eal;     ///< in words: set up here or by the host program
};

class Runtime {
public:
    /// Opens the devices and starts the workers.
    explicit Runtime(const Config& config);
    /// On something else than this machine's threads, clock and memory, for who builds against pollcore's sources: its
    /// simulation does. Null is this machine.
    Runtime(const Config& config, std::unique_ptr<Platform> platform);
    ~Runtime();
    Runtime(Runtime&&) noexcept = default;
    Runtime& operator=(Runtime&&) noexcept = default;

    /// Closes every queue pair and session with what is in flight, stops the workers, closes the devices.
    /// False when draining was cut short by the configuration's drain_timeout, which all queue pairs share: see
    /// QueuePair::close for the report. The destructor does it too.
    bool stop();

    [[nodiscard]] Session open_session(const SessionOptions& options = {});
    [[nodiscard]] QueuePair create_queue_pair(const QueuePairOptions& options);
    [[nodiscard]] SharedReceiveQueue create_shared_receive_queue(const SharedReceiveQueueOptions& options);
    /// Throws Error: EINVAL for what ReceivePoolOptions does not accept, ENOSPC when the session has no room for so many.
    [[nodiscard]] ReceivePool create_receive_pool(const ReceivePoolOptions& options);
    /// As create_receive_pool; and EOPNOTSUPP where the session's worker may sleep, since nothing would wake it for a message.
    [[nodiscard]] ReceivePool create_write_ring(const WriteRingOptions& options);
    [[nodiscard]] ProtectionDomain create_protection_domain(const std::string& device = "");

    /// Memory from hugepages where there are any (zeroed, cache-line aligned, on the device's NUMA node), registered.
    [[nodiscard]] MemoryRegion allocate(std::size_t bytes, Access access = Access::all(),
                                        const std::string& device = "", const ProtectionDomain* pd = nullptr);
    /// Registers memory that the program has; it must stay mapped until the region is deregistered.
    [[nodiscard]] MemoryRegion register_memory(void* data, std::size_t bytes, Access access = Access::all(),
                                               const std::string& device = "", const ProtectionDomain* pd = nullptr);
    /// The same, with an address of the program's choice for the first byte (ibv_reg_mr_iova(3)): peers and work requests
    /// use that; 0 makes offsets of addresses. On verbs devices both must have the same place within a page.
    [[nodiscard]] MemoryRegion register_memory_at(std::uint64_t iova, void* data, std::size_t bytes,
                                                  Access access = Access::all(), const std::string& device = "",
                                                  const ProtectionDomain* pd = nullptr);
    /// A window for queue pairs of the session's worker. Throws Error(EOPNOTSUPP) where the device has none of the type.
    [[nodiscard]] MemoryWindow create_memory_window(const Session& session, WindowType type = WindowType::type_2,
                                                    const std::string& device = "",
                                                    const ProtectionDomain* pd = nullptr);

    /// The way of datagrams to the queue pair that `peer` describes, and to others of its port. Of the path the service
    /// level, traffic class, flow label and hop limit count.
    [[nodiscard]] AddressHandle create_address_handle(const QpInfo& peer, const PathAttributes& path = {},
                                                      const std::string& device = "",
                                                      const ProtectionDomain* pd = nullptr);
    /// The way back to the sender of a datagram, whose queue pair is received.src_qp. `buffer` is what the receive
    /// took, of which the first kGrhBytes count. Throws Error(EINVAL) where the message does not say where it is from.
    [[nodiscard]] AddressHandle create_address_handle(const WideCompletion& received, std::span<const std::byte> buffer,
                                                      const std::string& device = "",
                                                      const ProtectionDomain* pd = nullptr);

    /// "ADDRESS:PORT" on a verbs device (port 0: any), a name on a software device.
    [[nodiscard]] Listener listen(const std::string& address, const std::string& device = "");

    /// What devices said unasked, oldest first, after the runtime has done what follows from it; nothing when none came
    /// within the time. At most kEventsMax wait: then the oldest are kept, later ones are counted (Event::lost_after,
    /// ControlCounters::events_lost). Taking them is the application's choice: nothing else depends on it. Unlike the
    /// other calls these do not wait for the control thread. When the runtime is stopped they give what is left, and
    /// then throw Error(ESHUTDOWN).
    [[nodiscard]] std::optional<Event> next_event(std::chrono::milliseconds timeout);
    [[nodiscard]] std::optional<Event> poll_event();
    /// For a program's own poll or epoll, level-triggered: readable while poll_event() has something to give, and for
    /// good once the runtime is stopped. It stays the runtime's and lives as long; nobody reads it.
    [[nodiscard]] int event_fd() const;

    [[nodiscard]] const Config& config() const noexcept;
    [[nodiscard]] RuntimeReport report() const;
    [[nodiscard]] std::size_t worker_count() const noexcept;
    [[nodiscard]] const WorkerCounters& worker_counters(std::size_t worker) const;
    [[nodiscard]] const ControlCounters& control_counters() const noexcept;
    /// Of a whole device, by all who use it; for a verbs device from its hardware counters. Nothing where it has none.
    [[nodiscard]] std::optional<RnrCounts> rnr_counts(const std::string& device = "") const;
    /// Kernel thread id of a worker, for /proc.
    [[nodiscard]] int worker_thread_id(std::size_t worker) const;
    /// The opened device, for programs that use plain verbs beside the runtime. Calls on it belong on one thread
    /// at a time.
    [[nodiscard]] Device& device(const std::string& name = "");

private:
    std::shared_ptr<RuntimeState> state_;
};

}  // namespace pollcore
