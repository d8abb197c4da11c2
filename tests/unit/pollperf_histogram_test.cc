// The histogram of pollperf: its percentiles beside those of the sorted samples.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "pollperf/measure/histogram.hpp"

namespace pollcore::perf {
namespace {

constexpr double kFractions[] = {0, 0.001, 0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 0.999, 0.9999, 0.99999, 1};

Histogram histogram_of(const std::vector<std::uint64_t>& samples) {
    Histogram histogram;
    for (const std::uint64_t sample : samples) {
        histogram.add(sample);
    }
    return histogram;
}

// The smallest sample that at least this share of the samples do not exceed. The rank is computed in whole numbers.
std::uint64_t exact_percentile(const std::vector<std::uint64_t>& ascending, double fraction) {
    const auto per_million = static_cast<std::uint64_t>(std::llround(fraction * 1e6));
    const std::uint64_t rank = (ascending.size() * per_million + 999'999) / 1'000'000;
    return ascending[rank == 0 ? 0 : rank - 1];
}

void expect_close(const std::string& what, std::vector<std::uint64_t> samples) {
    const Histogram histogram = histogram_of(samples);
    std::sort(samples.begin(), samples.end());
    ASSERT_EQ(histogram.count(), samples.size()) << what;
    EXPECT_EQ(histogram.least(), samples.front()) << what;
    EXPECT_EQ(histogram.greatest(), samples.back()) << what;
    for (const double fraction : kFractions) {
        const std::uint64_t exact = exact_percentile(samples, fraction);
        const std::uint64_t found = histogram.percentile(fraction);
        EXPECT_GE(found, exact) << what << " at " << fraction;
        EXPECT_LE(static_cast<double>(found), static_cast<double>(exact) * (1 + Histogram::kErrorMost))
            << what << " at " << fraction;
    }
    double sum = 0, squares = 0;
    for (const std::uint64_t sample : samples) {
        sum += static_cast<double>(sample);
    }
    const double average = sum / static_cast<double>(samples.size());
    for (const std::uint64_t sample : samples) {
        squares += (static_cast<double>(sample) - average) * (static_cast<double>(sample) - average);
    }
    EXPECT_NEAR(histogram.average(), average, 1e-9 * average) << what;
    const double deviation = std::sqrt(squares / static_cast<double>(samples.size()));
    EXPECT_NEAR(histogram.deviation(), deviation, 1e-6 * average) << what;
}

std::vector<std::uint64_t> drawn(std::size_t n, const std::function<double(std::mt19937_64&)>& draw) {
    std::mt19937_64 random(1);
    std::vector<std::uint64_t> samples(n);
    for (std::uint64_t& sample : samples) {
        sample = static_cast<std::uint64_t>(draw(random));
    }
    return samples;
}

TEST(PollperfHistogram, PercentilesOfKnownDistributionsAreNeverTooLowAndAtMostOneBucketTooHigh) {
    for (const std::size_t n : {1u, 2u, 7u, 1000u, 200'000u}) {
        const std::string of_n = " of " + std::to_string(n);
        expect_close("narrow uniform" + of_n, drawn(n, std::uniform_real_distribution<>(200, 300)));
        expect_close("wide uniform" + of_n, drawn(n, std::uniform_real_distribution<>(0, 1e9)));
        expect_close("exponential" + of_n, drawn(n, std::exponential_distribution<>(1e-4)));
        expect_close("lognormal" + of_n, drawn(n, std::lognormal_distribution<>(7, 2)));
    }
}

TEST(PollperfHistogram, AConstantHasThisValueAtEveryPercentile) {
    for (const std::uint64_t value :
         {0ull, 1ull, 255ull, 256ull, 257ull, 511ull, 513ull, 123'457ull, (1ull << 43) + 1}) {
        const Histogram histogram = histogram_of(std::vector<std::uint64_t>(1000, value));
        for (const double fraction : kFractions) {
            EXPECT_EQ(histogram.percentile(fraction), value) << fraction;
        }
        EXPECT_DOUBLE_EQ(histogram.average(), static_cast<double>(value));
        EXPECT_NEAR(histogram.deviation(), 0, 1e-6 * static_cast<double>(value));
    }
}

TEST(PollperfHistogram, ABucketHasAllValuesAfterTheOneBeforeItAndIsNoWiderThanTheErrorAllows) {
    for (std::size_t bucket = 1; bucket < Histogram::kBuckets; ++bucket) {
        const std::uint64_t greatest = Histogram::greatest_of(bucket);
        const std::uint64_t least = Histogram::greatest_of(bucket - 1) + 1;
        ASSERT_LE(least, greatest) << bucket;
        ASSERT_EQ(Histogram::bucket_of(least), bucket);
        ASSERT_EQ(Histogram::bucket_of(greatest), bucket);
        ASSERT_LE(static_cast<double>(greatest - least), static_cast<double>(least) * Histogram::kErrorMost) << bucket;
    }
    EXPECT_EQ(Histogram::bucket_of(0), 0u);
    EXPECT_EQ(Histogram::greatest_of(0), 0u);
}

TEST(PollperfHistogram, BordersOfPowersOfTwoAreFound) {
    for (unsigned bits = 1; bits < 44; ++bits) {
        const std::uint64_t border = std::uint64_t{1} << bits;
        expect_close("2^" + std::to_string(bits), {border - 1, border, border + 1, border - 1, border});
    }
}

TEST(PollperfHistogram, WhatIsLongerThanTheGreatestCountsAsTheGreatest) {
    const Histogram histogram =
        histogram_of({5, Histogram::kGreatest, Histogram::kGreatest + 1, std::uint64_t(-1), std::uint64_t{1} << 63});
    EXPECT_EQ(histogram.count(), 5u);
    EXPECT_EQ(histogram.greatest(), Histogram::kGreatest);
    EXPECT_EQ(histogram.percentile(1), Histogram::kGreatest);
    EXPECT_EQ(histogram.percentile(0.2), 5u);
    EXPECT_DOUBLE_EQ(histogram.sum(), 5 + 4 * static_cast<double>(Histogram::kGreatest));
}

TEST(PollperfHistogram, ShortDurationsAreExact) {
    for (std::uint64_t value = 0; value < 512; ++value) {
        Histogram histogram;
        histogram.add(value);
        histogram.add(100'000);
        EXPECT_EQ(histogram.percentile(0.5), value);
    }
}

TEST(PollperfHistogram, PercentilesOfFewSamplesAreSamplesThatWereTaken) {
    std::vector<std::uint64_t> samples(100);
    for (std::size_t i = 0; i < samples.size(); ++i) {
        samples[i] = i + 1;
    }
    const Histogram histogram = histogram_of(samples);
    EXPECT_EQ(histogram.percentile(0.99), 99u);
    EXPECT_EQ(histogram.percentile(0.991), 100u);
    EXPECT_EQ(histogram.percentile(0.01), 1u);
    EXPECT_EQ(histogram.percentile(0.011), 2u);
    EXPECT_EQ(histogram.percentile(0), 1u);
}

TEST(PollperfHistogram, AMergeIsTheHistogramOfAllSamples) {
    const auto low = drawn(5000, std::exponential_distribution<>(1e-3));
    auto both = drawn(3000, std::lognormal_distribution<>(12, 1));
    Histogram merged = histogram_of(low);
    merged += histogram_of(both);
    both.insert(both.end(), low.begin(), low.end());
    const Histogram all = histogram_of(both);
    EXPECT_EQ(merged.count(), all.count());
    EXPECT_EQ(merged.least(), all.least());
    EXPECT_EQ(merged.greatest(), all.greatest());
    EXPECT_NEAR(merged.sum(), all.sum(), 1e-9 * all.sum());
    EXPECT_NEAR(merged.deviation(), all.deviation(), 1e-6 * all.deviation());
    for (const double fraction : kFractions) {
        EXPECT_EQ(merged.percentile(fraction), all.percentile(fraction)) << fraction;
    }
    Histogram empty;
    empty += all;
    EXPECT_EQ(empty.least(), all.least());
    empty += Histogram();
    EXPECT_EQ(empty.count(), all.count());
    EXPECT_EQ(empty.least(), all.least());
}

TEST(PollperfHistogram, ManyOfOneValueAreAddedAtOnce) {
    Histogram histogram;
    histogram.add(1000, 99);
    histogram.add(1'000'000, 1);
    EXPECT_EQ(histogram.count(), 100u);
    EXPECT_DOUBLE_EQ(histogram.sum(), 1'099'000);
    EXPECT_EQ(histogram.percentile(1), 1'000'000u);
    EXPECT_LE(histogram.percentile(0.99), 1004u);
}

TEST(PollperfHistogram, ForEachHasAllSamplesInAscendingOrder) {
    const auto samples = drawn(10'000, std::lognormal_distribution<>(8, 1));
    const Histogram histogram = histogram_of(samples);
    std::uint64_t sum = 0, last = 0;
    histogram.for_each([&](std::uint64_t greatest, std::uint64_t count) {
        EXPECT_TRUE(sum == 0 || greatest > last);
        const auto not_above = static_cast<std::uint64_t>(
            std::ranges::count_if(samples, [&](std::uint64_t sample) { return sample <= greatest; }));
        sum += count;
        EXPECT_EQ(sum, not_above) << greatest;
        last = greatest;
    });
    EXPECT_EQ(sum, samples.size());
    EXPECT_EQ(last, histogram.greatest());
}

TEST(PollperfHistogram, WithoutSamplesAllIsZero) {
    Histogram histogram;
    histogram.add(77);
    histogram.clear();
    EXPECT_EQ(histogram.count(), 0u);
    EXPECT_EQ(histogram.least(), 0u);
    EXPECT_EQ(histogram.greatest(), 0u);
    EXPECT_EQ(histogram.percentile(0.5), 0u);
    EXPECT_EQ(histogram.average(), 0);
    EXPECT_EQ(histogram.deviation(), 0);
}

TEST(PollperfHistogram, CloseValuesFarFromZeroKeepTheirDeviation) {
    const std::uint64_t far = std::uint64_t{1} << 43;
    Histogram one;
    one.add(far);
    Histogram other;
    other.add(5);
    other.add(far + 2);
    EXPECT_DOUBLE_EQ(one.deviation(), 0);
    Histogram both = one;
    Histogram late;
    late.add(far + 2);
    both += late;
    EXPECT_DOUBLE_EQ(both.deviation(), 1);
    EXPECT_DOUBLE_EQ(both.average(), static_cast<double>(far + 1));
    one.add(far + 2);
    EXPECT_DOUBLE_EQ(one.deviation(), 1);
    Histogram empty;
    empty += both;
    EXPECT_DOUBLE_EQ(empty.deviation(), 1);
}

}  // namespace
}  // namespace pollcore::perf
