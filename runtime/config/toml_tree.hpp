// A TOML document as a plain tree with line numbers. The only user of toml++ is toml_tree.cc: its headers
// take seconds to compile, and nothing else needs to know which parser it is.
//
// Thread safety: values; nothing is shared.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "config/refusal.hpp"

namespace pollcore::config {

struct TomlNode {
    enum class Type { text, integer, real, boolean, date, list, table };
    Type type = Type::table;
    int line = 0;
    int column = 0;
    std::string key;                 ///< the node's own key, if it is in a table
    std::string text;                ///< text: the content; integer: empty; all others: as a message shows it
    std::int64_t integer = 0;        ///< integer
    std::vector<TomlNode> children;  ///< list and table, in the order of the file

    [[nodiscard]] const TomlNode* find(std::string_view wanted) const noexcept;
    /// The value as a message shows it, on one line.
    [[nodiscard]] std::string shown() const;
    /// "a string", "an integer", ...
    [[nodiscard]] std::string_view type_name() const noexcept;
};

/// Reads a document. Refuses text that is not TOML through `origin`. Lists and tables deeper than any configuration
/// goes come without their children.
[[nodiscard]] TomlNode read_toml(std::string_view text, const Origin& origin);

}  // namespace pollcore::config
