// Records which thread reads and writes which line of memory. The code under test is compiled for the thread sanitizer,
// but the calls that the compiler inserts reach the functions of access_record.cc instead of the sanitizer. Accesses of
// code that was not compiled for the thread sanitizer are not recorded.
//
// Each role stands for a cache. A line moves when a role reads a line that only other roles hold, or writes a line that
// other roles hold. An access to a part of a line counts as an access to the line.
//
// Thread safety: any thread may call these functions. Between begin() and end(), results may miss the latest accesses.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace pollcore::sharing {

inline constexpr std::size_t kLine = 64;
inline constexpr std::size_t kRoles = 4;
using Role = std::uint8_t;  ///< names the cache that an access goes to; below kRoles
inline constexpr Role kNobody = kRoles;

/// From now on, the accesses of the calling thread count as accesses of `role`. With kNobody they are not recorded.
void act_as(Role role) noexcept;
/// A thread with this name acts as `role` from its first recorded access on.
void name_role(const char* thread_name, Role role);

/// Forgets all accesses and starts to record.
void begin();
void end() noexcept;

struct Accesses {
    std::uint64_t times = 0;
    std::uint64_t moves = 0;      ///< number of accesses that moved the line
    const void* where = nullptr;  ///< code address of the last access
};
struct Line {
    std::uintptr_t address = 0;
    Accesses reads[kRoles];
    Accesses writes[kRoles];
    [[nodiscard]] bool written_by(Role role) const noexcept { return writes[role].times != 0; }
    [[nodiscard]] bool touched_by(Role role) const noexcept { return written_by(role) || reads[role].times != 0; }
    [[nodiscard]] std::uint64_t moves() const noexcept;
    /// Says which roles access the line, how many times, and from which code.
    [[nodiscard]] std::string text() const;
};
/// Returns the lines that were accessed, except those of the calling thread's stack. A thread that takes several roles
/// in turn uses one stack, and its roles would seem to share these lines.
[[nodiscard]] std::vector<Line> lines();

}  // namespace pollcore::sharing
