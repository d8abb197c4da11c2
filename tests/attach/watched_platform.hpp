// The platform of this machine, with three changes. A test can hold up single calls of the software device. The control
// thread's executor counts device calls in each of its jobs, and records the largest number. A test can make the
// workers stand still.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "base/clock.hpp"
#include "control/platform.hpp"
#include "device/soft/soft_device.hpp"
#include "give_way.hpp"
#include "on_host_platform.hpp"
#include "worker/worker.hpp"

namespace pollcore::test {

/// Calls of the functions of WatchedDevice below that this thread has made in its present job.
inline thread_local std::uint64_t device_calls = 0;

enum class Held { register_memory, deregister, create_ah, find_neighbour };

class WatchedDevice final : public SoftDevice {
public:
    using SoftDevice::SoftDevice;

    /// The next call of this kind blocks until release().
    void hold_next(Held kind) {
        const std::lock_guard lock(mutex_);
        holds_ = kind;
        inside_ = false;
    }
    /// Waits until a call is held. Returns false if no call comes in time.
    [[nodiscard]] bool await_inside(std::chrono::seconds within) {
        std::unique_lock lock(mutex_);
        return changed_.wait_for(lock, within, [this] { return inside_; });
    }
    void release() {
        const std::lock_guard lock(mutex_);
        holds_.reset();
        inside_ = false;
        changed_.notify_all();
    }

    ibv_mr* register_memory(ibv_pd* pd, void* addr, std::size_t length, std::uint64_t iova, int access) override {
        pass(Held::register_memory);
        return SoftDevice::register_memory(pd, addr, length, iova, access);
    }
    ibv_ah* create_ah(ibv_pd* pd, ibv_ah_attr& attr) override {
        pass(Held::create_ah);
        return SoftDevice::create_ah(pd, attr);
    }
    void find_neighbour(ibv_pd*, ibv_ah_attr&) override { pass(Held::find_neighbour); }
    int destroy(ibv_mr* mr) noexcept override {
        pass(Held::deregister);
        return SoftDevice::destroy(mr);
    }
    void modify(ibv_qp* qp, ibv_qp_attr& attr, int mask) override {
        ++device_calls;
        SoftDevice::modify(qp, attr, mask);
    }
    using SoftDevice::modify;
    int destroy(ibv_pd* pd) noexcept override { return counted(pd); }
    int destroy(ibv_ah* ah) noexcept override { return counted(ah); }
    int destroy(ibv_cq* cq) noexcept override { return counted(cq); }
    int destroy(ibv_qp* qp) noexcept override { return counted(qp); }
    int destroy(ibv_srq* srq) noexcept override { return counted(srq); }
    int destroy(ibv_mw* window) noexcept override { return counted(window); }

private:
    template <class T>
    int counted(T* object) noexcept {
        ++device_calls;
        return SoftDevice::destroy(object);
    }
    void pass(Held kind) {
        ++device_calls;
        std::unique_lock lock(mutex_);
        if (holds_ == kind) {
            holds_.reset();
            inside_ = true;
            changed_.notify_all();
            changed_.wait(lock, [this] { return !inside_; });
        }
    }

    std::mutex mutex_;
    std::condition_variable changed_;
    std::optional<Held> holds_;
    bool inside_ = false;
};

/// Runs jobs as ControlThread does, but without limits on the number of waiting jobs and on the wait.
class CountingExecutor final : public Executor {
public:
    explicit CountingExecutor(std::atomic<std::uint64_t>& longest) : longest_(longest), thread_([this] { loop(); }) {}
    ~CountingExecutor() override {
        post_always(nullptr);
        thread_.join();
    }
    void post_always(std::function<void()> job) override {
        const std::lock_guard lock(mutex_);
        jobs_.push_back(std::move(job));
        changed_.notify_one();
    }

private:
    [[nodiscard]] bool is_here() const noexcept override { return std::this_thread::get_id() == thread_.get_id(); }
    void perform(JobRef job, Patience) override {
        // Shared, because the caller may be gone while set_value() still runs.
        const auto done = std::make_shared<std::promise<void>>();
        std::future<void> ran = done->get_future();
        post_always([&job, done] {
            job();
            done->set_value();
        });
        ran.get();
    }
    void loop() {
        for (;;) {
            std::unique_lock lock(mutex_);
            changed_.wait(lock, [this] { return !jobs_.empty(); });
            const std::function<void()> job = std::move(jobs_.front());
            jobs_.pop_front();
            lock.unlock();
            if (job == nullptr) {
                return;
            }
            device_calls = 0;
            job();
            for (std::uint64_t longest = longest_.load();
                 longest < device_calls && !longest_.compare_exchange_weak(longest, device_calls);) {
            }
        }
    }

    std::atomic<std::uint64_t>& longest_;
    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<std::function<void()>> jobs_;
    std::thread thread_;
};

/// The test's view of the platform, which itself belongs to the runtime.
struct Watched {
    WatchedDevice* device = nullptr;
    std::atomic<bool> workers_stand{false};
    std::atomic<std::uint64_t> stood{0};        ///< turns that workers have left out
    std::atomic<std::uint64_t> longest_job{0};  ///< most device calls that a job of the control thread has made
};

/// A thread that calls the worker's step(), except while the test lets workers stand.
class StandingWorker final : public WorkerThread {
public:
    StandingWorker(Worker& worker, Watched& watched)
        : worker_(worker), watched_(watched), thread_([this] { loop(); }) {}
    void stop() noexcept override { stop_.store(true); }
    void join() noexcept override { thread_.join(); }
    [[nodiscard]] int thread_id() const noexcept override { return thread_id_.load(); }

private:
    void loop() {
        thread_id_.store(::gettid());
        worker_.own_heartbeat().start(::gettid(), cycles_now());
        while (!stop_.load()) {
            if (watched_.workers_stand.load()) {
                ++watched_.stood;
                test::give_way();
            } else if (worker_.step(cycles_now()) == 0) {
                test::give_way();
            }
        }
        worker_.own_heartbeat().stop();
    }

    Worker& worker_;
    Watched& watched_;
    std::atomic<bool> stop_{false};
    std::atomic<int> thread_id_{0};
    std::thread thread_;
};

class WatchedPlatform final : public OnHostPlatform {
public:
    explicit WatchedPlatform(Watched& watched) : watched_(watched) {}

    std::unique_ptr<Device> open_device(const DeviceConfig& config) override {
        auto device = std::make_unique<WatchedDevice>(SoftDeviceOptions{.name = config.name});
        watched_.device = device.get();
        return device;
    }
    std::unique_ptr<WorkerThread> start_worker(const WorkerConfig&, Worker& worker) override {
        return std::make_unique<StandingWorker>(worker, watched_);
    }
    std::unique_ptr<Executor> start_executor(const std::string& name) override {
        return name == "pollcore-ctl" ? std::make_unique<CountingExecutor>(watched_.longest_job)
                                      : OnHostPlatform::start_executor(name);
    }

private:
    Watched& watched_;
};

}  // namespace pollcore::test
