#include "findings_text.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "config/cpus.hpp"
#include "manual/manual.hpp"

namespace pollcore::doctor {
namespace {

constexpr std::size_t kColumns = 120;
constexpr std::size_t kSeverityColumns = 9;
constexpr std::size_t kIdColumns = 23;
constexpr std::size_t kAboutColumns = 20;
constexpr std::size_t kIndent = kSeverityColumns + kIdColumns + kAboutColumns;

/// A finding, and all that it is about: the same was seen of several cores.
struct Row {
    const Finding* finding = nullptr;
    std::vector<About> about;
};

std::vector<Row> rows_of(const std::vector<Finding>& findings) {
    std::vector<Row> rows;
    for (const Finding& finding : findings) {
        const auto same = std::find_if(rows.begin(), rows.end(), [&](const Row& row) {
            return row.finding->id == finding.id && row.finding->severity == finding.severity &&
                   row.finding->seen == finding.seen && row.finding->judged == finding.judged;
        });
        if (same != rows.end()) {
            same->about.push_back(finding.about);
        } else {
            rows.push_back({&finding, {finding.about}});
        }
    }
    std::stable_sort(rows.begin(), rows.end(),
                     [](const Row& a, const Row& b) { return a.finding->severity > b.finding->severity; });
    return rows;
}

std::string about_text(const std::vector<About>& all) {
    std::set<std::uint32_t> cores;
    for (const About& about : all) {
        if (!about.worker.empty() || !about.device.empty() || !about.core) {
            std::string text;
            for (const About& each : all) {
                text += (text.empty() ? "" : "; ") + text_of(each);
            }
            return text;
        }
        cores.insert(*about.core);
    }
    return "CPU " + config::print_cpu_list(cores);
}

/// The text without characters that could move a terminal's cursor. It may come from a file that says anything.
std::string clean(std::string text) {
    std::replace_if(
        text.begin(), text.end(), [](unsigned char c) { return c < 0x20 || c >= 0x7f; }, '?');
    return text;
}

/// Breaks words that are longer than a line, such as lists of interrupts.
std::string breakable(const std::string& text, std::size_t columns) {
    std::string result;
    std::size_t word = 0;
    for (const char c : clean(text)) {
        word = c == ' ' ? 0 : word + 1;
        if (word > columns) {
            result += ' ';
            word = 1;
        }
        result += c;
    }
    return result;
}

std::string detail(const char* title, const std::string& text) {
    if (text.empty()) {
        return "";
    }
    const std::string line = fmt::format("{}: {}", title, breakable(text, kColumns - kIndent - 2));
    return std::string(kIndent, ' ') + manual::wrapped(line, kIndent, kIndent + 2, kColumns) + "\n";
}

std::string text_of_row(const Row& row) {
    const Finding& finding = *row.finding;
    const std::string about = about_text(row.about);
    std::string text = fmt::format("{:<{}}{:<{}}", name_of(finding.severity), kSeverityColumns, finding.id, kIdColumns);
    if (about.size() < kAboutColumns) {
        text += fmt::format("{:<{}}", about, kAboutColumns);
    } else {
        const std::size_t begin = kSeverityColumns + kIdColumns;
        text += manual::wrapped(breakable(about, kColumns - begin), begin, begin, kColumns) + "\n" +
                std::string(kIndent, ' ');
    }
    const std::string seen = finding.judged && !finding.sure ? finding.seen + " (guess)" : finding.seen;
    text += manual::wrapped(breakable(seen, kColumns - kIndent), kIndent, kIndent, kColumns) + "\n";
    if (finding.severity == Severity::ok) {
        return text;
    }
    text += detail("cost", finding.cost.text) + detail("mend", finding.mend);
    return text + detail("from", finding.source);
}

std::string judged_text(const Facts& facts) {
    if (facts.config() == nullptr) {
        return fmt::format("each CPU that this process may use ({}); there is no {}", facts.cores(),
                           facts.config_file());
    }
    return fmt::format("the workers (CPUs {}) of {}", facts.cores(), facts.config_file());
}

}  // namespace

std::string findings_text(const Facts& facts, const std::vector<Finding>& findings, bool all) {
    const std::vector<Row> rows = rows_of(findings);
    std::string text = manual::wrapped(
        fmt::format(
            "polldoctor: {}, for {}{}",
            facts.now().is_this_host() ? "this host" : "the copy in " + facts.now().root().string(), judged_text(facts),
            facts.later() != nullptr ? fmt::format("; what counts was read twice within {:.1f} s", facts.seconds())
                                     : "; nothing was read twice"),
        0, 2, kColumns);
    text += fmt::format("\n\n{:<{}}{:<{}}{:<{}}what was seen\n", "", kSeverityColumns, "finding", kIdColumns, "about",
                        kAboutColumns);
    std::set<std::string> worse;
    for (const Row& row : rows) {
        if (row.finding->severity != Severity::ok) {
            worse.insert(row.finding->id);
        }
        if (all || row.finding->severity != Severity::ok) {
            text += text_of_row(row);
        }
    }
    std::string fine;
    std::map<Severity, std::size_t> count;
    std::set<std::string> ids;
    for (const Row& row : rows) {
        count[row.finding->severity] += row.about.size();
        if (!worse.contains(row.finding->id) && ids.insert(row.finding->id).second) {
            fine += " " + row.finding->id;
        }
    }
    if (!all && !fine.empty()) {
        text += fmt::format("{:<{}}{}\n", "ok", kSeverityColumns,
                            manual::wrapped(fine.substr(1), kSeverityColumns, kSeverityColumns, kColumns));
    }
    if (const std::string matrix = round_trip_matrix(facts); !matrix.empty()) {
        text += "\nround trips of a cache line between CPUs, in ns:\n" + matrix;
    }
    return text + fmt::format("\nfaults: {}, warnings: {}, notes: {}, ok: {}\n", count[Severity::fault],
                              count[Severity::warning], count[Severity::note], count[Severity::ok]);
}

std::string round_trip_matrix(const Facts& facts) {
    std::map<std::pair<std::uint32_t, std::uint32_t>, double> measured;
    for (const auto& [a, b] : round_trip_pairs(facts)) {
        if (const auto ns = asked_number(facts.now(), round_trip_file(a, b), "typical_ns")) {
            measured[{a, b}] = measured[{b, a}] = *ns;
        }
    }
    if (measured.empty()) {
        return "";
    }
    const std::set<std::uint32_t> cores = facts.core_set();
    std::string text = fmt::format("{:>6}", "");
    for (const std::uint32_t core : cores) {
        text += fmt::format("{:>6}", core);
    }
    for (const std::uint32_t a : cores) {
        text += fmt::format("\n{:>6}", a);
        for (const std::uint32_t b : cores) {
            const auto ns = measured.find({a, b});
            text += ns != measured.end() ? fmt::format("{:>6.0f}", ns->second) : fmt::format("{:>6}", "-");
        }
    }
    return text + "\n";
}

}  // namespace pollcore::doctor
