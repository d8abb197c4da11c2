#include "bench_report.hpp"

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <ostream>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "apps/pollperf/threads.hpp"
#include "pollcore/error.hpp"

namespace pollcore::bench {
namespace {

// Formats a value with about three significant digits.
std::string figure(double value) {
    return fmt::format("{:.{}f}", value, value < 10 ? 2 : value < 100 ? 1 : 0);
}

std::string with_spread(const Samples& all) {
    const Samples samples = present(all);
    if (samples.empty()) {
        return "not measured here";
    }
    const auto [least, most] = std::minmax_element(samples.begin(), samples.end());
    return fmt::format("{} ({}–{})", figure(median(samples)), figure(*least), figure(*most));
}

}  // namespace

void print_tables(std::ostream& out, const std::vector<Measured>& measurements) {
    const Measured* before = nullptr;
    for (const Measured& row : measurements) {
        if (before == nullptr || before->table != row.table) {
            out << fmt::format("\n| {} |", row.table);
            for (const std::string& column : row.columns) {
                out << fmt::format(" {} |", column);
            }
            out << "\n|---|";
            for (std::size_t i = 0; i < row.columns.size(); ++i) {
                out << "---|";
            }
            out << '\n';
        }
        before = &row;
        out << fmt::format("| {} |", row.row);
        for (const auto& samples : row.samples) {
            out << fmt::format(" {} |", with_spread(samples));
        }
        out << '\n';
    }
}

void write_json(const std::string& path, const std::vector<Measured>& measurements, const std::vector<Goal>& goals,
                const std::vector<Noise>& noise) {
    const perf::Machine machine = perf::this_machine();
    nlohmann::ordered_json json{
        {"machine", {{"cpu", machine.cpu_model}, {"cpus", machine.cpus_online}, {"kernel", machine.kernel}}},
        {"noise", nlohmann::ordered_json::array()},
        {"goals", nlohmann::ordered_json::array()}};
    for (const Noise& one : noise) {
        json["noise"].push_back({{"text", one.text}});
        if (!one.table.empty()) {
            json["noise"].back()["table"] = one.table;
        }
    }
    for (const Measured& row : measurements) {
        for (std::size_t i = 0; i < row.columns.size(); ++i) {
            const Samples samples = present(row.samples[i]);
            if (samples.empty()) {
                continue;
            }
            json["measurements"].push_back({{"table", row.table},
                                            {"row", row.row},
                                            {"column", row.columns[i]},
                                            {"distance", row.distance ? name_of(*row.distance) : ""},
                                            {"median", row.typical(i)},
                                            {"samples", samples}});
        }
    }
    for (const Goal& goal : goals) {
        json["goals"].push_back({{"goal", goal.text},
                                 {"at_least", goal.at_least},
                                 {"bound", goal.bound},
                                 {"samples", goal.reached},
                                 {"tables", goal.tables}});
    }
    std::ofstream file(path);
    file << json.dump(2) << '\n';
    if (!file.flush()) {
        throw Error(errno, "writing " + path);
    }
}

}  // namespace pollcore::bench
