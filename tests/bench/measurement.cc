#include "measurement.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <iostream>
#include <limits>

#include <fmt/format.h>

namespace pollcore::bench {
namespace {

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
constexpr std::size_t kOnce = kDistances.size();  // the index for figures that do not depend on the distance

/// The results of one measurement, by distance.
class Taken {
public:
    explicit Taken(const Measurement& what) : what_(what) {}

    /// Returns false if the host moved the CPUs during each try.
    bool repeat(std::size_t repetition, const Cpus& cpus) {
        constexpr int kTries = 3;
        if (!what_.between_cpus) {
            return add(kOnce, repetition, what_.once());
        }
        for (int i = 0; i < kTries; ++i) {
            const Distance before = where(cpus);
            const std::vector<double> values = what_.once();
            if (where(cpus) == before) {
                return add(static_cast<std::size_t>(before), repetition, values);
            }
        }
        return false;
    }
    /// Number of repetitions at this distance.
    [[nodiscard]] std::size_t count(Distance distance) const { return counts_[static_cast<std::size_t>(distance)]; }

    void give(std::size_t place, std::vector<Measured>& all) {
        if (counts_[place] == 0) {
            return;
        }
        Measured one{.table = what_.table,
                     .row = what_.row,
                     .columns = what_.columns,
                     .distance = {},
                     .samples = std::move(samples_[place])};
        if (place != kOnce) {
            one.distance = static_cast<Distance>(place);
            one.table += fmt::format(", {}", name_of(*one.distance));
        }
        const std::size_t most =
            std::max_element(one.samples.begin(), one.samples.end(), [](const Samples& a, const Samples& b) {
                return a.size() < b.size();
            })->size();
        for (Samples& column : one.samples) {
            column.resize(most, kNone);
        }
        all.push_back(std::move(one));
    }
    [[nodiscard]] const Measurement& what() const { return what_; }

private:
    bool add(std::size_t place, std::size_t repetition, const std::vector<double>& values) {
        samples_[place].resize(what_.columns.size());
        for (std::size_t column = 0; column < values.size(); ++column) {
            samples_[place][column].resize(repetition, kNone);
            samples_[place][column].push_back(values[column]);
        }
        ++counts_[place];
        return true;
    }

    const Measurement& what_;
    std::array<std::vector<Samples>, kOnce + 1> samples_;
    std::array<std::size_t, kOnce + 1> counts_{};
};

/// Whether every measurement between CPUs has `wanted` repetitions at each distance that was seen.
bool enough(const std::vector<Taken>& all, std::size_t wanted) {
    return std::ranges::all_of(kDistances, [&](Distance distance) {
        std::size_t least = std::numeric_limits<std::size_t>::max();
        std::size_t most = 0;
        for (const Taken& one : all) {
            if (one.what().between_cpus) {
                least = std::min(least, one.count(distance));
                most = std::max(most, one.count(distance));
            }
        }
        return most == 0 || least >= wanted;
    });
}

}  // namespace

std::vector<Measured> measure(const std::vector<Measurement>& measurements, int repetitions, std::string_view program,
                              const Cpus& cpus) {
    const auto wanted = static_cast<std::size_t>(repetitions);
    std::vector<Taken> taken(measurements.begin(), measurements.end());
    // The host may move the CPUs to a new distance late. More repetitions then give that distance enough values.
    for (std::size_t i = 0; i < wanted || (i < 2 * wanted && !enough(taken, wanted / 2 + 1)); ++i) {
        std::cerr << program << ": repetition " << i + 1 << " of " << std::max(wanted, i + 1) << '\n';
        for (Taken& one : taken) {
            if (!one.repeat(i, cpus)) {
                std::cerr << program << ": the CPUs were moved: " << one.what().row << " has no value this time\n";
            }
        }
    }
    std::vector<Measured> all;
    for (auto begin = taken.begin(); begin != taken.end();) {
        const auto end =
            std::find_if(begin, taken.end(), [&](const Taken& one) { return one.what().table != begin->what().table; });
        for (std::size_t place = 0; place <= kOnce; ++place) {
            std::for_each(begin, end, [&](Taken& one) { one.give(place, all); });
        }
        begin = end;
    }
    return all;
}

}  // namespace pollcore::bench
