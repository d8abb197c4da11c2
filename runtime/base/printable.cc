#include "base/printable.hpp"

#include <iterator>

#include <fmt/format.h>

namespace pollcore {

std::string printable(std::string_view name) {
    std::string text = "\"";
    for (const char c : name) {
        if (c == '"' || c == '\\') {
            text += '\\';
            text += c;
        } else if (c >= ' ' && c <= '~') {
            text += c;
        } else {
            fmt::format_to(std::back_inserter(text), "\\x{:02x}", static_cast<unsigned char>(c));
        }
    }
    return text += '"';
}

}  // namespace pollcore
