// The clock, and the hypervisor below.
//
// Sources: Documentation/virt/kvm/x86/timekeeping.rst, Documentation/ABI/testing/sysfs-devices-clocksource, Intel SDM
// 17.17 (invariant TSC), proc_stat(5), Documentation/ABI/testing/sysfs-devices-system-cpu (vulnerabilities).
#include <string>
#include <vector>

#include <fmt/format.h>

#include "check_groups.hpp"
#include "kernel_counters.hpp"

namespace pollcore::doctor {
namespace {

std::vector<Finding> clock_source(const Facts& facts) {
    const std::string directory = "/sys/devices/system/clocksource/clocksource0";
    const std::string file = directory + "/current_clocksource";
    const auto name = facts.now().line(file);
    if (!name) {
        return {not_judged({}, facts.now().why_not(file), file)};
    }
    const auto others = facts.now().line(directory + "/available_clocksource").value_or("?");
    const std::string seen = fmt::format("{}; available: {}", *name, others);
    if (*name == "tsc" || *name == "arch_sys_counter") {
        return {{.seen = seen, .source = file}};
    }
    if (*name == "kvm-clock" || *name == "hyperv_clocksource_tsc_page") {
        return {{.seen = seen + "; it reads the TSC without a system call", .source = file}};
    }
    return {{.severity = Severity::warning,
             .seen = seen,
             .source = file,
             .cost = Cost::stated("each clock_gettime(2) is a system call and reads a slow device (timekeeping.rst); a "
                                  "worker's step reads the TSC itself, and is not slower"),
             .mend = "let the kernel use the TSC; dmesg says why it does not",
             .commands = others.find("tsc") != others.npos
                             ? std::vector<Command>{{Command::When::now, fmt::format("echo tsc > {}", file)}}
                             : std::vector<Command>()}};
}

std::vector<Finding> tsc(const Facts& facts) {
    const std::string file = "/proc/cpuinfo";
    const auto constant = has_cpu_flag(facts.now(), "constant_tsc");
    const auto nonstop = has_cpu_flag(facts.now(), "nonstop_tsc");
    if (!constant || !nonstop) {
        return {not_judged({},
                           facts.now().read(file).ok() ? file + ": names no flags, as on CPUs other than x86"
                                                       : facts.now().why_not(file),
                           file)};
    }
    if (*constant && *nonstop) {
        return {{.seen = "constant_tsc and nonstop_tsc: one rate, also while the core sleeps", .source = file}};
    }
    return {{.severity = Severity::warning,
             .sure = !has_cpu_flag(facts.now(), "hypervisor").value_or(false),
             .seen = fmt::format("the CPU has no {}{}{}", *constant ? "" : "constant_tsc",
                                 *constant || *nonstop ? "" : " and no ", *nonstop ? "" : "nonstop_tsc"),
             .source = file,
             .cost = Cost::stated(
                 "a worker's clock is the TSC: its times, idle ladder and latencies are wrong while the rate "
                 "changes"),
             .mend = "use another CPU; in a virtual machine, let the hypervisor pass the flag invtsc",
             .commands = {{Command::When::firmware, "hypervisor: CPU model with invtsc (QEMU: -cpu host,+invtsc)"}}}};
}

std::vector<Finding> virtual_machine(const Facts& facts) {
    const std::string file = "/proc/cpuinfo";
    const auto is = has_cpu_flag(facts.now(), "hypervisor");
    if (!is) {
        return {not_judged({},
                           facts.now().read(file).ok() ? file + ": names no flags, as on CPUs other than x86"
                                                       : facts.now().why_not(file),
                           file)};
    }
    if (!*is) {
        return {{.seen = "none", .source = file}};
    }
    const auto vendor = facts.now().line("/sys/class/dmi/id/sys_vendor");
    const auto product = facts.now().line("/sys/class/dmi/id/product_name");
    return {{.severity = Severity::note,
             .seen = fmt::format("this host is a virtual machine{}{}", vendor ? ", " + *vendor : "",
                                 product ? " " + *product : ""),
             .source = file,
             .cost = Cost::not_measured(
                 "CPUs, caches and NUMA nodes are what the hypervisor shows; see longest-gap and steal"),
             .mend = "pin the virtual CPUs to cores of their own, and pass the NIC through",
             .commands = {{Command::When::firmware,
                           "hypervisor: pin each virtual CPU to a core of its own, with hugepages below the memory"}}}};
}

std::vector<Finding> steal(const Facts& facts) {
    const std::string file = "/proc/stat";
    std::vector<Finding> found;
    for (const JudgedWorker& worker : facts.workers()) {
        const auto before = cpu_times(facts.now(), worker.core);
        const auto after = facts.later() != nullptr ? cpu_times(*facts.later(), worker.core) : std::nullopt;
        if (!before) {
            found.push_back(not_judged(
                worker.about(),
                facts.now().read(file).ok() ? file + ": has no line for the CPU" : facts.now().why_not(file), file));
            continue;
        }
        const double since_boot = before->total > 0 ? 100 * before->steal / before->total : 0;
        const double ticks = after ? after->total - before->total : 0;
        const double share = ticks > 0 ? 100 * (after->steal - before->steal) / ticks : 0;
        const std::string seen =
            fmt::format("{}{:.1f}% since boot",
                        after ? fmt::format("{:.1f}% of {:.1f} s, ", share, facts.seconds()) : "", since_boot);
        const Severity severity = share > 0 ? Severity::warning : since_boot > 0 ? Severity::note : Severity::ok;
        found.push_back({.about = worker.about(), .severity = severity, .seen = seen, .source = file});
        if (severity != Severity::ok) {
            found.back().cost = share > 0 ? Cost::measured(fmt::format("{:.1f}% of the core's time", share))
                                          : Cost::measured("none within this sample");
            found.back().mend = "ask for CPUs that no other virtual machine uses";
            found.back().commands = {{Command::When::firmware,
                                      "hypervisor: pin each virtual CPU to a core of its own, with hugepages below "
                                      "the memory"}};
            if (!after) {
                found.back().cost = Cost::not_measured("not measured here");
            }
        }
    }
    return found;
}

std::vector<Finding> mitigations(const Facts& facts) {
    const std::string directory = "/sys/devices/system/cpu/vulnerabilities";
    const std::vector<std::string>& names = facts.now().list(directory);
    if (names.empty()) {
        return {not_judged({}, directory + ": not there", directory)};
    }
    std::string active;
    for (const std::string& name : names) {
        if (facts.now().line(directory + "/" + name).value_or("").starts_with("Mitigation")) {
            active += (active.empty() ? "" : ", ") + name;
        }
    }
    return {{.seen = active.empty() ? "none is active"
                                    : "active against " + active +
                                          ": system calls and interrupts take longer; a worker that spins makes no "
                                          "system call",
             .source = directory}};
}

constexpr Check kClockChecks[] = {
    {"clock-source", "the kernel's clock", &clock_source},
    {"tsc", "the time stamp counter, which is a worker's clock", &tsc},
    {"virtual-machine", "whether a hypervisor is below", &virtual_machine},
    {"steal", "CPU time that a hypervisor took", &steal, "there is no worker"},
    {"mitigations", "mitigations of the CPU's vulnerabilities", &mitigations},
};

}  // namespace

std::span<const Check> clock_checks() noexcept {
    return kClockChecks;
}

}  // namespace pollcore::doctor
