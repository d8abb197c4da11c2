#include "session/application_events.hpp"

#include <sys/eventfd.h>

#include <cerrno>
#include <utility>

#include "pollcore/error.hpp"
#include "pollcore/limits.hpp"

namespace pollcore {

ApplicationEvents::ApplicationEvents() : fd_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
    if (!fd_.valid()) {
        throw Error(errno, "cannot make the descriptor for asynchronous events; is the limit on open files too low?");
    }
}

void ApplicationEvents::changed(bool was_empty) noexcept {
    if (closed_ || was_empty == empty()) {
        return;
    }
    if (was_empty) {
        (void)eventfd_write(fd_.get(), 1);  // cannot fail: the eventfd's count was 0
        return;
    }
    eventfd_t count = 0;
    (void)eventfd_read(fd_.get(), &count);
}

bool ApplicationEvents::push(Event event) {
    {
        const std::lock_guard lock(mutex_);
        if (queue_.size() >= kEventsMax) {
            ++queue_.back().lost_after;
            return false;
        }
        const bool was_empty = empty();
        queue_.push_back(std::move(event));
        changed(was_empty);
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
        if (!closed_ && empty()) {
            (void)eventfd_write(fd_.get(), 1);
        }
        closed_ = true;
    }
    changed_.notify_all();
}

// ---- Events of connections ----

template <class F>
void ApplicationEvents::change_connections(F&& change) {
    {
        const std::lock_guard lock(mutex_);
        const bool was_empty = empty();
        change();
        changed(was_empty);
    }
    changed_.notify_all();
}

void ApplicationEvents::prepare() {
    change_connections([&] { connections_.prepare(); });
}
void ApplicationEvents::add(QpHandle qp) {
    change_connections([&] { connections_.add(qp); });
}
void ApplicationEvents::add(const ListenerHandle& listener) {
    change_connections([&] { connections_.add(listener); });
}
void ApplicationEvents::remove(QpHandle qp) noexcept {
    change_connections([&] { connections_.remove(qp); });
}
void ApplicationEvents::remove(const ListenerHandle& listener) noexcept {
    change_connections([&] { connections_.remove(listener); });
}
void ApplicationEvents::rename(QpHandle from, QpHandle to) noexcept {
    change_connections([&] { connections_.rename(from, to); });
}
void ApplicationEvents::keep(Event event) noexcept {
    change_connections([&] { connections_.keep(std::move(event)); });
}

std::optional<Event> ApplicationEvents::next(std::chrono::milliseconds timeout) {
    std::unique_lock lock(mutex_);
    const auto something = [this] { return closed_ || !empty(); };
    // A deadline beyond the clock's end would wrap into the past.
    const auto now = std::chrono::steady_clock::now();
    if (timeout >= std::chrono::floor<std::chrono::milliseconds>(std::chrono::steady_clock::time_point::max() - now)) {
        changed_.wait(lock, something);
    } else if (!changed_.wait_until(lock, now + timeout, something)) {
        return std::nullopt;
    }
    if (empty()) {
        throw Error(ESHUTDOWN, "the runtime is stopped: no more events come");
    }
    Event event;
    if (!queue_.empty()) {
        event = std::move(queue_.front());
        queue_.pop_front();
    } else {
        event = connections_.take();
    }
    changed(false);
    return event;
}

}  // namespace pollcore
