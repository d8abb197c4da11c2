#include "service.hpp"

#include <fmt/format.h>

#include "echo_service.hpp"
#include "memory_service.hpp"

namespace pollcore::daemon {

std::unique_ptr<Service> make_service(Runtime& runtime, const ServiceConfig& config) {
    switch (config.kind) {
        case ServiceConfig::Kind::echo: return std::make_unique<EchoService>(runtime, config);
        case ServiceConfig::Kind::memory: return std::make_unique<MemoryService>(runtime, config);
    }
    throw Error(std::errc::invalid_argument,
                fmt::format("service {}: its kind is number {}, and there are only echo and memory", config.name,
                            static_cast<int>(config.kind)));
}

}  // namespace pollcore::daemon
