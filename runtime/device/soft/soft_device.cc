// The device itself: opening, failing, its engines and its events. Its objects are in soft_memory.cc and
// soft_queues.cc, the QP states in qp_state.cc.
#include "device/soft/soft_device.hpp"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <climits>
#include <limits>
#include <string_view>

#include <fmt/format.h>

#include "device/soft/channel.hpp"
#include "device/soft/engine.hpp"
#include "device/soft/queues.hpp"
#include "device/soft/verbs_ops.hpp"
#include "pollcore/limits.hpp"

namespace pollcore {

namespace {

using soft::Engine;
using soft::SoftQp;

class SoftThreadDomain final : public ThreadDomain {
public:
    SoftThreadDomain(const SoftDevice& device, std::shared_ptr<Engine> engine)
        : device_(device), engine_(std::move(engine)) {}

    [[nodiscard]] const SoftDevice& device() const noexcept { return device_; }
    [[nodiscard]] const std::shared_ptr<Engine>& engine() const noexcept { return engine_; }

private:
    const SoftDevice& device_;
    std::shared_ptr<Engine> engine_;
};

[[nodiscard]] std::uint64_t steady_now_ns() {
    const auto since = std::chrono::steady_clock::now().time_since_epoch();
    return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(since).count());
}

}  // namespace

DeviceLimits default_soft_limits() noexcept {
    DeviceLimits limits;
    limits.qps_max = kQpsMax;
    limits.cqes_max = 1u << 22;
    limits.qp_depth_max = kQueueDepthMax;
    limits.sges_max = kSgesMax;
    limits.inline_max = kInlineMax;
    limits.rd_atomic_max = 32;
    limits.srqs_max = kSrqsMax;
    limits.srq_depth_max = kQueueDepthMax;
    limits.srq_sges_max = kSgesMax;
    limits.memory_region_max = std::numeric_limits<std::int64_t>::max();
    limits.comp_vectors = 1;
    limits.atomics = true;
    limits.memory_windows_max = 8192;
    limits.memory_windows_1 = true;
    limits.memory_windows_2 = true;
    limits.invalidation = true;
    limits.thread_domains = true;
    limits.extended_cqs = true;
    limits.completion_timestamp_mask = std::numeric_limits<std::uint64_t>::max();
    limits.hca_core_clock_khz = 1'000'000;
    limits.poll = kPollOfSoftware;
    limits.moderation_count_max = limits.moderation_period_max_us = 0xffff;
    limits.leaves_memory = true;
    return limits;
}

std::unique_ptr<SoftDevice> open_soft_device(SoftDeviceOptions options) {
    return std::make_unique<SoftDevice>(std::move(options));
}

SoftDevice::SoftDevice(SoftDeviceOptions options)
    : Device(options.name, 1), options_(std::move(options)), fabric_(soft::Fabric::join(options_.fabric)) {
    if (options_.profile.has_no_clock || !options_.limits.extended_cqs)  // only extended CQs have room for a time stamp
        options_.limits.completion_timestamp_mask = options_.limits.hca_core_clock_khz = 0;
    const DeviceLimits& limits = options_.limits;
    // A WQE holds its number of SGEs in eight bits. ibv_qp_attr holds the number of reads and atomics in eight bits,
    // and a QP has room for twice as many jobs. The other limits bound the size of tables.
    if (limits.sges_max > kSgesMax || limits.rd_atomic_max > 255 || limits.qp_depth_max > (1u << 24) ||
        limits.cqes_max > (1u << 30) || options_.memory_regions_max == 0 || options_.memory_regions_max >= (1u << 24)) {
        throw Error(
            std::errc::invalid_argument,
            fmt::format("cannot open software device {}: its limits ask for {} SGEs, {} reads and atomics, queues of "
                        "{}, CQs of {} and {} memory regions; accepted are at most {}, 255, 2^24, 2^30 and 1 to 2^24 "
                        "- 1",
                        name(), limits.sges_max, limits.rd_atomic_max, limits.qp_depth_max, limits.cqes_max,
                        options_.memory_regions_max, kSgesMax));
    }
    auto clock = options_.clock_ns ? options_.clock_ns : steady_now_ns;
    core_ = std::make_unique<soft::DeviceCore>(std::move(clock), options_.memory_regions_max, options_.profile,
                                               options_.fault_seed);
    for (const SoftFault& fault : options_.faults)
        inject(fault);
    core_->gid = fabric_->new_gid();

    device_.node_type = IBV_NODE_CA;
    device_.transport_type = IBV_TRANSPORT_IB;
    name().copy(device_.name, sizeof(device_.name) - 1);
    name().copy(device_.dev_name, sizeof(device_.dev_name) - 1);
    // abi_compat stays null. So verbs that need an extended context find none, and fail.
    context_.owner = this;
    context_.device = &device_;
    context_.ops = soft::verbs_ops();
    context_.cmd_fd = -1;
    context_.async_fd = core_->events.fd();
    context_.num_comp_vectors = static_cast<int>(limits.comp_vectors);
    pthread_mutex_init(&context_.mutex, nullptr);

    default_engine_ = make_engine();
}

