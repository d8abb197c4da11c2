// What each process gets when many processes share one worker: Jain's index of their operations, the max-min share of
// processes with unequal wishes, and how long a quiet process waits beside loud ones.
//
// The tests step a worker by hand, on a device that completes at once, so that only the worker decides who comes next.
// Time is virtual: a step takes as long as the model of costs (runtime/COSTS.md) says for the work that it has done.
#include <algorithm>
#include <cstdio>
#include <memory>
#include <numeric>
#include <vector>

#include <gtest/gtest.h>

#include "instant_device.hpp"
#include "worker_fixture.hpp"

namespace pollcore::testing {
namespace {

class ManyProcesses : public WorkerFixture {
protected:
    // The model of costs, in ns: a step that finds something, a look at a session, and half of an operation, which is
    // to take it or to complete it.
    static constexpr std::uint64_t kStepNs = 30;
    static constexpr std::uint64_t kLookNs = 3;
    static constexpr std::uint64_t kHalfNs = 5;

    static constexpr std::uint32_t kLoud = 64;  // requests that each session of a loud process keeps in flight
    static constexpr double kFair = 0.95;       // the least Jain's index

    /// WorkerOptions::submit_burst and complete_burst.
    struct Bursts {
        std::uint32_t submit;
        std::uint32_t complete;
    };
    static constexpr Bursts kDefaults{kBurstDefault, kBurstDefault};
    /// The worker completes in a step all that it takes in a step, from every process.
    static constexpr Bursts kCompletesAll{8, kBurstMax};

    struct Part {
        std::uint32_t session = 0;
        const Qp* qp = nullptr;
        std::uint64_t submitted = 0;
        std::uint64_t completed = 0;
    };
    /// A process with one or several sessions. Each session has a queue pair, and keeps `wish` requests in flight.
    struct Attached {
        ClientShare share;
        std::uint32_t wish = 0;
        std::vector<Part> parts;

        [[nodiscard]] std::uint64_t completed() const {
            return std::accumulate(parts.begin(), parts.end(), std::uint64_t{0},
                                   [](std::uint64_t sum, const Part& part) { return sum + part.completed; });
        }
    };

    void begin(const Bursts& bursts) {
        attached.clear();
        SteppedWorld::Options options;
        options.worker.submit_burst = options.worker.qp_burst = bursts.submit;
        options.worker.complete_burst = bursts.complete;
        options.submission_slots = options.completion_slots = 2 * kLoud;
        make_world(std::move(options));
        bench::make_instant(*world->device->context());
        world->add_cq(8192);
    }
    Attached& attach(std::uint32_t wish, std::uint32_t sessions = 1) {
        attached.push_back(std::make_unique<Attached>());
        Attached& process = *attached.back();
        process.wish = wish;
        for (std::uint32_t i = 0; i < sessions; ++i) {
            const std::uint32_t session = world->add_session(&process.share);
            process.parts.push_back({session, pair({.shares = {{session, std::max(wish, 1u), 1}}}).first});
        }
        return process;
    }

    /// The processes submit what they wish, the worker makes a step, and the processes poll.
    void round() {
        for (const auto& process : attached) {
            for (Part& part : process->parts) {
                for (; part.submitted < part.completed + process->wish; ++part.submitted) {
                    submit(write(part.submitted, {.qp = part.qp}), part.session);
                }
            }
        }
        const std::uint32_t work = world->step();
        step_ns = kStepNs + kLookNs * world->ends.size() + kHalfNs * work;
        world->now += step_ns;
        for (const auto& process : attached) {
            for (Part& part : process->parts) {
                part.completed += world->poll(part.session).size();
            }
        }
    }
    /// Makes so many rounds. Returns the operations of each process that completed in a round, as a mean.
    std::vector<double> shares(std::uint64_t rounds) {
        std::vector<std::uint64_t> before;
        for (const auto& process : attached) {
            before.push_back(process->completed());
        }
        for (std::uint64_t i = 0; i < rounds; ++i) {
            round();
        }
        std::vector<double> all;
        for (std::size_t i = 0; i < attached.size(); ++i) {
            all.push_back(static_cast<double>(attached[i]->completed() - before[i]) / static_cast<double>(rounds));
        }
        return all;
    }
    void warm_up() { (void)shares(100); }
    [[nodiscard]] bool throttled(const Attached& process) const {
        return std::any_of(process.parts.begin(), process.parts.end(),
                           [this](const Part& part) { return world->session(part.session).figures().throttled != 0; });
    }

    /// (sum x)^2 / (n * sum x^2): 1 if all have the same, and 1/n if one has everything.
    static double jains_index(const std::vector<double>& all) {
        const double sum = std::accumulate(all.begin(), all.end(), 0.0);
        const double squares = std::inner_product(all.begin(), all.end(), all.begin(), 0.0);
        return squares == 0 ? 0 : sum * sum / (static_cast<double>(all.size()) * squares);
    }

