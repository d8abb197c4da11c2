// What a runtime stands on: memory, devices, threads and time (D30).
//
// A program uses host_platform(). A simulation brings its own platform, with threads that it steps by hand and a clock
// of its own, and runs everything above unchanged.
//
// Thread safety: wait() from any thread, the rest from the one that makes the runtime, and from its control jobs.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "base/host_memory.hpp"
#include "control/event_loop.hpp"
#include "control/executor.hpp"
#include "device/device.hpp"
#include "pollcore/config.hpp"
#include "pollcore/runtime.hpp"

namespace pollcore {

class Worker;

/// Runs a worker's loop until it is told to stop.
class WorkerThread {
public:
    /// Only after stop() and join().
    virtual ~WorkerThread() = default;
    WorkerThread(const WorkerThread&) = delete;
    WorkerThread& operator=(const WorkerThread&) = delete;

    virtual void stop() noexcept = 0;
    virtual void join() noexcept = 0;
    /// The kernel's id of the thread.
    [[nodiscard]] virtual int thread_id() const noexcept = 0;

protected:
    WorkerThread() = default;
};

class Platform {
public:
    using Clock = std::chrono::steady_clock;

    virtual ~Platform() = default;
    Platform(const Platform&) = delete;
    Platform& operator=(const Platform&) = delete;

    /// Must be called first. Writes what it found into the report.
    virtual void prepare(const Config& config, RuntimeReport& report) = 0;
    [[nodiscard]] virtual std::unique_ptr<Device> open_device(const DeviceConfig& config) = 0;
    /// Zeroed and cache-line aligned. `numa_node` -1: anywhere. Throws Error(ENOMEM), which says which limit to raise.
    [[nodiscard]] virtual HostMemory allocate(std::size_t bytes, int numa_node, const std::string& what_for) = 0;

    [[nodiscard]] virtual std::unique_ptr<Executor> start_executor(const std::string& name) = 0;
    /// `tick` is posted every `period`.
    [[nodiscard]] virtual std::unique_ptr<EventLoop> start_event_loop(Executor& executor,
                                                                      std::chrono::milliseconds period,
                                                                      std::function<void()> tick) = 0;
    [[nodiscard]] virtual std::unique_ptr<WorkerThread> start_worker(const WorkerConfig& config, Worker& worker) = 0;

    [[nodiscard]] virtual Clock::time_point now() = 0;
    /// The clock that workers are stepped with.
    [[nodiscard]] virtual std::uint64_t cycles() = 0;
    /// That clock as a function, for code without a platform at hand; null: only cycles() has it.
    [[nodiscard]] virtual auto cycles_function() -> std::uint64_t (*)() noexcept { return nullptr; }
    [[nodiscard]] virtual std::uint64_t cycles_from(std::chrono::nanoseconds duration) = 0;
    virtual void sleep(std::chrono::microseconds duration) = 0;
    /// Waits on `changed`, whose mutex `lock` holds, until done() is true or the time is over. done() is called under
    /// the lock. Returns its last result.
    [[nodiscard]] virtual bool wait(std::unique_lock<std::mutex>& lock, std::condition_variable& changed,
                                    std::chrono::milliseconds timeout, const std::function<bool()>& done) = 0;
    /// All values are equally likely.
    [[nodiscard]] virtual std::uint32_t random() = 0;

protected:
    Platform() = default;
};

/// Memory from DPDK's EAL, and the machine's own devices, cores and clock.
[[nodiscard]] std::unique_ptr<Platform> host_platform();

}  // namespace pollcore
