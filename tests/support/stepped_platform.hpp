// A platform on this machine whose worker has no thread of its own. It steps when a test says so, and while the control
// thread waits for it. So a test knows how many steps the worker does between two calls.
#pragma once

#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>

#include "on_host_platform.hpp"
#include "worker/worker.hpp"

namespace pollcore::test {

/// The test's handle on the worker of a SteppedPlatform, which the runtime owns. Any thread may use it.
class SteppedWorker {
public:
    /// Does one step, if there is a worker.
    void step() {
        const std::lock_guard lock(mutex_);
        if (worker_ != nullptr) {
            (void)worker_->step(++now_);
        }
    }

private:
    friend class SteppedPlatform;
    void set(Worker* worker) {
        const std::lock_guard lock(mutex_);
        worker_ = worker;
    }

    std::mutex mutex_;
    Worker* worker_ = nullptr;
    std::uint64_t now_ = 0;
};

class SteppedPlatform final : public OnHostPlatform {
public:
    explicit SteppedPlatform(SteppedWorker& worker) : worker_(worker) {}

    std::unique_ptr<WorkerThread> start_worker(const WorkerConfig&, Worker& worker) override {
        worker_.set(&worker);
        return std::make_unique<NoThread>(worker_);
    }
    // The control thread calls one of these two between two looks for an answer of the worker.
    bool spin_for_worker(std::uint32_t) override {
        worker_.step();
        return true;
    }
    void sleep(std::chrono::microseconds) override { worker_.step(); }

private:
    class NoThread final : public WorkerThread {
    public:
        explicit NoThread(SteppedWorker& worker) : worker_(worker) {}
        void stop() noexcept override {}
        void join() noexcept override { worker_.set(nullptr); }
        [[nodiscard]] int thread_id() const noexcept override { return ::getpid(); }

    private:
        SteppedWorker& worker_;
    };

    SteppedWorker& worker_;
};

}  // namespace pollcore::test
