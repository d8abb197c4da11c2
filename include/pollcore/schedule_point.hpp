// Where one thread's half-done work can be seen by another.
//
// In a program these are nothing. The simulation, which runs all threads in one and is compiled from the same sources
// with POLLCORE_SIMULATED, lets others take their turn there.
#pragma once

#include <cstdint>

namespace pollcore {

enum class SchedulePoint : std::uint8_t {
    publish,  ///< slots are written, and not published
    take,     ///< a slot was seen to be ready, and not read
    release,  ///< slots were read, and not given back
    expect,   ///< a thread has nothing to do, and has not yet said that it sleeps
    arm,      ///< it has said so, and what would wake it is not armed
    look,     ///< all is armed, and it has not looked once more
    wake,     ///< something was brought to it, and nobody has looked whether it sleeps
};

#ifdef POLLCORE_SIMULATED
void schedule_point(SchedulePoint point) noexcept;
#else
inline void schedule_point(SchedulePoint) noexcept {}
#endif

}  // namespace pollcore
