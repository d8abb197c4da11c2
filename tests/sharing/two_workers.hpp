// Runs two workers at the same time, each with its own application. The code is compiled so that its accesses to memory
// are recorded.
//
// Thread safety: run() works in the calling thread and in threads that it creates.
#pragma once

#include <cstdint>

namespace pollcore::sharing {

struct TwoWorkers {
    std::uint32_t devices = 2;  ///< 1: both workers use the same device
    std::uint32_t burst = 32;
    std::uint32_t bursts = 200;  ///< recorded bursts of each application
};
inline constexpr std::uint8_t kApplications[] = {0, 1};
inline constexpr std::uint8_t kWorkers[] = {2, 3};  ///< kWorkers[i] serves kApplications[i]

/// Returns when all operations have been carried out. Throws if an operation fails.
void run(const TwoWorkers& load);

/// One application and one worker. They take turns in one thread, so that each run moves the same lines.
struct OneWorker {
    std::uint32_t burst = 32;
    std::uint32_t bursts = 200;
    std::uint32_t inline_bytes = 0;
};
void run(const OneWorker& load);

}  // namespace pollcore::sharing
