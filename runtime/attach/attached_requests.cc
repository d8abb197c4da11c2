// Requests of an attached process that are answered at once.
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <utility>

#include <fmt/format.h>

#include "attach/answering.hpp"
#include "attach/attached_client.hpp"
#include "base/descriptor_reserve.hpp"
#include "base/event_fd.hpp"
#include "base/map_place.hpp"
#include "base/printable.hpp"
#include "pollcore/error.hpp"

namespace pollcore {
namespace {

// Only a privileged process may give a queue pair a Q_Key with this bit set (IBTA 10.2.5). In a work request, the bit
// selects the queue pair's own Q_Key, so it needs no check there.
constexpr std::uint32_t kPrivilegedQkey = 1U << 31;

template <class Counters>
void copy_counters(const Counters& from, std::uint64_t* to) noexcept {
    const auto* counters = reinterpret_cast<const Counter*>(&from);
    for (std::size_t i = 0; i < sizeof(Counters) / sizeof(Counter); ++i) {
        to[i] = counters[i].value();
    }
}
static_assert(sizeof(Counter) == sizeof(std::uint64_t));

}  // namespace

// ---- Attaching, sessions ----

wire::Attached AttachedClient::carry_out(const wire::Attach& asked, std::vector<UniqueFd>& back) {
    if (std::exchange(attached_, true)) {
        throw Error(EISCONN, "this process is attached");
    }
    if (const std::string_view name = asked.name.view(); !name.empty()) {
        who_ += ", as " + printable(name);
    }
    back.emplace_back(static_cast<int>(::syscall(SYS_pidfd_open, ::getpid(), 0)));
    back.emplace_back(::fcntl(counters_->fd.get(), F_DUPFD_CLOEXEC, 0));
    if (!back[0].valid() || !back[1].valid() || is_reserved(back[1].get())) {
        throw Error(EMFILE, "the daemon has no descriptors left; raise its limit (LimitNOFILE)");
    }
    const RuntimeReport report = runtime_.report();
    return {.qps_max = runtime_.config.qps_max,
            .devices = static_cast<std::uint32_t>(report.devices.size()),
            .workers = static_cast<std::uint32_t>(runtime_.config.workers.size()),
            .client = number_,
            .pool_counters = static_cast<std::uint32_t>(counters_used_.size()),
            .hugepages = report.hugepages,
            .registered_max = account_->may_have(Thing::byte),
            .drain_ms = static_cast<std::uint64_t>(runtime_.config.drain_timeout.count()),
            .memory = Text<256>(std::string_view(report.memory).substr(0, 256)),
            .eal = Text<256>(std::string_view(report.eal).substr(0, 256))};
}

wire::SessionOpened AttachedClient::carry_out(const wire::OpenSession& asked, Handed& handed,
                                              std::vector<UniqueFd>& back) {
    Account::Held place = account_->take(Thing::session);
    const SessionOptions options{.name = asked.name.string(),
                                 .worker = asked.worker.string(),
                                 .submission_slots = asked.submission_slots,
                                 .completion_slots = asked.completion_slots,
                                 .pool_buffers = asked.pool_buffers,
                                 .wide_completions = asked.wide != 0,
                                 .device_time = asked.device_time != 0,
                                 .events = asked.events != 0};
    require_valid(options);
    const SessionLayout layout{
        runtime_.config.qps_max, options.submission_slots, options.completion_slots, options.wide_completions, false,
        options.pool_buffers};
    if (handed.failure) {
        std::rethrow_exception(handed.failure);
    }
    if (handed.memory == nullptr || asked.bytes != layout.bytes()) {
        throw Error(EPROTO, fmt::format("the rings of a session come as one memfd of {} bytes", layout.bytes()));
    }
    runtime_.require_running();
    const std::uint32_t worker = runtime_.choose_worker(options.worker);
    HostMemory memory(handed.memory->mapping.data(), handed.memory->mapping.size(), handed.memory);
    SessionBells bells;
    if (runtime_.worker_sleeps(worker)) {
        bells.visitor =
            ForeignFd(make_event_fd("a process that wakes its worker").release(), Unread::left, account_->uid());
        back.emplace_back(::fcntl(bells.visitor.get(), F_DUPFD_CLOEXEC, 0));
        if (!back.back().valid() || is_reserved(back.back().get())) {
            throw Error(EMFILE, "the daemon has no descriptors left");
        }
    }
    if (options.events) {
        BellSockets sockets = make_bell_sockets("a process that sleeps");
        bells.application = std::move(sockets.own);
        back.push_back(std::move(sockets.other));
        if (is_reserved(back.back().get())) {
            throw Error(EMFILE, "the daemon has no descriptors left");
        }
    }
    SessionOptions at = options;
    at.worker = runtime_.worker_config(worker).name;
    std::shared_ptr<ClientShare>& share = shares_[worker];
    if (share == nullptr) {
        share = std::make_shared<ClientShare>(number_);
    }
    MapPlace own(sessions_, std::move(place));
    const std::uint32_t id = runtime_.open_session_here(at, std::move(memory), std::move(bells), share);
    own.take(id);
    return {.id = id,
            .worker = worker,
            .worker_sleeps = runtime_.worker_sleeps(worker),
            .worker_name = NameText(at.worker)};
}

// Throws unless `id` is a session of this process that is not being closed.
void AttachedClient::require_session(std::uint32_t id) const {
    if (!sessions_.contains(id) || closing_.contains(id)) {
        throw Error(EINVAL, "the session was closed, or is not this process's");
    }
}

void AttachedClient::drop_session(std::uint32_t id) {
    std::erase_if(srqs_, [&](const auto& srq) { return srq.second.session == id; });
    std::erase_if(qps_, [&](const auto& qp) {
        const bool ended = qp.second.sessions.contains(id) && !runtime_.has_qp(qp.first);
        if (ended) {
            events_.remove(qp.first);
        }
        return ended;
    });
    slots_refused_of_closed_ += runtime_.submissions_refused(id);
    runtime_.release_session(id);
    sessions_.erase(id);
    closing_.erase(id);
}

// ---- Queue pairs ----

PdId AttachedClient::pd_for(const std::string& device, PdId asked) {
    if (asked != 0) {
        require_own(pds_, asked, "protection domain");
        return asked;
    }
    PdId& own = default_pds_[device];
    if (own == 0) {
        own = runtime_.create_foreign_pd_here(device, number_);
    }
    return own;
}

std::string AttachedClient::device_name(const NameText& device) const {
    // The device of another process is not in the configuration.
    const std::string& name = runtime_.configured_device(device.string()).name;
    const auto own = own_devices_.find(name);
    return own != own_devices_.end() ? own->second : name;
}

AttachedClient::OwnQp& AttachedClient::require_qp(QpHandle handle) {
    const auto own = qps_.find(handle);
    if (own == qps_.end()) {
        throw Error(EINVAL, "this queue pair was closed, or is not this process's");
    }
    if (own->second.busy) {
        throw Error(EBUSY, "this queue pair is being closed or reset");
    }
    return own->second;
}

void AttachedClient::require_may_have(std::uint32_t qkey) const {
    if ((qkey & kPrivilegedQkey) != 0 && !rights_.net_raw) {
        throw Error(EPERM, fmt::format("Q_Key {:#x} has its highest bit set and is for privileged processes; use one "
                                       "without that bit, or attach "
                                       "with CAP_NET_RAW in the daemon's user namespace",
                                       qkey));
    }
}

wire::QpNamed AttachedClient::carry_out(const wire::CreateQp& asked) {
    QpSpec spec = asked.spec;
    require_name(spec.name.view());
    if (spec.share_count < 1 || spec.share_count > kQpSharesMax) {
        throw Error(EINVAL,
                    fmt::format("{} shares of a queue pair: accepted is 1 to {}", spec.share_count, kQpSharesMax));
    }
    if (spec.type != QpType::rc && spec.type != QpType::uc && spec.type != QpType::ud) {
        throw Error(EINVAL, "a queue pair of an unknown type");
    }
    if (spec.type == QpType::ud) {
        require_may_have(spec.qkey);
    }
    OwnQp own;
    own.place = account_->take(Thing::queue_pair);
    std::uint64_t requests = spec.recv_depth;
    for (std::uint32_t i = 0; i < spec.share_count; ++i) {
        require_session(spec.shares[i].session);
        own.sessions.insert(spec.shares[i].session);
        requests += spec.shares[i].send_depth;
    }
    if (spec.srq.valid()) {
        require_own(srqs_, spec.srq, "shared receive queue");
    }
    if (spec.pool.valid()) {
        require_own(pools_, spec.pool, "receive pool");
    }
    if (spec.rendezvous_pool.valid()) {
        require_own(pools_, spec.rendezvous_pool, "rendezvous pool");
    }
    const std::string device = device_name(spec.device);
    spec.device = NameText(device);
    spec.pd = pd_for(device, spec.pd);
    own.requests = account_->take(Thing::work_request, requests);
    MapPlace place(qps_, std::move(own));
    events_.prepare();
    const QpHandle handle = runtime_.create_qp(spec);
    place.take(handle);
    events_.add(handle);
    return {.handle = handle};
}

QpInfo AttachedClient::carry_out(const wire::AskQpInfo& asked) {
    (void)require_qp(asked.handle);
    return runtime_.info(asked.handle);
}

wire::QpQueried AttachedClient::carry_out(const wire::AskQp& asked) {
    (void)require_qp(asked.handle);
    const QpQuery found = runtime_.query_qp(asked.handle);
    return {.attributes = pack(found.attributes), .cap = found.cap};
}

wire::QpStatus AttachedClient::carry_out(const wire::AskQpStatus& asked) {
    (void)require_qp(asked.handle);
    return {.qp_num = runtime_.qp_num(asked.handle), .disconnected = runtime_.disconnected(asked.handle)};
}

wire::Nothing AttachedClient::carry_out(const wire::Disconnect& asked) {
    (void)require_qp(asked.handle);
    runtime_.disconnect(asked.handle);
    return {};
}

wire::Counted AttachedClient::carry_out(const wire::AskRnrCounts& asked) {
    if (asked.handle.valid()) {
        (void)require_qp(asked.handle);
    }
    const std::optional<RnrCounts> counts =
        asked.handle.valid() ? runtime_.rnr_counts(asked.handle) : runtime_.rnr_counts(device_name(asked.device));
    return {.known = counts.has_value(), .counts = counts.value_or(RnrCounts{})};
}

// ---- Listeners ----

wire::Listening AttachedClient::carry_out(const wire::Listen& asked) {
    MapPlace own(listeners_, account_->take(Thing::listener));
    events_.prepare();
    const OpenedListener opened = runtime_.listen(asked.address.string(), device_name(asked.device),
                                                  asked.raw != 0 ? PrivateDataForm::raw : PrivateDataForm::framed);
    own.take({opened.device, opened.id});
    events_.add(ListenerHandle{.number = opened.id, .device = opened.device});
    return {.id = opened.id, .device = opened.device, .address = wire::AddressText(opened.address)};
}

wire::Nothing AttachedClient::carry_out(const wire::StopListening& asked) {
    if (listeners_.erase({asked.device, asked.listener}) != 0) {
        events_.remove(ListenerHandle{.number = asked.listener, .device = asked.device});
        runtime_.stop_listening(asked.device, asked.listener);
    }
    return {};
}

// If the process held as many requests as it may, more may wait at its listeners, and no event would tell of them.
void AttachedClient::answered(std::uint32_t device, std::uint64_t request) noexcept {
    const bool was_full = requests_.size() >= kRequestsInHandMax;
    requests_.erase({device, request});
    for (auto listener = listeners_.begin(); was_full && listener != listeners_.end(); ++listener) {
        events_.keep({.type = EventType::connect_request,
                      .listener = {.number = listener->first.second, .device = listener->first.first}});
    }
}

wire::Nothing AttachedClient::carry_out(const wire::Reject& asked) {
    if (requests_.contains({asked.device, asked.request})) {
        answered(asked.device, asked.request);
        runtime_.reject(asked.device, asked.request, unpacked(asked.private_data));
    }
    return {};
}

// ---- Memory ----

wire::PdNamed AttachedClient::carry_out(const wire::CreatePd& asked) {
    MapPlace own(pds_, account_->take(Thing::protection_domain));
    const PdId pd = runtime_.create_foreign_pd_here(device_name(asked.device), number_);
    own.take(pd);
    return {.pd = pd, .verbs_handle = runtime_.pd_handle_here(pd)};
}

wire::Nothing AttachedClient::carry_out(const wire::ReleasePd& asked) {
    require_own(pds_, asked.pd, "protection domain");
    if (std::any_of(errands_.begin(), errands_.end(), [&](const auto& each) { return each->pd == asked.pd; })) {
        throw Error(EBUSY, "something is being made or ended in the protection domain");
    }
    if (runtime_.release_pd_here(asked.pd)) {
        pds_.erase(asked.pd);
    }  // otherwise objects are left in the protection domain, and it ends with this process
    return {};
}

wire::WindowNamed AttachedClient::carry_out(const wire::CreateWindow& asked) {
    Account::Held place = account_->take(Thing::memory_window);
    require_session(asked.session);
    if (asked.type != WindowType::type_1 && asked.type != WindowType::type_2) {
        throw Error(EINVAL, "a memory window of an unknown type");
    }
    const std::string device = device_name(asked.device);
    const PdId pd = pd_for(device, asked.pd);
    MapPlace own(windows_, OwnObject{.pd = pd, .place = std::move(place)});
    const MwHandle handle = runtime_.create_window(asked.session, asked.type, device, pd);
    own.take(handle);
    return {.handle = handle, .rkey = runtime_.window_rkey(handle)};
}

wire::WindowNamed AttachedClient::carry_out(const wire::AskWindowRkey& asked) {
    require_own(windows_, asked.handle, "memory window");
    return {.handle = asked.handle, .rkey = runtime_.window_rkey(asked.handle)};
}

// ---- Shared receive queues and pools ----

wire::SrqNamed AttachedClient::carry_out(const wire::CreateSrq& asked) {
    SrqSpec spec = asked.spec;
    Account::Held place = account_->take(Thing::shared_receive_queue);
    require_session(spec.session);
    if (spec.pool.valid()) {
        require_own(pools_, spec.pool, "receive pool");
    }
    const std::string device = device_name(spec.device);
    spec.device = NameText(device);
    spec.pd = pd_for(device, spec.pd);
    Account::Held requests = account_->take(Thing::work_request, spec.depth);
    MapPlace own(srqs_, OwnSrq{.place = std::move(place), .requests = std::move(requests), .session = spec.session});
    const SrqHandle handle = runtime_.create_srq(spec);
    own.take(handle);
    return {.handle = handle};
}

wire::Nothing AttachedClient::carry_out(const wire::CloseSrq& asked) {
    const auto own = srqs_.find(asked.handle);
    if (own != srqs_.end()) {  // otherwise the shared receive queue was closed with its session
        runtime_.close_srq(asked.handle);
        srqs_.erase(own);
    }
    return {};
}

wire::Nothing AttachedClient::carry_out(const wire::ArmLimit& asked) {
    require_own(srqs_, asked.handle, "shared receive queue");
    runtime_.arm_limit(asked.handle, asked.limit);
    return {};
}

wire::SrqNamed AttachedClient::carry_out(const wire::AskSrqLimit& asked) {
    require_own(srqs_, asked.handle, "shared receive queue");
    return {.handle = asked.handle, .limit = runtime_.limit(asked.handle)};
}

wire::PoolNamed AttachedClient::carry_out(const wire::CreatePool& asked) {
    PoolSpec spec = asked.spec;
    require_session(spec.session);
    require_own(regions_, spec.region, "memory region");
    if (std::any_of(pools_.begin(), pools_.end(),
                    [&](const auto& pool) { return pool.second.region == spec.region; })) {
        throw Error(EBUSY, "the memory region is another receive pool's");
    }
    const std::uint32_t lines = spec.buffer_bytes / kCacheLine;
    if (spec.buffers < 1 || spec.buffers > kPoolBuffersMax || spec.buffer_bytes < 1 ||
        spec.buffer_bytes > kPoolBufferBytesMax || spec.first_byte > 2 * kPoolFirstByteMax ||
        (!spec.ring && (spec.stride < spec.buffer_bytes || spec.stride > kPoolStrideMax)) ||
        (spec.ring && (!std::has_single_bit(spec.buffer_bytes) || lines < kRingLinesMin || lines > kRingLinesMax))) {
        throw Error(EINVAL, "a receive pool or write ring of a size that there is not");
    }
    const auto free = std::find(counters_used_.begin(), counters_used_.end(), false);
    Account::Held place = account_->take(Thing::receive_pool);
    if (free == counters_used_.end()) {
        throw Error(EDQUOT, fmt::format("this process has {} receive pools, as many as it may", counters_used_.size()));
    }
    const std::string device = device_name(spec.device);
    spec.device = NameText(device);
    spec.pd = pd_for(device, spec.pd);
    const auto index = static_cast<std::uint32_t>(free - counters_used_.begin());
    auto* counters = new (static_cast<ReceivePoolCounters*>(counters_->mapping.data()) + index) ReceivePoolCounters;
    MapPlace own(pools_, OwnPool{.counters = index, .region = spec.region, .place = std::move(place)});
    const PoolInfo info = runtime_.create_pool(spec, {counters_, counters});
    *free = true;
    own.take(info.handle);
    return {.handle = info.handle, .counters = index};
}

wire::Held AttachedClient::carry_out(const wire::AskHeldBuffers& asked) {
    require_own(pools_, asked.handle, "receive pool");
    const std::vector<HeldBuffer> all = runtime_.held_buffers(asked.handle);
    wire::Held held;
    const std::size_t from = std::min<std::size_t>(asked.from, all.size());
    held.count = static_cast<std::uint32_t>(std::min(all.size() - from, wire::Held::kMost));
    held.more = all.size() - from > held.count;
    std::copy_n(all.begin() + static_cast<std::ptrdiff_t>(from), held.count, held.buffers.begin());
    return held;
}

// ---- Reports and counters ----

wire::WorkerCounted AttachedClient::carry_out(const wire::AskWorkerCounters& asked) {
    wire::WorkerCounted counted;
    copy_counters(runtime_.worker_counters(asked.worker), counted.values.data());
    return counted;
}

wire::ControlCounted AttachedClient::carry_out(const wire::AskControlCounters&) {
    wire::ControlCounted counted;
    runtime_.count_things_here();
    copy_counters(runtime_.counters, counted.values.data());
    return counted;
}

wire::Nothing AttachedClient::carry_out(const wire::CopyStatistics&, std::vector<UniqueFd>& back) {
    back.push_back(runtime_.copy_statistics_here(number_));
    if (is_reserved(back.back().get())) {
        throw Error(EMFILE, "the daemon has no descriptors left; raise its limit (LimitNOFILE)");
    }
    return {};
}

DeviceAttributes AttachedClient::carry_out(const wire::AskDeviceAttributes& asked) {
    return runtime_.query_device(device_name(asked.device));
}

wire::PortQueried AttachedClient::carry_out(const wire::AskPort& asked) {
    return {.port = runtime_.query_port(device_name(asked.device))};
}

wire::Gids AttachedClient::carry_out(const wire::AskGids& asked) {
    const std::vector<GidAttributes> all = runtime_.gids(device_name(asked.device));
    wire::Gids some;
    for (const GidAttributes& entry : all) {
        if (entry.gid_index >= asked.from) {
            if (some.count == some.gids.size()) {
                some.more = 1;
                break;
            }
            some.gids[some.count++] = entry;
        }
    }
    return some;
}

wire::Pkey AttachedClient::carry_out(const wire::AskPkey& asked) {
    const auto index = static_cast<std::uint32_t>(std::min<std::uint64_t>(asked.index, UINT32_MAX));
    return {.pkey = runtime_.query_pkey(index, device_name(asked.device))};
}

wire::DeviceReported AttachedClient::carry_out(const wire::AskDevice& asked) {
    const RuntimeReport report = runtime_.report();
    if (asked.index >= report.devices.size()) {
        throw Error(EINVAL, fmt::format("device {}: there are {}", asked.index, report.devices.size()));
    }
    const DeviceReport& device = report.devices[asked.index];
    return {.name = NameText(device.name),
            .description = Text<192>(std::string_view(device.description).substr(0, 192)),
            .verbs_name = NameText(device.verbs_name),
            .uverbs_name = NameText(device.uverbs_name),
            .ibv_index = device.ibv_index,
            .port_num = device.port_num,
            .inline_max = device.inline_max,
            .qp_depth_max = device.qp_depth_max,
            .cqes_max = device.cqes_max,
            .sges_max = device.sges_max,
            .extended_cqs = device.extended_cqs,
            .memory_windows_1 = device.memory_windows_1,
            .memory_windows_2 = device.memory_windows_2,
            .invalidation = device.invalidation,
            .completion_timestamp_mask = device.completion_timestamp_mask,
            .hca_core_clock_khz = device.hca_core_clock_khz};
}

}  // namespace pollcore
