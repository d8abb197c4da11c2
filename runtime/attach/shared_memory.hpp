// Memory that an attached process and its daemon share: a memfd (memfd_create(2)).
//
// The attaching process makes the memfd, maps it and touches its pages, so that the pages count against the limits of
// this process. The daemon maps the memfd, and then seals it. After that, no process can take pages out of the memfd,
// or map it for writing again. Existing mappings stay. Sealing only the size would not be enough: a process could still
// punch a hole into the file, and then another process that reads there may be killed (H9).
#pragma once

#include <cstddef>

#include "base/host_memory.hpp"
#include "base/unique_fd.hpp"

namespace pollcore {

struct SharedMemory {
    UniqueFd fd;
    HostMemory mapping;  ///< at least as long as requested
};

enum class PageSize {
    largest,   ///< huge pages if there are enough, and if the memory fills at least one
    ordinary,  ///< sysconf(_SC_PAGESIZE)
};

/// Makes memory that is zeroed and touched. A forked child does not have this memory. `what_for` appears in
/// /proc/PID/maps. Throws Error: EINVAL if `bytes` is 0, otherwise the kernel's error, such as ENOMEM.
[[nodiscard]] SharedMemory make_shared_memory(std::size_t bytes, const char* what_for,
                                              PageSize pages = PageSize::largest);

/// The daemon's side: maps memory that another process has made, and seals it. This may wait for as long as the other
/// process likes, because that process can hold the file's lock. make_received_memory() lets another thread unmap the
/// memory. Throws Error(EINVAL) if `fd` is no memfd of this size that can be sealed, or if it has pages that its maker
/// has not touched. Throws Error(ENOMEM) if memory is short.
[[nodiscard]] HostMemory map_and_seal(const UniqueFd& fd, std::size_t bytes);

/// Makes memory that only this process writes. A process that gets the descriptor may only read the memory. Throws
/// Error.
[[nodiscard]] SharedMemory make_published_memory(std::size_t bytes, const char* what_for);
/// Maps published memory for reading, in a process that got the descriptor. Throws Error.
[[nodiscard]] HostMemory map_published(const UniqueFd& fd, std::size_t bytes);

}  // namespace pollcore
