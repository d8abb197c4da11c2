// What else runs on the workers' cores: interrupts, the kernel's own work, and other threads.
//
// Sources: proc_interrupts(5), proc_softirqs(5), Documentation/core-api/irq/irq-affinity.rst, core-api/workqueue.rst,
// scheduler/sched-stats.rst.
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
constexpr const char* kSchedstat = "/proc/schedstat";
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

Finding no_sample(const Facts& facts, const JudgedWorker& worker, const std::string& file) {
    return not_judged(worker.about(),
                      facts.now().read(file).ok() ? file + ": was read only once, so its growth is not known"
                                                  : facts.now().why_not(file),
                      file);
}

/// The rows of /proc/interrupts that grew on the worker's core: those of devices, of the timer, or all others.
enum class Kind { device, timer, kernel };
std::optional<std::vector<Growth>> interrupts_of(const Facts& facts, std::uint32_t core, Kind kind) {
    auto grown = growth_on(facts, kInterrupts, core);
    if (grown) {
        std::erase_if(*grown, [&](const Growth& each) {
            const Kind its = each.of_a_device ? Kind::device : each.label == "LOC" ? Kind::timer : Kind::kernel;
            return its != kind;
        });
    }
    return grown;
}

std::vector<Finding> interrupts(const Facts& facts) {
    std::vector<Finding> found;
    for (const JudgedWorker& worker : facts.workers()) {
        const auto grown = interrupts_of(facts, worker.core, Kind::device);
        if (!grown) {
            found.push_back(no_sample(facts, worker, kInterrupts));
        } else if (grown->empty()) {
            found.push_back({.about = worker.about(),
                             .seen = fmt::format("no device interrupted the core within {:.1f} s", facts.seconds()),
                             .source = kInterrupts});
        } else {
            found.push_back(
                {.about = worker.about(),
                 .severity = worker.sleeps ? Severity::note : Severity::warning,
                 .sure = !worker.sleeps,
                 .seen = "devices interrupted the core: " + named(*grown, facts.seconds()) +
                         (worker.sleeps ? "; a worker that sleeps is woken by such interrupts" : ""),
                 .source = kInterrupts,
                 .cost = cost_on(facts, worker.core, "each takes the core for the time of its handler"),
                 .mend = "send the interrupts to other CPUs, and tell irqbalance (IRQBALANCE_BANNED_CPULIST)",
                 .commands = {}});
            for (const Growth& each : *grown) {
                if (found.back().severity == Severity::warning) {
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
    std::vector<Finding> found;
    for (const JudgedWorker& worker : facts.workers()) {
        const auto grown = interrupts_of(facts, worker.core, Kind::timer);
        if (!grown) {
            found.push_back(no_sample(facts, worker, kInterrupts));
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
            found.back().commands = {{Command::When::boot, fmt::format("nohz_full={}", facts.cores())}};
        }
    }
    return found;
}

std::vector<Finding> kernel_interrupts(const Facts& facts) {
    std::vector<Finding> found;
    for (const JudgedWorker& worker : facts.workers()) {
        const auto grown = interrupts_of(facts, worker.core, Kind::kernel);
        if (!grown) {
            found.push_back(no_sample(facts, worker, kInterrupts));
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
            found.back().commands = {{Command::When::now, "sysctl kernel.nmi_watchdog=0"}};
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
        }
    }
    return found;
}

std::vector<Finding> softirqs(const Facts& facts) {
    std::vector<Finding> found;
    for (const JudgedWorker& worker : facts.workers()) {
        const auto grown = growth_on(facts, kSoftirqs, worker.core);
        if (!grown) {
            found.push_back(no_sample(facts, worker, kSoftirqs));
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

/// "run-time wait-time slices" of a thread, in ns (proc_pid_schedstat(5)).
std::optional<double> thread_waited(const Tree& tree, const RunningWorker& worker) {
    const auto line = tree.line(fmt::format("/proc/{}/task/{}/schedstat", worker.pid, worker.thread));
    std::istringstream words(line.value_or(""));
    double ran = 0;
    double waited = 0;
    return words >> ran >> waited ? std::optional(waited) : std::nullopt;
}

std::vector<Finding> other_tasks(const Facts& facts) {
    const std::string mend =
        "keep other threads off the core (isolated-core), and unpin those that are pinned there: "
        "ps -eLo psr,pid,comm";
    std::vector<Finding> found;
    for (const JudgedWorker& worker : facts.workers()) {
        const RunningWorker* const running = facts.running_on(worker.core);
        if (running != nullptr && running->thread != 0 && facts.later() != nullptr) {
            const auto before = thread_waited(facts.now(), *running);
            const auto after = thread_waited(*facts.later(), *running);
            if (before && after) {
                const double waited = *after - *before;
                const std::string share = fmt::format("the running worker waited {} of {:.1f} s for its core",
                                                      duration_text(waited), facts.seconds());
                found.push_back({.about = worker.about(),
                                 .severity = waited > 0 ? Severity::warning : Severity::ok,
                                 .seen = share,
                                 .source = fmt::format("/proc/{}/task/{}/schedstat", running->pid, running->thread)});
                if (waited > 0) {
                    found.back().cost = Cost::measured(share);
                    found.back().mend = mend;
                }
                continue;
            }
        }
        if (const auto taken = asked_number(facts.now(), spin_file(worker.core), "involuntary")) {
            found.push_back(
                {.about = worker.about(),
                 .severity = *taken > 0 ? Severity::warning : Severity::ok,
                 .seen = fmt::format("the kernel took a thread that spun there off the core {:.0f} times", *taken),
                 .source = "getrusage(2): ru_nivcsw"});
            if (*taken > 0) {
                found.back().cost = cost_on(facts, worker.core, "");
                found.back().mend = mend;
            }
            continue;
        }
        const auto before = run_queue(facts.now(), worker.core);
        const auto after = facts.later() != nullptr ? run_queue(*facts.later(), worker.core) : std::nullopt;
        if (!before || !after) {
            found.push_back(no_sample(facts, worker, kSchedstat));
            continue;
        }
        const double share = (after->ran_ns - before->ran_ns) / (facts.seconds() * 1e9);
        const double waited = after->waited_ns - before->waited_ns;
        const bool idle = share < 0.001;
        found.push_back({.about = worker.about(),
                         .severity = idle ? Severity::ok : Severity::note,
                         .sure = idle,
                         .seen = fmt::format("tasks ran there for {:.1f}% of {:.1f} s, and waited for it {}",
                                             100 * share, facts.seconds(), duration_text(waited)),
                         .source = kSchedstat});
        if (!idle) {
            found.back().mend = running != nullptr ? "the running worker may be that task; see pollstat" : mend;
        }
    }
    return found;
}

// core-api/workqueue.rst: unbound work runs on the CPUs of this mask.
std::vector<Finding> workqueues(const Facts& facts) {
    const std::string file = "/sys/devices/virtual/workqueue/cpumask";
    const auto text = facts.now().line(file);
    std::vector<Finding> found;
    for (const JudgedWorker& worker : facts.workers()) {
        if (!text) {
            found.push_back(not_judged(worker.about(), facts.now().why_not(file), file));
            continue;
        }
        // Groups of 8 hexadecimal digits, the highest CPUs first: "00000000,0000000f".
        std::string digits = *text;
        std::erase(digits, ',');
        const std::size_t digit = worker.core / 4;
        const char c = digit < digits.size() ? digits[digits.size() - 1 - digit] : '0';
        const int value = c >= 'a' ? c - 'a' + 10 : c >= 'A' ? c - 'A' + 10 : c - '0';
        if ((value >> worker.core % 4 & 1) == 0) {
            found.push_back(
                {.about = worker.about(), .seen = "unbound kernel work goes to other CPUs", .source = file});
            continue;
        }
        std::string mask;
        for (std::uint32_t cpu = 0; cpu < digits.size() * 4; cpu += 4) {
            int bits = 0;
            for (std::uint32_t bit = 0; bit < 4; ++bit) {
                const bool is_workers = std::any_of(facts.workers().begin(), facts.workers().end(),
                                                    [&](const JudgedWorker& each) { return each.core == cpu + bit; });
                bits |= facts.online().contains(cpu + bit) && !is_workers ? 1 << bit : 0;
            }
            mask.insert(0, fmt::format("{:x}{}", bits, cpu != 0 && cpu % 32 == 0 ? "," : ""));
        }
        found.push_back({.about = worker.about(),
                         .severity = Severity::note,
                         .seen = fmt::format("unbound kernel work may run there (mask {})", *text),
                         .source = file,
                         .cost = cost_on(facts, worker.core, "kworker threads take turns with the worker"),
                         .mend = "take the workers' CPUs out of the mask",
                         .commands = {{Command::When::now, fmt::format("echo {} > {}", mask, file)}}});
    }
    return found;
}

std::vector<Finding> longest_gap(const Facts& facts) {
    // A worker that stands still for longer keeps requests waiting for longer than most networks take.
    constexpr double kWarningNs = 100e3;
    constexpr double kNoteNs = 10e3;
    std::vector<Finding> found;
    for (const JudgedWorker& worker : facts.workers()) {
        const std::string file = spin_file(worker.core);
        const auto longest = asked_number(facts.now(), file, "longest_ns");
        const auto lost = asked_number(facts.now(), file, "lost_ns");
        const auto spun = asked_number(facts.now(), file, "spun_ns");
        const auto gaps = asked_number(facts.now(), file, "gaps");
        if (!longest || !lost || !spun || !gaps || *spun <= 0) {
            const auto why = asked_text(facts.now(), file, "not_measured");
            found.push_back(not_judged(worker.about(), "not measured: " + why.value_or("this run measured nothing"),
                                       "a spinning thread"));
            continue;
        }
        const Severity severity = worker.yields            ? Severity::note
                                  : *longest >= kWarningNs ? Severity::warning
                                  : *longest >= kNoteNs    ? Severity::note
                                                           : Severity::ok;
        found.push_back(
            {.about = worker.about(),
             .severity = severity,
             .seen = fmt::format("a thread that spun for {} was away {:.0f} times for more than 1 us, {} at the "
                                 "longest",
                                 duration_text(*spun), *gaps, duration_text(*longest)),
             .source = "a spinning thread",
             .cost = Cost::measured(percent_text(*lost / *spun) + " of the time")});
        if (severity != Severity::ok) {
            found.back().mend =
                "the findings about this CPU above say what was seen there; steal says whether a "
                "hypervisor took it";
        }
    }
    return found;
}

constexpr Check kInterruptChecks[] = {
    {"longest-gap", "how long a thread that spins on the core is kept from it", &longest_gap, "there is no worker"},
    {"interrupts", "interrupts of devices on the cores", &interrupts, "there is no worker"},
    {"interrupt-affinity", "interrupts that are sent to the cores", &interrupt_affinity, "there is no worker"},
    {"timer-ticks", "ticks of the timer on the cores", &timer_ticks, "there is no worker"},
    {"kernel-interrupts", "interrupts by other CPUs and the kernel", &kernel_interrupts, "there is no worker"},
    {"softirqs", "the kernel's deferred work on the cores", &softirqs, "there is no worker"},
    {"other-tasks", "other threads on the cores", &other_tasks, "there is no worker"},
    {"workqueues", "kernel work that may run on any CPU", &workqueues, "there is no worker"},
};

}  // namespace

std::span<const Check> interrupt_checks() noexcept {
    return kInterruptChecks;
}

}  // namespace pollcore::doctor
