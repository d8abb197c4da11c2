// Memory that an attached process and its daemon share: a memfd (memfd_create(2)).
//
// Who attaches makes it, maps it and touches its pages, so that its own limits pay. The daemon maps it, and then seals
// it, so that nobody can take pages out of it any more or map it for writing again; mappings that are there go on.
// Sizes alone are not enough: a hole that is punched into a page in use kills who reads it (H9).
#pragma once

#include <cstddef>

#include "base/host_memory.hpp"
#include "base/unique_fd.hpp"

namespace pollcore {

struct SharedMemory {
    UniqueFd fd;
    HostMemory mapping;  ///< at least as long as was asked for
};

/// Zeroed and touched; of huge pages, if there are enough and `bytes` are one or more. Not in forked children. Throws
/// Error(ENOMEM). `what_for` stands in /proc/PID/maps.
[[nodiscard]] SharedMemory make_shared_memory(std::size_t bytes, const char* what_for);

/// The daemon's side: maps what another process has made, and sees to it that it stays. That may wait for as long as
/// the other process likes, which can hold the file's lock. Unmapped elsewhere (disposal.hpp). Throws Error(EINVAL) for
/// what is no sealable memfd of this size or has pages that its maker has not touched, ENOMEM where there is no memory
/// for it.
[[nodiscard]] HostMemory map_and_seal(const UniqueFd& fd, std::size_t bytes);

/// Memory that this process writes, and others to whom it gives the descriptor may only read. Throws Error.
[[nodiscard]] SharedMemory make_published_memory(std::size_t bytes, const char* what_for);
/// The others' side.
[[nodiscard]] HostMemory map_published(const UniqueFd& fd, std::size_t bytes);

}  // namespace pollcore
