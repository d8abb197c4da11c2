// Queue pairs and shared receive queues. Queue pairs are driven by hand (QueuePairOptions::by_hand), so their numbers,
// PSNs and states are what the program has set, and the peer may be any verbs program.
#include "served_qp.hpp"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <memory>

#include "conversions.hpp"
#include "exported.hpp"
#include "genuine.hpp"
#include "opened_device.hpp"
#include "refused_call.hpp"
#include "served_cq.hpp"
#include "served_posts.hpp"

namespace pollcore::served {
namespace {

// Providers give more than they are asked for, and programs have come to rely on it: perftest on 16 requests, UCX on 64
// bytes inline.
constexpr std::uint32_t kSendDepthMin = 16;
constexpr std::uint32_t kInlineMin = 64;

// Locks the completion queues of a queue pair, in one order everywhere.
class CqLocks {
public:
    CqLocks(Cq& one, Cq& other) noexcept : first_(&one < &other ? one : other), second_(&one < &other ? other : one) {
        first_.lock.lock();
        if (&first_ != &second_) {
            second_.lock.lock();
        }
    }
    ~CqLocks() {
        if (&first_ != &second_) {
            second_.lock.unlock();
        }
        first_.lock.unlock();
    }
    CqLocks(const CqLocks&) = delete;
    CqLocks& operator=(const CqLocks&) = delete;

private:
    Cq& first_;
    Cq& second_;
};

// Hides a queue pair from completions and events while the daemon resets or closes it. The daemon takes it to ERR
// first, and the program should not hear of that.
class Hidden {
public:
    explicit Hidden(Qp& qp) noexcept : qp_(qp), handle_(qp.handle.load(std::memory_order_relaxed)) {
        show(kNoQueuePair);
    }
    ~Hidden() { show(handle_); }
    Hidden(const Hidden&) = delete;
    Hidden& operator=(const Hidden&) = delete;
    /// The handle that the queue pair has afterwards. Without this call it is the former one.
    void then(QpHandle handle) noexcept { handle_ = handle; }

private:
    void show(QpHandle handle) noexcept {
        const CqLocks locks(*qp_.send_cq, *qp_.recv_cq);
        qp_.handle.store(handle, std::memory_order_relaxed);
    }