SoftDevice::~SoftDevice() {
    default_engine_.reset();
    // Engines that still exist are held by objects that were never destroyed. When their device is gone, other engines
    // of the fabric must not find them.
    for (const auto& engine : engines()) {
        fabric_->remove(*engine);
    }
    pthread_mutex_destroy(&context_.mutex);
}

const std::string& SoftDevice::fabric_name() const noexcept {
    return fabric_->name();
}

std::string SoftDevice::describe() const {
    return fmt::format("soft {} (fabric {})", name(), fabric_name());
}

ibv_device_attr_ex SoftDevice::query_device() {
    {
        const std::lock_guard guard(control_mutex_);
        require_working("query the device");
    }
    const auto signed_of = [](std::uint64_t n) { return static_cast<int>(std::min<std::uint64_t>(n, INT_MAX)); };
    const DeviceLimits& limits = options_.limits;
    ibv_device_attr_ex attr{};
    ibv_device_attr& device = attr.orig_attr;
    std::string_view("pollcore soft").copy(device.fw_ver, sizeof(device.fw_ver) - 1);
    // The lower half of a GID is a GUID (InfiniBand Architecture Specification, 4.1.1).
    device.node_guid = device.sys_image_guid = core_->gid.global.interface_id;
    device.max_mr_size = limits.memory_region_max;
    device.page_size_cap = 4096;
    device.vendor_id = 0xffffff;  // as Soft-RoCE has it: nobody's
    device.max_qp = signed_of(limits.qps_max);
    device.max_qp_wr = signed_of(limits.qp_depth_max);
    device.device_cap_flags = IBV_DEVICE_RC_RNR_NAK_GEN;
    device.device_cap_flags |= limits.memory_windows_1 ? unsigned{IBV_DEVICE_MEM_WINDOW} : 0;
    device.device_cap_flags |= limits.memory_windows_2 ? unsigned{IBV_DEVICE_MEM_WINDOW_TYPE_2B} : 0;
    device.device_cap_flags |= limits.invalidation ? unsigned{IBV_DEVICE_MEM_MGT_EXTENSIONS} : 0;
    device.max_sge = device.max_sge_rd = signed_of(limits.sges_max);
    device.max_cq = device.max_pd = device.max_ah = INT_MAX;  // no limit of its own
    device.max_cqe = signed_of(limits.cqes_max);
    device.max_mr = signed_of(options_.memory_regions_max);
    device.max_qp_rd_atom = device.max_qp_init_rd_atom = signed_of(limits.rd_atomic_max);
    device.atomic_cap = limits.atomics ? IBV_ATOMIC_HCA : IBV_ATOMIC_NONE;
    device.max_mw = signed_of(limits.memory_windows_max);
    device.max_srq = signed_of(limits.srqs_max);
    device.max_srq_wr = signed_of(limits.srq_depth_max);
    device.max_srq_sge = signed_of(limits.srq_sges_max);
    device.max_pkeys = 1;
    device.phys_port_cnt = 1;
    attr.completion_timestamp_mask = limits.completion_timestamp_mask;
    attr.hca_core_clock = limits.hca_core_clock_khz;
    return attr;
}

