// The platform of a simulated runtime: the scheduler's threads and clock, plain memory, and a software device that the
// test makes.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "control/platform.hpp"
#include "device/soft/soft_device.hpp"
#include "sim/random.hpp"
#include "sim/scheduler.hpp"

namespace pollcore::sim {

class SimPlatform final : public Platform {
public:
    using OpenDevice = std::function<std::unique_ptr<Device>(const DeviceConfig&)>;

    /// `name` is the prefix of the names of the platform's threads.
    SimPlatform(Scheduler& scheduler, std::string name, Random random, OpenDevice open);

    void prepare(const Config&, RuntimeReport&) override {}
    std::unique_ptr<Device> open_device(const DeviceConfig& config) override { return open_(config); }
    HostMemory allocate(std::size_t bytes, int numa_node, const std::string& what_for) override;

    std::unique_ptr<Executor> start_executor(const std::string&) override;
    std::unique_ptr<EventLoop> start_event_loop(Executor& executor, std::chrono::milliseconds period,
                                                std::function<void()> tick) override;
    std::unique_ptr<WorkerThread> start_worker(const WorkerConfig& config, Worker& worker) override;

    Clock::time_point now() override { return Clock::time_point(std::chrono::nanoseconds(scheduler_.now_ns())); }
    std::uint64_t cycles() override { return scheduler_.now_ns(); }
    std::uint64_t cycles_from(std::chrono::nanoseconds duration) override {
        return static_cast<std::uint64_t>(duration.count());
    }
    void sleep(std::chrono::microseconds duration) override;
    bool wait(std::unique_lock<std::mutex>& lock, std::condition_variable& changed, std::chrono::milliseconds timeout,
              const std::function<bool()>& done) override;
    std::uint32_t random() override { return static_cast<std::uint32_t>(random_.next()); }

    /// Bytes that all platforms have allocated and not freed.
    [[nodiscard]] static std::size_t allocated() noexcept;

private:
    Scheduler& scheduler_;
    std::string name_;
    Random random_;
    OpenDevice open_;
};

}  // namespace pollcore::sim