    Qp& qp_;
    QpHandle handle_;
};

void await(pthread_mutex_t& mutex, pthread_cond_t& cond, const std::uint32_t& completed,
           const EventCount& count) noexcept {
    pthread_mutex_lock(&mutex);
    while (completed != count.reported) {
        pthread_cond_wait(&cond, &mutex);
    }
    pthread_mutex_unlock(&mutex);
}

// A shared receive queue belongs to the session of its first queue pair's receive completion queue.
void give_session(Srq& srq, Cq& cq) {
    const std::lock_guard guard(srq.lock);
    Cq* const has = srq.cq.load(std::memory_order_relaxed);
    if (has == &cq) {
        return;
    }
    if (has != nullptr) {
        throw Error(EOPNOTSUPP,
                    "the queue pairs of a shared receive queue must have one receive completion queue, because its "
                    "receives all complete there");
    }
    const Opened& opened = *srq.opened;
    srq.queue = opened.attachment->create_shared_receive_queue({.device = opened.device->name,
                                                                .pd = &of(srq.pd).own,
                                                                .session = &cq.session,
                                                                .depth = srq.attributes.max_wr,
                                                                .sges_max = srq.attributes.max_sge});
    const std::lock_guard cq_guard(cq.lock);
    cq.session.hand_over();
    cq.srqs.fetch_add(1, std::memory_order_relaxed);
    srq.cq.store(&cq, std::memory_order_release);
    submit_early(srq);
    if (srq.limit_wanted != 0) {
        srq.queue.arm_limit(srq.limit_wanted);
    }
}

struct Wanted {
    ibv_pd* pd = nullptr;
    void* qp_context = nullptr;
    ibv_cq* send_cq = nullptr;
    ibv_cq* recv_cq = nullptr;
    ibv_srq* srq = nullptr;
    ibv_qp_cap cap{};
    ibv_qp_type type = IBV_QPT_RC;
    bool signal_all = false;
    std::uint64_t send_ops = 0;
    bool has_send_ops = false;
};

void require_served(const Wanted& wanted, const Device& device) {
    if (wanted.type != IBV_QPT_RC && wanted.type != IBV_QPT_UC && wanted.type != IBV_QPT_UD) {
        throw Error(EOPNOTSUPP, "only RC, UC and UD queue pairs are served: no XRC, no DC, no raw packets");
    }
    if (wanted.send_cq == nullptr || wanted.recv_cq == nullptr) {
        throw Error(EINVAL, "a queue pair needs completion queues for sends and receives");
    }
    if ((wanted.send_ops & ~builders_served(wanted.type)) != 0) {
        throw Error(EOPNOTSUPP, "a queue pair is asked for operations of ibv_wr_start() that are not served");
    }
    const DeviceAttributes& most = device.attributes;
    const ibv_qp_cap& cap = wanted.cap;
    if (cap.max_send_wr > most.max_qp_wr || cap.max_recv_wr > most.max_qp_wr ||
        std::max(cap.max_send_sge, cap.max_recv_sge) > most.max_sge || cap.max_inline_data > kInlineMax) {
        throw Error(EINVAL,
                    "the queue pair is larger than the device allows (ibv_query_device(3)), or asks for more "
                    "than 32 SGEs or 1024 bytes inline");
    }
}

// What a provider would round up to.
ibv_qp_cap rounded(const ibv_qp_cap& cap, const Device& device, bool has_srq) noexcept {
    const DeviceAttributes& most = device.attributes;
    ibv_qp_cap to = cap;
    to.max_send_wr = std::min(std::bit_ceil(std::max(cap.max_send_wr, kSendDepthMin)), most.max_qp_wr);
    to.max_recv_wr = has_srq ? 0 : cap.max_recv_wr;
    to.max_send_sge = std::max(cap.max_send_sge, 1u);
    to.max_recv_sge = has_srq ? 0 : std::max(cap.max_recv_sge, 1u);
    to.max_inline_data = std::max(cap.max_inline_data, kInlineMin);
    return to;
}

Qp* make_qp(const Wanted& wanted) {
    Opened& opened = of(wanted.pd->context);
    require_served(wanted, *opened.device);
    auto qp = std::make_unique<Qp>();
    qp->send_cq = &of(wanted.send_cq);
    qp->recv_cq = &of(wanted.recv_cq);
    qp->srq = wanted.srq == nullptr ? nullptr : &of(wanted.srq);
    qp->cap = rounded(wanted.cap, *opened.device, qp->srq != nullptr);
    qp->signal_all = wanted.signal_all;
    Pd& pd = of(wanted.pd);
    open_sessions(*opened.attachment, *qp->send_cq, *qp->recv_cq);
    if (qp->srq != nullptr) {
        give_session(*qp->srq, *qp->recv_cq);
    }
    QueuePairOptions options{.type = static_cast<QpType>(wanted.type),
                             .device = opened.device->name,
                             .pd = &pd.own,
                             .recv_depth = std::max(qp->cap.max_recv_wr, 1u),
                             .srq = qp->srq == nullptr ? nullptr : &qp->srq->queue,
                             .sges_max = std::max({qp->cap.max_send_sge, qp->cap.max_recv_sge, 1u}),
                             .inline_max = qp->cap.max_inline_data,
                             .by_hand = true};
    // The first session has the receives.
    if (qp->send_cq != qp->recv_cq) {
        options.shares.push_back({.session = &qp->recv_cq->session, .send_depth = 0});
    }
    options.shares.push_back({.session = &qp->send_cq->session, .send_depth = qp->cap.max_send_wr});
    qp->queue = opened.attachment->create_queue_pair(options);
    const QpHandle handle = qp->queue.handle();
    qp->handle.store(handle, std::memory_order_relaxed);

    ibv_qp& verbs = qp->qp_base;
    verbs.context = wanted.pd->context;
    verbs.qp_context = wanted.qp_context;
    verbs.pd = wanted.pd;
    verbs.send_cq = wanted.send_cq;
    verbs.recv_cq = wanted.recv_cq;
    verbs.srq = wanted.srq;
    verbs.handle = handle.index;
    verbs.qp_num = qp->queue.qp_num();
    verbs.state = IBV_QPS_RESET;
    verbs.qp_type = wanted.type;
    pthread_mutex_init(&verbs.mutex, nullptr);
    pthread_cond_init(&verbs.cond, nullptr);
    if (wanted.has_send_ops) {
        install_builders(*qp, wanted.send_ops);
        qp->send_ops = wanted.send_ops;
    }
    const std::lock_guard guard(objects_mutex());
    qp->send_cq->users.fetch_add(1, std::memory_order_relaxed);
    qp->recv_cq->users.fetch_add(1, std::memory_order_relaxed);
    if (qp->srq != nullptr) {
        qp->srq->users.fetch_add(1, std::memory_order_relaxed);
    }
    pd.users.fetch_add(1, std::memory_order_relaxed);
    queue_pairs().set(handle.index, qp.get());
    return qp.release();
}

void modify(Qp& qp, const ibv_qp_attr& attr, int mask) {
    require_own_process(qp.qp_base.context);
    const std::lock_guard guard(qp.moves);
    const bool to_reset = (mask & IBV_QP_STATE) != 0 && number_of(attr.qp_state) == IBV_QPS_RESET;
    if (!to_reset) {
        qp.queue.modify(to_attributes(attr, mask));
    } else if (mask != IBV_QP_STATE) {
        throw Error(EINVAL, "the way to RESET takes no attributes");
    } else {
        Hidden hidden(qp);
        // Completions that the queue pair has had so far are dropped, since its handle has a new generation.
        (void)qp.queue.reset();
        hidden.then(qp.queue.handle());
    }
    if ((mask & IBV_QP_STATE) != 0) {
        qp.qp_base.state = attr.qp_state;
    }
}

Srq* make_srq(ibv_pd* pd, void* srq_context, ibv_srq_attr& attr) {
    Opened& opened = of(pd->context);
    const DeviceAttributes& most = opened.device->attributes;
    if (attr.max_wr == 0 || attr.max_wr > most.max_srq_wr || attr.max_sge > most.max_srq_sge) {
        throw Error(EINVAL,
                    "a shared receive queue of this size cannot be made: see max_srq_wr and max_srq_sge of "
                    "ibv_query_device()");
    }
    auto srq = std::make_unique<Srq>();
    srq->context = pd->context;
    srq->srq_context = srq_context;
    srq->pd = pd;
    srq->opened = &opened;
    attr.max_sge = std::max(attr.max_sge, 1u);
    srq->attributes = attr;
    srq->attributes.srq_limit = 0;
    pthread_mutex_init(&srq->mutex, nullptr);
    pthread_cond_init(&srq->cond, nullptr);
    const std::lock_guard guard(objects_mutex());
    all_srqs().push_back(srq.get());
    of(pd).users.fetch_add(1, std::memory_order_relaxed);
    return srq.release();
}

}  // namespace

ibv_qp* create_qp_ex(ibv_context*, ibv_qp_init_attr_ex* init) noexcept {
    return made_by("ibv_create_qp_ex()", [&]() -> ibv_qp* {
        constexpr std::uint32_t kServed =
            IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS | IBV_QP_INIT_ATTR_CREATE_FLAGS;
        const bool flags = (init->comp_mask & IBV_QP_INIT_ATTR_CREATE_FLAGS) != 0 && init->create_flags != 0;
        if ((init->comp_mask & ~kServed) != 0 || flags || (init->comp_mask & IBV_QP_INIT_ATTR_PD) == 0) {
            throw Error((init->comp_mask & IBV_QP_INIT_ATTR_PD) == 0 ? EINVAL : EOPNOTSUPP,
                        "ibv_create_qp_ex() with attributes that are not served");
        }
        const bool ops = (init->comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS) != 0;
        Qp* const qp = make_qp({.pd = init->pd,
                                .qp_context = init->qp_context,
                                .send_cq = init->send_cq,
                                .recv_cq = init->recv_cq,
                                .srq = init->srq,
                                .cap = init->cap,
                                .type = init->qp_type,
                                .signal_all = init->sq_sig_all != 0,
                                .send_ops = ops ? init->send_ops_flags : 0,
                                .has_send_ops = ops});
        init->cap = qp->cap;
        return &qp->qp_base;
    });
}

ibv_srq* create_srq_ex(ibv_context*, ibv_srq_init_attr_ex* init) noexcept {
    return made_by("ibv_create_srq_ex()", [&]() -> ibv_srq* {
        constexpr std::uint32_t kServed = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD;
        const bool basic = (init->comp_mask & IBV_SRQ_INIT_ATTR_TYPE) == 0 || init->srq_type == IBV_SRQT_BASIC;
        if (!basic || (init->comp_mask & ~kServed) != 0) {
            throw Error(EOPNOTSUPP, "only basic shared receive queues are served: no XRC, no tag matching");
        }
        if ((init->comp_mask & IBV_SRQ_INIT_ATTR_PD) == 0) {
            throw Error(EINVAL, "a shared receive queue needs a protection domain");
        }
        return make_srq(init->pd, init->srq_context, init->attr);
    });
}

}  // namespace pollcore::served

