// What a request's tag says: channel, life and request.
#pragma once

#include <cstdint>

namespace pollcore::sim {

inline constexpr unsigned kChannelShift = 48;
inline constexpr unsigned kLifeShift = 40;
inline constexpr std::uint64_t kShared = std::uint64_t{1}
                                         << 63;  ///< and no channel: of its application's shared receive queue
inline constexpr std::uint64_t kSequenceMask = (std::uint64_t{1} << kLifeShift) - 1;

}  // namespace pollcore::sim
