#include "config/toml_tree.hpp"

#include <algorithm>
#include <sstream>
#include <tuple>

#include <fmt/format.h>
#include <toml++/toml.h>

namespace pollcore::config {
namespace {

// The deepest value of a valid configuration is the time of a way to wait. Its levels are: document, list of workers,
// worker, list of ways to wait, way, time. Where a deeper node would begin, the rules refuse the list or table.
constexpr int kDepthMax = 6;

// The parser recurses. Without this limit, one line of dots ("a.a.a. ...") would overflow the stack.
constexpr std::size_t kLineLengthMax = 1024;

template <class Scalar>
std::string written(const Scalar& scalar) {
    std::ostringstream out;
    out << scalar;
    return out.str();
}

TomlNode convert(const toml::node& node, int depth);

void convert_children(const toml::node& node, int depth, std::vector<TomlNode>& children) {
    if (depth == kDepthMax) {
        return;
    }
    if (const toml::array* list = node.as_array()) {
        for (const toml::node& item : *list) {
            children.push_back(convert(item, depth + 1));
        }
    } else if (const toml::table* table = node.as_table()) {
        for (const auto& [key, value] : *table) {
            children.push_back(convert(value, depth + 1));
            children.back().key = key.str();
        }
        // The parser sorts the children by key. They are sorted by place here, so that the first mistake in the file is
        // reported first.
        std::stable_sort(children.begin(), children.end(), [](const TomlNode& a, const TomlNode& b) {
            return std::tie(a.line, a.column) < std::tie(b.line, b.column);
        });
    }
}

TomlNode convert(const toml::node& node, int depth) {
    TomlNode result;
    result.line = static_cast<int>(node.source().begin.line);
    result.column = static_cast<int>(node.source().begin.column);
    switch (node.type()) {
        case toml::node_type::string:
            result.type = TomlNode::Type::text;
            result.text = node.as_string()->get();
            break;
        case toml::node_type::integer:
            result.type = TomlNode::Type::integer;
            result.integer = node.as_integer()->get();
            break;
        case toml::node_type::floating_point:
            result.type = TomlNode::Type::real;
            result.text = written(*node.as_floating_point());
            break;
        case toml::node_type::boolean:
            result.type = TomlNode::Type::boolean;
            result.text = node.as_boolean()->get() ? "true" : "false";
            break;
        case toml::node_type::date:
            result.type = TomlNode::Type::date;
            result.text = written(*node.as_date());
            break;
        case toml::node_type::time:
            result.type = TomlNode::Type::date;
            result.text = written(*node.as_time());
            break;
        case toml::node_type::date_time:
            result.type = TomlNode::Type::date;
            result.text = written(*node.as_date_time());
            break;
        case toml::node_type::array:
            result.type = TomlNode::Type::list;
            result.text = node.as_array()->empty() ? "[]" : "[...]";
            break;
        case toml::node_type::table:
        case toml::node_type::none:
            result.type = TomlNode::Type::table;
            result.text = node.as_table()->empty() ? "{}" : "{...}";
            break;
    }
    convert_children(node, depth, result.children);
    return result;
}

void check_line_lengths(std::string_view text, const Origin& origin) {
    int line = 1;
    while (!text.empty()) {
        const std::size_t length = std::min(text.find('\n'), text.size());
        if (length > kLineLengthMax) {
            origin.refuse_text(line, fmt::format("a line of {} bytes", length),
                               fmt::format("lines of at most {} bytes", kLineLengthMax));
        }
        text.remove_prefix(std::min(length + 1, text.size()));
        ++line;
    }
}

}  // namespace

const TomlNode* TomlNode::find(std::string_view wanted) const noexcept {
    const auto found =
        std::find_if(children.begin(), children.end(), [&](const TomlNode& child) { return child.key == wanted; });
    return found == children.end() ? nullptr : &*found;
}

std::string TomlNode::shown() const {
    switch (type) {
        case Type::text: return toml_quoted_short(text);
        case Type::integer: return fmt::format("{}", integer);
        case Type::real:
        case Type::boolean:
        case Type::date:
        case Type::list:
        case Type::table: return text;
    }
    return text;
}

std::string_view TomlNode::type_name() const noexcept {
    switch (type) {
        case Type::text: return "a string";
        case Type::integer: return "an integer";
        case Type::real: return "a floating-point number";
        case Type::boolean: return "a boolean";
        case Type::date: return "a date or time";
        case Type::list: return "a list";
        case Type::table: return "a table";
    }
    return "an unknown type";
}

TomlNode read_toml(std::string_view text, const Origin& origin) {
    check_line_lengths(text, origin);
    try {
        const toml::table document = toml::parse(text);
        return convert(document, 1);
    } catch (const toml::parse_error& error) {
        const auto at = error.source().begin;
        origin.refuse_text(static_cast<int>(at.line),
                           fmt::format("column {}: this is not TOML: {}", at.column, error.description()),
                           "TOML 1.0 (https://toml.io)");
    }
}

}  // namespace pollcore::config
