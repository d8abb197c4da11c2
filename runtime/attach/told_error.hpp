// The form in which an exception is sent to another process.
#pragma once

#include <cerrno>
#include <exception>
#include <new>
#include <string>
#include <string_view>

#include "pollcore/error.hpp"

namespace pollcore {

struct ToldError {
    int error = EIO;   ///< errno value
    std::string text;  ///< without the text of the errno value, which the other side adds again
};

[[nodiscard]] inline ToldError told_error(const std::exception& why) {
    const auto* error = dynamic_cast<const Error*>(&why);
    std::string_view text = why.what();
    if (error != nullptr && text.ends_with(error->code().message())) {
        text = text.substr(0, text.rfind(": "));
    }
    const int known = error != nullptr                                       ? error->code().value()
                      : dynamic_cast<const std::bad_alloc*>(&why) != nullptr ? ENOMEM
                                                                             : 0;
    return {.error = known != 0 ? known : EIO, .text = std::string(text)};
}

}  // namespace pollcore
