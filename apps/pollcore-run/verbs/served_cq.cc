#include "served_cq.hpp"

#include <arpa/inet.h>
#include <sys/epoll.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <memory>
#include <string>

#include "conversions.hpp"
#include "exported.hpp"
#include "genuine.hpp"
#include "next_completion.hpp"
#include "refused_call.hpp"

namespace pollcore::served {
namespace {

// More receives may be posted than a completion queue has entries, so the ring has more slots than the program asks
// for.
constexpr std::uint32_t kSlotsMin = 4096;
constexpr std::uint32_t kSubmissionSlots = 1024;

std::uint32_t slots_for(int cqe) noexcept {
    return std::min(std::bit_ceil(std::max(static_cast<std::uint32_t>(cqe), kSlotsMin)), kCqesMax);
}

void open_session(Attachment& attachment, Cq& cq, std::string_view worker) {
    cq.session = attachment.open_session({.name = "cq",
                                          .worker = std::string(worker),
                                          .submission_slots = kSubmissionSlots,
                                          .completion_slots = cq.slots,
                                          .wide_completions = true,
                                          .device_time = cq.device_time,
                                          .events = cq.channel != nullptr,
                                          .flush_in_error = true});
    if (cq.channel != nullptr) {
        // No events until arm() asks for one.
        epoll_event none{.events = EPOLLONESHOT, .data = {.ptr = &cq}};
        if (::epoll_ctl(cq.channel->fd, EPOLL_CTL_ADD, cq.session.event_fd(), &none) != 0) {
            const int error = errno;
            cq.session = Session();  // the next queue pair tries again
            throw Error(error, "adding a completion queue to its completion channel");
        }
        if (cq.asked) {
            (void)arm(cq);
        }
    }
}

// Asks the worker for an event. What is in the session already must be out before: an event tells only of what comes
// after. Returns an errno value or 0.
int ask_worker(Cq& cq) {
    // Each reason for which arm() returns false is reported once, so the loop ends. A session that has ended returns
    // false for ever.
    constexpr unsigned kTriesMax = 1'000'000;
    for (unsigned tries = 0; tries < kTriesMax; ++tries) {
        cq.session.hand_over();
        if (cq.session.arm()) {
            epoll_event once{.events = EPOLLIN | EPOLLONESHOT, .data = {.ptr = &cq}};
            return ::epoll_ctl(cq.channel->fd, EPOLL_CTL_MOD, cq.session.event_fd(), &once) == 0 ? 0 : errno;
        }
        if (!take_more(cq, kBurst) && cq.attachment->lost()) {
            return 0;  // nothing comes any more
        }
    }
    return EIO;
}

void await_acknowledgements(Cq& cq) noexcept {
    pthread_mutex_lock(&cq.mutex);
    while (cq.comp_events_completed != cq.events_reported || cq.async_events_completed != cq.async.reported) {
        pthread_cond_wait(&cq.cond, &cq.mutex);
    }
    pthread_mutex_unlock(&cq.mutex);
}

Cq* make_cq(Opened& opened, int cqe, void* cq_context, ibv_comp_channel* channel, int comp_vector, bool device_time) {
    const DeviceAttributes& attributes = opened.device->attributes;
    if (cqe < 1 || static_cast<std::uint32_t>(cqe) > attributes.max_cqe) {
        throw Error(EINVAL, "a completion queue of this size cannot be made: see max_cqe of ibv_query_device()");
    }
    if (comp_vector < 0 || comp_vector >= opened.verbs.context.num_comp_vectors) {
        throw Error(EINVAL, "there is no such completion vector: see ibv_context::num_comp_vectors");
    }
    auto cq = std::make_unique<Cq>();
    cq->context = &opened.verbs.context;
    cq->channel = channel;
    cq->cq_context = cq_context;
    cq->cqe = cqe;
    cq->slots = slots_for(cqe);
    cq->device_time = device_time;
    cq->attachment = opened.attachment;
    pthread_mutex_init(&cq->mutex, nullptr);
    pthread_cond_init(&cq->cond, nullptr);
    const std::lock_guard guard(objects_mutex());
    all_cqs().reserve(all_cqs().size() + 1);
    if (channel != nullptr) {
        Channel& its = of(channel);
        const std::lock_guard channel_guard(its.mutex);
        its.cqs.push_back(cq.get());
        ++its.refcnt;
    }
    all_cqs().push_back(cq.get());
    return cq.release();
}

}  // namespace

void open_sessions(Attachment& attachment, Cq& send, Cq& recv) {
    // Both locks in one order, for two threads that make queue pairs with the completion queues exchanged.
    Cq& first = &send < &recv ? send : recv;
    Cq& second = &send < &recv ? recv : send;
    const std::lock_guard first_guard(first.lock);
    std::unique_lock<ShortLock> second_guard;
    if (&first != &second) {
        second_guard = std::unique_lock(second.lock);
    }
    if (!first.session.valid()) {
        open_session(attachment, first, second.session.valid() ? second.session.worker_name() : worker_wanted());
    }
    if (!second.session.valid()) {
        open_session(attachment, second, first.session.worker_name());
    }
    if (first.session.worker() != second.session.worker()) {
        throw Error(EINVAL,
                    "the two completion queues of the queue pair are on different workers, because other queue pairs "
                    "use them; start the program with `pollcore-run --worker NAME`");
    }
}

void end_session(Cq& cq) noexcept {
    cq.session.close();
    delete &cq;
}

void make_room(Cq& cq) {
    cq.taken.resize(cq.taken.size() + kBurst);
}

int arm(Cq& cq) noexcept {
    try {
        if (const int error = ask_worker(cq); error != 0) {
            return error;
        }
    } catch (const std::bad_alloc&) {
        return ENOMEM;
    }
    cq.taken_at_arm = cq.taken_ever;
    return 0;
}

bool came_since_arm(Cq& cq) noexcept {
    try {
        while (take_more(cq, kBurst)) {
        }
        if (cq.taken_ever == cq.taken_at_arm) {
            (void)ask_worker(cq);
        }
    } catch (const std::bad_alloc&) {
        return true;  // an event too many does less harm than one too few
    }
    return cq.taken_ever != cq.taken_at_arm;
}

int poll_cq(ibv_cq* verbs, int num_entries, ibv_wc* wc) noexcept {
    Cq& cq = of(verbs);
    const std::lock_guard guard(cq.lock);
    int done = 0;
    for (; done < num_entries; ++done) {
        const auto [from, qp] = next_completion(cq, static_cast<std::size_t>(num_entries - done));
        if (from == nullptr) {
            break;
        }
        ibv_wc& to = wc[done];
        to.wr_id = from->tag;
        to.status = to_wc_status(from->status);
        to.opcode = to_wc_opcode(from->opcode);
        to.byte_len = from->byte_len;
        to.qp_num = qp->qp_base.qp_num;
        to.wc_flags = to_wc_flags(*from);
        if (from->status == Status::success) [[likely]] {
            to.vendor_err = 0;
            to.imm_data = (from->flags & kWithImm) != 0 ? htonl(from->imm_data) : from->invalidated_rkey;
        } else {
            to.vendor_err =
                static_cast<unsigned>(from->status) < 128 ? from->vendor_err : static_cast<unsigned>(from->status);
            to.imm_data = 0;
        }
        to.src_qp = from->src_qp;
        to.pkey_index = from->pkey_index;
        to.slid = from->slid;
        to.sl = from->sl;
        to.dlid_path_bits = from->dlid_path_bits;
    }
    return done;
}

// `solicited_only` is no concern of a worker: there are more events than the program asks for, never fewer.
int req_notify_cq(ibv_cq* verbs, int) noexcept {
    Cq& cq = of(verbs);
    if (cq.channel == nullptr) {
        return 0;
    }
    const std::lock_guard guard(cq.lock);
    if (!cq.session.valid()) {
        cq.asked = true;
        return 0;
    }
    return arm(cq);
}

ibv_cq_ex* create_cq_ex(ibv_context* context, ibv_cq_init_attr_ex* init) noexcept {
    return made_by("ibv_create_cq_ex()", [&]() -> ibv_cq_ex* {
        constexpr std::uint32_t kMaskServed = IBV_CQ_INIT_ATTR_MASK_FLAGS | IBV_CQ_INIT_ATTR_MASK_PD;
        constexpr std::uint32_t kFlagsServed = IBV_CREATE_CQ_ATTR_SINGLE_THREADED | IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN;
        Opened& opened = of(context);
        const bool has_time = opened.device->attributes.completion_timestamp_mask != 0;
        if ((init->comp_mask & ~kMaskServed) != 0 || (init->wc_flags & ~extended_flags_served(has_time)) != 0 ||
            ((init->comp_mask & IBV_CQ_INIT_ATTR_MASK_FLAGS) != 0 && (init->flags & ~kFlagsServed) != 0)) {
            throw Error(EOPNOTSUPP, "the completion queue is asked for what cannot be served");
        }
        Cq* const cq =
            make_cq(opened, static_cast<int>(init->cqe), init->cq_context, init->channel,
                    static_cast<int>(init->comp_vector), (init->wc_flags & IBV_WC_EX_WITH_COMPLETION_TIMESTAMP) != 0);
        install_extended(*cq, init->wc_flags);
        return cq;
    });
}

int modify_cq(ibv_cq*, ibv_modify_cq_attr*) noexcept {
    return EOPNOTSUPP;
}

}  // namespace pollcore::served

