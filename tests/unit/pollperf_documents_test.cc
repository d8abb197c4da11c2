// The forms in which programs read pollperf's results: JSON, CSV and HdrHistogram's text.
#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <random>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "pollperf/report/csv.hpp"
#include "pollperf/report/hdr_text.hpp"
#include "pollperf/report/json_document.hpp"
#include "pollperf_results.hpp"

namespace pollcore::perf {
namespace {

namespace fs = std::filesystem;

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

}  // namespace
}  // namespace pollcore::perf
