// Points where another thread can see this thread's half-done work.
//
// In a program they do nothing. The simulation, which runs all threads in one and compiles the same sources with
// POLLCORE_SIMULATED, lets other threads run there (D30).
#pragma once

#include <cstdint>

namespace pollcore {

enum class SchedulePoint : std::uint8_t {
    publish,  ///< slots are written but not published
    take,     ///< a slot was seen to be ready but not read
    release,  ///< slots were read but not given back
    expect,   ///< a thread has nothing to do but has not yet said that it sleeps
    arm,      ///< the thread has said that it sleeps, but its wake-up is not armed
    look,     ///< its wake-up is armed, but it has not looked once more
    wake,     ///< something was brought to a thread, but nobody has looked whether it sleeps
};

#ifdef POLLCORE_SIMULATED
void schedule_point(SchedulePoint point) noexcept;
#else
inline void schedule_point(SchedulePoint) noexcept {}
#endif

}  // namespace pollcore
