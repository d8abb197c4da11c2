// The cost of an operation, for the worker and for the application, in cycles of the time stamp counter, on one CPU.
#include <memory>
#include <string>

#include "bench.hpp"
#include "hardware_counters.hpp"
#include "stepped_load.hpp"
#include "timed.hpp"

namespace pollcore::bench {
namespace {

std::vector<double> worker_cycles(SteppedLoad& load) {
    const auto parts = timed<5>(
        load.load().burst, [&] { load.prepare(); }, [&] { load.submit(); }, [&] { load.step(); }, [&] { load.poll(); },
        [&] { load.check(); });
    return {parts[2], parts[1] + parts[3]};
}

Measurement row(std::string name, const Load& load) {
    return {.table = "cycles per operation on one CPU, by load",
            .row = std::move(name),
            .columns = {"worker", "application: submit and poll"},
            .once = [made = std::shared_ptr<SteppedLoad>(), load]() mutable {
                if (made == nullptr) {
                    made = std::make_shared<SteppedLoad>(load);
                }
                return worker_cycles(*made);
            }};
}

/// Measures ibv_poll_cq or ibv_start_poll, on a device that has both. The figures are in device/poll_choice.hpp.
Measurement way_to_poll(std::uint32_t burst, bool extended) {
    return {.table = "cycles on one CPU by the verbs that poll, on the software device, its part included",
            .row = "bursts of " + std::to_string(burst) + (extended ? ", ibv_start_poll" : ", ibv_poll_cq"),
            .columns = {"worker, per operation", "worker's step that finds nothing"},
            .once = [made = std::shared_ptr<SteppedLoad>(), burst, extended]() mutable {
                if (made == nullptr) {
                    made = std::make_shared<SteppedLoad>(Load{.burst = burst, .software = true, .extended = extended});
                }
                SteppedLoad& load = *made;
                // timed together, because a single look is too short for the time stamp counter
                constexpr int kLooks = 64;
                const auto parts = timed<6>(
                    burst, [&] { load.prepare(); }, [&] { load.submit(); }, [&] { load.step(); },
                    [&] {
                        for (int i = 0; i < kLooks; ++i) {
                            load.step();
                        }
                    },
                    [&] { load.poll(); }, [&] { load.check(); });
                return std::vector{parts[2], parts[3] * burst / kLooks};
            }};
}

/// Measures the parts of an operation. In the first of two steps the worker only posts, and in the second it only
/// polls. Each of the two steps also looks at the queues of the other part, and finds nothing there.
Measurement stages() {
    return {.table = "cycles per operation on one CPU, by stage (bursts of 32, four idle sessions, two idle CQs)",
            .row = "pollcore",
            .columns = {"application: submit", "worker: take and post", "worker: poll, route, complete",
                        "application: poll", "device: post", "device: poll"},
            .once = [made = std::shared_ptr<SteppedLoad>()]() mutable {
                if (made == nullptr) {
                    made = std::make_shared<SteppedLoad>(Load{.idle_sessions = 4, .idle_cqs = 2});
                }
                SteppedLoad& load = *made;
                const auto ours = timed<6>(
                    load.load().burst, [&] { load.prepare(); }, [&] { load.submit(); },
                    [&] {
                        completions_held = true;
                        load.step();
                        completions_held = false;
                    },
                    [&] { load.step(); }, [&] { load.poll(); }, [&] { load.check(); });
                std::vector<double> all(ours.begin() + 1, ours.end() - 1);
                InstantTarget target;
                DirectLoad direct(load.load().burst, target.get());
                const auto device = timed<2>(
                    load.load().burst, [&] { direct.post(); }, [&] { direct.poll(); });
                all.insert(all.end(), device.begin(), device.end());
                return all;
            }};
}

constexpr const char* kApplication =
    "what the application's thread pays on one CPU, cycles per operation (bursts of 32)";

std::vector<Measurement> application_costs() {
    constexpr std::uint32_t kBurst = 32;
    const std::vector<std::string> columns{"submit, or make and post", "poll", "both"};
    std::vector<Measurement> all;
    all.push_back({.table = kApplication,
                   .row = "pollcore",
                   .columns = columns,
                   .once = [made = std::shared_ptr<SteppedLoad>()]() mutable {
                       if (made == nullptr) {
                           made = std::make_shared<SteppedLoad>(Load{.burst = kBurst});
                       }
                       SteppedLoad& load = *made;
                       const auto cycles = timed<5>(
                           kBurst, [&] { load.prepare(); }, [&] { load.submit(); }, [&] { load.step(); },
                           [&] { load.poll(); }, [&] { load.check(); });
                       return std::vector{cycles[1], cycles[3], cycles[1] + cycles[3]};
                   }});
    const auto verbs = [](auto&& target) {
        DirectLoad direct(kBurst, target.get());
        const auto cycles = timed<2>(
            kBurst,
            [&] {
                direct.make();
                direct.post();
            },
            [&] { direct.poll(); });
        return std::vector{cycles[0], cycles[1], cycles[0] + cycles[1]};
    };
    all.push_back(
        {.table = kApplication, .row = "verbs, the device's part included", .columns = columns, .once = [verbs] {
             return verbs(InstantTarget());
         }});
    all.push_back({.table = kApplication,
                   .row = "verbs on the software device, its part included",
                   .columns = columns,
                   .once = [verbs] { return verbs(SoftwareTarget()); }});
    return all;
}

/// Returns instructions and cache misses per operation: the worker's, then the application's.
std::vector<double> counted(SteppedLoad& load, const HardwareCounters& counters) {
    using Reading = HardwareCounters::Reading;
    const auto part = [&](Reading& sum, auto what) {
        const Reading before = counters.read();
        what();
        const Reading after = counters.read();
        sum.instructions += after.instructions - before.instructions;
        sum.cache_misses += after.cache_misses - before.cache_misses;
    };
    Reading nothing;
    Reading application;
    Reading worker;
    for (std::size_t round = 0; round < kRounds; ++round) {
        load.prepare();
        part(nothing, [] {});
        part(application, [&] { load.submit(); });
        part(worker, [&] { load.step(); });
        part(application, [&] { load.poll(); });
        load.check();
    }
    const auto operations = static_cast<double>(kRounds * load.load().burst);
    return {(worker.instructions - nothing.instructions) / operations,
            (worker.cache_misses - nothing.cache_misses) / operations,
            (application.instructions - 2 * nothing.instructions) / operations,
            (application.cache_misses - 2 * nothing.cache_misses) / operations};
}

Measurement counted(std::string name, const Load& load) {
    return {.table = "counted by the CPU, per operation, bursts of 32",
            .row = std::move(name),
            .columns = {"worker: instructions", "worker: cache misses", "application: instructions",
                        "application: cache misses"},
            .once = [made = std::shared_ptr<SteppedLoad>(), counters = std::make_shared<HardwareCounters>(),
                     load]() mutable {
                if (made == nullptr) {
                    made = std::make_shared<SteppedLoad>(load);
                }
                return counted(*made, *counters);
            }};
}

}  // namespace

std::vector<Measurement> worker_costs(const Setting&) {
    std::vector<Measurement> all;
    all.push_back(stages());
    for (Measurement& one : application_costs()) {
        all.push_back(std::move(one));
    }
    if (HardwareCounters().available()) {
        all.push_back(counted("one QP", {}));
        all.push_back(counted("1024 QPs at random", {.qps = 1024}));
        all.push_back(counted("64 sessions by turns", {.sessions = 64}));
    }
    all.push_back(row("bursts of 32, four idle sessions, two idle CQs", {.idle_sessions = 4, .idle_cqs = 2}));
    for (const std::uint32_t burst : {1, 2, 4, 8, 16, 32, 64}) {
        all.push_back(row("bursts of " + std::to_string(burst), {.burst = burst}));
    }
    for (const std::uint32_t burst : {1, 4, 32}) {
        for (const bool extended : {false, true}) {
            all.push_back(way_to_poll(burst, extended));
        }
    }
    for (const std::uint32_t qps : {4, 16, 64, 256, 1024}) {
        all.push_back(row(std::to_string(qps) + " QPs at random", {.qps = qps}));
    }
    for (const std::uint32_t sessions : {4, 16, 64}) {
        all.push_back(row(std::to_string(sessions) + " sessions by turns", {.sessions = sessions}));
    }
    for (const std::uint32_t cqs : {4, 16}) {
        all.push_back(
            row(std::to_string(cqs) + " QPs at random on " + std::to_string(cqs) + " CQs", {.qps = cqs, .cqs = cqs}));
    }
    return all;
}

}  // namespace pollcore::bench
