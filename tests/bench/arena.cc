#include "arena.hpp"

#include <sys/mman.h>

#include <cstdint>
#include <cstring>
#include <new>

namespace pollcore::bench {

void* arena(std::size_t bytes) {
    constexpr std::size_t kHuge = 2u << 20;
    constexpr std::size_t kBytes = 16u << 20;
    static std::byte* const memory = [] {
        void* mapped = ::mmap(nullptr, kBytes + kHuge, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (mapped == MAP_FAILED) {
            throw std::bad_alloc();
        }
        auto* aligned =
            reinterpret_cast<std::byte*>((reinterpret_cast<std::uintptr_t>(mapped) + kHuge - 1) & ~(kHuge - 1));
        (void)::madvise(aligned, kBytes, MADV_HUGEPAGE);
        return aligned;
    }();
    if (bytes > kBytes) {
        throw std::bad_alloc();
    }
    std::memset(memory, 0, bytes);  // every measurement starts with the same memory contents
    return memory;
}

}  // namespace pollcore::bench
