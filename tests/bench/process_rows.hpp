// The names in the table of attached processes, from which the goals are computed, too.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include <fmt/format.h>

namespace pollcore::bench {

inline constexpr std::array<std::uint32_t, 4> kProcesses{1, 4, 16, 64};
inline constexpr std::string_view kProcessTable =
    "one worker and attached processes on another CPU, each with 512 in flight, device that completes at once";
inline constexpr std::string_view kWorkerCycles = "worker's cycles per operation";

[[nodiscard]] inline std::string row_of_processes(std::uint32_t processes) {
    return fmt::format("{} process{}", processes, processes == 1 ? "" : "es");
}

}  // namespace pollcore::bench
