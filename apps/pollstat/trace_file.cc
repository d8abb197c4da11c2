#include "trace_file.hpp"

#include <optional>
#include <string_view>
#include <utility>

#include <nlohmann/json.hpp>

#include "harmless.hpp"

namespace pollcore::stat {
namespace {

using Json = nlohmann::ordered_json;
using statistics::ReadRow;
using statistics::ReadTable;

// The viewer's numbers of processes: sessions have their id, and workers one behind all of them.
constexpr std::uint64_t kWorkers = std::uint64_t{1} << 40;

/// A table and its row, by the names of fields. A field that this runtime does not have is 0 or empty.
class RowOf {
public:
    RowOf(const ReadTable& table, const ReadRow& row) : table_(table), row_(row) {}
    [[nodiscard]] std::uint64_t number(std::string_view name) const {
        const auto field = table_.field(name);
        return field && row_.words[*field].size() == 1 ? row_.words[*field][0] : 0;
    }
    [[nodiscard]] std::string text(std::string_view name) const {
        const auto field = table_.field(name);
        return field ? harmless(row_.texts[*field]) : "";
    }

private:
    const ReadTable& table_;
    const ReadRow& row_;
};

template <class Take>
void each_row(const statistics::Snapshot& snapshot, std::string_view name, Take&& take) {
    if (const ReadTable* const table = snapshot.table(name)) {
        for (const ReadRow& row : table->rows) {
            take(RowOf(*table, row));
        }
    }
}

/// Values of `enum ibv_wr_opcode`.
std::string opcode_name(std::uint64_t opcode) {
    constexpr std::string_view kNames[] = {"write", "write with immediate", "send",          "send with immediate",
                                           "read",  "compare and swap",     "fetch and add", "local invalidate",
                                           "bind",  "send with invalidate"};
    return opcode < std::size(kNames) ? std::string(kNames[opcode]) : "opcode " + std::to_string(opcode);
}

}  // namespace

void Trace::add(const statistics::Snapshot& snapshot) {
    const double cycles_per_us = static_cast<double>(snapshot.header.cycles_per_second) / 1e6;
    if (cycles_per_us <= 0) {
        return;
    }
    const auto us = [&](std::uint64_t cycles) { return static_cast<double>(cycles) / cycles_per_us; };
    const auto put = [&](const Json& event) { events_ += ",\n" + event.dump(); };
    const auto name_process = [&](bool session, std::uint64_t id, std::uint64_t number, const std::string& name) {
        if (named_.emplace(session, id).second) {
            put({{"ph", "M"}, {"pid", number}, {"name", "process_name"}, {"args", {{"name", name}}}});
        }
    };
    each_row(snapshot, "session", [&](const RowOf& row) {
        const std::uint64_t id = row.number("session");
        name_process(true, id, id, "session " + std::to_string(id) + " " + row.text("name"));
    });
    each_row(snapshot, "worker", [&](const RowOf& row) {
        name_process(false, row.number("worker"), kWorkers + row.number("worker"), "worker " + row.text("name"));
    });
    each_row(snapshot, "followed", [&](const RowOf& row) {
        const std::uint64_t id = row.number("followed");
        if (!requests_.insert(id).second) {
            return;
        }
        const std::pair<const char*, std::pair<std::uint64_t, std::uint64_t>> stages[] = {
            {"submission ring", {row.number("submitted"), row.number("taken")}},
            {"device", {row.number("taken"), row.number("completed")}},
            {"completion ring", {row.number("completed"), row.number("polled")}}};
        const Json args{{"queue pair", row.number("queue_pair")}, {"opcode", opcode_name(row.number("opcode"))}};
        for (const auto& [name, times] : stages) {
            if (times.first == 0 || times.second < times.first) {
                continue;  // not known, or what a hostile process wrote
            }
            Json event{
                {"ph", "b"}, {"cat", "request"},      {"id", id},    {"name", name}, {"pid", row.number("session")},
                {"tid", 0},  {"ts", us(times.first)}, {"args", args}};
            put(event);
            event["ph"] = "e";
            event["ts"] = us(times.second);
            event.erase("args");
            put(event);
        }
    });
    each_row(snapshot, "stall", [&](const RowOf& row) {
        if (!stalls_.insert(row.number("stall")).second || row.number("began_clock") == 0) {
            return;
        }
        Json meanwhile;
        for (const char* const name : {"voluntary_switches", "involuntary_switches", "run_delay", "kernel_time",
                                       "steal", "interrupts", "minor_faults", "major_faults"}) {
            meanwhile[name] = row.number(name);
        }
        put({{"ph", "X"},
             {"name", "stall"},
             {"pid", kWorkers + row.number("worker")},
             {"tid", 0},
             {"ts", us(row.number("began_clock"))},
             {"dur", us(row.number("length"))},
             {"args", std::move(meanwhile)}});
    });
}

std::string Trace::json() const {
    return "{\"displayTimeUnit\": \"ns\", \"traceEvents\": [" + (events_.empty() ? "" : events_.substr(1)) + "\n]}\n";
}

}  // namespace pollcore::stat
