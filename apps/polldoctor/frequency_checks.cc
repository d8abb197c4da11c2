// The frequency of the workers' cores, and how deep they sleep.
//
// Sources: Documentation/admin-guide/pm/cpufreq.rst, intel_pstate.rst, amd-pstate.rst and cpuidle.rst.
#include <string>
#include <vector>

#include <fmt/format.h>

#include "check_groups.hpp"
#include "kernel_counters.hpp"

namespace pollcore::doctor {
namespace {

std::string cpu_directory(std::uint32_t core) {
    return fmt::format("/sys/devices/system/cpu/cpu{}", core);
}

/// Why a file of the core cannot be read. Virtual machines have none of this kind.
std::string why_not_there(const Tree& tree, std::uint32_t core, const std::string& file) {
    const std::string why = tree.why_not(file).substr(cpu_directory(core).size() + 1);  // so that cores have one text
    return has_cpu_flag(tree, "hypervisor").value_or(false)
               ? why + "; the hypervisor decides, and its host has to be asked"
               : why;
}

std::vector<Finding> governor(const Facts& facts) {
    std::vector<Finding> found;
    for (const JudgedWorker& worker : facts.workers()) {
        const std::string directory = cpu_directory(worker.core) + "/cpufreq";
        const std::string file = directory + "/scaling_governor";
        const auto name = facts.now().line(file);
        if (!name) {
            found.push_back(not_judged(worker.about(), why_not_there(facts.now(), worker.core, file), file));
            continue;
        }
        const auto mhz = [&](const char* leaf) { return facts.now().number(directory + "/" + leaf).value_or(0) / 1e3; };
        const std::string seen = fmt::format("governor {}, driver {}, now {:.0f} of {:.0f} MHz", *name,
                                             facts.now().line(directory + "/scaling_driver").value_or("?"),
                                             mhz("scaling_cur_freq"), mhz("cpuinfo_max_freq"));
        if (*name == "performance") {
            found.push_back({.about = worker.about(), .seen = seen, .source = file});
            continue;
        }
        found.push_back(
            {.about = worker.about(),
             .severity = Severity::warning,
             .sure = *name == "powersave" || *name == "ondemand" || *name == "conservative",
             .seen = seen,
             .source = file,
             .cost = Cost::not_measured("after a pause the core runs slower until the governor has noticed the load "
                                        "(admin-guide/pm/cpufreq.rst); not measured here"),
             .mend = "choose the governor \"performance\"",
             .commands = {{Command::When::now, fmt::format("echo performance > {}", file)}}});
    }
    return found;
}

std::vector<Finding> c_states(const Facts& facts) {
    // A worker that is woken by an event should not wait longer for its core than for the wake-up itself.
    constexpr double kDeepUs = 10;
    std::vector<Finding> found;
    for (const JudgedWorker& worker : facts.workers()) {
        const std::string directory = cpu_directory(worker.core) + "/cpuidle";
        std::string deepest;
        std::string deepest_state;
        double latency = -1;
        std::vector<Command> commands;
        for (const std::string& state : facts.now().list(directory)) {
            const auto exit_us = facts.now().number(directory + "/" + state + "/latency");
            const auto disabled = facts.now().number(directory + "/" + state + "/disable");
            if (!exit_us || !disabled || *disabled != 0) {
                continue;
            }
            if (*exit_us > latency) {
                latency = *exit_us;
                deepest_state = directory + "/" + state;
                deepest = facts.now().line(deepest_state + "/name").value_or(state);
            }
            if (*exit_us > kDeepUs) {
                commands.push_back({Command::When::now, fmt::format("echo 1 > {}/{}/disable", directory, state)});
            }
        }
        if (latency < 0) {
            const std::string file = directory + "/state0/latency";
            found.push_back(not_judged(worker.about(), why_not_there(facts.now(), worker.core, file), file));
            continue;
        }
        const std::string seen =
            fmt::format("the deepest state is {}, which the core needs {:.0f} us to leave", deepest, latency);
        if (latency <= kDeepUs || !(worker.sleeps || worker.yields)) {
            found.push_back(
                {.about = worker.about(),
                 .seen = latency <= kDeepUs ? seen : seen + "; a worker that never sleeps keeps the core out of it",
                 .source = deepest_state + "/latency"});
            continue;
        }
        commands.push_back({Command::When::boot, "processor.max_cstate=1 intel_idle.max_cstate=1"});
        found.push_back({.about = worker.about(),
                         .severity = Severity::warning,
                         .sure = worker.sleeps,
                         .seen = seen,
                         .source = deepest_state + "/latency",
                         .cost = Cost::stated(fmt::format("up to {:.0f} us more for each wake-up, as the firmware says "
                                                          "(admin-guide/pm/cpuidle.rst: latency)",
                                                          latency)),
                         .mend = "disable the deep states of the core, or let the worker spin",
                         .commands = std::move(commands)});
    }
    return found;
}

constexpr Check kFrequencyChecks[] = {
    {"governor", "the frequency of the cores", &governor, "there is no worker"},
    {"c-states", "how long the cores take to wake up", &c_states, "there is no worker"},
};

}  // namespace

std::span<const Check> frequency_checks() noexcept {
    return kFrequencyChecks;
}

}  // namespace pollcore::doctor
