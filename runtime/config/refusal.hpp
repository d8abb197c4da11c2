// Refuses a configuration. All messages about a refused configuration are put together here.
//
// Thread safety: values; nothing is shared.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "pollcore/config.hpp"

namespace pollcore::config {

/// Returns `text` as a TOML string: in quotes. Quotes, backslashes and control characters in it are escaped, so that it
/// stays on one line.
[[nodiscard]] std::string toml_quoted(std::string_view text);
/// Quotes `text` for a message. A very long `text` is cut.
[[nodiscard]] std::string toml_quoted_short(std::string_view text);

/// The line of a value in a file, and the value as a message shows it.
struct Place {
    int line = 0;
    std::string shown;
};

/// The origin of a configuration: a file, with the place of each key, or code, which has neither a file nor lines.
class Origin {
public:
    Origin() = default;
    explicit Origin(std::string file) : file_(std::move(file)) {}

    void remember(const std::string& path, Place place) { places_.insert_or_assign(path, std::move(place)); }

    /// Refuses the value of the key `path`, which looks like "worker[0].core". The message shows the value in the file.
    /// If the value is not from a file, the message shows `shown`.
    [[noreturn]] void refuse(const std::string& path, const std::string& shown, std::string_view why,
                             std::string_view accepted) const;
    /// Refuses a missing key or table. The message names the line of the innermost table around `path` that the file
    /// has.
    [[noreturn]] void refuse_absent(const std::string& path, std::string_view why, std::string_view accepted) const;
    /// Refuses the line `line` of the file; 0: refuses the whole file.
    [[noreturn]] void refuse_text(int line, std::string_view why, std::string_view accepted) const;

private:
    [[nodiscard]] std::string prefix(int line) const;
    [[nodiscard]] int line_around(std::string path) const;

    std::string file_;
    std::map<std::string, Place, std::less<>> places_;
};

}  // namespace pollcore::config
