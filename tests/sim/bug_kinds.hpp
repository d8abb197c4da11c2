// Which planted bug (runtime/base/planted.hpp) is there, how seldom, and where it is looked for.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "base/planted.hpp"

namespace pollcore::sim {

struct BugKind {
    Bug bug{};
    std::string_view name;
    std::string_view world;     ///< in which it is looked for
    std::uint64_t once_in = 1;  ///< of so many times that it could happen it does
};
[[nodiscard]] const std::vector<BugKind>& bug_kinds();

/// Makes it so in this process.
void plant(Bug bug) noexcept;

}  // namespace pollcore::sim
