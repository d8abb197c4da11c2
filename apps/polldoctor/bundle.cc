#include "bundle.hpp"

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/klog.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <system_error>
#include <vector>

#include <fmt/format.h>
#include <infiniband/verbs.h>

#include "archive.hpp"
#include "manual/manual.hpp"
#include "pollcore/error.hpp"
#include "pollcore/statistics.hpp"
#include "pollstat/json.hpp"
#include "redaction.hpp"
#include "run_program.hpp"
#include "running_workers.hpp"

namespace pollcore::doctor {
namespace {

constexpr std::chrono::seconds kPatience{10};
constexpr std::size_t kLogMax = std::size_t{4} << 20;
// A runtime with all sessions and queue pairs that it can have has fewer. A hostile segment of more would take memory.
constexpr std::size_t kValuesMax = std::size_t{8} << 20;

constexpr const char* kReadme =
    R"(A bundle of polldoctor(1), for a bug report of pollcore.

configuration.toml  the configuration, without its comments
effective.toml      with all defaults (pollcored --print)
findings.txt, findings.json
versions.txt        pollcore, libraries, kernel, distribution
host/               the files of /proc and /sys that were read: polldoctor --root host --config configuration.toml
                    judges them again. asked/ has what the kernel tells by calls, later/ the second reading,
                    asked/unreadable the files that could not be read. proc/cmdline has values of some parameters only.
                    proc/self/limits has the limits of the process that wrote this (ulimit -a)
segments/           statistics and last log lines of the runtimes of the host, also of dead ones; cycles are cycles
journal.txt         the last lines of the unit pollcored
dmesg.txt           the kernel's log
)";

/// Files that no check reads, but a reader of a bug report wants.
void read_versions(const Tree& tree) {
    for (const char* const file :
         {"/etc/os-release", "/proc/version", "/proc/cpuinfo", "/proc/meminfo", "/proc/self/limits", "/proc/loadavg",
          "/sys/module/ib_core/version", "/sys/module/mlx5_core/version", "/sys/module/mlx5_ib/version"}) {
        (void)tree.read(file);
    }
    for (const std::string& device : tree.list("/sys/class/infiniband")) {
        for (const char* const leaf : {"fw_ver", "hca_type", "board_id", "hw_rev"}) {
            (void)tree.read(fmt::format("/sys/class/infiniband/{}/{}", device, leaf));
        }
    }
}

std::string versions(const Tree& tree) {
    std::string text = manual::version_text("polldoctor") + "\n";
    // The file of the library that is loaded has its version in its name, such as libibverbs.so.1.14.44.0.
    Dl_info info{};
    std::error_code error;
    if (::dladdr(reinterpret_cast<const void*>(&::ibv_query_port), &info) != 0 && info.dli_fname != nullptr) {
        text += fmt::format("loaded: {}\n", std::filesystem::canonical(info.dli_fname, error).string());
    }
    text += tree.read("/proc/version").text + tree.read("/etc/os-release").text;
    return text + "\npackages:\n" +
           output_of({"/usr/bin/dpkg-query", "--show", "rdma-core", "libibverbs1", "ibverbs-providers", "librdmacm1",
                      "dpdk", "pollcored", "pollcore-tools", "libpollcore*"},
                     kPatience, kLogMax);
}

void add_tree(Archive& archive, const std::string& directory, const Tree& tree) {
    std::string unreadable;
    for (const auto& [path, reading] : tree.readings()) {
        if (reading.ok()) {
            archive.add(directory + path,
                        path == "/proc/cmdline" ? kernel_parameters_shown(reading.text) : reading.text);
        } else if (reading.error != ENOENT) {
            unreadable += fmt::format("{} {}\n", reading.error, path);
        }
    }
    archive.add(directory + Tree::kUnreadable, unreadable);
    // Names that were only listed: an empty directory keeps each.
    for (const auto& [path, names] : tree.listings()) {
        for (const std::string& name : names) {
            const std::string whole = path + "/" + name;
            const auto below = tree.readings().lower_bound(whole + "/");
            const bool has_files = below != tree.readings().end() && below->first.starts_with(whole + "/");
            if (!tree.readings().contains(whole) && !has_files) {
                archive.add_directory(directory + whole);
            }
        }
    }
}

/// The name with letters, digits and ".-_" only: anybody can make a file in /dev/shm.
std::string tame(std::string name) {
    std::replace_if(
        name.begin(), name.end(),
        [](char c) {
            return std::string_view("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-").find(c) ==
                   std::string_view::npos;
        },
        '_');
    return name;
}

std::size_t values_of(const statistics::Snapshot& snapshot) {
    std::size_t count = 0;
    for (const statistics::ReadTable& table : snapshot.tables) {
        for (const statistics::ReadRow& row : table.rows) {
            for (const auto& words : row.words) {
                count += std::max<std::size_t>(words.size(), 1);
            }
        }
    }
    return count;
}

void add_segments(Archive& archive, const std::string& directory) {
    std::string failures;
    auto [files, strangers] = segments_by_trust();
    files.insert(files.end(), strangers.begin(), strangers.end());
    for (const std::filesystem::path& file : files) {
        const std::string name = tame(file.filename().string());
        try {
            const statistics::Snapshot snapshot = statistics::read_statistics(file);
            if (const std::size_t values = values_of(snapshot); values > kValuesMax) {
                failures += fmt::format("{}: {} values are more than those of a runtime\n", name, values);
            } else {
                archive.add(fmt::format("{}/{}.json", directory, name), stat::json_of(snapshot) + "\n");
            }
        } catch (const Error& error) {
            if (error.code() == std::errc::io_error) {
                throw;  // the archive cannot be written
            }
            failures += fmt::format("{}: {}\n", name, error.code().message());
        }
    }
    archive.add(directory + "/not-read.txt", failures);
}

/// The kernel's log, or why it cannot be read. syslog(2): without CAP_SYSLOG it depends on kernel.dmesg_restrict.
std::string kernel_log() {
    constexpr int kReadAll = 3;
    std::string text(kLogMax, '\0');
    const int got = ::klogctl(kReadAll, text.data(), static_cast<int>(text.size()));
    if (got < 0) {
        return fmt::format("(not readable: {})\n", std::generic_category().message(errno));
    }
    text.resize(static_cast<std::size_t>(got));
    return without_command_line(text);
}

/// "bundle" of "/tmp/bundle.tar.gz".
std::string top_of(const std::filesystem::path& file) {
    const std::string name = tame(file.filename().string());
    return name.substr(0, name.rfind(".tar"));
}

}  // namespace

