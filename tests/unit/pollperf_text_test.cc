// The tables in which people read pollperf's results.
#include <algorithm>
#include <array>
#include <iterator>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "pollperf/report/text_report.hpp"
#include "pollperf_results.hpp"

namespace pollcore::perf {
namespace {

std::vector<std::string> lines_of(const std::string& text) {
    std::vector<std::string> lines;
    std::istringstream in(text);
    for (std::string line; std::getline(in, line);) {
        lines.push_back(line);
    }
    return lines;
}

std::vector<std::vector<std::string>> lines_with_first(const std::string& text, const std::string& first) {
    std::vector<std::vector<std::string>> found;
    for (const std::string& line : lines_of(text)) {
        std::istringstream words(line);
        std::vector<std::string> fields{std::istream_iterator<std::string>(words), {}};
        if (!fields.empty() && fields[0] == first) {
            found.push_back(std::move(fields));
        }
    }
    return found;
}

void expect_narrow(const std::string& text) {
    for (const std::string& line : lines_of(text)) {
        EXPECT_LE(line.size(), kReportColumns) << line;
    }
}

TEST(PollperfText, AScriptFindsSizeAndTypicalLatencyWherePerftestHasThem) {
    Results results = full_results();
    results.measurements.erase(results.measurements.begin() + 1, results.measurements.end());
    const auto rows = lines_with_first(text_report(results), "64");
    ASSERT_EQ(rows.size(), 2u);  // the other one says what was offered
    ASSERT_EQ(rows[0].size(), 10u);
    EXPECT_EQ(rows[0][1], "10000");
    EXPECT_EQ(rows[0][2], "0.200");
    EXPECT_EQ(rows[0][3], "4.000");
    EXPECT_EQ(rows[0][4], "0.400");
    EXPECT_EQ(rows[0][9], "4.000");
    EXPECT_EQ(rows[1][1], "bytes:");
    const auto headings = lines_with_first(text_report(results), "#bytes");
    ASSERT_EQ(headings.size(), 1u);
    EXPECT_EQ(headings[0],
              (std::vector<std::string>{"#bytes", "#iterations", "t_min[usec]", "t_max[usec]", "t_typical[usec]",
                                        "t_avg[usec]", "t_stdev[usec]", "99%", "99.9%", "99.99%"}));
}

TEST(PollperfText, SizesOfOneOperationAndPathAreOneTable) {
    std::vector<Measurement> sweep;
    for (const std::uint32_t size : {2u, 64u, 4096u}) {
        for (const PathKind path : {PathKind::direct, PathKind::runtime}) {
            sweep.push_back(measured_one(perf::Test::lat, Op::write, path, size, 300));
        }
    }
    const std::string text = text_report(results_of(perf::Test::lat, sweep));
    EXPECT_EQ(lines_with_first(text, "#bytes").size(), 2u);
    EXPECT_EQ(lines_with_first(text, "4096").size(), 2u);
    EXPECT_NE(text.find("write, direct: times are half of there-and-back"), std::string::npos) << text;
    expect_narrow(text);
}

TEST(PollperfText, BandwidthHasPerftestsColumnsAndUnits) {
    Measurement one = measured_one(perf::Test::bw, Op::send, PathKind::direct, 1 << 20, 9000);
    one.operations = 1000;
    one.seconds = 2;
    one.rounds = {{.seconds = 1, .operations = 400}, {.seconds = 1, .operations = 600}};
    one.sent = 1002;
    one.arrived = 990;
    Results results = results_of(perf::Test::bw, {one});
    auto rows = lines_with_first(text_report(results), "1048576");
    ASSERT_EQ(rows.size(), 1u);
    EXPECT_EQ(rows[0],
              (std::vector<std::string>{"1048576", "1000", "600.00", "500.00", "0.000500", "9.023", "9.023", "12"}));
    EXPECT_NE(text_report(results).find("MB/sec: 2^20 bytes"), std::string::npos);
    EXPECT_NE(text_report(results).find("too few rounds"), std::string::npos);
    results.settings.emplace_back("report_gbits", "yes");
    rows = lines_with_first(text_report(results), "1048576");
    EXPECT_EQ(rows.at(0).at(3), "4.19");
    EXPECT_NE(text_report(results).find("BW_average[Gb/sec]"), std::string::npos);
    expect_narrow(text_report(results));
}

TEST(PollperfText, RatesAreMessagesPerSecond) {
    Measurement one = measured_one(perf::Test::rate, Op::write, PathKind::direct, 8, 900);
    const std::string text = text_report(results_of(perf::Test::rate, {one}));
    const auto rows = lines_with_first(text, "8");
    ASSERT_EQ(rows.size(), 1u);
    EXPECT_EQ(rows[0][1], "10000");
    EXPECT_EQ(rows[0][2], "0.020112");
    EXPECT_EQ(rows[0][3], "20000");
    EXPECT_EQ(rows[0][4], "0.020000");
    EXPECT_EQ(rows[0][5], "0.901");
    expect_narrow(text);
}

TEST(PollperfText, NoLineIsWiderThanTheColumnsWhateverTheFigures) {
    for (const perf::Test test : {perf::Test::lat, perf::Test::bw, perf::Test::rate}) {
        std::vector<Measurement> all;
        for (const PathKind path : {PathKind::direct, PathKind::runtime, PathKind::attached}) {
            Measurement one = measured_one(test, Op::compare_swap, path, 1u << 31, 300'000'000'000);
            one.transport = QpType::ud;
            one.operations = 99'999'999'999;
            one.seconds = 1e-3;
            one.bidirectional = true;
            one.offered_per_s = 123'456'789'012;
            one.posted_late = 10'000'000'000;
            one.sent = 99'999'999'999;
            one.arrived = 3;
            one.send_doorbells = 12'345'678;
            one.rounds[0].disturbance.worker = one.rounds[0].disturbance.application = {12'345'678, 123'456'789};
            one.stages = StageLatency{};
            all.push_back(one);
        }
        Results results = results_of(test, all);
        results.round_trip = RoundTrips{.before = {.typical_ns = 100}, .after = {.typical_ns = 100}};
        results.command = "pollperf " + std::string(300, 'x') + " -d soft0 " + std::string(119, 'y');
        for (int i = 0; i < 40; ++i) {
            results.settings.emplace_back(fmt::format("setting-{}", i), "a value");
        }
        results.warnings = {"words " + std::string(110, 'w') +
                            " and many more of them, until the line has to end somewhere "
                            "before its columns are used up"};
        results.host.machine.cpu_model = std::string(130, 'm');
        const std::string text = text_report(results);
        expect_narrow(text);
        EXPECT_NE(text.find("warning: words"), std::string::npos);
        // Nothing is lost by folding.
        std::string packed;
        std::ranges::remove_copy_if(text, std::back_inserter(packed), [](char c) { return c == ' ' || c == '\n'; });
        EXPECT_NE(packed.find(std::string(300, 'x') + "-dsoft0" + std::string(119, 'y')), std::string::npos);
    }
}

TEST(PollperfText, FoldingDoesNotBreakACharacter) {
    Results results = results_of(perf::Test::lat, {});
    results.command.clear();
    for (int i = 0; i < 100; ++i) {
        results.command += "\u00e9\u20ac";
    }
    for (const std::string& line : lines_of(text_report(results))) {
        EXPECT_NO_THROW((void)nlohmann::json(line).dump()) << line;
    }
}

TEST(PollperfText, ItHasHopsSpreadStagesAndWarnings) {
    const std::string text = text_report(full_results());
    for (const char* const part :
         {"send, 64 bytes                    200 ns      400 ns     +200 ns          2.00      440 ns        1.10",
          "raw round trip between CPU 0 and CPU 1: 90 ns (99%: 120 ns), afterwards 110 ns (99%: 130 ns)",
          "send, 64 bytes, runtime", "403.5 ns", "warning: a sentence", "submission ring", "core 0, worker-core 1",
          "pollperf lat -o all", "0.50 / 0.03", "here: A CPU, 2 CPUs"}) {
        EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
    }
    expect_narrow(text);
}

TEST(PollperfText, AMeasurementWithoutSamplesHasNoFigures) {
    const Measurement none{.test = perf::Test::lat, .size = 77};
    const auto rows = lines_with_first(text_report(results_of(perf::Test::lat, {none})), "77");
    ASSERT_EQ(rows.size(), 1u);
    EXPECT_EQ(rows[0][4], "-");
}

// The times are below 512 ns, where each is a bucket of its own.
Results brief_example() {
    constexpr std::array<std::array<std::uint64_t, 3>, 4> kTimes{
        {{175, 320, 335}, {135, 235, 240}, {120, 300, 310}, {160, 351, 361}}};
    constexpr std::array kBriefOps{Op::send, Op::write, Op::read, Op::fetch_add};
    constexpr std::array kBriefPaths{PathKind::direct, PathKind::runtime, PathKind::attached};
    std::vector<Measurement> all;
    for (std::size_t op = 0; op < kBriefOps.size(); ++op) {
        for (std::size_t path = 0; path < kBriefPaths.size(); ++path) {
            all.push_back(measured_one(perf::Test::lat, kBriefOps[op], kBriefPaths[path],
                                       is_atomic(kBriefOps[op]) ? 8 : 2, kTimes[op][path]));
        }
    }
    return results_of(perf::Test::lat, std::move(all));
}

TEST(PollperfBrief, ItIsTheTableOfTheReadme) {
    EXPECT_EQ(brief_report(brief_example()), R"(One operation at a time, of 2 bytes, on a device in software:

                                  by verbs, on the      through a worker  from another process
                                     thread itself        on another CPU   through that worker
send a message                              175 ns                320 ns                335 ns
write to the peer's memory                  135 ns                235 ns                240 ns
read from the peer's memory                 120 ns                300 ns                310 ns
add to a number there                       160 ns                351 ns                361 ns
the thread slept, times                          0                     0                     0

An operation goes from CPU 0 to the worker's CPU 1 and back, up to 191 ns more here,
for which threads and processes share the device without a lock.
)");
}

TEST(PollperfBrief, OneCpuAndSleepsAndOtherDevicesAreNamed) {
    Results results = brief_example();
    results.settings = {{"core", "3"}, {"worker-core", "3"}};
    results.device = "mlx5_0 (ConnectX-6)";
    std::erase_if(results.measurements, [](const Measurement& one) { return one.path == PathKind::attached; });
    for (Measurement& one : results.measurements) {
        one.path = one.path == PathKind::direct ? PathKind::event : one.path;
        one.rounds[0].disturbance.application.voluntary = one.path == PathKind::event ? 25 : 0;
    }
    const std::string text = brief_report(results);
    for (const char* const part :
         {"of 2 bytes, on mlx5_0 (ConnectX-6):", "thread that sleeps", "by turns",
          "the thread slept, times                        100                     0", "This process has one CPU"}) {
        EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
    }
    EXPECT_EQ(text.find("another process"), std::string::npos);
}

TEST(PollperfBrief, TheRoundTripNamesTheCpusIfNoSettingDoes) {
    Results results = brief_example();
    results.settings.clear();
    results.round_trip = RoundTrips{.before = {.core = 4, .other = 6}, .after = {}};
    EXPECT_NE(brief_report(results).find("from CPU 4 to the worker's CPU 6"), std::string::npos);
}

}  // namespace
}  // namespace pollcore::perf
