#include "service.hpp"

#include <fmt/format.h>

#include "echo_service.hpp"
#include "memory_service.hpp"
#include "pollcore/limits.hpp"

namespace pollcore::daemon {

std::unique_ptr<Service> make_service(Runtime& runtime, const ServiceConfig& config) {
    switch (config.kind) {
        case ServiceConfig::Kind::echo: return std::make_unique<EchoService>(runtime, config);
        case ServiceConfig::Kind::memory: return std::make_unique<MemoryService>(runtime, config);
    }
    throw Error(std::errc::invalid_argument,
                fmt::format("service {}: its kind is number {}, and there are only echo and memory",
                            config.name, static_cast<int>(config.kind)));
}

void check_services(const Config& config) {
    std::uint64_t connections = 0;
    std::uint64_t bytes = 0;
    for (std::size_t i = 0; i < config.services.size(); ++i) {
        const ServiceConfig& service = config.services[i];
        connections += service.connections_max;
        if (connections > config.qps_max) {
            throw ConfigError(
                fmt::format("service[{}].connections_max = {}: with the services before it that makes "
                            "{} connections, and runtime.qps_max allows {} queue pairs; lower it, or "
                            "raise runtime.qps_max",
                            i, service.connections_max, connections, config.qps_max));
        }
        if (service.kind == ServiceConfig::Kind::echo) {
            const std::uint64_t messages = std::uint64_t{service.depth} * service.connections_max;
            if (messages > kRingSlotsMax) {
                throw ConfigError(
                    fmt::format("service[{}].depth = {}: times connections_max {} that makes {} work "
                                "requests in flight; at most {} are accepted, which is what one "
                                "completion ring holds",
                                i, service.depth, service.connections_max, messages, kRingSlotsMax));
            }
            bytes += EchoService::buffer_bytes(service);
        } else {
            bytes += service.size;
        }
        if (bytes > config.memory.size) {
            throw ConfigError(
                fmt::format("service[{}].name = \"{}\": its buffers and those of the services before it "
                            "take {} bytes, and memory.size is {}; accepted is what fits together",
                            i, service.name, bytes, config.memory.size));
        }
    }
}

}  // namespace pollcore::daemon
