// The functions of AttachedState by which an attached process asks the daemon.
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <bit>
#include <utility>

#include "attach/ask.hpp"
#include "attach/attached_state.hpp"
#include "base/event_fd.hpp"
#include "pollcore/attach.hpp"
#include "pollcore/statistics.hpp"
#include "session/in_flight_log.hpp"

namespace pollcore {
namespace {

wire::PrivateData packed(const std::vector<std::byte>& bytes, std::size_t most) {
    if (bytes.size() > most) {
        throw Error(EMSGSIZE,
                    std::to_string(bytes.size()) + " bytes of private data; accepted is up to " + std::to_string(most));
    }
    wire::PrivateData data;
    data.size = static_cast<std::uint32_t>(bytes.size());
    std::copy(bytes.begin(), bytes.end(), data.bytes.begin());
    return data;
}

std::uint32_t milliseconds(std::chrono::milliseconds timeout) noexcept {
    return static_cast<std::uint32_t>(std::clamp<std::chrono::milliseconds::rep>(timeout.count(), 0, UINT32_MAX));
}

wire::Connect connect_request(QpHandle handle, const std::string& address, const ConnectOptions& options) {
    return {.handle = handle,
            .timeout_ms = milliseconds(options.timeout),
            .raw = options.form == PrivateDataForm::raw,
            .address = wire::AddressText(address),
            .path = options.path,
            .private_data = packed(options.private_data, kRawRequestPrivateDataMax)};
}

wire::Accept accept_request(std::uint32_t device, std::uint64_t request, QpHandle handle, const FlowBlock& flow,
                            const ConnectOptions& options) {
    return {.request = request,
            .device = device,
            .handle = handle,
            .flow = flow,
            .timeout_ms = milliseconds(options.timeout),
            .path = options.path,
            .private_data = packed(options.private_data, kRawReplyPrivateDataMax)};
}

// wire::Incoming::id when no connection request came within the time.
constexpr std::size_t kNone = 0;

}  // namespace

// ---- Sessions ----

OpenedSession AttachedState::open_session(const SessionOptions& options) {
    SessionLayout layout{
        attached_.qps_max,   options.submission_slots, options.completion_slots, options.wide_completions, false,
        options.pool_buffers};
    require_valid(options);
    MappedSession session;
    session.memory = make_shared_memory(layout.bytes(), "pollcore rings");
    const int fd = session.memory.fd.get();
    std::vector<UniqueFd> descriptors;
    const wire::SessionOpened opened = ask(wire::OpenSession{.worker = NameText(options.worker),
                                                             .bytes = layout.bytes(),
                                                             .submission_slots = options.submission_slots,
                                                             .completion_slots = options.completion_slots,
                                                             .pool_buffers = options.pool_buffers,
                                                             .wide = options.wide_completions,
                                                             .events = options.events,
                                                             .device_time = options.device_time,
                                                             .name = NameText(options.name)},
                                           {&fd, 1}, &descriptors);
    layout.worker_sleeps = opened.worker_sleeps != 0;
    if (!is_formatted(session.memory.mapping.data(), layout)) {
        tell(wire::CloseSession{.id = opened.id});
        throw Error(EPROTO, "the daemon has another session layout than this library: both must have one version");
    }
    SessionWaking waking{.worker_fd = -1, .application_fd = -1, .spin = options.wait_spin, .application_socket = true};
    if (descriptors.size() != std::size_t{layout.worker_sleeps} + std::size_t{options.events}) {
        tell(wire::CloseSession{.id = opened.id});
        throw Error(EPROTO, "the daemon does not say how to wake each other: both must be of one version");
    }
    if (options.events) {
        session.bell = std::move(descriptors.back());
        waking.application_fd = session.bell.get();
    }
    if (layout.worker_sleeps) {
        session.worker_bell = std::move(descriptors.front());
        waking.worker_fd = session.worker_bell.get();
    }
    session.log = std::make_shared<InFlightLog>(attached_.qps_max, kSrqsMax);
    session.memory.fd.reset();
    OpenedSession made{.id = opened.id,
                       .worker = opened.worker,
                       .worker_name = opened.worker_name.string(),
                       .block = session.memory.mapping.data(),
                       .layout = layout,
                       .waking = waking,
                       .log = session.log};
    const std::lock_guard lock(mutex_);
    if (buried_) {
        throw Error(ECONNRESET, "the daemon is gone");
    }
    sessions_.emplace(opened.id, std::move(session));
    return made;
}

void AttachedState::close_session(std::uint32_t session_id) noexcept {
    tell(wire::CloseSession{.id = session_id});
}

void AttachedState::release_session(std::uint32_t session_id) noexcept {
    const std::lock_guard lock(mutex_);
    sessions_.erase(session_id);
}

// ---- Queue pairs ----

QpHandle AttachedState::create_qp(const QpSpec& spec) {
    const QpHandle handle = ask(wire::CreateQp{.spec = spec}).handle;
    const std::lock_guard lock(mutex_);
    for (std::uint32_t i = 0; i < spec.share_count; ++i) {
        if (const auto session = sessions_.find(spec.shares[i].session); session != sessions_.end()) {
            session->second.log->prepare(handle.index, spec.shares[i].send_depth, i == 0 ? spec.recv_depth : 0);
        }
    }
    return handle;
}

bool AttachedState::close_qp(QpHandle handle) {
    try {
        return ask(wire::CloseQp{.handle = handle}).drained != 0;
    } catch (const Error&) {
        if (lost()) {
            return true;  // the queue pair has ended with the daemon
        }
        throw;
    }
}

std::pair<QpHandle, bool> AttachedState::reset(QpHandle handle) {
    const wire::QpNamed renewed = ask(wire::ResetQp{.handle = handle});
    return {renewed.handle, renewed.drained != 0};
}

QpInfo AttachedState::info(QpHandle handle) {
    return ask(wire::AskQpInfo{.handle = handle});
}

void AttachedState::connect(QpHandle handle, const QpInfo& peer, const PathAttributes& path) {
    (void)ask(wire::ConnectTo{.handle = handle, .peer = peer, .path = path});
}

void AttachedState::modify_qp(QpHandle handle, const QpAttributes& attributes) {
    (void)ask(wire::ModifyQp{.handle = handle, .attributes = pack(attributes)});
}

QpQuery AttachedState::query_qp(QpHandle handle) {
    const wire::QpQueried found = ask(wire::AskQp{.handle = handle});
    return {.attributes = unpack(found.attributes), .cap = found.cap};
}

std::vector<std::byte> AttachedState::connect(QpHandle handle, const std::string& address,
                                              const ConnectOptions& options) {
    return wire::bytes_of(ask(connect_request(handle, address, options)).answered);
}

void AttachedState::begin_connect(QpHandle handle, const std::string& address, const ConnectOptions& options) {
    (void)ask(wire::BeginConnect{.what = connect_request(handle, address, options)});
}

void AttachedState::begin_accept(std::uint32_t device, std::uint64_t request, QpHandle handle, const FlowBlock& flow,
                                 const ConnectOptions& options) {
    (void)ask(wire::BeginAccept{.what = accept_request(device, request, handle, flow, options)});
}

void AttachedState::begin_reset(QpHandle handle, std::chrono::milliseconds timeout) {
    (void)ask(wire::BeginEnding{.handle = handle, .reset = 1, .timeout_of_end_ms = milliseconds(timeout)});
}

void AttachedState::begin_close(QpHandle handle, std::chrono::milliseconds timeout) {
    (void)ask(wire::BeginEnding{.handle = handle, .reset = 0, .timeout_of_end_ms = milliseconds(timeout)});
}

void AttachedState::cancel(QpHandle handle) {
    (void)ask(wire::Cancel{.handle = handle});
}

bool AttachedState::abandon_qp(QpHandle handle) {
    try {
        return ask(wire::Cancel{.handle = handle, .abandon = 1}).abandoned != 0;
    } catch (const Error&) {
        if (lost()) {
            return true;  // the queue pair has ended with the daemon
        }
        throw;
    }
}

void AttachedState::disconnect(QpHandle handle) {
    (void)ask(wire::Disconnect{.handle = handle});
}
bool AttachedState::disconnected(QpHandle handle) {
    return ask(wire::AskQpStatus{.handle = handle}).disconnected != 0;
}
std::uint32_t AttachedState::qp_num(QpHandle handle) {
    return ask(wire::AskQpStatus{.handle = handle}).qp_num;
}

std::optional<RnrCounts> AttachedState::rnr_counts(QpHandle handle) {
    const wire::Counted counted = ask(wire::AskRnrCounts{.handle = handle});
    return counted.known != 0 ? std::optional(counted.counts) : std::nullopt;
}

std::optional<RnrCounts> AttachedState::rnr_counts(const std::string& device) {
    const wire::Counted counted = ask(wire::AskRnrCounts{.device = NameText(device)});
    return counted.known != 0 ? std::optional(counted.counts) : std::nullopt;
}

// ---- Listeners ----

OpenedListener AttachedState::listen(const std::string& address, const std::string& device, PrivateDataForm form) {
    const wire::Listening listening = ask(wire::Listen{
        .address = wire::AddressText(address), .device = NameText(device), .raw = form == PrivateDataForm::raw});
    return {.id = listening.id, .device = listening.device, .address = listening.address.string()};
}

void AttachedState::stop_listening(std::uint32_t device, std::uint64_t listener) noexcept {
    tell(wire::StopListening{.listener = listener, .device = device});
}

std::optional<IncomingConnection> AttachedState::next_request(std::uint32_t device, std::uint64_t listener,
                                                              std::chrono::milliseconds timeout) {
    const wire::Incoming incoming =
        ask(wire::NextRequest{.listener = listener, .device = device, .timeout_ms = milliseconds(timeout)});
    if (incoming.id == kNone) {
        return std::nullopt;
    }
    return IncomingConnection{.id = incoming.id,
                              .peer = incoming.peer.string(),
                              .private_data = wire::bytes_of(incoming.private_data),
                              .flow = incoming.flow,
                              .max_dest_rd_atomic = static_cast<std::uint8_t>(incoming.max_dest_rd_atomic)};
}

void AttachedState::accept(std::uint32_t device, std::uint64_t request, QpHandle handle, const FlowBlock& flow,
                           const ConnectOptions& options) {
    (void)ask(accept_request(device, request, handle, flow, options));
}

void AttachedState::reject(std::uint32_t device, std::uint64_t request,
                           const std::vector<std::byte>& private_data) noexcept {
    try {
        tell(wire::Reject{
            .request = request, .device = device, .private_data = packed(private_data, kRawRejectPrivateDataMax)});
    } catch (const Error& error) {
        log_error("a rejection goes out without its private data: {}", error.what());
        tell(wire::Reject{.request = request, .device = device});
    }
}

// ---- Memory ----

PdId AttachedState::create_pd(const std::string& device) {
    const wire::PdNamed made = ask(wire::CreatePd{.device = NameText(device)});
    try {
        own_memory_.add_domain(full_name(device), made.pd, made.verbs_handle);
    } catch (...) {
        tell(wire::ReleasePd{.pd = made.pd});
        throw;
    }
    return made.pd;
}
void AttachedState::release_pd(PdId pd) noexcept {
    own_memory_.remove_domain(pd);
    tell(wire::ReleasePd{.pd = pd});
}

RegionInfo AttachedState::add_region(const wire::RegisterMemory& request, MappedRegion region, const int* fd) {
    const wire::Registered made = ask(request, fd != nullptr ? std::span(fd, 1) : std::span<const int>{});
    const RegionInfo info{.id = made.id,
                          .data = region.data,
                          .size = request.bytes,
                          .iova = request.iova,
                          .lkey = made.lkey,
                          .rkey = made.rkey,
                          .handle = made.handle};
    region.size = request.bytes;
    const std::lock_guard lock(mutex_);
    regions_.emplace(made.id, std::move(region));
    return info;
}

// Refuses before any page is touched.
void AttachedState::require_within_quota(std::size_t bytes) const {
    if (bytes > attached_.registered_max) {
        throw Error(EDQUOT, std::to_string(bytes) + " bytes of memory: an attached process may have " +
                                std::to_string(attached_.registered_max) + " registered (attach.registered_max)");
    }
}

RegionInfo AttachedState::allocate(std::size_t bytes, Access access, const std::string& device, PdId pd) {
    require_within_quota(bytes);
    SharedMemory memory = make_shared_memory(bytes, "pollcore memory");
    auto* data = static_cast<std::byte*>(memory.mapping.data());
    const int fd = memory.fd.get();
    return add_region({.bytes = bytes,
                       .iova = reinterpret_cast<std::uintptr_t>(data),
                       .device = NameText(device),
                       .pd = pd,
                       .access = access},
                      {.memory = std::make_shared<HostMemory>(std::move(memory.mapping)), .moved = {}, .data = data},
                      &fd);
}

RegionInfo AttachedState::register_memory(void* data, std::size_t bytes, std::uint64_t iova, Access access,
                                          const std::string& device, PdId pd) {
    auto* from = static_cast<std::byte*>(data);
    wire::RegisterMemory request{.bytes = bytes, .iova = iova, .device = NameText(device), .pd = pd, .access = access};
    std::shared_ptr<HostMemory> memory;
    {
        const std::lock_guard lock(mutex_);
        for (const auto& [id, region] : regions_) {
            const auto begin = reinterpret_cast<std::uintptr_t>(region.data);
            const auto at = reinterpret_cast<std::uintptr_t>(from);
            if (region.memory != nullptr && at >= begin && at - begin <= region.size &&
                bytes <= region.size - (at - begin)) {
                memory = region.memory;
                request.parent = id;
                request.offset = at - reinterpret_cast<std::uintptr_t>(memory->data());
                break;
            }
        }
    }
    if (memory != nullptr) {
        return add_region(request, {.memory = std::move(memory), .moved = {}, .data = from}, nullptr);
    }
    if (own_memory_.has(full_name(device))) {
        return own_memory_.register_memory(full_name(device), pd, data, bytes, iova, access);
    }
    if (!reader_pause_) {
        throw Error(EOPNOTSUPP,
                    "registering memory that was not allocated from this attachment: the daemon cannot map it. "
                    "Context::allocate gives memory that it can, and AttachOptions::own_memory permits other memory");
    }
    return register_moved_memory(request, from);
}

RegionInfo AttachedState::register_dmabuf(const DmabufRange& range, std::uint64_t iova, Access access,
                                          const std::string& device, PdId pd) {
    if (!own_memory_.has(full_name(device))) {
        throw Error(EOPNOTSUPP,
                    "an attached process registers a dma-buf only at a verbs device of the kernel, with "
                    "AttachOptions::own_memory");
    }
    return own_memory_.register_dmabuf(full_name(device), pd, range, iova, access);
}

RegionInfo AttachedState::register_moved_memory(wire::RegisterMemory request, std::byte* data) {
    const Pages pages = pages_of(data, request.bytes);
    const std::lock_guard moving(moving_);
    std::vector<std::shared_ptr<MovedMemory>> all;
    {
        const std::lock_guard lock(mutex_);
        for (const auto& [id, region] : regions_) {
            if (region.moved != nullptr) {
                all.push_back(region.moved);
            }
        }
    }
    if (std::shared_ptr<MovedMemory> moved = MovedMemory::find(pages, all)) {
        request.offset = static_cast<std::uint64_t>(data - moved->data());
        {
            const std::lock_guard lock(mutex_);
            request.parent = std::find_if(regions_.begin(), regions_.end(), [&](const auto& region) {
                                 return region.second.moved == moved;
                             })->first;
        }
        return add_region(request, {.memory = {}, .moved = std::move(moved), .data = data}, nullptr);
    }
    require_within_quota(pages.size);
    const auto moved = std::make_shared<MovedMemory>(pages, *reader_pause_);
    request.offset = static_cast<std::uint64_t>(data - pages.begin);
    const int fd = moved->fd();
    // The daemon is asked first. If it refuses, nothing has moved.
    RegionInfo info = add_region(request, {.memory = {}, .moved = moved, .data = data}, &fd);
    try {
        moved->move();
    } catch (...) {
        tell(wire::Deregister{.region = info.id});
        const std::lock_guard lock(mutex_);
        regions_.erase(info.id);
        throw;
    }
    return info;
}

bool AttachedState::is_moved_memory(std::uint64_t region) {
    const std::lock_guard lock(mutex_);
    const auto found = regions_.find(region);
    return found != regions_.end() && found->second.moved != nullptr;
}

bool AttachedState::is_key_in_use(const OwnMemory::Key& key) {
    try {
        return ask(wire::FindKey{.pd = key.pd, .lkey = key.lkey}).in_use != 0;
    } catch (const Error&) {
        if (lost()) {
            return false;  // the work requests have ended with the daemon
        }
        throw;
    }
}

void AttachedState::deregister(std::uint64_t region) {
    if (const std::optional<OwnMemory::Key> key = own_memory_.key_of(region)) {
        if (is_key_in_use(*key)) {
            throw Error(EBUSY, "work requests in flight name this memory; poll their completions first");
        }
        return own_memory_.deregister(region);
    }
    std::unique_lock moving(moving_, std::defer_lock);
    if (is_moved_memory(region)) {
        moving.lock();
    }
    try {
        (void)ask(wire::Deregister{.region = region});
    } catch (const Error&) {
        if (!lost()) {
            throw;
        }
    }
    decltype(regions_)::node_type ended;  // its memory ends after mutex_ is free, because that may take long
    const std::lock_guard lock(mutex_);
    ended = regions_.extract(region);
}

MwHandle AttachedState::create_window(std::uint32_t session, WindowType type, const std::string& device, PdId pd) {
    return ask(wire::CreateWindow{.device = NameText(device), .session = session, .pd = pd, .type = type}).handle;
}
std::uint32_t AttachedState::window_rkey(MwHandle handle) {
    return ask(wire::AskWindowRkey{.handle = handle}).rkey;
}
void AttachedState::deallocate(MwHandle handle) {
    try {
        (void)ask(wire::Deallocate{.handle = handle});
    } catch (const Error&) {
        if (!lost()) {
            throw;
        }
    }
}

// ---- Datagrams, shared receive queues, pools ----

AhHandle AttachedState::create_ah(const QpInfo& peer, const PathAttributes& path, const std::string& device, PdId pd) {
    return ask(wire::CreateAh{.device = NameText(device), .pd = pd, .peer = peer, .path = path}).handle;
}
AhHandle AttachedState::create_ah(const AddressAttributes& address, const std::string& device, PdId pd) {
    return ask(wire::CreateAhTo{.device = NameText(device), .pd = pd, .to = address}).handle;
}
AhHandle AttachedState::create_ah(const WideCompletion& received, std::span<const std::byte, kGrhBytes> grh,
                                  const std::string& device, PdId pd) {
    wire::CreateAhBack request{.device = NameText(device),
                               .received = std::bit_cast<std::array<std::byte, sizeof(received)>>(received),
                               .grh = {},
                               .pd = pd};
    std::copy(grh.begin(), grh.end(), request.grh.begin());
    return ask(request).handle;
}
void AttachedState::destroy_ah(AhHandle handle) {
    try {
        (void)ask(wire::DestroyAh{.handle = handle});
    } catch (const Error&) {
        if (!lost()) {
            throw;
        }
    }
}

SrqHandle AttachedState::create_srq(const SrqSpec& spec) {
    const SrqHandle handle = ask(wire::CreateSrq{.spec = spec}).handle;
    const std::lock_guard lock(mutex_);
    if (const auto session = sessions_.find(spec.session); session != sessions_.end()) {
        session->second.log->prepare_srq(handle.index, spec.depth);
    }
    return handle;
}
void AttachedState::close_srq(SrqHandle handle) {
    try {
        (void)ask(wire::CloseSrq{.handle = handle});
    } catch (const Error&) {
        if (!lost()) {
            throw;
        }
    }
}
void AttachedState::arm_limit(SrqHandle handle, std::uint32_t limit) {
    (void)ask(wire::ArmLimit{.handle = handle, .limit = limit});
}
std::uint32_t AttachedState::limit(SrqHandle handle) {
    return ask(wire::AskSrqLimit{.handle = handle}).limit;
}

PoolInfo AttachedState::create_pool(const PoolSpec& spec) {
    const wire::PoolNamed made = ask(wire::CreatePool{.spec = spec});
    if (made.counters >= attached_.pool_counters) {
        throw Error(EPROTO, "the daemon counts a receive pool where it publishes nothing");
    }
    return {made.handle, static_cast<const ReceivePoolCounters*>(pool_counters_.data()) + made.counters};
}

void AttachedState::close_pool(PoolHandle handle, std::uint64_t region) {
    try {
        (void)ask(wire::ClosePool{.handle = handle, .region = region});
    } catch (const Error&) {
        if (!lost()) {
            throw;
        }
    }
    const std::lock_guard lock(mutex_);
    regions_.erase(region);
}

std::vector<HeldBuffer> AttachedState::held_buffers(PoolHandle handle) {
    std::vector<HeldBuffer> all;
    for (;;) {
        const wire::Held some =
            ask(wire::AskHeldBuffers{.handle = handle, .from = static_cast<std::uint32_t>(all.size())});
        all.insert(
            all.end(), some.buffers.begin(),
            some.buffers.begin() + static_cast<std::ptrdiff_t>(std::min<std::size_t>(some.count, some.buffers.size())));
        if (some.more == 0 || some.count == 0) {
            return all;
        }
    }
}

// ---- Reports and counters ----

DeviceAttributes AttachedState::query_device(const std::string& device) {
    return ask(wire::AskDeviceAttributes{.device = NameText(device)});
}

PortAttributes AttachedState::query_port(const std::string& device) {
    return ask(wire::AskPort{.device = NameText(device)}).port;
}

std::vector<GidAttributes> AttachedState::gids(const std::string& device) {
    std::vector<GidAttributes> all;
    for (;;) {
        // By index, because entries may come and go between two questions. An entry that stays is returned once.
        const std::uint64_t from = all.empty() ? 0 : std::uint64_t{all.back().gid_index} + 1;
        const wire::Gids some = ask(wire::AskGids{.device = NameText(device), .from = from});
        const auto count = static_cast<std::ptrdiff_t>(std::min<std::size_t>(some.count, some.gids.size()));
        all.insert(all.end(), some.gids.begin(), some.gids.begin() + count);
        if (some.more == 0 || count == 0) {
            return all;
        }
    }
}

std::uint16_t AttachedState::query_pkey(std::uint32_t index, const std::string& device) {
    return static_cast<std::uint16_t>(ask(wire::AskPkey{.device = NameText(device), .index = index}).pkey);
}

RuntimeReport AttachedState::report() {
    RuntimeReport report{.devices = {},
                         .hugepages = attached_.hugepages != 0,
                         .memory = attached_.memory.string(),
                         .eal = attached_.eal.string()};
    for (std::uint32_t i = 0; i < attached_.devices; ++i) {
        const wire::DeviceReported device = ask(wire::AskDevice{.index = i});
        report.devices.push_back({.name = device.name.string(),
                                  .description = device.description.string(),
                                  .verbs_name = device.verbs_name.string(),
                                  .uverbs_name = device.uverbs_name.string(),
                                  .ibv_index = device.ibv_index,
                                  .port_num = static_cast<std::uint8_t>(device.port_num),
                                  .inline_max = device.inline_max,
                                  .qp_depth_max = device.qp_depth_max,
                                  .cqes_max = device.cqes_max,
                                  .sges_max = device.sges_max,
                                  .extended_cqs = device.extended_cqs != 0,
                                  .memory_windows_1 = device.memory_windows_1 != 0,
                                  .memory_windows_2 = device.memory_windows_2 != 0,
                                  .invalidation = device.invalidation != 0,
                                  .completion_timestamp_mask = device.completion_timestamp_mask,
                                  .hca_core_clock_khz = device.hca_core_clock_khz});
    }
    return report;
}

namespace {

template <class Counters, std::size_t N>
void fill(Counters& into, const std::array<std::uint64_t, N>& values) noexcept {
    auto* counters = reinterpret_cast<Counter*>(&into);
    for (std::size_t i = 0; i < N; ++i) {
        counters[i].set(values[i]);
    }
}

}  // namespace

const WorkerCounters& AttachedState::worker_counters(std::size_t worker) {
    const wire::WorkerCounted counted = ask(wire::AskWorkerCounters{.worker = worker});
    WorkerCounters& into = *worker_counters_.at(worker);
    fill(into, counted.values);
    return into;
}

statistics::Snapshot AttachedState::statistics() {
    std::vector<UniqueFd> descriptors;
    (void)ask(wire::CopyStatistics{}, {}, &descriptors);
    if (descriptors.size() != 1) {
        throw Error(EPROTO, "the daemon does not give the descriptor of the statistics");
    }
    statistics::Snapshot snapshot = statistics::read_statistics(descriptors.front().get());
    snapshot.alive = true;  // the daemon has just answered; its pid may mean another process here (pid_namespaces(7))
    return snapshot;
}

const ControlCounters& AttachedState::control_counters() {
    fill(control_counters_, ask(wire::AskControlCounters{}).values);
    return control_counters_;
}

}  // namespace pollcore
