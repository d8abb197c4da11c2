// Two threads, each on a CPU of its own.
//
// Thread safety: run_pair() by one thread at a time.
#pragma once

#include <pthread.h>
#include <sched.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <thread>

#include "pollcore/error.hpp"

namespace pollcore::bench {

struct Cpus {
    std::uint32_t here = 0;   ///< the application's, or the writer's
    std::uint32_t there = 1;  ///< the worker's, or the reader's
};

inline void pin(std::uint32_t cpu) {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    if (const int error = ::pthread_setaffinity_np(::pthread_self(), sizeof one, &one); error != 0) {
        throw Error(error, "pinning a thread; choose other CPUs with --cpus");
    }
}

/// `here` on the calling thread, `there` on another; `here` begins when the other runs. Each has its own copy of what it captures:
/// where both looked at one stack for that, what one of them keeps there would be moved to the other and back all the time.
template <class Here, class There>
void run_pair(const Cpus& cpus, Here here, There captured) {
    std::atomic<bool> runs{false};
    std::thread other([&] {
        There there = captured;
        pin(cpus.there);
        // Release, with the acquire below: what is measured begins afterwards.
        runs.store(true, std::memory_order_release);
        there();
    });
    while (!runs.load(std::memory_order_acquire)) {
        ::sched_yield();  // it begins on this CPU
    }
    here();
    other.join();
}

}  // namespace pollcore::bench
