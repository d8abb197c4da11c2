#include "sim/sim_platform.hpp"

#include <poll.h>

#include <cstring>
#include <deque>
#include <map>
#include <new>
#include <string>
#include <utility>

#include "base/event_fd.hpp"
#include "sim/violation.hpp"
#include "worker/run.hpp"

namespace pollcore::sim {
namespace {

thread_local std::size_t bytes_allocated = 0;

void release(void* data, std::size_t size) noexcept {
    ::operator delete (data, std::align_val_t{kCacheLine});
    bytes_allocated -= size;
}

// The control thread.
class SimExecutor final : public Executor {
public:
    SimExecutor(Scheduler& scheduler, const std::string& name) : scheduler_(scheduler) {
        scheduler_.start(name, [this] {
            self_ = &scheduler_.running();
            heartbeat_.start(0, scheduler_.now_ns());
            for (;;) {
                heartbeat_.wait();
                scheduler_.wait([this] { return ending_ || !jobs_.empty(); });
                heartbeat_.begin(scheduler_.now_ns());
                if (jobs_.empty()) {
                    break;
                }
                const std::function<void()> job = std::move(jobs_.front());
                jobs_.pop_front();
                job();
                scheduler_.progress();
            }
            heartbeat_.stop();
            ended_ = true;
        });
    }
    ~SimExecutor() override {
        ending_ = true;
        scheduler_.wait([this] { return ended_; });
    }
    void post_always(std::function<void()> job) override { jobs_.push_back(std::move(job)); }

private:
    [[nodiscard]] bool is_here() const noexcept override { return self_ == &scheduler_.running(); }
    // Waits without a limit, because the simulation notices a call that hangs.
    void perform(JobRef job, Patience) override {
        bool ran = false;
        jobs_.push_back([&] {
            job();
            ran = true;
        });
        scheduler_.progress();
        scheduler_.wait([&] { return ran; });
    }

    Scheduler& scheduler_;
    std::deque<std::function<void()>> jobs_;
    const std::string* self_ = nullptr;
    bool ending_ = false;
    bool ended_ = false;
};

// The thread that watches descriptors. It lets the control thread run their jobs and the tick function.
class SimEventLoop final : public EventLoop {
public:
    SimEventLoop(Scheduler& scheduler, Executor& executor, const std::string& name, std::chrono::nanoseconds period,
                 std::function<void()> tick)
        : scheduler_(scheduler), executor_(executor), tick_(std::move(tick)) {
        scheduler_.start(name, [this, period = static_cast<std::uint64_t>(period.count())] {
            std::uint64_t next_tick = scheduler_.now_ns() + period;
            while (!ending_) {
                look();
                if (scheduler_.now_ns() >= next_tick && !tick_waits_) {
                    next_tick = scheduler_.now_ns() + period;
                    tick_waits_ = true;
                    executor_.post_always([this] {
                        tick_waits_ = false;
                        tick_();
                    });
                }
                (void)scheduler_.wait(kLookNs, [this] { return ending_; });
            }
            ended_ = true;
        });
    }
    ~SimEventLoop() override { stop(); }
    void stop() noexcept override {
        ending_ = true;
        scheduler_.wait([this] { return ended_; });
    }
    void watch(int fd, std::function<void()> job) override { watched_[fd] = {std::move(job), false}; }
    void forget(int fd) noexcept override { watched_.erase(fd); }

private:
    static constexpr std::uint64_t kLookNs = 20'000;

    struct Watched {
        std::function<void()> job;
        bool posted = false;
    };

    void look() {
        for (auto& [fd, watched] : watched_) {
            pollfd readable{.fd = fd, .events = POLLIN, .revents = 0};
            if (watched.posted || ::poll(&readable, 1, 0) != 1) {
                continue;
            }
            watched.posted = true;
            executor_.post_always([this, fd = fd] {
                const auto found = watched_.find(fd);
                if (found == watched_.end()) {
                    return;
                }
                const std::function<void()> job = found->second.job;
                job();
                if (const auto again = watched_.find(fd); again != watched_.end()) {
                    again->second.posted = false;
                }
            });
        }
    }

