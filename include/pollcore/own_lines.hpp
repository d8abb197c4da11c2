// Memory that shares no cache line with anything else.
//
// A small array from the ordinary heap may share a cache line with an object that another thread writes all the time.
// Each access to the array then waits for that thread's core. So an array that one side of a ring uses for each request
// has whole cache lines to itself (D11).
//
// Thread safety: that of std::vector.
#pragma once

#include <cstddef>
#include <memory>
#include <new>
#include <type_traits>
#include <vector>

#include "pollcore/limits.hpp"

namespace pollcore {

/// Gives out whole cache lines, for standard containers.
template <class T>
class OwnLinesAllocator {
public:
    using value_type = T;

    OwnLinesAllocator() = default;
    template <class U>
    explicit(false) OwnLinesAllocator(const OwnLinesAllocator<U>&) noexcept {}

    [[nodiscard]] T* allocate(std::size_t n) {
        return static_cast<T*>(::operator new (whole_lines(n), std::align_val_t{kCacheLine}));
    }
    void deallocate(T* memory, std::size_t) noexcept { ::operator delete (memory, std::align_val_t{kCacheLine}); }

    template <class U>
    [[nodiscard]] bool operator==(const OwnLinesAllocator<U>&) const noexcept {
        return true;
    }

private:
    static_assert(alignof(T) <= kCacheLine);
    [[nodiscard]] static constexpr std::size_t whole_lines(std::size_t n) noexcept {
        return (n * sizeof(T) + kCacheLine - 1) / kCacheLine * kCacheLine;
    }
};

/// A vector whose array shares no cache line with anything else.
template <class T>
using OwnLines = std::vector<T, OwnLinesAllocator<T>>;

/// Frees an OwnLinesArray. Such an array is only a pointer, so that the object that has it stays small. The array does
/// not store its length.
struct OwnLinesDeleter {
    void operator()(void* memory) const noexcept { ::operator delete (memory, std::align_val_t{kCacheLine}); }
};
template <class T>
using OwnLinesArray = std::unique_ptr<T[], OwnLinesDeleter>;

/// Makes `n` value-initialized elements.
template <class T>
[[nodiscard]] OwnLinesArray<T> make_own_lines(std::size_t n) {
    static_assert(std::is_trivially_destructible_v<T>, "the deleter does not know how many elements there are");
    T* memory = OwnLinesAllocator<T>().allocate(n);
    std::uninitialized_value_construct_n(memory, n);
    return OwnLinesArray<T>(memory);
}

}  // namespace pollcore
