// Prometheus' text format, its histograms, and the address at which pollstat offers them.
#include "pollstat/exposition.hpp"

#include <cerrno>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "pollcore/error.hpp"
#include "pollcore/latency.hpp"
#include "pollstat/listening_address.hpp"
#include "pollstat/time_buckets.hpp"

namespace pollcore::stat {
namespace {

using statistics::Kind;

constexpr std::size_t kMany = 1000;
constexpr std::uint64_t kTestFrequency = 2'000'000'000;

bool contains(const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
}

// ---- The text format ----

Exposition exposition_of(std::size_t samples_max = kMany) {
    Exposition out;
    out.begin_source({{"runtime", "r"}}, samples_max);
    return out;
}

TEST(PrometheusText, HasHelpTypeAndSamplesOfEachMetricTogether) {
    Exposition out = exposition_of();
    out.add_counter("z_steps", "Steps", {{"worker", "a"}}, std::uint64_t{18446744073709551615u});
    out.add_gauge("a_share", "A share", {}, 0.25);
    out.begin_source({{"runtime", "s"}}, kMany);
    out.add_counter("z_steps", "Other words", {{"worker", "a"}}, 1e-9);
    EXPECT_EQ(out.text(), R"(# HELP a_share A share
# TYPE a_share gauge
a_share{runtime="r"} 0.25
# HELP z_steps_total Steps
# TYPE z_steps_total counter
z_steps_total{runtime="r",worker="a"} 18446744073709551615
z_steps_total{runtime="s",worker="a"} 1e-09
)");
}

TEST(PrometheusText, NothingGivesNoText) {
    EXPECT_EQ(Exposition().text(), "");
    Exposition out;
    out.begin_source({}, 1);
    out.add_gauge("x", "X", {}, std::uint64_t{1});
    EXPECT_EQ(out.text(), "# HELP x X\n# TYPE x gauge\nx 1\n");
}

TEST(PrometheusText, LabelValuesCannotLeaveTheirQuotes) {
    EXPECT_EQ(label_value("plain"), "plain");
    EXPECT_EQ(label_value("a\"} 1\nevil 2"), R"(a\"} 1\nevil 2)");
    EXPECT_EQ(label_value("back\\"), R"(back\\)");
    EXPECT_EQ(label_value("Gr\xc3\xbc\xc3\x9f \xe2\x82\xac \xf0\x9f\x90\x9f"),
              "Gr\xc3\xbc\xc3\x9f \xe2\x82\xac \xf0\x9f\x90\x9f");
    EXPECT_EQ(label_value(std::string_view("\0\x1b[2J\r\x7f", 7)), R"(\\x00\\x1b[2J\\x0d\\x7f)");
}

TEST(PrometheusText, WhatIsNotUtf8IsShownAsBytes) {
    EXPECT_EQ(label_value("\xff\xfe"), R"(\\xff\\xfe)");
    EXPECT_EQ(label_value("cut \xe2\x82"), R"(cut \\xe2\\x82)");
    EXPECT_EQ(label_value("\xc0\xaf"), R"(\\xc0\\xaf)");                    // a slash in two bytes
    EXPECT_EQ(label_value("\xe0\x80\xaf"), R"(\\xe0\\x80\\xaf)");           // in three
    EXPECT_EQ(label_value("\xf0\x80\x80\xaf"), R"(\\xf0\\x80\\x80\\xaf)");  // in four
    EXPECT_EQ(label_value("\xe0\x9f\xbf"), R"(\\xe0\\x9f\\xbf)");           // a letter in three
    EXPECT_EQ(label_value("\xf0\x8f\xbf\xbd"), R"(\\xf0\\x8f\\xbf\\xbd)");  // in four
    EXPECT_EQ(label_value("\xed\xa0\x80"), R"(\\xed\\xa0\\x80)");           // half of a pair
    EXPECT_EQ(label_value("\xf4\x90\x80\x80"), R"(\\xf4\\x90\\x80\\x80)");  // above the last character
    EXPECT_EQ(label_value("\xc2\x9b"), R"(\\xc2\\x9b)");                    // a control character of a terminal
    EXPECT_EQ(label_value("\xc2\xa0"), "\xc2\xa0");
    EXPECT_EQ(label_value("\xe2\x28\xa1"), "\\\\xe2(\\\\xa1");
}

TEST(PrometheusText, LongValuesAreCutBetweenCharacters) {
    std::string text;
    for (int i = 0; i < 300; ++i) {
        text += "\xe2\x82\xac";
    }
    const std::string cut = label_value(text);
    EXPECT_LT(cut.size(), 300u);
    EXPECT_TRUE(cut.ends_with("\xe2\x82\xac...")) << cut;
}

TEST(PrometheusText, NamesHaveOnlyCharactersThatNamesMayHave) {
    EXPECT_EQ(metric_name("a-b c\n\xff\"{}9"), "a_b_c_____9");
    Exposition out = exposition_of();
    out.add_gauge("evil\n# TYPE x", "Help\nof\\two lines\xff", {{"w\"=", "v"}}, std::uint64_t{1});
    EXPECT_EQ(out.text(),
              "# HELP evil___TYPE_x Help?of\\\\two lines?\n# TYPE evil___TYPE_x gauge\n"
              "evil___TYPE_x{runtime=\"r\",w__=\"v\"} 1\n");
}

TEST(PrometheusText, ALabelIsThereOnceAndNoneIsPrometheussOwn) {
    Exposition out = exposition_of();
    out.add_gauge(
        "x", "X",
        {{"runtime", "another"}, {"le", "1"}, {"__name__", "y"}, {"", "z"}, {"1a", "z"}, {"a", "1"}, {"a", "2"}},
        std::uint64_t{1});
    EXPECT_TRUE(contains(out.text(), "\nx{runtime=\"r\",a=\"1\"} 1\n"));
}

TEST(PrometheusText, ASeriesIsThereOnce) {
    Exposition out = exposition_of();
    out.add_gauge("x", "X", {{"a", "1"}}, std::uint64_t{1});
    out.add_gauge("x", "X", {{"a", "1"}}, std::uint64_t{2});
    EXPECT_EQ(out.left_out_of_source(), 1u);
    EXPECT_FALSE(contains(out.text(), "} 2"));
    out.begin_source({{"runtime", "other"}}, kMany);
    out.add_gauge("x", "X", {{"a", "1"}}, std::uint64_t{3});
    EXPECT_EQ(out.left_out_of_source(), 0u);
    EXPECT_TRUE(contains(out.text(), "x{runtime=\"other\",a=\"1\"} 3"));
}

TEST(PrometheusText, AMetricHasOneType) {
    Exposition out = exposition_of();
    out.add_gauge("x_seconds", "X", {}, std::uint64_t{1});
    out.add_histogram("x_seconds", "X", {{"a", "b"}}, {.buckets = {}, .count = 7, .sum = 1});
    EXPECT_EQ(out.left_out_of_source(), 1u);
    EXPECT_EQ(out.text(), "# HELP x_seconds X\n# TYPE x_seconds gauge\nx_seconds{runtime=\"r\"} 1\n");
}

TEST(PrometheusText, ASourceHasSoManySamplesAndNoPartOfAHistogram) {
    Exposition out = exposition_of(6);
    const Buckets buckets{.buckets = {{0.5, 1}, {1, 3}}, .count = 4, .sum = 2.5};
    out.add_histogram("h_seconds", "H", {}, buckets);
    out.add_histogram("h_seconds", "H", {{"second", "yes"}}, buckets);
    out.add_gauge("x", "X", {{"n", "1"}}, std::uint64_t{1});
    out.add_gauge("x", "X", {{"n", "2"}}, std::uint64_t{1});
    EXPECT_EQ(out.samples_of_source(), 6u);
    EXPECT_EQ(out.left_out_of_source(), 6u);
    EXPECT_EQ(out.text(), R"(# HELP h_seconds H
# TYPE h_seconds histogram
h_seconds_bucket{runtime="r",le="0.5"} 1
h_seconds_bucket{runtime="r",le="1"} 3
h_seconds_bucket{runtime="r",le="+Inf"} 4
h_seconds_sum{runtime="r"} 2.5
h_seconds_count{runtime="r"} 4
# HELP x X
# TYPE x gauge
x{runtime="r",n="1"} 1
)");
}

// ---- Histograms ----

std::uint64_t count_up_to(const Buckets& buckets, double most) {
    for (const Buckets::Bucket& bucket : buckets.buckets) {
        if (bucket.most == most) {
            return bucket.count;
        }
    }
    ADD_FAILURE() << "no bucket up to " << most;
    return 0;
}

TEST(PrometheusHistogram, LatenciesAreCountedBelowABoundOnlyIfTheySurelyAre) {
    std::vector<std::uint64_t> counts(LatencyHistogram::kBuckets);
    const auto add = [&](std::uint32_t cycles, std::uint64_t n) { counts[LatencyHistogram::bucket_of(cycles)] += n; };
    add(100, 1);          // 50 ns, in the bucket from 96 to 111 cycles: above 50 ns at most
    add(2000, 10);        // 1 us, from 1792 to 2047
    add(4'000'000, 100);  // 2 ms
    const Buckets buckets = time_buckets(Kind::latency, counts, 1.0 / kTestFrequency);
    EXPECT_EQ(count_up_to(buckets, 5e-8), 0u);
    EXPECT_EQ(count_up_to(buckets, 1e-7), 1u);
    EXPECT_EQ(count_up_to(buckets, 1e-6), 1u);
    EXPECT_EQ(count_up_to(buckets, 2e-6), 11u);
    EXPECT_EQ(count_up_to(buckets, 5e-3), 111u);
    EXPECT_EQ(count_up_to(buckets, 1.0), 111u);
    EXPECT_EQ(buckets.count, 111u);
    EXPECT_NEAR(buckets.sum, 1 * 5e-8 + 10 * 1e-6 + 100 * 2e-3, 0.2 * 0.2);
    EXPECT_LE(buckets.buckets.size(), 32u);
}

TEST(PrometheusHistogram, BoundsAreTheSameForEachFrequency) {
    const std::vector<std::uint64_t> counts(LatencyHistogram::kBuckets, 1);
    const Buckets slow = time_buckets(Kind::latency, counts, 1e-9);
    const Buckets fast = time_buckets(Kind::latency, counts, 1e-9 / 3.7);
    ASSERT_EQ(slow.buckets.size(), fast.buckets.size());
    for (std::size_t i = 0; i < slow.buckets.size(); ++i) {
        EXPECT_EQ(slow.buckets[i].most, fast.buckets[i].most);
        EXPECT_LE(slow.buckets[i].count, fast.buckets[i].count);
    }
}

TEST(PrometheusHistogram, CountsNeverDecreaseWhateverTheSegmentSays) {
    const std::vector<std::uint64_t> counts(200, std::numeric_limits<std::uint64_t>::max());
    for (const Kind kind : {Kind::latency, Kind::histogram}) {
        for (const Buckets& buckets :
             {time_buckets(kind, counts, 1e-9), time_buckets(kind, {}, 1e-9), number_buckets(kind, counts),
              number_buckets(kind, {}), number_buckets(kind, {1})}) {
            std::uint64_t before = 0;
            for (const Buckets::Bucket& bucket : buckets.buckets) {
                EXPECT_GE(bucket.count, before);
                before = bucket.count;
            }
            EXPECT_GE(buckets.count, before);
        }
    }
}

TEST(PrometheusHistogram, PowersOfTwoKeepTheirBoundsIfTheyAreNoTimes) {
    const Buckets buckets = number_buckets(Kind::histogram, {5, 4, 3, 2, 1});  // 0; 1; 2, 3; 4 to 7; more
    ASSERT_EQ(buckets.buckets.size(), 4u);
    EXPECT_EQ(count_up_to(buckets, 0), 5u);
    EXPECT_EQ(count_up_to(buckets, 1), 9u);
    EXPECT_EQ(count_up_to(buckets, 3), 12u);
    EXPECT_EQ(count_up_to(buckets, 7), 14u);
    EXPECT_EQ(buckets.count, 15u);
}

TEST(PrometheusHistogram, TheLastBucketOfTheSegmentHasNoBound) {
    std::vector<std::uint64_t> counts(8);
    counts[7] = 3;  // from 64 ns on
    const Buckets buckets = time_buckets(Kind::histogram, counts, 1e-9);
    EXPECT_EQ(buckets.buckets.back().count, 0u);
    EXPECT_EQ(buckets.count, 3u);
}

// ---- Addresses ----

TEST(PrometheusAddress, IsANumberAndAPort) {
    EXPECT_TRUE(parse_listening_address("127.0.0.1:9187").is_loopback());
    EXPECT_TRUE(parse_listening_address("127.8.8.8:0").is_loopback());
    EXPECT_TRUE(parse_listening_address("[::1]:9187").is_loopback());
    EXPECT_FALSE(parse_listening_address(":9187").is_loopback());
    EXPECT_FALSE(parse_listening_address("0.0.0.0:9187").is_loopback());
    EXPECT_FALSE(parse_listening_address("[2001:db8::1]:9187").is_loopback());
    for (const char* const wrong :
         {"", ":", "9187", "127.0.0.1", "127.0.0.1:", "127.0.0.1:65536", "127.0.0.1:-1", "127.0.0.1:1x",
          "localhost:9187", "::1:9187", "[::1:9187", "[]:9187", "[127.0.0.1]:1", "127.0.0.1 :1", "unix:/x"}) {
        EXPECT_THROW((void)parse_listening_address(wrong), Error) << wrong;
    }
}

TEST(PrometheusAddress, ASocketListensThere) {
    const UniqueFd first = listen_at(parse_listening_address("127.0.0.1:0"), 1);
    const std::string where = address_of_socket(first);
    EXPECT_TRUE(where.starts_with("127.0.0.1:") && where != "127.0.0.1:0") << where;
    try {
        (void)listen_at(parse_listening_address(where), 1);
        FAIL() << "two sockets at one address";
    } catch (const Error& error) {
        EXPECT_EQ(error.code().value(), EADDRINUSE);
    }
    const UniqueFd all = listen_at(parse_listening_address(":0"), 1);
    EXPECT_NE(address_of_socket(all), where);
}

}  // namespace
}  // namespace pollcore::stat
