#include "goals.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <functional>

namespace pollcore::bench {
namespace {

constexpr const char* kTwoLines = "limit: two lines";
constexpr const char* kSameTwoLines = "limit: two lines, the same ones again";

using Samples = std::vector<double>;

class Board {
public:
    explicit Board(const std::vector<Measurement>& measurements) : measurements_(measurements) {}

    /// Null when it was not measured.
    [[nodiscard]] const Samples* find(const std::string& table, const std::string& row, const std::string& column) const {
        for (const Measurement& one : measurements_) {
            const auto at = std::find(one.columns.begin(), one.columns.end(), column);
            if (one.table.starts_with(table) && one.row == row && at != one.columns.end()) {
                return &one.samples[static_cast<std::size_t>(at - one.columns.begin())];
            }
        }
        return nullptr;
    }
    /// Of each repetition, of all rows that are rings of others, the largest.
    [[nodiscard]] Samples best_peer(const std::string& table, const std::string& column) const {
        Samples best;
        for (const Measurement& one : measurements_) {
            if (one.table.starts_with(table) && one.row != "pollcore" && !one.row.starts_with("limit")) {
                const Samples& samples = *find(table, one.row, column);
                best.resize(samples.size());
                std::transform(samples.begin(), samples.end(), best.begin(), best.begin(), [](double a, double b) { return std::max(a, b); });
            }
        }
        return best;
    }

private:
    const std::vector<Measurement>& measurements_;
};

Samples combine(const Samples& a, const Samples& b, const std::function<double(double, double)>& how) {
    Samples result;
    std::transform(a.begin(), a.end(), b.begin(), std::back_inserter(result), how);
    return result;
}
Samples ratio(const Samples& a, const Samples& b) { return combine(a, b, std::divides<>()); }
Samples difference(const Samples& a, const Samples& b) { return combine(a, b, std::minus<>()); }

}  // namespace

std::vector<Goal> make_goals(const std::vector<Measurement>& measurements) {
    const Board board(measurements);
    std::vector<Goal> goals;
    std::vector<std::string> tables;  // of the goals that are added next
    const auto add = [&](std::string text, bool at_least, double bound, Samples reached) {
        goals.push_back({std::move(text), at_least, bound, std::move(reached), tables});
    };

    const std::string lines = "ring, 64 B";
    if (board.find(lines, "pollcore", "4096, one") != nullptr) {
        tables = {lines};
        const auto ours = [&](const char* column) { return *board.find(lines, "pollcore", column); };
        const auto limit = [&](const char* column) { return *board.find(lines, "limit: stream", column); };
        add("ring, 64 B, by 32, 4096 slots / stream limit", true, 0.93, ratio(ours("4096, by 32"), limit("4096, by 32")));
        add("… / best other ring", true, 1.05, ratio(ours("4096, by 32"), board.best_peer(lines, "4096, by 32")));
        add("ring, 64 B, one at a time, 4096 slots / stream limit", true, 0.90, ratio(ours("4096, one"), limit("4096, one")));
        add("… / best other ring", true, 1.0, ratio(ours("4096, one"), board.best_peer(lines, "4096, one")));
        add("ring, 64 B, by 32, 1024 slots / best other ring", true, 1.3, ratio(ours("1024, by 32"), board.best_peer(lines, "1024, by 32")));
        add("ring, 64 B, one at a time, 1024 slots / best other ring", true, 1.3, ratio(ours("1024, one"), board.best_peer(lines, "1024, one")));
    }
    const std::string trips = "round trip";
    const auto trip = [&](const char* row, const char* column = "median") { return *board.find(trips, row, column); };
    const bool tripped = board.find(trips, kTwoLines, "median") != nullptr;
    if (tripped) {
        tables = {trips};
        add("ring, round trip / two lines, others each time", false, 1.05, ratio(trip("pollcore"), trip(kTwoLines)));
        add("… / the same two lines again", false, 1.05, ratio(trip("pollcore"), trip(kSameTwoLines)));
        add("… p99 / the limit's p99", false, 1.10, ratio(trip("pollcore", "p99"), trip(kTwoLines, "p99")));
    }
    if (const Samples* hop = board.find("hop", "pollcore", "median"); hop != nullptr && tripped) {
        tables = {"hop", trips};
        add("hop, one in flight / two lines, others each time", false, 1.25, ratio(*hop, trip(kTwoLines)));
        add("… / the same two lines again", false, 1.25, ratio(*hop, trip(kSameTwoLines)));
    }
    if (const Samples* both = board.find("512 in flight", "submitted in bursts of 32", "application: both"); both != nullptr) {
        tables = {"512 in flight"};
        add("application's thread, submit and poll, bursts of 32, cycles per operation", false, 40, *both);
    }
    const std::string loads = "cycles per operation on one CPU, by load";
    if (board.find(loads, "bursts of 32", "worker") != nullptr) {
        tables = {loads};
        const auto cycles = [&](const char* row) { return *board.find(loads, row, "worker"); };
        const char* const with_idle = "bursts of 32, four idle sessions, two idle CQs";
        add("worker, bursts of 32, four idle sessions, two idle CQs, cycles per operation", false, 70, cycles(with_idle));
        add("… stretch", false, 50, cycles(with_idle));
        add("1024 QPs at random against one, more cycles per operation", false, 25, difference(cycles("1024 QPs at random"), cycles("bursts of 32")));
        add("64 sessions by turns against one, more cycles per operation", false, 25, difference(cycles("64 sessions by turns"), cycles("bursts of 32")));
    }
    const std::string flow = "64-byte messages";
    if (board.find(flow, "pollcore", "M/s, credits") != nullptr) {
        tables = {flow};
        const auto messages = [&](const char* column) { return *board.find(flow, "pollcore", column); };
        add("throughput with credits / without", true, 0.90, ratio(messages("M/s, credits"), messages("M/s, no flow control")));
        add("throughput with credits, beside requests that wait / alone", true, 0.95,
            ratio(messages("M/s, credits, beside 60 requests that wait"), messages("M/s, credits")));
        add("latency without credits / with", true, 0.90, ratio(messages("ns, no flow control"), messages("ns, credits")));
        add("latency of send and receive / of a write ring", true, 0.95, ratio(messages("ns, no flow control"), messages("ns, write ring")));
    }
    const std::string beside = "the worker's steps beside";
    if (const Samples* innocent = board.find(beside, "innocent", "cycles"); innocent != nullptr) {
        tables = {beside};
        for (const char* manners : {"garbage", "nearly-right", "flipped"}) {
            add(fmt::format("worker's cycles per request, beside a process with {} slots / beside an innocent one", manners), false, 1.05,
                ratio(*board.find(beside, manners, "cycles"), *innocent));
        }
    }
    return goals;
}

std::vector<Noise> restlessness(const std::vector<Measurement>& measurements) {
    constexpr double kMost = 1.5;
    std::vector<Noise> lines;
    for (const Measurement& one : measurements) {
        if (!one.row.starts_with("limit")) {
            continue;
        }
        for (std::size_t i = 0; i < one.columns.size(); ++i) {
            const auto [least, most] = std::minmax_element(one.samples[i].begin(), one.samples[i].end());
            if (*most > kMost * *least) {
                lines.push_back({fmt::format("{}, {}, {} lay between {:.0f} and {:.0f} (are the CPUs moved about?)", one.table, one.row,
                                             one.columns[i], *least, *most),
                                 one.table});
            }
        }
    }
    return lines;
}

}  // namespace pollcore::bench
