// Limits of the process: the CPUs and the CPU time of its cgroup, and RLIMIT_MEMLOCK.
//
// Sources: Documentation/admin-guide/cgroup-v2.rst (cpuset.cpus.effective, cpu.max), cgroups(7), getrlimit(2),
// capabilities(7).
#include <charconv>
#include <cstdint>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "check_groups.hpp"
#include "config/cpus.hpp"

namespace pollcore::doctor {
namespace {

constexpr const char* kCgroups = "/sys/fs/cgroup";

/// The directories of the process's cgroup and of those above it, the innermost first. A line of /proc/PID/cgroup is
/// "0::PATH" for version 2, and "N:CONTROLLERS:PATH" for version 1, whose controllers have a directory each.
std::vector<std::string> cgroup_directories(const Facts& facts, const std::string& controller) {
    std::istringstream lines(facts.now().read(facts.process() + "/cgroup").text);
    std::vector<std::string> all;
    for (std::string line; std::getline(lines, line);) {
        const std::size_t first = line.find(':');
        const std::size_t second = line.find(":/", first + 1);
        if (first == line.npos || second == line.npos) {
            continue;
        }
        const std::string controllers = line.substr(first + 1, second - first - 1);
        if (!controllers.empty() && ("," + controllers + ",").find("," + controller + ",") == line.npos) {
            continue;
        }
        const std::string top = kCgroups + (controllers.empty() ? "" : "/" + controllers);
        for (std::string path = line.substr(second + 1); path.size() > 1; path.resize(path.rfind('/'))) {
            all.push_back(top + path);
        }
        all.push_back(top);
    }
    return all;
}

std::vector<Finding> cgroup_cpuset(const Facts& facts) {
    const bool of_runtime = facts.process() != "/proc/self";
    // Without a file of the cpuset: the affinity, which the runtime may change.
    std::string source = "/proc/self/status";
    std::set<std::uint32_t> cpus = allowed_cpus(facts.now());
    bool sure = false;
    for (const std::string& directory : cgroup_directories(facts, "cpuset")) {
        for (const char* const leaf : {"cpuset.cpus.effective", "cpuset.effective_cpus"}) {
            const std::string file = directory + "/" + leaf;
            const auto effective = cpus_in(facts.now(), file);
            if (!sure && effective && !effective->empty()) {
                cpus = *effective;
                source = file;
                sure = true;
            }
        }
    }
    std::vector<Finding> found;
    for (const JudgedWorker& worker : facts.workers()) {
        if (cpus.empty()) {
            found.push_back(not_judged(worker.about(), "no file says which CPUs the process may use", source));
        } else if (cpus.contains(worker.core)) {
            found.push_back({.about = worker.about(),
                             .sure = sure && of_runtime,
                             .seen = "the process may use it",
                             .source = source});
        } else {
            found.push_back({.about = worker.about(),
                             .severity = sure && of_runtime ? Severity::fault : Severity::warning,
                             .sure = sure && of_runtime,
                             .seen = fmt::format("the {} {} has CPUs {} only", sure ? "cgroup" : "affinity",
                                                 facts.process_text(), config::print_cpu_list(cpus)),
                             .source = source,
                             .cost = Cost::stated("the worker cannot run on its core"),
                             .mend = "allow the core to the unit (CPUAffinity=, AllowedCPUs=) or to the container",
                             .commands = {{Command::When::now,
                                           fmt::format("systemctl set-property pollcored.service AllowedCPUs={}",
                                                       config::print_cpu_list(facts.online()))}}});
        }
    }
    return found;
}

struct Quota {
    double us = 0;  ///< in each period; 0: no limit
    double period_us = 0;
    std::string file;
};
/// The quota of a cgroup: cpu.max is "max 100000" or "50000 100000"; version 1 has two files (scheduler/sched-bwc.rst),
/// and a quota of -1 is none. Nothing if the directory has neither.
std::optional<Quota> quota_of(const Tree& tree, const std::string& directory) {
    if (const auto line = tree.line(directory + "/cpu.max")) {
        Quota quota{.file = directory + "/cpu.max"};
        std::istringstream words(*line);
        return words >> quota.us >> quota.period_us ? quota : Quota{.file = quota.file};
    }
    const std::string file = directory + "/cpu.cfs_quota_us";
    const auto us = tree.number(file);
    const auto period = tree.number(directory + "/cpu.cfs_period_us");
    return us && period ? std::optional(Quota{.us = *us, .period_us = *period, .file = file}) : std::nullopt;
}

std::vector<Finding> cgroup_cpu_max(const Facts& facts) {
    std::string read;
    for (const std::string& directory : cgroup_directories(facts, "cpu")) {
        const auto quota = quota_of(facts.now(), directory);
        if (!quota) {
            continue;
        }
        read = read.empty() ? quota->file : read;
        if (quota->us <= 0 || quota->period_us <= 0) {
            continue;
        }
        return {{.severity = Severity::warning,
                 .sure = facts.process() != "/proc/self",
                 .seen = fmt::format("the cgroup {} gets {:.2g} CPUs: {:.0f} us of each {:.0f} us",
                                     facts.process_text(), quota->us / quota->period_us, quota->us, quota->period_us),
                 .source = quota->file,
                 .cost = Cost::stated(
                     fmt::format("threads that spin use the quota up, and then none of the cgroup runs for "
                                 "the rest of {:.0f} us",
                                 quota->period_us)),
                 .mend = "remove the quota (CPUQuota= of the unit, or the container's limit of CPUs)",
                 .commands = {
                     {Command::When::now, fmt::format("echo {} > {}", quota->file.ends_with("cpu.max") ? "max" : "-1",
                                                      shell_word(quota->file))}}}};
    }
    const std::string file = facts.process() + "/cgroup";
    if (!read.empty()) {
        return {{.seen = "no quota", .source = read}};
    }
    return {facts.now().read(file).ok()
                ? Finding{.sure = false,
                          .seen = "no cgroup of the process has a file of a quota, so the controller \"cpu\" is not on",
                          .source = file}
                : not_judged({}, facts.now().why_not(file), file)};
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
    return {
        {.severity = lock.bytes < needed && facts.process() != "/proc/self" ? Severity::fault : Severity::warning,
         .sure = facts.process() != "/proc/self",
         .seen = limit,
         .source = file,
         .cost = Cost::stated(fmt::format("registered memory and queues count against it; memory.size alone is {:.0f} "
                                          "MiB, and beyond the limit registering fails with ENOMEM",
                                          static_cast<double>(needed) / (1 << 20))),
         .mend = "LimitMEMLOCK=infinity in the unit, as pollcored.service has it; memlock in "
                 "/etc/security/limits.conf for users",
         .commands = {{Command::When::now,
                       "echo '* - memlock unlimited' >> /etc/security/limits.d/rdma.conf  # then log in again"}}}};
}

constexpr Check kLimitChecks[] = {
    {"cgroup-cpuset", "whether the process may use the workers' CPUs", &cgroup_cpuset, "there is no worker"},
    {"cgroup-cpu-max", "whether a quota stops the process", &cgroup_cpu_max},
    {"memlock", "RLIMIT_MEMLOCK", &memlock},
};

}  // namespace

std::span<const Check> limit_checks() noexcept {
    return kLimitChecks;
}

}  // namespace pollcore::doctor
