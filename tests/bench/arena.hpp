// Memory that measurements share, so that all are done with the same lines.
//
// Thread safety: one thread at a time.
#pragma once

#include <cstddef>

namespace pollcore::bench {

/// Ordinary memory in huge pages where the kernel gives them, all 0, for one measurement at a time.
[[nodiscard]] void* arena(std::size_t bytes);

}  // namespace pollcore::bench