    Scheduler& scheduler_;
    Executor& executor_;
    std::function<void()> tick_;
    bool tick_waits_ = false;
    std::map<int, Watched> watched_;
    bool ending_ = false;
    bool ended_ = false;
};

class SimIdleWays final : public IdleWays {
public:
    explicit SimIdleWays(Scheduler& scheduler) : scheduler_(scheduler) {}
    void monitor(const RingConsumer<WorkRequest>*) noexcept override { scheduler_.yield(); }
    void yield() noexcept override { scheduler_.yield(); }
    void wait(std::span<pollfd> fds, std::uint64_t deadline_ns, std::uint64_t most_ns) noexcept override {
        const std::uint64_t now = scheduler_.now_ns();
        const std::uint64_t left = deadline_ns == CompletionChannel::kNever ? CompletionChannel::kNever
                                   : deadline_ns > now                      ? deadline_ns - now
                                                                            : 0;
        const std::uint64_t most = std::min(left, most_ns);
        (void)scheduler_.wait(most == CompletionChannel::kNever ? Scheduler::kForever : most,
                              [fds] { return ::poll(fds.data(), fds.size(), 0) > 0; });
    }

private:
    Scheduler& scheduler_;
};

class SimWorkerThread final : public WorkerThread {
public:
    SimWorkerThread(Scheduler& scheduler, const std::string& name, const WorkerConfig& config, Worker& worker,
                    Random random)
        : scheduler_(scheduler), worker_(worker) {
        const std::uint32_t most =
            kCommandSlots + kSessionsHere * config.submit_burst + kCqsHere * config.complete_burst;
        const bool sleeps = config.idle.has(IdlePolicy::event);
        const std::uint32_t idle_steps = random.below(4);
        scheduler_.start(name, [this, most, sleeps, idle_steps] {
            SimIdleWays ways(scheduler_);
            std::uint32_t idle = 0;
            while (!stop_) {
                const std::uint32_t work = worker_.step(scheduler_.now_ns());
                if (work != 0) {
                    scheduler_.progress();
                    idle = 0;
                }
                if (work > most) {
                    throw Violation("I10 bounds", "a step did more than its bursts allow: " + std::to_string(work));
                }
                if (work == 0 && sleeps && idle++ >= idle_steps && worker_.fall_asleep(scheduler_.now_ns())) {
                    sleep_until_woken(worker_, stop_, ways, [this] { return scheduler_.now_ns(); });
                    idle = 0;
                }
                scheduler_.yield();
            }
            ended_ = true;
        });
    }
    void stop() noexcept override {
        stop_ = true;
        if (worker_.bell() >= 0) {
            signal_event(worker_.bell());
        }
    }
    void join() noexcept override {
        scheduler_.wait([this] { return ended_; });
    }
    [[nodiscard]] int thread_id() const noexcept override { return 0; }

private:
    // No worker has more in a history.
    static constexpr std::uint32_t kSessionsHere = 2;
    static constexpr std::uint32_t kCqsHere = 16;

    Scheduler& scheduler_;
    Worker& worker_;
    std::atomic<bool> stop_{false};
    bool ended_ = false;
};

}  // namespace

SimPlatform::SimPlatform(Scheduler& scheduler, std::string name, Random random, OpenDevice open)
    : scheduler_(scheduler), name_(std::move(name)), random_(random), open_(std::move(open)) {}

HostMemory SimPlatform::allocate(std::size_t bytes, int, const std::string&) {
    void* data = ::operator new (bytes, std::align_val_t{kCacheLine});
    std::memset(data, 0, bytes);
    bytes_allocated += bytes;
    return {data, bytes, release};
}

std::size_t SimPlatform::allocated() noexcept {
    return bytes_allocated;
}

std::unique_ptr<Executor> SimPlatform::start_executor(const std::string&) {
    return std::make_unique<SimExecutor>(scheduler_, name_ + " control");
}

std::unique_ptr<EventLoop> SimPlatform::start_event_loop(Executor& executor, std::chrono::milliseconds period,
                                                         std::function<void()> tick) {
    return std::make_unique<SimEventLoop>(scheduler_, executor, name_ + " events", period, std::move(tick));
}

std::unique_ptr<WorkerThread> SimPlatform::start_worker(const WorkerConfig& config, Worker& worker) {
    return std::make_unique<SimWorkerThread>(scheduler_, name_ + " " + config.name, config, worker, random_.split());
}

void SimPlatform::sleep(std::chrono::microseconds duration) {
    // The caller looks again anyway, and a shorter sleep leaves more steps for the rest of the history.
    const auto most = static_cast<std::uint32_t>(std::chrono::nanoseconds(duration).count());
    scheduler_.sleep(random_.between(1, most / 16));
}

bool SimPlatform::wait(std::unique_lock<std::mutex>& lock, std::condition_variable&, std::chrono::milliseconds timeout,
                       const std::function<bool()>& done) {
    // One thread runs at a time, so done() needs no lock.
    lock.unlock();
    const bool is = scheduler_.wait(static_cast<std::uint64_t>(std::chrono::nanoseconds(timeout).count()), done);
    lock.lock();
    return is;
}

}  // namespace pollcore::sim
