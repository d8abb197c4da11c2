#include "control/control_thread.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <future>
#include <memory>

#include "control/eal.hpp"
#include "pollcore/error.hpp"

namespace pollcore {

ControlThread::ControlThread(const std::string& name, const std::vector<int>& cpus)
    : thread_([this, name, cpus] {
          become_helper(name, cpus);
          loop();
      }) {}

ControlThread::~ControlThread() {
    {
        const std::lock_guard lock(mutex_);
        ending_ = true;
    }
    changed_.notify_one();
    thread_.join();
}

void ControlThread::perform(std::function<void()> job) {
    // Shared, since the caller may be gone while the promise is still being kept.
    const auto done = std::make_shared<std::promise<void>>();
    std::future<void> ran = done->get_future();
    {
        const std::lock_guard lock(mutex_);
        if (jobs_.size() >= kJobsMax) {
            throw Error(EAGAIN, fmt::format("the control thread has {} jobs waiting", kJobsMax));
        }
        jobs_.push_back([&job, done] {
            job();
            done->set_value();
        });
    }
    changed_.notify_one();
    ran.get();
}

void ControlThread::post_always(std::function<void()> job) {
    {
        const std::lock_guard lock(mutex_);
        jobs_.push_back(std::move(job));
    }
    changed_.notify_one();
}

void ControlThread::loop() noexcept {
    std::unique_lock lock(mutex_);
    for (;;) {
        changed_.wait(lock, [this] { return ending_ || !jobs_.empty(); });
        if (jobs_.empty()) {
            return;
        }
        const std::function<void()> job = std::move(jobs_.front());
        jobs_.pop_front();
        lock.unlock();
        job();
        lock.lock();
    }
}

}  // namespace pollcore
