// Collects what one thread measures: a histogram of all latencies, and figures of short slices of time.
//
// Thread safety: used by one measuring thread only.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "pollperf/measure/histogram.hpp"
#include "pollperf/report/results.hpp"

namespace pollcore::perf {

class Recorder {
public:
    /// Times are given in units; `units_per_s` of them are a second. Latencies are divided by `samples_per_iteration`.
    Recorder(double units_per_s, double samples_per_iteration)
        : units_per_s_(units_per_s),
          ns_per_latency_unit_(1e9 / units_per_s / samples_per_iteration),
          slice_units_(static_cast<std::uint64_t>(units_per_s / 100)) {}

    /// Begins a part whose time counts. Between parts the time does not count.
    void resume(std::uint64_t now) noexcept { since_ = now; }
    void add(std::uint64_t latency, std::uint64_t times = 1) noexcept { slice_.add(latency, times); }
    /// Counts operations that are done, and ends the slice if it is long enough.
    void advance(std::uint64_t now, std::uint64_t operations) {
        operations_in_slice_ += operations;
        if (units_in_slice_ + (now - since_) >= slice_units_) [[unlikely]] {
            end_slice(now);
        }
    }
    /// Ends a part.
    void pause(std::uint64_t now) noexcept {
        units_in_slice_ += now - since_;
        since_ = now;
    }
    /// A whole part at once: consecutive operations, one latency each.
    void add_part(std::span<const std::uint64_t> latencies) {
        std::uint64_t units = 0;
        for (const std::uint64_t one : latencies) {
            add(one);
            units += one;
        }
        since_ = 0;
        advance(units, latencies.size());
        if (units_in_slice_ != 0 || operations_in_slice_ != 0) {
            pause(units);
        }
    }

    /// The latencies and slices since the last call. Ends the slice.
    [[nodiscard]] std::pair<Histogram, std::vector<Slice>> take() {
        if (operations_in_slice_ != 0) {
            end_slice(since_);
        }
        return {std::exchange(all_, {}), std::exchange(slices_, {})};
    }

private:
    /// More slices than this are not readable in a picture. Then two slices become one.
    static constexpr std::size_t kSlicesMost = 512;

    void end_slice(std::uint64_t now) {
        const std::uint64_t units = units_in_slice_ + (now - since_);
        since_ = now;
        units_in_slice_ = 0;
        elapsed_s_ += static_cast<double>(units) / units_per_s_;
        const auto ns = [this](std::uint64_t latency) { return static_cast<double>(latency) * ns_per_latency_unit_; };
        slices_.push_back({.at_s = elapsed_s_,
                           .seconds = static_cast<double>(units) / units_per_s_,
                           .operations = std::exchange(operations_in_slice_, 0),
                           .median_ns = ns(slice_.percentile(0.5)),
                           .p99_ns = ns(slice_.percentile(0.99)),
                           .max_ns = ns(slice_.greatest())});
        all_ += slice_;
        slice_.clear();
        if (slices_.size() == kSlicesMost) {
            halve();
        }
    }

    // The median of two slices is taken to be the mean of their medians, and the 99th percentile the larger one.
    void halve() {
        slice_units_ *= 2;
        for (std::size_t i = 0; i < slices_.size() / 2; ++i) {
            const Slice& a = slices_[2 * i];
            const Slice& b = slices_[2 * i + 1];
            slices_[i] = {.at_s = b.at_s,
                          .seconds = a.seconds + b.seconds,
                          .operations = a.operations + b.operations,
                          .median_ns = (a.median_ns + b.median_ns) / 2,
                          .p99_ns = std::max(a.p99_ns, b.p99_ns),
                          .max_ns = std::max(a.max_ns, b.max_ns)};
        }
        slices_.resize(slices_.size() / 2);
    }

    double units_per_s_;
    double ns_per_latency_unit_;
    std::uint64_t slice_units_;
    std::uint64_t since_ = 0;
    std::uint64_t units_in_slice_ = 0;
    std::uint64_t operations_in_slice_ = 0;
    double elapsed_s_ = 0;
    Histogram slice_;
    Histogram all_;
    std::vector<Slice> slices_;
};

}  // namespace pollcore::perf
