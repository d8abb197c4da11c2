// The parts of a request's tag: its channel, the life of the queue pair, and the request's number.
#pragma once

#include <cstdint>

namespace pollcore::sim {

inline constexpr unsigned kChannelShift = 48;
inline constexpr unsigned kLifeShift = 40;
inline constexpr std::uint64_t kShared = std::uint64_t{1}
                                         << 63;  ///< a receive of a shared receive queue: the tag has no channel
inline constexpr std::uint64_t kSequenceMask = (std::uint64_t{1} << kLifeShift) - 1;

}  // namespace pollcore::sim
