// What a history leaves behind.
#pragma once

#include <cstdint>

namespace pollcore::sim {

struct Held {
    std::uint64_t allocations = 0;  ///< by operator new, and not freed; 0 under a sanitizer, which has its own count
    int lowest_free_fd = 0;
    bool operator==(const Held&) const = default;
};

/// What this process holds now. One thread.
[[nodiscard]] Held held_now();

}  // namespace pollcore::sim
