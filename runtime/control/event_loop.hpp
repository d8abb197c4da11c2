// Waits for file descriptors and time on behalf of the control thread, and never blocks on anything else.
//
// Thread safety: watch() and forget() from the control thread; the callbacks run on the loop's own thread and
// only hand a job over.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/unique_fd.hpp"
#include "control/executor.hpp"

namespace pollcore {

class EventLoop {
public:
    /// `tick` is posted to the executor every `period`, unless the last one still waits.
    EventLoop(Executor& executor, const std::vector<int>& cpus, std::chrono::milliseconds period,
              std::function<void()> tick);
    ~EventLoop();
    EventLoop(const EventLoop&) = delete;
    EventLoop& operator=(const EventLoop&) = delete;

    /// Ends the loop's thread. Jobs that it posted may still run afterwards, so the loop outlives the executor's
    /// last job.
    void stop() noexcept;

    /// Posts `job` to the executor whenever `fd` is readable; again only after the job ran.
    void watch(int fd, std::function<void()> job);
    void forget(int fd) noexcept;

private:
    void loop() noexcept;
    void arm(int fd, int operation);

    Executor& executor_;
    std::chrono::milliseconds period_;
    std::function<void()> tick_;
    std::atomic<bool> tick_waits_{false};
    UniqueFd epoll_;
    UniqueFd wake_;
    std::mutex mutex_;
    std::unordered_map<int, std::function<void()>> jobs_;
    std::thread thread_;
};

}  // namespace pollcore
