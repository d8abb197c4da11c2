// An event loop in its own thread. The thread runs no jobs itself: it posts them to the executor.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/unique_fd.hpp"
#include "control/event_loop.hpp"
#include "control/executor.hpp"

namespace pollcore {

class EpollLoop final : public EventLoop {
public:
    /// Posts `tick` to the executor every `period`, unless the previous tick has not begun yet.
    EpollLoop(Executor& executor, const std::vector<int>& cpus, std::chrono::milliseconds period,
              std::function<void()> tick);
    ~EpollLoop() override;

    void stop() noexcept override;
    void watch(int fd, std::function<void()> job) override;
    void forget(int fd) noexcept override;

private:
    void loop() noexcept;
    void post(int fd) noexcept;
    void post_tick() noexcept;
    void run(int fd);
    void watch_on(int fd) noexcept;
    void arm(int fd, int operation);

    Executor& executor_;
    std::chrono::milliseconds period_;
    std::function<void()> tick_;
    std::atomic<bool> tick_waits_{false};
    UniqueFd epoll_;
    UniqueFd wake_;
    std::mutex mutex_;
    // By descriptor. The pointers are shared, because a running job may call forget() for its own descriptor.
    std::unordered_map<int, std::shared_ptr<const std::function<void()>>> jobs_;
    std::thread thread_;
};

}  // namespace pollcore
