#include <unistd.h>

#include <algorithm>
#include <map>
#include <optional>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.hpp"
#include "base/event_fd.hpp"
#include "base/log.hpp"
#include "base/log_writer.hpp"
#include "base/look.hpp"
#include "control/control_thread.hpp"
#include "control/eal.hpp"
#include "control/epoll_loop.hpp"
#include "control/held_core.hpp"
#include "control/host_idle_ways.hpp"
#include "control/platform.hpp"
#include "device/open_device.hpp"
#include "worker/run.hpp"

namespace pollcore {
namespace {

// For about 12 us a thread of the control side looks for a worker's answer without sleeping.
constexpr std::uint32_t kQuickLooks = 200;
constexpr std::uint32_t kBetweenQuickLooks = 100;  // cycles

class PinnedWorker final : public WorkerThread {
public:
    /// Holds `core` until the thread has ended. `core` is empty if the core may be shared with other runtimes.
    PinnedWorker(const WorkerConfig& config, Worker& worker, std::optional<HeldCore> core)
        : worker_(worker), core_(std::move(core)) {
        thread_.start("pollcore-" + config.name, config.core, [this, idle = config.idle] {
            HostIdleWays ways;
            worker_.own_heartbeat().start(::gettid(), cycles_now());
            turn_worker(worker_, stop_, idle, ways, cycles_now, cycles_per_ns());
            worker_.own_heartbeat().stop();
        });
    }
    void stop() noexcept override {
        stop_.store(true, std::memory_order_relaxed);
        if (worker_.bell() >= 0) {
            signal_event(worker_.bell());
        }
    }
    void join() noexcept override {
        thread_.join();
        core_.reset();
    }
    [[nodiscard]] int thread_id() const noexcept override { return thread_.thread_id(); }

private:
    Worker& worker_;
    std::optional<HeldCore> core_;
    std::atomic<bool> stop_{false};
    CoreThread thread_;
};

class HostPlatform final : public Platform {
public:
    void prepare(const Config& config, RuntimeReport& report) override {
        // The cores come first: if a core is refused, the runtime has taken nothing else yet.
        held_ = hold_cores(config);
        hang_limit_ = config.hang_limit;
        (void)cycles_per_ns();  // measure the clock now, and not later in the middle of a drain
        std::vector<std::uint32_t> cores;
        for (const WorkerConfig& worker : config.workers) {
            cores.push_back(worker.core);
        }
        const EalState& eal = ensure_eal(config.memory, cores, config.statistics.telemetry);
        helper_cpus_ = helper_cpus(cores);
        beside_workers_ = std::none_of(helper_cpus_.begin(), helper_cpus_.end(), [&](int cpu) {
            return std::find(cores.begin(), cores.end(), static_cast<std::uint32_t>(cpu)) != cores.end();
        });
        log_writer_.emplace([cpus = helper_cpus_] { become_helper("pollcore-log", cpus); });
        report.hugepages = eal.hugepages;
        report.memory = eal.memory;
        report.eal = eal.ours ? "set up by pollcore" : "set up by the host program";
        if (!eal.hugepages && config.memory.hugepages == MemoryConfig::Hugepages::prefer) {
            log_warning("memory is in {}", eal.memory);
        }
    }
    std::unique_ptr<Device> open_device(const DeviceConfig& config) override { return pollcore::open_device(config); }
    std::unique_ptr<Device> open_device_to_share(const DeviceConfig& config) override {
        return pollcore::open_device(config, true);
    }
    HostMemory allocate(std::size_t bytes, int numa_node, const std::string& what_for) override {
        return eal_memory(bytes, numa_node, what_for);
    }

    std::unique_ptr<Executor> start_executor(const std::string& name) override {
        return std::make_unique<ControlThread>(name, helper_cpus_, hang_limit_);
    }
    std::unique_ptr<EventLoop> start_event_loop(Executor& executor, std::chrono::milliseconds period,
                                                std::function<void()> tick) override {
        return std::make_unique<EpollLoop>(executor, helper_cpus_, period, std::move(tick));
    }
    std::unique_ptr<WorkerThread> start_worker(const WorkerConfig& config, Worker& worker) override {
        auto held = held_.extract(config.core);
        return std::make_unique<PinnedWorker>(config, worker,
                                              held.empty() ? std::nullopt : std::optional(std::move(held.mapped())));
    }

    Clock::time_point now() override { return Clock::now(); }
    std::uint64_t cycles() override { return cycles_now(); }
    auto cycles_function() -> std::uint64_t (*)() noexcept override { return &cycles_now; }
    std::uint64_t cycles_from(std::chrono::nanoseconds duration) override { return pollcore::cycles_from(duration); }
    void sleep(std::chrono::microseconds duration) override { std::this_thread::sleep_for(duration); }
    // A sleep of 20 us takes about 75 us, and a connection needs some twenty answers of its worker (D51).
    bool spin_for_worker(std::uint32_t looks) override {
        if (looks >= kQuickLooks || !beside_workers_) {
            return false;
        }
        delay_look(kBetweenQuickLooks);
        return true;
    }
    bool wait(std::unique_lock<std::mutex>& lock, std::condition_variable& changed, std::chrono::milliseconds timeout,
              const std::function<bool()>& done) override {
        return changed.wait_for(lock, timeout, done);
    }
    std::uint32_t random() override { return random_(); }

private:
    std::vector<int> helper_cpus_;
    bool beside_workers_ = false;             // helpers have CPUs that no worker uses
    std::map<std::uint32_t, HeldCore> held_;  // cores whose workers have not started yet
    std::chrono::milliseconds hang_limit_{0};
    // Writes the log, so that the control thread does not wait for the reader of stderr.
    std::optional<LogWriter> log_writer_;
    std::random_device random_;
};

}  // namespace

std::unique_ptr<Platform> host_platform() {
    return std::make_unique<HostPlatform>();
}

}  // namespace pollcore
