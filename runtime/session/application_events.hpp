// Asynchronous events that wait until the application takes them.
//
// Events of connections are never lost (ConnectionEvents). All other events wait in a queue of at most kEventsMax
// events. While that many wait, later events are only counted. Later events are dropped, and not earlier ones, because
// they often repeat the first event of a burst (Soft-RoCE reports an overrun once per lost CQE).
//
// Thread safety: any thread may make the calls. fd() is readable while next() has an event to return, and always after
// close().
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>

#include "base/unique_fd.hpp"
#include "pollcore/event.hpp"
#include "session/connection_events.hpp"

namespace pollcore {

class ApplicationEvents {
public:
    ApplicationEvents();

    /// Returns false, and counts the event as lost, if there is no room for it.
    bool push(Event event);
    /// Counts an event for which there was no memory, as if there was no room for it: the application sees the gap
    /// (D29).
    void lose() noexcept;
    /// Declares that no more events will come, and wakes the threads that wait in next().
    void close() noexcept;

    // As the functions of ConnectionEvents.
    void prepare();
    void add(QpHandle qp);
    void add(const ListenerHandle& listener);
    void remove(QpHandle qp) noexcept;
    void remove(const ListenerHandle& listener) noexcept;
    void rename(QpHandle from, QpHandle to) noexcept;
    void keep(Event event) noexcept;

    /// Returns an event, or nothing when no event came within the time. Events of devices come first, the oldest first.
    /// Throws Error(ESHUTDOWN) when no event is left and none will come. If `timeout` is longer than the clock can
    /// count, the call waits for ever.
    [[nodiscard]] std::optional<Event> next(std::chrono::milliseconds timeout);
    [[nodiscard]] int fd() const noexcept { return fd_.get(); }

private:
    template <class F>
    void change_connections(F&& change);
    [[nodiscard]] bool empty() const noexcept { return queue_.empty() && connections_.empty(); }
    /// Makes fd() readable or not. `was_empty` is what empty() returned before the change.
    void changed(bool was_empty) noexcept;

    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<Event> queue_;
    ConnectionEvents connections_;
    bool closed_ = false;
    UniqueFd fd_;  ///< an eventfd; its count is 0 or 1
};

}  // namespace pollcore
