// What disturbs a measurement, and the warnings of it.
#include <sched.h>
#include <stdlib.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "eventually.hpp"
#include "pollperf/report/disturbances.hpp"
#include "pollperf/threads.hpp"

namespace pollcore::perf {
namespace {

namespace fs = std::filesystem;

// A directory in which a test makes its own /sys and /proc.
class PollperfNoise : public testing::Test {
protected:
    PollperfNoise() {
        std::string pattern = (fs::temp_directory_path() / "pollperf-XXXXXX").string();
        root_ = ::mkdtemp(pattern.data());
    }
    ~PollperfNoise() override {
        std::error_code error;
        fs::remove_all(root_, error);
    }
    void write(const std::string& file, const std::string& content) const {
        fs::create_directories((root_ / file).parent_path());
        std::ofstream(root_ / file) << content << "\n";
    }
    void frequency(int cpu, int khz) const {
        write(fmt::format("sys/devices/system/cpu/cpu{}/cpufreq/scaling_cur_freq", cpu), fmt::to_string(khz));
    }
    void stat(int thread, int cpu) const {
        std::string text = fmt::format("{} (a) name (b)) S", thread);
        for (int field = 4; field < 39; ++field) {
            text += fmt::format(" {}", 1000 + field);
        }
        write(fmt::format("proc/self/task/{}/stat", thread), text + fmt::format(" {} 0 0", cpu));
    }
    void sched(int thread, int migrations) const {
        write(
            fmt::format("proc/self/task/{}/sched", thread),
            fmt::format("name ({})\n-----\nse.exec_start    :   12.5\nse.nr_migrations      :     {}\nnr_switches : 9",
                        thread, migrations));
    }

