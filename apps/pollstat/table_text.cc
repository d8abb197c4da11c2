#include "table_text.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <ctime>
#include <optional>

#include <fmt/format.h>

#include "harmless.hpp"

namespace pollcore::stat {
namespace {

using statistics::Kind;

std::string value_text(const ShownField& field, const ShownValue& value) {
    if (field.kind == Kind::text) {
        return value.text;
    }
    if (field.kind == Kind::histogram) {
        double count = 0;
        for (const double each : value.total) {
            count += each;
        }
        return short_number(count);
    }
    if (field.kind == Kind::latency && value.total.size() == 3) {
        return fmt::format("median {}ns, p99 {}ns of {} requests", short_number(value.total[0]),
                           short_number(value.total[1]), short_number(value.total[2]));
    }
    if (field.unit == kDate && !value.total.empty()) {
        return time_text(value.total[0]);
    }
    std::string text = value.total.empty() ? "" : short_number(value.total[0]);
    if (field.kind == Kind::counter && value.rate != 0) {
        text += fmt::format(" ({}/s)", short_number(value.rate));
    }
    return field.unit.empty() ? text : text + " " + field.unit;
}

bool is_worth_showing(const ShownField& field, const ShownValue& value) {
    return field.kind == Kind::text
               ? !value.text.empty()
               : std::any_of(value.total.begin(), value.total.end(), [](double each) { return each != 0; });
}

}  // namespace

std::string short_number(double value) {
    constexpr std::array<const char*, 7> kSuffixes{"", "k", "M", "G", "T", "P", "E"};
    std::size_t suffix = 0;
    double size = std::fabs(value);
    while (size >= 999.5 && suffix + 1 < kSuffixes.size()) {
        size /= 1000;
        value /= 1000;
        ++suffix;
    }
    if (value == std::floor(value) && suffix == 0) {
        return fmt::format("{:.0f}", value);
    }
    return fmt::format("{:.{}f}{}", value, size < 10 ? 2 : size < 100 ? 1 : 0, kSuffixes[suffix]);
}

std::string list_text(const std::vector<Found>& all) {
    std::string text = fmt::format("{:<24} {:>8}  {:<6} {}\n", "runtime", "process", "state", "segment");
    for (const Found& each : all) {
        text += each.error.empty()
                    ? fmt::format("{:<24} {:>8}  {:<6} {}\n", name_of(each.snapshot), each.snapshot.header.pid,
                                  each.snapshot.alive ? "alive" : "dead", harmless(each.file.native()))
                    : fmt::format("{:<24} {:>8}  {:<6} {}\n", "?", "?", "?", harmless(each.error));
    }
    return text;
}

std::string text_of(const std::vector<ShownTable>& tables) {
    std::string text;
    for (const ShownTable& table : tables) {
        if (table.name == "event") {
            continue;
        }
        for (const auto& row : table.rows) {
            const std::optional<std::size_t> name = table.field("name");
            text +=
                fmt::format("{} {}", table.name, row[0].total.empty() ? "?" : fmt::format("{:.0f}", row[0].total[0]));
            if (name && !row[*name].text.empty()) {
                text += " " + row[*name].text;
            }
            text += "\n";
            for (std::size_t i = 1; i < table.fields.size(); ++i) {
                if (i != name && is_worth_showing(table.fields[i], row[i])) {
                    text += fmt::format("  {:<24} {}\n", table.fields[i].name, value_text(table.fields[i], row[i]));
                }
            }
        }
    }
    return text;
}

std::string time_text(double ns) {
    const auto seconds = static_cast<std::time_t>(ns / 1e9);
    std::tm utc{};
    ::gmtime_r(&seconds, &utc);
    return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:03}Z", utc.tm_year + 1900, utc.tm_mon + 1, utc.tm_mday,
                       utc.tm_hour, utc.tm_min, utc.tm_sec, static_cast<int>(std::fmod(ns / 1e6, 1000)));
}

std::string level_text(double level) {
    constexpr std::array<const char*, 4> kNames{"error", "warning", "info", "debug"};
    const auto index = static_cast<std::size_t>(level);
    return index < kNames.size() ? kNames[index] : "?";
}

std::string events_text(const std::vector<ShownTable>& tables) {
    const auto table =
        std::find_if(tables.begin(), tables.end(), [](const ShownTable& each) { return each.name == "event"; });
    if (table == tables.end()) {
        return "";
    }
    const auto time = table->field("time");
    const auto level = table->field("level");
    const auto text = table->field("text");
    if (!time || !level || !text) {
        return "";
    }
    std::vector<const std::vector<ShownValue>*> rows;
    for (const auto& row : table->rows) {
        rows.push_back(&row);
    }
    const auto number = [](const std::vector<ShownValue>& row, std::size_t field) {
        return row[field].total.empty() ? 0 : row[field].total[0];
    };
    std::sort(rows.begin(), rows.end(), [&](const auto* a, const auto* b) { return number(*a, 0) < number(*b, 0); });
    std::string lines;
    for (const auto* row : rows) {
        lines += fmt::format("{} {}: {}\n", time_text(number(*row, *time)), level_text(number(*row, *level)),
                             (*row)[*text].text);
    }
    return lines;
}

}  // namespace pollcore::stat
