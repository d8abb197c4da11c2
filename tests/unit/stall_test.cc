// Stalls: which turns count as one, how long the log keeps them, and what the kernel counted meanwhile.
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "base/recent_log.hpp"
#include "control/stall_watch.hpp"
#include "control/thread_sample.hpp"
#include "eventually.hpp"
#include "worker/stall_log.hpp"
#include "worker/turn.hpp"

namespace pollcore {
namespace {

using namespace std::chrono_literals;

using Log = RecentLog<2>;

TEST(RecentLog, KeepsTheLastEntries) {
    Log log;
    EXPECT_FALSE(log.at(0));
    for (std::uint64_t i = 0; i < Log::kKept + 10; ++i) {
        log.note({1000 + i, i});
    }
    EXPECT_EQ(log.count(), Log::kKept + 10);
    EXPECT_FALSE(log.at(9));
    EXPECT_FALSE(log.at(10)) << "its place is the next to be written";
    EXPECT_EQ(log.at(11), (Log::Entry{1011, 11}));
    EXPECT_EQ(log.at(Log::kKept + 9), (Log::Entry{1009 + Log::kKept, Log::kKept + 9}));
    EXPECT_FALSE(log.at(Log::kKept + 10));
}

TEST(RecentLog, NeverGivesAHalfWrittenEntry) {
    Log log;
    std::atomic<bool> stop{false};
    std::thread writes([&] {
        for (std::uint64_t i = 1; !stop.load(); ++i) {
            log.note({i, i});
        }
    });
    int seen = 0;
    std::uint64_t next = 0;
    while (seen < 2000) {
        next = log.take_from(next, [&](const Log::Entry& entry) {
            EXPECT_EQ(entry[0], entry[1]);
            ++seen;
        });
    }
    stop.store(true);
    writes.join();
}

TEST(RecentLog, WhatAnotherProcessWroteIntoItLeadsNowhere) {
    alignas(8) std::array<std::byte, sizeof(Log)> memory;
    for (const int garbage : {0xff, 0x7f, 0x01}) {
        std::memset(memory.data(), garbage, memory.size());
        auto& log = *reinterpret_cast<Log*>(memory.data());
        std::uint64_t taken = 0;
        (void)log.take_from(3, [&](const Log::Entry&) { ++taken; });
        EXPECT_LE(taken, Log::kKept);
        log.note({1, 2});
        (void)log.take_from(log.count() + 5, [&](const Log::Entry&) { ++taken; });
        EXPECT_LE(taken, 2 * Log::kKept);
    }
}

class StallsOfATurn : public ::testing::Test {
protected:
    static constexpr std::uint64_t kStall = 1000;

    StallsOfATurn() : turn(WorkerOptions{.qps_max = 8, .stall_cycles = kStall}) {}
    void step(std::uint64_t at) {
        turn.begin(at);
        turn.end();
    }