std::uint16_t SoftDevice::query_pkey(std::uint32_t index) {
    if (index != 0) {
        throw Error(std::errc::invalid_argument,
                    fmt::format("{} has no P_Key {}: its table has one entry", describe(), index));
    }
    return 0xffff;  // the default P_Key, with full membership
}

ibv_port_attr SoftDevice::query_port() {
    {
        const std::lock_guard guard(control_mutex_);
        require_working("query the port");
    }
    ibv_port_attr attr{};
    // Relaxed: see DeviceCore::port_up.
    const bool up = core_->port_up.load(std::memory_order_relaxed);
    attr.state = up ? IBV_PORT_ACTIVE : IBV_PORT_DOWN;
    attr.phys_state = up ? 5 : 3;  // LinkUp, Disabled
    attr.max_mtu = IBV_MTU_4096;
    attr.active_mtu = options_.active_mtu;
    attr.gid_tbl_len = 1;
    attr.pkey_tbl_len = 1;
    attr.max_msg_sz = soft::kMessageMax;
    attr.link_layer = IBV_LINK_LAYER_ETHERNET;
    attr.active_width = 2;
    attr.active_speed = 32;
    return attr;
}

std::vector<GidEntry> SoftDevice::gids() {
    return {GidEntry{.index = 0, .gid = core_->gid}};
}

void SoftDevice::set_port_up(bool up) {
    if (core_->port_up.exchange(up, std::memory_order_relaxed) == up)
        return;
    core_->events.raise_port(up ? IBV_EVENT_PORT_ACTIVE : IBV_EVENT_PORT_ERR, port());
}

// ---- faults ----

void SoftDevice::inject(const SoftFault& fault) {
    core_->faults.add(fault);
}
void SoftDevice::clear_faults() {
    core_->faults.clear();
}

std::uint64_t SoftDevice::faults_met(SoftFault::Kind kind) const noexcept {
    return core_->faults.met(kind);
}

void SoftDevice::meet_fault(SoftFault::Kind kind, std::string_view what, const ibv_qp* qp,
                            std::optional<ibv_qp_state> state) {
    if (!core_->faults.armed(kind)) [[likely]]
        return;
    if (const auto fault = core_->faults.meet(kind, qp != nullptr ? qp->qp_num : 0, state)) {
        throw Error(fault->error, fmt::format("cannot {} on {}: its fault plan has this call fail", what, describe()));
    }
}

// ---- failing ----

void SoftDevice::fail() {
    const std::lock_guard guard(control_mutex_);
    if (std::exchange(failed_, true))
        return;
    core_->faults.clear();  // the faults were planned for a device that works
    for (const auto& engine : engines())
        engine->fail();
    core_->events.raise_device(IBV_EVENT_DEVICE_FATAL);
}

void SoftDevice::remove() {
    fail();
    const std::lock_guard guard(control_mutex_);
    removed_ = true;
    core_->events.close();
    core_->removed.store(true, std::memory_order_seq_cst);
    for (const auto& engine : engines())
        engine->doorbell()->ring();  // a thread that sleeps on a channel wakes up and finds the device removed
}

void SoftDevice::require_working(const char* what) const {
    if (failed_)
        throw Error(EIO, fmt::format("cannot {} on {}: the device has failed or was removed", what, describe()));
}

void SoftDevice::require_within(std::string_view what, std::uint64_t asked, std::uint64_t has) const {
    if (asked <= has)
        return;
    throw Error(
        std::errc::invalid_argument,
        fmt::format("cannot make {} {} on {}: the device has at most {}; ask for fewer", asked, what, describe(), has));
}

bool SoftDevice::ended(const void* object) const noexcept {
    return std::any_of(orphans_.begin(), orphans_.end(), [&](const auto& orphan) { return orphan.get() == object; });
}