using namespace pollcore::served;

POLLCORE_VERBS_EXPORT ibv_cq* ibv_create_cq(ibv_context* context, int cqe, void* cq_context, ibv_comp_channel* channel,
                                            int comp_vector) {
    if (!is_ours(context)) {
        return POLLCORE_GENUINE(ibv_create_cq)(context, cqe, cq_context, channel, comp_vector);
    }
    Cq* const cq =
        made_by("ibv_create_cq()", [&] { return make_cq(of(context), cqe, cq_context, channel, comp_vector, false); });
    return cq == nullptr ? nullptr : verbs_of(*cq);
}

POLLCORE_VERBS_EXPORT int ibv_resize_cq(ibv_cq* cq, int cqe) {
    if (!is_ours(cq->context)) {
        return POLLCORE_GENUINE(ibv_resize_cq)(cq, cqe);
    }
    if (const int error = error_of("ibv_resize_cq()", [&] { require_own_process(cq->context); }); error != 0) {
        return error;
    }
    Cq& its = of(cq);
    const std::lock_guard guard(its.lock);
    if (cqe < 1 || static_cast<std::uint32_t>(cqe) > kCqesMax) {
        return EINVAL;
    }
    if (!its.session.valid()) {
        its.slots = slots_for(cqe);
    } else if (static_cast<std::uint32_t>(cqe) > its.slots) {
        return ENOSYS;
    }
    const auto holds = [&] { return its.count - its.next; };
    while (holds() <= static_cast<std::size_t>(cqe) && take_more(its, kBurst)) {
    }
    if (holds() > static_cast<std::size_t>(cqe)) {
        return EINVAL;  // ibv_resize_cq(3): it must not become smaller than what it holds
    }
    its.cqe = cqe;
    return 0;
}

