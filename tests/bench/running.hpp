// A runtime with a worker on another CPU, on a device that completes at once: as a program has it.
//
// Thread safety: one thread.
#pragma once

#include <memory>
#include <string>

#include "bench.hpp"
#include "control/platform.hpp"
#include "device/open_device.hpp"
#include "instant_device.hpp"
#include "pollcore/runtime.hpp"
#include "pollcore/session.hpp"

namespace pollcore::bench {

/// This machine, with devices that complete at once.
class InstantPlatform final : public Platform {
public:
    void prepare(const Config& config, RuntimeReport& report) override { host_->prepare(config, report); }
    std::unique_ptr<Device> open_device(const DeviceConfig& config) override {
        std::unique_ptr<Device> device = host_->open_device(config);
        make_instant(*device->context());
        return device;
    }
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
    bool wait(std::unique_lock<std::mutex>& lock, std::condition_variable& changed, std::chrono::milliseconds timeout,
              const std::function<bool()>& done) override {
        return host_->wait(lock, changed, timeout, done);
    }
    std::uint32_t random() override { return host_->random(); }

private:
    std::unique_ptr<Platform> host_ = host_platform();
};

/// A runtime with one worker, a session and a queue pair.
class Running {
public:
    explicit Running(const Cpus& cpus)
        : runtime_(config(cpus), std::make_unique<InstantPlatform>()),
          session_(runtime_.open_session({.submission_slots = 4096, .completion_slots = 4096})),
          memory_(runtime_.allocate(4096)),
          qp_(runtime_.create_queue_pair({.shares = {{.session = &session_, .send_depth = 2048}}})) {
        qp_.connect(qp_.info());
    }

    [[nodiscard]] Session& session() noexcept { return session_; }
    [[nodiscard]] WorkRequest request(std::uint64_t tag) const noexcept {
        return {.tag = tag,
                .sge = {memory_.addr(), 8, memory_.lkey()},
                .remote_addr = memory_.addr() + 64,
                .rkey = memory_.rkey(),
                .qp = qp_.handle(),
                .opcode = Opcode::rdma_write,
                .flags = kSignaled,
                .num_sge = 1};
    }

private:
    static Config config(const Cpus& cpus) {
        Config config;
        config.devices.push_back({.name = "net0"});
        config.workers.push_back({.name = "bench", .core = cpus.there, .poll = PollVerbs::plain});
        config.log_level = LogLevel::error;  // that there are no huge pages is said in the end
        return config;
    }

    Runtime runtime_;
    Session session_;
    MemoryRegion memory_;
    QueuePair qp_;
};

}  // namespace pollcore::bench
