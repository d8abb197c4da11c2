// Parts that a benchmark leaves out, to measure what they cost (D8).
//
// In a program both constants are true, and asking for them compiles to nothing. The benchmark compiles the sources
// once more with POLLCORE_BARE (tests/bench/bare). That build checks no admission and counts nothing: its load keeps
// within the limits by itself. It has a counter.hpp of its own, too.
#pragma once

namespace pollcore {

#ifdef POLLCORE_BARE
inline constexpr bool kAdmission = false;
inline constexpr bool kStageLatency = false;
#else
inline constexpr bool kAdmission = true;     ///< requests in flight are counted, and those without room refused
inline constexpr bool kStageLatency = true;  ///< one request in many is followed, for its latency
#endif

}  // namespace pollcore
