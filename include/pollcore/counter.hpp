// A counter.
#pragma once

#include <atomic>
#include <cstdint>

namespace pollcore {

/// A count with one writer. Readers may see it a moment late, never torn.
class Counter {
public:
    void add(std::uint64_t n = 1) noexcept {
        // Relaxed load and store instead of a locked add: nobody else writes it.
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

}  // namespace pollcore
