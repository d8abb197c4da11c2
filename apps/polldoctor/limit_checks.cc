// Limits of the process: the CPUs and the CPU time of its cgroup, and RLIMIT_MEMLOCK.
//
// Sources: Documentation/admin-guide/cgroup-v2.rst (cpuset.cpus.effective, cpu.max), cgroups(7), getrlimit(2),
// capabilities(7).
#include <algorithm>
#include <charconv>
#include <sstream>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "check_groups.hpp"
#include "config/cpus.hpp"

namespace pollcore::doctor {
namespace {

constexpr const char* kCgroups = "/sys/fs/cgroup";

/// The directories of the process's cgroup and of those above it, the innermost first. Empty if the process has no
/// cgroup of version 2: its line in /proc/PID/cgroup begins with "0::".
std::vector<std::string> cgroup_directories(const Facts& facts) {
    std::istringstream lines(facts.now().read(facts.process() + "/cgroup").text);
    std::vector<std::string> all;
    for (std::string line; std::getline(lines, line);) {
        if (!line.starts_with("0::/")) {
            continue;
        }
        for (std::string path = line.substr(3); path.size() > 1; path.resize(path.rfind('/'))) {
            all.push_back(kCgroups + path);
        }
        all.emplace_back(kCgroups);
    }
    return all;
}

std::vector<Finding> cgroup_cpuset(const Facts& facts) {
    const auto directories = cgroup_directories(facts);
    std::vector<Finding> found;
    for (const JudgedWorker& worker : facts.workers()) {
        std::string source = facts.process() + "/status";
        std::set<std::uint32_t> cpus = allowed_cpus(facts.now());
        for (const std::string& directory : directories) {
            const std::string file = directory + "/cpuset.cpus.effective";
            if (const auto effective = cpus_in(facts.now(), file); effective && !effective->empty()) {
                cpus = *effective;
                source = file;
                break;
            }
        }
        if (cpus.empty()) {
            found.push_back(not_judged(worker.about(), "no file says which CPUs the process may use", source));
        } else if (cpus.contains(worker.core)) {
            found.push_back({.about = worker.about(), .seen = "the process may use it", .source = source});
        } else {
            found.push_back({.about = worker.about(),
                             .severity = Severity::fault,
                             .seen = fmt::format("the cgroup {} allows CPUs {} only", facts.process_text(),
                                                 config::print_cpu_list(cpus)),
                             .source = source,
                             .cost = {.text = "the worker cannot run on its core", .basis = Cost::Basis::stated},
                             .mend = "allow the core to the unit (CPUAffinity=, AllowedCPUs=) or to the container",
                             .commands = {{Command::When::now,
                                           fmt::format("systemctl set-property pollcored.service AllowedCPUs={}",
                                                       config::print_cpu_list(facts.online()))}}});
        }
    }
    return found;
}

// "max 100000" or "50000 100000": the quota in each period, in us.
std::vector<Finding> cgroup_cpu_max(const Facts& facts) {
    const auto directories = cgroup_directories(facts);
    std::string read;
    for (const std::string& directory : directories) {
        const std::string file = directory + "/cpu.max";
        const auto line = facts.now().line(file);
        if (!line) {
            continue;
        }
        read = file;
        double quota = 0;
        double period = 0;
        std::istringstream words(*line);
        if (!(words >> quota >> period) || period <= 0) {
            continue;  // "max"
        }
        return {
            {.severity = Severity::warning,
             .seen = fmt::format("the cgroup {} gets {:.2g} CPUs: {}", facts.process_text(), quota / period, *line),
             .source = file,
             .cost = {.text = fmt::format("threads that spin use the quota up, and then none of the cgroup runs for "
                                          "the rest of {:.0f} us",
                                          period),
                      .basis = Cost::Basis::stated},
             .mend = "remove the quota (CPUQuota= of the unit, or the container's limit of CPUs)",
             .commands = {{Command::When::now, fmt::format("echo max > {}", shell_word(file))}}}};
    }
    if (!read.empty()) {
        return {{.seen = "no quota", .source = read}};
    }
    if (directories.empty()) {
        return {not_judged({}, "the process is in no cgroup of version 2", facts.process() + "/cgroup")};
    }
    return {{.sure = false,
             .seen = "no cgroup above the process has a quota: the controller \"cpu\" is not enabled there",
             .source = directories.front() + "/cpu.max"}};
}

/// The soft limit in bytes; nothing if there is no limit, or it cannot be read.
struct MemoryLock {
    bool known = false;
    bool unlimited = false;
    std::uint64_t bytes = 0;
};
MemoryLock memory_lock(const Facts& facts) {
    std::istringstream lines(facts.now().read(facts.process() + "/limits").text);
    constexpr std::string_view kKey = "Max locked memory";
    for (std::string line; std::getline(lines, line);) {
        if (line.starts_with(kKey)) {
            std::string soft;
            std::istringstream(line.substr(kKey.size())) >> soft;
            MemoryLock lock{.known = true, .unlimited = soft == "unlimited"};
            lock.known =
                lock.unlimited || std::from_chars(soft.data(), soft.data() + soft.size(), lock.bytes).ec == std::errc();
            return lock;
        }
    }
    return {};
}

/// CAP_IPC_LOCK, bit 14 of CapEff in /proc/PID/status, lifts the limit.
bool may_lock_all(const Facts& facts) {
    std::istringstream lines(facts.now().read(facts.process() + "/status").text);
    for (std::string key, value; lines >> key; std::getline(lines, value)) {
        if (key == "CapEff:") {
            std::uint64_t set = 0;
            lines >> value;
            std::from_chars(value.data(), value.data() + value.size(), set, 16);
            return (set >> 14 & 1) != 0;
        }
    }
    return false;
}

std::vector<Finding> memlock(const Facts& facts) {
    const std::string file = facts.process() + "/limits";
    const MemoryLock lock = memory_lock(facts);
    if (!lock.known) {
        return {not_judged({}, facts.now().why_not(file), file)};
    }
    if (lock.unlimited || may_lock_all(facts)) {
        return {{.sure = facts.process() != "/proc/self",
                 .seen = fmt::format("{} {}", lock.unlimited ? "unlimited" : "CAP_IPC_LOCK lifts the limit",
                                     facts.process_text()),
                 .source = file}};
    }
    const std::string limit =
        fmt::format("{:.1f} MiB {}", static_cast<double>(lock.bytes) / (1 << 20), facts.process_text());
    if (facts.devices().empty()) {
        return {{.seen = limit + "; software devices pin no memory", .source = file}};
    }
    const std::uint64_t needed = facts.config() != nullptr ? facts.config()->memory.size : 0;
    return {{.severity = lock.bytes < needed && facts.process() != "/proc/self" ? Severity::fault : Severity::warning,
             .sure = facts.process() != "/proc/self",
             .seen = limit,
             .source = file,
             .cost = {.text = fmt::format("registered memory and queues count against it; memory.size alone is {:.0f} "
                                          "MiB, and beyond the limit registering fails with ENOMEM",
                                          static_cast<double>(needed) / (1 << 20)),
                      .basis = Cost::Basis::stated},
             .mend = "LimitMEMLOCK=infinity in the unit, as pollcored.service has it; memlock in "
                     "/etc/security/limits.conf for users",
             .commands = {{Command::When::now,
                           "echo '* - memlock unlimited' > /etc/security/limits.d/rdma.conf  # then log in again"}}}};
}

constexpr Check kChecks[] = {
    {"cgroup-cpuset", "whether the process may use the workers' CPUs", &cgroup_cpuset, "there is no worker"},
    {"cgroup-cpu-max", "whether a quota stops the process", &cgroup_cpu_max},
    {"memlock", "RLIMIT_MEMLOCK", &memlock},
};

}  // namespace

std::span<const Check> limit_checks() noexcept {
    return kChecks;
}

}  // namespace pollcore::doctor
