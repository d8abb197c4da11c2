// The only source of randomness in a history.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace pollcore::sim {

/// SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014). It gives the same numbers
/// everywhere and needs no set-up.
class Random {
public:
    explicit Random(std::uint64_t seed) noexcept : state_(seed) {}

    std::uint64_t next() noexcept {
        std::uint64_t z = state_ += 0x9e3779b97f4a7c15;
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
        z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
        return z ^ (z >> 31);
    }
    /// 0 to n - 1; n must be much smaller than 2^32.
    std::uint32_t below(std::uint32_t n) noexcept { return static_cast<std::uint32_t>((next() >> 32) * n >> 32); }
    /// From low to high, both included.
    std::uint32_t between(std::uint32_t low, std::uint32_t high) noexcept { return low + below(high - low + 1); }
    /// True with the chance 1/n.
    bool one_in(std::uint32_t n) noexcept { return below(n) == 0; }
    template <class T, std::size_t N>
    const T& pick(const std::array<T, N>& of) noexcept {
        return of[below(N)];
    }
    /// An independent stream.
    [[nodiscard]] Random split() noexcept { return Random(next()); }

private:
    std::uint64_t state_;
};

}  // namespace pollcore::sim
