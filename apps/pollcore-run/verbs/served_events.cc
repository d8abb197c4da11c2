// Asynchronous events (ibv_get_async_event(3)). A process has one stream of events from the daemon. A thread of this
// library takes them, and deals them out to the contexts that they concern. The descriptor of a context is an eventfd
// that counts the context's events, so it is readable for no other reason.
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <optional>
#include <thread>

#include "exported.hpp"
#include "genuine.hpp"
#include "opened_contexts.hpp"
#include "refused_call.hpp"

namespace pollcore::served {
namespace {

std::vector<Opened*>& contexts() noexcept {
    static auto& all = *new std::vector<Opened*>;
    return all;
}

// ---- under objects_mutex() ----

void give(Opened& opened, const ibv_async_event& event) {
    opened.events.push_back(event);
    const std::uint64_t one = 1;
    (void)!::write(opened.verbs.context.async_fd, &one, sizeof one);
}

// Takes back the count of an event that is dropped, unless a thread of the program has read it already.
void uncount(const Opened& opened) noexcept {
    std::uint64_t count = 0;
    const iovec into{.iov_base = &count, .iov_len = sizeof count};
    (void)::preadv2(opened.verbs.context.async_fd, &into, 1, -1, RWF_NOWAIT);
}

void give_of_qp(const Event& from) {
    Qp* const qp = queue_pairs().find(from.qp);
    if (qp == nullptr) {
        return;  // destroyed, or reset since
    }
    ibv_async_event event{};
    event.element.qp = &qp->qp_base;
    event.event_type = static_cast<ibv_event_type>(from.type);
    give(of(qp->qp_base.context), event);
    ++qp->async.reported;
}

void give_of_srq(const Event& from) {
    for (Srq* srq : all_srqs()) {
        if (srq->queue.valid() && srq->queue.handle() == from.srq) {
            ibv_async_event event{};
            event.element.srq = srq;
            event.event_type = static_cast<ibv_event_type>(from.type);
            give(of(srq->context), event);
            ++srq->async.reported;
        }
    }
}

// The daemon's completion queues are not those of the program: all that the worker serves have failed.
void give_of_cqs(const Event& from) {
    for (Cq* cq : all_cqs()) {
        const bool concerned = [&] {
            const std::lock_guard guard(cq->lock);
            return cq->session.valid() && cq->session.worker_name() == from.worker;
        }();
        if (concerned) {
            ibv_async_event event{};
            event.element.cq = verbs_of(*cq);
            event.event_type = IBV_EVENT_CQ_ERR;
            give(of(cq->context), event);
            ++cq->async.reported;
        }
    }
}

void give_of_device(const std::string& device, ibv_event_type type, int port_num) {
    for (Opened* opened : contexts()) {
        if (device.empty() || opened->device->name == device) {
            ibv_async_event event{};
            event.event_type = type;
            event.element.port_num = port_num;
            give(*opened, event);
        }
    }
}

void deal_out(const Event& from) {
    switch (from.type) {
        case EventType::qp_fatal:
        case EventType::qp_req_err:
        case EventType::qp_access_err:
        case EventType::comm_est:
        case EventType::sq_drained:
        case EventType::path_mig:
        case EventType::path_mig_err:
        case EventType::qp_last_wqe_reached: return give_of_qp(from);
        case EventType::srq_err:
        case EventType::srq_limit_reached: return give_of_srq(from);
        case EventType::cq_err: return give_of_cqs(from);
        case EventType::device_fatal:
        case EventType::device_removed: return give_of_device(from.device, IBV_EVENT_DEVICE_FATAL, 0);
        case EventType::port_active:
        case EventType::port_err:
        case EventType::lid_change:
        case EventType::pkey_change:
        case EventType::sm_change:
        case EventType::client_reregister:
        case EventType::gid_change:
            return give_of_device(from.device, static_cast<ibv_event_type>(from.type), from.port);
        default: return;  // the runtime's own, for which verbs have no event
    }
}

// The attachment has ended: by the daemon's death or by its operator, unless the process ends.
void tell_end(const Attachment& attachment) {
    for (Opened* opened : contexts()) {
        if (opened->attachment == &attachment) {
            ibv_async_event event{};
            event.event_type = IBV_EVENT_DEVICE_FATAL;
            give(*opened, event);
        }
    }
}

// ---- the thread ----

constexpr auto kLong = std::chrono::hours(1);

void take_events(Attachment& attachment) noexcept {
    for (;;) {
        try {
            const std::optional<Event> event = attachment.next_event(kLong);
            const std::lock_guard guard(objects_mutex());
            if (event) {
                deal_out(*event);
            }
        } catch (const Error&) {
            const std::lock_guard guard(objects_mutex());
            try {
                tell_end(attachment);
            } catch (const std::bad_alloc&) {
                // The completions tell of the end, too.
            }
            return;
        } catch (const std::bad_alloc&) {
            // One event is lost.
        }
    }
}

// The attachment whose events a thread takes.
const Attachment*& watched() noexcept {
    static const Attachment* attachment = nullptr;
    return attachment;
}

// The program's signals are not for this thread.
void start_taking(Attachment& attachment) {
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    try {
        std::thread([&attachment] {
            (void)pthread_setname_np(pthread_self(), "pollcore-verbs");
            take_events(attachment);
        }).detach();
        watched() = &attachment;
    } catch (...) {
        pthread_sigmask(SIG_SETMASK, &before, nullptr);
        throw;
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

// In a child of fork(2), where other threads of the parent may have held any lock.
void in_child() noexcept {
    new (&objects_mutex()) std::mutex;
    for (Opened* opened : contexts()) {
        uninstall(opened->verbs);
        opened->events.clear();
    }
    contexts().clear();
    watched() = nullptr;
    all_cqs().clear();
    all_srqs().clear();
}

// The object that an event names, and its count of events; null pointers if it names a device or a port.
struct Named {
    const void* element = nullptr;
    EventCount* count = nullptr;
};
Named named_by(const ibv_async_event& event) noexcept {
    switch (event.event_type) {
        case IBV_EVENT_CQ_ERR: return {event.element.cq, &of(event.element.cq).async};
        case IBV_EVENT_SRQ_ERR:
        case IBV_EVENT_SRQ_LIMIT_REACHED: return {event.element.srq, &of(event.element.srq).async};
        case IBV_EVENT_QP_FATAL:
        case IBV_EVENT_QP_REQ_ERR:
        case IBV_EVENT_QP_ACCESS_ERR:
        case IBV_EVENT_COMM_EST:
        case IBV_EVENT_SQ_DRAINED:
        case IBV_EVENT_PATH_MIG:
        case IBV_EVENT_PATH_MIG_ERR:
        case IBV_EVENT_QP_LAST_WQE_REACHED: return {event.element.qp, &of(event.element.qp).async};
        default: return {};
    }
}

void acknowledge(pthread_mutex_t& mutex, pthread_cond_t& cond, std::uint32_t& completed) noexcept {
    pthread_mutex_lock(&mutex);
    ++completed;
    pthread_cond_signal(&cond);
    pthread_mutex_unlock(&mutex);
}

}  // namespace

void add_context(Opened& opened) {
    [[maybe_unused]] static const int registered = ::pthread_atfork(nullptr, nullptr, in_child);
    const std::lock_guard guard(objects_mutex());
    contexts().reserve(contexts().size() + 1);
    if (watched() != opened.attachment) {
        start_taking(*opened.attachment);
    }
    contexts().push_back(&opened);
}

void remove_context(Opened& opened) noexcept {
    const std::lock_guard guard(objects_mutex());
    std::erase(contexts(), &opened);
}

void drop_events_of(Opened& opened, const void* element) noexcept {
    // The program has not seen these events, so nobody acknowledges them.
    const auto dropped = std::erase_if(opened.events, [&](const ibv_async_event& event) {
        const auto [named, count] = named_by(event);
        if (named != element || count == nullptr) {
            return false;
        }
        --count->reported;
        return true;
    });
    for (std::size_t i = 0; i < dropped; ++i) {
        uncount(opened);
    }
}

}  // namespace pollcore::served

using namespace pollcore::served;

POLLCORE_VERBS_EXPORT int ibv_get_async_event(ibv_context* context, ibv_async_event* event) {
    if (!is_ours(context)) {
        return POLLCORE_GENUINE(ibv_get_async_event)(context, event);
    }
    Opened& opened = of(context);
    for (;;) {
        // Waits or not, as the program has set O_NONBLOCK.
        std::uint64_t count = 0;
        if (::read(context->async_fd, &count, sizeof count) != sizeof count) {
            return -1;
        }
        const std::lock_guard guard(objects_mutex());
        if (!opened.events.empty()) {
            *event = opened.events.front();
            opened.events.pop_front();
            return 0;
        }
    }
}

POLLCORE_VERBS_EXPORT void ibv_ack_async_event(ibv_async_event* event) {
    switch (event->event_type) {
        case IBV_EVENT_CQ_ERR:
            if (ibv_cq& cq = *event->element.cq; is_ours(cq.context)) {
                return acknowledge(cq.mutex, cq.cond, cq.async_events_completed);
            }
            break;
        case IBV_EVENT_SRQ_ERR:
        case IBV_EVENT_SRQ_LIMIT_REACHED:
            if (ibv_srq& srq = *event->element.srq; is_ours(srq.context)) {
                return acknowledge(srq.mutex, srq.cond, srq.events_completed);
            }
            break;
        case IBV_EVENT_QP_FATAL:
        case IBV_EVENT_QP_REQ_ERR:
        case IBV_EVENT_QP_ACCESS_ERR:
        case IBV_EVENT_COMM_EST:
        case IBV_EVENT_SQ_DRAINED:
        case IBV_EVENT_PATH_MIG:
        case IBV_EVENT_PATH_MIG_ERR:
        case IBV_EVENT_QP_LAST_WQE_REACHED:
            if (ibv_qp& qp = *event->element.qp; is_ours(qp.context)) {
                return acknowledge(qp.mutex, qp.cond, qp.events_completed);
            }
            break;
        default: return;  // the others need no acknowledgement
    }
    POLLCORE_GENUINE(ibv_ack_async_event)(event);
}
