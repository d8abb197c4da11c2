// How far two CPUs are from each other at the moment.
//
// The CPUs of a virtual machine are threads of its host, and the host moves them from core to core. For some seconds or
// minutes, two CPUs are two threads of one core, two cores with a shared cache, or two cores without one. Without a
// shared cache, a cache line needs four times as long from one CPU to the other. Figures between two CPUs are compared
// only at the same distance.
//
// Thread safety: one thread at a time may call where().
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

/// Measures the time in which a word goes to the other CPU and back, with one cache line for each direction, and
/// returns the distance. Both CPUs poll their line as fast as they can. Takes about a millisecond.
[[nodiscard]] Distance where(const Cpus& cpus);

}  // namespace pollcore::bench
