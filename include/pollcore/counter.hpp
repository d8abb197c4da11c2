// Counters that have one writer each.
#pragma once

#include <atomic>
#include <cstdint>

namespace pollcore {

/// A count with one writer. A reader may get a value that is a moment old, but never a torn one.
class Counter {
public:
    void add(std::uint64_t n = 1) noexcept {
        // Relaxed load and store instead of a locked add: no other thread writes the count.
        value_.store(value_.load(std::memory_order_relaxed) + n, std::memory_order_relaxed);
    }
    void raise_to(std::uint64_t n) noexcept {
        if (n > value_.load(std::memory_order_relaxed)) {
            value_.store(n, std::memory_order_relaxed);
        }
    }
    void set(std::uint64_t n) noexcept { value_.store(n, std::memory_order_relaxed); }
    [[nodiscard]] std::uint64_t value() const noexcept { return value_.load(std::memory_order_relaxed); }

private:
    std::atomic<std::uint64_t> value_{0};
};

/// A count modulo 2^32 with one writer, where there is no room for a Counter. A reader that looks often enough knows
/// how much it grew: the difference of two values, modulo 2^32.
class SmallCounter {
public:
    void add(std::uint32_t n = 1) noexcept {
        // As Counter::add: no other thread writes the count.
        value_.store(value_.load(std::memory_order_relaxed) + n, std::memory_order_relaxed);
    }
    [[nodiscard]] std::uint32_t value() const noexcept { return value_.load(std::memory_order_relaxed); }

private:
    std::atomic<std::uint32_t> value_{0};
};

}  // namespace pollcore
