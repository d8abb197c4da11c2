// How a test waits for other threads, of which there may be more than CPUs.
#pragma once

#include <sched.h>

#include <chrono>
#include <thread>

namespace pollcore::test {

/// To be called in each turn of a waiting loop. Most calls yield, which is quick. Some sleep, so that kernel threads
/// get the CPU, too.
inline void give_way() {
    static thread_local unsigned turns = 0;
    if (++turns % 64 == 0) {
        std::this_thread::sleep_for(std::chrono::microseconds(50));
    } else {
        ::sched_yield();
    }
}

}  // namespace pollcore::test
