// The program's operators new. A test can make one allocation fail.
//
// They forward to malloc and free, so that the address sanitizer sees each block with its own size.
#pragma once

#include <atomic>
#include <cstdint>

namespace pollcore::testing {

/// Whose allocations count. Those of the thread that writes the log never do.
enum class Allocating : std::uint8_t {
    callers,   ///< the calling threads, the control thread and the workers
    everyone,  ///< also the thread that waits for descriptors
};

/// While it lives, allocations are counted, and only the nth one fails: it throws std::bad_alloc, or returns null in a
/// nothrow operator new. Only one object may live at a time.
class FailingAllocation {
public:
    FailingAllocation(std::uint64_t nth, Allocating whose);
    ~FailingAllocation();
    FailingAllocation(const FailingAllocation&) = delete;
    FailingAllocation& operator=(const FailingAllocation&) = delete;

    /// How many allocations were asked for.
    [[nodiscard]] static std::uint64_t counted() noexcept;
    /// Whether the nth allocation was among these.
    [[nodiscard]] static bool met() noexcept;
    /// Prints to stderr the stack of the allocation that failed; nothing if none failed.
    static void print_where() noexcept;
};

}  // namespace pollcore::testing
