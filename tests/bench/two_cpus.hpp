// Two threads, each on its own CPU.
//
// Thread safety: one thread at a time may call run_pair().
#pragma once

#include <pthread.h>
#include <sched.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <utility>

#include "pollcore/error.hpp"

namespace pollcore::bench {

struct Cpus {
    std::uint32_t here = 0;   ///< CPU of the application or the writer
    std::uint32_t there = 1;  ///< CPU of the worker or the reader
};

inline void pin(std::uint32_t cpu) {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    if (const int error = ::pthread_setaffinity_np(::pthread_self(), sizeof one, &one); error != 0) {
        throw Error(error, "pinning a thread; choose other CPUs with --cpus");
    }
}

/// A thread that starts on the given CPU. A thread that starts on the caller's CPU and then moves would first wait for
/// the caller, and this wait would count as noise.
template <class Run>
class ThreadOn {
public:
    ThreadOn(std::uint32_t cpu, Run run) : run_(std::move(run)) {
        cpu_set_t one;
        CPU_ZERO(&one);
        CPU_SET(cpu, &one);
        pthread_attr_t attributes;
        ::pthread_attr_init(&attributes);
        int error = ::pthread_attr_setaffinity_np(&attributes, sizeof one, &one);
        if (error == 0) {
            error = ::pthread_create(
                &thread_, &attributes,
                [](void* self) -> void* {
                    static_cast<ThreadOn*>(self)->run_();
                    return nullptr;
                },
                this);
        }
        ::pthread_attr_destroy(&attributes);
        if (error != 0) {
            throw Error(error, "a thread on another CPU; choose other CPUs with --cpus");
        }
    }
    ~ThreadOn() { ::pthread_join(thread_, nullptr); }
    ThreadOn(const ThreadOn&) = delete;
    ThreadOn& operator=(const ThreadOn&) = delete;

private:
    Run run_;
    pthread_t thread_{};
};

/// Runs `here` on the calling thread and a copy of `captured` on another thread. `here` begins when the other thread
/// runs. The copy is on the other thread's stack. If both threads read the captures from one stack, the cache lines of
/// that stack would move between the CPUs all the time.
template <class Here, class There>
void run_pair(const Cpus& cpus, Here here, There captured) {
    std::atomic<bool> runs{false};
    const ThreadOn other(cpus.there, [&] {
        There there = captured;
        // Release, paired with the acquire below: the measurement begins after this store.
        runs.store(true, std::memory_order_release);
        there();
    });
    while (!runs.load(std::memory_order_acquire)) {
        ::sched_yield();
    }
    here();
}

}  // namespace pollcore::bench