POLLCORE_VERBS_EXPORT int ibv_destroy_cq(ibv_cq* verbs) {
    if (!is_ours(verbs->context)) {
        return POLLCORE_GENUINE(ibv_destroy_cq)(verbs);
    }
    Cq& cq = of(verbs);
    {
        const std::lock_guard guard(objects_mutex());
        if (cq.users.load(std::memory_order_relaxed) != 0) {
            return EBUSY;
        }
        std::erase(all_cqs(), &cq);
        drop_events_of(of(cq.context), verbs);
        if (cq.channel != nullptr) {
            Channel& its = of(cq.channel);
            const std::lock_guard channel_guard(its.mutex);
            std::erase(its.cqs, &cq);
            --its.refcnt;
            if (cq.session.valid()) {
                (void)::epoll_ctl(cq.channel->fd, EPOLL_CTL_DEL, cq.session.event_fd(), nullptr);
            }
        }
    }
    await_acknowledgements(cq);
    pthread_cond_destroy(&cq.cond);
    pthread_mutex_destroy(&cq.mutex);
    {
        const std::lock_guard guard(objects_mutex());
        cq.destroyed = cq.srqs.load(std::memory_order_relaxed) != 0;
        if (cq.destroyed) {
            return 0;
        }
    }
    end_session(cq);
    return 0;
}
