#include "config/refusal.hpp"

#include <iterator>

#include <fmt/format.h>

namespace pollcore::config {
namespace {

constexpr std::size_t kShownMax = 80;

// Escapes control characters, so that a message stays on one line. A file's name may contain any byte but '/' and NUL.
std::string printable(std::string_view text) {
    std::string out;
    for (const char c : text) {
        const auto byte = static_cast<unsigned char>(c);
        if (byte < 0x20 || byte == 0x7f) {
            fmt::format_to(std::back_inserter(out), "\\u{:04X}", byte);
        } else {
            out.push_back(c);
        }
    }
    return out;
}

// Returns the first `size` bytes of `text`, or fewer bytes if the cut would be inside a UTF-8 character.
std::string_view head(std::string_view text, std::size_t size) {
    while (size > 0 && (static_cast<unsigned char>(text[size]) & 0xc0) == 0x80) {
        --size;
    }
    return text.substr(0, size);
}

}  // namespace

std::string toml_quoted(std::string_view text) {
    std::string escaped;
    for (const char c : text) {
        if (c == '"' || c == '\\') {
            escaped.push_back('\\');
        }
        escaped.push_back(c);
    }
    return '"' + printable(escaped) + '"';
}

std::string toml_quoted_short(std::string_view text) {
    return text.size() <= kShownMax ? toml_quoted(text) : toml_quoted(head(text, kShownMax)) + "...";
}

std::string Origin::prefix(int line) const {
    if (file_.empty()) {
        return {};
    }
    return line > 0 ? fmt::format("{}:{}: ", printable(file_), line) : fmt::format("{}: ", printable(file_));
}

int Origin::line_around(std::string path) const {
    // Looks for "worker[0].core", then "worker[0]", then "worker". If the file has none of these, the line is 1.
    for (;;) {
        if (const auto found = places_.find(path); found != places_.end()) {
            return found->second.line;
        }
        const std::size_t cut = path.find_last_of(".[");
        if (cut == std::string::npos) {
            return 1;
        }
        path.resize(cut);
    }
}

void Origin::refuse(const std::string& path, const std::string& shown, std::string_view why,
                    std::string_view accepted) const {
    const auto found = places_.find(path);
    const std::string& value = found != places_.end() ? found->second.shown : shown;
    throw ConfigError(
        fmt::format("{}{} = {}: {}; accepted: {}", prefix(line_around(path)), path, value, why, accepted));
}

void Origin::refuse_absent(const std::string& path, std::string_view why, std::string_view accepted) const {
    throw ConfigError(fmt::format("{}{}: {}; accepted: {}", prefix(line_around(path)), path, why, accepted));
}

void Origin::refuse_text(int line, std::string_view why, std::string_view accepted) const {
    throw ConfigError(fmt::format("{}{}; accepted: {}", prefix(line), printable(why), accepted));
}

}  // namespace pollcore::config
