// pollperf's closed loop, which keeps a number of operations in flight. It runs on a model of a device whose time is a
// number.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "pollperf_window_fixture.hpp"

namespace pollcore::perf {
namespace {

// ---- counts ----

struct Shape {
    std::uint32_t tx_depth;
    std::uint32_t post_list;
    std::uint32_t signal_every;
};
// A list is at most as long as the depth, and a completion comes at least every half of the depth.
constexpr Shape kShapes[] = {{1, 1, 1}, {2, 1, 1},  {4, 3, 2},   {8, 3, 4},   {8, 8, 4},
                             {8, 8, 3}, {16, 5, 7}, {16, 13, 8}, {16, 16, 8}, {128, 16, 64}};

[[nodiscard]] std::string name_of(const Shape& shape, unsigned connections, std::uint64_t operations) {
    return "depth " + std::to_string(shape.tx_depth) + ", lists of " + std::to_string(shape.post_list) +
           ", a completion every " + std::to_string(shape.signal_every) + ", " + std::to_string(connections) +
           " connections, " + std::to_string(operations) + " operations";
}

void expect_exact(const Shape& shape, unsigned connections, bool bidirectional, std::uint64_t operations,
                  const std::function<std::uint32_t(std::uint32_t)>& takes) {
    const std::string name = name_of(shape, connections, operations);
    Workload workload = many(Op::send, shape.tx_depth, shape.post_list, shape.signal_every);
    workload.bidirectional = bidirectional;
    WindowRun run(workload, connections);
    run.path.takes = takes;
    Done done;
    ASSERT_NO_THROW(done = run.operations(operations)) << name;
    EXPECT_EQ(done.operations, operations) << name;
    EXPECT_EQ(run.path.carried_out, operations) << name;
    EXPECT_LE(run.path.most_in_flight, shape.tx_depth) << name;
    run.expect_idle(name);
    std::uint64_t signals = 0;
    std::uint64_t least = ~std::uint64_t{0};
    std::uint64_t most = 0;
    for (unsigned end = 0; end < run.senders; ++end) {
        const std::uint64_t issued = run.path.end(end).issued;
        least = std::min(least, issued);
        most = std::max(most, issued);
        signals += (issued + shape.signal_every - 1) / shape.signal_every;
    }
    EXPECT_LE(most - least, 1u) << name;
    EXPECT_EQ(run.path.signals, signals) << name;
    run.check_far_ends();
    EXPECT_EQ(run.arrived(), operations) << name;
    const auto [latency, slices] = run.recorder.take();
    EXPECT_EQ(latency.count(), operations) << name;
    EXPECT_GE(latency.least(), run.path.latency) << name;
}

TEST(PollperfWindow, IterationsAreExactWithAnyNumberOfConnections) {
    for (const Shape& shape : kShapes) {
        for (const unsigned connections : {1u, 2u, 5u}) {
            for (const bool bidirectional : {false, true}) {
                for (const std::uint64_t operations : {1u, 2u, 5u, 100u, 1003u}) {
                    ASSERT_NO_FATAL_FAILURE(expect_exact(shape, connections, bidirectional, operations, {}));
                }
            }
        }
    }
}

// As with the runtime, whose ring may be full.
TEST(PollperfWindow, APathMayTakeFewerRequestsThanItIsOffered) {
    for (const Shape& shape : kShapes) {
        for (const unsigned connections : {1u, 3u}) {
            std::mt19937 random(shape.tx_depth + connections);
            const auto some = [&](std::uint32_t n) {
                return std::uniform_int_distribution<std::uint32_t>(0, n)(random);
            };
            ASSERT_NO_FATAL_FAILURE(expect_exact(shape, connections, true, 1003, some));
            const auto one = [](std::uint32_t) { return 1u; };
            ASSERT_NO_FATAL_FAILURE(expect_exact(shape, connections, false, 1003, one));
        }
    }
}

TEST(PollperfWindow, TheDepthIsUsedAndListsAreWhole) {
    WindowRun run(many(Op::write, 64, 8, 4));
    run.operations(8000);
    EXPECT_EQ(run.path.most_in_flight, 64u);
    EXPECT_EQ(run.path.lists, std::vector<std::uint32_t>(1000, 8));
    WindowRun rest(many(Op::write, 64, 8, 4));
    rest.operations(21);
    EXPECT_EQ(rest.path.lists, (std::vector<std::uint32_t>{8, 8, 5}));
}

TEST(PollperfWindow, ALoopMayRunAgain) {
    WindowRun run(many(Op::send, 16, 4, 8), 3);
    std::uint64_t all = 0;
    for (const std::uint64_t operations : {100u, 1u, 77u, 0u, 500u}) {
        EXPECT_EQ(run.operations(operations).operations, operations);
        run.expect_idle("after a run");
        all += operations;
    }
    run.check_far_ends();
    EXPECT_EQ(run.arrived(), all);
    EXPECT_EQ(run.recorder.take().first.count(), all);
}

TEST(PollperfWindow, OfARateOneLatencyIsRecordedForEachCompletionThatIsSeen) {
    Workload workload = many(Op::write, 64, 16, 16);
    workload.test = perf::Test::rate;
    WindowRun run(workload);
    EXPECT_EQ(run.operations(1600).operations, 1600u);
    const auto [latency, slices] = run.recorder.take();
    EXPECT_GE(latency.count(), 10u);
    EXPECT_LE(latency.count(), 100u);
}

TEST(PollperfWindow, ALatencyIsTheTimeFromThePostToThePollThatSeesIt) {
    WindowRun run(many(Op::write, 1));
    run.path.latency = of_ns(1500);
    run.path.poll_time = of_ns(100);
    const Done done = run.operations(100);
    const auto [latency, slices] = run.recorder.take();
    EXPECT_EQ(latency.least(), of_ns(1500));
    EXPECT_EQ(latency.greatest(), of_ns(1500));
    EXPECT_EQ(done.units, 100 * of_ns(1500));
}

// ---- by time ----

TEST(PollperfWindow, ByTimeOnlyWhatIsDoneInTimeCounts) {
    for (const unsigned connections : {1u, 3u}) {
        WindowRun run(many(Op::write, 64), connections);
        const std::uint64_t began = run.path.time;
        const Done done = run.milliseconds(5);
        EXPECT_GE(done.units, of_ms(5));
        EXPECT_LE(done.units, of_ms(5) + run.path.poll_time);
        const auto in_time = std::count_if(run.path.completed_at.begin(), run.path.completed_at.end(),
                                           [&](std::uint64_t at) { return at <= began + done.units; });
        EXPECT_EQ(done.operations, static_cast<std::uint64_t>(in_time));
        EXPECT_NEAR(static_cast<double>(done.operations), 5e6 / 500, 50);  // what the device can do
        EXPECT_LT(*std::max_element(run.path.posted_at.begin(), run.path.posted_at.end()), began + of_ms(5));
        run.expect_idle("by time");
        EXPECT_GT(run.path.carried_out, done.operations);  // some were in flight at the end
        EXPECT_EQ(run.recorder.take().first.count(), done.operations);
    }
}

TEST(PollperfWindow, ByTimeNothingStaysInFlightThoughFewHaveACompletion) {
    for (const Shape& shape : kShapes) {
        WindowRun run(many(Op::send, shape.tx_depth, shape.post_list, shape.signal_every), 2);
        for (int round = 0; round < 3; ++round) {
            Done done;
            ASSERT_NO_THROW(done = run.milliseconds(1)) << name_of(shape, 2, 0);
            EXPECT_GT(done.operations, 300u);
            run.expect_idle(name_of(shape, 2, 0));
        }
        EXPECT_LE(run.path.most_in_flight, shape.tx_depth);
        run.check_far_ends();
        EXPECT_EQ(run.arrived(), run.path.carried_out);
    }
}

TEST(PollperfWindow, SlicesAddUpToTheLoop) {
    WindowRun run(many(Op::write, 16), 2);
    const Done done = run.milliseconds(95);
    const auto [latency, slices] = run.recorder.take();
    EXPECT_EQ(slices.size(), 10u);
    std::uint64_t operations = 0;
    double seconds = 0;
    for (const Slice& slice : slices) {
        operations += slice.operations;
        seconds += slice.seconds;
    }
    EXPECT_EQ(operations, done.operations);
    EXPECT_NEAR(seconds, static_cast<double>(done.units) / kUnitsPerNs / 1e9, 1e-9);
    EXPECT_NEAR(slices.back().at_s, seconds, 1e-9);
}

// ---- what operations carry ----

TEST(PollperfWindow, VerifiedOperationsOfAllKindsPass) {
    for (const Op op : kOps) {
        for (const QpType transport : {QpType::rc, QpType::uc, QpType::ud}) {
            for (const bool bidirectional : {false, true}) {
                if (!can_do(transport, op)) {
                    continue;
                }
                Workload workload = verified(many(op, 16, 4, 8));
                workload.transport = transport;
                workload.bidirectional = bidirectional;
                WindowRun run(workload, 2);
                // More than one byte can count.
                EXPECT_EQ(run.failure(2000), "nothing was found") << op_name(op) << ' ' << transport_name(transport);
                EXPECT_EQ(run.failure(3), "nothing was found") << op_name(op) << ' ' << transport_name(transport);
                EXPECT_EQ(run.path.carried_out, 2003u);
            }
        }
    }
}

// At the end of the time a request is posted that has a completion. Its buffer may be that of a result that nobody has
// looked at yet.
TEST(PollperfWindow, VerifiedOperationsPassAtTheEndOfTheTimeToo) {
    for (const Op op : kOps) {
        for (const Shape& shape : kShapes) {
            WindowRun run(verified(many(op, shape.tx_depth, shape.post_list, shape.signal_every)), 2);
            std::mt19937 random(1);
            run.path.takes = [&](std::uint32_t n) {
                return std::uniform_int_distribution<std::uint32_t>(0, n)(random);
            };
            for (std::uint64_t ns = 100'000; ns < 102'000; ns += 70) {
                ASSERT_NO_THROW((void)run.window.run({.time = std::chrono::nanoseconds(ns)}, run.recorder))
                    << op_name(op) << ", " << name_of(shape, 2, 0);
                run.expect_idle(name_of(shape, 2, 0));
            }
            ASSERT_NO_THROW(run.check_far_ends()) << op_name(op);
        }
    }
}

TEST(PollperfWindow, AWrongByteIsFoundInEachOperation) {
    const auto with_wrong_byte = [](Op op, std::uint64_t number, std::size_t byte) {
        WindowRun run(verified(many(op, 16, 4, 8)), 2);
        run.path.spoil_number = number;
        run.path.spoil_byte = byte;
        return run.failure(200);
    };
    const auto wrong = [](Op op, int message, int byte) {
        return "path direct, " + std::string(op_name(op)) + ": message " + std::to_string(message) +
               " is wrong at byte " + std::to_string(byte) + " of 100";
    };
    for (const int byte : {0, 50, 99}) {
        const auto position = static_cast<std::size_t>(byte);
        EXPECT_EQ(with_wrong_byte(Op::send, 40, position).find(wrong(Op::send, 41, byte)), 0u);
        // All verified reads read the same bytes.
        EXPECT_EQ(with_wrong_byte(Op::read, 40, position).find(wrong(Op::read, 1, byte)), 0u);
        for (const Op op : {Op::write, Op::write_imm}) {
            EXPECT_EQ(with_wrong_byte(op, 99, position).find(wrong(op, 100, byte)), 0u);
            EXPECT_EQ(with_wrong_byte(op, 84, position).find(wrong(op, 85, byte)), 0u);
            EXPECT_EQ(with_wrong_byte(op, 83, position), "nothing was found") << "message 100 has taken its place";
        }
    }
    for (const Op op : {Op::fetch_add, Op::compare_swap}) {
        EXPECT_EQ(with_wrong_byte(op, 40, 0),
                  "path direct, " + std::string(op_name(op)) + " 41: the word held 0x38, not 0x28");
    }
}

TEST(PollperfWindow, AResultThatNeverComesIsFound) {
    // The buffer of a result is overwritten before each operation.
    for (const Op op : {Op::read, Op::fetch_add, Op::compare_swap}) {
        WindowRun run(verified(many(op, 16)));
        run.path.lost = [](std::uint64_t number) { return number == 40; };
        EXPECT_NE(run.failure(200), "nothing was found") << op_name(op);
    }
}

TEST(PollperfWindow, FewWritesAreCheckedTooAndNoneIsNoFailure) {
    WindowRun run(verified(many(Op::write, 16)));
    EXPECT_NO_THROW(run.window.check_writes(1, 0));
    run.path.spoil_number = 1;
    run.path.spoil_byte = 7;
    EXPECT_NE(run.failure(3).find("message 2 is wrong at byte 7"), std::string::npos);
    // A peer that says it has posted more than has arrived is caught, too.
    WindowRun fewer(verified(many(Op::write, 16)));
    fewer.operations(20);
    EXPECT_THROW(fewer.window.check_writes(1, 21), MeasurementError);
}

TEST(PollperfWindow, ALostReliableMessageIsFound) {
    WindowRun run(verified(many(Op::send, 16)));
    run.path.lost = [](std::uint64_t number) { return number == 5; };
    EXPECT_NE(run.failure(200).find("message 6 is wrong at byte 0"), std::string::npos);
}

TEST(PollperfWindow, ALostDatagramIsNoFailure) {
    for (const QpType transport : {QpType::uc, QpType::ud}) {
        Workload workload = verified(many(Op::send, 16));
        workload.transport = transport;
        WindowRun run(workload, 2);
        std::mt19937 random(1);
        std::uint64_t losses = 0;
        run.path.lost = [&](std::uint64_t number) {
            const bool is_lost = random() % 5 == 0 || (number >= 500 && number < 800);
            losses += is_lost;
            return is_lost;
        };
        EXPECT_EQ(run.failure(2000), "nothing was found");
        EXPECT_GT(losses, 600u);
        EXPECT_EQ(run.arrived() + losses, 2000u);
    }
}

TEST(PollperfWindow, AWrongByteBesideLostDatagramsIsFound) {
    for (const std::size_t byte : {0, 1, 60, 99}) {
        Workload workload = verified(many(Op::send, 16));
        workload.transport = QpType::ud;
        WindowRun run(workload);
        run.path.lost = [&](std::uint64_t number) { return number % 7 == 0; };
        run.path.spoil_number = 1201;
        run.path.spoil_byte = byte;
        // A wrong first byte looks like another message, which then has wrong bytes.
        const std::string expected = byte == 0 ? "is wrong at byte 1 of 100"
                                               : "message 1202 is wrong at byte " + std::to_string(byte) + " of 100";
        const std::string failure = run.failure(2000);
        EXPECT_NE(failure.find(expected), std::string::npos) << failure;
    }
}

// ---- what arrives ----

TEST(PollperfWindow, NoMessageWaitsForAReceiveIfThereAreMoreThanMessagesInFlight) {
    for (const std::uint32_t receives : {7u, 12u, 31u, 64u}) {
        Workload workload = many(Op::send, 6, 6);
        workload.bidirectional = true;
        WindowRun run(workload, 2, receives);
        run.path.poll_time = of_ns(5000);  // the thread finds several messages at once
        EXPECT_EQ(run.operations(4000).operations, 4000u);
        EXPECT_EQ(run.path.without_receive, 0u) << receives << " receives";
    }
}

TEST(PollperfWindow, AServerTakesMessagesUntilItIsToldToStop) {
    for (const bool verify : {false, true}) {
        Workload workload = many(Op::send, 16);
        workload.verify = verify;
        WindowRun run(workload, 2, 32);
        run.path.hide_far_ends();
        const auto send = [&](unsigned end) {
            EndState& state = run.path.end(end);
            fill({state.memory + run.path.layout().out(state.issued), workload.size}, state.issued + 1);
            run.path.issue(end, 1, true);
        };
        std::atomic<bool> stop{false};
        run.path.takes = {};
        std::uint64_t sent = 0;
        // The device loses nothing; its hook is called once for each message that it carries out.
        run.path.lost = [&](std::uint64_t) {
            if (sent < 1000) {
                ++sent;
                send(2 + sent % 2);
            } else {
                stop.store(true);
            }
            return false;
        };
        send(2);
        ASSERT_NO_THROW(run.window.serve(stop));
        EXPECT_EQ(sent, 1000u);
        run.window.finish(std::vector<std::uint64_t>{run.path.end(2).issued, run.path.end(3).issued}, 0,
                          std::chrono::seconds(10));
        EXPECT_EQ(run.path.end(0).arrived() + run.path.end(1).arrived(), 1001u);
        EXPECT_EQ(run.path.without_receive, 0u);
    }
}

TEST(PollperfWindow, AServerFindsAWrongByte) {
    WindowRun run(verified(many(Op::send, 16)));
    run.path.hide_far_ends();
    for (std::uint64_t n = 0; n < 3; ++n) {
        EndState& state = run.path.end(1);
        fill({state.memory + run.path.layout().out(n), run.workload.size}, n + 1 + (n == 2));
        run.path.issue(1, 1, true);
    }
    const std::atomic<bool> stop{false};
    EXPECT_THROW(run.window.serve(stop), MeasurementError);
}

TEST(PollperfWindow, AServerWaitsForAQuietClientUntilItIsToldOtherwise) {
    WindowRun run(many(Op::send, 16));
    run.path.hide_far_ends();
    unsigned looks = 0;
    Watch watch(std::chrono::milliseconds(1), [&] {
        if (++looks == 3) {
            throw MeasurementError("the client has left");
        }
    });
    Window<DevicePath, VirtualClock> window(run.path, run.workload, watch, 1, VirtualClock{&run.path.time});
    const std::atomic<bool> stop{false};
    EXPECT_THROW(window.serve(stop), MeasurementError);
    EXPECT_EQ(looks, 3u);
}

TEST(PollperfWindow, AStopEndsTheSendingEarlyAndNothingStaysInFlight) {
    WindowRun run(many(Op::send, 16));
    const std::atomic<bool> stop{true};
    const Done done = run.window.run({.operations = 1'000'000}, run.recorder, &stop);
    EXPECT_LT(done.operations, 1000u);
    EXPECT_TRUE(run.path.end(0).idle());
}

TEST(PollperfWindow, WhatDoesNotArriveIsNotWaitedForForEver) {
    WindowRun run(many(Op::send, 16));
    run.operations(10);
    const auto began = std::chrono::steady_clock::now();
    run.window.finish(std::vector<std::uint64_t>{11}, 1, std::chrono::milliseconds(30));
    EXPECT_GE(std::chrono::steady_clock::now() - began, std::chrono::milliseconds(30));
    EXPECT_EQ(run.arrived(), 10u);
}

// ---- stalls ----

TEST(PollperfWindow, AStallEndsWithAnError) {
    {
        WindowRun run(many(Op::write, 16), 2);
        run.give_up_soon();
        run.path.stall_to = ~std::uint64_t{0};
        EXPECT_EQ(run.failure(200), "end 0 waits for the completion of its request");
    }
    {
        // The time ends, and what is in flight does not.
        WindowRun run(many(Op::write, 16));
        run.give_up_soon();
        run.path.stall_to = ~std::uint64_t{0};
        EXPECT_THROW((void)run.milliseconds(1), MeasurementError);
    }
    {
        WindowRun run(many(Op::write, 16), 2);
        run.give_up_soon();
        run.path.takes = [](std::uint32_t) { return 0u; };
        EXPECT_THROW((void)run.operations(1), MeasurementError);
    }
}

}  // namespace
}  // namespace pollcore::perf
