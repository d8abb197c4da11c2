#include "memory_service.hpp"

#include <fmt/format.h>

#include "common/service_wire.hpp"

namespace pollcore::daemon {

MemoryService::MemoryService(Runtime& runtime, const ServiceConfig& config)
    : Service(config.name),
      config_(config),
      pd_(runtime.create_protection_domain(config.device)),
      region_(runtime.allocate(config.size, Access::all(), config.device, &pd_)),
      session_(runtime.open_session(
          {.name = config.name, .worker = config.worker, .submission_slots = 16, .completion_slots = 16})),
      qps_(config.connections_max),
      reception_(runtime, config_, *this) {}

MemoryService::~MemoryService() {
    reception_.close();
}

std::string MemoryService::describe() const {
    return fmt::format("{} bytes at {:#x}, rkey {:#x}", region_.size(), region_.addr(), region_.rkey());
}

QueuePairOptions MemoryService::queue_pair_options() {
    // The depths are the smallest that are allowed, because the service posts nothing.
    return {.name = config_.name,
            .device = config_.device,
            .pd = &pd_,
            .shares = {{.session = &session_, .send_depth = 1}},
            .recv_depth = 1,
            .remote_access = RemoteAccess::all()};
}

ConnectOptions MemoryService::answer() {
    const MemoryOffer offer{.addr = region_.addr(), .rkey = region_.rkey(), .size = region_.size()};
    return {.private_data = offer.encode(), .timeout = Reception::kAcceptTimeout};
}

std::optional<Ending> MemoryService::ending(std::uint32_t slot) {
    if (session_.state(qps_[slot]) != QpState::error) {
        return std::nullopt;
    }
    const Status cause = session_.cause(qps_[slot]);
    if (cause == Status::success || cause == Status::wr_flush_err) {
        return Ending{.failed = false, .why = "disconnected"};
    }
    return Ending{.failed = true, .why = fmt::format("{}: {}", status_name(cause), status_text(cause))};
}

}  // namespace pollcore::daemon
