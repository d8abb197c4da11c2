// The objects of include/pollcore/runtime.hpp: each call goes to RuntimeState.
#include "pollcore/runtime.hpp"

#include "base/log.hpp"
#include "control/runtime_state.hpp"

namespace pollcore {
namespace {

RuntimeState& alive(const std::shared_ptr<RuntimeState>& runtime, const char* what) {
    if (runtime == nullptr) {
        throw Error(EINVAL, std::string(what) + " names nothing: default-constructed, moved from or closed");
    }
    return *runtime;
}

}  // namespace

// ---- QueuePair ----

QueuePair::~QueuePair() {
    try {
        close();
    } catch (const std::exception& error) {
        log_error("closing a queue pair: {}", error.what());
    }
}

QueuePair::QueuePair(QueuePair&& other) noexcept { *this = std::move(other); }

QueuePair& QueuePair::operator=(QueuePair&& other) noexcept {
    std::swap(runtime_, other.runtime_);
    std::swap(handle_, other.handle_);
    return *this;
}

std::vector<std::byte> QueuePair::connect(const std::string& address, const ConnectOptions& options) {
    return alive(runtime_, "this queue pair").connect(handle_, address, options);
}
QpInfo QueuePair::info() const { return alive(runtime_, "this queue pair").info(handle_); }
void QueuePair::connect(const QpInfo& peer, const PathAttributes& path) {
    alive(runtime_, "this queue pair").connect(handle_, peer, path);
}
void QueuePair::disconnect() { alive(runtime_, "this queue pair").disconnect(handle_); }
bool QueuePair::disconnected() const { return alive(runtime_, "this queue pair").disconnected(handle_); }
std::optional<RnrCounts> QueuePair::rnr_counts() const {
    return alive(runtime_, "this queue pair").rnr_counts(handle_);
}
std::uint32_t QueuePair::qp_num() const { return alive(runtime_, "this queue pair").qp_num(handle_); }

bool QueuePair::reset() {
    const auto [renewed, drained] = alive(runtime_, "this queue pair").reset(handle_);
    handle_ = renewed;
    return drained;
}

bool QueuePair::close() {
    if (runtime_ == nullptr) {
        return true;
    }
    const std::shared_ptr<RuntimeState> runtime = std::exchange(runtime_, nullptr);
    return runtime->close_queue_pair(handle_);
}

// ---- SharedReceiveQueue ----

SharedReceiveQueue::~SharedReceiveQueue() {
    try {
        close();
    } catch (const std::exception& error) {
        log_warning("a shared receive queue stays until its session is closed: {}", error.what());
    }
}

SharedReceiveQueue::SharedReceiveQueue(SharedReceiveQueue&& other) noexcept { *this = std::move(other); }

SharedReceiveQueue& SharedReceiveQueue::operator=(SharedReceiveQueue&& other) noexcept {
    std::swap(runtime_, other.runtime_);
    std::swap(handle_, other.handle_);
    return *this;
}

void SharedReceiveQueue::arm_limit(std::uint32_t limit) {
    alive(runtime_, "this shared receive queue").arm_limit(handle_, limit);
}
std::uint32_t SharedReceiveQueue::limit() const { return alive(runtime_, "this shared receive queue").limit(handle_); }

void SharedReceiveQueue::close() {
    if (runtime_ == nullptr) {
        return;
    }
    runtime_->close_shared_receive_queue(handle_);
    runtime_.reset();
}

// ---- ConnectionRequest ----

ConnectionRequest::~ConnectionRequest() {
    if (runtime_ != nullptr) {
        reject();
    }
}

ConnectionRequest::ConnectionRequest(ConnectionRequest&& other) noexcept { *this = std::move(other); }

ConnectionRequest& ConnectionRequest::operator=(ConnectionRequest&& other) noexcept {
    std::swap(runtime_, other.runtime_);
    std::swap(connection_, other.connection_);
    std::swap(device_, other.device_);
    std::swap(peer_, other.peer_);
    std::swap(private_data_, other.private_data_);
    std::swap(flow_, other.flow_);
    return *this;
}

void ConnectionRequest::accept(QueuePair& qp, const ConnectOptions& options) {
    alive(runtime_, "this connection request").accept(device_, connection_, qp.handle(), flow_, options);
    runtime_.reset();
}

void ConnectionRequest::reject(const std::vector<std::byte>& private_data) {
    alive(runtime_, "this connection request").reject(device_, connection_, private_data);
    runtime_.reset();
}

// ---- Listener ----

Listener::~Listener() {
    if (runtime_ != nullptr) {
        runtime_->stop_listening(device_, id_);
    }
}

Listener::Listener(Listener&& other) noexcept { *this = std::move(other); }

Listener& Listener::operator=(Listener&& other) noexcept {
    std::swap(runtime_, other.runtime_);
    std::swap(id_, other.id_);
    std::swap(device_, other.device_);
    std::swap(address_, other.address_);
    return *this;
}

std::optional<ConnectionRequest> Listener::next_request(std::chrono::milliseconds timeout) {
    return alive(runtime_, "this listener").next_request(device_, id_, timeout);
}

// ---- Runtime ----

Runtime::Runtime(const Config& config) : Runtime(config, host_platform()) {}

Runtime::Runtime(const Config& config, std::unique_ptr<Platform> platform)
    : state_(std::make_shared<RuntimeState>(config, platform != nullptr ? std::move(platform) : host_platform())) {}

Runtime::~Runtime() {
    try {
        if (state_ != nullptr) {
            stop();
        }
    } catch (const std::exception& error) {
        log_error("stopping the runtime: {}", error.what());
    }
}

bool Runtime::stop() { return alive(state_, "this runtime").stop(); }
Session Runtime::open_session(const SessionOptions& options) {
    return alive(state_, "this runtime").open_session(options);
}
QueuePair Runtime::create_queue_pair(const QueuePairOptions& options) {
    return alive(state_, "this runtime").create_queue_pair(options);
}
ReceivePool Runtime::create_receive_pool(const ReceivePoolOptions& options) {
    return alive(state_, "this runtime").create_receive_pool(options);
}
ReceivePool Runtime::create_write_ring(const WriteRingOptions& options) {
    return alive(state_, "this runtime").create_write_ring(options);
}
SharedReceiveQueue Runtime::create_shared_receive_queue(const SharedReceiveQueueOptions& options) {
    return alive(state_, "this runtime").create_shared_receive_queue(options);
}
ProtectionDomain Runtime::create_protection_domain(const std::string& device) {
    return alive(state_, "this runtime").create_protection_domain(device);
}
MemoryRegion Runtime::allocate(std::size_t bytes, Access access, const std::string& device, const ProtectionDomain* pd) {
    return alive(state_, "this runtime").allocate(bytes, access, device, pd);
}
MemoryRegion Runtime::register_memory(void* data, std::size_t bytes, Access access, const std::string& device,
                                      const ProtectionDomain* pd) {
    return register_memory_at(reinterpret_cast<std::uintptr_t>(data), data, bytes, access, device, pd);
}
MemoryRegion Runtime::register_memory_at(std::uint64_t iova, void* data, std::size_t bytes, Access access,
                                         const std::string& device, const ProtectionDomain* pd) {
    return alive(state_, "this runtime").register_memory(data, bytes, iova, access, device, pd);
}
MemoryWindow Runtime::create_memory_window(const Session& session, WindowType type, const std::string& device,
                                           const ProtectionDomain* pd) {
    return alive(state_, "this runtime").create_memory_window(session, type, device, pd);
}
AddressHandle Runtime::create_address_handle(const QpInfo& peer, const PathAttributes& path, const std::string& device,
                                             const ProtectionDomain* pd) {
    return alive(state_, "this runtime").create_address_handle(peer, path, device, pd);
}
AddressHandle Runtime::create_address_handle(const WideCompletion& received, std::span<const std::byte> buffer,
                                             const std::string& device, const ProtectionDomain* pd) {
    return alive(state_, "this runtime").create_address_handle(received, buffer, device, pd);
}
Listener Runtime::listen(const std::string& address, const std::string& device) {
    return alive(state_, "this runtime").listen(address, device);
}
std::optional<Event> Runtime::next_event(std::chrono::milliseconds timeout) {
    return alive(state_, "this runtime").application_events.next(timeout);
}
std::optional<Event> Runtime::poll_event() { return next_event(std::chrono::milliseconds(0)); }
int Runtime::event_fd() const { return alive(state_, "this runtime").application_events.fd(); }
const Config& Runtime::config() const noexcept { return state_->config; }
RuntimeReport Runtime::report() const { return alive(state_, "this runtime").report; }
std::size_t Runtime::worker_count() const noexcept { return state_->config.workers.size(); }
const WorkerCounters& Runtime::worker_counters(std::size_t worker) const {
    return alive(state_, "this runtime").worker(worker).worker->counters();
}
const ControlCounters& Runtime::control_counters() const noexcept { return state_->counters; }
std::optional<RnrCounts> Runtime::rnr_counts(const std::string& device) const {
    return alive(state_, "this runtime").rnr_counts(device);
}
int Runtime::worker_thread_id(std::size_t worker) const {
    return alive(state_, "this runtime").worker(worker).thread->thread_id();
}
Device& Runtime::device(const std::string& name) { return alive(state_, "this runtime").device(name); }

}  // namespace pollcore
