// Runs one function on several threads at once.
//
// Thread safety: each function is called by one thread at a time.
#pragma once

#include <barrier>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace pollcore::perf {

/// Calls `work(0)` on this thread and `work(i)` on a thread of its own for each other i below `threads`. Each call is
/// given a barrier of all threads whose calls have not ended. Returns when all have returned, and throws the first
/// exception.
inline void run_team(unsigned threads, const std::function<void(unsigned, std::barrier<>&)>& work) {
    std::barrier<> together(threads);
    std::mutex mutex;
    std::exception_ptr failure;
    const auto guarded = [&](unsigned index) {
        try {
            work(index, together);
        } catch (...) {
            const std::lock_guard lock(mutex);
            failure = failure ? failure : std::current_exception();
        }
        together.arrive_and_drop();
    };
    {
        std::vector<std::jthread> others;
        try {
            for (unsigned index = 1; index < threads; ++index) {
                others.emplace_back(guarded, index);
            }
        } catch (...) {
            {
                const std::lock_guard lock(mutex);
                failure = failure ? failure : std::current_exception();
            }
            // Nobody waits for the threads that could not be made.
            for (std::size_t index = others.size() + 1; index < threads; ++index) {
                together.arrive_and_drop();
            }
        }
        guarded(0);
    }
    if (failure) {
        std::rethrow_exception(failure);
    }
}

}  // namespace pollcore::perf
