// Interrupts on the workers' cores, and the kernel's deferred work.
//
// Sources: proc_interrupts(5), proc_softirqs(5), Documentation/core-api/irq/irq-affinity.rst.
#include <algorithm>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "check_groups.hpp"
#include "config/cpus.hpp"
#include "kernel_counters.hpp"

namespace pollcore::doctor {
namespace {

constexpr const char* kInterrupts = "/proc/interrupts";
constexpr const char* kSoftirqs = "/proc/softirqs";
constexpr std::size_t kNamedMax = 4;
// A worker that is interrupted less often loses less than a part in 10^5 of its time, if an interrupt takes 1 us.
constexpr double kRateOfNote = 10;

std::string per_second(double count, double seconds) {
    const double rate = count / seconds;
    return fmt::format("{:.{}f}/s", rate, rate < 10 ? 1 : 0);
}

/// "LOC 250/s, 24 3.0/s (eth0-rx)": the rows that grew most.
std::string named(const std::vector<Growth>& grown, double seconds) {
    std::string text;
    for (std::size_t i = 0; i < std::min(grown.size(), kNamedMax); ++i) {
        const std::string what = grown[i].what.substr(grown[i].what.rfind(' ') + 1);
        text += fmt::format("{}{} {}{}", i == 0 ? "" : ", ", grown[i].label,
                            per_second(static_cast<double>(grown[i].count), seconds),
                            grown[i].of_a_device && !what.empty() ? " (" + what + ")" : "");
    }
    return grown.size() > kNamedMax ? fmt::format("{} and {} more", text, grown.size() - kNamedMax) : text;
}

double sum(const std::vector<Growth>& grown) {
    double count = 0;
    for (const Growth& each : grown) {
        count += static_cast<double>(each.count);
    }
    return count;
}

/// The rows of /proc/interrupts that grew on the worker's core: those of devices, of the timer, or all others.
enum class Kind { device, timer, kernel };
std::optional<std::vector<Growth>> interrupts_of(const CountedTwice& counted, std::uint32_t core, Kind kind) {
    auto grown = counted.on(core);
    if (grown) {
        std::erase_if(*grown, [&](const Growth& each) {
            const Kind its = each.of_a_device ? Kind::device : each.label == "LOC" ? Kind::timer : Kind::kernel;
            return its != kind;
        });
    }
    return grown;
}

std::vector<Finding> interrupts(const Facts& facts) {
    const CountedTwice counted(facts, kInterrupts);
    std::vector<Finding> found;
    for (const JudgedWorker& worker : facts.workers()) {
        const auto grown = interrupts_of(counted, worker.core, Kind::device);
        if (!grown) {
            found.push_back(no_second_reading(facts, worker, kInterrupts));
        } else if (grown->empty()) {
            found.push_back({.about = worker.about(),
                             .seen = fmt::format("no device interrupted the core within {:.1f} s", facts.seconds()),
                             .source = kInterrupts});
        } else {
            const bool often = sum(*grown) / facts.seconds() > kRateOfNote;
            found.push_back(
                {.about = worker.about(),
                 .severity = often && !worker.sleeps ? Severity::warning : Severity::note,
                 .sure = !worker.sleeps,
                 .seen = "devices interrupted the core: " + named(*grown, facts.seconds()) +
                         (worker.sleeps ? "; a worker that sleeps is woken by such interrupts" : ""),
                 .source = kInterrupts,
                 .cost = cost_on(facts, worker.core, "each takes the core for the time of its handler"),
                 .mend = "send the interrupts to other CPUs, and tell irqbalance (IRQBALANCE_BANNED_CPULIST)",
                 .commands = {}});
            for (const Growth& each : *grown) {
                if (!worker.sleeps && !facts.other_cpus().empty()) {
                    found.back().commands.push_back(
                        {Command::When::now,
                         fmt::format("echo {} > /proc/irq/{}/smp_affinity_list", facts.other_cpus(), each.label)});
                }
            }
        }
    }
    return found;
}

std::vector<Finding> timer_ticks(const Facts& facts) {
    const CountedTwice counted(facts, kInterrupts);
    std::vector<Finding> found;
    for (const JudgedWorker& worker : facts.workers()) {
        const auto grown = interrupts_of(counted, worker.core, Kind::timer);
        if (!grown) {
            found.push_back(no_second_reading(facts, worker, kInterrupts));
            continue;
        }
        const double rate = sum(*grown) / facts.seconds();
        const bool often = rate > kRateOfNote && !worker.yields && !worker.sleeps;
        found.push_back({.about = worker.about(),
                         .severity = often ? Severity::warning : Severity::ok,
                         .seen = fmt::format("LOC grew by {}", per_second(sum(*grown), facts.seconds())),
                         .source = kInterrupts});
        if (often) {
            found.back().cost = cost_on(facts, worker.core, "each tick runs the scheduler and the timers of the core");
            found.back().mend = "stop the tick (nohz-full), and let only one thread run there";
            if (facts.now().read("/sys/devices/system/cpu/nohz_full").ok()) {  // else the kernel cannot stop it
                found.back().commands =
                    facts.if_others({{Command::When::boot, fmt::format("nohz_full={}", facts.cores())}});
            }
        }
    }
    return found;
}

std::vector<Finding> kernel_interrupts(const Facts& facts) {
    const CountedTwice counted(facts, kInterrupts);
    std::vector<Finding> found;
    for (const JudgedWorker& worker : facts.workers()) {
        const auto grown = interrupts_of(counted, worker.core, Kind::kernel);
        if (!grown) {
            found.push_back(no_second_reading(facts, worker, kInterrupts));
            continue;
        }
        const bool often = sum(*grown) / facts.seconds() > kRateOfNote;
        found.push_back(
            {.about = worker.about(),
             .severity = often ? Severity::note : Severity::ok,
             .sure = !often,
             .seen = grown->empty() ? "none" : "other CPUs and the kernel: " + named(*grown, facts.seconds()),
             .source = kInterrupts});
        if (often) {
            found.back().cost = cost_on(facts, worker.core, "each takes the core for the time of its handler");
            found.back().mend =
                "TLB: threads of one process share an address space, so let the worker's program map and unmap little; "
                "RES and CAL: keep other threads off the core; NMI and PMI: switch the watchdog off";
            if (std::any_of(grown->begin(), grown->end(),
                            [](const Growth& each) { return each.label == "NMI" || each.label == "PMI"; })) {
                found.back().commands = {{Command::When::now, "sysctl kernel.nmi_watchdog=0"}};
            }
        }
    }
    return found;
}

std::vector<Finding> interrupt_affinity(const Facts& facts) {
    const std::vector<CountedRow> rows = counted_rows(facts.now().read(kInterrupts).text);
    std::vector<Finding> found;
    for (const JudgedWorker& worker : facts.workers()) {
        if (rows.empty()) {
            found.push_back(not_judged(worker.about(), facts.now().why_not(kInterrupts), kInterrupts));
            continue;
        }
        std::vector<const CountedRow*> here;
        std::size_t unreadable = 0;
        std::size_t devices = 0;
        for (const CountedRow& row : rows) {
            if (!row.is_of_a_device()) {
                continue;
            }
            ++devices;
            // The CPU to which the interrupt goes now; smp_affinity_list has those to which it may go.
            const auto cpus = cpus_in(facts.now(), "/proc/irq/" + row.label + "/effective_affinity_list");
            unreadable += cpus ? 0 : 1;
            if (cpus && cpus->contains(worker.core)) {
                here.push_back(&row);
            }
        }
        const std::string source = "/proc/irq/*/effective_affinity_list";
        if (here.empty() && unreadable == devices && devices != 0) {
            found.push_back(not_judged(worker.about(), source + ": not readable", source));
        } else if (here.empty()) {
            found.push_back({.about = worker.about(),
                             .sure = unreadable == 0,
                             .seen = fmt::format("none of {} interrupts goes there", devices),
                             .source = source});
        } else {
            std::string names;
            for (std::size_t i = 0; i < std::min(here.size(), kNamedMax); ++i) {
                names += fmt::format("{}{} ({})", i == 0 ? "" : ", ", here[i]->label,
                                     here[i]->what.substr(here[i]->what.rfind(' ') + 1));
            }
            found.push_back({.about = worker.about(),
                             .severity = Severity::note,
                             .seen = fmt::format("{} of {} interrupts go there: {}{}", here.size(), devices, names,
                                                 here.size() > kNamedMax ? " and more" : ""),
                             .source = source,
                             .cost = Cost::not_measured("nothing until they come: see interrupts"),
                             .mend = "send them to other CPUs; a completion vector of a worker that sleeps may stay",
                             .commands = {}});
            for (const CountedRow* const row : here) {
                found.back().commands.push_back(
                    {Command::When::now,
                     fmt::format("echo {} > /proc/irq/{}/smp_affinity_list", facts.other_cpus(), row->label)});
            }
            found.back().commands = facts.if_others(std::move(found.back().commands));
        }
    }
    return found;
}

std::vector<Finding> softirqs(const Facts& facts) {
    const CountedTwice counted(facts, kSoftirqs);
    std::vector<Finding> found;
    for (const JudgedWorker& worker : facts.workers()) {
        const auto grown = counted.on(worker.core);
        if (!grown) {
            found.push_back(no_second_reading(facts, worker, kSoftirqs));
            continue;
        }
        const bool often = sum(*grown) / facts.seconds() > kRateOfNote;
        found.push_back({.about = worker.about(),
                         .severity = !often          ? Severity::ok
                                     : worker.yields ? Severity::note
                                                     : Severity::warning,
                         .seen = grown->empty() ? "the kernel did no work there"
                                                : "the kernel worked there: " + named(*grown, facts.seconds()),
                         .source = kSoftirqs});
        if (often) {
            found.back().cost = cost_on(facts, worker.core, "softirqs run before the worker goes on");
            found.back().mend =
                "TIMER, SCHED, RCU: isolated-core, nohz-full, rcu-nocbs; NET_RX and NET_TX: send the network's "
                "interrupts elsewhere, and leave the CPU out of rps_cpus; BLOCK, TASKLET: interrupt-affinity";
        }
    }
    return found;
}

constexpr Check kInterruptChecks[] = {
    {"interrupts", "interrupts of devices on the cores", &interrupts, "there is no worker"},
    {"interrupt-affinity", "interrupts that are sent to the cores", &interrupt_affinity, "there is no worker"},
    {"timer-ticks", "ticks of the timer on the cores", &timer_ticks, "there is no worker"},
    {"kernel-interrupts", "interrupts by other CPUs and the kernel", &kernel_interrupts, "there is no worker"},
    {"softirqs", "the kernel's deferred work on the cores", &softirqs, "there is no worker"},
};

}  // namespace

std::span<const Check> interrupt_checks() noexcept {
    return kInterruptChecks;
}

}  // namespace pollcore::doctor
