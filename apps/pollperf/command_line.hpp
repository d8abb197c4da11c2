// The arguments on pollperf's command line, as they were typed.
//
// Thread safety: plain values, which one thread reads at the start.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace pollcore::perf {

/// The arguments of `pollperf lat`. An empty member was not given; flow and the two timeouts begin with their defaults.
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
    bool cpu_freq = false;  ///< an option of perftest, without an effect here
    bool rdma_cm = false;   ///< an option of perftest, without an effect here
};

/// The arguments of `pollperf wake`.
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

/// The result of parsing the command line. It has either the arguments of one command, or the exit code after --help,
/// --version or a mistake. In the second case, parse_command_line() has already printed the text.
struct CommandLine {
    std::optional<LatArguments> lat;
    std::optional<WakeArguments> wake;
    int exit_code = 0;  ///< the exit code of the program if there are no arguments
};
[[nodiscard]] CommandLine parse_command_line(int argc, const char* const* argv);

}  // namespace pollcore::perf