using namespace pollcore::served;

POLLCORE_VERBS_EXPORT ibv_qp* ibv_create_qp(ibv_pd* pd, ibv_qp_init_attr* init) {
    if (!is_ours(pd->context)) {
        return POLLCORE_GENUINE(ibv_create_qp)(pd, init);
    }
    return made_by("ibv_create_qp()", [&]() -> ibv_qp* {
        Qp* const qp = make_qp({.pd = pd,
                                .qp_context = init->qp_context,
                                .send_cq = init->send_cq,
                                .recv_cq = init->recv_cq,
                                .srq = init->srq,
                                .cap = init->cap,
                                .type = init->qp_type,
                                .signal_all = init->sq_sig_all != 0});
        init->cap = qp->cap;
        return &qp->qp_base;
    });
}

POLLCORE_VERBS_EXPORT ibv_qp_ex* ibv_qp_to_qp_ex(ibv_qp* verbs) {
    if (!is_ours(verbs->context)) {
        return POLLCORE_GENUINE(ibv_qp_to_qp_ex)(verbs);
    }
    Qp& qp = of(verbs);
    return qp.wr_start == nullptr ? nullptr : &qp;
}

POLLCORE_VERBS_EXPORT int ibv_modify_qp(ibv_qp* qp, ibv_qp_attr* attr, int attr_mask) {
    if (!is_ours(qp->context)) {
        return POLLCORE_GENUINE(ibv_modify_qp)(qp, attr, attr_mask);
    }
    return error_of("ibv_modify_qp()", [&] { modify(of(qp), *attr, attr_mask); });
}

