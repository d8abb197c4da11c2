// The command line of pollperf-mesh. The parser and the manual use its definition; neither needs MPI.
//
// Thread safety: one thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "manual/manual.hpp"
#include "manual/short_help.hpp"

namespace pollcore::perf {

/// The arguments as they were typed. An empty member was not given.
struct MeshArguments {
    std::string device;
    std::filesystem::path config;
    std::filesystem::path attach;
    std::string path;
    std::string op = "write";
    std::string size = "64KiB";
    std::string latency_size = "8";
    std::optional<std::uint32_t> tx_depth;
    std::optional<std::uint64_t> iterations;
    std::string duration = "200ms";
    std::string only;
    std::optional<std::uint32_t> incast_to;
    bool serial = false;
    std::optional<std::uint32_t> gid_index;
    std::optional<std::uint32_t> inline_size;
    std::string wait;
    std::vector<std::uint32_t> core;
    std::string timeout = "10s";
    std::string outlier = "20%";
    std::filesystem::path json;
    std::filesystem::path csv;
    std::filesystem::path report;
};

struct MeshCommandLine {
    MeshCommandLine();
    MeshCommandLine(const MeshCommandLine&) = delete;  // `app` refers to `arguments`
    MeshCommandLine& operator=(const MeshCommandLine&) = delete;

    [[nodiscard]] static std::vector<manual::Section> sections();

    CLI::App app{
        "Measures RDMA between all ranks of an MPI job: latency and bandwidth of every pair, many to one, and all to "
        "all. "
        "Start it by mpirun or srun.",
        "pollperf-mesh"};
    MeshArguments arguments;
};

/// The arguments; or, after --help, --version or a mistake, the text to print and the exit code.
struct MeshLine {
    std::optional<MeshArguments> arguments;
    std::string text;
    int exit_code = 0;
};
[[nodiscard]] MeshLine parse_mesh_command_line(int argc, const char* const* argv);

}  // namespace pollcore::perf
