// The platform of a runtime on this machine. A test or a benchmark overrides the functions that it wants to change.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "control/platform.hpp"

namespace pollcore::test {

class OnHostPlatform : public Platform {
public:
    void prepare(const Config& config, RuntimeReport& report) override { host_->prepare(config, report); }
    std::unique_ptr<Device> open_device(const DeviceConfig& config) override { return host_->open_device(config); }
    HostMemory allocate(std::size_t bytes, int numa_node, const std::string& what_for) override {
        return host_->allocate(bytes, numa_node, what_for);
    }
    std::unique_ptr<Executor> start_executor(const std::string& name) override { return host_->start_executor(name); }
    std::unique_ptr<EventLoop> start_event_loop(Executor& executor, std::chrono::milliseconds period,
                                                std::function<void()> tick) override {
        return host_->start_event_loop(executor, period, std::move(tick));
    }
    std::unique_ptr<WorkerThread> start_worker(const WorkerConfig& config, Worker& worker) override {
        return host_->start_worker(config, worker);
    }
    Clock::time_point now() override { return host_->now(); }
    std::uint64_t cycles() override { return host_->cycles(); }
    auto cycles_function() -> std::uint64_t (*)() noexcept override { return host_->cycles_function(); }
    std::uint64_t cycles_from(std::chrono::nanoseconds duration) override { return host_->cycles_from(duration); }
    void sleep(std::chrono::microseconds duration) override { host_->sleep(duration); }
    bool spin_for_worker(std::uint32_t looks) override { return host_->spin_for_worker(looks); }
    bool wait(std::unique_lock<std::mutex>& lock, std::condition_variable& changed, std::chrono::milliseconds timeout,
              const std::function<bool()>& done) override {
        return host_->wait(lock, changed, timeout, done);
    }
    std::uint32_t random() override { return host_->random(); }

private:
    std::unique_ptr<Platform> host_ = host_platform();
};

}  // namespace pollcore::test
