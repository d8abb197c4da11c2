// The planted bugs (runtime/base/planted.hpp), how often each happens, and the world that looks for it.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "base/planted.hpp"

namespace pollcore::sim {

struct BugKind {
    Bug bug{};
    std::string_view name;
    std::string_view world;     ///< the world that looks for the bug
    std::uint64_t once_in = 1;  ///< the bug happens at one opportunity in this many
};
[[nodiscard]] const std::vector<BugKind>& bug_kinds();

/// Plants the bug in this process.
void plant(Bug bug) noexcept;

}  // namespace pollcore::sim
