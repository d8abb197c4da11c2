#include "metrics.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <set>

#include <fmt/format.h>

namespace pollcore::stat {
namespace {

constexpr std::size_t kWorkersMax = 4096;  // whose busy time is kept; anybody may make a segment with more

using statistics::Kind;
using statistics::ReadField;
using statistics::ReadRow;
using statistics::ReadTable;
using statistics::Snapshot;
using statistics::Unit;

constexpr double kNanosecondsPerSecond = 1e9;
// Numbers that name something. They say nothing as values.
constexpr std::array<std::string_view, 5> kNumbersThatName{"core", "thread", "pid", "uid", "qp_num"};

bool names_something(const ReadField& field) {
    return field.kind == Kind::gauge &&
           std::find(kNumbersThatName.begin(), kNumbersThatName.end(), field.name) != kNumbersThatName.end();
}

std::string plural_of(std::string_view table) {
    std::string words(table);
    std::replace(words.begin(), words.end(), '_', ' ');
    return words == "process" ? "processes" : words + "s";
}

std::optional<std::uint64_t> word_of(const ReadTable& table, const ReadRow& row, std::string_view name) {
    const auto field = table.field(name);
    return field && !row.words[*field].empty() ? std::optional(row.words[*field][0]) : std::nullopt;
}

std::string text_of_field(const ReadTable& table, const ReadRow& row, std::string_view name) {
    const auto field = table.field(name);
    return field ? row.texts[*field] : "";
}

/// How a field becomes a metric.
struct Conversion {
    std::string name;  // without the ending of a counter
    double per_second = 1;
    bool converts = false;  // else the number is as it is in the segment
    bool possible = true;
};

Conversion conversion_of(std::string_view subject, const ReadField& field, std::uint64_t cycles_per_second) {
    Conversion out{.name = fmt::format("pollcore_{}_{}", subject, field.name)};
    switch (field.unit) {
        case Unit::cycles:
            out.possible = cycles_per_second > 0;
            out.per_second = out.possible ? static_cast<double>(cycles_per_second) : 1;
            out.converts = true;
            break;
        case Unit::nanoseconds:
        case Unit::date:
            out.per_second = kNanosecondsPerSecond;
            out.converts = true;
            break;
        case Unit::bytes: out.name += out.name.ends_with("bytes") ? "" : "_bytes"; break;
        case Unit::none:
        case Unit::boolean: break;
    }
    out.name += out.converts ? "_seconds" : "";
    return out;
}

/// Adds the values of one field.
void add_field(Exposition& out, std::string_view subject, const ReadField& field, std::string_view help,
               const Labels& labels, const std::vector<std::uint64_t>& words, std::uint64_t cycles_per_second) {
    const Conversion to = conversion_of(subject, field, cycles_per_second);
    if (!to.possible) {
        return;
    }
    if (field.kind == Kind::histogram || field.kind == Kind::latency) {
        out.add_histogram(
            to.name, fmt::format("{}. The sum is estimated from the buckets.", help), labels,
            to.converts ? time_buckets(field.kind, words, 1 / to.per_second) : number_buckets(field.kind, words));
        return;
    }
    if (field.kind != Kind::counter && field.kind != Kind::gauge) {
        return;
    }
    for (std::size_t i = 0; i < words.size(); ++i) {
        Labels its = labels;
        if (words.size() > 1) {
            its.emplace_back("index", std::to_string(i));
        }
        const MetricValue value =
            to.converts ? MetricValue(static_cast<double>(words[i]) / to.per_second) : MetricValue(words[i]);
        field.kind == Kind::counter ? out.add_counter(to.name, help, its, value)
                                    : out.add_gauge(to.name, help, its, value);
    }
}

}  // namespace

/// What the things of a snapshot are called in labels.
class Metrics::Names {
public:
    explicit Names(const Snapshot& snapshot) : cycles_per_second_(snapshot.header.cycles_per_second) {
        for (const std::string_view table : {"worker", "device"}) {
            if (const ReadTable* const its = snapshot.table(table)) {
                for (const ReadRow& row : its->rows) {
                    const std::string name = text_of_field(*its, row, "name");
                    names_[{std::string(table), id_of(row)}] = name.empty() ? std::to_string(id_of(row)) : name;
                }
            }
        }
        if (const ReadTable* const processes = snapshot.table("process")) {
            for (const ReadRow& row : processes->rows) {
                if (const auto uid = word_of(*processes, row, "uid")) {
                    uids_[id_of(row)] = std::to_string(*uid);
                }
            }
        }
    }

    [[nodiscard]] std::uint64_t cycles_per_second() const noexcept { return cycles_per_second_; }
    [[nodiscard]] static std::uint64_t id_of(const ReadRow& row) {
        return row.words.empty() || row.words[0].empty() ? 0 : row.words[0][0];
    }