POLLCORE_VERBS_EXPORT int ibv_query_qp(ibv_qp* verbs, ibv_qp_attr* attr, int attr_mask, ibv_qp_init_attr* init) {
    if (!is_ours(verbs->context)) {
        return POLLCORE_GENUINE(ibv_query_qp)(verbs, attr, attr_mask, init);
    }
    return error_of("ibv_query_qp()", [&] {
        require_own_process(verbs->context);
        Qp& qp = of(verbs);
        const std::lock_guard guard(qp.moves);
        *attr = {};
        fill_attr(*attr, qp.queue.query(), verbs->qp_type);
        attr->cap = qp.cap;
        verbs->state = attr->qp_state;
        *init = {.qp_context = verbs->qp_context,
                 .send_cq = verbs->send_cq,
                 .recv_cq = verbs->recv_cq,
                 .srq = verbs->srq,
                 .cap = qp.cap,
                 .qp_type = verbs->qp_type,
                 .sq_sig_all = qp.signal_all};
    });
}

POLLCORE_VERBS_EXPORT int ibv_destroy_qp(ibv_qp* verbs) {
    if (!is_ours(verbs->context)) {
        return POLLCORE_GENUINE(ibv_destroy_qp)(verbs);
    }
    Qp& qp = of(verbs);
    const int error = error_of("ibv_destroy_qp()", [&] {
        require_own_process(verbs->context);
        Hidden hidden(qp);
        (void)qp.queue.close();
        hidden.then(kNoQueuePair);
    });
    if (error != 0) {
        return error;
    }
    {
        const std::lock_guard guard(objects_mutex());
        {
            const CqLocks locks(*qp.send_cq, *qp.recv_cq);
            queue_pairs().remove(qp.queue.handle().index, &qp);
        }
        drop_events_of(of(verbs->context), verbs);
        qp.send_cq->users.fetch_sub(1, std::memory_order_relaxed);
        qp.recv_cq->users.fetch_sub(1, std::memory_order_relaxed);
        if (qp.srq != nullptr) {
            qp.srq->users.fetch_sub(1, std::memory_order_relaxed);
        }
        of(verbs->pd).users.fetch_sub(1, std::memory_order_relaxed);
    }
    await(verbs->mutex, verbs->cond, verbs->events_completed, qp.async);
    pthread_cond_destroy(&verbs->cond);
    pthread_mutex_destroy(&verbs->mutex);
    delete &qp;
    return 0;
}

