// The arguments on pollperf's command line, as they were typed.
//
// Thread safety: plain values, which one thread reads at the start.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "pollperf/measure/workload.hpp"

namespace pollcore::perf {

/// The arguments of `pollperf lat`, `bw`, `rate` and `serve`. An empty member was not given; flow, connection and the
/// two timeouts begin with their defaults.
struct TestArguments {
    Test test = Test::lat;
    bool serve = false;  ///< the command is `serve`
    std::string op;
    std::string path;
    std::string device;
    std::filesystem::path config;
    std::filesystem::path attach;
    bool loopback = false;
    std::string address;
    std::optional<std::uint32_t> port;
    std::string transport = "RC";
    std::vector<std::string> size;
    bool all_sizes = false;
    std::optional<std::uint64_t> iterations;
    std::string duration;
    std::optional<std::uint64_t> warmup;
    std::optional<std::uint32_t> rounds;
    std::optional<std::uint32_t> queue_pairs;
    std::optional<std::uint32_t> threads;
    std::optional<std::uint32_t> sessions;
    std::optional<std::uint32_t> workers;
    std::optional<std::uint32_t> tx_depth;
    std::optional<std::uint32_t> rx_depth;
    std::optional<std::uint32_t> post_list;
    std::optional<std::uint32_t> signal_every;
    bool bidirectional = false;
    std::optional<std::uint32_t> mtu;
    std::optional<std::uint32_t> gid_index;
    std::optional<std::uint32_t> inline_size;
    std::vector<std::uint32_t> core;
    std::vector<std::uint32_t> worker_core;
    bool share_core = false;
    std::string idle;
    std::string wait;
    bool events = false;
    std::string flow = "off";
    std::string rate;
    bool poisson = false;
    bool verify = false;
    bool rdma_cm = false;
    bool service = false;
    bool report_gbits = false;
    bool brief = false;
    std::filesystem::path json;
    std::filesystem::path csv;
    std::filesystem::path hdr;
    std::filesystem::path report;
    std::string bandwidth_least;
    std::string rate_least;
    std::string p99_most;
    std::filesystem::path baseline;
    std::string tolerance;
    std::string timeout = "10s";
    std::string client_timeout = "60s";
    std::optional<std::uint32_t> clients;
    bool once = false;
    bool cpu_freq = false;  ///< an option of perftest, without an effect here
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

/// The arguments of `pollperf report`: makes one page of several results.
struct ReportArguments {
    std::vector<std::filesystem::path> files;
    std::filesystem::path output;
    std::string title;
};

/// The result of parsing the command line. It has either the arguments of one command, or the exit code after --help,
/// --version or a mistake. In the second case, parse_command_line() has already printed the text.
struct CommandLine {
    std::optional<TestArguments> test;
    std::optional<WakeArguments> wake;
    std::optional<ReportArguments> report;
    int exit_code = 0;  ///< the exit code of the program if there are no arguments
};
[[nodiscard]] CommandLine parse_command_line(int argc, const char* const* argv);

}  // namespace pollcore::perf
