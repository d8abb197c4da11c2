#include "control/control_thread.hpp"

#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include <fmt/format.h>

#include "base/thread_health.hpp"
#include "control/eal.hpp"
#include "control/kernel_place.hpp"
#include "pollcore/error.hpp"

namespace pollcore {
namespace {

using Clock = std::chrono::steady_clock;

}  // namespace

ControlThread::ControlThread(const std::string& name, const std::vector<int>& cpus, std::chrono::milliseconds hang_limit)
    : name_(name), hang_limit_(hang_limit), thread_([this, cpus] {
          become_helper(name_, cpus);
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

void ControlThread::perform(const std::function<void()>& job, Patience patience) {
    Call call;
    std::unique_lock lock(mutex_);
    if (patience == Patience::limited && jobs_.size() >= kJobsMax) {
        throw Error(EAGAIN, fmt::format("{} has {} jobs waiting", name_, kJobsMax));
    }
    add({.run = job, .call = &call});
    const auto ended = [&call] { return call.ended; };
    if (patience == Patience::limited && !call.ended_changed.wait_for(lock, hang_limit_, ended) && !call.begun) {
        withdraw(call);
        lock.unlock();
        throw Error(ETIMEDOUT, why_late());
    }
    call.ended_changed.wait(lock, ended);
}

void ControlThread::post_always(std::function<void()> job) {
    const std::lock_guard lock(mutex_);
    add({.run = std::move(job)});
}

void ControlThread::add(Job job) {
    jobs_.push_back(std::move(job));
    if (idle_) {  // it owes a movement from now on
        idle_ = false;
        heartbeat_.begin(steady_ns(Clock::now()));
    }
    changed_.notify_one();
}

void ControlThread::withdraw(const Call& call) {
    jobs_.erase(std::find_if(jobs_.begin(), jobs_.end(), [&](const Job& job) { return job.call == &call; }));
}

std::string ControlThread::why_late() const {
    const ThreadHealth health =
        thread_health(name_, ThreadHealth::Kind::control, heartbeat_, steady_ns(Clock::now()));
    return fmt::format("{} did not begin with this within {} ms (runtime.hang_limit), and will not carry it out: it has been at one job for "
                       "{} ms, {}. Try again when that is over, or restart the process",
                       name_, hang_limit_.count(), std::chrono::duration_cast<std::chrono::milliseconds>(health.busy).count(),
                       kernel_place(health.thread_id));
}

void ControlThread::loop() noexcept {
    heartbeat_.start(::gettid(), steady_ns(Clock::now()));
    std::unique_lock lock(mutex_);
    for (;;) {
        if (jobs_.empty() && !ending_) {
            idle_ = true;
            heartbeat_.wait();
            changed_.wait(lock, [this] { return ending_ || !jobs_.empty(); });
            idle_ = false;
        }
        if (jobs_.empty()) {
            break;
        }
        Job job = std::move(jobs_.front());
        jobs_.pop_front();
        if (job.call != nullptr) {
            job.call->begun = true;
        }
        heartbeat_.begin(steady_ns(Clock::now()));
        lock.unlock();
        job.run();
        job.run = nullptr;  // what it has taken along may take a while to go
        lock.lock();
        if (job.call != nullptr) {
            job.call->ended = true;
            // With the lock: whoever waits cannot return before, and take the condition variable along.
            job.call->ended_changed.notify_one();
        }
    }
    heartbeat_.stop();
}

}  // namespace pollcore
