// Demands on the figures of a run, and its comparison with a baseline.
#include <stdlib.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "pollperf/report/demands.hpp"
#include "pollperf/report/json_document.hpp"

namespace pollcore::perf {
namespace {

namespace fs = std::filesystem;

// 1000 samples of 200 ns, of which 20 have 400; 10000 operations per second.
Measurement checked_one(perf::Test test, std::uint32_t size = 8, PathKind path = PathKind::direct) {
    Measurement one{.test = test, .op = Op::send, .path = path, .size = size};
    one.latency.add(200, 980);
    one.latency.add(400, 20);
    one.operations = 1000;
    one.seconds = 0.1;
    return one;
}

Results checked_run(perf::Test test) {
    Results results;
    results.test = test;
    results.measurements = {checked_one(test)};
    return results;
}

Demands with_baseline(const Results& before, double tolerance = 0.05) {
    return {.baseline = nlohmann::json::parse(json_text(before)), .tolerance = tolerance};
}

// The sentences contain these words, one of them in each, in this order.
void expect_sentences(const std::vector<std::string>& sentences, const std::vector<std::string>& words) {
    ASSERT_EQ(sentences.size(), words.size()) << (sentences.empty() ? "" : sentences.front());
    for (std::size_t i = 0; i < words.size(); ++i) {
        EXPECT_NE(sentences[i].find(words[i]), std::string::npos) << sentences[i] << "\nlacks: " << words[i];
    }
}

// ---- Demands ----

TEST(PollperfDemands, WithoutDemandsNothingIsMissed) {
    EXPECT_TRUE(missed(checked_run(perf::Test::lat), {}).empty());
    EXPECT_TRUE(missed({}, {}).empty());
}

TEST(PollperfDemands, AFigureThatMeetsItsDemandExactlyIsNotMissed) {
    EXPECT_TRUE(missed(checked_run(perf::Test::lat),
                       {.bytes_per_s_least = 80'000, .operations_per_s_least = 10'000, .p99_ns_most = 400})
                    .empty());
}

TEST(PollperfDemands, EachMissedDemandIsNamedWithItsShare) {
    expect_sentences(missed(checked_run(perf::Test::bw),
                            {.bytes_per_s_least = 100'000, .operations_per_s_least = 20'000, .p99_ns_most = 320}),
                     {"send, 8 bytes, direct: the bandwidth is 80000.0 bytes/s, 20.0 % less than the demanded 100000",
                      "the rate is 10000.0 operations/s, 50.0 % less than the demanded 20000.0",
                      "the 99 % latency is 400.0 ns, 25.0 % more than the demanded 320.0 ns"});
}

TEST(PollperfDemands, EveryMeasurementIsJudged) {
    Results results = checked_run(perf::Test::bw);
    results.measurements.push_back(checked_one(perf::Test::bw, 4096));
    results.measurements.push_back(checked_one(perf::Test::bw, 16, PathKind::runtime));
    expect_sentences(missed(results, {.bytes_per_s_least = 1'000'000}), {"8 bytes, direct", "16 bytes, runtime"});
}

TEST(PollperfDemands, WithoutSamplesADemandIsMissed) {
    Results results = checked_run(perf::Test::lat);
    results.measurements[0] = {.test = perf::Test::lat, .size = 8};
    expect_sentences(missed(results, {.bytes_per_s_least = 1, .operations_per_s_least = 1, .p99_ns_most = 1e9}),
                     {"no samples for the bandwidth", "no samples for the rate", "no samples for the 99 % latency"});
    // Not even a demand that every figure meets.
    EXPECT_EQ(missed(results, {.operations_per_s_least = 0}).size(), 1u);
    results.measurements.clear();
    expect_sentences(missed(results, {.p99_ns_most = 1e9}), {"nothing was measured"});
}

// ---- Baselines ----

TEST(PollperfBaseline, ARunIsNotWorseThanItself) {
    for (const perf::Test test : {perf::Test::lat, perf::Test::bw, perf::Test::rate}) {
        EXPECT_TRUE(missed(checked_run(test), with_baseline(checked_run(test), 0)).empty()) << test_name(test);
    }
}

TEST(PollperfBaseline, LatenciesMayNotGrowBeyondTheTolerance) {
    Results before = checked_run(perf::Test::lat), now = before;
    now.measurements[0].latency.clear();
    now.measurements[0].latency.add(230, 980);
    now.measurements[0].latency.add(500, 20);
    expect_sentences(
        missed(now, with_baseline(before)),
        {"send, 8 bytes, direct: the typical latency is 230.0 ns, 15.0 % more than the baseline's 200.0 ns; "
         "5 % are allowed",
         "the 99 % latency is 500.0 ns, 25.0 % more than the baseline's 400.0 ns"});
    expect_sentences(missed(now, with_baseline(before, 0.2)), {"the 99 % latency"});
    EXPECT_TRUE(missed(now, with_baseline(before, 0.26)).empty());
    EXPECT_TRUE(missed(before, with_baseline(now, 0)).empty()) << "faster is not worse";
    now.measurements[0].operations = 1;
    EXPECT_TRUE(missed(now, with_baseline(before, 0.26)).empty()) << "a latency test is not judged by its rate";
}

TEST(PollperfBaseline, BandwidthAndRateMayNotShrinkBeyondTheTolerance) {
    for (const perf::Test test : {perf::Test::bw, perf::Test::rate}) {
        Results before = checked_run(test), now = before;
        now.measurements[0].operations = 900;
        expect_sentences(missed(now, with_baseline(before)), {"10.0 % less than the baseline's"});
        EXPECT_TRUE(missed(now, with_baseline(before, 0.101)).empty());
        EXPECT_TRUE(missed(before, with_baseline(now, 0)).empty());
        now.measurements[0].operations = 1000;
        now.measurements[0].latency.add(1'000'000, 10'000);
        EXPECT_TRUE(missed(now, with_baseline(before, 0)).empty()) << "it is not judged by its latency";
    }
}

TEST(PollperfBaseline, AResultWithoutCounterpartIsMissedAndMoreResultsAreNot) {
    Results before = checked_run(perf::Test::lat), now = before;
    now.measurements.push_back(checked_one(perf::Test::lat, 4096));
    EXPECT_TRUE(missed(now, with_baseline(before)).empty());
    expect_sentences(missed(before, with_baseline(now)), {"send, 4096 bytes, direct: the baseline has it"});
}

TEST(PollperfBaseline, OnlyTheSameIsCompared) {
    const Results before = checked_run(perf::Test::lat);
    const auto lacks = [&](auto&& change) {
        Results now = before;
        change(now.measurements[0]);
        const auto sentences = missed(now, with_baseline(before));
        return sentences.size() == 1 && sentences[0].find("the baseline has it") != std::string::npos;
    };
    EXPECT_TRUE(lacks([](Measurement& one) { one.op = Op::write; }));
    EXPECT_TRUE(lacks([](Measurement& one) { one.path = PathKind::event; }));
    EXPECT_TRUE(lacks([](Measurement& one) { one.transport = QpType::uc; }));
    EXPECT_TRUE(lacks([](Measurement& one) { one.size = 9; }));
    EXPECT_TRUE(lacks([](Measurement& one) { one.queue_pairs = 2; }));
    EXPECT_TRUE(lacks([](Measurement& one) { one.sessions = 2; }));
    EXPECT_TRUE(lacks([](Measurement& one) { one.threads = 2; }));
    EXPECT_TRUE(lacks([](Measurement& one) { one.workers = 2; }));
    EXPECT_TRUE(lacks([](Measurement& one) { one.bidirectional = true; }));
    EXPECT_TRUE(lacks([](Measurement& one) { one.half_round_trip = true; }));
    EXPECT_TRUE(lacks([](Measurement& one) { one.offered_per_s = 1000; }));
    EXPECT_FALSE(lacks([](Measurement& one) { one.inlined = true; }));
}

TEST(PollperfBaseline, ARunWithoutSamplesMissesIt) {
    for (const perf::Test test : {perf::Test::lat, perf::Test::rate}) {
        Results now = checked_run(test);
        now.measurements[0].latency.clear();
        now.measurements[0].operations = 0;
        const auto sentences = missed(now, with_baseline(checked_run(test)));
        EXPECT_EQ(sentences.size(), test == perf::Test::lat ? 2u : 1u);
        EXPECT_NE(sentences.at(0).find("no samples to compare"), std::string::npos);
    }
}

TEST(PollperfBaseline, AnotherTestIsNotCompared) {
    const Demands demands = with_baseline(checked_run(perf::Test::bw));
    EXPECT_TRUE(comparable(*demands.baseline, perf::Test::bw));
    EXPECT_FALSE(comparable(*demands.baseline, perf::Test::lat));
    EXPECT_FALSE(comparable({{"program", "pollperf bw"}, {"results", nlohmann::json::array()}}, perf::Test::bw));
    EXPECT_FALSE(comparable(nlohmann::json::array(), perf::Test::bw));
    expect_sentences(missed(checked_run(perf::Test::lat), demands), {"the baseline is of pollperf bw"});
}

// ---- Reading a baseline ----

class PollperfBaselineFile : public testing::Test {
protected:
    PollperfBaselineFile() {
        std::string pattern = (fs::temp_directory_path() / "pollperf-XXXXXX").string();
        folder_ = ::mkdtemp(pattern.data());
    }
    ~PollperfBaselineFile() override {
        std::error_code error;
        fs::remove_all(folder_, error);
    }
    // The sentence that refuses a file with this content.
    std::string refused(const std::optional<std::string>& content) {
        const fs::path file = folder_ / "before.json";
        if (content) {
            std::ofstream(file) << *content;
        }
        try {
            (void)read_baseline(file);
        } catch (const std::invalid_argument& error) {
            EXPECT_NE(std::string(error.what()).find(file.string()), std::string::npos) << error.what();
            return error.what();
        }
        return "";
    }

    fs::path folder_;
};

TEST_F(PollperfBaselineFile, TheResultOfARunIsABaseline) {
    const Results run = checked_run(perf::Test::rate);
    EXPECT_EQ(refused(json_text(run)), "");
    const auto baseline = read_baseline(folder_ / "before.json");
    EXPECT_TRUE(comparable(baseline, perf::Test::rate));
    EXPECT_TRUE(missed(run, {.baseline = baseline}).empty());
}

TEST_F(PollperfBaselineFile, WhatIsNoneIsRefusedWithItsFault) {
    const auto changed = [](auto&& change) {
        nlohmann::json json = nlohmann::json::parse(json_text(checked_run(perf::Test::lat)));
        change(json);
        return json.dump();
    };
    const std::vector<std::pair<std::optional<std::string>, std::string>> faults{
        {std::nullopt, "No such file"},
        {"", "is not JSON"},
        {"{\"program\": ", "is not JSON"},
        {"[]", "is not a result of pollperf"},
        {"{}", "is not a result of pollperf"},
        {"17", "is not a result of pollperf"},
        {changed([](auto& json) { json["program"] = "fio"; }), "is not a result of pollperf"},
        {changed([](auto& json) { json["program"] = 3; }), "is not a result of pollperf"},
        {changed([](auto& json) { json["program"] = "pollperf wake"; }), "pollperf wake"},
        {changed([](auto& json) { json["format"] = 1; }), "has format 1, and this version of pollperf reads format 2"},
        {changed([](auto& json) { json.erase("format"); }), "format unknown"},
        {changed([](auto& json) { json["results"].clear(); }), "has no results"},
        {changed([](auto& json) { json["results"] = "none"; }), "has no results"},
        {changed([](auto& json) { json["results"][0] = 5; }), "without operation, path or size"},
        {changed([](auto& json) { json["results"][0].erase("bytes"); }), "without operation, path or size"},
        {changed([](auto& json) { json["results"][0].erase("latency_ns"); }), "no figure for the typical latency"},
        {changed([](auto& json) { json["results"][0]["latency_ns"]["p99"] = "400"; }),
         "no figure for the 99 % latency"},
        {changed([](auto& json) { json["results"][0]["latency_ns"] = nlohmann::json::array(); }), "no figure for"},
    };
    for (const auto& [content, fault] : faults) {
        const std::string said = refused(content);
        EXPECT_NE(said.find(fault), std::string::npos) << content.value_or("(no file)") << "\nsaid: " << said;
    }
    EXPECT_THROW((void)read_baseline(folder_), std::invalid_argument);
}

}  // namespace
}  // namespace pollcore::perf
