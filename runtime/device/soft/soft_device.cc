// Opening the device, its objects, their end. QP states are in qp_state.cc.
#include "device/soft/soft_device.hpp"

#include <arpa/inet.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <limits>

#include <fmt/format.h>

#include "device/soft/engine.hpp"
#include "device/soft/queues.hpp"
#include "device/soft/verbs_ops.hpp"
#include "pollcore/limits.hpp"

namespace pollcore {

namespace {

using soft::Engine;
using soft::SoftAh;
using soft::SoftCq;
using soft::SoftMr;
using soft::SoftMw;
using soft::SoftPd;
using soft::SoftQp;
using soft::SoftSrq;

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

void require_within(const std::string& device, std::string_view what, std::uint64_t asked,
                    std::uint64_t has) {
    if (asked <= has)
        return;
    throw Error(std::errc::invalid_argument,
                fmt::format("cannot make {} {} on {}: the device has at most {}; ask for fewer", asked, what,
                            device, has));
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
    return limits;
}

std::unique_ptr<SoftDevice> open_soft_device(SoftDeviceOptions options) {
    return std::make_unique<SoftDevice>(std::move(options));
}

SoftDevice::SoftDevice(SoftDeviceOptions options)
    : Device(options.name, 1), options_(std::move(options)), fabric_(soft::Fabric::join(options_.fabric)) {
    const DeviceLimits& limits = options_.limits;
    // Work requests hold their SGE count in eight bits, rd_atomic is eight bits in ibv_qp_attr, and jobs are
    // made for twice that; beyond, the tables of QPs would not be of a bounded size.
    if (limits.sges_max > kSgesMax || limits.rd_atomic_max > 255 || limits.qp_depth_max > (1u << 24) ||
        limits.cqes_max > (1u << 30) || options_.memory_regions_max == 0 ||
        options_.memory_regions_max >= (1u << 24)) {
        throw Error(
            std::errc::invalid_argument,
            fmt::format(
                "cannot open software device {}: its limits ask for {} SGEs, {} reads and atomics, queues of "
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
    // abi_compat stays null: verbs that need an extended context find none and say so.
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
    pthread_mutex_destroy(&context_.mutex);
}

const std::string& SoftDevice::fabric_name() const noexcept {
    return fabric_->name();
}

std::string SoftDevice::describe() const {
    return fmt::format("soft {} (fabric {})", name(), fabric_name());
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
    return {GidEntry{0, core_->gid, true}};
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
    core_->faults.clear();  // planned for a device that works
    for (const auto& engine : engines())
        engine->fail();
    core_->events.raise_device(IBV_EVENT_DEVICE_FATAL);
}

void SoftDevice::remove() {
    fail();
    const std::lock_guard guard(control_mutex_);
    removed_ = true;
    core_->events.close();
}

void SoftDevice::require_working(const char* what) const {
    if (failed_)
        throw Error(EIO, fmt::format("cannot {} on {}: the device has failed or was removed", what, describe()));
}

bool SoftDevice::ended(const void* object) const noexcept {
    return std::any_of(orphans_.begin(), orphans_.end(), [&](const auto& orphan) { return orphan.get() == object; });
}

/// libibverbs keeps an object whose destruction the kernel refused, and may be asked again; here the device keeps it.
template <class T>
int SoftDevice::end(std::unique_ptr<T> object) noexcept {
    if (!removed_)
        return 0;
    orphans_.push_back(std::move(object));
    return EIO;
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

std::shared_ptr<Engine> SoftDevice::engine_of(ThreadDomain* domain) {
    if (domain == nullptr)
        return default_engine_;
    auto* own = dynamic_cast<SoftThreadDomain*>(domain);
    if (own == nullptr || &own->device() != this) {
        throw Error(std::errc::invalid_argument,
                    fmt::format("the thread domain is not one of {}; make one with create_thread_domain()",
                                describe()));
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
    // What is queued already happens now, not at the end of the time that passes.
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

// ---- PDs and memory ----

ibv_pd* SoftDevice::create_pd() {
    meet_fault(SoftFault::Kind::create_pd, "make a PD");
    const std::lock_guard guard(control_mutex_);
    require_working("make a protection domain");
    auto* pd = new SoftPd{};
    pd->context = &context_;
    return pd;
}

int SoftDevice::destroy(ibv_pd* pd) noexcept {
    const std::lock_guard guard(control_mutex_);
    auto* own = static_cast<SoftPd*>(pd);
    if (ended(own))
        return EIO;
    if (own->users != 0)
        return EBUSY;
    return end(std::unique_ptr<SoftPd>(own));
}

ibv_mr* SoftDevice::register_memory(ibv_pd* pd, void* addr, std::size_t length, std::uint64_t iova,
                                    int access) {
    const auto refuse = [&](int error, std::string_view why) {
        return Error(error, fmt::format("cannot register {} bytes at {} (iova {:#x}, access {:#x}) on {}: {}",
                                        length, addr, iova, static_cast<unsigned>(access), describe(), why));
    };
    constexpr int kRemoteChange = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;
    constexpr int kKnown = IBV_ACCESS_LOCAL_WRITE | kRemoteChange | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_MW_BIND |
                           IBV_ACCESS_RELAXED_ORDERING;
    if ((access & ~kKnown) != 0) {
        throw refuse(EOPNOTSUPP,
                     "it takes local write, remote read, write and atomic, window bind, and relaxed ordering only");
    }
    if ((access & kRemoteChange) != 0 && (access & IBV_ACCESS_LOCAL_WRITE) == 0) {
        throw refuse(EINVAL,
                     "remote write and remote atomic need local write too; add IBV_ACCESS_LOCAL_WRITE");
    }
    if (addr == nullptr || length == 0)
        throw refuse(EINVAL, "there is no memory in it");
    if (length > options_.limits.memory_region_max) {
        throw refuse(EINVAL, fmt::format("the device takes regions of at most {} bytes",
                                         options_.limits.memory_region_max));
    }
    if (reinterpret_cast<std::uint64_t>(addr) + length < length || iova + length < length) {
        throw refuse(EINVAL, "it ends behind the end of the address space");
    }
    meet_fault(SoftFault::Kind::register_memory, "register memory");
    const std::lock_guard guard(control_mutex_);
    require_working("register memory");
    const std::uint32_t key = core_->memory.add({pd, static_cast<std::byte*>(addr), iova, length, access});
    if (key == 0) {
        throw refuse(ENOMEM,
                     fmt::format("all {} memory regions of the device are taken; deregister some, or raise "
                                 "memory_regions_max",
                                 options_.memory_regions_max));
    }
    auto* mr = new SoftMr{};
    mr->context = &context_;
    mr->pd = pd;
    mr->addr = addr;
    mr->length = length;
    mr->handle = key;
    mr->lkey = mr->rkey = key;
    ++static_cast<SoftPd*>(pd)->users;
    return mr;
}

int SoftDevice::destroy(ibv_mr* mr) noexcept {
    const std::lock_guard guard(control_mutex_);
    if (ended(static_cast<SoftMr*>(mr)))
        return EIO;
    if (core_->memory.windows_of(mr->lkey) != 0)
        return EBUSY;
    core_->memory.remove(mr->lkey);
    settle_engines();
    if (core_->memory.windows_of(mr->lkey) != 0) {  // bound at this moment
        core_->memory.restore(mr->lkey);
        return EBUSY;
    }
    core_->memory.retire(mr->lkey);
    --static_cast<SoftPd*>(mr->pd)->users;
    return end(std::unique_ptr<SoftMr>(static_cast<SoftMr*>(mr)));
}

// An engine looks a key up and uses the memory within one hold of its lock: once each lock was ours after the
// removal, nobody is left who found the key.
void SoftDevice::settle_engines() noexcept {
    for (const auto& known : engines_) {
        if (const auto engine = known.lock()) {
            engine->lock().lock();
            engine->lock().unlock();
        }
    }
}

ibv_mw* SoftDevice::create_mw(ibv_pd* pd, ibv_mw_type type) {
    const DeviceLimits& limits = options_.limits;
    if (!(type == IBV_MW_TYPE_1 ? limits.memory_windows_1 : type == IBV_MW_TYPE_2 && limits.memory_windows_2)) {
        throw Error(std::errc::operation_not_supported,
                    fmt::format("cannot make a memory window of type {} on {}: it has none of these",
                                static_cast<int>(type), describe()));
    }
    const std::lock_guard guard(control_mutex_);
    require_working("make a memory window");
    require_within(describe(), "memory windows", windows_.size() + 1, limits.memory_windows_max);
    auto window = std::make_unique<SoftMw>(pd, type);
    windows_.reserve(windows_.size() + 1);
    const std::uint32_t key = core_->memory.add(window->window);
    if (key == 0) {
        throw Error(std::errc::not_enough_memory,
                    fmt::format("cannot make a memory window on {}: all {} places for regions and windows are taken; "
                                "deregister some, or raise memory_regions_max",
                                describe(), options_.memory_regions_max));
    }
    window->rkey = window->handle = key;
    windows_.push_back(window.get());
    ++static_cast<SoftPd*>(pd)->users;
    return window.release();
}

int SoftDevice::destroy(ibv_mw* window) noexcept {
    const std::lock_guard guard(control_mutex_);
    auto* own = static_cast<SoftMw*>(window);
    if (ended(own))
        return EIO;
    core_->memory.remove(own->handle);
    settle_engines();
    core_->memory.unbind(own->window);
    core_->memory.retire(own->handle);
    std::erase(windows_, own);
    --static_cast<SoftPd*>(own->pd)->users;
    return end(std::unique_ptr<SoftMw>(own));
}

// ---- Address handles ----

ibv_ah* SoftDevice::create_ah(ibv_pd* pd, ibv_ah_attr& attr) {
    const auto refuse = [&](std::string_view why) {
        return Error(std::errc::invalid_argument,
                     fmt::format("cannot make an address handle on {}: {}", describe(), why));
    };
    if (attr.is_global == 0)
        throw refuse("it has no GRH; set is_global and grh.dgid");
    if (attr.port_num != port())
        throw refuse(fmt::format("port_num is {}, the device has port {}", attr.port_num, port()));
    if (attr.grh.sgid_index != 0)
        throw refuse(fmt::format("grh.sgid_index is {}, the device has GID 0 only", attr.grh.sgid_index));
    auto ah = std::make_unique<SoftAh>();
    ah->context = &context_;
    ah->pd = pd;
    ah->attr = attr;
    const std::lock_guard guard(control_mutex_);
    require_working("make an address handle");
    fabric_->open_path(core_->gid, attr.grh.dgid);
    ++static_cast<SoftPd*>(pd)->users;
    return ah.release();
}

ibv_ah_attr SoftDevice::way_back(ibv_wc& wc, ibv_grh& grh) {
    if ((wc.wc_flags & IBV_WC_GRH) == 0) {
        throw Error(std::errc::invalid_argument,
                    fmt::format("cannot answer a message on {} that brought no GRH", describe()));
    }
    const std::uint32_t word = ntohl(grh.version_tclass_flow);
    ibv_ah_attr attr{};
    attr.is_global = 1;
    attr.port_num = port();
    attr.sl = wc.sl;
    attr.grh.dgid = grh.sgid;
    attr.grh.flow_label = word & 0xfffff;
    attr.grh.traffic_class = static_cast<std::uint8_t>(word >> 20);
    attr.grh.hop_limit = 0xff;
    return attr;
}

int SoftDevice::destroy(ibv_ah* ah) noexcept {
    const std::lock_guard guard(control_mutex_);
    auto* own = static_cast<SoftAh*>(ah);
    if (ended(own))
        return EIO;
    --static_cast<SoftPd*>(ah->pd)->users;
    return end(std::unique_ptr<SoftAh>(own));
}

// ---- CQs ----

ibv_cq* SoftDevice::create_cq(const CqOptions& options) {
    if (options.channel != nullptr) {
        throw Error(
            std::errc::operation_not_supported,
            fmt::format("cannot make a CQ with a completion channel on {}: it has none yet; poll the CQ",
                        describe()));
    }
    if (options.cqe == 0) {
        throw Error(std::errc::invalid_argument,
                    fmt::format("cannot make a CQ of 0 entries on {}; ask for 1 to {}", describe(),
                                options_.limits.cqes_max));
    }
    require_within(describe(), "CQ entries", options.cqe, options_.limits.cqes_max);
    if (options.comp_vector >= options_.limits.comp_vectors) {
        throw Error(std::errc::invalid_argument,
                    fmt::format("cannot make a CQ on completion vector {} of {}: it has {}, counted from 0",
                                options.comp_vector, describe(), options_.limits.comp_vectors));
    }
    if (options.extended && !options_.limits.extended_cqs) {
        throw Error(std::errc::operation_not_supported,
                    fmt::format("cannot make an extended CQ on {}: it has none; poll by ibv_poll_cq", describe()));
    }
    meet_fault(SoftFault::Kind::create_cq, "make a CQ");
    const std::lock_guard guard(control_mutex_);
    require_working("make a CQ");
    auto cq = std::make_unique<SoftCq>();
    soft::set_extended_ops(*cq);
    cq->engine_owner = engine_of(options.domain);
    cq->engine = cq->engine_owner.get();
    cq->capacity = options.cqe;
    const std::uint32_t slots = std::bit_ceil(options.cqe);
    cq->entries = OwnLines<soft::Cqe>(slots);
    if (options_.profile.copies_at_poll)
        cq->held = OwnLines<soft::HeldPayload>(slots);
    cq->mask = slots - 1;
    cq->context = &context_;
    cq->cq_context = options.cq_context;
    cq->cqe = static_cast<int>(options.cqe);
    pthread_mutex_init(&cq->mutex, nullptr);
    pthread_cond_init(&cq->cond, nullptr);
    return cq.release()->plain();
}

int SoftDevice::destroy(ibv_cq* cq) noexcept {
    const std::lock_guard guard(control_mutex_);
    auto* own = &SoftCq::of(*cq);
    if (ended(own))
        return EIO;
    if (own->users != 0 || core_->events.unacknowledged(cq) != 0)
        return EBUSY;
    if (const auto fault = core_->faults.meet(SoftFault::Kind::destroy_cq))
        return fault->error;
    {
        const std::lock_guard engine_guard(own->engine->lock());
        own->engine->remove(*own);
    }
    core_->events.forget(cq);
    pthread_mutex_destroy(&own->mutex);
    pthread_cond_destroy(&own->cond);
    return end(std::unique_ptr<SoftCq>(own));
}

// ---- QPs ----

ibv_qp* SoftDevice::create_qp(QpOptions& options) {
    const DeviceLimits& limits = options_.limits;
    const ibv_qp_cap& cap = options.cap;
    if (options.type != IBV_QPT_RC && options.type != IBV_QPT_UC && options.type != IBV_QPT_UD) {
        throw Error(std::errc::operation_not_supported,
                    fmt::format("cannot make a QP of type {} on {}: it has RC, UC and UD (types {}, {} and {})",
                                static_cast<int>(options.type), describe(), static_cast<int>(IBV_QPT_RC),
                                static_cast<int>(IBV_QPT_UC), static_cast<int>(IBV_QPT_UD)));
    }
    require_within(describe(), "send work requests per QP", cap.max_send_wr, limits.qp_depth_max);
    require_within(describe(), "receive work requests per QP", cap.max_recv_wr, limits.qp_depth_max);
    require_within(describe(), "SGEs per send", cap.max_send_sge, limits.sges_max);
    require_within(describe(), "SGEs per receive", cap.max_recv_sge, limits.sges_max);
    require_within(describe(), "inline bytes per send", cap.max_inline_data, limits.inline_max);
    meet_fault(SoftFault::Kind::create_qp, "make a QP");

    const std::lock_guard guard(control_mutex_);
    require_working("make a QP");
    require_within(describe(), "QPs", qps_ + 1, limits.qps_max);
    auto engine = engine_of(options.domain);
    auto* send_cq = options.send_cq == nullptr ? nullptr : &SoftCq::of(*options.send_cq);
    auto* recv_cq = options.recv_cq == nullptr ? nullptr : &SoftCq::of(*options.recv_cq);
    auto* srq = static_cast<SoftSrq*>(options.srq);
    if (options.pd == nullptr || send_cq == nullptr || recv_cq == nullptr ||
        send_cq->engine != engine.get() || recv_cq->engine != engine.get()) {
        throw Error(
            std::errc::invalid_argument,
            fmt::format(
                "cannot make a QP on {}: it needs a PD, a send CQ and a receive CQ, and both CQs of the "
                "QP's own thread domain",
                describe()));
    }
    if (srq != nullptr && srq->engine != engine.get()) {
        throw Error(std::errc::invalid_argument,
                    fmt::format("cannot make a QP on {}: its SRQ is of another thread domain", describe()));
    }
    auto qp = std::make_unique<SoftQp>();
    qp->sq.allocate(cap.max_send_wr, cap.max_send_sge);
    if (srq == nullptr) {
        qp->rq.allocate(cap.max_recv_wr, cap.max_recv_sge);
    } else {
        qp->taken_sges = OwnLines<ibv_sge>(srq->rq.sges_max);
    }
    qp->shared = srq;
    qp->srq = srq;
    qp->inline_max = cap.max_inline_data;
    qp->inline_memory = OwnLines<std::byte>(std::size_t{qp->sq.mask + 1} * cap.max_inline_data + 1);
    // Reads and atomics, an acknowledgement between each two, as many again for duplicates, a NAK.
    const std::uint32_t jobs = std::bit_ceil(2 * limits.rd_atomic_max + 2);
    qp->rx.jobs = OwnLines<soft::ResponseJob>(jobs);
    qp->rx.atomics = OwnLines<soft::AtomicResult>(jobs);
    qp->rx.jobs_mask = jobs - 1;
    qp->signal_all = options.signal_all;
    if (options.type == IBV_QPT_UD) {
        qp->destinations = OwnLines<soft::Destination>(qp->sq.mask + 1);
        qp->mtu = 128u << static_cast<unsigned>(options_.active_mtu);  // a datagram is one packet
    }
    qp->cap = cap;
    qp->engine = engine.get();
    qp->engine_owner = std::move(engine);
    qp->context = &context_;
    qp->qp_context = options.qp_context;
    qp->pd = options.pd;
    qp->send_cq = options.send_cq;
    qp->recv_cq = options.recv_cq;
    qp->state = IBV_QPS_RESET;
    qp->qp_type = options.type;
    {
        const std::lock_guard engine_guard(qp->engine->lock());
        if (!qp->engine->add(*qp)) {
            throw Error(
                std::errc::not_enough_memory,
                fmt::format(
                    "cannot make a QP on {}: its thread domain has {} already, the most that QP numbers can "
                    "tell apart; use another thread domain",
                    describe(), soft::kQpsPerEngineMax));
        }
    }
    pthread_mutex_init(&qp->mutex, nullptr);
    pthread_cond_init(&qp->cond, nullptr);
    ++qps_;
    ++send_cq->users;
    ++recv_cq->users;
    if (srq != nullptr)
        ++srq->users;
    ++static_cast<SoftPd*>(options.pd)->users;
    return qp.release();
}

int SoftDevice::destroy(ibv_qp* qp) noexcept {
    const std::lock_guard guard(control_mutex_);
    auto* own = static_cast<SoftQp*>(qp);
    if (ended(own))
        return EIO;
    if (core_->events.unacknowledged(qp) != 0)
        return EBUSY;
    if (const auto fault = core_->faults.meet(SoftFault::Kind::destroy_qp, qp->qp_num))
        return fault->error;
    {
        const std::lock_guard engine_guard(own->engine->lock());
        own->engine->remove(*own);
    }
    for (SoftMw* window : windows_)
        core_->memory.unbind(window->window, qp);
    core_->events.forget(qp);
    --qps_;
    --own->send_queue_cq().users;
    --own->recv_queue_cq().users;
    if (own->shared != nullptr)
        --own->shared->users;
    --static_cast<SoftPd*>(own->pd)->users;
    pthread_mutex_destroy(&own->mutex);
    pthread_cond_destroy(&own->cond);
    return end(std::unique_ptr<SoftQp>(own));
}

// ---- SRQs ----

ibv_srq* SoftDevice::create_srq(SrqOptions& options) {
    const DeviceLimits& limits = options_.limits;
    if (options.pd == nullptr || options.depth == 0) {
        throw Error(std::errc::invalid_argument,
                    fmt::format("cannot make an SRQ of {} receives on {}: it needs a PD and a depth of 1 to {}",
                                options.depth, describe(), limits.srq_depth_max));
    }
    require_within(describe(), "receives per SRQ", options.depth, limits.srq_depth_max);
    require_within(describe(), "SGEs per receive of an SRQ", options.sges_max, limits.srq_sges_max);
    const std::lock_guard guard(control_mutex_);
    require_working("make an SRQ");
    require_within(describe(), "SRQs", srqs_ + 1, limits.srqs_max);
    auto srq = std::make_unique<SoftSrq>();
    srq->engine_owner = engine_of(options.domain);
    srq->engine = srq->engine_owner.get();
    srq->rq.allocate(options.depth, options.sges_max);
    srq->context = &context_;
    srq->srq_context = options.srq_context;
    srq->pd = options.pd;
    pthread_mutex_init(&srq->mutex, nullptr);
    pthread_cond_init(&srq->cond, nullptr);
    ++srqs_;
    ++static_cast<SoftPd*>(options.pd)->users;
    return srq.release();
}

void SoftDevice::modify(ibv_srq* base, ibv_srq_attr& attr, int mask) {
    auto& srq = static_cast<SoftSrq&>(*base);
    if (mask != IBV_SRQ_LIMIT) {
        throw Error(std::errc::operation_not_supported,
                    fmt::format("cannot modify an SRQ on {} (attributes {:#x}): it takes IBV_SRQ_LIMIT only",
                                describe(), static_cast<unsigned>(mask)));
    }
    require_within(describe(), "receives as the limit of this SRQ", attr.srq_limit, srq.rq.depth);
    const std::lock_guard guard(control_mutex_);
    require_working("modify an SRQ");
    const std::lock_guard engine_guard(srq.engine->lock());
    srq.limit = attr.srq_limit;
    srq.engine->check_limit(srq);
}

ibv_srq_attr SoftDevice::query(ibv_srq* base) {
    auto& srq = static_cast<SoftSrq&>(*base);
    const std::lock_guard engine_guard(srq.engine->lock());
    return {.max_wr = srq.rq.depth, .max_sge = srq.rq.sges_max, .srq_limit = srq.limit};
}

int SoftDevice::destroy(ibv_srq* srq) noexcept {
    const std::lock_guard guard(control_mutex_);
    auto* own = static_cast<SoftSrq*>(srq);
    if (ended(own))
        return EIO;
    if (own->users != 0 || core_->events.unacknowledged(srq) != 0)
        return EBUSY;
    core_->events.forget(srq);
    --srqs_;
    --static_cast<SoftPd*>(own->pd)->users;
    pthread_mutex_destroy(&own->mutex);
    pthread_cond_destroy(&own->cond);
    return end(std::unique_ptr<SoftSrq>(own));
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
