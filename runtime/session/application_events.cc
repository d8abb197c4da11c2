#include "session/application_events.hpp"

#include <sys/eventfd.h>

#include <cerrno>

#include "pollcore/error.hpp"
#include "pollcore/limits.hpp"

namespace pollcore {

ApplicationEvents::ApplicationEvents() : fd_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
    if (!fd_.valid()) {
        throw Error(errno, "cannot make the descriptor for asynchronous events; is the limit on open files too low?");
    }
}

bool ApplicationEvents::push(Event event) {
    {
        const std::lock_guard lock(mutex_);
        if (queue_.size() >= kEventsMax) {
            ++queue_.back().lost_after;
            return false;
        }
        queue_.push_back(std::move(event));
        if (queue_.size() == 1 && !closed_) {
            (void)eventfd_write(fd_.get(), 1);  // cannot fail: the eventfd's count is 0 while the queue is empty
        }
    }
    changed_.notify_all();
    return true;
}

void ApplicationEvents::lose() noexcept {
    const std::lock_guard lock(mutex_);
    if (!queue_.empty()) {
        ++queue_.back().lost_after;
    }
}

void ApplicationEvents::close() noexcept {
    {
        const std::lock_guard lock(mutex_);
        if (!closed_ && queue_.empty()) {
            (void)eventfd_write(fd_.get(), 1);
        }
        closed_ = true;
    }
    changed_.notify_all();
}

std::optional<Event> ApplicationEvents::next(std::chrono::milliseconds timeout) {
    std::unique_lock lock(mutex_);
    const auto something = [this] { return closed_ || !queue_.empty(); };
    // A deadline beyond the clock's end would wrap into the past.
    const auto now = std::chrono::steady_clock::now();
    if (timeout >= std::chrono::floor<std::chrono::milliseconds>(std::chrono::steady_clock::time_point::max() - now)) {
        changed_.wait(lock, something);
    } else if (!changed_.wait_until(lock, now + timeout, something)) {
        return std::nullopt;
    }
    if (queue_.empty()) {
        throw Error(ESHUTDOWN, "the runtime is stopped: no more events come");
    }
    Event event = std::move(queue_.front());
    queue_.pop_front();
    if (queue_.empty() && !closed_) {
        eventfd_t count = 0;
        (void)eventfd_read(fd_.get(), &count);
    }
    return event;
}

}  // namespace pollcore
