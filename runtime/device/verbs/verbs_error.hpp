// Turning what a verb returned into an error that a person can act on.
#pragma once

#include <cerrno>
#include <string>

#include "pollcore/error.hpp"

namespace pollcore {

/// "WHAT: cause", and behind it what to do, where `errno_value` has a usual cause: locked memory for ENOMEM,
/// permissions for EACCES and EPERM, a device that is gone for ENODEV and EIO.
[[nodiscard]] Error verbs_error(int errno_value, const std::string& what);

/// The errno value behind what a verb returned: most return it, some -1 and errno, some providers a negative
/// one.
[[nodiscard]] inline int verbs_result(int returned) noexcept {
    if (returned == -1 && errno != 0) {
        return errno;
    }
    return returned < 0 ? -returned : returned;
}

}  // namespace pollcore
