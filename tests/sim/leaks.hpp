// Finds what a history leaves behind.
#pragma once

#include <cstdint>

namespace pollcore::sim {

struct Held {
    std::uint64_t allocations = 0;  ///< live allocations by operator new; 0 under a sanitizer, which counts by itself
    int lowest_free_fd = 0;
    bool operator==(const Held&) const = default;
};

/// The resources that this process holds now. Only for a process with one thread.
[[nodiscard]] Held held_now();

}  // namespace pollcore::sim
