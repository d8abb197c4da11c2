#include "shown.hpp"

#include <algorithm>
#include <map>

#include "harmless.hpp"
#include "pollcore/latency.hpp"

namespace pollcore::stat {
namespace {

using statistics::Kind;
using statistics::ReadRow;
using statistics::ReadTable;
using statistics::Unit;

constexpr double kNsPerSecond = 1e9;

std::string unit_of(Unit unit) {
    switch (unit) {
        case Unit::cycles:
        case Unit::nanoseconds: return "ns";
        case Unit::bytes: return "bytes";
        case Unit::date: return kDate;
        case Unit::boolean:
        case Unit::none: break;
    }
    return "";
}

double sum_of_idle(const ReadTable& table, const ReadRow& row) {
    double sum = 0;
    for (std::size_t i = 0; i < table.fields.size(); ++i) {
        if (table.fields[i].name.starts_with("idle_") && !row.words[i].empty()) {
            sum += static_cast<double>(row.words[i][0]);
        }
    }
    return sum;
}

std::vector<double> latency_of(const std::vector<std::uint64_t>& now, const std::vector<std::uint64_t>& before,
                               double cycles_per_second) {
    LatencyHistogram grown;
    for (std::size_t i = 0; i < std::min({now.size(), before.size(), grown.counts.size()}); ++i) {
        grown.counts[i] = now[i] > before[i] ? now[i] - before[i] : 0;
    }
    const double ns = cycles_per_second > 0 ? kNsPerSecond / cycles_per_second : 0;
    return {static_cast<double>(grown.percentile(0.5)) * ns, static_cast<double>(grown.percentile(0.99)) * ns,
            static_cast<double>(grown.count())};
}

}  // namespace

std::optional<std::size_t> ShownTable::field(std::string_view wanted) const noexcept {
    const auto found =
        std::find_if(fields.begin(), fields.end(), [&](const ShownField& field) { return field.name == wanted; });
    return found != fields.end() ? std::optional(static_cast<std::size_t>(found - fields.begin())) : std::nullopt;
}

std::vector<ShownTable> shown(const statistics::Snapshot& before, const statistics::Snapshot& now) {
    const double seconds = now.header.updated > before.header.updated
                               ? static_cast<double>(now.header.updated - before.header.updated) / kNsPerSecond
                               : 0;
    const auto per_second = static_cast<double>(now.header.cycles_per_second);
    std::vector<ShownTable> all;
    for (const ReadTable& table : now.tables) {
        ShownTable out{.name = harmless(table.name), .fields = {}, .rows = {}};
        for (const statistics::ReadField& field : table.fields) {
            out.fields.push_back({.name = harmless(field.name), .kind = field.kind, .unit = unit_of(field.unit)});
        }
        const bool workers = table.name == "worker";
        if (workers) {
            out.fields.push_back({.name = "busy", .kind = Kind::gauge, .unit = ""});
        }
        std::map<std::uint64_t, const ReadRow*> earlier;  // by id
        if (const ReadTable* const old = before.table(table.name);
            old != nullptr && old->fields.size() == table.fields.size()) {
            for (const ReadRow& row : old->rows) {
                earlier[row.words[0].empty() ? 0 : row.words[0][0]] = &row;
            }
        }
        for (const ReadRow& row : table.rows) {
            const auto old = earlier.find(row.words[0].empty() ? 0 : row.words[0][0]);
            std::vector<ShownValue> values;
            for (std::size_t i = 0; i < table.fields.size(); ++i) {
                ShownValue value{.text = harmless(row.texts[i]), .total = {}};
                const bool cycles = table.fields[i].unit == Unit::cycles && table.fields[i].kind != Kind::histogram;
                const double factor = cycles && per_second > 0 ? kNsPerSecond / per_second : 1;
                if (table.fields[i].kind == Kind::latency) {
                    const bool known = old != earlier.end();
                    value.total = latency_of(row.words[i], known ? old->second->words[i] : row.words[i], per_second);
                    values.push_back(std::move(value));
                    continue;
                }
                for (const std::uint64_t word : row.words[i]) {
                    value.total.push_back(static_cast<double>(word) * factor);
                }
                if (table.fields[i].kind == Kind::counter && old != earlier.end() && seconds > 0 &&
                    !old->second->words[i].empty() && !row.words[i].empty() &&
                    row.words[i][0] >= old->second->words[i][0]) {
                    value.rate = static_cast<double>(row.words[i][0] - old->second->words[i][0]) * factor / seconds;
                }
                values.push_back(std::move(value));
            }
            if (workers) {
                double busy = 0;
                if (old != earlier.end() && seconds > 0 && per_second > 0) {
                    const double idle = sum_of_idle(table, row) - sum_of_idle(table, *old->second);
                    busy = std::clamp(1 - idle / (seconds * per_second), 0.0, 1.0);
                }
                values.push_back({.text = {}, .total = {busy}});
            }
            out.rows.push_back(std::move(values));
        }
        all.push_back(std::move(out));
    }
    return all;
}

}  // namespace pollcore::stat
