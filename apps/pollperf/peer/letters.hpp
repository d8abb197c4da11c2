// What a client and a server say to each other on the control channel, as JSON.
//
// Thread safety: pure functions. A peer may be hostile: reading throws MeasurementError for what is missing, of the
// wrong type, or beyond the limits.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <nlohmann/json.hpp>

#include "pollperf/measure/window.hpp"
#include "pollperf/measure/workload.hpp"
#include "pollperf/options.hpp"
#include "pollperf/paths/path_setup.hpp"
#include "pollperf/report/results.hpp"

namespace pollcore::perf {

/// Both sides must speak the same one.
inline constexpr int kProtocol = 3;

/// The connections of a path, which both sides make alike.
struct ConnectionPlan {
    QpType transport = QpType::rc;
    std::uint32_t size = 0;  ///< the most bytes of a message
    std::uint32_t slots = 1;
    std::uint32_t receive_slots = 2;
    std::uint32_t receive_buffers = 2;
    std::uint32_t send_depth = 64;
    std::uint32_t post_list = 1;
    std::uint32_t threads = 1;
    std::uint32_t connections = 1;  ///< of each thread
    std::uint32_t sessions = 1;     ///< of each thread
    std::uint16_t mtu = 0;
    FlowControl flow = FlowControl::off;
    bool rdma_cm = false;

    /// The memory that one side takes, with its queues.
    [[nodiscard]] std::uint64_t bytes() const;
    /// `sides` is 2 if both ends of each connection are in this process.
    [[nodiscard]] PathSetup setup(unsigned sides) const;
};
[[nodiscard]] ConnectionPlan connection_plan(const TestOptions& options);

[[nodiscard]] nlohmann::json to_json(const ConnectionPlan& plan);
[[nodiscard]] ConnectionPlan read_connection_plan(const nlohmann::json& json);

[[nodiscard]] nlohmann::json to_json(const std::vector<EndInfo>& ends);
[[nodiscard]] std::vector<EndInfo> read_ends(const nlohmann::json& json, std::size_t count);

[[nodiscard]] nlohmann::json to_json(const Workload& workload);
[[nodiscard]] Workload read_workload(const nlohmann::json& json, const ConnectionPlan& plan);

[[nodiscard]] nlohmann::json to_json(const Until& until);
[[nodiscard]] Until read_until(const nlohmann::json& json);

[[nodiscard]] nlohmann::json to_json(const HostFacts& host);
[[nodiscard]] HostFacts read_host(const nlohmann::json& json);

[[nodiscard]] PathKind read_path(const nlohmann::json& json);

/// A member of an object, of the type of `least`, within the limits.
template <class T>
[[nodiscard]] T read_number(const nlohmann::json& json, const char* key, T least, T most) {
    const auto at = json.find(key);
    if (at == json.end() || !at->is_number_unsigned() || at->get<std::uint64_t>() < least ||
        at->get<std::uint64_t>() > most) {
        throw MeasurementError(std::string("the peer has sent no proper value of '") + key + "'");
    }
    return at->get<T>();
}
[[nodiscard]] bool read_bool(const nlohmann::json& json, const char* key);
/// A text that may be printed: without control characters, and not longer than some lines. Empty if there is none.
[[nodiscard]] std::string read_text(const nlohmann::json& json, const char* key);
/// A member that may have any value; null if there is none.
[[nodiscard]] const nlohmann::json& read_any(const nlohmann::json& json, const char* key);
[[nodiscard]] std::vector<std::uint64_t> read_counts(const nlohmann::json& json, const char* key, std::size_t count);

}  // namespace pollcore::perf
