#include "pollperf/mesh/mesh_report.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <numeric>
#include <set>

#include <fmt/format.h>

#include "pollcore/version.hpp"
#include "pollperf/peer/letters.hpp"
#include "pollperf/report/disturbances.hpp"
#include "pollperf/report/intervals.hpp"
#include "pollperf/report/text_report.hpp"

namespace pollcore::perf {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kFormat = 2;  // the format of pollperf's documents (FORMAT.md)
constexpr double kDeviations = 3;
constexpr std::size_t kCell = 9;
constexpr std::size_t kRowHead = 12;
constexpr std::size_t kColumnsOfBlock = (kReportColumns - kRowHead) / kCell;
// The matrix of more ranks would be no table for people. A line for each rank replaces it.
constexpr std::size_t kMatrixMost = 3 * kColumnsOfBlock;
constexpr std::size_t kOutliersShown = 20;

std::size_t at(int rank) {
    return static_cast<std::size_t>(rank);
}

// ---- Text ----

/// A figure in three digits or more.
std::string digits(double value) {
    return value >= 100  ? fmt::format("{:.0f}", value)
           : value >= 10 ? fmt::format("{:.1f}", value)
                         : fmt::format("{:.2f}", value);
}

/// In a cell of a matrix.
std::string cell(double value) {
    const std::string text = digits(value);
    return text.size() < kCell - 1 ? text : fmt::format("{:.1e}", value);
}

struct Unit {
    double factor;
    const char* name;
};
constexpr Unit kMicroseconds{1e3, "us"};
Unit rate_unit(double bytes_per_s) {
    return bytes_per_s >= 1e9 ? Unit{1e9, "GB/s"} : bytes_per_s >= 1e6 ? Unit{1e6, "MB/s"} : Unit{1e3, "kB/s"};
}
std::string in(const Unit& unit, double value) {
    return fmt::format("{} {}", digits(value / unit.factor), unit.name);
}
std::string rate_text(double bytes_per_s) {
    return in(rate_unit(bytes_per_s), bytes_per_s);
}

std::string shortened(const std::string& text, std::size_t most) {
    return text.size() <= most ? text : text.substr(0, most - 2) + "..";
}

// ---- Pairs ----

struct Value {
    int from;
    int to;
    double value;
};
std::vector<Value> values_of(const Matrix& matrix) {
    std::vector<Value> all;
    for (std::size_t from = 0; from < matrix.size(); ++from) {
        for (std::size_t to = 0; to < matrix.size(); ++to) {
            if (matrix[from][to]) {
                all.push_back({static_cast<int>(from), static_cast<int>(to), *matrix[from][to]});
            }
        }
    }
    return all;
}

double median_of(const std::vector<Value>& values) {
    std::vector<double> numbers;
    for (const Value& one : values) {
        numbers.push_back(one.value);
    }
    return quantile(std::move(numbers), 0.5);
}

struct Quantity {
    const char* what;
    bool more_is_worse;
};
constexpr Quantity kLatency{"latency", true};
constexpr Quantity kBandwidth{"bandwidth", false};

std::string value_text(const Quantity& quantity, double value) {
    return quantity.more_is_worse ? in(kMicroseconds, value) : rate_text(value);
}

std::string rank_text(const MeshResults& results, int rank) {
    return fmt::format("rank {} ({})", rank, results.ranks[at(rank)].host);
}

std::string outlier_text(const MeshResults& results, const Quantity& quantity, const Value& one, double median,
                         const char* compared) {
    const double times = one.value / median;
    return fmt::format("The {} from {} to {} is {}, {} the median {} of {}.", quantity.what,
                       rank_text(results, one.from), rank_text(results, one.to), value_text(quantity, one.value),
                       times >= 2 ? fmt::format("{} times", digits(times))
                                  : fmt::format("{:.0f}% worse than", 100 * std::abs(times - 1)),
                       value_text(quantity, median), compared);
}

void find_outliers(const MeshResults& results, const Matrix& matrix, const Quantity& quantity,
                   std::vector<Outlier>& found) {
    std::map<bool, std::vector<Value>> kinds;  // whether both ends are on one host
    for (const Value& one : values_of(matrix)) {
        kinds[results.ranks[at(one.from)].host == results.ranks[at(one.to)].host].push_back(one);
    }
    for (const auto& [within, values] : kinds) {
        const double median = median_of(values);
        std::vector<double> deviations;
        for (const Value& one : values) {
            deviations.push_back(std::abs(one.value - median));
        }
        const double deviation = quantile(std::move(deviations), 0.5);
        const char* const compared = kinds.size() == 1 ? "all pairs"
                                     : within          ? "the pairs within hosts"
                                                       : "the pairs between hosts";
        for (const Value& one : values) {
            const double worse = quantity.more_is_worse ? one.value - median : median - one.value;
            if (!(median > 0) || worse <= results.outlier * median || worse <= kDeviations * deviation) {
                continue;
            }
            found.push_back({.what = quantity.what,
                             .from = one.from,
                             .to = one.to,
                             .value = one.value,
                             .median = median,
                             .worse = worse / median,
                             .text = outlier_text(results, quantity, one, median, compared)});
        }
    }
}

// ---- The parts of the table ----

void title(std::string& text, const MeshResults& results) {
    std::set<std::string> hosts;
    for (const MeshRank& one : results.ranks) {
        hosts.insert(one.host);
    }
    wrap(text, "",
         fmt::format("pollperf-mesh: {} ranks on {} host{}", results.ranks.size(), hosts.size(),
                     hosts.size() == 1 ? "" : "s"));
    wrap(text, "  command   ", results.command);
    std::string settings;
    for (const auto& [name, value] : results.settings) {
        settings += fmt::format("{}{} {}", settings.empty() ? "" : ", ", name, value);
    }
    wrap(text, "  settings  ", settings);
    text += "\n";
    constexpr std::size_t kHost = 28;
    text += fmt::format("{:>6}  {:<{}}{:>5}  {}\n", "rank", "host", kHost, "CPU", "device");
    for (std::size_t rank = 0; rank < results.ranks.size(); ++rank) {
        const MeshRank& one = results.ranks[rank];
        text += fmt::format("{:>6}  {:<{}}{:>5}  {}\n", rank, shortened(one.host, kHost), kHost, one.cpu,
                            shortened(one.device, kReportColumns - kHost - 15));
    }
    text += "\n";
}

bool is_named(const std::vector<Outlier>& named, const char* what, std::size_t from, std::size_t to) {
    return std::any_of(named.begin(), named.end(), [&](const Outlier& one) {
        return one.what == what && at(one.from) == from && at(one.to) == to;
    });
}

void blocks(std::string& text, const Matrix& matrix, const Unit& unit, const char* what,
            const std::vector<Outlier>& named) {
    for (std::size_t first = 0; first < matrix.size(); first += kColumnsOfBlock) {
        const std::size_t end = std::min(matrix.size(), first + kColumnsOfBlock);
        std::string line = fmt::format("{:>{}}", "from \\ to", kRowHead);
        for (std::size_t to = first; to < end; ++to) {
            line += fmt::format("{:>{}} ", to, kCell - 1);
        }
        text += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
        for (std::size_t from = 0; from < matrix.size(); ++from) {
            line = fmt::format("{:>{}}", from, kRowHead);
            for (std::size_t to = first; to < end; ++to) {
                const auto& value = matrix[from][to];
                line += fmt::format("{:>{}}{}", value ? cell(*value / unit.factor) : "-", kCell - 1,
                                    is_named(named, what, from, to) ? "!" : " ");
            }
            text += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
        }
    }
}

void row_lines(std::string& text, const Matrix& matrix, const Unit& unit) {
    text += fmt::format("{:>{}}{:>12}{:>12}{:>12}\n", "from", kRowHead, "least", "median", "greatest");
    for (std::size_t from = 0; from < matrix.size(); ++from) {
        std::vector<double> values;
        for (const auto& value : matrix[from]) {
            if (value) {
                values.push_back(*value / unit.factor);
            }
        }
        if (!values.empty()) {
            const auto [least, greatest] = std::minmax_element(values.begin(), values.end());
            text += fmt::format("{:>{}}{:>12}{:>12}{:>12}\n", from, kRowHead, digits(*least),
                                digits(quantile(values, 0.5)), digits(*greatest));
        }
    }
}

void matrix_table(std::string& text, const Matrix& matrix, const Quantity& quantity, const std::string& heading,
                  const std::vector<Outlier>& named) {
    const auto values = values_of(matrix);
    if (values.empty()) {
        return;
    }
    const double median = median_of(values);
    const Unit unit = quantity.more_is_worse ? kMicroseconds : rate_unit(median);
    wrap(text, "", fmt::format("{}, in {}", heading, unit.name));
    if (matrix.size() <= kMatrixMost) {
        blocks(text, matrix, unit, quantity.what, named);
    } else {
        row_lines(text, matrix, unit);
    }
    const auto [least, greatest] = std::minmax_element(
        values.begin(), values.end(), [](const Value& a, const Value& b) { return a.value < b.value; });
    wrap(text, "  ",
         fmt::format("median {}, least {} (from {} to {}), greatest {} (from {} to {})", in(unit, median),
                     in(unit, least->value), least->from, least->to, in(unit, greatest->value), greatest->from,
                     greatest->to));
    text += "\n";
}

void incast_table(std::string& text, const MeshResults& results) {
    if (results.incast.empty()) {
        return;
    }
    wrap(text, "",
         fmt::format("many to one: the others {} one rank, {} of {} bytes",
                     results.op == "read" ? "read from" : "send to", results.op, results.size));
    text += fmt::format("{:>{}}{:>10}{:>16}{:>20}{:>20}\n", "to", kRowHead, "senders", "together", "least of a sender",
                        "most of a sender");
    for (const Incast& one : results.incast) {
        const auto [least, most] = std::minmax_element(one.bytes_per_s.begin(), one.bytes_per_s.end());
        text += fmt::format("{:>{}}{:>10}{:>16}{:>20}{:>20}\n", one.to, kRowHead, one.senders.size(),
                            rate_text(one.together()), rate_text(*least), rate_text(*most));
    }
    text += "\n";
}

void all_to_all_lines(std::string& text, const MeshResults& results) {
    const auto& rates = results.all_to_all_bytes_per_s;
    if (rates.empty()) {
        return;
    }
    const auto [least, most] = std::minmax_element(rates.begin(), rates.end());
    wrap(text, "",
         fmt::format("all to all, {} of {} bytes: {} together; least of a rank {} (rank {}), most {} (rank {})",
                     results.op, results.size, rate_text(std::accumulate(rates.begin(), rates.end(), 0.0)),
                     rate_text(*least), least - rates.begin(), rate_text(*most), most - rates.begin()));
    text += "\n";
}

void sentences(std::string& text, const char* heading, const std::vector<std::string>& all) {
    text.append(heading).append("\n");
    for (const std::string& one : all) {
        wrap(text, "  - ", one);
    }
}

// ---- Documents ----

Json as_json(const std::optional<Matrix>& matrix) {
    Json rows = Json::array();
    for (const auto& row : matrix.value_or(Matrix())) {
        Json cells = Json::array();
        for (const auto& value : row) {
            cells.push_back(value ? Json(*value) : Json(nullptr));
        }
        rows.push_back(std::move(cells));
    }
    return rows;
}

std::string csv_field(const std::string& text) {
    if (text.find_first_of(",\"\r\n") == std::string::npos) {
        return text;
    }
    std::string field = "\"";
    for (const char c : text) {
        field.append(c == '"' ? 2 : 1, c);
    }
    return field + '"';
}

}  // namespace

