// What pollstat makes of two looks at a runtime, and its live view without a terminal.
#include <algorithm>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "pollcore/latency.hpp"
#include "pollstat/json.hpp"
#include "pollstat/live_model.hpp"
#include "pollstat/shown.hpp"
#include "pollstat/table_text.hpp"
#include "pollstat/trace_file.hpp"

namespace pollcore::stat {
namespace {

using statistics::Kind;
using statistics::ReadRow;
using statistics::ReadTable;
using statistics::Snapshot;
using statistics::Unit;

constexpr std::uint64_t kCyclesPerSecond = 2'000'000'000;

/// A runtime at a second of its life: two workers, of which the second one is busy for a quarter of the time.
Snapshot at_second(std::uint64_t second) {
    Snapshot all;
    all.alive = true;
    all.header.pid = 77;
    all.header.cycles_per_second = kCyclesPerSecond;
    all.header.updated = second * 1'000'000'000;
    std::snprintf(all.header.name.data(), all.header.name.size(), "evil\x1b[2J");
    ReadTable workers{.name = "worker",
                      .fields = {{"worker", Kind::id},
                                 {"name", Kind::text},
                                 {"sends", Kind::counter},
                                 {"send_doorbells", Kind::counter},
                                 {"idle_spin", Kind::counter, Unit::cycles},
                                 {"longest_step", Kind::gauge, Unit::cycles}},
                      .rows = {}};
    for (std::uint64_t i = 1; i <= 2; ++i) {
        const std::uint64_t idle = i == 1 ? kCyclesPerSecond : kCyclesPerSecond / 4 * 3;
        workers.rows.push_back(
            {.words = {{i}, {}, {1000 * i * second}, {100 * i * second}, {idle * second}, {4000 * i}},
             .texts = {"", i == 1 ? "zebra" : "ape", "", "", "", ""}});
    }
    ReadTable sessions{.name = "session",
                       .fields = {{"session", Kind::id},
                                  {"name", Kind::text},
                                  {"worker", Kind::id},
                                  {"device_stage", Kind::latency, Unit::cycles}},
                       .rows = {}};
    for (std::uint64_t i = 1; i <= 30; ++i) {
        std::vector<std::uint64_t> stage(LatencyHistogram::kBuckets);
        stage[LatencyHistogram::bucket_of(2000)] = 10 * second;
        sessions.rows.push_back(
            {.words = {{i}, {}, {i % 2 + 1}, stage}, .texts = {"", "s" + std::to_string(i), "", ""}});
    }
    all.tables = {std::move(workers), std::move(sessions)};
    return all;
}

const ShownValue& value(const std::vector<ShownTable>& tables, std::size_t table, std::size_t row,
                        std::string_view field) {
    return tables.at(table).rows.at(row).at(tables.at(table).field(field).value());
}

TEST(PollstatShown, SaysHowMuchCountersGrewAndHowBusyWorkersWere) {
    const std::vector<ShownTable> tables = shown(at_second(10), at_second(12));
    EXPECT_DOUBLE_EQ(value(tables, 0, 1, "sends").total[0], 24000);
    EXPECT_DOUBLE_EQ(value(tables, 0, 1, "sends").rate, 2000);
    EXPECT_DOUBLE_EQ(value(tables, 0, 0, "busy").total[0], 0);
    EXPECT_DOUBLE_EQ(value(tables, 0, 1, "busy").total[0], 0.25);
    EXPECT_DOUBLE_EQ(value(tables, 0, 1, "longest_step").total[0], 4000);  // ns
    const ShownValue& stage = value(tables, 1, 0, "device_stage");
    EXPECT_DOUBLE_EQ(stage.total.at(2), 20);
    EXPECT_NEAR(stage.total.at(0), 1000, 250);
}

TEST(PollstatShown, KnowsNoRateOfAThingThatIsNew) {
    Snapshot before = at_second(10);
    before.tables[0].rows.erase(before.tables[0].rows.begin());
    const std::vector<ShownTable> tables = shown(before, at_second(11));
    EXPECT_EQ(value(tables, 0, 0, "sends").rate, 0);
    EXPECT_DOUBLE_EQ(value(tables, 0, 1, "sends").rate, 2000);
    // A counter that went back is another thing's: there is no rate, and no overflow.
    EXPECT_EQ(value(shown(at_second(12), at_second(11)), 0, 1, "sends").rate, 0);
}

TEST(PollstatText, NumbersTakeSixCharactersAtMost) {
    for (const double number :
         {0.0, 1.0, 999.0, 999.4, 1000.0, 12345.0, 999'499.0, 999'500.0, 1e9, 1.5, 0.001, -3.25, 1e18}) {
        EXPECT_LE(short_number(number).size(), 6u) << number << " is " << short_number(number);
    }
    EXPECT_EQ(short_number(12345), "12.3k");
    EXPECT_EQ(short_number(999), "999");
    EXPECT_EQ(short_number(2.5), "2.50");
}

TEST(PollstatText, ATerminalIsNotHarmed) {
    const std::vector<ShownTable> tables = shown(at_second(1), at_second(2));
    EXPECT_EQ(text_of(tables).find('\x1b'), std::string::npos);
    EXPECT_EQ(json_of(at_second(1)).find('\x1b'), std::string::npos);
    LiveModel model;
    model.take(at_second(1));
    for (const LiveModel::Line& line : model.lines(120, 10)) {
        EXPECT_EQ(line.text.find('\x1b'), std::string::npos);
    }
}

statistics::Snapshot with_requests(std::vector<std::vector<std::uint64_t>> requests) {
    statistics::Snapshot snapshot;
    snapshot.header.cycles_per_second = 1'000'000;  // a cycle is a microsecond
    statistics::ReadTable sessions{
        .name = "session", .fields = {{"session", Kind::id}, {"name", Kind::text}}, .rows = {}};
    sessions.rows.push_back({.words = {{4}, {}}, .texts = {"", "a\"b\x1b"}});
    statistics::ReadTable followed{.name = "followed", .fields = {}, .rows = {}};
    for (const char* const name :
         {"followed", "session", "queue_pair", "opcode", "submitted", "taken", "completed", "polled"}) {
        followed.fields.push_back({name, Kind::gauge});
    }
    for (const auto& request : requests) {
        statistics::ReadRow row;
        for (const std::uint64_t value : request) {
            row.words.push_back({value});
            row.texts.emplace_back();
        }
        followed.rows.push_back(std::move(row));
    }
    snapshot.tables = {std::move(sessions), std::move(followed)};
    return snapshot;
}

std::vector<nlohmann::json> of_kind(const nlohmann::json& trace, const std::string& kind) {
    std::vector<nlohmann::json> found;
    for (const auto& event : trace["traceEvents"]) {
        if (event["ph"] == kind) {
            found.push_back(event);
        }
    }
    return found;
}

TEST(PollstatTrace, ARequestHasItsThreeStagesOnce) {
    Trace trace;
    trace.add(with_requests({{1, 4, 99, 2, 100, 110, 150, 170}}));
    trace.add(with_requests({{1, 4, 99, 2, 100, 110, 150, 170}}));
    EXPECT_EQ(trace.requests(), 1u);
    const auto all = nlohmann::json::parse(trace.json());
    const auto begins = of_kind(all, "b");
    const auto ends = of_kind(all, "e");
    ASSERT_EQ(begins.size(), 3u);
    ASSERT_EQ(ends.size(), 3u);
    const std::vector<std::pair<double, double>> times{{100, 110}, {110, 150}, {150, 170}};
    for (std::size_t i = 0; i < 3; ++i) {
        EXPECT_DOUBLE_EQ(begins[i]["ts"], times[i].first);
        EXPECT_DOUBLE_EQ(ends[i]["ts"], times[i].second);
        EXPECT_EQ(begins[i]["name"], ends[i]["name"]);
        EXPECT_EQ(begins[i]["pid"], 4);
        EXPECT_EQ(begins[i]["args"]["opcode"], "send");
    }
    ASSERT_EQ(of_kind(all, "M").size(), 1u);
    EXPECT_EQ(of_kind(all, "M")[0]["args"]["name"].get<std::string>().find('\x1b'), std::string::npos);
}

TEST(PollstatTrace, WhatAHostileProcessWroteIsLeftOut) {
    Trace trace;
    trace.add(with_requests({{1, 4, 99, 200, 100, 50, 150, 0}}));  // taken before it was submitted, never polled
    const auto all = nlohmann::json::parse(trace.json());
    ASSERT_EQ(of_kind(all, "b").size(), 1u);
    EXPECT_EQ(of_kind(all, "b")[0]["name"], "device");
    EXPECT_EQ(of_kind(all, "b")[0]["args"]["opcode"], "opcode 200");
    EXPECT_TRUE(nlohmann::json::parse(Trace().json())["traceEvents"].empty());
}

class PollstatLive : public ::testing::Test {
protected:
    PollstatLive() {
        model.take(at_second(10));
        model.take(at_second(11));
    }
    std::vector<std::string> screen(std::size_t width = 120, std::size_t height = 12) {
        std::vector<std::string> texts;
        for (const LiveModel::Line& line : model.lines(width, height)) {
            texts.push_back(line.text);
        }
        return texts;
    }
    static bool has(const std::string& line, const std::string& text) { return line.find(text) != std::string::npos; }
    /// The first word of each row.
    std::vector<std::string> first_words() {
        std::vector<std::string> words;
        const std::vector<std::string> all = screen();
        for (std::size_t i = 2; i + 1 < all.size() && !all[i].empty(); ++i) {
            const std::size_t begin = all[i].find_first_not_of(' ');
            words.push_back(all[i].substr(begin, all[i].find(' ', begin) - begin));
        }
        return words;
    }

