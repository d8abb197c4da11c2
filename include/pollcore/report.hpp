// What a runtime found and decided at its start.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace pollcore {

/// One device, for logs and reports.
struct DeviceReport {
    std::string name;
    std::string description;
    std::uint32_t inline_max = 0;
    std::uint32_t qp_depth_max = 0;
    std::uint32_t cqes_max = 0;
    std::uint32_t sges_max = 0;
    bool extended_cqs = false;  ///< its CQs can be polled by ibv_start_poll
    // What it has of memory windows. Without, making one fails and their opcodes are refused.
    bool memory_windows_1 = false;
    bool memory_windows_2 = false;
    bool invalidation = false;  ///< local_inv and send_with_inv
    // Completions may have the device's time stamps (SessionOptions::device_time). Between two of them, `earlier` and
    // `later`, there are
    // ((later - earlier) & completion_timestamp_mask) / double(hca_core_clock_khz) milliseconds. The clock is the
    // device's own: how it stands to the host's only ibv_query_rt_values_ex(3) says. That of a software device is
    // std::chrono::steady_clock.
    std::uint64_t completion_timestamp_mask = 0;  ///< which of their bits count; 0: it has no time stamps
    std::uint64_t hca_core_clock_khz = 0;         ///< 0: it does not say
};
struct RuntimeReport {
    std::vector<DeviceReport> devices;
    bool hugepages = false;
    std::string memory;  ///< in words: which memory the rings are in, and how to get better
    std::string eal;     ///< in words: set up here or by the host program
};

}  // namespace pollcore
