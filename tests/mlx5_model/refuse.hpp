// The end of a process that has handed the hardware something that it would not accept.
#pragma once

#include <string>

#include <fmt/core.h>

namespace mlx5_model {

/// Says what is wrong, on standard error, and aborts: no error code would reach who is to blame.
[[noreturn]] void refuse(const std::string& what);

template <class... Arguments>
[[noreturn]] void refuse(fmt::format_string<Arguments...> text, Arguments&&... arguments) {
    refuse(fmt::format(text, std::forward<Arguments>(arguments)...));
}

/// For the model's numbers, which come in network byte order: the range that a field has.
template <class... Arguments>
void require(bool holds, fmt::format_string<Arguments...> text, Arguments&&... arguments) {
    if (!holds) [[unlikely]] {
        refuse(fmt::format(text, std::forward<Arguments>(arguments)...));
    }
}

}  // namespace mlx5_model