    /// The labels of a row: its own name, and those of the things that it refers to. With `only`, only those.
    [[nodiscard]] Labels labels_of(const ReadTable& table, const ReadRow& row,
                                   std::initializer_list<std::string_view> only = {}) const {
        Labels labels;
        const auto add = [&](std::string_view name, std::string value) {
            if (only.size() == 0 || std::find(only.begin(), only.end(), name) != only.end()) {
                labels.emplace_back(name, std::move(value));
            }
        };
        const std::uint64_t id = id_of(row);
        if (table.name != "runtime") {
            const auto called = names_.find({table.name, id});
            add(table.name, called != names_.end() ? called->second : std::to_string(id));
            if (const std::string name = text_of_field(table, row, "name"); called == names_.end() && !name.empty()) {
                add("name", name);
            }
        }
        for (std::size_t i = 1; i < table.fields.size(); ++i) {
            const ReadField& field = table.fields[i];
            if (field.kind == Kind::id && !row.words[i].empty() && row.words[i][0] != 0) {
                const auto called = names_.find({field.name, row.words[i][0]});
                add(field.name, called != names_.end() ? called->second : std::to_string(row.words[i][0]));
            }
        }
        const auto user = uids_.find(table.name == "process" ? id : word_of(table, row, "process").value_or(0));
        if (user != uids_.end()) {
            add("uid", user->second);
        }
        return labels;
    }

private:
    std::uint64_t cycles_per_second_;
    std::map<std::pair<std::string, std::uint64_t>, std::string> names_;  // of workers and devices, by table and id
    std::unordered_map<std::uint64_t, std::string> uids_;                 // of processes
};

void Metrics::add_row(Exposition& out, const Names& names, const ReadTable& table, const ReadRow& row,
                      const Labels& more) const {
    const Labels labels = names.labels_of(table, row);
    Labels described = labels;
    described.insert(described.end(), more.begin(), more.end());
    bool describes = !more.empty();
    for (std::size_t i = 1; i < table.fields.size(); ++i) {
        const ReadField& field = table.fields[i];
        if (field.kind == Kind::text && field.name != "name") {
            described.emplace_back(field.name, row.texts[i]);
            describes = true;
        } else if (names_something(field)) {
            described.emplace_back(field.name, row.words[i].empty() ? "" : std::to_string(row.words[i][0]));
            describes = true;
        } else {
            add_field(out, table.name, field, fmt::format("The field {} of {}", field.name, plural_of(table.name)),
                      labels, row.words[i], names.cycles_per_second());
        }
    }
    if (describes) {
        out.add_gauge(fmt::format("pollcore_{}_info", table.name),
                      fmt::format("Always 1. The labels describe {}", plural_of(table.name)), described,
                      std::uint64_t{1});
    }
}

void Metrics::add_sums(Exposition& out, const Names& names, const ReadTable& table, GroupSums& sums) const {
    sums.take(table, [&](const ReadRow& row) { return names.labels_of(table, row, {"worker", "device", "uid"}); });
    for (const auto& [labels, words] : sums.sums()) {
        for (std::size_t i = 1; i < std::min(table.fields.size(), words.size()); ++i) {
            const ReadField& field = table.fields[i];
            if (!words[i].empty()) {
                add_field(out, table.name, field,
                          fmt::format("The field {} of {}, summed since this exporter first saw the runtime",
                                      field.name, plural_of(table.name)),
                          labels, words[i], names.cycles_per_second());
            }
        }
    }
}

void Metrics::add_users(Exposition& out, const Names& names, const ReadTable& table, GroupSums& sums) const {
    constexpr std::string_view kUser = "user";
    const auto of_user = [&](const ReadRow& row) { return names.labels_of(table, row, {"uid"}); };
    sums.take(table, of_user);
    std::map<Labels, std::vector<std::uint64_t>> gauges;
    std::map<Labels, std::uint64_t> processes;
    for (const auto& [labels, words] : sums.sums()) {
        gauges[labels].resize(table.fields.size());  // a user without processes has nothing
        processes[labels] = 0;
        for (std::size_t i = 1; i < std::min(table.fields.size(), words.size()); ++i) {
            if (!words[i].empty()) {
                add_field(out, kUser, table.fields[i],
                          fmt::format("The field {} of the user's processes, summed since this exporter first saw the "
                                      "runtime",
                                      table.fields[i].name),
                          labels, words[i], names.cycles_per_second());
            }
        }
    }
    for (const ReadRow& row : table.rows) {
        const Labels labels = of_user(row);
        const auto its = gauges.find(labels);
        if (its == gauges.end()) {
            continue;
        }
        ++processes[labels];
        for (std::size_t i = 1; i < table.fields.size(); ++i) {
            its->second[i] += row.words[i].empty() ? 0 : row.words[i][0];
        }
    }
    for (const auto& [labels, words] : gauges) {
        out.add_gauge("pollcore_user_processes", "Attached processes of the user", labels, processes[labels]);
        for (std::size_t i = 1; i < table.fields.size(); ++i) {
            if (table.fields[i].kind == Kind::gauge && !names_something(table.fields[i])) {
                add_field(out, kUser, table.fields[i],
                          fmt::format("The field {} of the user's processes, summed", table.fields[i].name), labels,
                          {words[i]}, names.cycles_per_second());
            }
        }
    }
}

void Metrics::add_busy(Exposition& out, const Names& names, const ReadTable& table, Runtime& runtime) const {
    const auto its_own = table.field("busy");
    if (names.cycles_per_second() == 0 || (its_own && table.fields[*its_own].kind == Kind::counter)) {
        return;
    }
    std::set<std::uint64_t> there;
    for (const ReadRow& row : table.rows) {
        if (there.size() == kWorkersMax) {
            break;
        }
        there.insert(Names::id_of(row));
        std::uint64_t idle = 0;
        for (std::size_t i = 0; i < table.fields.size(); ++i) {
            const ReadField& field = table.fields[i];
            if (field.name.starts_with("idle_") && field.kind == Kind::counter && field.unit == Unit::cycles &&
                !row.words[i].empty()) {
                idle += row.words[i][0];
            }
        }
        const auto [at, is_new] = runtime.busy.try_emplace(Names::id_of(row));
        Busy& busy = at->second;
        if (is_new) {
            busy = {.updated = runtime.updated, .idle = idle};
        }
        // The idle time may be a little newer than `updated`. A counter must not decrease even then.
        const double passed = static_cast<double>(runtime.updated - busy.updated) / kNanosecondsPerSecond;
        const double idled = (static_cast<double>(idle) - static_cast<double>(busy.idle)) /
                             static_cast<double>(names.cycles_per_second());
        busy.seconds = std::max(busy.seconds, passed - std::max(idled, 0.0));
        out.add_counter("pollcore_worker_busy_seconds",
                        "Time in which the worker had work, since this exporter first saw the runtime",
                        names.labels_of(table, row), busy.seconds);
    }
    std::erase_if(runtime.busy, [&](const auto& entry) { return !there.contains(entry.first); });
}

void Metrics::add(Exposition& out, const std::string& segment, std::uint32_t owner, const Snapshot& snapshot,
                  std::uint64_t now, std::size_t samples_max) {
    const statistics::Header& header = snapshot.header;
    const std::string name(header.name.data(), ::strnlen(header.name.data(), header.name.size()));
    out.begin_source({{"runtime", name}, {"segment", segment}}, samples_max);
    out.add_gauge("pollcore_up", "Whether the runtime is alive, and its segment can be read", {},
                  std::uint64_t{snapshot.alive});
    if (!snapshot.alive) {
        return;
    }
    Runtime& runtime = runtimes_[segment];
    if (runtime.began != header.began) {
        runtime = {.began = header.began};
    }
    runtime.added = true;
    runtime.updated = std::max(runtime.updated, header.updated);
    out.add_gauge("pollcore_start_time_seconds", "When the runtime started, in seconds since 1970", {},
                  static_cast<double>(header.began) / kNanosecondsPerSecond);
    out.add_counter("pollcore_updates", "How often the runtime wrote its figures", {}, header.updates);
    out.add_gauge("pollcore_update_age_seconds", "How old the figures are; they get old if the control thread hangs",
                  {}, now > header.updated ? static_cast<double>(now - header.updated) / kNanosecondsPerSecond : 0.0);
    const Names names(snapshot);
    for (const ReadTable& table : snapshot.tables) {
        if (table.fields.empty()) {
            continue;
        }
        const bool in_rows = table.name == "worker" || table.name == "device" || table.name == "process" ||
                             (table.name == "session" && options_.per_session) ||
                             (table.name == "queue_pair" && options_.per_queue_pair);
        if (table.name == "runtime" && !table.rows.empty()) {
            add_row(out, names, table, table.rows.front(),
                    {{"pid", std::to_string(header.pid)}, {"uid", std::to_string(owner)}});
        } else if (in_rows) {
            for (const ReadRow& row : table.rows) {
                add_row(out, names, table, row, {});
            }
        } else if (table.name == "session" || table.name == "queue_pair") {
            add_sums(out, names, table, runtime.sums[table.name]);
        }
        if (table.name == "worker") {
            add_busy(out, names, table, runtime);
        } else if (table.name == "process") {
            add_users(out, names, table, runtime.sums[table.name]);
        }
    }
}

void Metrics::forget_others() {
    std::erase_if(runtimes_, [](const auto& each) { return !each.second.added; });
    for (auto& [segment, runtime] : runtimes_) {
        runtime.added = false;
    }
}

}  // namespace pollcore::stat
