// Turns the result of a verb into an error that a person can act on.
#pragma once

#include <cerrno>
#include <string>

#include "pollcore/error.hpp"

namespace pollcore {

/// Makes an error with the text "`what`; hint: text of the errno value". There is a hint if `errno_value` has a usual
/// cause: too little locked memory for ENOMEM, missing permissions for EACCES and EPERM, a device that was removed for
/// ENODEV and EIO.
[[nodiscard]] Error verbs_error(int errno_value, const std::string& what);

/// Returns the errno value in the result of a verb, or 0 for success. Most verbs return the errno value. Some verbs
/// return -1 and set errno. Some providers return the negative errno value.
[[nodiscard]] inline int verbs_result(int returned) noexcept {
    if (returned == -1 && errno != 0) {
        return errno;
    }
    return returned < 0 ? -returned : returned;
}

}  // namespace pollcore
