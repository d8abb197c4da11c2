#include "failing_allocations.hpp"

#include <execinfo.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <new>

namespace pollcore::testing {
namespace {

constexpr int kFramesMax = 24;

std::atomic<bool> armed{false};
std::atomic<std::uint64_t> asked_for{0};
std::atomic<std::uint64_t> fails{0};
std::atomic<bool> of_everyone{false};
// The stack of the allocation that failed. The thread whose allocation failed writes it. It is read after the tested
// call has returned.
std::array<void*, kFramesMax> frames;
std::atomic<int> frames_used{0};

// Threads are recognized by their names, because the runtime makes its threads itself.
bool this_thread_counts() noexcept {
    char name[16] = {};
    ::prctl(PR_GET_NAME, name);
    const bool waits_for_descriptors = std::strcmp(name, "pollcore-loop") == 0;
    return std::strcmp(name, "pollcore-log") != 0 &&
           (!waits_for_descriptors || of_everyone.load(std::memory_order_relaxed));
}

[[gnu::noinline]] bool is_to_fail() noexcept {
    if (!armed.load(std::memory_order_acquire) || !this_thread_counts() ||
        asked_for.fetch_add(1) + 1 != fails.load(std::memory_order_relaxed)) {
        return false;
    }
    frames_used.store(::backtrace(frames.data(), kFramesMax), std::memory_order_release);
    return true;
}

[[gnu::noinline]] void* allocate(std::size_t bytes, std::size_t alignment) noexcept {
    if (is_to_fail()) {
        return nullptr;
    }
    const std::size_t some = bytes == 0 ? 1 : bytes;
    return alignment <= alignof(std::max_align_t)
               ? std::malloc(some)
               : std::aligned_alloc(alignment, (some + alignment - 1) / alignment * alignment);
}

[[gnu::noinline]] void* allocate_or_throw(std::size_t bytes, std::size_t alignment) {
    if (void* memory = allocate(bytes, alignment); memory != nullptr) {
        return memory;
    }
    throw std::bad_alloc();
}

[[gnu::noinline]] void give_back(void* memory) noexcept {
    std::free(memory);
}

}  // namespace

FailingAllocation::FailingAllocation(std::uint64_t nth, Allocating whose) {
    std::array<void*, 1> first;
    (void)::backtrace(first.data(), 1);  // the first backtrace() loads libraries, which allocates
    of_everyone.store(whose == Allocating::everyone);
    fails.store(nth);
    asked_for.store(0);
    frames_used.store(0);
    armed.store(true, std::memory_order_release);
}

FailingAllocation::~FailingAllocation() {
    armed.store(false, std::memory_order_release);
}

std::uint64_t FailingAllocation::counted() noexcept {
    return asked_for.load();
}
bool FailingAllocation::met() noexcept {
    return asked_for.load() >= fails.load();
}

void FailingAllocation::print_where() noexcept {
    ::backtrace_symbols_fd(frames.data(), frames_used.load(std::memory_order_acquire), STDERR_FILENO);
}

}  // namespace pollcore::testing

using pollcore::testing::allocate;
using pollcore::testing::allocate_or_throw;
using pollcore::testing::give_back;

void* operator new(std::size_t bytes) {
    return allocate_or_throw(bytes, 1);
}
void* operator new[](std::size_t bytes) {
    return allocate_or_throw(bytes, 1);
}
void* operator new(std::size_t bytes, std::align_val_t alignment) {
    return allocate_or_throw(bytes, static_cast<std::size_t>(alignment));
}
void* operator new[](std::size_t bytes, std::align_val_t alignment) {
    return allocate_or_throw(bytes, static_cast<std::size_t>(alignment));
}
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
    return allocate(bytes, 1);
}
void* operator new[](std::size_t bytes, const std::nothrow_t&) noexcept {
    return allocate(bytes, 1);
}
void* operator new(std::size_t bytes, std::align_val_t alignment, const std::nothrow_t&) noexcept {
    return allocate(bytes, static_cast<std::size_t>(alignment));
}
void* operator new[](std::size_t bytes, std::align_val_t alignment, const std::nothrow_t&) noexcept {
    return allocate(bytes, static_cast<std::size_t>(alignment));
}
void operator delete(void* memory) noexcept {
    give_back(memory);
}
void operator delete[](void* memory) noexcept {
    give_back(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
    give_back(memory);
}
void operator delete[](void* memory, std::size_t) noexcept {
    give_back(memory);
}
void operator delete(void* memory, std::align_val_t) noexcept {
    give_back(memory);
}
void operator delete[](void* memory, std::align_val_t) noexcept {
    give_back(memory);
}
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept {
    give_back(memory);
}
void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept {
    give_back(memory);
}
void operator delete(void* memory, const std::nothrow_t&) noexcept {
    give_back(memory);
}
void operator delete[](void* memory, const std::nothrow_t&) noexcept {
    give_back(memory);
}
void operator delete(void* memory, std::align_val_t, const std::nothrow_t&) noexcept {
    give_back(memory);
}
void operator delete[](void* memory, std::align_val_t, const std::nothrow_t&) noexcept {
    give_back(memory);
}