// ---- engines ----

std::shared_ptr<Engine> SoftDevice::make_engine() {
    auto engine = std::make_shared<Engine>(*core_, fabric_);
    std::erase_if(engines_, [](const auto& known) { return known.expired(); });
    engines_.push_back(engine);
    return engine;
}

std::vector<std::shared_ptr<Engine>> SoftDevice::engines() {
    std::vector<std::shared_ptr<Engine>> all;
    for (const auto& known : engines_) {
        if (auto engine = known.lock())
            all.push_back(std::move(engine));
    }
    return all;
}

std::unique_ptr<ThreadDomain> SoftDevice::create_thread_domain() {
    const std::lock_guard guard(control_mutex_);
    require_working("make a thread domain");
    return std::make_unique<SoftThreadDomain>(*this, make_engine());
}

std::unique_ptr<CompletionChannel> SoftDevice::create_channel(ThreadDomain* domain) {
    meet_fault(SoftFault::Kind::create_channel, "make a completion channel");
    const std::lock_guard guard(control_mutex_);
    require_working("make a completion channel");
    auto channel = std::make_shared<soft::Channel>(&context_, engine_of(domain));
    fabric_->settle();  // from now on, each sender to that engine checks whether the engine's thread sleeps
    return std::make_unique<soft::SoftCompletionChannel>(std::move(channel));
}

std::shared_ptr<Engine> SoftDevice::engine_of(ThreadDomain* domain) {
    if (domain == nullptr)
        return default_engine_;
    auto* own = dynamic_cast<SoftThreadDomain*>(domain);
    if (own == nullptr || &own->device() != this) {
        throw Error(
            std::errc::invalid_argument,
            fmt::format("the thread domain is not one of {}; make one with create_thread_domain()", describe()));
    }
    return own->engine();
}

void SoftDevice::advance(std::uint64_t now_ns) {
    std::vector<std::shared_ptr<Engine>> all;
    {
        const std::lock_guard guard(control_mutex_);
        all = engines();
    }
    const auto next_deadline = [&all] {
        std::uint64_t next = std::numeric_limits<std::uint64_t>::max();
        for (const auto& engine : all) {
            const std::lock_guard guard(engine->lock());
            next = std::min(next, engine->next_deadline_ns());
        }
        return next;
    };
    // Work that is queued already is done at the engines' present time, not at `now_ns`.
    std::uint64_t time = 0;
    for (const auto& engine : all) {
        const std::lock_guard guard(engine->lock());
        time = std::max(time, engine->now_ns());
    }
    time = std::min(time, now_ns);
    for (;;) {
        std::uint32_t work = 0;
        do {
            work = 0;
            for (const auto& engine : all) {
                const std::lock_guard guard(engine->lock());
                engine->hold_clock(time);
                engine->tick(time);
                work += engine->move();
                engine->release_clock();
            }
        } while (work != 0);
        const std::uint64_t next = next_deadline();
        if (time == now_ns && next > now_ns)
            return;
        time = std::clamp(next, time, now_ns);
    }
}

// ---- counters ----

std::optional<RnrCounts> SoftDevice::rnr_counts() {
    return RnrCounts{.received = core_->rnr_naks_received.load(std::memory_order_relaxed),
                     .sent = core_->rnr_naks_sent.load(std::memory_order_relaxed)};
}

std::optional<RnrCounts> SoftDevice::rnr_counts(ibv_qp* qp) {
    auto& own = static_cast<SoftQp&>(*qp);
    const std::lock_guard engine_guard(own.engine->lock());
    return RnrCounts{.received = own.tx.rnr_naks, .sent = own.rx.rnr_naks};
}

// ---- events ----

int SoftDevice::async_fd() const noexcept {
    return core_->events.fd();
}
std::optional<ibv_async_event> SoftDevice::next_async_event() {
    return core_->events.take();
}
void SoftDevice::acknowledge(const ibv_async_event& event) noexcept {
    core_->events.acknowledge(event);
}

}  // namespace pollcore
