// Histograms for Prometheus, from those of a statistics segment.
//
// Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <vector>

#include "pollcore/statistics.hpp"

namespace pollcore::stat {

/// A Prometheus histogram.
struct Buckets {
    struct Bucket {
        double most = 0;          ///< "le": the largest value in this bucket and those below it
        std::uint64_t count = 0;  ///< of this bucket and those below it
    };
    std::vector<Bucket> buckets;  ///< without the last one, which has no bound
    std::uint64_t count = 0;
    double sum = 0;  ///< an estimate: each value counts as the middle of its bucket
};

/// `counts` is a field of kind histogram or latency.
///
/// A histogram of times gets the same bounds on every host and after every boot: 1, 2 and 5 times a power of ten, from
/// 50 ns to 1 s. Bounds that follow from the frequency of the time stamp counter would differ. A value is counted below
/// a bound only if its whole bucket in the segment is below. `seconds_per_unit` converts the segment's unit.
[[nodiscard]] Buckets time_buckets(statistics::Kind kind, const std::vector<std::uint64_t>& counts,
                                   double seconds_per_unit);
/// A histogram of numbers has the segment's bounds, which are one less than the powers of two.
[[nodiscard]] Buckets number_buckets(statistics::Kind kind, const std::vector<std::uint64_t>& counts);

}  // namespace pollcore::stat
