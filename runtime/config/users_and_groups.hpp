// Users and groups of this machine, by name or number.
//
// Thread safety: any thread.
#pragma once

#include <cstdint>
#include <string>

#include "config/units.hpp"

namespace pollcore::config {

enum class AccountKind { user, group };

/// For chown(2), this number means "no change". No user and no group has this number.
inline constexpr std::uint32_t kNoAccount = 4294967295;

/// Returns the number of the user or group `name`, or the reason why there is none. getpwnam_r(3) or getgrnam_r(3)
/// looks the name up. If `name` is a number in digits, this machine does not have to know it.
[[nodiscard]] Parsed<std::uint32_t> account_number(AccountKind kind, const std::string& name);

}  // namespace pollcore::config
