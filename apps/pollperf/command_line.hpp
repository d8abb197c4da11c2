// What stands on pollperf's command line, as it was typed.
//
// Thread safety: none needed; read once at start.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace pollcore::perf {

/// Of `pollperf lat`; empty is "not given".
struct LatArguments {
    std::string op;
    std::string path;
    std::string device;
    std::filesystem::path config;
    std::filesystem::path attach;
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
    bool share_core = false;
    std::string idle;
    std::string flow = "off";
    bool verify = false;
    bool brief = false;
    std::filesystem::path json;
    std::string timeout = "10s";
    std::string client_timeout = "60s";
    std::string wait;
    bool cpu_freq = false;  ///< perftest's, without an effect here
    bool rdma_cm = false;
};

/// Of `pollperf wake`.
struct WakeArguments {
    std::string device = "soft0";
    std::vector<std::string> wait;
    std::optional<std::uint32_t> iterations;
    std::string gap = "1ms";
    std::optional<std::uint32_t> core;
    std::optional<std::uint32_t> worker_core;
    bool share_core = false;
    std::filesystem::path json;
};

/// What the command line comes to: arguments to go on with, or an exit code when everything is said already (--help,
/// --version, or a mistake, which is told on stderr).
struct CommandLine {
    std::optional<LatArguments> lat;
    std::optional<WakeArguments> wake;
    int exit_code = 0;
};
[[nodiscard]] CommandLine parse_command_line(int argc, const char* const* argv);

}  // namespace pollcore::perf
