#include "pollperf/report/disturbances.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <fstream>
#include <functional>
#include <set>
#include <sstream>
#include <string_view>
#include <utility>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <fmt/format.h>

#include "pollcore/error.hpp"
#include "pollperf/report/intervals.hpp"
#include "pollperf/report/text_report.hpp"

namespace pollcore::perf {
namespace {

namespace fs = std::filesystem;

// The first line of a file, or nothing.
std::string first_line(const fs::path& file) {
    std::ifstream in(file);
    std::string line;
    std::getline(in, line);
    return line;
}

// The governor of all CPUs; several governors are separated by commas.
std::string governors(const fs::path& sys) {
    std::set<std::string> all;
    std::error_code error;
    for (fs::directory_iterator cpu(sys / "devices/system/cpu", error), end; !error && cpu != end;
         cpu.increment(error)) {
        if (const std::string one = first_line(cpu->path() / "cpufreq/scaling_governor"); !one.empty()) {
            all.insert(one);
        }
    }
    return fmt::format("{}", fmt::join(all, ", "));
}

// The hypervisor that this machine runs on, as the CPU or the firmware names it.
std::string hypervisor(const fs::path& sys) {
    if (const std::string type = first_line(sys / "hypervisor/type"); !type.empty()) {
        return type;
    }
#if defined(__x86_64__)
    constexpr unsigned kHypervisorBit = 1u << 31;
    unsigned a = 0, b = 0, c = 0, d = 0;
    if (__get_cpuid(1, &a, &b, &c, &d) == 0 || (c & kHypervisorBit) == 0) {
        return "";
    }
    __cpuid(0x40000000, a, b, c, d);
    std::array<char, 13> signature{};
    for (std::size_t i = 0; const unsigned word : {b, c, d}) {
        std::memcpy(&signature[4 * i++], &word, 4);
    }
    for (const auto& [sign, name] :
         {std::pair{"KVMKVMKVM", "KVM"}, std::pair{"Microsoft Hv", "Hyper-V"}, std::pair{"VMwareVMware", "VMware"},
          std::pair{"XenVMMXenVMM", "Xen"}, std::pair{"TCGTCGTCGTCG", "QEMU without KVM"},
          std::pair{"bhyve bhyve ", "bhyve"}}) {
        if (std::string_view(signature.data()) == sign) {
            return name;
        }
    }
    return "unknown";
#else
    const std::string vendor = first_line(sys / "class/dmi/id/sys_vendor");
    for (const std::string_view known : {"QEMU", "Amazon EC2", "VMware, Inc.", "Microsoft Corporation", "Google"}) {
        if (vendor == known) {
            return vendor;
        }
    }
    return "";
#endif
}

// ---- Warnings ----

/// One kind of trouble: the worst measurement that has it, and how many have it.
class Trouble {
public:
    void add(double badness, const std::function<std::string()>& sentence) {
        ++count_;
        if (count_ == 1 || badness > worst_) {
            worst_ = badness;
            sentence_ = sentence();
        }
    }
    void tell(std::vector<std::string>& sentences) const {
        if (count_ == 0) {
            return;
        }
        sentences.push_back(count_ == 1 ? sentence_
                                        : fmt::format("{} (and {} other measurement{}, to a lesser degree)", sentence_,
                                                      count_ - 1, count_ == 2 ? "" : "s"));
    }

private:
    std::size_t count_ = 0;
    double worst_ = 0;
    std::string sentence_;
};

double percent(double share) {
    return 100 * share;
}

void warn_of_governor(std::vector<std::string>& sentences, const HostFacts& host) {
    if (!host.governor.empty() && host.governor != "performance") {
        sentences.push_back(fmt::format(
            "the CPUs of {} have the frequency governor {}: with another than performance their speed depends "
            "on what ran before",
            host.name.empty() ? "this host" : host.name, host.governor));
    }
}

// The share of the timed part that the samples add up to, if they can be expected to add up to all of it: one operation
// is in flight at a time, and each is a sample.
std::optional<double> covered_share(const Measurement& one) {
    if (one.test != Test::lat || one.offered_per_s > 0 || one.threads != 1 || one.queue_pairs != 1 ||
        one.bidirectional || one.verified || one.latency.count() != one.operations || one.operations == 0 ||
        one.seconds <= 0) {
        return std::nullopt;
    }
    return one.latency.sum() * one.ns_per_unit * (one.half_round_trip ? 2 : 1) / (one.seconds * 1e9);
}

}  // namespace

HostFacts host_facts(const fs::path& root) {
    HostFacts facts;
    std::array<char, 256> name{};
    if (::gethostname(name.data(), name.size() - 1) == 0) {
        facts.name = name.data();
    }
    facts.machine = this_machine();
    const fs::path sys = root / "sys";
    facts.governor = governors(sys);
    facts.hypervisor = hypervisor(sys);
    facts.isolated_cpus = first_line(sys / "devices/system/cpu/isolated");
    facts.clock = first_line(sys / "devices/system/clocksource/clocksource0/current_clocksource");
    return facts;
}

NoiseWatch::NoiseWatch(std::vector<int> threads, std::vector<std::uint32_t> cpus, std::optional<int> worker,
                       fs::path root)
    : threads_(std::move(threads)), cpus_(std::move(cpus)), worker_(worker), root_(std::move(root)) {}

NoiseWatch::Counts NoiseWatch::read(int thread) const {
    Counts counts;
    try {
        counts.switches = context_switches(thread);
    } catch (const Error&) {
        // The thread has ended.
    }
    const fs::path task = root_ / "proc/self/task" / fmt::to_string(thread);
    // A kernel without CONFIG_SCHED_DEBUG has no file `sched`.
    std::ifstream sched(task / "sched");
    for (std::string line; !counts.migrations && std::getline(sched, line);) {
        const std::size_t colon = line.find(':');
        if (line.starts_with("se.nr_migrations") && colon != std::string::npos) {
            std::uint64_t migrations = 0;
            if (std::istringstream(line.substr(colon + 1)) >> migrations) {
                counts.migrations = migrations;
            }
        }
    }
    // In `stat`, field 2 is the name in parentheses, which may contain spaces and parentheses. The CPU is field 39.
    const std::string stat = first_line(task / "stat");
    const std::size_t name_end = stat.rfind(')');
    if (name_end != std::string::npos) {
        std::istringstream fields(stat.substr(name_end + 1));
        std::string skipped;
        for (int field = 3; field < 39; ++field) {
            fields >> skipped;
        }
        if (int cpu = 0; fields >> cpu) {
            counts.cpu = cpu;
        }
    }
    return counts;
}

void NoiseWatch::add_frequencies(Disturbance& disturbance) const {
    for (const std::uint32_t cpu : cpus_) {
        std::ifstream file(root_ / fmt::format("sys/devices/system/cpu/cpu{}/cpufreq/scaling_cur_freq", cpu));
        double khz = 0;
        if (!(file >> khz) || khz <= 0) {
            continue;
        }
        const double mhz = khz / 1e3;
        if (disturbance.frequency_low_mhz <= 0 || mhz < disturbance.frequency_low_mhz) {
            disturbance.frequency_low_mhz = mhz;
        }
        disturbance.frequency_high_mhz = std::max(disturbance.frequency_high_mhz, mhz);
    }
}

void NoiseWatch::begin() {
    at_begin_ = {};
    add_frequencies(at_begin_);
    counts_.clear();
    for (const int thread : threads_) {
        counts_.push_back(read(thread));
    }
    worker_counts_ = worker_ ? read(*worker_) : Counts{};
    steal_ms_ = steal_ms();
}

Disturbance NoiseWatch::end() {
    const std::uint64_t steal_now = steal_ms();
    Disturbance disturbance = at_begin_;
    disturbance.steal_ms = steal_now > steal_ms_ ? steal_now - steal_ms_ : 0;
    for (std::size_t i = 0; i < counts_.size(); ++i) {
        const Counts& before = counts_[i];
        const Counts after = read(threads_[i]);
        if (before.switches && after.switches) {
            disturbance.application += *after.switches - *before.switches;
        }
        if (before.migrations && after.migrations) {
            disturbance.migrations += *after.migrations - *before.migrations;
        } else if (before.cpu && after.cpu) {
            disturbance.migrations +=
                *before.cpu != *after.cpu;  // all that is known: a thread that came back is missed
        }
    }
    if (worker_ && worker_counts_.switches) {
        if (const Counts after = read(*worker_); after.switches) {
            disturbance.worker = *after.switches - *worker_counts_.switches;
        }
    }
    add_frequencies(disturbance);
    return disturbance;
}

std::vector<std::string> noise_warnings(const Results& results) {
    Trouble stolen, migrated, frequency, switched, worker_switched, spread, few, late, uncovered;
    for (const Measurement& one : results.measurements) {
        const Disturbance noise = one.disturbance();
        const double steal = one.seconds > 0 ? static_cast<double>(noise.steal_ms) / 1e3 / one.seconds : 0;
        if (steal > kStealMost) {
            stolen.add(steal, [&] {
                return fmt::format(
                    "{}: the hypervisor gave {} ms to other machines, {:.1f} % of the measurement's time", label(one),
                    noise.steal_ms, percent(steal));
            });
        }
        if (noise.migrations != 0) {
            migrated.add(static_cast<double>(noise.migrations), [&] {
                return fmt::format("{}: the measuring threads migrated to another CPU {} time{}", label(one),
                                   noise.migrations, noise.migrations == 1 ? "" : "s");
            });
        }
        const double low = noise.frequency_low_mhz, high = noise.frequency_high_mhz;
        if (high > 0 && (high - low) / high > kFrequencySpreadMost) {
            frequency.add((high - low) / high, [&] {
                return fmt::format(
                    "{}: the frequency of the measuring CPUs was {:.0f} to {:.0f} MHz, a spread of {:.0f} %",
                    label(one), low, high, percent((high - low) / high));
            });
        }
        const auto often = [&](Trouble& trouble, const char* whose, const ContextSwitches& taken,
                               std::uint32_t threads) {
            const double per_second =
                one.seconds > 0 ? static_cast<double>(taken.involuntary) / one.seconds / std::max(threads, 1u) : 0;
            if (taken.involuntary >= kInvoluntaryLeast && per_second > kInvoluntaryPerSecondMost) {
                trouble.add(per_second, [&] {
                    return fmt::format(
                        "{}: the kernel took {} off its CPU {:.0f} times a second (involuntary context "
                        "switches: {})",
                        label(one), whose, per_second, taken.involuntary);
                });
            }
        };
        // A thread that yields is taken off its CPU because it asks for it.
        if (!one.yields) {
            often(switched, one.threads > 1 ? "each measuring thread" : "the measuring thread", noise.application,
                  one.threads);
            if (noise.worker) {
                often(worker_switched, "the worker", *noise.worker, 1);
            }
        }
        const std::vector<double> rounds = round_values(one);
        if (rounds.size() >= kRoundsForSpread) {
            const double median = quantile(rounds, 0.5);
            const double range = quantile(rounds, 0.75) - quantile(rounds, 0.25);
            if (median > 0 && range / median > kRoundSpreadMost) {
                spread.add(range / median, [&] {
                    return fmt::format("{}: the rounds differ: the interquartile range of {} is {:.0f} % of the median",
                                       label(one), figure_name(main_figure(one)), percent(range / median));
                });
            }
        }
        if (one.latency.count() != 0 && one.latency.count() < kSamplesForP999) {
            few.add(1 / static_cast<double>(one.latency.count()), [&] {
                return fmt::format(
                    "{}: {} samples are too few for a 99.9 % percentile, which takes {}: it is the greatest "
                    "sample",
                    label(one), one.latency.count(), kSamplesForP999);
            });
        }
        const double late_share =
            one.operations != 0 ? static_cast<double>(one.posted_late) / static_cast<double>(one.operations) : 0;
        if (one.offered_per_s > 0 && late_share > kPostedLateMost) {
            late.add(late_share, [&] {
                return fmt::format(
                    "{}: the offered rate of {:.0f} per second was not kept: {:.1f} % of the requests were "
                    "posted more than an interval late, and {:.0f} per second completed",
                    label(one), one.offered_per_s, percent(late_share), one.operations_per_s());
            });
        }
        if (const auto share = covered_share(one)) {
            // With verification, the checks take time between the samples. A short run consists mostly of its beginning
            // and end.
            const bool all_of_it = !results.verified && one.seconds > 0.005;
            if (*share > 1.01 || (all_of_it && *share < 0.97)) {
                uncovered.add(std::max(*share, 1 / *share), [&] {
                    return fmt::format("{}: the samples add up to {:.1f} % of the time that passed; do not trust them",
                                       label(one), percent(*share));
                });
            }
        }
    }
    std::vector<std::string> sentences;
    for (const Trouble* trouble :
         {&uncovered, &stolen, &migrated, &frequency, &switched, &worker_switched, &spread, &late, &few}) {
        trouble->tell(sentences);
    }
    warn_of_governor(sentences, results.host);
    if (results.peer_host) {
        warn_of_governor(sentences, *results.peer_host);
    }
    return sentences;
}

}  // namespace pollcore::perf
