// Counters that do not count, in place of include/pollcore/counter.hpp. A benchmark built with each of the two shows
// the cost of statistics.
#pragma once

#include <atomic>
#include <cstdint>

namespace pollcore {

class Counter {
public:
    void add(std::uint64_t = 1) noexcept {}
    void raise_to(std::uint64_t) noexcept {}
    void set(std::uint64_t n) noexcept { value_.store(n, std::memory_order_relaxed); }  // a level, not a count
    [[nodiscard]] std::uint64_t value() const noexcept { return value_.load(std::memory_order_relaxed); }

private:
    std::atomic<std::uint64_t> value_{0};
};

class SmallCounter {
public:
    void add(std::uint32_t = 1) noexcept {}
    [[nodiscard]] std::uint32_t value() const noexcept { return 0; }

private:
    std::uint32_t value_ = 0;  // keeps the size
};

}  // namespace pollcore