    Turn turn;
};

TEST_F(StallsOfATurn, ATurnIsAStallIfItTakesLongerThanTheThreshold) {
    step(100);
    step(200);
    step(200 + kStall);
    EXPECT_EQ(turn.stalls.count(), 0u);
    EXPECT_EQ(turn.counters.longest_step_cycles.value(), kStall);
    step(201 + 2 * kStall);
    ASSERT_EQ(turn.stalls.count(), 1u);
    (void)turn.stalls.take_from(0, [&](const StallLog::Stall& stall) {
        EXPECT_EQ(stall.began, 200 + kStall);
        EXPECT_EQ(stall.cycles, kStall + 1);
    });
    EXPECT_EQ(turn.counters.stalls.value(), 1u);
    EXPECT_EQ(turn.counters.stall_cycles.value(), kStall + 1);
}

TEST_F(StallsOfATurn, TheLongestTurnIsKnownAboveAndBelowTheThreshold) {
    step(100);
    step(150);
    EXPECT_EQ(turn.counters.longest_step_cycles.value(), 50u);
    step(180);
    EXPECT_EQ(turn.counters.longest_step_cycles.value(), 50u);
    step(180 + 5 * kStall);
    step(180 + 7 * kStall);
    EXPECT_EQ(turn.counters.longest_step_cycles.value(), 5 * kStall);
    EXPECT_EQ(turn.counters.stalls.value(), 2u);
    EXPECT_EQ(turn.counters.stall_cycles.value(), 7 * kStall);
}

TEST_F(StallsOfATurn, TheTimeBeforeTheFirstTurnAndTheTimeAsleepAreNone) {
    step(50 * kStall);
    EXPECT_EQ(turn.stalls.count(), 0u);
    turn.resume(90 * kStall);
    step(90 * kStall + 10);
    EXPECT_EQ(turn.stalls.count(), 0u);
    EXPECT_EQ(turn.counters.longest_step_cycles.value(), 10u);
}

// ---- What the kernel says ----

constexpr const char* kStat =
    "4711 (a (b) c) R 1 4711 4711 0 -1 4194368 321 0 7 0 1234 56 0 0 20 0 5 0 8907 1000 200 18446744073709551615 1 1 0 "
    "0 0 0 0 "
    "4096 0 0 0 0 -1 3 0 0 0 0 0 0 0 0 0 0 0 0 0\n";

TEST(ThreadSample, StatIsReadBehindTheName) {
    const auto fields = parse_stat(kStat);
    ASSERT_TRUE(fields);
    EXPECT_EQ(fields->minor_faults, 321u);
    EXPECT_EQ(fields->major_faults, 7u);
    EXPECT_EQ(fields->kernel_ticks, 56u);
    EXPECT_EQ(fields->cpu, 3);
    EXPECT_FALSE(parse_stat(""));
    EXPECT_FALSE(parse_stat("4711 (name) R 1 2 3"));
}

TEST(ThreadSample, StatusSchedstatAndTheCpuAreRead) {
    ThreadSample sample;
    parse_status("Name:\tx\nvoluntary_ctxt_switches:\t12\nnonvoluntary_ctxt_switches:\t34\n", sample);
    EXPECT_EQ(sample.voluntary_switches, 12u);
    EXPECT_EQ(sample.involuntary_switches, 34u);
    parse_schedstat("1000 2500 9\n", sample);
    EXPECT_EQ(sample.run_delay, 2500ns);
    parse_cpu("cpu  1 1 1 1 1 1 1 1 0 0\ncpu1 10 0 20 30 40 5 6 7 0 0\ncpu11 0 0 0 0 0 9 9 9 0 0\n", 1, 10ms, sample);
    EXPECT_EQ(sample.interrupts, 110ms);
    EXPECT_EQ(sample.steal, 70ms);
    const ThreadSample as_it_was = sample;
    parse_status("", sample);
    parse_schedstat("garbage", sample);
    parse_cpu("", 1, 10ms, sample);
    EXPECT_EQ(sample.involuntary_switches, as_it_was.involuntary_switches);
    EXPECT_EQ(sample.run_delay, as_it_was.run_delay);
    EXPECT_EQ(sample.steal, as_it_was.steal);
}

TEST(ThreadSample, TheTextNamesWhatHappenedAndNothingElse) {
    EXPECT_EQ(text_of({}), "the kernel counted nothing");
    EXPECT_EQ(text_of({.involuntary_switches = 1, .run_delay = 3140us}),
              "waited 3.14 ms for its CPU, 1 involuntary switch");
    EXPECT_EQ(
        text_of({.voluntary_switches = 2, .minor_faults = 3, .major_faults = 1, .steal = 20ms, .interrupts = 10ms}),
        "2 waits in system calls, the hypervisor took 20 ms, interrupts took 10 ms, 1 page was read, 3 page faults");
    EXPECT_EQ(text_of({.frequency = 2600000}), "the kernel counted nothing");
}

TEST(ThreadSample, GrowthIsTheDifference) {
    const ThreadSample before{.voluntary_switches = 1, .run_delay = 5ns, .steal = 10ms, .frequency = 7};
    const ThreadSample now{.voluntary_switches = 4, .run_delay = 9ns, .steal = 30ms, .frequency = 8};
    const ThreadSample grown = now.since(before);
    EXPECT_EQ(grown.voluntary_switches, 3u);
    EXPECT_EQ(grown.run_delay, 4ns);
    EXPECT_EQ(grown.steal, 20ms);
    EXPECT_EQ(grown.frequency, 8u);
}

TEST(ThreadSampler, AThreadThatWaitsHasSwitchesAndOneThatHasEndedNoSample) {
    std::atomic<pid_t> thread_id{0};
    std::atomic<int> go{0};
    std::thread thread([&] {
        thread_id.store(static_cast<pid_t>(::syscall(SYS_gettid)));
        while (go.load() == 0) {
            std::this_thread::yield();
        }
        for (int i = 0; i < 6; ++i) {  // a sleep that ends before the thread leaves its CPU causes no switch
            std::this_thread::sleep_for(1ms);
        }
        go.store(2);
        while (go.load() == 2) {
            std::this_thread::yield();
        }
    });
    while (thread_id.load() == 0) {
        std::this_thread::yield();
    }
    ThreadSampler sampler(thread_id.load());
    const auto before = sampler.sample(ThreadSampler::Cpu::again);
    go.store(1);
    while (go.load() != 2) {
        std::this_thread::yield();
    }
    const auto after = sampler.sample(ThreadSampler::Cpu::as_read);
    go.store(3);
    thread.join();
    ASSERT_TRUE(before && after);
    EXPECT_GE(after->since(*before).voluntary_switches, 3u);
    // A join ends with set_tid_address(2)'s wakeup, and the kernel takes the thread out of /proc a little later.
    EXPECT_TRUE(test::eventually([&] { return !sampler.sample(ThreadSampler::Cpu::again); }));
}

TEST(StallWatch, AStallGetsWhatHappenedSinceTheSampleBeforeIt) {
    StallLog log;
    StallWatch watch({{static_cast<pid_t>(::syscall(SYS_gettid)), &log}});
    std::vector<StallWatch::Found> found;
    const auto take = [&](const StallWatch::Found& one) { found.push_back(one); };
    watch.look([] { return std::uint64_t{1000}; }, take);
    std::this_thread::sleep_for(1ms);  // a wait before the sample that counts
    watch.look([] { return std::uint64_t{2000}; }, take);
    EXPECT_TRUE(found.empty());
    for (int i = 0; i < 10; ++i) {  // a sleep that ends before the thread leaves its CPU causes no switch
        std::this_thread::sleep_for(1ms);
    }
    log.note({.began = 2500, .cycles = 400});
    watch.look([] { return std::uint64_t{3000}; }, take);
    ASSERT_EQ(found.size(), 1u);
    EXPECT_EQ(found[0].worker, 0u);
    EXPECT_EQ(found[0].stall.cycles, 400u);
    EXPECT_GE(found[0].meanwhile.voluntary_switches, 5u);
    // A stall that began before the last samples, and ended only now.
    log.note({.began = 1500, .cycles = 1600});
    watch.look([] { return std::uint64_t{4000}; }, take);
    ASSERT_EQ(found.size(), 2u);
    EXPECT_GE(found[1].meanwhile.voluntary_switches, 6u) << "it is compared with the sample at 1000";
    watch.look([] { return std::uint64_t{5000}; }, take);
    EXPECT_EQ(found.size(), 2u);
}

TEST(StallWatch, AStallBeforeTheFirstLookIsFound) {
    StallLog log;
    StallWatch watch({{static_cast<pid_t>(::syscall(SYS_gettid)), &log}});
    log.note({.began = 500, .cycles = 400});
    int found = 0;
    watch.look([] { return std::uint64_t{1000}; }, [&](const StallWatch::Found&) { ++found; });
    EXPECT_EQ(found, 1);
}

TEST(StallWatch, StallsThatTheLogHasForgottenAreLeftOut) {
    StallLog log;
    log.note({.began = 1, .cycles = 1});  // before the watch
    StallWatch watch({{static_cast<pid_t>(::syscall(SYS_gettid)), &log}});
    std::vector<StallWatch::Found> found;
    const auto take = [&](const StallWatch::Found& one) { found.push_back(one); };
    watch.look([] { return std::uint64_t{10}; }, take);
    for (std::uint64_t i = 0; i < 3 * StallLog::kKept; ++i) {
        log.note({.began = 20, .cycles = i});
    }
    watch.look([] { return std::uint64_t{30}; }, take);
    ASSERT_EQ(found.size(), StallLog::kKept - 1);
    EXPECT_EQ(found.back().stall.cycles, 3 * StallLog::kKept - 1);
    watch.look([] { return std::uint64_t{40}; }, take);
    EXPECT_EQ(found.size(), StallLog::kKept - 1);
}

}  // namespace
}  // namespace pollcore
