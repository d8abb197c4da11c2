// How a test waits for other threads. There may be more threads than CPUs.
#pragma once

#include <sched.h>

#include <chrono>
#include <thread>

namespace pollcore::test {

/// Call this in each turn of a waiting loop. Most calls only yield, which is quick. Every 64th call sleeps, so that
/// kernel threads get the CPU too.
inline void give_way() {
    static thread_local unsigned turns = 0;
    if (++turns % 64 == 0) {
        std::this_thread::sleep_for(std::chrono::microseconds(50));
    } else {
        ::sched_yield();
    }
}

}  // namespace pollcore::test
