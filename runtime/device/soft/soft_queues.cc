// Makes and destroys the queues of the software device: CQs, QPs and SRQs.
#include <bit>
#include <cerrno>

#include <fmt/format.h>

#include "device/soft/channel.hpp"
#include "device/soft/engine.hpp"
#include "device/soft/queues.hpp"
#include "device/soft/soft_device.hpp"
#include "device/soft/verbs_ops.hpp"
#include "pollcore/limits.hpp"

namespace pollcore {

using soft::Engine;
using soft::SoftCq;
using soft::SoftMw;
using soft::SoftPd;
using soft::SoftQp;
using soft::SoftSrq;

// ---- CQs ----

ibv_cq* SoftDevice::create_cq(const CqOptions& options) {
    if (options.cqe == 0) {
        throw Error(std::errc::invalid_argument, fmt::format("cannot make a CQ of 0 entries on {}; ask for 1 to {}",
                                                             describe(), options_.limits.cqes_max));
    }
    require_within("CQ entries", options.cqe, options_.limits.cqes_max);
    if (options.comp_vector >= options_.limits.comp_vectors) {
        throw Error(std::errc::invalid_argument,
                    fmt::format("cannot make a CQ on completion vector {} of {}: it has {}, counted from 0",
                                options.comp_vector, describe(), options_.limits.comp_vectors));
    }
    if (options.extended && !options_.limits.extended_cqs) {
        throw Error(std::errc::operation_not_supported,
                    fmt::format("cannot make an extended CQ on {}: it has none; poll by ibv_poll_cq", describe()));
    }
    if (options.device_time && options_.limits.completion_timestamp_mask == 0) {
        throw Error(std::errc::operation_not_supported,
                    fmt::format("cannot make a CQ with time stamps on {}: it has none", describe()));
    }
    meet_fault(SoftFault::Kind::create_cq, "make a CQ");
    const std::lock_guard guard(control_mutex_);
    require_working("make a CQ");
    auto cq = std::make_unique<SoftCq>();
    soft::set_extended_ops(*cq);
    cq->engine_owner = engine_of(options.domain);
    cq->engine = cq->engine_owner.get();
    if (options.channel != nullptr) {
        cq->events_to = static_cast<soft::Channel*>(options.channel)->shared_from_this();
        cq->channel = options.channel;
        if (&cq->events_to->engine() != cq->engine) {
            throw Error(
                std::errc::invalid_argument,
                fmt::format("cannot make a CQ on {}: its completion channel is of another thread domain", describe()));
        }
    }
    cq->capacity = options.cqe;
    const std::uint32_t slots = std::bit_ceil(options.cqe);
    cq->entries = OwnLines<soft::Cqe>(slots);
    if (options_.profile.copies_at_poll)
        cq->held = OwnLines<soft::HeldPayload>(slots);
    if (options.device_time) {
        cq->times = OwnLines<std::uint64_t>(slots);
        soft::set_time_op(*cq);
    }
    cq->keeps_more = !cq->held.empty() || !cq->times.empty();
    cq->mask = slots - 1;
    cq->context = &context_;
    cq->cq_context = options.cq_context;
    cq->cqe = static_cast<int>(options.cqe);
    {
        const std::lock_guard engine_guard(cq->engine->lock());
        cq->engine->add(*cq);
    }
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
    {
        const std::lock_guard engine_guard(own->engine->lock());
        if (own->events_taken != 0)
            return EBUSY;
    }
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

void SoftDevice::moderate(ibv_cq* cq, std::uint16_t count, std::uint16_t period_us) {
    auto& own = SoftCq::of(*cq);
    if (own.events_to == nullptr) {
        throw Error(std::errc::invalid_argument,
                    fmt::format("cannot moderate the events of a CQ on {}: it has no completion channel", describe()));
    }
    const std::lock_guard guard(own.engine->lock());
    // Without a period, fewer than `count` completions would never raise an event. No provider behaves like this.
    own.moderation.count = period_us == 0 ? 1u : std::max<std::uint32_t>(count, 1);
    own.moderation.period_ns = std::uint64_t{period_us} * 1000;
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
    require_within("send work requests per QP", cap.max_send_wr, limits.qp_depth_max);
    require_within("receive work requests per QP", cap.max_recv_wr, limits.qp_depth_max);
    require_within("SGEs per send", cap.max_send_sge, limits.sges_max);
    require_within("SGEs per receive", cap.max_recv_sge, limits.sges_max);
    require_within("inline bytes per send", cap.max_inline_data, limits.inline_max);
    meet_fault(SoftFault::Kind::create_qp, "make a QP");

    const std::lock_guard guard(control_mutex_);
    require_working("make a QP");
    require_within("QPs", qps_ + 1, limits.qps_max);
    auto engine = engine_of(options.domain);
    auto* send_cq = options.send_cq == nullptr ? nullptr : &SoftCq::of(*options.send_cq);
    auto* recv_cq = options.recv_cq == nullptr ? nullptr : &SoftCq::of(*options.recv_cq);
    auto* srq = static_cast<SoftSrq*>(options.srq);
    if (options.pd == nullptr || send_cq == nullptr || recv_cq == nullptr || send_cq->engine != engine.get() ||
        recv_cq->engine != engine.get()) {
        throw Error(
            std::errc::invalid_argument,
            fmt::format("cannot make a QP on {}: it needs a PD, a send CQ and a receive CQ, and both CQs of the "
                        "QP's own thread domain",
                        describe()));
    }
    if (srq != nullptr && srq->engine != engine.get()) {
        throw Error(std::errc::invalid_argument,
                    fmt::format("cannot make a QP on {}: its SRQ is of another thread domain", describe()));
    }
    auto qp = std::make_unique<SoftQp>();
    qp->payload_in_cqe = options_.profile.copies_at_poll && !options.leave_memory;
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
    // Room for rd_atomic_max reads and atomics, for an acknowledgement before, between and behind them, and for a NAK.
    // If more answers are due, requests are dropped (on_request).
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
                fmt::format("cannot make a QP on {}: its thread domain has {} already, the most that QP numbers can "
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
    require_within("receives per SRQ", options.depth, limits.srq_depth_max);
    require_within("SGEs per receive of an SRQ", options.sges_max, limits.srq_sges_max);
    const std::lock_guard guard(control_mutex_);
    require_working("make an SRQ");
    require_within("SRQs", srqs_ + 1, limits.srqs_max);
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
    require_within("receives as the limit of this SRQ", attr.srq_limit, srq.rq.depth);
    const std::lock_guard guard(control_mutex_);
    require_working("modify an SRQ");
    const std::lock_guard engine_guard(srq.engine->lock());
    srq.limit = attr.srq_limit;
    srq.engine->check_limit(srq);
}

// A write's packets are stored one after the other. The last bytes of each packet are stored last, in order.
bool SoftDevice::writes_in_order(ibv_qp* base) {
    auto& qp = static_cast<SoftQp&>(*base);
    const std::lock_guard engine_guard(qp.engine->lock());
    return qp.current == IBV_QPS_RTS && !core_->profile.promises_no_order;
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

}  // namespace pollcore
