#include "pollperf/report/hdr_text.hpp"

#include <cmath>
#include <iterator>
#include <set>

#include <fmt/format.h>

namespace pollcore::perf {
namespace {

// HdrHistogram prints so many percentiles from one half of the rest to the next: 0 to 50 %, 50 to 75 %, and so on.
constexpr double kTicksPerHalf = 5;

// The next percentile after `percent`. The steps halve when the rest up to 100 % has halved.
double next_tick(double percent) {
    const double halvings = std::floor(std::log2(100 / (100 - percent))) + 1;
    return percent + 100 / (kTicksPerHalf * std::exp2(halvings));
}

}  // namespace

std::string hdr_text(const Measurement& measurement) {
    const Histogram& latency = measurement.latency;
    const auto microseconds = [&](double units) { return units * measurement.ns_per_unit / 1e3; };
    std::string text =
        fmt::format("{:>12} {:>14} {:>10} {:>14}\n\n", "Value", "Percentile", "TotalCount", "1/(1-Percentile)");
    const auto out = std::back_inserter(text);
    double percent = 0;
    std::uint64_t so_far = 0;
    latency.for_each([&](std::uint64_t value, std::uint64_t samples) {
        so_far += samples;
        const double reached = 100 * static_cast<double>(so_far) / static_cast<double>(latency.count());
        // A bucket of many samples reaches several percentiles. The last bucket reaches all that are left, of which
        // HdrHistogram prints the first, and then 100 %.
        for (bool more = true; more && reached >= percent; more = so_far < latency.count()) {
            fmt::format_to(out, "{:12.3f} {:2.12f} {:10} {:14.2f}\n", microseconds(static_cast<double>(value)),
                           percent / 100, so_far, 1 / (1 - percent / 100));
            percent = next_tick(percent);
        }
    });
    if (latency.count() != 0) {
        fmt::format_to(out, "{:12.3f} {:2.12f} {:10}\n", microseconds(static_cast<double>(latency.greatest())), 1.0,
                       latency.count());
    }
    fmt::format_to(out, "#[Mean    = {:12.3f}, StdDeviation   = {:12.3f}]\n", microseconds(latency.average()),
                   microseconds(latency.deviation()));
    fmt::format_to(out, "#[Max     = {:12.3f}, Total count    = {:12}]\n",
                   microseconds(static_cast<double>(latency.greatest())), latency.count());
    fmt::format_to(out, "#[Buckets = {:12}, SubBuckets     = {:12}]\n", Histogram::kBuckets / Histogram::kPerOctave,
                   std::uint64_t{Histogram::kPerOctave});
    return text;
}

std::vector<std::pair<std::filesystem::path, std::string>> hdr_files(const std::filesystem::path& path,
                                                                     const Results& results) {
    std::vector<std::pair<std::filesystem::path, std::string>> files;
    if (results.measurements.size() == 1) {
        files.emplace_back(path, hdr_text(results.measurements.front()));
        return files;
    }
    std::set<std::string> taken;
    for (const Measurement& one : results.measurements) {
        const std::string stem =
            fmt::format("{}-{}-{}-{}", path.stem().string(), op_name(one.op), one.size, path_name(one.path));
        // Two measurements of one name differ in something else, such as the offered rate.
        std::string name = stem;
        for (int n = 2; !taken.insert(name).second; ++n) {
            name = fmt::format("{}-{}", stem, n);
        }
        files.emplace_back(path.parent_path() / (name + path.extension().string()), hdr_text(one));
    }
    return files;
}

}  // namespace pollcore::perf