void write_bundle(const std::filesystem::path& file, const Facts& facts, const Tree& later, const Printed& printed) {
    Archive archive(file);
    const std::string top = top_of(file);
    archive.add(top + "/README.txt", kReadme);
    if (facts.config() != nullptr) {
        const Tree files("/");
        const Reading& configuration = files.read(std::filesystem::absolute(facts.config_file()).string());
        archive.add(top + "/configuration.toml", configuration.ok() ? without_comments(configuration.text) : "");
        archive.add(top + "/effective.toml", print_config(*facts.config()));
    }
    archive.add(top + "/findings.json", printed.json);
    archive.add(top + "/findings.txt", printed.text);
    read_versions(facts.now());
    archive.add(top + "/versions.txt", versions(facts.now()));
    add_tree(archive, top + "/host", facts.now());
    add_tree(archive, fmt::format("{}/host/{}", top, kLaterDirectory), later);
    add_segments(archive, top + "/segments");
    archive.add(top + "/journal.txt", output_of({"/usr/bin/journalctl", "--unit=pollcored", "--lines=2000",
                                                 "--no-pager", "--output=short-iso-precise"},
                                                kPatience, kLogMax));
    archive.add(top + "/dmesg.txt", kernel_log());
    archive.finish();
}

}  // namespace pollcore::doctor
