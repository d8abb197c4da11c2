// Completion channels. The descriptor of a channel is an epoll(7) of its completion queues' sessions, so programs can
// wait for it in loops of their own.
#include <fcntl.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>

#include "exported.hpp"
#include "genuine.hpp"
#include "opened_device.hpp"
#include "refused_call.hpp"
#include "served_cq.hpp"

namespace pollcore::served {
namespace {

// The descriptor of `cq` has become readable. Returns whether that is an event of the completion queue, which then
// counts as reported. `cq` may be gone already.
bool report(Channel& channel, Cq* cq) {
    const std::lock_guard channel_guard(channel.mutex);
    if (std::find(channel.cqs.begin(), channel.cqs.end(), cq) == channel.cqs.end()) {
        return false;
    }
    {
        const std::lock_guard guard(cq->lock);
        if (!came_since_arm(*cq)) {
            return false;
        }
    }
    pthread_mutex_lock(&cq->mutex);
    ++cq->events_reported;
    pthread_mutex_unlock(&cq->mutex);
    return true;
}

}  // namespace
}  // namespace pollcore::served

using namespace pollcore::served;

POLLCORE_VERBS_EXPORT ibv_comp_channel* ibv_create_comp_channel(ibv_context* context) {
    if (!is_ours(context)) {
        return POLLCORE_GENUINE(ibv_create_comp_channel)(context);
    }
    return made_by("ibv_create_comp_channel()", [&]() -> ibv_comp_channel* {
        auto channel = std::make_unique<Channel>();
        channel->context = context;
        channel->refcnt = 0;
        channel->fd = ::epoll_create1(EPOLL_CLOEXEC);
        if (channel->fd < 0) {
            throw pollcore::Error(errno, "making the descriptor of a completion channel");
        }
        return channel.release();
    });
}

POLLCORE_VERBS_EXPORT int ibv_destroy_comp_channel(ibv_comp_channel* verbs) {
    if (!is_ours(verbs->context)) {
        return POLLCORE_GENUINE(ibv_destroy_comp_channel)(verbs);
    }
    Channel& channel = of(verbs);
    {
        const std::lock_guard guard(channel.mutex);
        if (!channel.cqs.empty()) {
            return EBUSY;
        }
    }
    (void)::close(channel.fd);
    delete &channel;
    return 0;
}

POLLCORE_VERBS_EXPORT int ibv_get_cq_event(ibv_comp_channel* verbs, ibv_cq** cq, void** cq_context) {
    if (!is_ours(verbs->context)) {
        return POLLCORE_GENUINE(ibv_get_cq_event)(verbs, cq, cq_context);
    }
    Channel& channel = of(verbs);
    for (;;) {
        // The program may have changed the descriptor's flags since the last call.
        const int flags = ::fcntl(channel.fd, F_GETFL);
        const bool waits = flags >= 0 && (flags & O_NONBLOCK) == 0;
        epoll_event event{};
        const int ready = ::epoll_wait(channel.fd, &event, 1, waits ? -1 : 0);
        if (ready < 0) {
            return -1;
        }
        if (ready == 0) {
            return failed(EAGAIN, -1);
        }
        Cq* const found = static_cast<Cq*>(event.data.ptr);
        if (report(channel, found)) {
            *cq = verbs_of(*found);
            *cq_context = found->cq_context;
            return 0;
        }
    }
}

POLLCORE_VERBS_EXPORT void ibv_ack_cq_events(ibv_cq* cq, unsigned count) {
    if (!is_ours(cq->context)) {
        POLLCORE_GENUINE(ibv_ack_cq_events)(cq, count);
        return;
    }
    pthread_mutex_lock(&cq->mutex);
    cq->comp_events_completed += count;
    pthread_cond_signal(&cq->cond);
    pthread_mutex_unlock(&cq->mutex);
}
