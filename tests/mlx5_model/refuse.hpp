// Ends a process that has given the hardware invalid data.
#pragma once

#include <string>

#include <fmt/core.h>

namespace mlx5_model {

/// Prints the error on standard error and aborts, because no error code would reach the code at fault.
[[noreturn]] void refuse(const std::string& what);

template <class... Arguments>
[[noreturn]] void refuse(fmt::format_string<Arguments...> text, Arguments&&... arguments) {
    refuse(fmt::format(text, std::forward<Arguments>(arguments)...));
}

/// Refuses with this text unless `holds`.
template <class... Arguments>
void require(bool holds, fmt::format_string<Arguments...> text, Arguments&&... arguments) {
    if (!holds) [[unlikely]] {
        refuse(fmt::format(text, std::forward<Arguments>(arguments)...));
    }
}

}  // namespace mlx5_model
