#include <algorithm>
#include <cmath>
#include <limits>

#include "measurement.hpp"

namespace pollcore::bench {

Samples present(const Samples& samples) {
    Samples all = samples;
    std::erase_if(all, [](double value) { return std::isnan(value); });
    return all;
}

double median(const Samples& samples) {
    Samples values = present(samples);
    if (values.empty()) {
        return std::numeric_limits<double>::quiet_NaN();
    }
    std::sort(values.begin(), values.end());
    const std::size_t half = values.size() / 2;
    return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

std::string_view name_of(Distance distance) noexcept {
    switch (distance) {
        case Distance::siblings: return "two threads of one core";
        case Distance::near: return "near CPUs";
        case Distance::far: return "far CPUs";
    }
    return "";
}

}  // namespace pollcore::bench
