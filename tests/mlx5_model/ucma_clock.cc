#include "ucma_clock.hpp"

#include <signal.h>
#include <unistd.h>

#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>

namespace mlx5_model {
namespace {

using Clock = std::chrono::steady_clock;

struct Alarms {
    std::mutex lock;
    std::condition_variable changed;
    std::multimap<Clock::time_point, std::function<void()>> actions;
    pid_t of_process = 0;  ///< the process in which the thread runs; 0: it does not run
};

// Never destroyed: its thread runs until the process ends.
Alarms& alarms() {
    static auto* one = new Alarms;
    return *one;
}

void run() {
    Alarms& all = alarms();
    std::unique_lock guard(all.lock);
    for (;;) {
        if (all.actions.empty()) {
            all.changed.wait(guard);
        } else if (const auto first = all.actions.begin(); first->first > Clock::now()) {
            all.changed.wait_until(guard, Clock::time_point(first->first));
        } else {
            const auto action = all.actions.extract(first);
            guard.unlock();
            action.mapped()();
            guard.lock();
        }
    }
}

}  // namespace

void later(std::chrono::milliseconds delay, std::function<void()> action) {
    Alarms& all = alarms();
    const std::lock_guard guard(all.lock);
    all.actions.emplace(Clock::now() + delay, std::move(action));
    if (all.of_process != ::getpid()) {
        // The new thread blocks all signals: the program's own threads must handle them.
        sigset_t every;
        sigset_t before;
        ::sigfillset(&every);
        ::pthread_sigmask(SIG_SETMASK, &every, &before);
        std::thread(run).detach();
        ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
        all.of_process = ::getpid();
    }
    all.changed.notify_one();
}

}  // namespace mlx5_model
