#include "sim/campaign.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <new>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/log.hpp"
#include "pollcore/error.hpp"
#include "sim/leaks.hpp"
#include "sim/violation.hpp"

namespace pollcore::sim {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kTextBytes = 64 * 1024;
constexpr std::size_t kEventsShown = 40;
/// One history takes milliseconds; a process that needs longer than this hangs.
constexpr std::chrono::seconds kHang{60};

/// The report of a process that runs histories to its parent, in memory that both share.
struct Report {
    std::atomic<std::uint64_t> seed{0};  ///< seed of the present history
    std::atomic<std::uint64_t> done{0};
    std::atomic<std::uint64_t> steps{0};
    Coverage coverage{};
    std::uint64_t failed_at_step = 0;
    char invariant[64] = {};  ///< empty: none was broken
    char text[kTextBytes] = {};
};

class SharedReport {
public:
    SharedReport() {
        void* memory = mmap(nullptr, sizeof(Report), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED) {
            throw Error(errno, "no memory to share with the processes that run the histories");
        }
        report_ = new (memory) Report;
    }
    ~SharedReport() { munmap(report_, sizeof(Report)); }
    SharedReport(const SharedReport&) = delete;
    SharedReport& operator=(const SharedReport&) = delete;
    Report* operator->() const noexcept { return report_; }
    Report& operator*() const noexcept { return *report_; }

private:
    Report* report_ = nullptr;
};

void set(char* to, std::size_t size, const std::string& text) {
    const std::size_t n = std::min(size - 1, text.size());
    std::memcpy(to, text.data(), n);
    to[n] = 0;
}

/// Returns false if an invariant was broken. The report then names the invariant.
bool run_history(const HistoryOptions& options, Report& report) {
    report.seed = options.seed;
    static bool first = true;  // the first history makes things that are kept, such as tables of names
    const Held before = held_now();
    auto world = std::make_unique<World>(options);
    std::string invariant;
    std::string text;
    try {
        world->run();
    } catch (const Violation& violation) {
        invariant = violation.invariant();
        text = violation.what();
    } catch (const std::exception& error) {
        invariant = "exception";
        text = error.what();
    }
    for (std::size_t i = 0; i < kTroubles; ++i) {
        for (std::size_t j = 0; j < kDoings; ++j) {
            report.coverage[i][j] += world->coverage()[i][j];
        }
    }
    report.steps += world->steps();
    const std::uint64_t steps = world->steps();
    std::vector<std::string> events;
    if (invariant.empty()) {
        const bool may_differ = std::exchange(first, false) || world->may_leave_objects();
        world.reset();
        const Held after = held_now();
        if (!may_differ && after != before) {
            invariant = "end";
            text = fmt::format("{} allocations before and {} after; the lowest free descriptor was {} and is {}",
                               before.allocations, after.allocations, before.lowest_free_fd, after.lowest_free_fd);
        }
    } else {
        events = world->trace.last(kEventsShown);
    }
    if (invariant.empty()) {
        ++report.done;
        return true;
    }
    report.failed_at_step = steps;
    text += "\n";
    const std::vector<Planned> plan = World(options).plan();
    for (std::size_t i = 0; i < plan.size(); ++i) {
        if (std::find(options.without.begin(), options.without.end(), i) == options.without.end()) {
            text += fmt::format("  trouble {}: {} at step {}\n", i, trouble_name(plan[i].trouble), plan[i].step);
        }
    }
    text += "the last events:\n";
    for (const std::string& line : events) {
        text += line + "\n";
    }
    set(report.text, sizeof(report.text), text);
    set(report.invariant, sizeof(report.invariant), invariant);
    (void)world.release();  // its threads are in the middle of calls and cannot be ended
    return false;
}

template <class Body>
pid_t in_child(Body&& body) {
    std::fflush(nullptr);
    const pid_t child = fork();
    if (child < 0) {
        throw Error(errno, "cannot start a process for histories");
    }
    if (child == 0) {
        try {
            body();
        } catch (const std::exception& error) {
            fmt::print(stderr, "simulate: {}\n", error.what());
            std::fflush(nullptr);
            _exit(2);
        }
        std::fflush(nullptr);
        _exit(0);
    }
    return child;
}

/// Records how a process ended if it ended with an error but reported no broken invariant.
void note_end(int status, Report& report) {
    if (report.invariant[0] != 0 || (WIFEXITED(status) && WEXITSTATUS(status) == 0)) {
        return;
    }
    set(report.invariant, sizeof(report.invariant), "crash");
    set(report.text, sizeof(report.text),
        WIFSIGNALED(status) ? fmt::format("ended by signal {}\n", WTERMSIG(status))
                            : fmt::format("exit code {}\n", WEXITSTATUS(status)));
}

/// Runs one history in its own process, so that the history may end in any way.
void try_history(const HistoryOptions& options, Report& report) {
    report.invariant[0] = 0;
    const pid_t child = in_child([&] {
        const int null = open("/dev/null", O_WRONLY);
        dup2(null, STDERR_FILENO);
        (void)run_history(options, report);
    });
    const auto limit = Clock::now() + kHang;
    int status = 0;
    while (waitpid(child, &status, WNOHANG) == 0) {
        if (Clock::now() > limit) {
            kill(child, SIGKILL);
            waitpid(child, &status, 0);
            break;
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    note_end(status, report);
}

/// Tries the history without each trouble, and with fewer steps. Keeps a change if the same invariant still breaks.
HistoryOptions shrink(HistoryOptions options, Report& report) {
    try_history(options, report);
    const std::string invariant = report.invariant;
    const auto still = [&](const HistoryOptions& tried) {
        try_history(tried, report);
        return report.invariant == invariant;
    };
    if (invariant.empty()) {
        return options;
    }
    const std::size_t troubles = World(options).plan().size();
    for (std::size_t i = 0; i < troubles; ++i) {
        HistoryOptions tried = options;
        tried.without.push_back(i);
        if (still(tried)) {
            options = tried;
        }
    }
    // A shorter history winds down earlier. It is therefore another history, but it usually fails in the same way.
    for (std::uint64_t less = options.steps / 2; less > 8; less /= 2) {
        HistoryOptions tried = options;
        tried.steps -= less;
        if (still(tried)) {
            options = tried;
        }
    }
    (void)still(options);  // so that the report is about the final options
    return options;
}

std::string replay_command(const HistoryOptions& options) {
    std::string command =
        fmt::format("scripts/simulate --world {} --steps {} --replay {}", options.world, options.steps, options.seed);
    if (!options.without.empty()) {
        command += fmt::format(" --without {}", fmt::join(options.without, ","));
    }
    return command;
}

void print_coverage(const Coverage& coverage) {
    fmt::print("{:16}", "");
    for (std::size_t j = 0; j < kDoings; ++j) {
        fmt::print("{:>13}", doing_name(static_cast<Doing>(j)));
    }
    fmt::print("\n");
    for (std::size_t i = 0; i < kTroubles; ++i) {
        fmt::print("{:16}", trouble_name(static_cast<Trouble>(i)));
        for (std::size_t j = 0; j < kDoings; ++j) {
            fmt::print("{:>13}", coverage[i][j]);
        }
        fmt::print("\n");
    }
}

[[nodiscard]] Coverage sum_of(const std::vector<std::unique_ptr<SharedReport>>& reports) {
    Coverage coverage{};
    for (const auto& report : reports) {
        for (std::size_t i = 0; i < kTroubles; ++i) {
            for (std::size_t j = 0; j < kDoings; ++j) {
                coverage[i][j] += (*report)->coverage[i][j];
            }
        }
    }
    return coverage;
}

[[nodiscard]] std::vector<std::pair<Trouble, Doing>> missing(const Coverage& coverage) {
    std::vector<std::pair<Trouble, Doing>> pairs;
    for (std::size_t i = 0; i < kTroubles; ++i) {
        for (std::size_t j = 0; j < kDoings; ++j) {
            const std::pair pair{static_cast<Trouble>(i), static_cast<Doing>(j)};
            if (coverage[i][j] == 0 && can_meet(pair.first, pair.second)) {
                pairs.push_back(pair);
            }
        }
    }
    return pairs;
}

[[nodiscard]] int report_missing(const Coverage& coverage) {
    const auto pairs = missing(coverage);
    for (const auto& [trouble, doing] : pairs) {
        fmt::print("\"{}\" never met a queue pair that was {}\n", trouble_name(trouble), doing_name(doing));
    }
    return pairs.empty() ? 0 : 1;
}

}  // namespace

int run_campaign(const Campaign& campaign) {
    std::vector<std::unique_ptr<SharedReport>> reports;
    std::vector<pid_t> children;
    if (campaign.bug == Bug::none) {
        fmt::print("world {}, from history {} on\n", campaign.world, campaign.from);
        std::fflush(stdout);
    }
    const auto began = Clock::now();
    const auto elapsed = [&] { return std::chrono::duration<double>(Clock::now() - began).count(); };
    for (std::uint32_t job = 0; job < campaign.jobs; ++job) {
        reports.push_back(std::make_unique<SharedReport>());
    }
    // Some troubles meet some states only once in ten thousand histories. A complete campaign goes on until every
    // trouble has met every state that can_meet() allows, up to kPatience times as many histories.
    constexpr std::uint64_t kPatience = 8;
    const auto wanted = [&](std::uint64_t i) {
        return i < campaign.seeds ||
               (campaign.complete && i < kPatience * campaign.seeds && !missing(sum_of(reports)).empty());
    };
    for (std::uint32_t job = 0; job < campaign.jobs; ++job) {
        children.push_back(in_child([&, job] {
            Report& report = **reports[job];
            set_log_output(open("/dev/null", O_WRONLY | O_CLOEXEC));
            plant(campaign.bug);
            for (std::uint64_t i = job; wanted(i) && (campaign.seconds == 0 || elapsed() < campaign.seconds);
                 i += campaign.jobs) {
                if (!run_history({.seed = campaign.from + i, .steps = campaign.steps, .world = campaign.world},
                                 report)) {
                    return;
                }
            }
        }));
    }
    std::vector<std::pair<std::uint64_t, Clock::time_point>> at(campaign.jobs, {0, began});
    std::vector<bool> running(campaign.jobs, true);
    bool failed = false;
    auto next_line = began + std::chrono::seconds(5);
    const auto total = [&] {
        std::uint64_t done = 0;
        for (const auto& report : reports) {
            done += (*report)->done;
        }
        return done;
    };
    const auto say = [&] {
        fmt::print("{} histories of {} steps in {:.1f} s: {:.0f} a minute\n", total(), campaign.steps, elapsed(),
                   static_cast<double>(total()) * 60 / elapsed());
        std::fflush(stdout);
    };
    while (!failed && std::find(running.begin(), running.end(), true) != running.end()) {
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
        for (std::uint32_t job = 0; job < campaign.jobs; ++job) {
            if (!running[job]) {
                continue;
            }
            Report& report = **reports[job];
            int status = 0;
            if (waitpid(children[job], &status, WNOHANG) != 0) {
                running[job] = false;
                note_end(status, report);
            } else if (at[job].first != report.seed) {
                at[job] = {report.seed, Clock::now()};
            } else if (Clock::now() - at[job].second > kHang) {
                kill(children[job], SIGKILL);
                waitpid(children[job], &status, 0);
                running[job] = false;
                set(report.invariant, sizeof(report.invariant), "hang");
            }
            failed = failed || report.invariant[0] != 0;
        }
        if (campaign.bug == Bug::none && Clock::now() >= next_line) {
            next_line += std::chrono::seconds(5);
            say();
        }
    }
    for (std::uint32_t job = 0; job < campaign.jobs; ++job) {
        if (running[job]) {
            kill(children[job], SIGKILL);
            waitpid(children[job], nullptr, 0);
        }
    }
    const Coverage coverage = sum_of(reports);
    if (campaign.found != nullptr) {
        campaign.found->histories = total();
        for (const auto& report : reports) {
            if ((*report)->invariant[0] != 0) {
                campaign.found->invariant = (*report)->invariant;
            }
        }
        return failed ? 1 : 0;
    }
    say();
    if (campaign.print_coverage) {
        print_coverage(coverage);
    }
    if (!failed) {
        return campaign.complete ? report_missing(coverage) : 0;
    }
    for (const auto& report : reports) {
        if ((*report)->invariant[0] == 0) {
            continue;
        }
        const HistoryOptions found{.seed = (*report)->seed, .steps = campaign.steps, .world = campaign.world};
        fmt::print("\nseed {} fails after {:.1f} s and {} histories: {}\n", found.seed, elapsed(), total(),
                   (*report)->invariant);
        std::fflush(stdout);
        SharedReport shrunk;
        const HistoryOptions least = shrink(found, *shrunk);
        fmt::print("{}see it whole:    {}\n", shrunk->invariant[0] != 0 ? shrunk->text : (*report)->text,
                   replay_command(found));
        fmt::print("the least of it: {}\n", replay_command(least));
        break;
    }
    return 1;
}

int print_digests(const Campaign& campaign) {
    set_log_output(open("/dev/null", O_WRONLY | O_CLOEXEC));
    for (std::uint64_t i = 0; i < campaign.seeds; ++i) {
        World world({.seed = campaign.from + i, .steps = campaign.steps, .world = campaign.world});
        world.run();
        fmt::print("{} {:016x} {}\n", campaign.from + i, world.trace.digest(), world.steps());
    }
    return 0;
}

int prove_that_it_bites(std::uint64_t seeds, std::uint32_t jobs) {
    int missed = 0;
    for (const BugKind& kind : bug_kinds()) {
        Campaign campaign;
        campaign.seeds = seeds;
        campaign.jobs = jobs;
        campaign.world = kind.world;
        campaign.bug = kind.bug;
        Found found;
        const auto began = Clock::now();
        campaign.found = &found;
        const bool bites = run_campaign(campaign) != 0;
        fmt::print("{:18} {} in {:.2f} s, after {} histories of world {}{}{}\n", kind.name,
                   bites ? "found" : "NOT FOUND", std::chrono::duration<double>(Clock::now() - began).count(),
                   found.histories, kind.world, bites ? ": " : "", found.invariant);
        std::fflush(stdout);
        missed += !bites;
    }
    return missed == 0 ? 0 : 1;
}

int print_history(HistoryOptions options) {
    options.print = true;
    set_log_output(STDOUT_FILENO);
    SharedReport report;
    const bool held = run_history(options, *report);
    if (!held) {
        fmt::print("\n{}\n", report->text);
    }
    std::fflush(nullptr);
    // A failed history cannot be destroyed, so no destructors run.
    _exit(held ? 0 : 1);
}

}  // namespace pollcore::sim
