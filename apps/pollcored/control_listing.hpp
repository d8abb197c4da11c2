// What the daemon has, as JSON for pollctl. The field names are an interface: programs read them.
//
// Thread safety: pure functions.
#pragma once

#include <string_view>
#include <vector>

#include "control/inventory.hpp"
#include "control_answer.hpp"
#include "pollcore/attach_server.hpp"
#include "pollcore/health.hpp"

namespace pollcore::daemon {

/// A built-in service.
struct ServiceFigures {
    std::string name;
    std::string kind;
    std::string device;
    std::string address;
    std::uint64_t connections = 0;
    std::uint64_t connections_max = 0;
};

// Each element is an object. Its members are numbers, strings, booleans, or null for a limit that there is not.
[[nodiscard]] ControlJson rows_of(const std::vector<inventory::Worker>& all);
[[nodiscard]] ControlJson rows_of(const std::vector<inventory::Device>& all);
[[nodiscard]] ControlJson rows_of(const std::vector<inventory::Session>& all);
[[nodiscard]] ControlJson rows_of(const std::vector<inventory::QueuePair>& all);
[[nodiscard]] ControlJson rows_of(const std::vector<inventory::SharedReceiveQueue>& all);
[[nodiscard]] ControlJson rows_of(const std::vector<inventory::ReceivePool>& all);
[[nodiscard]] ControlJson rows_of(const std::vector<inventory::Listener>& all);
[[nodiscard]] ControlJson rows_of(const std::vector<inventory::MemoryRegion>& all);
[[nodiscard]] ControlJson rows_of(const std::vector<ServiceFigures>& all);
/// One row for each process, with what it holds.
[[nodiscard]] ControlJson rows_of(const std::vector<AttachedProcess>& all);
/// One process, and its limits.
[[nodiscard]] ControlJson object_of(const AttachedProcess& process);
[[nodiscard]] ControlJson rows_of(const Health& health);
/// No thread hangs.
[[nodiscard]] bool is_healthy(const Health& health) noexcept;

}  // namespace pollcore::daemon
