#include "noise.hpp"

#include <algorithm>
#include <fstream>

#include <fmt/format.h>

#include "apps/pollperf/threads.hpp"

namespace pollcore::bench {
namespace {

// Bounds of the stolen time and of the waiting time, as shares of the measured time. Above a bound, medians may come
// from disturbed moments.
constexpr double kStolenMax = 0.02;
// half of this is normal: other threads of a runtime wait while two of its threads spin on two CPUs
constexpr double kWaitedMax = 0.08;

}  // namespace

NoiseWatch::NoiseWatch() : began_(read()) {}

NoiseWatch::Reading NoiseWatch::read() {
    Reading reading{.when = std::chrono::steady_clock::now(), .steal_ms = perf::steal_ms()};
    // "some avg10=0.00 avg60=0.00 avg300=0.00 total=12345", total in microseconds. Not every kernel has this file.
    std::ifstream file("/proc/pressure/cpu");
    for (std::string word; file >> word && word != "full";) {
        if (word.starts_with("total=")) {
            reading.waiting_us = std::stoull(word.substr(6));
        }
    }
    return reading;
}

std::vector<Noise> NoiseWatch::complaints() const {
    const Reading now = read();
    const double seconds = std::chrono::duration<double>(now.when - began_.when).count();
    std::vector<Noise> lines;
    const double stolen = static_cast<double>(now.steal_ms - began_.steal_ms) / 1e3;
    if (stolen > kStolenMax * seconds) {
        lines.push_back({fmt::format("the hypervisor gave {:.2f} of {:.1f} s to others", stolen, seconds)});
    }
    const double waited = static_cast<double>(now.waiting_us - began_.waiting_us) / 1e6;
    if (waited > kWaitedMax * seconds) {
        lines.push_back(
            {fmt::format("threads waited for a CPU for {:.2f} of {:.1f} s: something else ran", waited, seconds)});
    }
    return lines;
}

std::vector<Noise> restlessness(const std::vector<Measured>& all) {
    constexpr double kMost = 1.5;
    std::vector<Noise> lines;
    for (const Measured& one : all) {
        if (!one.row.starts_with("limit")) {
            continue;
        }
        for (std::size_t i = 0; i < one.columns.size(); ++i) {
            const Samples samples = present(one.samples[i]);
            const auto [least, most] = std::minmax_element(samples.begin(), samples.end());
            if (*most > kMost * *least) {
                lines.push_back({fmt::format("{}, {}, {} lay between {:.0f} and {:.0f}", one.table, one.row,
                                             one.columns[i], *least, *most),
                                 one.table});
            }
        }
    }
    return lines;
}

}  // namespace pollcore::bench
