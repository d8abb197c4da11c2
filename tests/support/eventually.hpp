// How a test waits for what other threads, processes or the kernel do a little later.
#pragma once

#include <chrono>
#include <thread>

namespace pollcore::test {

/// Returns true as soon as `condition()` does. Returns false if that takes two minutes, which only a hang does.
template <class Condition>
[[nodiscard]] bool eventually(Condition&& condition) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::minutes(2);
    while (!condition()) {
        if (std::chrono::steady_clock::now() >= until) {
            return false;
        }
        std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
    return true;
}

}  // namespace pollcore::test
