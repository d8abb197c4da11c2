// The objects that a Context makes. Their calls go to the control side.
#include <exception>
#include <utility>

#include "base/log.hpp"
#include "base/undo.hpp"
#include "pollcore/address_handle.hpp"
#include "pollcore/event.hpp"
#include "pollcore/listener.hpp"
#include "pollcore/memory.hpp"
#include "pollcore/queue_pair.hpp"
#include "pollcore/receive_pool.hpp"
#include "pollcore/shared_receive_queue.hpp"
#include "session/control_side.hpp"

namespace pollcore {
namespace {

ControlSide& alive(const std::shared_ptr<ControlSide>& control, const char* what) {
    if (control == nullptr) {
        throw Error(EINVAL, std::string(what) + " is not open: default-constructed, moved from or closed");
    }
    require_own_process(*control);
    return *control;
}

/// For destructors: a forked child ends no objects, because they belong to its parent.
bool ends_here(const std::shared_ptr<ControlSide>& control) noexcept {
    return control != nullptr && !control->is_forked();
}

}  // namespace

// ---- QueuePair ----

QueuePair::~QueuePair() {
    try {
        if (!ends_here(control_)) {
            return;
        }
        if (begun_ && abandon()) {
            control_->live_qps.remove(handle_);
            control_->events().remove(handle_);
        } else {
            close();
        }
    } catch (const std::exception& error) {
        log_error("closing a queue pair: {}", error.what());
    }
}

bool QueuePair::abandon() noexcept {
    try {
        return control_->abandon_qp(handle_);
    } catch (const std::exception&) {
        return false;  // close() needs no memory
    }
}

QueuePair::QueuePair(std::shared_ptr<ControlSide> control, QpHandle handle, std::string name, bool by_hand) noexcept
    : control_(std::move(control)), handle_(handle), name_(std::move(name)), by_hand_(by_hand) {}
QueuePair::QueuePair(QueuePair&& other) noexcept {
    *this = std::move(other);
}

QueuePair& QueuePair::operator=(QueuePair&& other) noexcept {
    std::swap(control_, other.control_);
    std::swap(handle_, other.handle_);
    std::swap(name_, other.name_);
    std::swap(begun_, other.begun_);
    std::swap(by_hand_, other.by_hand_);
    return *this;
}

std::vector<std::byte> QueuePair::connect(const std::string& address, const ConnectOptions& options) {
    return alive(control_, "this queue pair").connect(handle_, address, options);
}
void QueuePair::begin_connect(const std::string& address, const ConnectOptions& options) {
    alive(control_, "this queue pair").begin_connect(handle_, address, options);
    begun_ = true;
}
QpInfo QueuePair::info() const {
    return alive(control_, "this queue pair").info(handle_);
}
void QueuePair::connect(const QpInfo& peer, const PathAttributes& path) {
    alive(control_, "this queue pair").connect(handle_, peer, path);
}
void QueuePair::modify(const QpAttributes& attributes) {
    if (attributes.qp_state == VerbsQpState::reset) {
        if (!by_hand_ || attributes != QpAttributes{.qp_state = VerbsQpState::reset}) {
            throw Error(
                EINVAL,
                "only a queue pair that is driven by hand is moved to RESET, and no other attribute goes with it");
        }
        (void)reset();
        return;
    }
    alive(control_, "this queue pair").modify_qp(handle_, attributes);
}
QpQuery QueuePair::query() const {
    return alive(control_, "this queue pair").query_qp(handle_);
}
void QueuePair::disconnect() {
    alive(control_, "this queue pair").disconnect(handle_);
}
bool QueuePair::disconnected() const {
    return alive(control_, "this queue pair").disconnected(handle_);
}
std::optional<RnrCounts> QueuePair::rnr_counts() const {
    return alive(control_, "this queue pair").rnr_counts(handle_);
}
std::uint32_t QueuePair::qp_num() const {
    return alive(control_, "this queue pair").qp_num(handle_);
}

bool QueuePair::reset() {
    ControlSide& control = alive(control_, "this queue pair");
    control.live_qps.remove(handle_);
    Undo put_back([&]() noexcept { control.live_qps.add(handle_); });  // runs on success, too, with the new handle
    const auto [renewed, drained] = control.reset(handle_);
    control.events().rename(handle_, renewed);
    handle_ = renewed;
    begun_ = false;
    return drained;
}

void QueuePair::begin_reset(std::chrono::milliseconds timeout) {
    alive(control_, "this queue pair").begin_reset(handle_, timeout);
    begun_ = true;
}

bool QueuePair::renew(const Event& event) {
    ControlSide& control = alive(control_, "this queue pair");
    if (event.type != EventType::reset_done || event.qp != handle_) {
        throw Error(EINVAL, "this event is not that of a reset that was begun on this queue pair");
    }
    begun_ = false;
    if (event.error != 0) {
        throw Error(event.error, event.text);
    }
    control.live_qps.remove(handle_);
    handle_ = event.renewed;
    control.live_qps.add(handle_);
    return event.drained;
}

void QueuePair::begin_close(std::chrono::milliseconds timeout) {
    alive(control_, "this queue pair").begin_close(handle_, timeout);
    begun_ = true;
}

void QueuePair::cancel() {
    alive(control_, "this queue pair").cancel(handle_);
}

bool QueuePair::close() {
    if (control_ == nullptr) {
        return true;
    }
    ControlSide& control = alive(control_, "this queue pair");
    control.live_qps.remove(handle_);
    Undo put_back([&]() noexcept { control.live_qps.add(handle_); });
    const bool drained = control.close_qp(handle_);
    put_back.keep();
    control.events().remove(handle_);
    control_.reset();
    begun_ = false;
    return drained;
}

// ---- SharedReceiveQueue ----

SharedReceiveQueue::~SharedReceiveQueue() {
    try {
        if (ends_here(control_)) {
            close();
        }
    } catch (const std::exception& error) {
        log_warning("a shared receive queue stays until its session is closed: {}", error.what());
    }
}

SharedReceiveQueue::SharedReceiveQueue(std::shared_ptr<ControlSide> control, SrqHandle handle) noexcept
    : control_(std::move(control)), handle_(handle) {}
SharedReceiveQueue::SharedReceiveQueue(SharedReceiveQueue&& other) noexcept {
    *this = std::move(other);
}

SharedReceiveQueue& SharedReceiveQueue::operator=(SharedReceiveQueue&& other) noexcept {
    std::swap(control_, other.control_);
    std::swap(handle_, other.handle_);
    return *this;
}

void SharedReceiveQueue::arm_limit(std::uint32_t limit) {
    alive(control_, "this shared receive queue").arm_limit(handle_, limit);
}
std::uint32_t SharedReceiveQueue::limit() const {
    return alive(control_, "this shared receive queue").limit(handle_);
}

void SharedReceiveQueue::close() {
    if (control_ == nullptr) {
        return;
    }
    alive(control_, "this shared receive queue").close_srq(handle_);
    control_.reset();
}

// ---- ReceivePool ----

ReceivePool::~ReceivePool() {
    try {
        if (ends_here(control_)) {
            close();
        }
    } catch (const std::exception& error) {
        log_warning("a receive pool stays until the runtime ends: {}", error.what());
    }
}

ReceivePool::ReceivePool(std::shared_ptr<ControlSide> control, const PoolInfo& made, const PoolSpec& spec,
                         std::byte* data, std::uint32_t message_max) noexcept
    : control_(std::move(control)),
      handle_(made.handle),
      region_(spec.region),
      data_(data),
      buffers_(spec.buffers),
      buffer_bytes_(message_max),
      stride_(spec.stride),
      ring_(spec.ring),
      counters_(made.counters) {}
ReceivePool::ReceivePool(ReceivePool&& other) noexcept {
    *this = std::move(other);
}

ReceivePool& ReceivePool::operator=(ReceivePool&& other) noexcept {
    std::swap(control_, other.control_);
    std::swap(handle_, other.handle_);
    std::swap(region_, other.region_);
    std::swap(data_, other.data_);
    std::swap(buffers_, other.buffers_);
    std::swap(buffer_bytes_, other.buffer_bytes_);
    std::swap(stride_, other.stride_);
    std::swap(ring_, other.ring_);
    std::swap(counters_, other.counters_);
    return *this;
}

std::vector<HeldBuffer> ReceivePool::held() const {
    return control_ == nullptr ? std::vector<HeldBuffer>{} : alive(control_, "this receive pool").held_buffers(handle_);
}

void ReceivePool::close() {
    if (control_ == nullptr) {
        return;
    }
    alive(control_, "this receive pool").close_pool(handle_, region_);
    control_.reset();
    handle_ = {};
    data_ = nullptr;
    counters_ = nullptr;
    buffers_ = buffer_bytes_ = stride_ = 0;
}

// ---- ConnectionRequest ----

ConnectionRequest::~ConnectionRequest() {
    if (ends_here(control_)) {
        reject();
    }
}

ConnectionRequest::ConnectionRequest(std::shared_ptr<ControlSide> control, std::uint32_t device,
                                     IncomingConnection&& incoming) noexcept
    : control_(std::move(control)),
      connection_(incoming.id),
      device_(device),
      peer_(std::move(incoming.peer)),
      private_data_(std::move(incoming.private_data)),
      flow_(incoming.flow),
      max_dest_rd_atomic_(incoming.max_dest_rd_atomic) {}
ConnectionRequest::ConnectionRequest(ConnectionRequest&& other) noexcept {
    *this = std::move(other);
}

ConnectionRequest& ConnectionRequest::operator=(ConnectionRequest&& other) noexcept {
    std::swap(control_, other.control_);
    std::swap(connection_, other.connection_);
    std::swap(device_, other.device_);
    std::swap(peer_, other.peer_);
    std::swap(private_data_, other.private_data_);
    std::swap(flow_, other.flow_);
    std::swap(max_dest_rd_atomic_, other.max_dest_rd_atomic_);
    return *this;
}

void ConnectionRequest::accept(QueuePair& qp, const ConnectOptions& options) {
    alive(control_, "this connection request").accept(device_, connection_, qp.handle(), flow_, options);
    control_.reset();
}

void ConnectionRequest::begin_accept(QueuePair& qp, const ConnectOptions& options) {
    alive(control_, "this connection request").begin_accept(device_, connection_, qp.handle(), flow_, options);
    control_.reset();
    qp.note_begun();
}

void ConnectionRequest::reject(const std::vector<std::byte>& private_data) {
    alive(control_, "this connection request").reject(device_, connection_, private_data);
    control_.reset();
}

void ConnectionRequest::reject_because(std::string_view reason) {
    const auto bytes = std::as_bytes(std::span(reason.substr(0, kRejectPrivateDataMax)));
    reject(std::vector<std::byte>(bytes.begin(), bytes.end()));
}

// ---- Listener ----

Listener::~Listener() {
    if (ends_here(control_)) {
        control_->events().remove(handle());
        control_->stop_listening(device_, id_);
    }
}

Listener::Listener(std::shared_ptr<ControlSide> control, OpenedListener&& opened) noexcept
    : control_(std::move(control)), id_(opened.id), device_(opened.device), address_(std::move(opened.address)) {}
Listener::Listener(Listener&& other) noexcept {
    *this = std::move(other);
}

Listener& Listener::operator=(Listener&& other) noexcept {
    std::swap(control_, other.control_);
    std::swap(id_, other.id_);
    std::swap(device_, other.device_);
    std::swap(address_, other.address_);
    return *this;
}

std::optional<ConnectionRequest> Listener::next_request(std::chrono::milliseconds timeout) {
    std::optional<IncomingConnection> incoming = alive(control_, "this listener").next_request(device_, id_, timeout);
    if (!incoming) {
        return std::nullopt;
    }
    return ConnectionRequest(control_, device_, std::move(*incoming));
}

// ---- ProtectionDomain ----

ProtectionDomain::ProtectionDomain(std::shared_ptr<ControlSide> control, std::uint32_t id) noexcept
    : control_(std::move(control)), id_(id) {}

ProtectionDomain::~ProtectionDomain() {
    if (ends_here(control_)) {
        control_->release_pd(id_);
    }
}

ProtectionDomain& ProtectionDomain::operator=(ProtectionDomain&& other) noexcept {
    std::swap(control_, other.control_);
    std::swap(id_, other.id_);
    return *this;
}

// ---- MemoryRegion ----

MemoryRegion::~MemoryRegion() {
    try {
        if (ends_here(control_)) {
            deregister();
        }
    } catch (const std::exception& error) {
        log_warning("a memory region stays registered until the runtime stops: {}", error.what());
    }
}

MemoryRegion::MemoryRegion(std::shared_ptr<ControlSide> control, const RegionInfo& info) noexcept
    : control_(std::move(control)),
      id_(info.id),
      data_(info.data),
      size_(info.size),
      iova_(info.iova),
      lkey_(info.lkey),
      rkey_(info.rkey),
      handle_(info.handle) {}
MemoryRegion::MemoryRegion(MemoryRegion&& other) noexcept {
    *this = std::move(other);
}

MemoryRegion& MemoryRegion::operator=(MemoryRegion&& other) noexcept {
    std::swap(control_, other.control_);
    std::swap(id_, other.id_);
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    std::swap(iova_, other.iova_);
    std::swap(handle_, other.handle_);
    std::swap(lkey_, other.lkey_);
    std::swap(rkey_, other.rkey_);
    return *this;
}

void MemoryRegion::deregister() {
    if (control_ == nullptr) {
        return;
    }
    alive(control_, "this memory region").deregister(id_);
    control_.reset();
    data_ = nullptr;
    size_ = 0;
    iova_ = 0;
    lkey_ = rkey_ = 0;
    handle_ = {};
}

// ---- MemoryWindow ----

MemoryWindow::~MemoryWindow() {
    try {
        if (ends_here(control_)) {
            deallocate();
        }
    } catch (const std::exception& error) {
        log_warning("a memory window stays until the runtime stops: {}", error.what());
    }
}

MemoryWindow::MemoryWindow(std::shared_ptr<ControlSide> control, MwHandle handle, WindowType type) noexcept
    : control_(std::move(control)), handle_(handle), type_(type) {}
MemoryWindow::MemoryWindow(MemoryWindow&& other) noexcept {
    *this = std::move(other);
}

MemoryWindow& MemoryWindow::operator=(MemoryWindow&& other) noexcept {
    std::swap(control_, other.control_);
    std::swap(handle_, other.handle_);
    std::swap(type_, other.type_);
    return *this;
}

std::uint32_t MemoryWindow::rkey() const {
    return alive(control_, "this memory window").window_rkey(handle_);
}

void MemoryWindow::deallocate() {
    if (control_ == nullptr) {
        return;
    }
    alive(control_, "this memory window").deallocate(handle_);
    control_.reset();
    handle_ = {};
}

// ---- AddressHandle ----

AddressHandle::~AddressHandle() {
    try {
        if (ends_here(control_)) {
            destroy();
        }
    } catch (const std::exception& error) {
        log_warning("an address handle stays until the runtime stops: {}", error.what());
    }
}

AddressHandle::AddressHandle(std::shared_ptr<ControlSide> control, AhHandle handle) noexcept
    : control_(std::move(control)), handle_(handle) {}
AddressHandle::AddressHandle(AddressHandle&& other) noexcept {
    *this = std::move(other);
}

AddressHandle& AddressHandle::operator=(AddressHandle&& other) noexcept {
    std::swap(control_, other.control_);
    std::swap(handle_, other.handle_);
    return *this;
}

void AddressHandle::destroy() {
    if (control_ == nullptr) {
        return;
    }
    alive(control_, "this address handle").destroy_ah(handle_);
    control_.reset();
}

}  // namespace pollcore
