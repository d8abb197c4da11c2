// Waits for file descriptors and time on behalf of the control side, and never blocks on anything else.
//
// Thread safety: watch() and forget() from the control side's jobs.
#pragma once

#include <functional>

namespace pollcore {

class EventLoop {
public:
    virtual ~EventLoop() = default;
    EventLoop(const EventLoop&) = delete;
    EventLoop& operator=(const EventLoop&) = delete;

    /// Posts nothing more. Jobs posted before may still run afterwards, so the loop outlives the executor's last job.
    virtual void stop() noexcept = 0;

    /// Posts `job` to the executor whenever `fd` is readable, but never before the last job for `fd` has run.
    virtual void watch(int fd, std::function<void()> job) = 0;
    virtual void forget(int fd) noexcept = 0;

protected:
    EventLoop() = default;
};

}  // namespace pollcore
