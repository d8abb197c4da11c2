#include "base/disposal.hpp"

#include <pthread.h>
#include <sys/types.h>
#include <unistd.h>

#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <new>
#include <utility>

#include "base/quiet_thread.hpp"

namespace pollcore {
namespace {

// An idle thread waits this long for another job before it ends.
constexpr std::chrono::seconds kIdle{1};

// Jobs, and the threads that run them. The object is never destroyed, because a job that does not return may outlive
// all other objects.
class Disposers {
public:
    explicit Disposers(int threads_max) : threads_max_(threads_max) {}

    void put(DisposalOwner owner, std::function<void()> job) {
        const std::lock_guard lock(mutex_);
        Jobs& its = jobs_[owner];
        its.waiting.push_back(std::move(job));
        ++waiting_;
        if (!its.running) {
            ready_.push_back(owner);
            its.running = true;
        }
        if (static_cast<int>(ready_.size()) > idle_ && threads_ < threads_max_) {
            start_quiet_thread([this] { loop(); }).detach();
            ++threads_;
        }
        changed_.notify_one();
    }

    void catch_up(std::size_t most, std::chrono::milliseconds within) {
        std::unique_lock lock(mutex_);
        (void)fewer_.wait_for(lock, within, [&] { return waiting_ <= most; });
    }

    [[nodiscard]] bool has_threads() const noexcept { return process_ == ::getpid(); }  // a forked child has no threads

private:
    struct Jobs {
        std::deque<std::function<void()>> waiting;
        bool running = false;  // a job of this owner runs, or the owner is in ready_
    };

    void loop() {
        pthread_setname_np(pthread_self(), "pollcore-close");
        std::unique_lock lock(mutex_);
        for (;;) {
            ++idle_;
            (void)changed_.wait_for(lock, kIdle, [this] { return !ready_.empty(); });
            --idle_;
            if (ready_.empty()) {
                --threads_;
                return;
            }
            const DisposalOwner owner = ready_.front();
            ready_.pop_front();
            std::function<void()> job = std::move(jobs_[owner].waiting.front());
            jobs_[owner].waiting.pop_front();
            --waiting_;
            fewer_.notify_all();
            lock.unlock();
            job();
            job = nullptr;
            lock.lock();
            if (jobs_[owner].waiting.empty()) {
                jobs_.erase(owner);
            } else {
                ready_.push_back(owner);
            }
        }
    }

    const int threads_max_;
    std::mutex mutex_;
    std::condition_variable changed_;
    std::condition_variable fewer_;
    std::map<DisposalOwner, Jobs> jobs_;
    std::deque<DisposalOwner> ready_;  // owners that have a waiting job and no running job
    std::size_t waiting_ = 0;
    int threads_ = 0;
    int idle_ = 0;
    const pid_t process_ = ::getpid();
};

Disposers& disposers() {
    static Disposers& all = *new Disposers(kDisposersMax);
    return all;
}

Disposers& memory_disposer() {
    static Disposers& one = *new Disposers(1);
    return one;
}

}  // namespace

void dispose(DisposalOwner owner, std::function<void()> job) noexcept {
    try {
        Disposers& all = owner == kMemoryDisposal ? memory_disposer() : disposers();
        if (!all.has_threads()) {
            return job();  // in a forked child no other thread has to wait for this
        }
        all.put(owner, std::move(job));
    } catch (...) {
        // There is no memory or no thread. An object that is never closed or freed does less harm than a caller that
        // waits.
    }
}

void let_disposal_catch_up(std::size_t most, std::chrono::milliseconds within) noexcept {
    try {
        disposers().catch_up(most, within);
    } catch (const std::bad_alloc&) {
        // There was no memory to make the Disposers, so no job waits.
    }
}

}  // namespace pollcore