    LiveModel model;
};

TEST_F(PollstatLive, ShowsWorkersFirst) {
    const std::vector<std::string> all = screen();
    ASSERT_EQ(all.size(), 12u);
    EXPECT_TRUE(has(all[0], "(process 77): 2 workers")) << all[0];
    EXPECT_TRUE(has(all[2], "ape") && has(all[2], "25.0%") && has(all[2], "2.00k/s") && has(all[2], "10.0")) << all[2];
    EXPECT_TRUE(has(all[3], "zebra") && has(all[3], "0.0%")) << all[3];
    EXPECT_TRUE(has(all.back(), "q quit"));
}

TEST_F(PollstatLive, SortsByEachColumnBothWays) {
    EXPECT_EQ(first_words(), (std::vector<std::string>{"ape", "zebra"}));
    model.press(Key::reverse);
    EXPECT_EQ(first_words(), (std::vector<std::string>{"zebra", "ape"}));
    model.press(Key::sort);  // core, which this runtime does not tell
    model.press(Key::sort);  // busy
    EXPECT_EQ(first_words(), (std::vector<std::string>{"ape", "zebra"}));
}

TEST_F(PollstatLive, ShowsTheSessionsOfAWorker) {
    model.press(Key::down);  // zebra, worker 1
    model.press(Key::enter);
    EXPECT_TRUE(has(screen()[0], "15 sessions of worker 1")) << screen()[0];
    EXPECT_EQ(first_words().front(), "2");
    model.press(Key::back);
    EXPECT_TRUE(has(screen()[0], "2 workers"));
    model.press(Key::back);
    EXPECT_TRUE(has(screen()[0], "2 workers"));
}

TEST_F(PollstatLive, TheSelectedRowStaysOnTheScreen) {
    model.press(Key::sessions);
    for (int i = 0; i < 100; ++i) {
        model.press(Key::down);
    }
    EXPECT_EQ(first_words().back(), "30");
    model.press(Key::page_up);
    model.press(Key::page_up);
    EXPECT_EQ(first_words().front(), "1");
    for (const std::size_t height : {0u, 1u, 2u, 3u, 4u}) {
        EXPECT_EQ(screen(10, height).size(), height);
    }
}

TEST_F(PollstatLive, AFrozenViewStays) {
    model.press(Key::freeze);
    model.take(at_second(100));
    EXPECT_TRUE(has(screen()[0], "frozen"));
    model.press(Key::totals);
    EXPECT_TRUE(has(screen()[2], "22.0k") && has(screen()[0], "totals")) << screen()[2];
    model.press(Key::freeze);
    model.take(at_second(100));
    EXPECT_TRUE(has(screen()[2], "200k")) << screen()[2];
}

TEST_F(PollstatLive, ATableThatTheRuntimeDoesNotHaveIsEmpty) {
    for (const Key key : {Key::queue_pairs, Key::devices, Key::processes, Key::runtime, Key::events}) {
        model.press(key);
        EXPECT_TRUE(first_words().empty());
        model.press(Key::enter);
        model.press(Key::down);
    }
    model.press(Key::quit);
    EXPECT_TRUE(model.quits());
}

}  // namespace
}  // namespace pollcore::stat
