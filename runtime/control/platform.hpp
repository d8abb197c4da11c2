// What a runtime gets from its environment: memory, devices, threads and time (D30).
//
// A program uses host_platform(). A simulation brings its own platform, which steps its threads by hand and has its own
// clock. All code above this interface runs unchanged in a simulation.
//
// Thread safety: any thread may call wait(), allocate(), now(), cycles() and cycles_from(). The other functions are
// called only by the thread that makes the runtime, and by jobs of the control side.
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

/// Runs a worker's loop until stop() is called.
class WorkerThread {
public:
    /// Called only after stop() and join().
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

    /// Must be called before all other functions. Writes to `report` which memory and which EAL the platform uses.
    virtual void prepare(const Config& config, RuntimeReport& report) = 0;
    [[nodiscard]] virtual std::unique_ptr<Device> open_device(const DeviceConfig& config) = 0;
    /// Opens a device on which Device::share() will be called. Any thread.
    [[nodiscard]] virtual std::unique_ptr<Device> open_device_to_share(const DeviceConfig& config) {
        return open_device(config);
    }
    /// The memory is zeroed and cache-line aligned. `numa_node` -1 means any node. Throws Error(ENOMEM), whose text
    /// names the limit to raise.
    [[nodiscard]] virtual HostMemory allocate(std::size_t bytes, int numa_node, const std::string& what_for) = 0;

    [[nodiscard]] virtual std::unique_ptr<Executor> start_executor(const std::string& name) = 0;
    /// Posts `tick` to the executor every `period`.
    [[nodiscard]] virtual std::unique_ptr<EventLoop> start_event_loop(Executor& executor,
                                                                      std::chrono::milliseconds period,
                                                                      std::function<void()> tick) = 0;
    [[nodiscard]] virtual std::unique_ptr<WorkerThread> start_worker(const WorkerConfig& config, Worker& worker) = 0;

    [[nodiscard]] virtual Clock::time_point now() = 0;
    /// The workers' clock, in cycles.
    [[nodiscard]] virtual std::uint64_t cycles() = 0;
    /// cycles() as a plain function, for code that cannot call a Platform. Null means that there is no such function.
    [[nodiscard]] virtual auto cycles_function() -> std::uint64_t (*)() noexcept { return nullptr; }
    [[nodiscard]] virtual std::uint64_t cycles_from(std::chrono::nanoseconds duration) = 0;
    virtual void sleep(std::chrono::microseconds duration) = 0;
    // For a caller that checks again and again whether a worker has done something. A worker that is not busy does it
    // within microseconds. `looks` is the number of checks so far.
    /// Waits between two checks.
    void wait_for_worker(std::uint32_t looks) {
        if (!spin_for_worker(looks)) {
            sleep(std::chrono::microseconds(20));
        }
    }
    /// Waits between two checks if that needs no sleep. Otherwise returns false at once.
    [[nodiscard]] virtual bool spin_for_worker(std::uint32_t looks) {
        (void)looks;
        return false;
    }
    /// Waits on `changed` until done() returns true or `timeout` is over. `lock` holds the mutex that goes with
    /// `changed`, and done() is called with the mutex held. Returns the last result of done().
    [[nodiscard]] virtual bool wait(std::unique_lock<std::mutex>& lock, std::condition_variable& changed,
                                    std::chrono::milliseconds timeout, const std::function<bool()>& done) = 0;
    /// A random number. All values are equally likely.
    [[nodiscard]] virtual std::uint32_t random() = 0;

protected:
    Platform() = default;
};

/// Memory from DPDK's EAL, and the machine's own devices, cores and clock.
[[nodiscard]] std::unique_ptr<Platform> host_platform();

}  // namespace pollcore
