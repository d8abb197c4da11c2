// Memory that all measurements share, so that all use the same cache lines.
//
// Thread safety: one thread at a time.
#pragma once

#include <cstddef>

namespace pollcore::bench {

/// Returns zeroed memory, in huge pages if the kernel has some. Only one measurement at a time may use the memory.
[[nodiscard]] void* arena(std::size_t bytes);

}  // namespace pollcore::bench
