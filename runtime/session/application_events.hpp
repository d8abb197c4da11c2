// Events that wait until the application takes them.
//
// Thread safety: all calls from any thread.
// Invariants: at most kEventsMax events wait. When so many wait, later ones are only counted: the first event of a
// burst says what happened, and the others often repeat it (Soft-RoCE reports an overrun once per lost CQE). fd() is
// readable while next() has something to give, and always once close() was called.
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

    /// False when there was no room.
    bool push(Event event);
    /// Counts an event that there was no memory for, as if there was no room: the application sees the gap (D29).
    void lose() noexcept;
    /// No more events come. Wakes the threads that wait.
    void close() noexcept;

    /// The oldest; nothing when none came within the time. Throws Error(ESHUTDOWN) when none is left and none will
    /// come. A time-out longer than the clock can count waits for ever.
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
