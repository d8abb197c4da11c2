// Users and groups of this machine, by name or number.
//
// Thread safety: any thread.
#pragma once

#include <cstdint>
#include <string>

#include "config/units.hpp"

namespace pollcore::config {

enum class AccountKind { user, group };

/// chown(2) takes this number for "leave it as it is". No user and no group has it.
inline constexpr std::uint32_t kNoAccount = 4294967295;

/// The number of the account that `name` names, or the reason why there is none. A name is looked up by getpwnam_r(3)
/// or getgrnam_r(3). A number needs no entry there.
[[nodiscard]] Parsed<std::uint32_t> account_number(AccountKind kind, const std::string& name);

}  // namespace pollcore::config
