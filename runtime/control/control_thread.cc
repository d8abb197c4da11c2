#include "control/control_thread.hpp"

#include <unistd.h>

#include <cerrno>
#include <exception>
#include <memory>
#include <utility>

#include <fmt/format.h>

#include "base/log.hpp"
#include "base/thread_health.hpp"
#include "control/eal.hpp"
#include "control/kernel_place.hpp"
#include "pollcore/error.hpp"

namespace pollcore {
namespace {

using Clock = std::chrono::steady_clock;

}  // namespace

ControlThread::ControlThread(const std::string& name, const std::vector<int>& cpus,
                             std::chrono::milliseconds hang_limit)
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

void ControlThread::perform(JobRef job, Patience patience) {
    Job call{.awaited = job, .posted = nullptr};
    std::unique_lock lock(mutex_);
    if (patience == Patience::limited && jobs_ >= kJobsMax) {
        throw Error(EAGAIN, fmt::format("{} has {} jobs waiting", name_, kJobsMax));
    }
    add(call);
    const auto ended = [&call] { return call.ended; };
    if (patience == Patience::limited && !call.ended_changed.wait_for(lock, hang_limit_, ended) && !call.begun) {
        withdraw(call);
        lock.unlock();
        throw Error(ETIMEDOUT, why_late());
    }
    call.ended_changed.wait(lock, ended);
}

void ControlThread::post_always(std::function<void()> job) {
    auto posted = std::make_unique<Job>();
    posted->posted = std::move(job);
    const std::lock_guard lock(mutex_);
    add(*posted.release());
}

void ControlThread::add(Job& job) noexcept {
    *behind_last_ = &job;
    behind_last_ = &job.next;
    ++jobs_;
    if (idle_) {  // from now on the thread has work to do
        idle_ = false;
        heartbeat_.begin(steady_ns(Clock::now()));
    }
    changed_.notify_one();
}

ControlThread::Job& ControlThread::take() noexcept {
    Job& job = *first_;
    withdraw(job);
    return job;
}

void ControlThread::withdraw(const Job& job) noexcept {
    Job** at = &first_;
    while (*at != &job) {
        at = &(*at)->next;
    }
    *at = job.next;
    if (behind_last_ == &job.next) {
        behind_last_ = at;
    }
    --jobs_;
}

// The control thread owns the job here, and destroys it. That may take long because of the job's captures.
void ControlThread::run_posted(Job& job) const noexcept {
    const std::unique_ptr<Job> own(&job);
    try {
        own->posted();
    } catch (const std::exception& error) {
        log_error("{}: {}", name_, error.what());
    }
}

std::string ControlThread::why_late() const {
    const ThreadHealth health = thread_health(name_, ThreadHealth::Kind::control, heartbeat_, steady_ns(Clock::now()));
    return fmt::format(
        "{} did not begin with this within {} ms (runtime.hang_limit), and will not carry it out: it has been at one "
        "job for "
        "{} ms, {}. Try again when that is over, or restart the process",
        name_, hang_limit_.count(), std::chrono::duration_cast<std::chrono::milliseconds>(health.busy).count(),
        kernel_place(health.thread_id));
}

void ControlThread::loop() noexcept {
    heartbeat_.start(::gettid(), steady_ns(Clock::now()));
    std::unique_lock lock(mutex_);
    for (;;) {
        if (first_ == nullptr && !ending_) {
            idle_ = true;
            heartbeat_.wait();
            changed_.wait(lock, [this] { return ending_ || first_ != nullptr; });
            idle_ = false;
        }
        if (first_ == nullptr) {
            break;
        }
        Job& job = take();
        job.begun = true;
        heartbeat_.begin(steady_ns(Clock::now()));
        lock.unlock();
        if (!job.awaited) {
            run_posted(job);
            lock.lock();
            continue;
        }
        (*job.awaited)();
        lock.lock();
        job.ended = true;
        // Notify under the lock: otherwise the caller could return first, and so destroy the condition variable, which
        // is on its stack.
        job.ended_changed.notify_one();
    }
    heartbeat_.stop();
}

}  // namespace pollcore
