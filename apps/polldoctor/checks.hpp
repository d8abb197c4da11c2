// The checks. Each judges one thing, and is a function from facts to findings. `check_groups.hpp` has their groups.
//
// Thread safety: one thread, as Facts.
#pragma once

#include <string_view>
#include <vector>

#include "facts.hpp"
#include "finding.hpp"

namespace pollcore::doctor {

struct Check {
    std::string_view id;      ///< of its findings
    std::string_view judges;  ///< for people
    std::vector<Finding> (*run)(const Facts& facts);
    /// What `seen` says if there was nothing to judge.
    std::string_view nothing = "nothing to judge";
};

/// All checks, in the order in which they are shown.
[[nodiscard]] std::vector<Check> all_checks();

/// Runs all checks. Each has at least one finding.
[[nodiscard]] std::vector<Finding> judge(const Facts& facts);

}  // namespace pollcore::doctor
