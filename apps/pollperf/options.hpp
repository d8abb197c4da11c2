// What `pollperf lat` is to do.
//
// Thread safety: none needed; read once at start.
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

/// What is to be done, complete and consistent.
struct LatOptions {
    Role role = Role::both;
    std::vector<Op> ops;
    bool direct = false;
    bool event = false;  ///< the direct path's thread sleeps
    bool runtime = false;
    bool attached = false;
    std::string device;             ///< as the configuration calls it
    Config config;                  ///< of the runtime, with this device alone; workers are there when runtime is
    std::string worker;             ///< the one that is measured
    std::string attach;             ///< the socket at which `attached` attaches; empty: to this process's own worker
    std::uint32_t core = 0;         ///< of the application's thread
    std::uint32_t worker_core = 0;  ///< of the paths that have one
    std::uint32_t size = 2;         ///< of fetch-add always 8
    std::uint32_t iterations = 0;   ///< of each operation and path, over all rounds
    std::uint32_t warmup = 0;
    std::uint32_t rounds = 1;
    std::optional<std::uint32_t> gid_index;
    std::optional<std::uint32_t> inline_size;  ///< empty: as much as is usual and the device takes
    bool verify = false;
    bool brief = false;
    std::uint16_t port = 0;
    std::string address;  ///< of the server, with its port
    std::filesystem::path json;
    std::chrono::milliseconds timeout{};
    std::chrono::milliseconds client_timeout{};  ///< of a server
    Waiting wait = Waiting::spin;                ///< the application's thread
    FlowControl flow = FlowControl::off;         ///< of the paths that have a worker

    [[nodiscard]] bool sleeps() const noexcept { return wait == Waiting::sleep; }
    /// Thread and worker have one CPU for both.
    [[nodiscard]] bool one_cpu() const noexcept { return own_worker() && core == worker_core; }
    [[nodiscard]] bool plain_verbs() const noexcept { return direct || event; }
    [[nodiscard]] bool has_worker() const noexcept { return runtime || attached; }
    /// Of this process.
    [[nodiscard]] bool own_worker() const noexcept { return runtime || (attached && attach.empty()); }
};

/// On the CPUs of this process. Throws UsageError, or ConfigError for the file.
[[nodiscard]] LatOptions resolve(const LatArguments& arguments);
[[nodiscard]] LatOptions resolve(const LatArguments& arguments, const config::Cpus& cpus);

/// A software device where the name says so, else a verbs device.
[[nodiscard]] DeviceConfig device_named(const std::string& name);

/// A worker's way to wait, as a word or as the configuration has it. Throws UsageError, which begins with `option`.
[[nodiscard]] IdleLadder parse_idle(const char* option, const std::string& text);

[[nodiscard]] std::uint32_t size_of(const LatOptions& options, Op op) noexcept;

}  // namespace pollcore::perf
