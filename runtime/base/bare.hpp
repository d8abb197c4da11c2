// What a benchmark leaves out to see what it costs.
//
// In a program both are true, and asking for them compiles to nothing. The benchmark compiles the sources once more
// with POLLCORE_BARE (tests/bench/bare), where nothing is looked at of what is admitted, and nothing is counted: its
// load keeps within the limits by itself. There counter.hpp is another, too.
#pragma once

namespace pollcore {

#ifdef POLLCORE_BARE
inline constexpr bool kAdmission = false;
inline constexpr bool kStageLatency = false;
#else
inline constexpr bool kAdmission = true;     ///< what is in flight is counted, and what has no room is refused
inline constexpr bool kStageLatency = true;  ///< one request in many is followed
#endif

}  // namespace pollcore
