// The program's operators new, one of which fails when a test wants it to.
//
// They forward to malloc and free, so that the address sanitizer sees each block with its own size.
#pragma once

#include <atomic>
#include <cstdint>

namespace pollcore::testing {

/// Whose allocations count. Never those of the threads that test and runtime have beside: who writes the log, who waits
/// for descriptors.
enum class Allocating : std::uint8_t {
    callers,   ///< whoever calls, the control thread and the workers
    everyone,  ///< and who waits for descriptors
};

/// While it lives, allocations are counted, and the nth of them throws std::bad_alloc, or, where that is asked for,
/// returns null; and no other does. One at a time.
class FailingAllocation {
public:
    FailingAllocation(std::uint64_t nth, Allocating whose);
    ~FailingAllocation();
    FailingAllocation(const FailingAllocation&) = delete;
    FailingAllocation& operator=(const FailingAllocation&) = delete;

    /// So many were asked for.
    [[nodiscard]] static std::uint64_t counted() noexcept;
    /// Whether the nth was among them.
    [[nodiscard]] static bool met() noexcept;
    /// Who asked for the one that failed, to stderr. Nothing when none did.
    static void print_where() noexcept;
};

}  // namespace pollcore::testing
