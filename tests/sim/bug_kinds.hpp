// The planted bugs (runtime/base/planted.hpp), how seldom each happens, and the world that looks for it.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "base/planted.hpp"

namespace pollcore::sim {

struct BugKind {
    Bug bug{};
    std::string_view name;
    std::string_view world;     ///< the world that looks for it
    std::uint64_t once_in = 1;  ///< happens at one of so many opportunities
};
[[nodiscard]] const std::vector<BugKind>& bug_kinds();

/// Plants the bug in this process.
void plant(Bug bug) noexcept;

}  // namespace pollcore::sim
