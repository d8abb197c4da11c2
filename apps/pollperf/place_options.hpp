// What belongs to one process of a measurement: the device, the CPUs of its threads, its workers, and how they wait. A
// test and a server both have it.
//
// Thread safety: plain values and pure functions; a configuration file is read at the start.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "command_line.hpp"
#include "config/cpus.hpp"
#include "pollcore/config.hpp"
#include "pollperf/measure/workload.hpp"

namespace pollcore::perf {

/// Where a process measures or serves: the device, the runtime, the CPUs. A client and a server each have their own.
struct PlaceOptions {
    std::string device;                ///< the device's name in the configuration
    Config config;                     ///< the runtime's configuration, with only this device
    std::vector<std::string> workers;  ///< names of the workers that sessions use
    std::string attach;                ///< socket for path `attached`; if empty, this process's own runtime is used
    std::vector<std::uint32_t> cores;  ///< CPU of each measuring thread
    std::uint32_t worker_core = 0;     ///< CPU of the first of the workers, on paths with a worker
    std::optional<std::uint32_t> gid_index;
    std::optional<std::uint32_t> inline_size;  ///< bytes; if empty, the usual or the device's limit, the smaller one
    Waiting wait = Waiting::spin;              ///< how the measuring threads wait, except on paths direct and event
    std::chrono::milliseconds timeout{};

    [[nodiscard]] bool software() const noexcept { return config.devices.front().kind == DeviceConfig::Kind::soft; }
    [[nodiscard]] Waiting wait_on(PathKind path) const noexcept {
        return path == PathKind::event                              ? Waiting::sleep
               : path == PathKind::direct && wait == Waiting::sleep ? Waiting::spin
                                                                    : wait;
    }
};

/// Without a configuration file, a device whose name begins with this is a software device.
inline constexpr std::string_view kSoftwarePrefix = "soft";
/// A software device if the name begins with kSoftwarePrefix, else a verbs device.
[[nodiscard]] DeviceConfig device_named(const std::string& name);

/// --wait, or its default. On a machine with one CPU that is "yield": a thread that spins there would keep the worker
/// from running.
[[nodiscard]] std::string how_to_wait(const TestArguments& arguments, const config::Cpus& cpus);

/// Sets options.config: the configuration file with only one of its devices, or, without a file, a new configuration.
/// Sets all members about the device and about waiting, too. Throws UsageError or ConfigError.
void resolve_device(const TestArguments& arguments, const config::Cpus& cpus, PlaceOptions& options);

/// Sets the CPUs for `threads` measuring threads and `workers` workers of this process. resolve_device() comes before.
/// Throws UsageError.
void resolve_cores(const TestArguments& arguments, const config::Cpus& cpus, Role role, bool needs_worker, bool sleeps,
                   std::uint32_t threads, std::uint32_t workers, PlaceOptions& options);

}  // namespace pollcore::perf
