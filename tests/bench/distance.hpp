// How far two CPUs are from each other at the moment.
//
// The CPUs of a virtual machine are threads of its host, which moves them about. For some seconds or minutes two CPUs
// are two threads of one core, two cores that share a cache, or two cores that share none. A cache line takes four
// times as long without a shared cache as with one. Figures between two CPUs are compared only at the same distance.
//
// Thread safety: where() by one thread at a time.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "two_cpus.hpp"

namespace pollcore::bench {

enum class Distance : std::uint8_t {
    siblings,  ///< two threads of one core
    near,      ///< two cores that share a cache
    far,       ///< two cores that share no cache
};
inline constexpr std::array kDistances{Distance::siblings, Distance::near, Distance::far};

[[nodiscard]] std::string_view name_of(Distance distance) noexcept;

/// Judges by a round trip between two lines, with both sides looking as fast as they can. Takes half a millisecond.
[[nodiscard]] Distance where(const Cpus& cpus);

}  // namespace pollcore::bench
