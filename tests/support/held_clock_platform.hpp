// A platform on this machine whose clock stands still until a test moves it. The control thread and the workers both
// use this clock, so a thread that waits for a time waits for the test.
#pragma once

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <utility>

#include "give_way.hpp"
#include "on_host_platform.hpp"
#include "worker/worker.hpp"

namespace pollcore::test {

/// The test's handle on the clock of a HeldClockPlatform, which the runtime owns. Any thread may use it.
class HeldClock {
public:
    /// Each reading of the control side by now() is later by `creep` than the one before. Workers read the clock
    /// without this creep.
    explicit HeldClock(std::chrono::nanoseconds creep = {}) : creep_(static_cast<std::uint64_t>(creep.count())) {}

    void advance(std::chrono::nanoseconds by) { ns_ += static_cast<std::uint64_t>(by.count()); }
    [[nodiscard]] std::uint64_t ns() const { return ns_; }
    /// How many times the control thread has slept between two looks for something that it waits for.
    [[nodiscard]] std::uint64_t looks() const { return looks_; }

private:
    friend class HeldClockPlatform;
    // Always behind the machine's clock. The control side gives other threads a time until which they sleep on the
    // machine's clock. Such a time has always passed already.
    std::atomic<std::uint64_t> ns_{1'000'000'000};
    std::atomic<std::uint64_t> looks_{0};
    std::atomic<std::uint64_t> crept_{0};
    const std::uint64_t creep_;
};

/// Runs a worker on the held clock; one nanosecond is one cycle.
class HeldClockWorker final : public WorkerThread {
public:
    HeldClockWorker(Worker& worker, const HeldClock& clock)
        : worker_(worker), clock_(clock), thread_([this] { loop(); }) {}
    void stop() noexcept override { stop_ = true; }
    void join() noexcept override { thread_.join(); }
    [[nodiscard]] int thread_id() const noexcept override { return thread_id_; }

private:
    void loop() {
        thread_id_ = ::gettid();
        worker_.own_heartbeat().start(thread_id_, clock_.ns());
        while (!stop_) {
            if (worker_.step(clock_.ns()) == 0) {
                test::give_way();
            }
        }
        worker_.own_heartbeat().stop();
    }

    Worker& worker_;
    const HeldClock& clock_;
    std::atomic<bool> stop_{false};
    std::atomic<int> thread_id_{0};
    std::thread thread_;
};

class HeldClockPlatform final : public OnHostPlatform {
public:
    using OpenDevice = std::function<std::unique_ptr<Device>(const DeviceConfig&)>;

    explicit HeldClockPlatform(HeldClock& clock, OpenDevice open = {}) : clock_(clock), open_(std::move(open)) {}

    std::unique_ptr<Device> open_device(const DeviceConfig& config) override {
        return open_ ? open_(config) : OnHostPlatform::open_device(config);
    }
    std::unique_ptr<WorkerThread> start_worker(const WorkerConfig&, Worker& worker) override {
        return std::make_unique<HeldClockWorker>(worker, clock_);
    }
    Clock::time_point now() override {
        return Clock::time_point(std::chrono::nanoseconds(clock_.ns() + (clock_.crept_ += clock_.creep_)));
    }
    std::uint64_t cycles() override { return clock_.ns(); }
    auto cycles_function() -> std::uint64_t (*)() noexcept override { return nullptr; }
    std::uint64_t cycles_from(std::chrono::nanoseconds duration) override {
        return static_cast<std::uint64_t>(duration.count());
    }
    void sleep(std::chrono::microseconds duration) override {
        ++clock_.looks_;
        OnHostPlatform::sleep(duration);
    }
    // Sleeps each time, so that a test which has seen some looks knows that some time is over.
    bool spin_for_worker(std::uint32_t) override { return false; }

private:
    HeldClock& clock_;
    OpenDevice open_;
};

}  // namespace pollcore::test
