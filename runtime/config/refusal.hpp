// How a configuration is refused: the one place where messages are put together.
//
// Thread safety: values; nothing is shared.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "pollcore/config.hpp"

namespace pollcore::config {

/// A string as TOML writes it: quoted, with control characters escaped, so that it stays on its line.
[[nodiscard]] std::string toml_quoted(std::string_view text);
/// Quotes a string for a message, in which a very long one is cut.
[[nodiscard]] std::string toml_quoted_short(std::string_view text);

/// Where in a file a value stands, and how it is written there.
struct Place {
    int line = 0;
    std::string shown;
};

/// The origin of a configuration: a file with a place per key, or code, which has neither file nor lines.
class Origin {
public:
    Origin() = default;
    explicit Origin(std::string file) : file_(std::move(file)) {}

    void remember(const std::string& path, Place place) { places_.insert_or_assign(path, std::move(place)); }

    /// Refuses the value of a key. `shown` is the value as the message shows it, unless a file says how it is written.
    /// `path` looks like "worker[0].core".
    [[noreturn]] void refuse(const std::string& path, const std::string& shown, std::string_view why,
                             std::string_view accepted) const;
    /// Refuses a missing key or table. The message names the line of the nearest table around it that the file has.
    [[noreturn]] void refuse_absent(const std::string& path, std::string_view why, std::string_view accepted) const;
    /// Refuses a file as a whole, or a line of it (0: no line).
    [[noreturn]] void refuse_text(int line, std::string_view why, std::string_view accepted) const;

private:
    [[nodiscard]] std::string prefix(int line) const;
    [[nodiscard]] int line_around(std::string path) const;

    std::string file_;
    std::map<std::string, Place, std::less<>> places_;
};

}  // namespace pollcore::config