    /// A percentile of the waits of a quiet process, each from a request's submission to its completion.
    struct Wait {
        std::uint64_t rounds = 0;
        std::uint64_t ns = 0;
    };
    struct Waits {
        Wait p50;
        Wait p99;
    };
    /// The quiet process submits single requests at various moments, beside so many loud processes.
    Waits waits_beside(std::uint32_t loud, const Bursts& bursts) {
        constexpr std::uint64_t kWaits = 1000;
        constexpr std::uint64_t kPauses = 7;
        constexpr std::uint64_t kMoments = 8;  // of a step
        begin(bursts);
        Attached& quiet = attach(0);
        for (std::uint32_t i = 0; i < loud; ++i) {
            attach(kLoud);
        }
        warm_up();
        std::vector<std::uint64_t> rounds;
        std::vector<std::uint64_t> ns;
        for (std::uint64_t i = 0; i < kWaits; ++i) {
            (void)shares(1 + i % kPauses);
            // The request comes during the last step, when the worker has already looked at the process's ring.
            const std::uint64_t came = world->now - step_ns * (i % kMoments) / kMoments;
            quiet.wish = 1;
            std::uint64_t waited = 0;
            for (const std::uint64_t before = quiet.completed(); quiet.completed() == before && waited < 10'000;) {
                round();
                quiet.wish = 0;
                ++waited;
            }
            EXPECT_EQ(quiet.completed(), i + 1);
            rounds.push_back(waited);
            ns.push_back(world->now - came);
        }
        EXPECT_FALSE(throttled(quiet));
        std::sort(rounds.begin(), rounds.end());
        std::sort(ns.begin(), ns.end());
        return {{rounds[kWaits / 2], ns[kWaits / 2]}, {rounds[kWaits * 99 / 100], ns[kWaits * 99 / 100]}};
    }

    std::vector<std::unique_ptr<Attached>> attached;
    std::uint64_t step_ns = 0;  ///< duration of the last step
};

// In a window of rounds, a process may be ahead of another one by a burst. The window is so long that each process has
// at least eight bursts in it, so that a burst more or less changes Jain's index by less than 1 - kFair.
TEST_F(ManyProcesses, WithEqualWishesGetEqualShares) {
    for (const Bursts& bursts : {kDefaults, kCompletesAll}) {
        for (const std::uint32_t processes : {2u, 4u, 16u}) {
            begin(bursts);
            for (std::uint32_t i = 0; i < processes; ++i) {
                attach(kLoud);
            }
            warm_up();
            double least = 1;
            for (int window = 0; window < 20; ++window) {
                least = std::min(least, jains_index(shares(8 * processes)));
            }
            std::printf("%2u equal processes, bursts of %2u taken and %3u completed: Jain's index at least %.4f\n",
                        processes, bursts.submit, bursts.complete, least);
            EXPECT_GE(least, kFair);
        }
    }
}

// The max-min share of a round: a process gets its wish or, if it wishes more, the burst that the worker takes from one
// process. A process with several sessions gets no more.
TEST_F(ManyProcesses, WithUnequalWishesGetTheirWishOrAnEqualShare) {
    struct Wish {
        std::uint32_t in_flight;
        std::uint32_t sessions;
    };
    const std::vector<Wish> wishes{{kLoud, 1}, {kLoud, 4}, {1, 1}, {2, 1}, {4, 1}, {kLoud, 1}, {1, 3}, {16, 1}};
    for (const Bursts& bursts : {kDefaults, kCompletesAll}) {
        begin(bursts);
        for (const Wish& wish : wishes) {
            attach(wish.in_flight, wish.sessions);
        }
        warm_up();
        const std::vector<double> all = shares(400);
        for (std::size_t i = 0; i < wishes.size(); ++i) {
            const std::uint32_t wish = wishes[i].in_flight * wishes[i].sessions;
            std::printf(
                "bursts of %2u taken and %3u completed, a process that wishes %3u, of %u sessions: "
                "%.2f operations in a round\n",
                bursts.submit, bursts.complete, wish, wishes[i].sessions, all[i]);
            EXPECT_DOUBLE_EQ(all[i], std::min(wish, bursts.submit)) << "process " << i;
            EXPECT_EQ(throttled(*attached[i]), wishes[i].sessions > 1 && wish > bursts.submit) << "process " << i;
        }
    }
}

// A step takes at most a burst of each process, and completes as much. So the quiet process's request waits for the
// step under way and for its own step, however many requests the loud processes have in flight.
TEST_F(ManyProcesses, LetAQuietOneWaitForNoMoreThanTwoSteps) {
    for (const Bursts& bursts : {kDefaults, kCompletesAll}) {
        for (const std::uint32_t loud : {0u, 1u, 4u, 16u}) {
            const auto [p50, p99] = waits_beside(loud, bursts);
            std::printf(
                "a quiet process beside %2u loud ones, bursts of %2u taken and %3u completed: p50 %2u steps "
                "(%5u ns), p99 %2u steps (%5u ns)\n",
                loud, bursts.submit, bursts.complete, static_cast<unsigned>(p50.rounds), static_cast<unsigned>(p50.ns),
                static_cast<unsigned>(p99.rounds), static_cast<unsigned>(p99.ns));
            const std::uint32_t taken = loud * bursts.submit + 1;
            EXPECT_EQ(p99.rounds, 1u) << "beside " << loud;
            const std::uint64_t longest_ns = kStepNs + kLookNs * (loud + 1) + kHalfNs * 2 * taken;
            EXPECT_LE(p99.ns, 2 * longest_ns) << "beside " << loud;
        }
    }
}

}  // namespace
}  // namespace pollcore::testing
