// The options of `pollperf lat`: checked, complete, and with all defaults.
//
// Thread safety: plain values, which one thread reads at the start.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "command_line.hpp"
#include "config/cpus.hpp"
#include "pollcore/config.hpp"
#include "pollcore/queue_pair.hpp"
#include "workload.hpp"

namespace pollcore::perf {

/// A command line that cannot be carried out: exit code 2.
class UsageError : public std::runtime_error {
public:
    using std::runtime_error::runtime_error;
};

struct LatOptions {
    Role role = Role::both;
    std::vector<Op> ops;
    bool direct = false;
    bool event = false;  ///< the direct path's thread sleeps
    bool runtime = false;
    bool attached = false;
    std::string device;             ///< the device's name in the configuration
    Config config;                  ///< the runtime's configuration, with only this device
    std::string worker;             ///< name of the measured worker
    std::string attach;             ///< socket for path `attached`; if empty, this process's own runtime is used
    std::uint32_t core = 0;         ///< CPU of the application's thread
    std::uint32_t worker_core = 0;  ///< CPU of the measured worker, on paths with a worker
    std::uint32_t size = 2;         ///< bytes of a message; a fetch-add always has 8
    std::uint32_t iterations = 0;   ///< iterations of each operation and path, over all rounds
    std::uint32_t warmup = 0;
    std::uint32_t rounds = 1;
    std::optional<std::uint32_t> gid_index;
    std::optional<std::uint32_t> inline_size;  ///< bytes; if empty, the usual or the device's limit, the smaller one
    bool verify = false;
    bool brief = false;
    std::uint16_t port = 0;
    std::string address;  ///< the server's address, with the port
    std::filesystem::path json;
    std::chrono::milliseconds timeout{};
    std::chrono::milliseconds client_timeout{};  ///< how long a server waits for a client
    Waiting wait = Waiting::spin;                ///< how the application's thread waits
    FlowControl flow = FlowControl::off;         ///< flow control of the paths with a worker

    [[nodiscard]] bool sleeps() const noexcept { return wait == Waiting::sleep; }
    /// Whether the application's thread and the worker share one CPU.
    [[nodiscard]] bool one_cpu() const noexcept { return own_worker() && core == worker_core; }
    [[nodiscard]] bool plain_verbs() const noexcept { return direct || event; }
    [[nodiscard]] bool has_worker() const noexcept { return runtime || attached; }
    /// Whether the measured worker belongs to this process.
    [[nodiscard]] bool own_worker() const noexcept { return runtime || (attached && attach.empty()); }
};

/// Makes the options from the arguments. The first form uses the CPUs of this process. Throws UsageError, or
/// ConfigError for a mistake in the configuration file.
[[nodiscard]] LatOptions resolve(const LatArguments& arguments);
[[nodiscard]] LatOptions resolve(const LatArguments& arguments, const config::Cpus& cpus);

/// A software device if the name begins with "soft", else a verbs device.
[[nodiscard]] DeviceConfig device_named(const std::string& name);

/// Parses a worker's way to wait. `text` is a word, or a value in the syntax of the configuration. Throws UsageError;
/// its message begins with `option`.
[[nodiscard]] IdleLadder parse_idle(const char* option, const std::string& text);

/// Bytes of a message of this operation.
[[nodiscard]] std::uint32_t size_of(const LatOptions& options, Op op) noexcept;

}  // namespace pollcore::perf
