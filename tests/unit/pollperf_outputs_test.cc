// The forms in which pollperf writes its results: JSON, CSV, HdrHistogram's text, tables, files and progress.
#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <random>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "pollcore/error.hpp"
#include "pollperf/report/csv.hpp"
#include "pollperf/report/hdr_text.hpp"
#include "pollperf/report/json_document.hpp"
#include "pollperf/report/output_file.hpp"
#include "pollperf/report/progress.hpp"
#include "pollperf/report/text_report.hpp"

namespace pollcore::perf {
namespace {

namespace fs = std::filesystem;

Measurement measured_one(perf::Test test, Op op, PathKind path, std::uint32_t size, std::uint64_t typical) {
    Measurement one{.test = test, .op = op, .path = path, .size = size, .half_round_trip = !is_answered(op)};
    one.latency.add(typical / 2);
    one.latency.add(typical, 9989);
    one.latency.add(10 * typical, 10);
    one.operations = 10'000;
    one.seconds = 0.5;
    one.messages = 20'000;
    one.send_doorbells = 10'000;
    one.receive_doorbells = 500;
    for (int i = 0; i < 8; ++i) {
        one.rounds.push_back({.seconds = 0.0625,
                              .operations = 1250 + static_cast<std::uint64_t>(i),
                              .median_ns = static_cast<double>(typical) + i,
                              .p99_ns = 2.0 * static_cast<double>(typical),
                              .disturbance = {.steal_ms = 1, .migrations = 0, .application = {0, 1}}});
    }
    return one;
}

Results results_of(perf::Test test, std::vector<Measurement> measurements) {
    Results results;
    results.test = test;
    results.command = fmt::format("pollperf {} -o all", test_name(test));
    results.began = "2026-11-29T07:20:00Z";
    results.device = "soft soft0 (fabric soft0)";
    results.settings = {{"core", "0"}, {"worker-core", "1"}, {"iters", "10000"}};
    results.measurements = std::move(measurements);
    results.host = {.name = "here", .machine = {.cpu_model = "A CPU", .cpus_online = 2, .kernel = "Linux 6.1"}};
    return results;
}

// Everything that a result can have.
Results full_results() {
    Measurement one = measured_one(perf::Test::lat, Op::send, PathKind::runtime, 64, 400);
    one.queue_pairs = 2;
    one.sessions = 3;
    one.workers = 1;
    one.bidirectional = true;
    one.peer_operations = 10'000;
    one.peer_seconds = 0.5;
    one.sent = 10'100;
    one.arrived = 9990;
    one.offered_per_s = 25'000;
    one.posted_late = 7;
    one.rounds[0].disturbance.worker = ContextSwitches{3, 4};
    one.slices = {{.at_s = 0.1, .seconds = 0.1, .operations = 2000, .median_ns = 400, .p99_ns = 410, .max_ns = 500}};
    StageLatency stages;
    stages.submission_ring.counts[LatencyHistogram::bucket_of(1000)] = 10;
    stages.device.counts[LatencyHistogram::bucket_of(2000)] = 9;
    stages.completion_ring.counts[LatencyHistogram::bucket_of(3000)] = 8;
    one.stages = stages;
    Results results =
        results_of(perf::Test::lat, {one, measured_one(perf::Test::lat, Op::send, PathKind::direct, 64, 200),
                                     measured_one(perf::Test::lat, Op::send, PathKind::attached, 64, 440)});
    results.peer = "the other end";
    results.memory = "2 MiB of huge pages";
    results.hugepages = true;
    results.round_trip = RoundTrips{.before = {.typical_ns = 90, .p99_ns = 120, .core = 0, .other = 1},
                                    .after = {.typical_ns = 110, .p99_ns = 130, .core = 0, .other = 1}};
    results.peer_host = HostFacts{.name = "there"};
    results.warnings = {"a sentence"};
    return results;
}

// ---- JSON ----

// The rows of FORMAT.md's tables: the keys in backticks of the first column, and those of the whole row.
using FormatTable = std::map<std::string, std::set<std::string>>;

std::set<std::string> words_in_backticks(const std::string& text) {
    std::set<std::string> words;
    std::size_t at = 0;
    while ((at = text.find('`', at)) != std::string::npos) {
        const std::size_t end = text.find('`', at + 1);
        if (end == std::string::npos) {
            break;
        }
        words.insert(text.substr(at + 1, end - at - 1));
        at = end + 1;
    }
    return words;
}

std::vector<FormatTable> format_tables() {
    std::ifstream file(fs::path(POLLCORE_SOURCE_DIR) / "apps/pollperf/FORMAT.md");
    std::vector<FormatTable> tables;
    for (std::string line; std::getline(file, line);) {
        if (line.starts_with("| key |")) {
            tables.emplace_back();
        } else if (line.starts_with("| `")) {
            for (const std::string& key : words_in_backticks(line.substr(0, line.find('|', 2)))) {
                tables.back()[key] = words_in_backticks(line);
            }
        }
    }
    return tables;
}

void collect_keys(const nlohmann::ordered_json& json, std::set<std::string>& keys) {
    for (const auto& [key, value] : json.items()) {
        if (json.is_object()) {
            keys.insert(key);
        }
        if (value.is_structured()) {
            collect_keys(value, keys);
        }
    }
}

void expect_described(const nlohmann::ordered_json& json, const FormatTable& table,
                      const std::set<std::string>& apart) {
    std::set<std::string> described, found;
    for (const auto& [key, words] : table) {
        described.insert(key);
    }
    for (const auto& [key, value] : json.items()) {
        found.insert(key);
        std::set<std::string> nested;
        if (value.is_structured() && !apart.contains(key) && table.contains(key)) {
            collect_keys(value, nested);
            for (const std::string& inner : nested) {
                EXPECT_TRUE(table.at(key).contains(inner)) << key << " has " << inner;
            }
        }
    }
    EXPECT_EQ(found, described);
}

TEST(PollperfJson, ItsKeysAreThoseOfFormatMd) {
    const auto tables = format_tables();
    ASSERT_EQ(tables.size(), 2u);
    const auto json = to_json(full_results());
    expect_described(json, tables[0], {"settings", "results"});
    expect_described(json.at("results").at(0), tables[1], {});
    for (const char* const key :
         {"min", "max", "typical", "average", "stdev", "p99", "p99_9", "p99_99", "p99_999", "p99_9999"}) {
        EXPECT_TRUE(json.at("results").at(0).at("latency_ns").contains(key)) << key;
        EXPECT_TRUE(tables[1].at("latency_ns").contains(key)) << key;
    }
}

TEST(PollperfJson, ItsFiguresAreThoseOfTheResults) {
    const auto json = nlohmann::json::parse(json_text(full_results()));
    EXPECT_EQ(json.at("program"), "pollperf lat");
    EXPECT_EQ(json.at("format"), 2);
    EXPECT_EQ(json.at("settings").at("worker-core"), "1");
    EXPECT_EQ(json.at("host").at("cpus_online"), 2);
    EXPECT_EQ(json.at("peer_host").at("name"), "there");
    EXPECT_EQ(json.at("round_trip_ns").at("typical"), 100);
    EXPECT_EQ(json.at("round_trip_ns").at("cpus"), nlohmann::json({0, 1}));
    EXPECT_EQ(json.at("memory").at("hugepages"), true);
    EXPECT_EQ(json.at("warnings"), nlohmann::json({"a sentence"}));
    const auto& hop = json.at("hops").at(0);
    EXPECT_EQ(hop.at("bytes"), 64);
    EXPECT_EQ(hop.at("direct_ns"), 200);
    EXPECT_NEAR(hop.at("difference_ns"), 200, 2);
    EXPECT_NEAR(hop.at("difference_round_trips"), 2, 0.02);
    ASSERT_EQ(json.at("results").size(), 3u);
    const auto& one = json.at("results").at(0);
    EXPECT_EQ(one.at("op"), "send");
    EXPECT_EQ(one.at("path"), "runtime");
    EXPECT_EQ(one.at("transport"), "RC");
    EXPECT_EQ(one.at("iterations"), 10'000);
    EXPECT_EQ(one.at("latency_ns").at("min"), 200);
    EXPECT_EQ(one.at("latency_ns").at("max"), 4000);
    EXPECT_EQ(one.at("latency_ns").at("typical"), 400);
    EXPECT_EQ(one.at("latency_ns").at("p99_9"), 400);
    EXPECT_EQ(one.at("latency_ns").at("p99_99"), 4000);
    EXPECT_EQ(one.at("operations_per_s"), 40'000);
    EXPECT_EQ(one.at("bytes_per_s"), 40'000 * 64);
    EXPECT_EQ(one.at("posted_late"), 7);
    EXPECT_EQ(one.at("arrived"), 9990);
    EXPECT_EQ(one.at("sent"), 10'100);
    EXPECT_EQ(one.at("interval").at("of"), "typical_ns");
    EXPECT_EQ(one.at("interval").at("median"), 403.5);
    EXPECT_EQ(one.at("rounds").size(), 8u);
    EXPECT_EQ(one.at("over_time").at(0).at("max_ns"), 500);
    EXPECT_EQ(one.at("stages_ns").at("device").at("samples"), 9);
    EXPECT_EQ(one.at("context_switches").at("worker").at("involuntary"), 4);
    EXPECT_EQ(one.at("context_switches").at("application").at("involuntary"), 8);
    EXPECT_EQ(one.at("steal_ms"), 8);
    std::uint64_t samples = 0;
    double last = -1;
    for (const auto& bucket : one.at("histogram_ns")) {
        ASSERT_EQ(bucket.size(), 2u);
        EXPECT_GT(bucket.at(0).get<double>(), last);
        last = bucket.at(0);
        samples += bucket.at(1).get<std::uint64_t>();
    }
    EXPECT_EQ(samples, 10'000u);
    EXPECT_EQ(last, 4000);
}

TEST(PollperfJson, WhatWasNotMeasuredIsAbsent) {
    Results results = results_of(perf::Test::bw, {Measurement{.test = perf::Test::bw, .op = Op::write, .size = 4096}});
    const auto json = to_json(results);
    for (const char* const key : {"peer", "peer_host", "memory", "round_trip_ns"}) {
        EXPECT_FALSE(json.contains(key)) << key;
    }
    const auto& one = json.at("results").at(0);
    for (const char* const key :
         {"latency_ns", "interval", "peer_operations", "sent", "arrived", "offered_per_s", "stages_ns"}) {
        EXPECT_FALSE(one.contains(key)) << key;
    }
    EXPECT_TRUE(one.at("histogram_ns").empty());
    EXPECT_EQ(json.at("hops"), nlohmann::ordered_json::array());
}

TEST(PollperfJson, ACommandLineThatIsNotUtf8IsStillWritten) {
    Results results = results_of(perf::Test::lat, {});
    results.command = "pollperf \xff";
    EXPECT_EQ(nlohmann::json::parse(json_text(results)).at("command"), "pollperf \xEF\xBF\xBD");
}

TEST(PollperfJson, UnitsOfTheHistogramBecomeNanoseconds) {
    Results results = full_results();
    results.measurements[0].ns_per_unit = 0.5;
    const auto json = to_json(results);
    EXPECT_EQ(json.at("results").at(0).at("latency_ns").at("typical"), 200);
    EXPECT_EQ(json.at("results").at(0).at("latency_ns").at("max"), 2000);
    EXPECT_EQ(json.at("results").at(0).at("histogram_ns").back().at(0), 2000);
}

// ---- CSV ----

// Reads RFC 4180.
std::vector<std::vector<std::string>> parse_csv(const std::string& text) {
    std::vector<std::vector<std::string>> rows(1, {""});
    bool quoted = false;
    for (std::size_t i = 0; i < text.size(); ++i) {
        const char c = text[i];
        if (quoted) {
            if (c == '"' && i + 1 < text.size() && text[i + 1] == '"') {
                rows.back().back() += '"';
                ++i;
            } else if (c == '"') {
                quoted = false;
            } else {
                rows.back().back() += c;
            }
        } else if (c == '"' && rows.back().back().empty()) {
            quoted = true;
        } else if (c == ',') {
            rows.back().emplace_back();
        } else if (c == '\r' && i + 1 < text.size() && text[i + 1] == '\n') {
            rows.push_back({""});
            ++i;
        } else {
            EXPECT_TRUE(c != '\r' && c != '\n' && c != '"') << "at " << i;
            rows.back().back() += c;
        }
    }
    EXPECT_EQ(rows.back(), std::vector<std::string>{""}) << "the last line has no end";
    rows.pop_back();
    return rows;
}

std::map<std::string, std::string> csv_line(const Results& results, std::size_t line) {
    const auto rows = parse_csv(csv(results));
    std::map<std::string, std::string> fields;
    for (std::size_t i = 0; i < rows.at(0).size(); ++i) {
        fields[rows[0][i]] = rows.at(line + 1).at(i);
    }
    EXPECT_EQ(fields.size(), rows[0].size()) << "two columns have one name";
    return fields;
}

TEST(PollperfCsv, EachMeasurementHasALineWithAllColumns) {
    const auto rows = parse_csv(csv(full_results()));
    ASSERT_EQ(rows.size(), 4u);
    for (const auto& row : rows) {
        EXPECT_EQ(row.size(), rows[0].size());
    }
    const auto without = parse_csv(csv(results_of(perf::Test::lat, {})));
    ASSERT_EQ(without.size(), 1u);
    EXPECT_EQ(without[0], rows[0]);
}

TEST(PollperfCsv, ItsFieldsHaveTheFiguresWithoutExponents) {
    Results results = full_results();
    results.measurements[0].size = 1u << 30;
    results.measurements[0].operations = 1'000'000'000'000;
    auto fields = csv_line(results, 0);
    EXPECT_EQ(fields.at("test"), "lat");
    EXPECT_EQ(fields.at("op"), "send");
    EXPECT_EQ(fields.at("path"), "runtime");
    EXPECT_EQ(fields.at("bytes"), "1073741824");
    EXPECT_EQ(fields.at("iterations"), "10000");
    EXPECT_EQ(fields.at("typical_ns"), "400.000");
    EXPECT_EQ(fields.at("p99_99_ns"), "4000.000");
    EXPECT_EQ(fields.at("max_ns"), "4000.000");
    EXPECT_EQ(fields.at("bidirectional"), "1");
    EXPECT_EQ(fields.at("inline"), "0");
    EXPECT_EQ(fields.at("arrived"), "9990");
    EXPECT_EQ(fields.at("sent"), "10100");
    EXPECT_EQ(fields.at("posted_late"), "7");
    EXPECT_EQ(fields.at("interval_of"), "typical_ns");
    EXPECT_EQ(fields.at("interval_median"), "403.500");
    EXPECT_EQ(fields.at("steal_ms"), "8");
    EXPECT_EQ(fields.at("seconds"), "0.500000000");
    EXPECT_EQ(fields.at("device"), "soft soft0 (fabric soft0)");
    EXPECT_DOUBLE_EQ(std::stod(fields.at("bytes_per_s")), results.measurements[0].bytes_per_s());
    for (const auto& [name, value] : fields) {
        if (name.ends_with("_ns") || name.ends_with("_per_s")) {
            EXPECT_EQ(value.find_first_not_of("0123456789.-"), std::string::npos) << name << " is " << value;
        }
    }
    fields = csv_line(results, 1);
    EXPECT_EQ(fields.at("arrived"), "");
    EXPECT_EQ(fields.at("sent"), "");
    EXPECT_EQ(fields.at("offered_per_s"), "");
    EXPECT_EQ(fields.at("worker_voluntary_switches"), "");
}

TEST(PollperfCsv, TextWithCommasAndQuotesComesBack) {
    Results results = full_results();
    results.device = "a \"device\", of\r\ntwo lines";
    EXPECT_EQ(csv_line(results, 2).at("device"), results.device);
}

// ---- HdrHistogram's text ----

struct HdrRow {
    double value = 0, percentile = 0, total = 0, x = 0;
};

// As plotFiles.html reads it: lines of four words that do not begin with #.
std::vector<HdrRow> plotted(const std::string& text) {
    std::vector<HdrRow> rows;
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
        std::istringstream words(line);
        const std::vector<std::string> fields{std::istream_iterator<std::string>(words), {}};
        if (fields.size() != 4 || fields[0][0] == '#' || fields[0] == "Value") {
            continue;
        }
        rows.push_back({std::stod(fields[0]), std::stod(fields[1]), std::stod(fields[2]), std::stod(fields[3])});
    }
    return rows;
}

TEST(PollperfHdr, ThePlotterFindsThePercentilesOfTheSamples) {
    std::mt19937_64 random(3);
    std::lognormal_distribution<> draw(7, 1);
    std::vector<std::uint64_t> samples(50'000);
    Measurement one{.test = perf::Test::lat};
    one.ns_per_unit = 2;
    for (std::uint64_t& sample : samples) {
        sample = static_cast<std::uint64_t>(draw(random));
        one.latency.add(sample);
    }
    std::ranges::sort(samples);
    const auto rows = plotted(hdr_text(one));
    // 50000 is between 2^15 and 2^16, and each halving has 5 percentiles.
    ASSERT_GT(rows.size(), 75u);
    ASSERT_LT(rows.size(), 90u);
    for (std::size_t i = 0; i < rows.size(); ++i) {
        const HdrRow& row = rows[i];
        const auto rank = std::max<std::size_t>(
            1, static_cast<std::size_t>(std::ceil(row.percentile * static_cast<double>(samples.size()) - 1e-6)));
        const double exact_us = 2e-3 * static_cast<double>(samples[std::min(rank, samples.size()) - 1]);
        EXPECT_GE(row.value, exact_us - 0.0006) << row.percentile;
        EXPECT_LE(row.value, exact_us * (1 + Histogram::kErrorMost) + 0.0006) << row.percentile;
        EXPECT_GE(row.total, static_cast<double>(rank));
        const auto not_above = static_cast<double>(std::ranges::count_if(
            samples, [&](std::uint64_t sample) { return 2e-3 * static_cast<double>(sample) <= row.value + 0.0006; }));
        EXPECT_EQ(row.total, not_above) << row.percentile;
        EXPECT_NEAR(row.x, 1 / (1 - row.percentile), 0.006 + 1e-6 * row.x * row.x);
        EXPECT_TRUE(i == 0 || (row.percentile > rows[i - 1].percentile && row.value >= rows[i - 1].value));
    }
}

TEST(PollperfHdr, EachHalfOfTheRestHasFiveTicks) {
    Measurement one{.test = perf::Test::lat};
    one.latency.add(1000, 1'000'000);
    one.latency.add(2000, 1);
    const auto rows = plotted(hdr_text(one));
    ASSERT_GE(rows.size(), 16u);
    constexpr std::array kTicks{0.0,  0.1, 0.2,  0.3,   0.4, 0.5,   0.55, 0.6,
                                0.65, 0.7, 0.75, 0.775, 0.8, 0.825, 0.85, 0.875};
    for (std::size_t i = 0; i < kTicks.size(); ++i) {
        EXPECT_NEAR(rows[i].percentile, kTicks[i], 1e-12);
    }
    EXPECT_EQ(rows.back().value, 2);
    EXPECT_EQ(rows.back().total, 1'000'001);
    EXPECT_EQ(rows[rows.size() - 2].value, 1.001);
}

TEST(PollperfHdr, ItHasHdrHistogramsHeadingAndEnd) {
    Measurement one{.test = perf::Test::lat};
    one.latency.add(1000, 3);
    one.latency.add(2000, 1);
    const std::string text = hdr_text(one);
    EXPECT_TRUE(
        text.starts_with("       Value     Percentile TotalCount 1/(1-Percentile)\n\n"
                         "       1.001 0.000000000000          3           1.00\n"))
        << text;
    EXPECT_TRUE(
        text.ends_with("       2.000 1.000000000000          4\n"
                       "#[Mean    =        1.250, StdDeviation   =        0.433]\n"
                       "#[Max     =        2.000, Total count    =            4]\n"
                       "#[Buckets =           37, SubBuckets     =          256]\n"))
        << text;
    EXPECT_TRUE(plotted(hdr_text({})).empty());
}

TEST(PollperfHdr, EachMeasurementHasItsFile) {
    Results results = full_results();
    results.measurements.push_back(results.measurements.back());
    auto files = hdr_files("/some/where/out.hgrm", results);
    ASSERT_EQ(files.size(), 4u);
    EXPECT_EQ(files[0].first, "/some/where/out-send-64-runtime.hgrm");
    EXPECT_EQ(files[1].first, "/some/where/out-send-64-direct.hgrm");
    EXPECT_EQ(files[3].first, "/some/where/out-send-64-attached-2.hgrm");
    EXPECT_EQ(files[1].second, hdr_text(results.measurements[1]));
    results.measurements.resize(1);
    files = hdr_files("out", results);
    ASSERT_EQ(files.size(), 1u);
    EXPECT_EQ(files[0].first, "out");
}

// ---- Tables ----

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

// ---- Files ----

class PollperfFile : public testing::Test {
protected:
    PollperfFile() {
        std::string pattern = (fs::temp_directory_path() / "pollperf-XXXXXX").string();
        folder_ = ::mkdtemp(pattern.data());
    }
    ~PollperfFile() override {
        std::error_code error;
        fs::remove_all(folder_, error);
    }
    static std::string content(const fs::path& file) {
        std::ifstream in(file);
        return {std::istreambuf_iterator<char>(in), {}};
    }
    // Runs the call, and returns its error's text, or nothing.
    template <class Call>
    static std::string refused(Call&& call) {
        try {
            call();
        } catch (const Error& error) {
            return error.what();
        }
        return "";
    }
    std::size_t files() const {
        return static_cast<std::size_t>(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()));
    }

    fs::path folder_;
};

TEST_F(PollperfFile, AnOldFileIsReplacedAndKeepsItsPermissionsAndLinks) {
    const fs::path file = folder_ / "out.json", link = folder_ / "link";
    write_file(file, "old and long", "--json");
    ::chmod(file.c_str(), 0640);
    fs::create_symlink("out.json", link);
    struct stat before {};
    ASSERT_EQ(::stat(file.c_str(), &before), 0);
    std::ifstream reader(file);
    write_file(link, "new", "--json");
    EXPECT_EQ(content(file), "new");
    EXPECT_TRUE(fs::is_symlink(link));
    struct stat found {};
    ASSERT_EQ(::stat(file.c_str(), &found), 0);
    EXPECT_EQ(found.st_mode & 07777, 0640u);
    // Whoever had the old file open still reads all of it.
    EXPECT_EQ(std::string(std::istreambuf_iterator<char>(reader), {}), "old and long");
    EXPECT_EQ(files(), 2u);
}

TEST_F(PollperfFile, ACheckChangesNothing) {
    const fs::path file = folder_ / "out.json";
    check_writable(file, "--json");
    EXPECT_EQ(files(), 0u);
    write_file(file, "old", "--json");
    check_writable(file, "--json");
    EXPECT_EQ(content(file), "old");
    EXPECT_EQ(files(), 1u);
    const fs::path here = fs::current_path();
    fs::current_path(folder_);
    EXPECT_NO_THROW(check_writable("without-a-folder.json", "--json"));
    fs::current_path(here);
}

TEST_F(PollperfFile, WhatCannotBeWrittenIsRefusedByBothWithFileAndOption) {
    write_file(folder_ / "file", "", "--csv");
    for (const fs::path& file : {folder_ / "missing" / "out", folder_, folder_ / "file" / "out", fs::path()}) {
        for (const auto& call : {+[](const fs::path& at) { check_writable(at, "--csv"); },
                                 +[](const fs::path& at) { write_file(at, "text", "--csv"); }}) {
            const std::string what = refused([&] { call(file); });
            EXPECT_NE(what.find("(--csv)"), std::string::npos) << file << ": " << what;
            EXPECT_NE(what.find(file.string()), std::string::npos) << what;
        }
    }
    EXPECT_EQ(files(), 1u);
}

TEST_F(PollperfFile, PermissionsAreChecked) {
    const fs::path file = folder_ / "out";
    write_file(file, "old", "--json");
    // Root may write everything, so a process without its rights tries it.
    constexpr uid_t kNobody = 65534;
    const bool root = ::geteuid() == 0;
    if (root) {
        ASSERT_EQ(::chown(folder_.c_str(), kNobody, kNobody), 0);
        ASSERT_EQ(::chown(file.c_str(), kNobody, kNobody), 0);
    }
    const auto attempt = [&]() -> int {
        if (root && (::setgid(kNobody) != 0 || ::setuid(kNobody) != 0)) {
            return 1;
        }
        ::chmod(file.c_str(), 0400);
        if (refused([&] { check_writable(file, "--json"); }).empty()) {
            return 2;
        }
        ::chmod(file.c_str(), 0600);
        ::chmod(folder_.c_str(), 0500);
        if (!refused([&] { check_writable(file, "--json"); }).empty()) {
            return 3;
        }
        if (refused([&] { check_writable(folder_ / "other", "--json"); }).empty()) {
            return 4;
        }
        write_file(file, "new", "--json");
        return content(file) == "new" ? 0 : 5;
    };
    const pid_t child = ::fork();
    if (child == 0) {
        ::_exit(attempt());
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status));
    EXPECT_EQ(WEXITSTATUS(status), 0);
    ::chmod(folder_.c_str(), 0700);
}

TEST_F(PollperfFile, ADescriptorOfThisProcessIsWrittenWhereItStands) {
    const int descriptor = ::open((folder_ / "out").c_str(), O_CREAT | O_WRONLY, 0600);
    ASSERT_GE(descriptor, 0);
    ASSERT_EQ(::write(descriptor, "before ", 7), 7);
    const std::string path = fmt::format("/dev/fd/{}", descriptor);
    check_writable(path, "--json");
    write_file(path, "middle ", "--json");
    ASSERT_EQ(::write(descriptor, "after", 5), 5);
    ::close(descriptor);
    EXPECT_EQ(content(folder_ / "out"), "before middle after");
    EXPECT_NE(refused([&] { check_writable(path, "--json"); }), "");
    EXPECT_EQ(refused([&] { write_file("/dev/null", "text", "--json"); }), "");
    EXPECT_TRUE(fs::is_character_file("/dev/null"));
    EXPECT_NE(refused([&] { write_file("/dev/full", "text", "--json"); }), "");
}

// ---- Progress ----

class PollperfTerminal : public testing::Test {
protected:
    PollperfTerminal() : master_(::posix_openpt(O_RDWR | O_NOCTTY | O_NONBLOCK)) {
        if (master_ >= 0 && ::grantpt(master_) == 0 && ::unlockpt(master_) == 0) {
            slave_ = ::open(::ptsname(master_), O_RDWR | O_NOCTTY);
        }
    }
    ~PollperfTerminal() override {
        ::close(slave_);
        ::close(master_);
    }
    std::string printed() const {
        std::array<char, 4096> buffer{};
        const ssize_t n = ::read(master_, buffer.data(), buffer.size());
        return {buffer.data(), static_cast<std::size_t>(std::max<ssize_t>(n, 0))};
    }

    int master_ = -1;
    int slave_ = -1;
};

constexpr const char* kErased = "\r\x1b[K";

TEST_F(PollperfTerminal, AShortMeasurementPrintsNothing) {
    ASSERT_GE(slave_, 0) << "no terminal can be made here";
    {
        Progress progress(10, {}, slave_);
        progress.step("send, 2 bytes, direct");
        progress.step("send, 2 bytes, direct");
    }
    EXPECT_EQ(printed(), "");
}

TEST_F(PollperfTerminal, ALongOneRewritesALineAndErasesIt) {
    ASSERT_GE(slave_, 0) << "no terminal can be made here";
    {
        const auto began = std::chrono::steady_clock::now();
        Progress progress(4, std::chrono::seconds(8), slave_);
        progress.step("send: round 1 of 4");
        EXPECT_EQ(printed(), std::string(kErased) + "send: round 1 of 4 [0 %, 8 s left]");
        ::usleep(100'000);
        const std::string second = std::string(kErased) + "send: round 2 of 4 [25 %, ";
        const auto before = std::chrono::steady_clock::now();
        progress.step("send: round 2 of 4");
        const std::string line = printed();
        // A quarter took 100 ms, or longer on a busy machine. The rest takes three times as long, in whole seconds.
        const auto passed = std::chrono::steady_clock::now() - began;
        EXPECT_TRUE(line.starts_with(second) && line.ends_with(" s left]")) << line;
        EXPECT_TRUE(passed > std::chrono::milliseconds(166) || line == second + "0 s left]") << line;
        progress.step("too soon after the last");
        const std::string third = printed();
        if (std::chrono::steady_clock::now() - before < std::chrono::milliseconds(50)) {
            EXPECT_EQ(third, "");
        }
    }
    EXPECT_EQ(printed(), kErased);
}

TEST_F(PollperfTerminal, WithoutAnExpectationItAppearsAfterASecond) {
    ASSERT_GE(slave_, 0) << "no terminal can be made here";
    Progress progress(4, {}, slave_);
    progress.step("one");
    progress.step("two");
    ::usleep(1'010'000);
    EXPECT_EQ(printed(), "");
    progress.step("three");
    EXPECT_EQ(printed(), std::string(kErased) + "three [50 %, 1 s left]");
}

TEST_F(PollperfTerminal, ALineIsNoWiderThanTheTerminal) {
    ASSERT_GE(slave_, 0) << "no terminal can be made here";
    const winsize window{.ws_row = 25, .ws_col = 20, .ws_xpixel = 0, .ws_ypixel = 0};
    ASSERT_EQ(::ioctl(slave_, TIOCSWINSZ, &window), 0);
    Progress progress(4, std::chrono::seconds(8), slave_);
    progress.step(std::string(100, 'x'));
    EXPECT_EQ(printed(), kErased + std::string(19, 'x'));
}

TEST(PollperfProgress, WhatIsNoTerminalGetsNothing) {
    int ends[2];
    ASSERT_EQ(::pipe2(ends, O_NONBLOCK), 0);
    {
        Progress progress(2, std::chrono::hours(1), ends[1]);
        progress.step("one");
        progress.step("two");
    }
    char byte = 0;
    EXPECT_EQ(::read(ends[0], &byte, 1), -1);
    ::close(ends[0]);
    ::close(ends[1]);
}

}  // namespace
}  // namespace pollcore::perf
