// What pollstat tells Prometheus of whole snapshots, and its sums over things that come and go.
#include "pollstat/metrics.hpp"

#include <cstdint>
#include <cstdio>
#include <limits>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "pollcore/latency.hpp"
#include "pollstat/exposition.hpp"
#include "pollstat/group_sums.hpp"

namespace pollcore::stat {
namespace {

using statistics::Kind;
using statistics::ReadRow;
using statistics::ReadTable;
using statistics::Snapshot;
using statistics::Unit;

constexpr std::uint64_t kFrequency = 2'000'000'000;

bool mentions(const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
}

// ---- Sums ----

ReadTable members(const std::vector<std::pair<std::uint64_t, std::uint64_t>>& counts) {
    ReadTable table{.name = "session",
                    .fields = {{"session", Kind::id}, {"count", Kind::counter}, {"now", Kind::gauge}},
                    .rows = {}};
    for (const auto& [id, count] : counts) {
        table.rows.push_back({.words = {{id}, {count}, {99}}, .texts = {"", "", ""}});
    }
    return table;
}

class PrometheusSums : public ::testing::Test {
protected:
    std::uint64_t after(const std::vector<std::pair<std::uint64_t, std::uint64_t>>& counts) {
        sums.take(members(counts), [](const ReadRow&) { return Labels{{"all", "yes"}}; });
        return sums.sums().begin()->second[1][0];
    }
    GroupSums sums;
};

TEST_F(PrometheusSums, AreWhatTheCountersGrewBySinceTheFirstLook) {
    EXPECT_EQ(after({{1, 1000}, {2, 500}}), 0u);
    EXPECT_EQ(after({{1, 1010}, {2, 500}}), 10u);
    EXPECT_EQ(after({{1, 1010}, {2, 505}, {3, 7}}), 22u) << "what began later counts as a whole";
    EXPECT_TRUE(sums.sums().begin()->second[2].empty()) << "a gauge is not summed";
}

TEST_F(PrometheusSums, DoNotFallWhenAMemberEnds) {
    after({{1, 1000}, {2, 0}});
    EXPECT_EQ(after({{1, 1100}, {2, 50}}), 150u);
    EXPECT_EQ(after({{2, 60}}), 160u);
    EXPECT_EQ(after({}), 160u);
    EXPECT_EQ(after({{3, 5}}), 165u);
}

TEST_F(PrometheusSums, CountNothingTwiceIfARowIsMissingOnce) {
    after({{1, 1000}});
    EXPECT_EQ(after({{1, 1001}}), 1u);
    EXPECT_EQ(after({}), 1u);
    EXPECT_EQ(after({{1, 1003}}), 3u);
}

TEST_F(PrometheusSums, NeverFallIfACounterDoes) {
    after({{1, 1000}});
    EXPECT_EQ(after({{1, 10}}), 0u);
    EXPECT_EQ(after({{1, 15}}), 5u);
}

TEST_F(PrometheusSums, ForgetMembersThatAreGoneAndLimitTheGroups) {
    std::uint64_t id = 0;
    const auto own_group = [&](const ReadRow& row) { return Labels{{"group", std::to_string(row.words[0][0])}}; };
    for (int i = 0; i < 100; ++i) {
        std::vector<std::pair<std::uint64_t, std::uint64_t>> counts;
        for (int k = 0; k < 100; ++k) {
            counts.emplace_back(++id, 1);
        }
        sums.take(members(counts), own_group);
    }
    EXPECT_LE(sums.sums().size(), 4096u);
}

TEST_F(PrometheusSums, WithstandTablesThatChangeTheirFields) {
    after({{1, 5}});
    ReadTable wider = members({{1, 6}});
    wider.fields.push_back({"more", Kind::histogram});
    wider.rows[0].words.push_back({1, 2, 3});
    wider.rows[0].texts.emplace_back();
    const auto group = [](const ReadRow&) { return Labels{{"all", "yes"}}; };
    sums.take(wider, group);
    wider.rows[0].words[3] = {4};
    sums.take(wider, group);
    EXPECT_EQ(after({{1, 8}}), 3u);
}

// ---- Whole snapshots ----

/// A runtime at a second of its life, with a worker that is busy for a quarter of the time.
Snapshot runtime_at(std::uint64_t second) {
    Snapshot all;
    all.alive = true;
    all.header.pid = 77;
    all.header.cycles_per_second = kFrequency;
    all.header.began = 1'700'000'000'000'000'000;
    all.header.updated = (100 + second) * 1'000'000'000;
    all.header.updates = second * 20;
    std::snprintf(all.header.name.data(), all.header.name.size(), "evil\"\n\xff\\");
    all.tables.push_back({.name = "runtime",
                          .fields = {{"runtime", Kind::id}, {"version", Kind::text}, {"hangs", Kind::counter}},
                          .rows = {{.words = {{1}, {}, {second}}, .texts = {"", "0.3", ""}}}});
    std::vector<std::uint64_t> wake_up(40);
    wake_up[11] = second;
    all.tables.push_back({.name = "worker",
                          .fields = {{"worker", Kind::id},
                                     {"name", Kind::text},
                                     {"core", Kind::gauge},
                                     {"sends", Kind::counter},
                                     {"idle_spin", Kind::counter, Unit::cycles},
                                     {"longest_step", Kind::gauge, Unit::cycles},
                                     {"by_status", Kind::counter},
                                     {"wake_up", Kind::histogram, Unit::cycles},
                                     {"burst", Kind::histogram}},
                          .rows = {{.words = {{1},
                                              {},
                                              {5},
                                              {1000 * second},
                                              {kFrequency / 4 * 3 * second},
                                              {4000},
                                              {second, 2 * second},
                                              wake_up,
                                              {1, 2}},
                                    .texts = {"", "worker0", "", "", "", "", "", "", ""}}}});
    all.tables.push_back({.name = "device",
                          .fields = {{"device", Kind::id},
                                     {"name", Kind::text},
                                     {"process", Kind::id},
                                     {"lost", Kind::gauge, Unit::boolean}},
                          .rows = {{.words = {{1}, {}, {0}, {0}}, .texts = {"", "nic0", "", ""}}}});
    ReadTable processes{.name = "process",
                        .fields = {{"process", Kind::id},
                                   {"name", Kind::text},
                                   {"pid", Kind::gauge},
                                   {"uid", Kind::gauge},
                                   {"bytes", Kind::gauge, Unit::bytes},
                                   {"refused", Kind::counter}},
                        .rows = {}};
    for (std::uint64_t i = 1; i <= 3; ++i) {
        processes.rows.push_back({.words = {{i}, {}, {4000 + i}, {i == 3 ? 1002u : 1001u}, {i * 100}, {i * second}},
                                  .texts = {"", "program\n" + std::to_string(i), "", "", "", ""}});
    }
    all.tables.push_back(std::move(processes));
    ReadTable sessions{.name = "session",
                       .fields = {{"session", Kind::id},
                                  {"name", Kind::text},
                                  {"worker", Kind::id},
                                  {"process", Kind::id},
                                  {"retired", Kind::counter},
                                  {"device_stage", Kind::latency, Unit::cycles}},
                       .rows = {}};
    for (std::uint64_t i = 1; i <= 4; ++i) {
        std::vector<std::uint64_t> stage(LatencyHistogram::kBuckets);
        stage[LatencyHistogram::bucket_of(2000)] = 10 * second;
        sessions.rows.push_back({.words = {{i}, {}, {1}, {i - 1}, {i * second}, stage},
                                 .texts = {"", "s" + std::to_string(i), "", "", "", ""}});
    }
    all.tables.push_back(std::move(sessions));
    all.tables.push_back(
        {.name = "event",
         .fields = {{"event", Kind::id}, {"text", Kind::text}, {"time", Kind::gauge, Unit::nanoseconds}},
         .rows = {{.words = {{1}, {}, {7}}, .texts = {"", "a line of the log", ""}}}});
    return all;
}

class PrometheusMetrics : public ::testing::Test {
protected:
    std::string look(const Snapshot& snapshot, std::uint64_t now = 0, std::size_t samples_max = 100'000) {
        Exposition out;
        metrics.add(out, "77-1-0", 997, snapshot, now, samples_max);
        left_out = out.left_out_of_source();
        return out.text();
    }
    /// The value of a series, as text: "name" or "name{labels}", without the labels of the runtime.
    static std::string value(const std::string& text, std::string series) {
        static const std::string common = R"(runtime="evil\"\n\\xff\\",segment="77-1-0")";
        const std::size_t brace = series.find('{');
        series =
            brace == std::string::npos ? series + "{" + common + "} " : series.insert(brace + 1, common + ",") + " ";
        std::istringstream lines(text);
        for (std::string line; std::getline(lines, line);) {
            if (line.starts_with(series)) {
                return line.substr(series.size());
            }
        }
        return "none";
    }
    Metrics metrics{MetricsOptions{}};
    std::size_t left_out = 0;
};

TEST_F(PrometheusMetrics, FollowWhatTheSegmentSaysOfItsFields) {
    const std::string text = look(runtime_at(10), 110'500'000'000);
    EXPECT_EQ(value(text, "pollcore_up"), "1");
    EXPECT_EQ(value(text, "pollcore_start_time_seconds"), "1700000000");
    EXPECT_EQ(value(text, "pollcore_update_age_seconds"), "0.5");
    EXPECT_EQ(value(text, R"(pollcore_runtime_info{pid="77",uid="997",version="0.3"})"), "1");
    EXPECT_EQ(value(text, "pollcore_runtime_hangs_total"), "10");
    EXPECT_EQ(value(text, R"(pollcore_worker_info{worker="worker0",core="5"})"), "1");
    EXPECT_EQ(value(text, R"(pollcore_worker_sends_total{worker="worker0"})"), "10000");
    EXPECT_EQ(value(text, R"(pollcore_worker_idle_spin_seconds_total{worker="worker0"})"), "7.5");
    EXPECT_EQ(value(text, R"(pollcore_worker_longest_step_seconds{worker="worker0"})"), "2e-06");
    EXPECT_EQ(value(text, R"(pollcore_worker_by_status_total{worker="worker0",index="1"})"), "20");
    EXPECT_EQ(value(text, R"(pollcore_worker_wake_up_seconds_count{worker="worker0"})"), "10");
    EXPECT_EQ(value(text, R"(pollcore_worker_wake_up_seconds_bucket{worker="worker0",le="5e-07"})"), "0");
    EXPECT_EQ(value(text, R"(pollcore_worker_wake_up_seconds_bucket{worker="worker0",le="2e-06"})"), "10");
    EXPECT_EQ(value(text, R"(pollcore_worker_burst_bucket{worker="worker0",le="0"})"), "1");
    EXPECT_EQ(value(text, R"(pollcore_device_lost{device="nic0"})"), "0");
    EXPECT_EQ(value(text, R"(pollcore_process_bytes{process="2",name="program\n2",uid="1001"})"), "200");
    EXPECT_EQ(value(text, R"(pollcore_process_info{process="2",name="program\n2",uid="1001",pid="4002"})"), "1");
    EXPECT_FALSE(mentions(text, "event"));
    EXPECT_FALSE(mentions(text, "worker_core"));
    EXPECT_EQ(left_out, 0u);
}

TEST_F(PrometheusMetrics, SumTheProcessesOfEachUser) {
    look(runtime_at(10));
    Snapshot later = runtime_at(11);
    const std::string text = look(later);
    EXPECT_EQ(value(text, R"(pollcore_user_processes{uid="1001"})"), "2");
    EXPECT_EQ(value(text, R"(pollcore_user_bytes{uid="1001"})"), "300");
    EXPECT_EQ(value(text, R"(pollcore_user_bytes{uid="1002"})"), "300");
    EXPECT_EQ(value(text, R"(pollcore_user_refused_total{uid="1001"})"), "3");
    EXPECT_EQ(value(text, R"(pollcore_user_refused_total{uid="1002"})"), "3");
    EXPECT_FALSE(mentions(text, "pollcore_user_pid"));
    later.tables[3].rows.erase(later.tables[3].rows.begin(), later.tables[3].rows.begin() + 2);
    const std::string last = look(later);
    EXPECT_EQ(value(last, R"(pollcore_user_processes{uid="1001"})"), "0");
    EXPECT_EQ(value(last, R"(pollcore_user_bytes{uid="1001"})"), "0");
    EXPECT_EQ(value(last, R"(pollcore_user_refused_total{uid="1001"})"), "3");
}

TEST_F(PrometheusMetrics, SumSessionsByWorkerAndUserIfNotAskedForEach) {
    look(runtime_at(10));
    const std::string text = look(runtime_at(12));
    EXPECT_EQ(value(text, R"(pollcore_session_retired_total{worker="worker0"})"), "2") << "the runtime's own";
    EXPECT_EQ(value(text, R"(pollcore_session_retired_total{worker="worker0",uid="1001"})"), "10");
    EXPECT_EQ(value(text, R"(pollcore_session_device_stage_seconds_count{worker="worker0",uid="1001"})"), "40");
    EXPECT_FALSE(mentions(text, "session="));
    metrics = Metrics{MetricsOptions{.per_session = true}};
    const std::string each = look(runtime_at(12));
    EXPECT_EQ(
        value(each, R"(pollcore_session_retired_total{session="3",name="s3",worker="worker0",process="2",uid="1001"})"),
        "36");
    EXPECT_EQ(
        value(
            each,
            R"(pollcore_session_device_stage_seconds_count{session="3",name="s3",worker="worker0",process="2",uid="1001"})"),
        "120");
}

TEST_F(PrometheusMetrics, CountTheBusyTimeWhichNeverDecreases) {
    const char* const busy = R"(pollcore_worker_busy_seconds_total{worker="worker0"})";
    EXPECT_EQ(value(look(runtime_at(10)), busy), "0");
    EXPECT_EQ(value(look(runtime_at(14)), busy), "1");
    Snapshot newer_idle = runtime_at(15);
    newer_idle.header.updated -= 900'000'000;
    EXPECT_EQ(value(look(newer_idle), busy), "1");
    EXPECT_EQ(value(look(runtime_at(18)), busy), "2");
    Snapshot another = runtime_at(1);
    another.header.began += 1;
    EXPECT_EQ(value(look(another), busy), "0") << "another runtime in a file of this name";
}

TEST_F(PrometheusMetrics, TakeTheBusyTimeFromTheSegmentIfItHasOne) {
    Snapshot snapshot = runtime_at(10);
    snapshot.tables[1].fields[6] = {"busy", Kind::counter, Unit::cycles};
    snapshot.tables[1].rows[0].words[6] = {kFrequency * 3};
    EXPECT_EQ(value(look(snapshot), R"(pollcore_worker_busy_seconds_total{worker="worker0"})"), "3");
    EXPECT_EQ(left_out, 0u);
}

TEST_F(PrometheusMetrics, OfADeadRuntimeSayOnlyThatItIsNotUp) {
    Snapshot dead = runtime_at(10);
    dead.alive = false;
    const std::string text = look(dead);
    EXPECT_EQ(value(text, "pollcore_up"), "0");
    EXPECT_FALSE(mentions(text, "worker"));
}

TEST_F(PrometheusMetrics, ForgetRuntimesThatHaveEnded) {
    const char* const busy = R"(pollcore_worker_busy_seconds_total{worker="worker0"})";
    look(runtime_at(10));
    metrics.forget_others();
    EXPECT_EQ(value(look(runtime_at(14)), busy), "1") << "it is still there";
    metrics.forget_others();
    metrics.forget_others();
    EXPECT_EQ(value(look(runtime_at(14)), busy), "0");
}

TEST_F(PrometheusMetrics, WithoutAFrequencyThereAreNoTimesThatNeedOne) {
    Snapshot snapshot = runtime_at(10);
    snapshot.header.cycles_per_second = 0;
    const std::string text = look(snapshot);
    EXPECT_EQ(value(text, R"(pollcore_worker_sends_total{worker="worker0"})"), "10000");
    EXPECT_FALSE(mentions(text, "idle_spin"));
    EXPECT_FALSE(mentions(text, " inf"));
    EXPECT_FALSE(mentions(text, " nan"));
}

TEST_F(PrometheusMetrics, OfARuntimeHaveALimit) {
    const std::string text = look(runtime_at(10), 0, 20);
    EXPECT_GT(left_out, 20u);
    EXPECT_EQ(value(text, "pollcore_up"), "1");
}

// An enemy's segment: each field has each kind and unit, and rows have too few words.
TEST_F(PrometheusMetrics, OfAnEnemysTablesAreStillWellFormed) {
    const std::set<std::string> tables{"runtime", "worker", "device", "process", "session", "queue_pair", "", "x\n"};
    for (const MetricsOptions options : {MetricsOptions{}, MetricsOptions{true, true}}) {
        metrics = Metrics{options};
        Snapshot snapshot = runtime_at(1);
        snapshot.tables.clear();
        for (const std::string& name : tables) {
            ReadTable table{.name = name, .fields = {}, .rows = {}};
            for (int kind = 0; kind < 9; ++kind) {
                for (int unit = 0; unit < 6; ++unit) {
                    table.fields.push_back({(kind == 0   ? "runtime"
                                             : kind == 1 ? "uid"
                                             : kind == 4 ? "name"
                                                         : "\n\"}") +
                                                std::to_string(unit % 2),
                                            static_cast<Kind>(kind), static_cast<Unit>(unit)});
                }
            }
            for (int i = 0; i < 3; ++i) {
                ReadRow row;
                for (const statistics::ReadField& field : table.fields) {
                    const bool text = field.kind == Kind::text;
                    row.words.emplace_back(text ? 0 : i + 1, std::numeric_limits<std::uint64_t>::max());
                    row.texts.emplace_back(text ? "\n} 1\n\"\\\xc0" : "");
                }
                table.rows.push_back(std::move(row));
            }
            snapshot.tables.push_back(std::move(table));
        }
        look(snapshot);
        const std::string text = look(snapshot);
        std::istringstream lines(text);
        std::set<std::string> series;
        for (std::string line; std::getline(lines, line);) {
            if (line.starts_with("# ")) {
                continue;
            }
            const std::size_t end = line.rfind(' ');
            ASSERT_NE(end, std::string::npos) << line;
            ASSERT_TRUE(line.starts_with("pollcore_") && line[end - 1] == '}') << line;
            EXPECT_TRUE(series.insert(line.substr(0, end)).second) << "twice: " << line;
            EXPECT_EQ(line.find_first_not_of("0123456789.e+-", end + 1), std::string::npos) << line;
        }
    }
}

}  // namespace
}  // namespace pollcore::stat
