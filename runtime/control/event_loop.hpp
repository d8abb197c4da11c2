// Waits for file descriptors and for time, on behalf of the control side. Never blocks on anything else.
//
// Thread safety: only jobs of the control side call watch() and forget().
#pragma once

#include <functional>

namespace pollcore {

class EventLoop {
public:
    virtual ~EventLoop() = default;
    EventLoop(const EventLoop&) = delete;
    EventLoop& operator=(const EventLoop&) = delete;

    /// Stops posting jobs. Jobs that were posted before may still run, so the loop must outlive the executor's last
    /// job.
    virtual void stop() noexcept = 0;

    /// Posts `job` to the executor whenever `fd` is readable, but not again before the previous job for `fd` has run.
    virtual void watch(int fd, std::function<void()> job) = 0;
    virtual void forget(int fd) noexcept = 0;

protected:
    EventLoop() = default;
};

}  // namespace pollcore
