#include "host_sample.hpp"

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>

#include "base/clock.hpp"
#include "device_counters.hpp"
#include "facts.hpp"
#include "network_queries.hpp"
#include "pollcore/error.hpp"
#include "pollperf/round_trip.hpp"
#include "running_workers.hpp"
#include "spin_gap.hpp"

namespace pollcore::doctor {
namespace {

// The time on each CPU if no configuration says which ones matter.
constexpr std::chrono::milliseconds kBriefly{20};
constexpr std::size_t kPairsBriefly = 6;  // those of 4 CPUs
constexpr std::chrono::milliseconds kPairTime{200};

/// Why the core is not measured; empty if it is.
std::string why_not_measured(const Facts& facts, std::uint32_t core, bool disturb) {
    const RunningWorker* const running = facts.running_on(core);
    if (running != nullptr && !disturb) {
        return fmt::format("{} runs there, and would stand still meanwhile; --disturb measures all the same",
                           running->who);
    }
    return "";
}

void ask(Tree& now, const Facts& facts) {
    std::map<std::string, std::string> answers;
    for (const JudgedDevice& device : present_devices(facts)) {
        answers[port_query_file(device.verbs_name, device.port)] = ask_port(device.verbs_name, device.port);
        if (const auto netdev = netdev_of(now, device.verbs_name, device.port)) {
            answers[dcb_query_file(*netdev)] = ask_dcb(*netdev);
        }
    }
    for (auto& [file, answer] : answers) {
        now.put(file, std::move(answer));
    }
}

/// Reads the files that count, so that the tree has them as they are now.
void read_counting_files(Tree& tree, const Facts& facts) {
    std::vector<std::vector<std::string>> of_devices;
    for (const JudgedDevice& device : present_devices(facts)) {
        of_devices.push_back(counter_files(tree, device.verbs_name, device.port));
    }
    for (const std::vector<std::string>& files : of_devices) {
        read_counters(tree, files);
    }
    for (const RunningWorker& running : facts.running()) {
        if (running.thread != 0) {
            (void)tree.read(fmt::format("/proc/{}/task/{}/schedstat", running.pid, running.thread));
        }
    }
    for (const char* const file :
         {"/proc/interrupts", "/proc/softirqs", "/proc/schedstat", "/proc/stat", "/proc/uptime"}) {
        (void)tree.read(file);
    }
}

void spin(Tree& now, const Facts& facts, const SampleOptions& options) {
    std::map<std::uint32_t, std::string> lines;
    std::vector<std::uint32_t> measured;
    for (const std::uint32_t core : facts.core_set()) {
        std::string& its = lines[core];
        if (const std::string why = why_not_measured(facts, core, options.disturb); !why.empty()) {
            its = "not_measured " + why + "\n";
        } else if (facts.config() == nullptr) {
            std::thread([&] { its = spin_on(core, kBriefly); }).join();
        } else {
            measured.push_back(core);
        }
    }
    std::vector<std::jthread> threads;
    for (const std::uint32_t core : measured) {
        threads.emplace_back([&its = lines[core], core, &options] { its = spin_on(core, options.time); });
    }
    threads.clear();  // waits for them
    for (auto& [core, text] : lines) {
        now.put(spin_file(core), std::move(text));
    }
}

std::string round_trip_between(const Facts& facts, std::uint32_t a, std::uint32_t b, bool disturb) {
    for (const std::uint32_t core : {a, b}) {
        if (const std::string why = why_not_measured(facts, core, disturb); !why.empty()) {
            return "not_measured " + why + "\n";
        }
    }
    try {
        const auto trip = perf::measure_round_trip(a, b, kPairTime);
        return trip ? fmt::format("typical_ns {:.1f}\np99_ns {:.1f}\n", trip->typical_ns, trip->p99_ns)
                    : std::string("not_measured other threads kept the CPUs too busy\n");
    } catch (const Error& error) {
        return fmt::format("not_measured this process may not run there: {}\n", error.code().message());
    }
}

void measure_round_trips(Tree& now, const Facts& facts, bool disturb) {
    const auto pairs = round_trip_pairs(facts);
    std::map<std::string, std::string> answers;
    for (const auto& [a, b] : pairs) {
        answers[round_trip_file(a, b)] = facts.config() == nullptr && pairs.size() > kPairsBriefly
                                             ? "not_measured no configuration says which CPUs matter\n"
                                             : round_trip_between(facts, a, b, disturb);
    }
    for (auto& [file, answer] : answers) {
        now.put(file, std::move(answer));
    }
}

}  // namespace

void sample_host(Tree& now, Tree& later, const Config* config, const SampleOptions& options) {
    (void)cycles_per_ns();  // the first call measures the rate, which must not fall into the sample
    now.put(kRunningFile, running_workers(config != nullptr ? config->lock_directory : std::filesystem::path()));
    const Facts facts(now, nullptr, config, {}, {});
    ask(now, facts);
    read_counting_files(now, facts);
    const auto end = std::chrono::steady_clock::now() + options.time;
    spin(now, facts, options);
    std::this_thread::sleep_until(end);
    read_counting_files(later, facts);
    measure_round_trips(now, facts, options.disturb);
}

}  // namespace pollcore::doctor
