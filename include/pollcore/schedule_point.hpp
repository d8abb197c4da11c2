// Points where another thread can see this thread's half-done work.
//
// In a normal build these points do nothing. The simulation compiles the same sources with POLLCORE_SIMULATED. It runs
// all threads of the program as fibers of one thread, and may switch to another fiber at such a point (D30).
#pragma once

#include <cstdint>

namespace pollcore {

enum class SchedulePoint : std::uint8_t {
    publish,  ///< slots are written but not published, or an answer is about to be written
    take,     ///< a slot was seen to be ready but not read
    release,  ///< slots were read but not given back
    expect,   ///< a thread has nothing to do, but has not yet announced that it will sleep
    arm,      ///< a thread has announced that it will sleep, but has not yet armed its wake-up
    look,     ///< a thread has armed its wake-up, but has not yet looked for work once more
    wake,     ///< a thread has published work for another, but has not yet checked whether the other sleeps
};

#ifdef POLLCORE_SIMULATED
void schedule_point(SchedulePoint point) noexcept;
#else
inline void schedule_point(SchedulePoint) noexcept {}
#endif

}  // namespace pollcore
