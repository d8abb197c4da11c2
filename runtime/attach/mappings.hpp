// The mappings of this process's memory, as proc(5) shows them in /proc/self/maps.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace pollcore {

/// Whole pages.
struct Pages {
    std::byte* begin = nullptr;
    std::size_t size = 0;

    [[nodiscard]] std::byte* end() const noexcept { return begin + size; }
    [[nodiscard]] bool contain(const void* address) const noexcept { return begin <= address && address < end(); }
};

struct Mapping {
    Pages pages;
    bool readable = false;
    bool writable = false;
    bool executable = false;
    bool shared = false;
    std::uint64_t offset = 0;  ///< in the file, in bytes
    dev_t device = 0;
    ino_t inode = 0;   ///< 0: no file
    std::string name;  ///< of the file; of other mappings empty, or the kernel's name for it, such as "[heap]"
};

/// The part of each mapping that lies in `pages`, by address. Throws Error if they cannot be read.
[[nodiscard]] std::vector<Mapping> mappings_within(Pages pages);

}  // namespace pollcore
