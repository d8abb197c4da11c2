// Whether the workers' cores are theirs: isolation, SMT siblings, and the scheduler's settings.
//
// Sources: Documentation/admin-guide/kernel-parameters.txt (isolcpus, nohz_full, rcu_nocbs), cputopology.rst and
// cpu-isolation in the same directory, Documentation/timers/no_hz.rst, sched(7).
#include <algorithm>
#include <cerrno>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "check_groups.hpp"
#include "config/cpus.hpp"
#include "kernel_counters.hpp"
#include "pollcore/error.hpp"

namespace pollcore::doctor {
namespace {

constexpr const char* kCpus = "/sys/devices/system/cpu";

std::vector<Finding> configuration(const Facts& facts) {
    if (facts.config() == nullptr) {
        return {{.severity = Severity::note,
                 .seen = "there is no configuration: each CPU that this process may use is judged, and each device",
                 .source = facts.config_file(),
                 .mend = "name the configuration with --config"}};
    }
    if (!facts.refused().empty()) {
        return {{.severity = Severity::fault,
                 .seen = "this host refuses the configuration: " + facts.refused(),
                 .source = facts.config_file(),
                 .cost = Cost::stated("pollcored does not start"),
                 .mend = "change the configuration; pollcored --check says when it is accepted"}};
    }
    return {{.seen = "accepted", .source = facts.config_file()}};
}

std::vector<Finding> core_online(const Facts& facts) {
    const std::string file = fmt::format("{}/online", kCpus);
    std::vector<Finding> found;
    for (const JudgedWorker& worker : facts.workers()) {
        if (facts.online().empty()) {
            found.push_back(not_judged(worker.about(), facts.now().why_not(file), file));
        } else if (!facts.online().contains(worker.core)) {
            found.push_back(
                {.about = worker.about(),
                 .severity = Severity::fault,
                 .seen = fmt::format("this CPU is not online; CPUs {} are", config::print_cpu_list(facts.online())),
                 .source = file,
                 .cost = Cost::stated("the worker cannot run"),
                 .mend = "bring the CPU online, or give the worker another core",
                 .commands = {{Command::When::now, fmt::format("echo 1 > {}/cpu{}/online", kCpus, worker.core)}}});
        } else {
            found.push_back({.about = worker.about(), .seen = "online", .source = file});
        }
    }
    return found;
}

std::vector<Finding> isolated_core(const Facts& facts) {
    const std::string file = fmt::format("{}/isolated", kCpus);
    // A cpuset partition isolates CPUs without a boot (Documentation/admin-guide/cgroup-v2.rst, Linux 6.6 and later).
    const std::string partitions = "/sys/fs/cgroup/cpuset.cpus.isolated";
    const auto by_boot = cpus_in(facts.now(), file);
    const auto by_partition = cpus_in(facts.now(), partitions);
    std::vector<Finding> found;
    for (const JudgedWorker& worker : facts.workers()) {
        if (!by_boot && !by_partition) {
            found.push_back(not_judged(worker.about(), facts.now().why_not(file), file));
        } else if (by_boot && by_boot->contains(worker.core)) {
            found.push_back({.about = worker.about(), .seen = "isolated since boot", .source = file});
        } else if (by_partition && by_partition->contains(worker.core)) {
            found.push_back({.about = worker.about(), .seen = "isolated by a cpuset partition", .source = partitions});
        } else {
            found.push_back(
                {.about = worker.about(),
                 .severity = worker.yields ? Severity::note : Severity::warning,
                 .seen = "not isolated: the scheduler may put any thread there",
                 .source = file,
                 .cost = cost_on(facts, worker.core, "the worker waits while another thread runs there"),
                 .mend = "isolate the workers' cores at boot, and leave other CPUs to everything else",
                 .commands = facts.if_others(
                     {{Command::When::boot, fmt::format("isolcpus=managed_irq,domain,{}", facts.cores())}})});
        }
    }
    return found;
}

std::vector<Finding> nohz_full(const Facts& facts) {
    const std::string file = fmt::format("{}/nohz_full", kCpus);
    const bool there = facts.now().read(file).ok();
    const auto cpus = cpus_in(facts.now(), file);  // without nohz_full= the file has "(null)"
    std::vector<Finding> found;
    for (const JudgedWorker& worker : facts.workers()) {
        if (!there) {
            found.push_back(not_judged(
                worker.about(), facts.now().why_not(file) + ", so this kernel may have no CONFIG_NO_HZ_FULL", file));
        } else if (cpus && cpus->contains(worker.core)) {
            found.push_back({.about = worker.about(), .seen = "the tick stops while one thread runs", .source = file});
        } else {
            found.push_back(
                {.about = worker.about(),
                 .severity = worker.yields || worker.sleeps ? Severity::note : Severity::warning,
                 .seen = "the scheduler's tick interrupts a worker that spins",
                 .source = file,
                 .cost = cost_on(facts, worker.core, "an interrupt CONFIG_HZ times a second (timers/no_hz.rst)"),
                 .mend = "stop the tick on the workers' cores",
                 .commands = facts.if_others({{Command::When::boot, fmt::format("nohz_full={}", facts.cores())}})});
        }
    }
    return found;
}

// There is no file for it: rcu_nocbs= and nohz_full= of the command line say so (kernel-parameters.txt: CPUs of
// nohz_full= are also those of rcu_nocbs=).
std::vector<Finding> rcu_nocbs(const Facts& facts) {
    const std::string file = "/proc/cmdline";
    std::set<std::uint32_t> cpus;
    bool all = false;
    for (const char* const name : {"rcu_nocbs", "nohz_full"}) {
        const auto value = kernel_parameter(facts.now(), name);
        if (!value) {
            continue;
        }
        all |= *value == "all" || (value->empty() && std::string_view(name) == "rcu_nocbs");
        try {
            cpus.merge(config::parse_cpu_list(*value, file));
        } catch (const Error&) {
            // Another form of a list, such as "1-N": it is not understood, and then the finding is a guess.
        }
    }
    std::vector<Finding> found;
    for (const JudgedWorker& worker : facts.workers()) {
        if (!facts.now().read(file).ok()) {
            found.push_back(not_judged(worker.about(), facts.now().why_not(file), file));
        } else if (all || cpus.contains(worker.core)) {
            found.push_back({.about = worker.about(), .seen = "RCU callbacks run on other CPUs", .source = file});
        } else {
            found.push_back(
                {.about = worker.about(),
                 .severity = worker.yields ? Severity::note : Severity::warning,
                 .sure = false,
                 .seen = "RCU callbacks may run there: the kernel's command line does not name the CPU",
                 .source = file,
                 .cost = cost_on(facts, worker.core, "the softirq RCU runs between the worker's steps"),
                 .mend = "let kernel threads on other CPUs run them",
                 .commands = facts.if_others({{Command::When::boot, fmt::format("rcu_nocbs={}", facts.cores())}})});
        }
    }
    return found;
}

std::vector<Finding> smt_sibling(const Facts& facts) {
    std::vector<Finding> found;
    for (const JudgedWorker& worker : facts.workers()) {
        const std::string file = fmt::format("{}/cpu{}/topology/thread_siblings_list", kCpus, worker.core);
        auto siblings = cpus_in(facts.now(), file);
        if (!siblings) {
            found.push_back(not_judged(worker.about(), facts.now().why_not(file), file));
            continue;
        }
        siblings->erase(worker.core);
        if (siblings->empty()) {
            found.push_back({.about = worker.about(),
                             .sure = !has_cpu_flag(facts.now(), "hypervisor").value_or(true),
                             .seen = "no SMT sibling",
                             .source = file});
            continue;
        }
        const auto other = std::find_if(facts.workers().begin(), facts.workers().end(), [&](const JudgedWorker& each) {
            return facts.config() != nullptr && siblings->contains(each.core);
        });
        const auto isolated = cpus_in(facts.now(), fmt::format("{}/isolated", kCpus));
        const bool idle =
            isolated && std::includes(isolated->begin(), isolated->end(), siblings->begin(), siblings->end());
        const std::string list = config::print_cpu_list(*siblings);
        found.push_back(
            {.about = worker.about(),
             .severity = other == facts.workers().end() && idle ? Severity::note : Severity::warning,
             .sure = other != facts.workers().end(),
             .seen =
                 other != facts.workers().end()
                     ? fmt::format("CPU {}, its SMT sibling, is the core of {}", other->core, other->name)
                     : fmt::format("CPU {} is its SMT sibling, and is online{}", list, idle ? ", but isolated" : ""),
             .source = file,
             .cost = Cost::not_measured(
                 "the two share the core's execution units and L1 cache while both are busy; not measured "
                 "here"),
             .mend = other != facts.workers().end() ? "give the workers cores of their own"
                                                    : "take the sibling offline, or keep all work off it",
             .commands = {}});
        if (other == facts.workers().end()) {
            for (const std::uint32_t sibling : *siblings) {
                found.back().commands.push_back(
                    {Command::When::now, fmt::format("echo 0 > {}/cpu{}/online", kCpus, sibling)});
            }
        }
    }
    return found;
}

std::vector<Finding> autogroup(const Facts& facts) {
    const std::string file = "/proc/sys/kernel/sched_autogroup_enabled";
    const auto value = facts.now().number(file);
    if (!value) {
        // A kernel without CONFIG_SCHED_AUTOGROUP has no such file, which is as good as 0.
        if (facts.now().read(file).error == ENOENT) {
            return {{.sure = false, .seen = "this kernel has no autogroup", .source = file}};
        }
        return {not_judged({}, facts.now().why_not(file), file)};
    }
    if (*value == 0) {
        return {{.seen = "off", .source = file}};
    }
    return {
        {.severity = Severity::warning,
         .sure = false,
         .seen = "on: the kernel divides CPUs among sessions before it divides them among threads (sched(7))",
         .source = file,
         .cost = Cost::stated("if other threads spin on a worker's core: Linux 6.18.44 kept a worker's thread from its "
                              "core for up to 40 s (config/README.md)"),
         .mend = "switch it off, or give the cores to the workers alone",
         .commands = {{Command::When::now, "sysctl kernel.sched_autogroup_enabled=0"}}}};
}

// The scheduling policy is field 41 of /proc/PID/task/TID/stat (proc_pid_stat(5)); 1 is SCHED_FIFO, 2 is SCHED_RR.
bool is_real_time(const Tree& tree, const RunningWorker& worker) {
    const auto line = tree.line(fmt::format("/proc/{}/task/{}/stat", worker.pid, worker.thread));
    if (!line || line->rfind(')') == std::string::npos) {
        return false;
    }
    std::istringstream rest(line->substr(line->rfind(')') + 1));
    constexpr int kFirstField = 3;
    constexpr int kPolicyField = 41;
    std::string word;
    for (int field = kFirstField; field <= kPolicyField; ++field) {
        rest >> word;
    }
    return word == "1" || word == "2";
}

// sched(7): a thread of a real-time policy gets at most sched_rt_runtime_us of each sched_rt_period_us.
std::vector<Finding> rt_throttling(const Facts& facts) {
    const std::string file = "/proc/sys/kernel/sched_rt_runtime_us";
    const auto runtime = facts.now().number(file);
    const auto period = facts.now().number("/proc/sys/kernel/sched_rt_period_us");
    const bool real_time = std::any_of(facts.workers().begin(), facts.workers().end(), [&](const JudgedWorker& worker) {
        const RunningWorker* const running = facts.running_on(worker.core);
        return running != nullptr && is_real_time(facts.now(), *running);
    });
    if (!runtime || !period) {
        return {not_judged({}, facts.now().why_not(runtime ? "/proc/sys/kernel/sched_rt_period_us" : file), file)};
    }
    if (*runtime < 0 || *runtime >= *period || !real_time) {
        return {{.seen = real_time ? "off" : "no running worker has a real-time policy, so it does not matter",
                 .source = file}};
    }
    return {
        {.severity = Severity::warning,
         .seen = fmt::format("a running worker has a real-time policy, and the kernel stops such threads for {:.0f} "
                             "us of each {:.0f} us",
                             *period - *runtime, *period),
         .source = file,
         .cost = Cost::stated(
             fmt::format("up to {:.1f}% of the worker's time (sched(7))", 100 * (*period - *runtime) / *period)),
         .mend = "give the worker the ordinary policy on a core of its own, or switch the limit off",
         .commands = {{Command::When::now, "sysctl kernel.sched_rt_runtime_us=-1"}}}};
}

constexpr Check kCpuChecks[] = {
    {"configuration", "whether this host accepts the configuration", &configuration},
    {"core-online", "whether the workers' CPUs are online", &core_online, "there is no worker"},
    {"isolated-core", "whether the scheduler keeps other threads off the cores", &isolated_core, "there is no worker"},
    {"nohz-full", "whether the scheduler's tick stops on the cores", &nohz_full, "there is no worker"},
    {"rcu-nocbs", "whether RCU callbacks run elsewhere", &rcu_nocbs, "there is no worker"},
    {"smt-sibling", "whether the cores share their execution units", &smt_sibling, "there is no worker"},
    {"autogroup", "kernel.sched_autogroup_enabled", &autogroup},
    {"rt-throttling", "whether the kernel throttles workers of a real-time policy", &rt_throttling},
};

}  // namespace

std::span<const Check> cpu_checks() noexcept {
    return kCpuChecks;
}

}  // namespace pollcore::doctor
