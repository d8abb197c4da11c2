// What the daemon has, as JSON for pollctl. The field names are an interface: programs read them.
//
// Thread safety: pure functions.
#pragma once

#include <string>
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

// A row is an object whose members are numbers, strings, booleans, or null for a limit that there is not.
[[nodiscard]] ControlJson row_of(const ListedWorker& one);
[[nodiscard]] ControlJson row_of(const ListedDevice& one);
[[nodiscard]] ControlJson row_of(const ListedSession& one);
[[nodiscard]] ControlJson row_of(const ListedQueuePair& one);
[[nodiscard]] ControlJson row_of(const ListedSharedReceiveQueue& one);
[[nodiscard]] ControlJson row_of(const ListedReceivePool& one);
[[nodiscard]] ControlJson row_of(const ListedListener& one);
[[nodiscard]] ControlJson row_of(const ListedMemoryRegion& one);
[[nodiscard]] ControlJson row_of(const ServiceFigures& one);
/// With a part of what the process holds.
[[nodiscard]] ControlJson row_of(const AttachedProcess& one);
[[nodiscard]] ControlJson row_of(const Holding& one);
/// One process, and its limits.
[[nodiscard]] ControlJson object_of(const AttachedProcess& process);
[[nodiscard]] ControlJson row_of(const ThreadHealth& one);
template <class Thing>
[[nodiscard]] ControlJson rows_of(const std::vector<Thing>& all) {
    ControlJson rows = ControlJson::array();
    for (const Thing& each : all) {
        rows.push_back(row_of(each));
    }
    return rows;
}
/// The text of an answer with rows. It never has more than one row as JSON values, which take much memory.
template <class Thing>
[[nodiscard]] std::string list_text(const std::string& name, const std::vector<Thing>& all) {
    std::string text;
    for (const Thing& each : all) {
        text += (text.empty() ? "" : ",") + text_of(row_of(each));
    }
    return answer_around("{" + text_of(name) + ":[" + text + "]}");
}
/// No thread hangs.
[[nodiscard]] bool is_healthy(const Health& health) noexcept;

}  // namespace pollcore::daemon
