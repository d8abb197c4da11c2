#include "device/soft/event_queue.hpp"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <new>
#include <string>

#include "pollcore/error.hpp"

namespace pollcore::soft {

EventQueue::EventQueue() : unused_(kUsual), fd_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
    if (fd_ < 0) {
        throw Error(errno,
                    "cannot make an eventfd for the software device's asynchronous events; "
                    "raise the limit of open files (ulimit -n)");
    }
}

EventQueue::~EventQueue() {
    ::close(fd_);
}

const void* EventQueue::object_of(const ibv_async_event& event) noexcept {
    switch (event.event_type) {
        case IBV_EVENT_CQ_ERR: return event.element.cq;
        case IBV_EVENT_QP_FATAL:
        case IBV_EVENT_QP_REQ_ERR:
        case IBV_EVENT_QP_ACCESS_ERR:
        case IBV_EVENT_QP_LAST_WQE_REACHED:
        case IBV_EVENT_COMM_EST: return event.element.qp;
        case IBV_EVENT_SRQ_ERR:
        case IBV_EVENT_SRQ_LIMIT_REACHED: return event.element.srq;
        default: return nullptr;  // an event of the port or the device, which nobody destroys
    }
}

void EventQueue::push(const Queued& queued) noexcept {
    const std::lock_guard guard(mutex_);
    if (unused_.empty()) {
        try {
            unused_.emplace_back();
        } catch (const std::bad_alloc&) {
            return;
        }
    }
    unused_.front() = queued;
    queue_.splice(queue_.end(), unused_, unused_.begin());
    // The eventfd's counter cannot be full here, because take() resets it whenever the queue becomes empty.
    (void)eventfd_write(fd_, 1);
}

void EventQueue::raise(ibv_event_type type, ibv_cq* cq) noexcept {
    ibv_async_event event{};
    event.element.cq = cq;
    event.event_type = type;
    push({event, cq});
}

void EventQueue::raise(ibv_event_type type, ibv_qp* qp) noexcept {
    ibv_async_event event{};
    event.element.qp = qp;
    event.event_type = type;
    push({event, qp});
}

void EventQueue::raise(ibv_event_type type, ibv_srq* srq) noexcept {
    ibv_async_event event{};
    event.element.srq = srq;
    event.event_type = type;
    push({event, srq});
}

void EventQueue::raise_port(ibv_event_type type, int port) noexcept {
    ibv_async_event event{};
    event.element.port_num = port;
    event.event_type = type;
    push({event, nullptr});
}

void EventQueue::raise_device(ibv_event_type type) noexcept {
    ibv_async_event event{};
    event.event_type = type;
    push({event, nullptr});
}

void EventQueue::close() noexcept {
    const std::lock_guard guard(mutex_);
    closed_ = true;
    (void)eventfd_write(fd_, 1);
}

/// Makes fd() unreadable if the queue is empty. The caller holds the mutex.
void EventQueue::rest_if_empty() noexcept {
    if (queue_.empty() && !closed_) {
        eventfd_t count = 0;
        (void)eventfd_read(fd_, &count);
    }
}

std::optional<ibv_async_event> EventQueue::take() {
    const std::lock_guard guard(mutex_);
    if (queue_.empty() && closed_)
        throw Error(EIO, "cannot take an asynchronous event: the software device was removed");
    if (queue_.empty())
        return std::nullopt;
    const ibv_async_event event = queue_.front().event;
    std::list<Queued>& next = queue_.front().object != nullptr ? taken_ : unused_;
    next.splice(next.end(), queue_, queue_.begin());
    rest_if_empty();
    return event;
}

void EventQueue::acknowledge(const ibv_async_event& event) noexcept {
    const void* object = object_of(event);
    if (object == nullptr)
        return;
    const std::lock_guard guard(mutex_);
    const auto found =
        std::find_if(taken_.begin(), taken_.end(), [object](const Queued& taken) { return taken.object == object; });
    if (found != taken_.end())
        unused_.splice(unused_.end(), taken_, found);
}

std::uint32_t EventQueue::unacknowledged(const void* object) {
    const std::lock_guard guard(mutex_);
    return static_cast<std::uint32_t>(
        std::count_if(taken_.begin(), taken_.end(), [object](const Queued& taken) { return taken.object == object; }));
}

void EventQueue::forget(const void* object) {
    const std::lock_guard guard(mutex_);
    for (auto at = queue_.begin(); at != queue_.end();) {
        const auto here = at++;
        if (here->object == object)
            unused_.splice(unused_.end(), queue_, here);
    }
    rest_if_empty();
}

}  // namespace pollcore::soft
