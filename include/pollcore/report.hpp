// A report on the devices and memory that a runtime found at its start, and on its choices.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace pollcore {

/// One device, for logs and reports.
struct DeviceReport {
    std::string name;
    std::string description;
    std::string verbs_name;       ///< as ibv_get_device_name(3) returns it; a software device has the name `name`
    std::string uverbs_name;      ///< such as "uverbs0"; empty if the device is not the kernel's
    std::int32_t ibv_index = -1;  ///< as ibv_get_device_index(3) returns it
    std::uint8_t port_num = 1;    ///< the port that the configuration names
    std::uint32_t inline_max = 0;
    std::uint32_t qp_depth_max = 0;
    std::uint32_t cqes_max = 0;
    std::uint32_t sges_max = 0;
    bool extended_cqs = false;  ///< the device's CQs can be polled by ibv_start_poll
    // Support for memory windows. Without support, making a window fails and the opcodes for windows are refused.
    bool memory_windows_1 = false;
    bool memory_windows_2 = false;
    bool invalidation = false;  ///< local_inv and send_with_inv
    // Completions may have the device's time stamps (SessionOptions::device_time). The time from a time stamp `earlier`
    // to a time stamp `later` is ((later - earlier) & completion_timestamp_mask) / double(hca_core_clock_khz)
    // milliseconds. The clock is the device's own. Only ibv_query_rt_values_ex(3) relates it to the host's clock. A
    // software device uses std::chrono::steady_clock.
    std::uint64_t completion_timestamp_mask = 0;  ///< which bits of a time stamp count; 0: there are no time stamps
    std::uint64_t hca_core_clock_khz = 0;         ///< 0: the device does not report its frequency
};
/// The result of Context::report().
struct RuntimeReport {
    std::vector<DeviceReport> devices;
    bool hugepages = false;
    std::string memory;  ///< a sentence on the kind of memory that the rings are in, and on how to get better memory
    std::string eal;     ///< a sentence that tells whether the runtime or the host program set up EAL
};

}  // namespace pollcore
