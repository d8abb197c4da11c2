// Other threads on the workers' cores, and how long a thread that spins there is kept away.
//
// Sources: proc_pid_schedstat(5), Documentation/scheduler/sched-stats.rst, Documentation/core-api/workqueue.rst,
// getrusage(2).
#include <algorithm>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "check_groups.hpp"
#include "kernel_counters.hpp"

namespace pollcore::doctor {
namespace {

constexpr const char* kSchedstat = "/proc/schedstat";
// A worker that waits for less than this share of the time is as good as alone.
constexpr double kWaitedShare = 1e-4;

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
                const bool much = waited > kWaitedShare * facts.seconds() * 1e9;
                found.push_back({.about = worker.about(),
                                 .severity = much         ? Severity::warning
                                             : waited > 0 ? Severity::note
                                                          : Severity::ok,
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
            found.push_back(no_second_reading(facts, worker, kSchedstat));
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
        constexpr std::size_t kDigitsMax = 4096;  // more than any kernel's NR_CPUS
        std::string digits = text->substr(0, kDigitsMax);
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
                         .commands = facts.if_others({{Command::When::now, fmt::format("echo {} > {}", mask, file)}})});
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
                "other findings about this CPU say what was seen there; steal says whether a "
                "hypervisor took it";
        }
    }
    return found;
}

constexpr Check kTaskChecks[] = {
    {"longest-gap", "how long a thread that spins on the core is kept from it", &longest_gap, "there is no worker"},
    {"other-tasks", "other threads on the cores", &other_tasks, "there is no worker"},
    {"workqueues", "kernel work that may run on any CPU", &workqueues, "there is no worker"},
};

}  // namespace

std::span<const Check> task_checks() noexcept {
    return kTaskChecks;
}

}  // namespace pollcore::doctor
