// Turns the result of a verb into an error that a person can act on.
#pragma once

#include <cerrno>
#include <string>

#include "pollcore/error.hpp"

namespace pollcore {

/// "WHAT; hint: cause". There is a hint if `errno_value` has a usual cause: locked memory for ENOMEM, permissions for
/// EACCES and EPERM, a device that is gone for ENODEV and EIO.
[[nodiscard]] Error verbs_error(int errno_value, const std::string& what);

/// The errno value of a verb's result. Most verbs return it, some return -1 and set errno, and some providers return a
/// negative errno value.
[[nodiscard]] inline int verbs_result(int returned) noexcept {
    if (returned == -1 && errno != 0) {
        return errno;
    }
    return returned < 0 ? -returned : returned;
}

}  // namespace pollcore