Matrix empty_matrix(std::size_t ranks) {
    return Matrix(ranks, std::vector<std::optional<double>>(ranks));
}

double Incast::together() const noexcept {
    return std::accumulate(bytes_per_s.begin(), bytes_per_s.end(), 0.0);
}

std::vector<Outlier> outliers(const MeshResults& results) {
    std::vector<Outlier> found;
    if (results.latency_ns) {
        find_outliers(results, *results.latency_ns, kLatency, found);
    }
    if (results.bandwidth_bytes_per_s) {
        find_outliers(results, *results.bandwidth_bytes_per_s, kBandwidth, found);
    }
    std::stable_sort(found.begin(), found.end(), [](const Outlier& a, const Outlier& b) { return a.worse > b.worse; });
    return found;
}

std::vector<std::string> mesh_warnings(const MeshResults& results) {
    std::vector<std::string> all;
    std::map<std::pair<std::string, std::uint32_t>, std::size_t> on_cpu;
    for (const MeshRank& one : results.ranks) {
        ++on_cpu[{one.host, one.cpu}];
    }
    const auto crowded = std::max_element(on_cpu.begin(), on_cpu.end(),
                                          [](const auto& a, const auto& b) { return a.second < b.second; });
    if (crowded != on_cpu.end() && crowded->second > 1) {
        all.push_back(fmt::format(
            "{} ranks share CPU {} of {}: their figures have the waiting for the CPU in them, and mean little.",
            crowded->second, crowded->first.second, crowded->first.first));
    }
    if (results.bandwidth_bytes_per_s) {
        std::vector<Value> silent;
        std::ranges::copy_if(values_of(*results.bandwidth_bytes_per_s), std::back_inserter(silent),
                             [](const Value& one) { return one.value == 0; });
        if (!silent.empty()) {
            all.push_back(fmt::format(
                "No operation from {} to {} was done within the time of its measurement{}: the way loses packets, or "
                "--duration is too short.",
                rank_text(results, silent.front().from), rank_text(results, silent.front().to),
                silent.size() == 1 ? "" : fmt::format(", and none of {} other pairs", silent.size() - 1)));
        }
    }
    // One sentence names the worst of the ranks that have one trouble.
    const auto worst = [&](auto&& share) {
        return std::max_element(results.ranks.begin(), results.ranks.end(),
                                [&](const MeshRank& a, const MeshRank& b) { return share(a) < share(b); });
    };
    const auto of_time = [](const MeshRank& one, double amount) { return one.seconds > 0 ? amount / one.seconds : 0; };
    const auto stolen = [&](const MeshRank& one) { return of_time(one, static_cast<double>(one.steal_ms) / 1e3); };
    // The kernel counts sched_yield(2) as involuntary.
    const auto switched = [&](const MeshRank& one) {
        return one.yields ? 0 : of_time(one, static_cast<double>(one.involuntary_switches));
    };
    if (results.ranks.empty()) {
        return all;
    }
    if (const auto one = worst(stolen); stolen(*one) > kStealMost) {
        all.push_back(fmt::format(
            "While rank {} measured, the hypervisor of {} ran other machines for {:.1f}% of the time (steal).",
            one - results.ranks.begin(), one->host, 100 * stolen(*one)));
    }
    if (const auto one = worst(switched);
        switched(*one) > kInvoluntaryPerSecondMost && one->involuntary_switches >= kInvoluntaryLeast) {
        all.push_back(
            fmt::format("The kernel took rank {} on {} off its CPU {:.0f} times a second: others need CPU {}, too.",
                        one - results.ranks.begin(), one->host, switched(*one), one->cpu));
    }
    return all;
}

