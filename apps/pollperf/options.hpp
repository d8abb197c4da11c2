// The command line of `pollperf lat`.
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

#include "pollcore/config.hpp"
#include "workload.hpp"

namespace CLI {
class App;
}

namespace pollcore::perf {

/// A command line that cannot be carried out: exit code 2.
class UsageError : public std::runtime_error {
public:
    using std::runtime_error::runtime_error;
};

/// As typed; empty is "not given".
struct LatArguments {
    std::string op;
    std::string path;
    std::string device;
    std::filesystem::path config;
    bool loopback = false;
    std::string address;
    std::optional<std::uint32_t> port;
    std::optional<std::uint32_t> size;
    std::optional<std::uint32_t> iterations;
    std::optional<std::uint32_t> warmup;
    std::optional<std::uint32_t> rounds;
    std::optional<std::uint32_t> gid_index;
    std::optional<std::uint32_t> inline_size;
    std::optional<std::uint32_t> core;
    std::optional<std::uint32_t> worker_core;
    std::string idle;
    bool verify = false;
    std::filesystem::path json;
    std::string timeout = "10s";
    std::string wait = "60s";
    bool cpu_freq = false;  ///< perftest's, without an effect here
    bool rdma_cm = false;
};

/// What is to be done, complete and consistent.
struct LatOptions {
    Role role = Role::both;
    std::vector<Op> ops;
    bool direct = false;
    bool runtime = false;
    std::string device;      ///< as the configuration calls it
    Config config;           ///< of the runtime, with this device alone; workers are there when runtime is
    std::string worker;      ///< the one that is measured
    std::uint32_t core = 0;  ///< of the application's thread
    std::uint32_t worker_core = 0;  ///< with `runtime`
    std::uint32_t size = 2;         ///< of fetch-add always 8
    std::uint32_t iterations = 0;   ///< of each operation and path, over all rounds
    std::uint32_t warmup = 0;
    std::uint32_t rounds = 1;
    std::optional<std::uint32_t> gid_index;
    std::optional<std::uint32_t> inline_size;  ///< empty: as much as is usual and the device takes
    bool verify = false;
    std::uint16_t port = 0;
    std::string address;  ///< of the server, with its port
    std::filesystem::path json;
    std::chrono::milliseconds timeout{};
    std::chrono::milliseconds wait{};  ///< of a server, for its client
};

/// Adds the options to a subcommand; parsing fills `arguments`.
void add_lat_options(CLI::App& command, LatArguments& arguments);

/// Throws UsageError, or ConfigError for the file.
[[nodiscard]] LatOptions resolve(const LatArguments& arguments);

[[nodiscard]] std::uint32_t size_of(const LatOptions& options, Op op) noexcept;

}  // namespace pollcore::perf
