#include "sim/leaks.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>
#include <new>

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
namespace {

std::uint64_t live = 0;  // not atomic: a process that runs histories has one thread

void* take(void* memory) {
    if (memory == nullptr) {
        throw std::bad_alloc();
    }
    ++live;
    return memory;
}

void give_back(void* memory) noexcept {
    live -= memory != nullptr;
    std::free(memory);
}

[[nodiscard]] std::size_t rounded(std::size_t size, std::align_val_t alignment) {
    const auto align = static_cast<std::size_t>(alignment);
    return (size + align - 1) / align * align;
}

}  // namespace

void* operator new(std::size_t size) {
    return take(std::malloc(size != 0 ? size : 1));
}
void* operator new(std::size_t size, std::align_val_t alignment) {
    return take(std::aligned_alloc(static_cast<std::size_t>(alignment), rounded(size, alignment)));
}
void operator delete(void* memory) noexcept {
    give_back(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
    give_back(memory);
}
void operator delete(void* memory, std::align_val_t) noexcept {
    give_back(memory);
}
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept {
    give_back(memory);
}
#else
namespace {
constexpr std::uint64_t live = 0;
}
#endif

namespace pollcore::sim {

Held held_now() {
    const int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    close(fd);
    return {.allocations = live, .lowest_free_fd = fd};
}

}  // namespace pollcore::sim
