// Records which thread reads and writes which line of memory. The code is compiled for the thread sanitizer, but the
// calls that the compiler inserts reach the functions of access_record.cc instead. Code that was compiled without it is
// not seen.
//
// Each role stands for a cache. A line moves when a role reads a line that only others hold, or writes a line that
// others hold, too. An access to half a line counts as one to the line.
//
// Thread safety: any thread. Results between begin() and end() may miss the latest accesses.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace pollcore::sharing {

inline constexpr std::size_t kLine = 64;
inline constexpr std::size_t kRoles = 4;
using Role = std::uint8_t;  ///< whose cache an access goes to; below kRoles
inline constexpr Role kNobody = kRoles;

/// From here on the calling thread's accesses count as this role's. kNobody: they are not recorded.
void act_as(Role role) noexcept;
/// Threads of this name act as `role` from their first recorded access on.
void name_role(const char* thread_name, Role role);

/// Forgets all accesses and starts to record.
void begin();
void end() noexcept;

struct Accesses {
    std::uint64_t times = 0;
    std::uint64_t moves = 0;      ///< times that the line had to come from another cache, or be taken from it
    const void* where = nullptr;  ///< code of the last access
};
struct Line {
    std::uintptr_t address = 0;
    Accesses reads[kRoles];
    Accesses writes[kRoles];
    [[nodiscard]] bool written_by(Role role) const noexcept { return writes[role].times != 0; }
    [[nodiscard]] bool touched_by(Role role) const noexcept { return written_by(role) || reads[role].times != 0; }
    [[nodiscard]] std::uint64_t moves() const noexcept;
    /// Which roles access the line, how often, and where in the code.
    [[nodiscard]] std::string text() const;
};
/// The lines that were accessed, without the calling thread's stack: roles that this thread takes in turn would share
/// it.
[[nodiscard]] std::vector<Line> lines();

}  // namespace pollcore::sharing
