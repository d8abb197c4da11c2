// Parts that a benchmark leaves out, to measure what they cost (D8).
//
// In a normal build both constants are true, and a test of them compiles to nothing. The benchmark compiles the sources
// a second time with POLLCORE_BARE (tests/bench/bare). The bare build does not check whether there is room for a
// request, so the benchmark has to keep its load within the limits. Its counters count nothing, because it has its own
// counter.hpp.
#pragma once

namespace pollcore {

#ifdef POLLCORE_BARE
inline constexpr bool kAdmission = false;
inline constexpr bool kStageLatency = false;
#else
inline constexpr bool kAdmission = true;  ///< count requests in flight, and refuse requests for which there is no room
inline constexpr bool kStageLatency = true;  ///< measure the latency of one request in many
#endif

}  // namespace pollcore
