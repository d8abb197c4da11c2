// Which thread reads and writes which line of memory, as the code itself says: what the compiler puts in for the thread
// sanitizer calls the functions of access_record.cc instead. Code that was compiled without is not seen.
//
// A line moves when one thread reads what another has written, or writes what another has read or written, as caches of
// their own would have it. An access to half a line counts as one to the line.
//
// Thread safety: any thread. What is asked between begin() and end() may miss the latest.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace pollcore::sharing {

inline constexpr std::size_t kLine = 64;
inline constexpr std::size_t kRoles = 4;
using Role = std::uint8_t;  ///< below kRoles: whose cache it is
inline constexpr Role kNobody = kRoles;

/// The calling thread's accesses are this role's from here on. kNobody: they are not recorded.
void act_as(Role role) noexcept;
/// Threads of this name act as `role`, from their first access that is recorded on.
void name_role(const char* thread_name, Role role);

/// Forgets all, and records from here on.
void begin();
void end() noexcept;

struct Accesses {
    std::uint64_t times = 0;
    std::uint64_t moves = 0;      ///< times the line had to come from another's cache, or be taken from there
    const void* where = nullptr;  ///< code of the last one
};
struct Line {
    std::uintptr_t address = 0;
    Accesses reads[kRoles];
    Accesses writes[kRoles];
    [[nodiscard]] bool written_by(Role role) const noexcept { return writes[role].times != 0; }
    [[nodiscard]] bool touched_by(Role role) const noexcept { return written_by(role) || reads[role].times != 0; }
    [[nodiscard]] std::uint64_t moves() const noexcept;
    /// Who does what there, and where in the code.
    [[nodiscard]] std::string text() const;
};
/// That were accessed, but for the calling thread's stack, which roles that it takes by turns would share.
[[nodiscard]] std::vector<Line> lines();

}  // namespace pollcore::sharing
