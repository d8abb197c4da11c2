// The flow controls, for C++. flow_control.h has the table of flow controls, and explains each of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <string_view>

#include "pollcore/flow_control.h"

namespace pollcore {

enum class FlowControl : std::uint8_t {
#define POLLCORE_ROW(name, NAME, arrival, text) name,
    POLLCORE_FLOW_CONTROLS(POLLCORE_ROW)
#undef POLLCORE_ROW
};

/// All flow controls, in the order of their numbers.
inline constexpr FlowControl kFlowControls[] = {
#define POLLCORE_ROW(name, NAME, arrival, text) FlowControl::name,
    POLLCORE_FLOW_CONTROLS(POLLCORE_ROW)
#undef POLLCORE_ROW
};

/// Whether a number, which another process or a peer may have written, is a flow control.
[[nodiscard]] constexpr bool is_known(FlowControl kind) noexcept {
    return static_cast<std::size_t>(kind) < std::size(kFlowControls);
}

/// The name in configuration files and on command lines.
[[nodiscard]] constexpr std::string_view flow_control_name(FlowControl kind) noexcept {
    constexpr std::string_view kNames[] = {
#define POLLCORE_ROW(name, NAME, arrival, text) #name,
        POLLCORE_FLOW_CONTROLS(POLLCORE_ROW)
#undef POLLCORE_ROW
    };
    return is_known(kind) ? kNames[static_cast<std::size_t>(kind)] : "?";
}
[[nodiscard]] constexpr std::optional<FlowControl> flow_control_named(std::string_view name) noexcept {
    for (const FlowControl kind : kFlowControls) {
        if (flow_control_name(kind) == name) {
            return kind;
        }
    }
    return std::nullopt;
}
/// The name in sentences, as in "queue pairs with credits".
[[nodiscard]] constexpr std::string_view flow_control_text(FlowControl kind) noexcept {
    constexpr std::string_view kTexts[] = {
#define POLLCORE_ROW(name, NAME, arrival, text) text,
        POLLCORE_FLOW_CONTROLS(POLLCORE_ROW)
#undef POLLCORE_ROW
    };
    return is_known(kind) ? kTexts[static_cast<std::size_t>(kind)] : "an unknown flow control";
}

/// The place where the messages of a connection arrive.
enum class Arrival : std::uint8_t {
    receives,    ///< receives that a session or a receive pool has posted, as without flow control
    write_ring,  ///< the write ring that QueuePairOptions::pool names
};
[[nodiscard]] constexpr Arrival arrival_of(FlowControl kind) noexcept {
    constexpr Arrival kArrivals[] = {
#define POLLCORE_ROW(name, NAME, arrival, text) Arrival::arrival,
        POLLCORE_FLOW_CONTROLS(POLLCORE_ROW)
#undef POLLCORE_ROW
    };
    return is_known(kind) ? kArrivals[static_cast<std::size_t>(kind)] : Arrival::receives;
}

}  // namespace pollcore