std::string mesh_text(const MeshResults& results) {
    std::string text;
    const auto named = outliers(results);
    title(text, results);
    if (results.latency_ns) {
        matrix_table(text, *results.latency_ns, kLatency,
                     fmt::format("latency: median of half a round trip, send of {} bytes", results.latency_size),
                     named);
    }
    if (results.bandwidth_bytes_per_s) {
        matrix_table(text, *results.bandwidth_bytes_per_s, kBandwidth,
                     fmt::format("bandwidth: {} of {} bytes{}", results.op, results.size,
                                 results.op == "read" ? ", `from` reads the memory of `to`" : ""),
                     named);
    }
    incast_table(text, results);
    all_to_all_lines(text, results);
    if (results.latency_ns || results.bandwidth_bytes_per_s) {
        std::vector<std::string> all;
        for (std::size_t i = 0; i < std::min(named.size(), kOutliersShown); ++i) {
            all.push_back(named[i].text);
        }
        if (named.size() > kOutliersShown) {
            all.push_back(fmt::format("{} more; --json has them.", named.size() - kOutliersShown));
        }
        sentences(text, named.empty() ? "no pair of ranks stands out" : "outliers, marked by ! above", all);
    }
    if (const auto warnings = mesh_warnings(results); !warnings.empty()) {
        text += "\n";
        sentences(text, "read this before you believe the figures", warnings);
    }
    return text;
}

