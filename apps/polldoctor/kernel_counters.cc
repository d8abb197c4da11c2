#include "kernel_counters.hpp"

#include <algorithm>
#include <charconv>
#include <sstream>
#include <utility>

#include <fmt/format.h>

namespace pollcore::doctor {
namespace {

std::optional<std::uint64_t> whole_number(const std::string& word) {
    std::uint64_t value = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
    return error == std::errc() && end == word.data() + word.size() ? std::optional(value) : std::nullopt;
}

}  // namespace

std::vector<CountedRow> counted_rows(const std::string& text) {
    std::istringstream lines(text);
    std::string line;
    std::getline(lines, line);
    std::vector<std::uint32_t> cpus;
    std::istringstream header(line);
    for (std::string word; header >> word;) {
        const auto cpu = word.starts_with("CPU") ? whole_number(word.substr(3)) : std::nullopt;
        if (!cpu) {
            return {};
        }
        cpus.push_back(static_cast<std::uint32_t>(*cpu));
    }
    std::vector<CountedRow> rows;
    while (std::getline(lines, line)) {
        std::istringstream words(line);
        CountedRow row;
        if (!(words >> row.label) || !row.label.ends_with(':')) {
            continue;
        }
        row.label.pop_back();
        std::string word;
        std::size_t column = 0;
        for (; column < cpus.size() && words >> word; ++column) {
            const auto count = whole_number(word);
            if (!count) {
                break;
            }
            row.by_cpu[cpus[column]] = *count;
        }
        if (column == cpus.size()) {
            while (words >> word) {
                row.what += (row.what.empty() ? "" : " ") + word;
            }
        }
        rows.push_back(std::move(row));
    }
    return rows;
}

CountedTwice::CountedTwice(const Facts& facts, const std::string& file) {
    if (facts.later() == nullptr) {
        return;
    }
    after_ = counted_rows(facts.later()->read(file).text);
    for (CountedRow& row : counted_rows(facts.now().read(file).text)) {
        std::string label = row.label;
        before_.emplace(std::move(label), std::move(row));
    }
}

std::optional<std::vector<Growth>> CountedTwice::on(std::uint32_t cpu) const {
    if (before_.empty() || after_.empty()) {
        return std::nullopt;
    }
    std::vector<Growth> grown;
    for (const CountedRow& row : after_) {
        const auto count = row.by_cpu.find(cpu);
        const auto earlier = before_.find(row.label);
        if (count == row.by_cpu.end() || earlier == before_.end()) {
            continue;
        }
        const auto was = earlier->second.by_cpu.find(cpu);
        if (was != earlier->second.by_cpu.end() && count->second > was->second) {
            grown.push_back({row.label, row.what, count->second - was->second, row.is_of_a_device()});
        }
    }
    std::sort(grown.begin(), grown.end(), [](const Growth& a, const Growth& b) { return a.count > b.count; });
    return grown;
}

Finding no_second_reading(const Facts& facts, const JudgedWorker& worker, const std::string& file) {
    return not_judged(worker.about(),
                      facts.now().read(file).ok() ? file + ": was read only once, so its growth is not known"
                                                  : facts.now().why_not(file),
                      file);
}

std::optional<RunQueue> run_queue(const Tree& tree, std::uint32_t cpu) {
    std::istringstream lines(tree.read("/proc/schedstat").text);
    const std::string key = fmt::format("cpu{}", cpu);
    double version = 0;
    for (std::string line; std::getline(lines, line);) {
        std::istringstream words(line);
        std::string name;
        words >> name;
        if (name == "version") {
            words >> version;
        } else if (name == key && version >= 15) {
            double skipped = 0;
            for (int field = 1; field <= 6; ++field) {
                words >> skipped;
            }
            RunQueue queue;
            return words >> queue.ran_ns >> queue.waited_ns >> queue.slices ? std::optional(queue) : std::nullopt;
        }
    }
    return std::nullopt;
}

std::optional<CpuTimes> cpu_times(const Tree& tree, std::optional<std::uint32_t> cpu) {
    std::istringstream lines(tree.read("/proc/stat").text);
    const std::string key = cpu ? fmt::format("cpu{}", *cpu) : "cpu";
    for (std::string line; std::getline(lines, line);) {
        std::istringstream words(line);
        std::string name;
        words >> name;
        if (name != key) {
            continue;
        }
        // user nice system idle iowait irq softirq steal; guest times, which follow, are also in user and nice.
        constexpr int kSteal = 8;
        CpuTimes times;
        for (int field = 1; field <= kSteal; ++field) {
            double ticks = 0;
            if (!(words >> ticks)) {
                return std::nullopt;
            }
            times.total += ticks;
            times.steal = ticks;
        }
        return times;
    }
    return std::nullopt;
}

std::optional<bool> has_cpu_flag(const Tree& tree, const std::string& flag) {
    std::istringstream lines(tree.read("/proc/cpuinfo").text);
    for (std::string line; std::getline(lines, line);) {
        if (line.starts_with("flags")) {
            std::istringstream words(line.substr(std::min(line.find(':') + 1, line.size())));
            for (std::string word; words >> word;) {
                if (word == flag) {
                    return true;
                }
            }
            return false;
        }
    }
    return std::nullopt;
}

}  // namespace pollcore::doctor
