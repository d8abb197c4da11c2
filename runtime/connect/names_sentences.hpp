// The sentences that say why a connection by name has failed. If there is no memory for a sentence, the text is empty.
#pragma once

#include <cerrno>
#include <exception>
#include <new>
#include <string>

#include <fmt/format.h>

#include "pollcore/error.hpp"

namespace pollcore {

/// Returns what `sentence` returns, or an empty string if there is no memory for it.
template <class F>
[[nodiscard]] std::string said(F&& sentence) noexcept {
    try {
        return sentence();
    } catch (const std::bad_alloc&) {
        return {};
    }
}

[[nodiscard]] inline std::string not_ready(const std::exception& error) noexcept {
    return said([&] { return fmt::format("the peer could not ready its QP: {}", error.what()); });
}

/// Turns an exception of ConnectingQp::modify into an errno value.
[[nodiscard]] inline int code_of(const std::exception& error) noexcept {
    const auto* known = dynamic_cast<const Error*>(&error);
    return known != nullptr ? known->code().value() : ENOMEM;
}

}  // namespace pollcore