Json mesh_json(const MeshResults& results) {
    Json json = {{"program", "pollperf-mesh"},
                 {"version", POLLCORE_VERSION},
                 {"format", kFormat},
                 {"command", results.command},
                 {"began", results.began}};
    json["settings"] = Json::object();
    for (const auto& [name, value] : results.settings) {
        json["settings"][name] = value;
    }
    json["host"] = results.ranks.empty() ? Json::object() : Json(to_json(results.ranks.front().facts));
    json["ranks"] = Json::array();
    for (std::size_t rank = 0; rank < results.ranks.size(); ++rank) {
        const MeshRank& one = results.ranks[rank];
        json["ranks"].push_back({{"rank", rank},
                                 {"host", one.host},
                                 {"cpu", one.cpu},
                                 {"device", one.device},
                                 {"yields", one.yields},
                                 {"facts", Json(to_json(one.facts))},
                                 {"seconds", one.seconds},
                                 {"steal_ms", one.steal_ms},
                                 {"involuntary_switches", one.involuntary_switches}});
    }
    json["latency_ns"] = as_json(results.latency_ns);
    json["latency_p99_ns"] = as_json(results.latency_p99_ns);
    json["bandwidth_bytes_per_s"] = as_json(results.bandwidth_bytes_per_s);
    json["incast"] = Json::array();
    for (const Incast& one : results.incast) {
        json["incast"].push_back({{"to", one.to},
                                  {"senders", one.senders},
                                  {"bytes_per_s", one.together()},
                                  {"per_sender_bytes_per_s", one.bytes_per_s}});
    }
    if (const auto& rates = results.all_to_all_bytes_per_s; !rates.empty()) {
        json["all_to_all"] = {{"bytes_per_s", std::accumulate(rates.begin(), rates.end(), 0.0)},
                              {"per_rank_bytes_per_s", rates}};
    }
    json["outliers"] = Json::array();
    for (const Outlier& one : outliers(results)) {
        json["outliers"].push_back({{"what", one.what},
                                    {"from", one.from},
                                    {"to", one.to},
                                    {"value", one.value},
                                    {"median", one.median},
                                    {"text", one.text}});
    }
    json["warnings"] = mesh_warnings(results);
    return json;
}

std::string mesh_csv(const MeshResults& results) {
    std::string text =
        "from,from_host,to,to_host,latency_ns,latency_p99_ns,bandwidth_bytes_per_s,latency_outlier,bandwidth_outlier\n";
    const auto named = outliers(results);
    const auto figure = [](const std::optional<Matrix>& matrix, std::size_t from, std::size_t to) {
        return matrix && (*matrix)[from][to] ? fmt::format("{:.3f}", *(*matrix)[from][to]) : std::string();
    };
    for (std::size_t from = 0; from < results.ranks.size(); ++from) {
        for (std::size_t to = 0; to < results.ranks.size(); ++to) {
            if (from == to) {
                continue;
            }
            text += fmt::format(
                "{},{},{},{},{},{},{},{},{}\n", from, csv_field(results.ranks[from].host), to,
                csv_field(results.ranks[to].host), figure(results.latency_ns, from, to),
                figure(results.latency_p99_ns, from, to), figure(results.bandwidth_bytes_per_s, from, to),
                is_named(named, kLatency.what, from, to) ? 1 : 0, is_named(named, kBandwidth.what, from, to) ? 1 : 0);
        }
    }
    return text;
}

}  // namespace pollcore::perf