    fs::path root_;
};

// ---- The host ----

TEST_F(PollperfNoise, TheFactsOfTheHostAreRead) {
    write("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "powersave");
    write("sys/devices/system/cpu/cpu1/cpufreq/scaling_governor", "powersave");
    write("sys/devices/system/cpu/isolated", "2-3");
    write("sys/devices/system/clocksource/clocksource0/current_clocksource", "tsc");
    write("sys/hypervisor/type", "xen");
    HostFacts facts = host_facts(root_);
    EXPECT_EQ(facts.governor, "powersave");
    EXPECT_EQ(facts.isolated_cpus, "2-3");
    EXPECT_EQ(facts.clock, "tsc");
    EXPECT_EQ(facts.hypervisor, "xen");
    EXPECT_GT(facts.machine.cpus_online, 0u);
    std::array<char, 256> name{};
    ASSERT_EQ(::gethostname(name.data(), name.size() - 1), 0);
    EXPECT_EQ(facts.name, name.data());
    write("sys/devices/system/cpu/cpu1/cpufreq/scaling_governor", "performance");
    EXPECT_EQ(host_facts(root_).governor, "performance, powersave");
}

TEST_F(PollperfNoise, AKernelThatTellsNothingHasNoFacts) {
    const HostFacts facts = host_facts(root_);
    EXPECT_EQ(facts.governor, "");
    EXPECT_EQ(facts.isolated_cpus, "");
    EXPECT_EQ(facts.clock, "");
    EXPECT_NO_THROW((void)host_facts());
}

// ---- The watch ----

TEST_F(PollperfNoise, FrequenciesAreTheLeastAndTheGreatestOfTheMeasuringCpus) {
    frequency(0, 2'000'000);
    frequency(1, 2'500'000);
    frequency(2, 9'000'000);
    NoiseWatch watch({}, {0, 1}, std::nullopt, root_);
    watch.begin();
    frequency(0, 1'500'000);
    frequency(1, 2'400'000);
    Disturbance found = watch.end();
    EXPECT_EQ(found.frequency_low_mhz, 1500);
    EXPECT_EQ(found.frequency_high_mhz, 2500);
    watch.begin();
    found = watch.end();
    EXPECT_EQ(found.frequency_high_mhz, 2400) << "begin() forgets";
    frequency(0, 1'400'000);
    EXPECT_EQ(watch.end().frequency_low_mhz, 1400);
}

TEST_F(PollperfNoise, MigrationsAreThoseThatTheSchedulerCounts) {
    const int thread = this_thread_id();
    sched(thread, 7);
    stat(thread, 1);
    NoiseWatch watch({thread}, {}, std::nullopt, root_);
    watch.begin();
    sched(thread, 10);
    EXPECT_EQ(watch.end().migrations, 3u);
}

TEST_F(PollperfNoise, WithoutTheSchedulersCountTheCpuTellsOfAMigration) {
    const int one = 5001, other = 5002;
    stat(one, 0);
    stat(other, 1);
    NoiseWatch watch({one, other}, {}, std::nullopt, root_);
    watch.begin();
    EXPECT_EQ(watch.end().migrations, 0u);
    stat(other, 3);
    EXPECT_EQ(watch.end().migrations, 1u);
}

TEST_F(PollperfNoise, WhatTheKernelDoesNotHaveIsZeroAndThrowsNothing) {
    NoiseWatch watch({0x7ffffff0}, {4000}, 0x7ffffff1, root_);
    EXPECT_NO_THROW(watch.begin());
    const Disturbance found = watch.end();
    EXPECT_EQ(found.migrations, 0u);
    EXPECT_EQ(found.application.voluntary, 0u);
    EXPECT_FALSE(found.worker);
    EXPECT_EQ(found.frequency_high_mhz, 0);
}

TEST(PollperfNoiseWatch, SleepsOfApplicationAndWorkerAreCountedApart) {
    std::atomic<int> id{0}, phase{0};
    std::thread worker([&] {
        id = this_thread_id();
        id.notify_one();
        phase.wait(0);
        for (int i = 0; i < 10; ++i) {  // a sleep that ends before the thread leaves its CPU causes no switch
            ::usleep(1000);
        }
        phase = 2;
        phase.notify_one();
        phase.wait(2);
    });
    id.wait(0);
    NoiseWatch watch({this_thread_id()}, {0}, id.load());
    watch.begin();
    for (int i = 0; i < 40; ++i) {
        ::usleep(1000);
    }
    phase = 1;
    phase.notify_all();
    for (int now = phase; now != 2; now = phase) {
        phase.wait(now);
    }
    const Disturbance found = watch.end();
    phase = 3;
    phase.notify_all();
    worker.join();
    EXPECT_GE(found.application.voluntary, 20u);
    ASSERT_TRUE(found.worker);
    EXPECT_GE(found.worker->voluntary, 5u);
    EXPECT_LT(found.worker->voluntary, 20u);
    // The kernel takes a thread out of /proc a little after the join.
    EXPECT_TRUE(test::eventually([&] { return !watch.end().worker; }));
}

TEST(PollperfNoiseWatch, AThreadThatIsMovedToAnotherCpuHasMigrated) {
    cpu_set_t before;
    ASSERT_EQ(::sched_getaffinity(0, sizeof before, &before), 0);
    std::vector<int> cpus;
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
        if (CPU_ISSET(cpu, &before)) {
            cpus.push_back(cpu);
        }
    }
    ASSERT_GE(cpus.size(), 2u) << "a thread cannot migrate on one CPU";
    const auto move_to = [](int cpu) {
        cpu_set_t one;
        CPU_ZERO(&one);
        CPU_SET(cpu, &one);
        ASSERT_EQ(::sched_setaffinity(0, sizeof one, &one), 0);
    };
    move_to(cpus[0]);
    NoiseWatch watch({this_thread_id()}, {});
    watch.begin();
    const std::uint64_t stayed = watch.end().migrations;
    watch.begin();
    move_to(cpus[1]);
    const std::uint64_t moved = watch.end().migrations;
    ASSERT_EQ(::sched_setaffinity(0, sizeof before, &before), 0);
    EXPECT_EQ(stayed, 0u);
    EXPECT_EQ(moved, 1u);
}

// ---- Warnings ----

// 10 rounds of 0.1 s, undisturbed, with latencies that add up to the time that passed.
Measurement quiet_one(perf::Test test = perf::Test::lat, std::uint32_t size = 8) {
    Measurement one{.test = test, .op = Op::read, .size = size};
    one.latency.add(1000, 1'000'000);
    one.operations = 1'000'000;
    one.seconds = 1;
    for (int i = 0; i < 10; ++i) {
        one.rounds.push_back({.seconds = 0.1,
                              .operations = 100'000,
                              .median_ns = 1000.0 + i,
                              .disturbance = {.frequency_low_mhz = 2900, .frequency_high_mhz = 3000}});
    }
    return one;
}

// The warnings of a run that is quiet but for the change.
template <class Change>
std::vector<std::string> warned(Change&& change) {
    Results results;
    results.host = {.name = "here", .governor = "performance"};
    results.measurements = {quiet_one()};
    change(results, results.measurements.front());
    return noise_warnings(results);
}

template <class Change>
void expect_warning(const std::string& words, Change&& change) {
    const std::vector<std::string> sentences = warned(change);
    ASSERT_EQ(sentences.size(), 1u) << words << (sentences.empty() ? "" : " beside " + sentences.back());
    EXPECT_NE(sentences[0].find(words), std::string::npos) << sentences[0] << "\nlacks: " << words;
}
template <class Change>
void expect_quiet(Change&& change) {
    const std::vector<std::string> sentences = warned(change);
    EXPECT_TRUE(sentences.empty()) << sentences.front();
}

TEST(PollperfWarnings, AQuietRunHasNone) {
    expect_quiet([](Results&, Measurement&) {});
    EXPECT_TRUE(noise_warnings({}).empty());
}

TEST(PollperfWarnings, StealAboveOnePercent) {
    expect_quiet([](Results&, Measurement& one) { one.rounds[0].disturbance.steal_ms = 10; });
    expect_warning("read, 8 bytes, direct: the hypervisor gave 25 ms to other machines, 2.5 % of",
                   [](Results&, Measurement& one) { one.rounds[0].disturbance.steal_ms = 25; });
}

TEST(PollperfWarnings, AMigration) {
    expect_warning("migrated to another CPU 1 time",
                   [](Results&, Measurement& one) { one.rounds[3].disturbance.migrations = 1; });
}

TEST(PollperfWarnings, AFrequencySpreadAboveTenPercent) {
    expect_quiet([](Results&, Measurement& one) { one.rounds[3].disturbance.frequency_low_mhz = 2710; });
    expect_warning("2400 to 3000 MHz, a spread of 20 %",
                   [](Results&, Measurement& one) { one.rounds[3].disturbance.frequency_low_mhz = 2400; });
}

TEST(PollperfWarnings, InvoluntarySwitchesBeyondTheUsual) {
    expect_quiet([](Results&, Measurement& one) { one.rounds[0].disturbance.application.involuntary = 50; });
    expect_quiet([](Results&, Measurement& one) { one.rounds[0].disturbance.application.voluntary = 5000; });
    expect_warning("the kernel took the measuring thread off its CPU 120 times a second",
                   [](Results&, Measurement& one) { one.rounds[0].disturbance.application.involuntary = 120; });
    expect_quiet([](Results&, Measurement& one) {
        one.rounds[0].disturbance.application.involuntary = 120;
        one.threads = 4;
    });
    expect_warning("took the worker off its CPU 60 times a second", [](Results&, Measurement& one) {
        one.rounds[0].disturbance.worker = ContextSwitches{.involuntary = 60};
    });
    // Three of them in 10 ms would be 300 in a second, but may have been all there were.
    expect_quiet([](Results&, Measurement& one) {
        one.seconds = 0.01;
        one.operations = 10'000;
        one.latency.clear();
        one.latency.add(1000, 10'000);
        one.rounds[0].disturbance.application.involuntary = 3;
    });
}

TEST(PollperfWarnings, RoundsThatDiffer) {
    expect_quiet([](Results&, Measurement& one) { one.rounds[0].median_ns = 1'000'000; });
    expect_warning("the interquartile range of typical_ns is 50 % of the median", [](Results&, Measurement& one) {
        for (std::size_t i = 0; i < 10; ++i) {
            one.rounds[i].median_ns = i < 4 ? 1000 : 2000;
        }
    });
    expect_warning("operations_per_s", [](Results&, Measurement& one) {
        one.test = perf::Test::rate;
        for (std::size_t i = 0; i < 10; ++i) {
            one.rounds[i].operations = i % 2 != 0 ? 50'000 : 150'000;
        }
    });
}

TEST(PollperfWarnings, TooFewSamplesForTheirPercentiles) {
    expect_warning("999 samples are too few for a 99.9 % percentile", [](Results&, Measurement& one) {
        one.latency.clear();
        one.latency.add(1000, 999);
    });
    expect_quiet([](Results&, Measurement& one) {
        one.latency.clear();
        one.latency.add(1000, 1000);
    });
}

TEST(PollperfWarnings, AnotherGovernorThanPerformance) {
    expect_warning("the CPUs of here have the frequency governor powersave",
                   [](Results& results, Measurement&) { results.host.governor = "powersave"; });
    expect_warning("the CPUs of there have", [](Results& results, Measurement&) {
        results.peer_host = HostFacts{.name = "there", .governor = "ondemand"};
    });
    expect_quiet([](Results& results, Measurement&) { results.host.governor = ""; });
}

TEST(PollperfWarnings, AnOfferedRateThatWasNotKept) {
    expect_quiet([](Results&, Measurement& one) {
        one.offered_per_s = 1'000'000;
        one.posted_late = 10'000;
    });
    expect_quiet([](Results&, Measurement& one) { one.posted_late = 500'000; });
    expect_warning(
        "the offered rate of 1200000 per second was not kept: 3.0 % of the requests were posted more than an "
        "interval late, and 1000000 per second completed",
        [](Results&, Measurement& one) {
            one.offered_per_s = 1'200'000;
            one.posted_late = 30'000;
        });
}

TEST(PollperfWarnings, SamplesThatDoNotAddUpToTheTime) {
    expect_warning("the samples add up to 200.0 % of the time", [](Results&, Measurement& one) { one.seconds = 0.5; });
    expect_warning("the samples add up to 50.0 % of the time", [](Results&, Measurement& one) { one.seconds = 2; });
    expect_quiet([](Results& results, Measurement& one) {
        one.seconds = 2;
        results.verified = true;
    });
    expect_quiet([](Results&, Measurement& one) {
        one.seconds = 2;
        one.half_round_trip = true;
    });
    expect_quiet([](Results&, Measurement& one) {
        one.seconds = 0.5;
        one.test = perf::Test::bw;
    });
    expect_quiet([](Results&, Measurement& one) {
        one.seconds = 0.5;
        one.queue_pairs = 2;
    });
}

TEST(PollperfWarnings, TheSameTroubleOfManyIsOneSentenceOfTheWorst) {
    expect_warning(
        "read, 64 bytes, direct: the measuring threads migrated to another CPU 9 times (and 2 other "
        "measurements, to a lesser degree)",
        [](Results& results, Measurement& one) {
            one.rounds[0].disturbance.migrations = 2;
            results.measurements.push_back(quiet_one(perf::Test::lat, 64));
            results.measurements[1].rounds[0].disturbance.migrations = 9;
            results.measurements.push_back(quiet_one(perf::Test::lat, 128));
            results.measurements[2].rounds[0].disturbance.migrations = 4;
        });
}

}  // namespace
}  // namespace pollcore::perf
