#include "answer_view.hpp"

#include <algorithm>
#include <vector>

#include <fmt/format.h>

#include "pollstat/harmless.hpp"

namespace pollcore::ctl {
namespace {

std::string cell_of(const Json& value) {
    if (value.is_string()) {
        return safe(value.get<std::string>());
    }
    if (value.is_boolean()) {
        return value.get<bool>() ? "yes" : "no";
    }
    if (value.is_array()) {
        std::string list;
        for (const Json& each : value) {
            list += (list.empty() ? "" : ", ") + cell_of(each);
        }
        return list.empty() ? "none" : list;
    }
    return value.is_null() ? "-" : safe(value.dump(-1, ' ', true, Json::error_handler_t::replace));
}

std::string with_blanks(std::string name) {
    std::replace(name.begin(), name.end(), '_', ' ');
    return safe(name);
}

std::string line_of(const std::vector<std::string>& cells, const std::vector<std::size_t>& widths,
                    const std::vector<bool>& right) {
    std::string line;
    for (std::size_t i = 0; i < cells.size(); ++i) {
        line += i == 0 ? "" : "  ";
        line += right[i] ? fmt::format("{:>{}}", cells[i], widths[i]) : fmt::format("{:<{}}", cells[i], widths[i]);
    }
    return line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
}

std::string table_of(const Json& rows) {
    std::vector<std::string> keys;
    for (const auto& [key, value] : rows.front().items()) {
        keys.push_back(key);
    }
    std::vector<std::vector<std::string>> lines(1);
    for (const std::string& key : keys) {
        lines[0].push_back(with_blanks(key));
    }
    std::vector<bool> right(keys.size(), true);
    for (const Json& row : rows) {
        std::vector<std::string> cells;
        for (std::size_t i = 0; i < keys.size(); ++i) {
            const auto found = row.is_object() ? row.find(keys[i]) : row.end();
            const bool there = row.is_object() && found != row.end();
            cells.push_back(there ? cell_of(*found) : "-");
            right[i] = right[i] && there && (found->is_number() || found->is_null());
        }
        lines.push_back(std::move(cells));
    }
    std::vector<std::size_t> widths(keys.size(), 0);
    for (const auto& cells : lines) {
        for (std::size_t i = 0; i < cells.size(); ++i) {
            widths[i] = std::max(widths[i], cells[i].size());
        }
    }
    std::string text;
    for (const auto& cells : lines) {
        text += line_of(cells, widths, right);
    }
    return text;
}

bool is_table(const Json& value) {
    return value.is_array() && !value.empty() && value.front().is_object();
}

}  // namespace

std::string safe(std::string_view text) {
    const bool printable = std::all_of(text.begin(), text.end(), [](char c) { return c >= ' ' && c <= '~'; });
    return printable ? std::string(text) : stat::harmless(text);
}

std::string view_of(const Json& result) {
    if (!result.is_object()) {
        return cell_of(result) + "\n";
    }
    std::string text;
    for (const auto& [key, value] : result.items()) {
        const bool alone = result.size() == 1;
        if (is_table(value)) {
            text += alone ? table_of(value) : fmt::format("\n{}:\n{}", with_blanks(key), table_of(value));
        } else if (alone && value.is_array()) {
            text += fmt::format("no {}\n", with_blanks(key));
        } else {
            text += fmt::format("{}: {}\n", with_blanks(key), cell_of(value));
        }
    }
    return text;
}

}  // namespace pollcore::ctl