POLLCORE_VERBS_EXPORT int ibv_query_ece(ibv_qp* qp, ibv_ece* ece) {
    if (!is_ours(qp->context)) {
        return POLLCORE_GENUINE(ibv_query_ece)(qp, ece);
    }
    *ece = {};  // no options
    return 0;
}

POLLCORE_VERBS_EXPORT int ibv_set_ece(ibv_qp* qp, ibv_ece* ece) {
    if (!is_ours(qp->context)) {
        return POLLCORE_GENUINE(ibv_set_ece)(qp, ece);
    }
    return ece->vendor_id == 0 && ece->options == 0 ? 0 : EOPNOTSUPP;
}

POLLCORE_VERBS_EXPORT int ibv_query_qp_data_in_order(ibv_qp* qp, ibv_wr_opcode op, std::uint32_t flags) {
    return is_ours(qp->context) ? 0 : POLLCORE_GENUINE(ibv_query_qp_data_in_order)(qp, op, flags);
}

POLLCORE_VERBS_EXPORT ibv_srq* ibv_create_srq(ibv_pd* pd, ibv_srq_init_attr* init) {
    if (!is_ours(pd->context)) {
        return POLLCORE_GENUINE(ibv_create_srq)(pd, init);
    }
    return made_by("ibv_create_srq()", [&]() -> ibv_srq* { return make_srq(pd, init->srq_context, init->attr); });
}

POLLCORE_VERBS_EXPORT int ibv_modify_srq(ibv_srq* verbs, ibv_srq_attr* attr, int attr_mask) {
    if (!is_ours(verbs->context)) {
        return POLLCORE_GENUINE(ibv_modify_srq)(verbs, attr, attr_mask);
    }
    return error_of("ibv_modify_srq()", [&] {
        require_own_process(verbs->context);
        Srq& srq = of(verbs);
        if ((attr_mask & ~IBV_SRQ_LIMIT) != 0) {
            throw pollcore::Error(EOPNOTSUPP, "a shared receive queue keeps its size");
        }
        const std::lock_guard guard(srq.lock);
        if (attr->srq_limit > srq.attributes.max_wr) {
            throw pollcore::Error(EINVAL, "the limit is more than the shared receive queue has room for");
        }
        srq.limit_wanted = attr->srq_limit;
        if (srq.queue.valid()) {
            srq.queue.arm_limit(attr->srq_limit);
        }
    });
}

POLLCORE_VERBS_EXPORT int ibv_query_srq(ibv_srq* verbs, ibv_srq_attr* attr) {
    if (!is_ours(verbs->context)) {
        return POLLCORE_GENUINE(ibv_query_srq)(verbs, attr);
    }
    return error_of("ibv_query_srq()", [&] {
        require_own_process(verbs->context);
        Srq& srq = of(verbs);
        const std::lock_guard guard(srq.lock);
        *attr = srq.attributes;
        attr->srq_limit = srq.queue.valid() ? srq.queue.limit() : srq.limit_wanted;
    });
}

POLLCORE_VERBS_EXPORT int ibv_destroy_srq(ibv_srq* verbs) {
    if (!is_ours(verbs->context)) {
        return POLLCORE_GENUINE(ibv_destroy_srq)(verbs);
    }
    Srq& srq = of(verbs);
    {
        const std::lock_guard guard(objects_mutex());
        if (srq.users.load(std::memory_order_relaxed) != 0) {
            return EBUSY;
        }
    }
    if (srq.queue.valid()) {
        if (const int error = error_of("ibv_destroy_srq()", [&] { srq.queue.close(); }); error != 0) {
            return error;
        }
    }
    Cq* unused = nullptr;
    {
        const std::lock_guard guard(objects_mutex());
        std::erase(all_srqs(), &srq);
        drop_events_of(of(verbs->context), verbs);
        if (Cq* const cq = srq.cq.load(std::memory_order_relaxed); cq != nullptr) {
            const bool was_last = cq->srqs.fetch_sub(1, std::memory_order_relaxed) == 1;
            unused = was_last && cq->destroyed ? cq : nullptr;
        }
        of(verbs->pd).users.fetch_sub(1, std::memory_order_relaxed);
    }
    if (unused != nullptr) {
        end_session(*unused);
    }
    await(verbs->mutex, verbs->cond, verbs->events_completed, srq.async);
    pthread_cond_destroy(&verbs->cond);
    pthread_mutex_destroy(&verbs->mutex);
    delete &srq;
    return 0;
}
