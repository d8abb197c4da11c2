// The cost of the provider's part of an operation (see provider.hpp), in cycles of the time stamp counter. It is
// measured alone, under a worker, and on the threads of an application without pollcore.
#include "provider_costs.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>

#include "apps/pollperf/threads.hpp"
#include "board.hpp"
#include "provider_load.hpp"
#include "stepped_load.hpp"
#include "timed.hpp"

namespace pollcore::bench {
namespace {

constexpr std::uint32_t kBursts[] = {1, 4, 16, 32};
constexpr std::uint32_t kQps[] = {16, 64, 256, 1024};
constexpr double kModelWithin = 0.10;
constexpr double kNotMeasured = std::numeric_limits<double>::quiet_NaN();

constexpr const char* kAlone = "provider alone, cycles per operation: ";
constexpr const char* kWorkerAlone = "worker on a device that completes at once, cycles per operation on one CPU";
constexpr const char* kUnderWorker = "worker with its provider, cycles per operation on one CPU: ";
constexpr const char* kWithInstant = "worker and device";
constexpr const char* kInstantAlone = "device alone";
constexpr const char* kByPollCq = ", ibv_poll_cq";
constexpr const char* kByStartPoll = ", ibv_start_poll";
constexpr const char* kNotBefore = ", nothing of the provider's fetched before";

std::string bursts_of(std::uint32_t burst) {
    return "bursts of " + std::to_string(burst);
}
std::string chains_of(std::uint32_t chain) {
    return "chains of " + std::to_string(chain);
}
std::string qps_at_random(std::uint32_t qps) {
    return std::to_string(qps) + " QPs at random";
}

constexpr Way kWays[] = {{false, false}, {true, false}, {false, true}, {true, true}};
/// A worker makes and polls its objects in this way.
constexpr Way kOfWorker{true, false};

std::vector<double> bare_cycles(BareLoad& load, std::uint32_t burst) {
    constexpr int kLooks = 64;  // timed together, because a single look is too short for the time stamp counter
    const auto cycles = timed<5>(
        burst, [&] { load.prepare(); }, [&] { load.post(); }, [&] { load.settle(); }, [&] { load.poll(); },
        [&] {
            for (int i = 0; i < kLooks; ++i) {
                load.look();
            }
        });
    return {cycles[1], cycles[3], cycles[1] + cycles[3], cycles[4] * burst / kLooks};
}

std::vector<Measurement> alone(const std::shared_ptr<const Provider>& provider) {
    std::vector<Measurement> all;
    const auto add = [&](const Way& way, const std::string& what, const Shape& shape) {
        all.push_back({.table = kAlone + provider->name(),
                       .row = way.name() + ": " + what,
                       .columns = {"post", "poll", "both", "look at an empty CQ"},
                       .once = [made = std::shared_ptr<BareLoad>(), provider, way, shape]() mutable {
                           if (made == nullptr) {
                               made = std::make_shared<BareLoad>(provider, way, shape);
                           }
                           return bare_cycles(*made, shape.burst);
                       }});
    };
    for (const Way& way : kWays) {
        for (const std::uint32_t chain : {32, 16, 8, 4, 2, 1}) {
            add(way, chains_of(chain), {.burst = chain});
        }
        add(way, "chains of 32, one signaled", {.signaled = kBurst});
        add(way, "chains of 32, 16 bytes inline", {.inline_bytes = 16});
        add(way, "chains of 32, 64 bytes inline", {.inline_bytes = 64});
        for (const std::uint32_t qps : kQps) {
            add(way, qps_at_random(qps) + ", a chain for each", {.qps = qps});
        }
    }
    return all;
}

// ---- Under a worker ----

std::vector<double> worker_cycles(SteppedLoad& load) {
    const auto parts = timed<6>(
        load.load().burst, [&] { load.prepare(); }, [&] { load.submit(); }, [&] { load.step(); }, [&] { load.poll(); },
        [&] { load.check(); }, [&] { load.settle(); });
    return {parts[2], parts[1] + parts[3]};
}

std::vector<Measurement> under_a_worker(const std::shared_ptr<const Provider>& provider) {
    std::vector<Measurement> all;
    const auto add = [&](const std::string& what, Load load) {
        load.provider = provider;
        all.push_back({.table = kUnderWorker + provider->name(),
                       .row = what + (load.extended ? kByStartPoll : kByPollCq),
                       .columns = {"worker", "application: submit and poll"},
                       .once = [made = std::shared_ptr<SteppedLoad>(), load]() mutable {
                           if (made == nullptr) {
                               made = std::make_shared<SteppedLoad>(load);
                           }
                           return worker_cycles(*made);
                       }});
    };
    for (const bool extended : {false, true}) {
        for (const std::uint32_t burst : kBursts) {
            add(bursts_of(burst), {.burst = burst, .extended = extended});
        }
        add("bursts of 32, coalesced signals", {.extended = extended, .coalesce_signals = true});
        add("bursts of 32, four idle sessions, two idle CQs",
            {.idle_sessions = 4, .idle_cqs = 2, .extended = extended});
        for (const std::uint32_t qps : kQps) {
            add(qps_at_random(qps), {.qps = qps, .extended = extended});
            add(qps_at_random(qps) + kNotBefore, {.qps = qps, .extended = extended, .provider_lines = false});
        }
    }
    return all;
}

// ---- Own CQs ----

// An attached process with own memory has a CQ of its own on each worker that serves it.
std::vector<Measurement> own_cqs(const std::shared_ptr<const Provider>& provider) {
    std::vector<Measurement> all;
    const auto add = [&](const std::string& what, Load load) {
        load.provider = provider;
        all.push_back({.table = "CQs of attached processes' own, cycles on one CPU: " + provider->name(),
                       .row = what,
                       .columns = {"worker, per operation in bursts of 32", "worker's step that finds nothing"},
                       .once = [made = std::shared_ptr<SteppedLoad>(), load]() mutable {
                           if (made == nullptr) {
                               made = std::make_shared<SteppedLoad>(load);
                           }
                           constexpr int kSteps = 64;  // a single step is too short for the time stamp counter
                           SteppedLoad& its = *made;
                           const auto parts = timed<6>(
                               load.burst, [&] { its.prepare(); }, [&] { its.submit(); }, [&] { its.step(); },
                               [&] {
                                   its.poll();
                                   its.check();
                               },
                               [&] {
                                   for (int i = 0; i < kSteps; ++i) {
                                       its.step();
                                   }
                               },
                               [&] { its.settle(); });
                           return std::vector{parts[2], parts[4] * load.burst / kSteps};
                       }});
    };
    add("the daemon's CQ alone", {});
    add("traffic on a CQ of a process's own", {.shared_cqs = true});
    for (const std::uint32_t idle : {1u, 8u, 64u}) {
        add("further CQs, idle: " + std::to_string(idle), {.idle_cqs = idle});
    }
    return all;
}

// ---- On the application's own threads ----

std::vector<double> pollcore_cycles(SteppedLoad& load) {
    const auto parts = timed<6>(
        kBurst, [&] { load.prepare(); }, [&] { load.submit(); }, [&] { load.step(); }, [&] { load.poll(); },
        [&] { load.check(); }, [&] { load.settle(); });
    return {parts[1], parts[3], parts[1] + parts[3]};
}

std::vector<double> own_thread_cycles(const Bare& bare) {
    DirectLoad load(kBurst, bare.target());
    ibv_qp* const used[] = {bare.qp(0)};
    const auto parts = timed<3>(
        kBurst,
        [&] {
            load.make();
            load.post();
        },
        [&] { bare.provider().settle(used); }, [&] { load.poll(); });
    return {parts[0], parts[2], parts[0] + parts[2]};
}

/// A barrier that spins, because a thread that has slept would find cold caches.
class Together {
public:
    explicit Together(std::uint32_t threads) : threads_(threads) {}
    void wait() noexcept {
        const std::uint32_t turn = turn_.load(std::memory_order_acquire);
        if (waiting_.fetch_add(1, std::memory_order_acq_rel) + 1 == threads_) {
            waiting_.store(0, std::memory_order_relaxed);
            turn_.store(turn + 1, std::memory_order_release);
            return;
        }
        while (turn_.load(std::memory_order_acquire) == turn) {
        }
    }

private:
    const std::uint32_t threads_;
    alignas(64) std::atomic<std::uint32_t> waiting_{0};
    alignas(64) std::atomic<std::uint32_t> turn_{0};
};

/// Measures threads that post to one queue pair and poll one CQ, under the provider's locks. Each thread runs on its
/// own CPU, posts its own requests, and polls until the requests of all threads have completed.
std::vector<double> shared_cycles(const Bare& bare, const std::vector<std::uint32_t>& cpus) {
    const auto threads = static_cast<std::uint32_t>(cpus.size());
    constexpr int kRoundsOfThreads = 600;
    constexpr int kWarmUp = 100;
    Together together(threads);
    alignas(64) std::atomic<std::uint32_t> left{0};
    std::vector<std::vector<double>> posts(cpus.size());
    std::vector<std::vector<double>> polls(cpus.size());
    const double nothing = stamp_cost();
    const auto work = [&](std::size_t index) {
        pin(cpus[index]);
        DirectLoad load(kBurst, bare.target(static_cast<std::uint32_t>(index)));
        std::array<ibv_wc, kBurst> completions;
        ibv_qp* const used[] = {bare.qp(0)};
        for (int round = 0; round < kWarmUp + kRoundsOfThreads; ++round) {
            if (index == 0) {
                left.store(threads * kBurst);
            }
            together.wait();
            const std::uint64_t before_post = perf::stamp();
            load.make();
            load.post();
            const std::uint64_t after_post = perf::stamp();
            together.wait();
            if (index == 0) {
                bare.provider().settle(used);
            }
            together.wait();
            const std::uint64_t before_poll = perf::stamp();
            while (left.load(std::memory_order_relaxed) > 0) {
                const int n = bare.poll(kBurst, completions.data());
                left.fetch_sub(static_cast<std::uint32_t>(n), std::memory_order_relaxed);
            }
            const std::uint64_t after_poll = perf::stamp();
            if (round >= kWarmUp) {
                posts[index].push_back((static_cast<double>(after_post - before_post) - nothing) / kBurst);
                // A thread that polls while another thread holds the lock spends time, too. So the time of all threads
                // is divided by the completions of all threads.
                polls[index].push_back((static_cast<double>(after_poll - before_poll) - nothing) / kBurst);
            }
            together.wait();  // after this, nobody reads `left` until the next round
        }
    };
    std::vector<std::thread> others;
    for (std::size_t i = 1; i < cpus.size(); ++i) {
        others.emplace_back(work, i);
    }
    work(0);
    for (std::thread& other : others) {
        other.join();
    }
    double post = 0;
    double poll = 0;
    for (std::size_t i = 0; i < cpus.size(); ++i) {
        post += middle(posts[i]) / static_cast<double>(cpus.size());
        poll += middle(polls[i]) / static_cast<double>(cpus.size());
    }
    return {post, poll, post + poll};
}

std::vector<Measurement> on_own_threads(const std::shared_ptr<const Provider>& provider, const Cpus& cpus_of_pair) {
    std::vector<Measurement> all;
    const auto add = [&](std::string row, std::function<std::vector<double>()> once) {
        all.push_back(
            {.table = "what an application's thread pays, cycles per operation in bursts of 32: " + provider->name(),
             .row = std::move(row),
             .columns = {"submit, or make and post", "poll", "both"},
             .once = std::move(once)});
    };
    add("pollcore: a session, the worker does the rest", [made = std::shared_ptr<SteppedLoad>(), provider]() mutable {
        if (made == nullptr) {
            made = std::make_shared<SteppedLoad>(Load{.burst = kBurst, .provider = provider});
        }
        return pollcore_cycles(*made);
    });
    const auto bare = [provider](const Way& way) { return std::make_unique<Bare>(provider, way, 1); };
    add("verbs: a queue pair of its own", [made = std::shared_ptr<Bare>(), bare]() mutable {
        if (made == nullptr) {
            made = bare({});
        }
        return own_thread_cycles(*made);
    });
    const std::uint32_t online = perf::this_machine().cpus_online;
    for (const std::uint32_t threads : {2u, 4u, 8u}) {
        std::vector<std::uint32_t> cpus{cpus_of_pair.here, cpus_of_pair.there};
        for (std::uint32_t cpu = 0; cpus.size() < threads && cpu < online; ++cpu) {
            if (cpu != cpus_of_pair.here && cpu != cpus_of_pair.there) {
                cpus.push_back(cpu);
            }
        }
        add("verbs: " + std::to_string(threads) + " threads share a queue pair by its lock",
            [made = std::shared_ptr<Bare>(), bare, cpus, threads]() mutable {
                if (cpus.size() < threads) {
                    return std::vector<double>(3, kNotMeasured);
                }
                if (made == nullptr) {
                    made = bare({});
                }
                return shared_cycles(*made, cpus);
            });
    }
    return all;
}

// Measures a worker on the device that completes at once, and that device alone. provider_goals() checks the model of
// costs in runtime/COSTS.md for these loads.
std::vector<Measurement> without_provider() {
    std::vector<Measurement> all;
    const auto add = [&](std::string row, const Load& load) {
        all.push_back(
            {.table = kWorkerAlone,
             .row = std::move(row),
             .columns = {kWithInstant, kInstantAlone},
             .once = [made = std::shared_ptr<SteppedLoad>(), bare = std::shared_ptr<BareLoad>(), load]() mutable {
                 if (made == nullptr) {
                     made = std::make_shared<SteppedLoad>(load);
                     bare = std::make_shared<BareLoad>(std::make_shared<const Provider>(Provider::instant()), Way{},
                                                       Shape{.burst = load.burst, .qps = load.qps});
                 }
                 const auto parts = timed<5>(
                     load.burst, [&] { made->prepare(); }, [&] { made->submit(); }, [&] { made->step(); },
                     [&] { made->poll(); }, [&] { made->check(); });
                 return std::vector{parts[2], bare_cycles(*bare, load.burst)[2]};
             }});
    };
    for (const std::uint32_t burst : kBursts) {
        add(bursts_of(burst), {.burst = burst});
    }
    for (const std::uint32_t qps : kQps) {
        add(qps_at_random(qps), {.qps = qps});
    }
    return all;
}

}  // namespace

std::vector<Measurement> provider_costs(const std::string& device, const Cpus& cpus) {
    const auto provider = std::make_shared<const Provider>(device);
    std::vector<Measurement> all = alone(provider);
    for (auto& more :
         {without_provider(), under_a_worker(provider), own_cqs(provider), on_own_threads(provider, cpus)}) {
        all.insert(all.end(), more.begin(), more.end());
    }
    return all;
}

std::vector<Goal> provider_goals(const std::vector<Measured>& all) {
    const Board board(all, {});
    const auto samples = [&](std::string_view table, const std::string& row, std::string_view column) {
        Samples found = board.samples(table, row, column);
        return !found.empty() ? found : throw std::logic_error("no row " + row);
    };
    std::vector<Goal> goals;
    const auto check = [&](const std::string& load, const std::string& how, const std::string& provider_row) {
        const Samples worker = samples(kWorkerAlone, load, kWithInstant);
        const Samples instant = samples(kWorkerAlone, load, kInstantAlone);
        const Samples provider = samples(kAlone, provider_row, "both");
        const Samples measured = samples(kUnderWorker, load + how + kByPollCq, "worker");
        std::vector<double> ratios;
        for (std::size_t i = 0; i < measured.size(); ++i) {
            ratios.push_back(measured[i] / (worker[i] - instant[i] + provider[i]));
        }
        const std::vector<std::string> tables{kWorkerAlone, kAlone, kUnderWorker};
        goals.push_back({"worker with its provider, " + load + " / model of costs, at least", true, 1 - kModelWithin,
                         ratios, tables});
        goals.push_back({"worker with its provider, " + load + " / model of costs, at most", false, 1 + kModelWithin,
                         ratios, tables});
    };
    const std::string way = kOfWorker.name();
    // Bursts of fewer than 16 are left out: their parts do not add up, because the beginning and the end of a burst
    // overlap differently in a worker.
    for (const std::uint32_t burst : {16, 32}) {
        check(bursts_of(burst), "", way + ": " + chains_of(burst));
    }
    for (const std::uint32_t qps : kQps) {
        check(qps_at_random(qps), kNotBefore, way + ": " + qps_at_random(qps) + ", a chain for each");
    }
    const auto at_most = [&](const std::string& load, double cycles) {
        goals.push_back({"worker with its provider, " + load + ", cycles",
                         false,
                         cycles,
                         samples(kUnderWorker, load + kByPollCq, "worker"),
                         {kUnderWorker}});
    };
    at_most(bursts_of(kBurst), 95);
    at_most(qps_at_random(16), 155);
    at_most(qps_at_random(256), 300);
    at_most(qps_at_random(1024), 340);
    at_most("bursts of 32, coalesced signals", 60);
    for (const std::uint32_t qps : {256, 1024}) {
        const Samples before = samples(kUnderWorker, qps_at_random(qps) + kByPollCq, "worker");
        const Samples not_before = samples(kUnderWorker, qps_at_random(qps) + kNotBefore + kByPollCq, "worker");
        std::vector<double> ratios;
        for (std::size_t i = 0; i < before.size(); ++i) {
            ratios.push_back(before[i] / not_before[i]);
        }
        goals.push_back({"worker with its provider, " + qps_at_random(qps) + ": its lines fetched before / not",
                         false,
                         0.85,
                         ratios,
                         {kUnderWorker}});
    }
    return goals;
}

}  // namespace pollcore::bench
