// The program's operators new. A test can make one allocation fail.
//
// They forward to malloc and free, so that the address sanitizer sees each block with its own size.
#pragma once

#include <atomic>
#include <cstdint>

namespace pollcore::testing {

/// The threads whose allocations count. Allocations of the thread that writes the log never count.
enum class Allocating : std::uint8_t {
    callers,   ///< all threads except the one that waits for the runtime's descriptors
    everyone,  ///< all threads
};

/// While an object of this class lives, allocations are counted and the nth allocation fails: operator new throws
/// std::bad_alloc, and a nothrow operator new returns a null pointer. Only one such object may live at a time.
class FailingAllocation {
public:
    FailingAllocation(std::uint64_t nth, Allocating whose);
    ~FailingAllocation();
    FailingAllocation(const FailingAllocation&) = delete;
    FailingAllocation& operator=(const FailingAllocation&) = delete;

    /// Number of allocations that were requested.
    [[nodiscard]] static std::uint64_t counted() noexcept;
    /// Whether the nth allocation was requested, and so has failed.
    [[nodiscard]] static bool met() noexcept;
    /// Prints to stderr the stack of the allocation that failed; nothing if none failed.
    static void print_where() noexcept;
};

}  // namespace pollcore::testing
