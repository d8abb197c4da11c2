// Memory that an attached process and its daemon share: a memfd (memfd_create(2)).
//
// The attaching process makes it, maps it and touches its pages, so that its own limits pay. The daemon maps it and
// then seals it: nobody can take pages out of it any more or map it for writing again, and existing mappings stay.
// Sealing the size alone is not enough: a hole that is punched into a page in use kills the reader (H9).
#pragma once

#include <cstddef>

#include "base/host_memory.hpp"
#include "base/unique_fd.hpp"

namespace pollcore {

struct SharedMemory {
    UniqueFd fd;
    HostMemory mapping;  ///< at least as long as was asked for
};

/// Makes memory that is zeroed and touched. Uses huge pages if there are enough and `bytes` fill at least one. Forked
/// children do not have it. `what_for` appears in /proc/PID/maps. Throws Error(ENOMEM).
[[nodiscard]] SharedMemory make_shared_memory(std::size_t bytes, const char* what_for);

/// The daemon's side: maps memory that another process has made, and seals it. This may wait for as long as the other
/// process likes, since that can hold the file's lock. Another thread unmaps the memory (disposal.hpp). Throws
/// Error(EINVAL) if it is no sealable memfd of this size, or has pages that its maker has not touched; Error(ENOMEM) if
/// memory is short.
[[nodiscard]] HostMemory map_and_seal(const UniqueFd& fd, std::size_t bytes);

/// Makes memory that this process writes, and that processes which get its descriptor may only read. Throws Error.
[[nodiscard]] SharedMemory make_published_memory(std::size_t bytes, const char* what_for);
/// Maps published memory, for reading, in a process that has got the descriptor. Throws Error.
[[nodiscard]] HostMemory map_published(const UniqueFd& fd, std::size_t bytes);

}  // namespace pollcore
