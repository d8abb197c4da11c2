// Asynchronous events that wait until the application takes them.
//
// Thread safety: any thread may make the calls.
// Invariants: at most kEventsMax events wait. While that many wait, later events are only counted. Later events are
// dropped, and not earlier ones, because they often repeat the first event of a burst (Soft-RoCE reports an overrun
// once per lost CQE). fd() is readable while next() has an event to return, and always after close().
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>

#include "base/unique_fd.hpp"
#include "pollcore/event.hpp"

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

    /// Returns the oldest event, or nothing when no event came within the time. Throws Error(ESHUTDOWN) when no event
    /// is left and none will come. If `timeout` is longer than the clock can count, the call waits for ever.
    [[nodiscard]] std::optional<Event> next(std::chrono::milliseconds timeout);
    [[nodiscard]] int fd() const noexcept { return fd_.get(); }

private:
    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<Event> queue_;
    bool closed_ = false;
    UniqueFd fd_;  ///< an eventfd; its count is 0 or 1
};

}  // namespace pollcore
