// Memory of an attached program that did not come from Context::allocate (AttachOptions::own_memory).
//
// The daemon can only map a memfd. So the program's pages move onto one, in place: they are copied to it, and mremap(2)
// puts its mapping where they were. The program keeps its addresses. The pages are private memory again when the last
// region in them has ended. Until then a forked child shares them.
//
// A write to the pages between the copy and mremap(2) would be lost. The thread that moves the pages writes only to its
// stack meanwhile, and has the library's own thread held (Pause). Other writers are the program's concern.
//
// Thread safety: one thread at a time. It may be another one each time.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <memory>
#include <vector>

#include "attach/mappings.hpp"
#include "attach/pause.hpp"
#include "attach/shared_memory.hpp"

namespace pollcore {

/// The pages that contain this memory. Throws Error(EINVAL) if it exceeds the address space.
[[nodiscard]] Pages pages_of(std::byte* data, std::size_t bytes);

/// Pages of the program, and the memfd that takes their place. Regions in these pages share the object.
class MovedMemory {
public:
    /// Returns which of `moved` these pages are a part of; null if they are private memory, which can be moved. Throws
    /// Error: EINVAL if some of the pages are not mapped, EOPNOTSUPP for memory that cannot be moved.
    [[nodiscard]] static std::shared_ptr<MovedMemory> find(Pages pages,
                                                           const std::vector<std::shared_ptr<MovedMemory>>& moved);

    /// Makes a memfd for `pages`, which stay as they are. Throws Error. `reader` is the library's own thread.
    MovedMemory(Pages pages, Pause& reader);
    /// Makes the pages private again, where the program has not unmapped them. If that fails, they stay shared, and the
    /// log says so.
    ~MovedMemory();
    MovedMemory(const MovedMemory&) = delete;
    MovedMemory& operator=(const MovedMemory&) = delete;

    /// Moves the pages, and closes the descriptor. If it throws Error, the pages are as before.
    void move();

    [[nodiscard]] int fd() const noexcept { return memory_.fd.get(); }
    [[nodiscard]] std::byte* data() const noexcept { return pages_.begin; }

private:
    /// The mapping is this memfd, in its place.
    [[nodiscard]] bool is_here(const Mapping& mapping) const noexcept;
    void put_in_place(Pages pages, HostMemory& other);

    const Pages pages_;
    Pause& reader_;
    SharedMemory memory_;
    dev_t device_ = 0;
    ino_t inode_ = 0;
    bool moved_ = false;
};

}  // namespace pollcore
