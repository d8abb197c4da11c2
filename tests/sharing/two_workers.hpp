// Two workers, each with an application of its own, that work at once. Compiled so that its accesses to memory are
// recorded.
//
// Thread safety: the caller's thread, and those that it makes.
#pragma once

#include <cstdint>

namespace pollcore::sharing {

struct TwoWorkers {
    std::uint32_t devices = 2;  ///< 1: both workers work on one
    std::uint32_t burst = 32;
    std::uint32_t bursts = 200;  ///< that are recorded, of each application
};
inline constexpr std::uint8_t kApplications[] = {0, 1};
inline constexpr std::uint8_t kWorkers[] = {2, 3};  ///< kWorkers[i] serves kApplications[i]

/// Returns when all has been carried out. Throws when something was not.
void run(const TwoWorkers& load);

/// One application and one worker, turned by turns in one thread: what moves is the same each time.
struct OneWorker {
    std::uint32_t burst = 32;
    std::uint32_t bursts = 200;
    std::uint32_t inline_bytes = 0;
};
void run(const OneWorker& load);

}  // namespace pollcore::sharing
