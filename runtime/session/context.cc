// Turns options into calls of the control side, and the results of these calls into objects.
#include "pollcore/context.hpp"

#include <bit>
#include <string>
#include <utility>

#include "base/undo.hpp"
#include "peer/record.hpp"
#include "session/control_side.hpp"
#include "session/send_pool_core.hpp"
#include "session/session_core.hpp"

namespace pollcore {
namespace {

PdId id_of(const ProtectionDomain* pd) noexcept {
    return pd == nullptr ? 0 : pd->id();
}

std::uint32_t id_of(const Session* session, const char* what) {
    if (session == nullptr || !session->valid()) {
        throw Error(EINVAL, std::string(what) + " needs an open session");
    }
    return session->id();
}

template <class Object>
auto handle_of(const Object* object) noexcept -> decltype(object->handle()) {
    return object == nullptr ? decltype(object->handle()){} : object->handle();
}

// Refuses an object that was given but is not valid. Its handle would otherwise mean that no object was given.
template <class Object>
void require_valid(const Object* object, const char* what) {
    if (object != nullptr && !object->valid()) {
        throw Error(EINVAL, std::string(what) + " is not open: closed, moved from or never made");
    }
}

void require_bytes(std::size_t bytes) {
    if (bytes == 0) {
        throw Error(EINVAL, "a memory region of 0 bytes: it has at least one");
    }
}

void require_buffers(std::uint32_t buffers, std::uint32_t buffer_bytes, const char* of_what) {
    if (buffers < 1 || buffers > kPoolBuffersMax || buffer_bytes < 1 || buffer_bytes > kPoolBufferBytesMax) {
        throw Error(EINVAL, "buffers = " + std::to_string(buffers) +
                                ", buffer_bytes = " + std::to_string(buffer_bytes) + " of " + of_what +
                                ": accepted is 1 to " + std::to_string(kPoolBuffersMax) + " buffers of 1 to " +
                                std::to_string(kPoolBufferBytesMax) + " bytes");
    }
}

QpSpec spec_of(const QueuePairOptions& options) {
    if (options.shares.empty()) {
        throw Error(EINVAL, "a queue pair needs at least one session that posts to it");
    }
    if (options.shares.size() > kQpSharesMax) {
        throw Error(EINVAL, std::to_string(options.shares.size()) + " shares of a queue pair: accepted is up to " +
                                std::to_string(kQpSharesMax));
    }
    require_valid(options.srq, "the shared receive queue of a queue pair");
    require_valid(options.pool, "the receive pool of a queue pair");
    require_valid(options.rendezvous_pool, "the rendezvous pool of a queue pair");
    require_name(options.name);
    QpSpec spec{.device = NameText(options.device),
                .pd = id_of(options.pd),
                .share_count = static_cast<std::uint32_t>(options.shares.size()),
                .shares = {},
                .qkey = options.qkey,
                .recv_depth = options.recv_depth,
                .pool_share = options.pool_share,
                .rendezvous_share = options.rendezvous_share,
                .sges_max = options.sges_max,
                .inline_max = options.inline_max,
                .srq = handle_of(options.srq),
                .pool = handle_of(options.pool),
                .rendezvous_pool = handle_of(options.rendezvous_pool),
                .type = options.type,
                .flow = options.flow,
                .remote_access = options.remote_access,
                .separate_cqs = options.separate_cqs,
                .coalesce_signals = options.coalesce_signals,
                .by_hand = options.by_hand,
                .name = NameText(options.name)};
    for (std::size_t i = 0; i < options.shares.size(); ++i) {
        spec.shares[i] = {id_of(options.shares[i].session, "a queue pair's share"), options.shares[i].send_depth};
    }
    return spec;
}

/// Makes a pool in `memory`. From then on the pool owns the region. If the pool cannot be made, the region ends here.
ReceivePool pool_in(const std::shared_ptr<ControlSide>& control, MemoryRegion memory, PoolSpec spec,
                    std::uint32_t message_max) {
    spec.region = memory.id();
    const PoolInfo made = control->create_pool(spec);
    std::byte* const data = memory.data() + spec.first_byte;
    memory.give_away();
    return {control, made, spec, data, message_max};
}

}  // namespace

Context::Context(std::shared_ptr<ControlSide> control) noexcept : control_(std::move(control)) {}

ControlSide& Context::control() const {
    if (control_ == nullptr) {
        throw Error(EINVAL, "this runtime names nothing: default-constructed or moved from");
    }
    require_own_process(*control_);
    return *control_;
}

Session Context::open_session(const SessionOptions& options) {
    OpenedSession opened = control().open_session(options);
    Undo close([&]() noexcept {
        control_->close_session(opened.id);
        control_->release_session(opened.id);
    });
    auto core = std::make_unique<SessionCore>(control_, opened.block, opened.layout,
                                              SessionCore::Options{.id = opened.id,
                                                                   .name = options.name,
                                                                   .worker = opened.worker,
                                                                   .worker_name = std::move(opened.worker_name),
                                                                   .waking = opened.waking,
                                                                   .log = std::move(opened.log),
                                                                   .check_thread = options.check_thread,
                                                                   .flush_in_error = options.flush_in_error});
    close.keep();
    return Session(std::move(core));
}

QueuePair Context::create_queue_pair(const QueuePairOptions& options) {
    // Both need memory, so they come before the queue pair is made, which otherwise would be lost (D29).
    control().events().prepare();
    std::string name = options.name;
    QueuePair qp(control_, control().create_qp(spec_of(options)), std::move(name), options.by_hand);
    control_->live_qps.add(qp.handle());
    control_->events().add(qp.handle());
    return qp;
}

SharedReceiveQueue Context::create_shared_receive_queue(const SharedReceiveQueueOptions& options) {
    require_valid(options.pool, "the receive pool of a shared receive queue");
    return {control_, control().create_srq({.device = NameText(options.device),
                                            .pd = id_of(options.pd),
                                            .session = id_of(options.session, "a shared receive queue"),
                                            .depth = options.depth,
                                            .sges_max = options.sges_max,
                                            .pool_share = options.pool_share,
                                            .credit_connections = options.credit_connections,
                                            .pool = handle_of(options.pool)})};
}

// ---- Pools ----

ReceivePool Context::create_receive_pool(const ReceivePoolOptions& options) {
    const std::uint32_t session = id_of(options.session, "a receive pool");
    require_buffers(options.buffers, options.buffer_bytes, "a receive pool");
    const std::uint32_t least = pool_stride(options.first_byte, options.buffer_bytes);
    PoolSpec spec{.device = NameText(options.device),
                  .pd = id_of(options.pd),
                  .session = session,
                  .buffers = options.buffers,
                  .buffer_bytes = options.buffer_bytes,
                  .first_byte = options.first_byte,
                  .stride = options.stride == 0 ? least : options.stride,
                  .ring = false};
    if (options.first_byte > kPoolFirstByteMax || spec.stride < least || spec.stride % kCacheLine != 0 ||
        spec.stride > kPoolStrideMax) {
        throw Error(EINVAL, "first_byte = " + std::to_string(options.first_byte) + ", stride = " +
                                std::to_string(options.stride) + " of a receive pool: accepted is a first_byte up to " +
                                std::to_string(kPoolFirstByteMax) + " and a stride that is a multiple of " +
                                std::to_string(kCacheLine) + " from " + std::to_string(least) + " to " +
                                std::to_string(kPoolStrideMax));
    }
    // Without first_byte and stride, the buffers need not begin at a page.
    const bool by_pages = options.first_byte != 0 || options.stride != 0;
    MemoryRegion memory =
        allocate(spec.bytes() + (by_pages ? kPoolPage - kCacheLine : 0), Access::local(), options.device, options.pd);
    if (by_pages) {
        const auto beyond = static_cast<std::uint32_t>(reinterpret_cast<std::uintptr_t>(memory.data()) % kPoolPage);
        spec.first_byte += (kPoolPage - beyond) % kPoolPage;
    }
    return pool_in(control_, std::move(memory), spec, options.buffer_bytes);
}

ReceivePool Context::create_write_ring(const WriteRingOptions& options) {
    const std::uint32_t session = id_of(options.session, "a write ring");
    const std::uint32_t lines = options.bytes / kCacheLine;
    if (!std::has_single_bit(options.bytes) || lines < kRingLinesMin || lines > kRingLinesMax || options.messages < 1 ||
        options.messages > kPoolBuffersMax) {
        throw Error(EINVAL, "bytes = " + std::to_string(options.bytes) +
                                ", messages = " + std::to_string(options.messages) +
                                " of a write ring: accepted is a power of two from " +
                                std::to_string(kRingLinesMin * kCacheLine) + " to " +
                                std::to_string(std::uint64_t{kRingLinesMax} * kCacheLine) + ", and 1 to " +
                                std::to_string(kPoolBuffersMax) + " messages");
    }
    return pool_in(
        control_,
        allocate(options.bytes, Access{.local_write = true, .remote_write = true}, options.device, options.pd),
        {.device = NameText(options.device),
         .pd = id_of(options.pd),
         .session = session,
         .buffers = options.messages,
         .buffer_bytes = options.bytes,
         .ring = true},
        ring_message_max(lines));
}

SendPool Context::create_send_pool(const SendPoolOptions& options) {
    (void)id_of(options.session, "a send pool");
    require_buffers(options.buffers, options.buffer_bytes, "a send pool");
    if (!options.session->core()->is_of(control_.get())) {
        throw Error(EINVAL, "the session of a send pool is of another runtime or attachment");
    }
    const std::uint32_t stride = pool_stride(0, options.buffer_bytes);
    MemoryRegion memory = allocate(std::size_t{options.buffers} * stride, Access::local(), options.device, options.pd);
    SessionCore& session = *options.session->core();
    auto core =
        std::make_shared<SendPoolCore>(session, std::move(memory), options.buffers, options.buffer_bytes, stride);
    session.add_send_pool(core);
    return SendPool(std::move(core));
}

// ---- Memory ----

ProtectionDomain Context::create_protection_domain(const std::string& device) {
    return {control_, control().create_pd(device)};
}

MemoryRegion Context::allocate(std::size_t bytes, Access access, const std::string& device,
                               const ProtectionDomain* pd) {
    require_bytes(bytes);
    return {control_, control().allocate(bytes, access, device, id_of(pd))};
}
MemoryRegion Context::register_memory(void* data, std::size_t bytes, Access access, const std::string& device,
                                      const ProtectionDomain* pd) {
    return register_memory_at(reinterpret_cast<std::uintptr_t>(data), data, bytes, access, device, pd);
}
MemoryRegion Context::register_memory_at(std::uint64_t iova, void* data, std::size_t bytes, Access access,
                                         const std::string& device, const ProtectionDomain* pd) {
    require_bytes(bytes);
    return {control_, control().register_memory(data, bytes, iova, access, device, id_of(pd))};
}

MemoryRegion Context::register_dmabuf(const DmabufRange& range, std::uint64_t iova, Access access,
                                      const std::string& device, const ProtectionDomain* pd) {
    require_bytes(range.bytes);
    return {control_, control().register_dmabuf(range, iova, access, device, id_of(pd))};
}

MemoryWindow Context::create_memory_window(const Session& session, WindowType type, const std::string& device,
                                           const ProtectionDomain* pd) {
    return {control_, control().create_window(id_of(&session, "a memory window"), type, device, id_of(pd)), type};
}

// ---- Address handles, listeners, events and reports ----

AddressHandle Context::create_address_handle(const QpInfo& peer, const PathAttributes& path, const std::string& device,
                                             const ProtectionDomain* pd) {
    return {control_, control().create_ah(peer, path, device, id_of(pd))};
}

AddressHandle Context::create_address_handle(const AddressAttributes& address, const std::string& device,
                                             const ProtectionDomain* pd) {
    return {control_, control().create_ah(address, device, id_of(pd))};
}

AddressHandle Context::create_address_handle(const WideCompletion& received, std::span<const std::byte> buffer,
                                             const std::string& device, const ProtectionDomain* pd) {
    if (!received.ok() || (received.flags & kDatagram) == 0 || buffer.size() < kGrhBytes) {
        throw Error(EINVAL,
                    "the way back is asked of a completion that is no datagram's, or without its first 40 bytes");
    }
    return {control_, control().create_ah(received, buffer.first<kGrhBytes>(), device, id_of(pd))};
}

Listener Context::listen(const std::string& address, const std::string& device, PrivateDataForm form) {
    control().events().prepare();
    Listener listener(control_, control().listen(address, device, form));
    control_->events().add(listener.handle());
    return listener;
}

std::optional<Event> Context::next_event(std::chrono::milliseconds timeout) {
    return control().events().next(timeout);
}
std::optional<Event> Context::poll_event() {
    return next_event(std::chrono::milliseconds(0));
}
int Context::event_fd() const {
    return control().events().fd();
}

RuntimeReport Context::report() const {
    return control().report();
}
std::size_t Context::worker_count() const noexcept {
    return control_ == nullptr ? 0 : control_->worker_count();
}
const WorkerCounters& Context::worker_counters(std::size_t worker) const {
    return control().worker_counters(worker);
}
statistics::Snapshot Context::statistics() const {
    return control().statistics();
}
const ControlCounters& Context::control_counters() const {
    return control().control_counters();
}
std::optional<RnrCounts> Context::rnr_counts(const std::string& device) const {
    return control().rnr_counts(device);
}

DeviceAttributes Context::query_device(const std::string& device) const {
    return control().query_device(device);
}
PortAttributes Context::query_port(const std::string& device) const {
    return control().query_port(device);
}
std::vector<GidAttributes> Context::gids(const std::string& device) const {
    return control().gids(device);
}
std::uint16_t Context::query_pkey(std::uint32_t index, const std::string& device) const {
    return control().query_pkey(index, device);
}

}  // namespace pollcore
