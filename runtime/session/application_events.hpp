// Events that wait until the application takes them.
//
// Thread safety: all calls from any thread.
// Invariants: at most kEventsMax wait. When they do, the oldest are kept and later ones only counted: the first of a
// burst says what happened, and what follows is often the same again (Soft-RoCE reports an overrun once per lost
// CQE). fd() is readable while next() has something to give, and once closed for good.
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
    /// There was no memory for one: whoever meets the gap is told, as if there was no room.
    void lose() noexcept;
    /// Nothing more comes. Who waits learns of it.
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
