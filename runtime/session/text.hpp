// Text of bounded length as plain data.
#pragma once

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <string>
#include <string_view>

#include "pollcore/error.hpp"
#include "pollcore/limits.hpp"

namespace pollcore {

/// At most N characters, none of which is NUL. Text from another process may contain any bytes; view() then still ends
/// within the N characters.
template <std::size_t N>
class Text {
public:
    Text() = default;
    /// Throws Error(EINVAL) if `text` has more than N characters.
    explicit Text(std::string_view text) {
        if (text.size() > N) {
            throw Error(EINVAL, "\"" + std::string(text.substr(0, 64)) + "...\" is longer than " + std::to_string(N) +
                                    " characters");
        }
        std::copy(text.begin(), text.end(), characters_.begin());
    }

    [[nodiscard]] std::string_view view() const noexcept {
        return {characters_.data(), static_cast<std::size_t>(std::find(characters_.begin(), characters_.end(), '\0') -
                                                             characters_.begin())};
    }
    [[nodiscard]] std::string string() const { return std::string(view()); }

private:
    std::array<char, N> characters_{};
};

using NameText = Text<kNameLengthMax + 1>;

}  // namespace pollcore
