// A complete runtime with a worker on another CPU, on a device that completes at once.
//
// Thread safety: one thread.
#pragma once

#include <memory>
#include <string>

#include "bench.hpp"
#include "device/open_device.hpp"
#include "instant_device.hpp"
#include "on_host_platform.hpp"
#include "pollcore/runtime.hpp"
#include "pollcore/session.hpp"

namespace pollcore::bench {

/// This machine, with devices that complete at once.
class InstantPlatform final : public test::OnHostPlatform {
public:
    std::unique_ptr<Device> open_device(const DeviceConfig& config) override {
        std::unique_ptr<Device> device = OnHostPlatform::open_device(config);
        make_instant(*device->context());
        return device;
    }
};

/// A runtime with one worker, a session and a queue pair.
class Running {
public:
    explicit Running(const Cpus& cpus, StatisticsConfig::Segment segment = StatisticsConfig::Segment::off)
        : runtime_(config(cpus, segment), std::make_unique<InstantPlatform>()),
          session_(runtime_.open_session({.submission_slots = 4096, .completion_slots = 4096})),
          memory_(runtime_.allocate(4096, Access::all())),
          qp_(runtime_.create_queue_pair(
              {.shares = {{.session = &session_, .send_depth = 2048}}, .remote_access = RemoteAccess::all()})) {
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
    static Config config(const Cpus& cpus, StatisticsConfig::Segment segment) {
        Config config;
        config.statistics.segment = segment;
        config.devices.push_back({.name = "net0"});
        config.workers.push_back({.name = "bench", .core = cpus.there, .poll = PollVerbs::plain});
        config.log_level = LogLevel::error;  // keeps the warning about missing huge pages out of the figures
        return config;
    }

    Runtime runtime_;
    Session session_;
    MemoryRegion memory_;
    QueuePair qp_;
};

}  // namespace pollcore::bench
