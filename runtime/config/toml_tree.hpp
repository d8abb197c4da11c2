// A TOML document as a plain tree with line numbers. Only toml_tree.cc uses the parser toml++, because the headers of
// toml++ take seconds to compile, and no other code needs to know the parser.
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
    std::string key;  ///< the node's own key, if the node is in a table
    /// The content of a node of type `text`. Empty for type `integer`. For other types, the value as a message shows
    /// it.
    std::string text;
    std::int64_t integer = 0;        ///< the value of a node of type `integer`
    std::vector<TomlNode> children;  ///< the children of a list or table, in the order of the file

    [[nodiscard]] const TomlNode* find(std::string_view wanted) const noexcept;
    /// The value as a message shows it, on one line.
    [[nodiscard]] std::string shown() const;
    /// Such as "a string" or "an integer".
    [[nodiscard]] std::string_view type_name() const noexcept;
};

/// Reads a document. Refuses text that is not TOML through `origin`. Lists and tables that are nested more deeply than
/// in any valid configuration are returned without their children.
[[nodiscard]] TomlNode read_toml(std::string_view text, const Origin& origin);

}  // namespace pollcore::config
