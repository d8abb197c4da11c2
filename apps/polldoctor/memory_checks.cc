// The host's memory: hugepages, swap, transparent hugepages.
//
// Sources: proc_meminfo(5), proc_swaps(5), Documentation/admin-guide/mm/hugetlbpage.rst and transhuge.rst.
#include <cmath>
#include <cstdint>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "check_groups.hpp"

namespace pollcore::doctor {
namespace {

constexpr const char* kMeminfo = "/proc/meminfo";

/// The number behind "KEY:" in /proc/meminfo.
std::optional<double> memory_figure(const Tree& tree, const std::string& key) {
    std::istringstream lines(tree.read(kMeminfo).text);
    for (std::string line; std::getline(lines, line);) {
        if (line.starts_with(key + ":")) {
            double value = 0;
            std::istringstream words(line.substr(key.size() + 1));
            return words >> value ? std::optional(value) : std::nullopt;
        }
    }
    return std::nullopt;
}

struct Pages {
    double kib = 0;  ///< size of a page
    double total = 0;
    double free = 0;
};
/// The hugepages of each size, by /sys/kernel/mm/hugepages/hugepages-2048kB and so on; those of the default size by
/// /proc/meminfo if there is no such directory.
std::vector<Pages> hugepages_there(const Tree& tree) {
    const std::string directory = "/sys/kernel/mm/hugepages";
    constexpr std::string_view kPrefix = "hugepages-";
    std::vector<Pages> all;
    for (const std::string& name : tree.list(directory)) {
        Pages pages;
        const auto total = tree.number(directory + "/" + name + "/nr_hugepages");
        const auto free = tree.number(directory + "/" + name + "/free_hugepages");
        if (name.starts_with(kPrefix) && total && free &&
            std::istringstream(name.substr(kPrefix.size())) >> pages.kib && (*total > 0 || all.empty())) {
            pages.total = *total;
            pages.free = *free;
            all.push_back(pages);
        }
    }
    const auto total = memory_figure(tree, "HugePages_Total");
    const auto free = memory_figure(tree, "HugePages_Free");
    const auto kib = memory_figure(tree, "Hugepagesize");
    if (all.empty() && total && free && kib) {
        all.push_back({.kib = *kib, .total = *total, .free = *free});
    }
    return all;
}

std::vector<Finding> hugepages(const Facts& facts) {
    using Hugepages = MemoryConfig::Hugepages;
    const MemoryConfig wanted = facts.config() != nullptr ? facts.config()->memory : MemoryConfig{};
    if (wanted.hugepages == Hugepages::never) {
        return {{.seen = "memory.hugepages = \"never\"", .source = facts.config_file()}};
    }
    const auto default_kib = memory_figure(facts.now(), "Hugepagesize");
    const std::vector<Pages> sizes = hugepages_there(facts.now());
    if (sizes.empty() || !default_kib || *default_kib <= 0) {
        return {not_judged({}, facts.now().why_not(kMeminfo), kMeminfo)};
    }
    const bool runs = facts.process() != "/proc/self";
    const double needed_kib = static_cast<double>(wanted.size) / 1024;
    double there_kib = 0;
    std::string seen;
    for (const Pages& pages : sizes) {
        // A runtime that runs has taken its own already.
        there_kib += (runs ? pages.total : pages.free) * pages.kib;
        seen += fmt::format("{}{:.0f} of {:.0f} KiB ({:.0f} free)", seen.empty() ? "hugepages: " : ", ", pages.total,
                            pages.kib, pages.free);
    }
    seen += fmt::format("; memory.size takes up to {:.0f} MiB", needed_kib / 1024);
    if (there_kib >= needed_kib) {
        return {{.sure = !runs, .seen = seen, .source = kMeminfo}};
    }
    const double reserved =
        memory_figure(facts.now(), "HugePages_Total").value_or(0) + std::ceil((needed_kib - there_kib) / *default_kib);
    const bool required = wanted.hugepages == Hugepages::require;
    return {
        {.severity = required ? Severity::fault : Severity::warning,
         .sure = !runs,
         .seen = seen,
         .source = kMeminfo,
         .cost = required
                     ? Cost::stated("memory.hugepages = \"require\": pollcored does not start, or allocations fail")
                     : Cost::not_measured("ordinary pages instead: more misses of the TLB of CPU and NIC; not measured "
                                          "here"),
         .mend = "reserve hugepages, at boot if memory is fragmented later",
         .commands = {{Command::When::now, fmt::format("sysctl vm.nr_hugepages={:.0f}", reserved)},
                      {Command::When::boot, fmt::format("hugepages={:.0f}", reserved)}}}};
}

std::vector<Finding> swap(const Facts& facts) {
    const std::string file = "/proc/swaps";
    if (!facts.now().read(file).ok()) {
        return {not_judged({}, facts.now().why_not(file), file)};
    }
    std::istringstream lines(facts.now().read(file).text);
    std::string line;
    std::getline(lines, line);  // the titles
    std::string areas;
    double used = 0;
    while (std::getline(lines, line)) {
        std::istringstream words(line);
        std::string name, type;
        double size = 0;
        double its = 0;
        if (words >> name >> type >> size >> its) {
            areas += (areas.empty() ? "" : ", ") + name;
            used += its;
        }
    }
    if (areas.empty()) {
        return {{.seen = "there is none", .source = file}};
    }
    return {{.severity = used > 0 ? Severity::warning : Severity::note,
             .sure = false,
             .seen = fmt::format("{}, of which {:.0f} MiB are in use", areas, used / 1024),
             .source = file,
             .cost = Cost::not_measured(
                 "a page of an application or of the runtime may have to come back from the disk; hugepages "
                 "and registered memory stay; not measured here"),
             .mend = "switch swap off, or keep the unit's memory out of it (MemorySwapMax=0)",
             .commands = {{Command::When::now, "swapoff -a"}}}};
}

/// The chosen word of a file such as "always [madvise] never".
std::string chosen(const std::string& line) {
    const std::size_t begin = line.find('[');
    const std::size_t end = line.find(']');
    return begin != line.npos && end != line.npos && end > begin ? line.substr(begin + 1, end - begin - 1) : "";
}

std::vector<Finding> transparent_hugepages(const Facts& facts) {
    const std::string directory = "/sys/kernel/mm/transparent_hugepage";
    const std::string file = directory + "/enabled";
    const auto line = facts.now().line(file);
    const std::string word = chosen(line.value_or(""));
    if (word.empty()) {
        return {facts.now().read(file).error == ENOENT ? Finding{.seen = "this kernel has none", .source = file}
                                                       : not_judged({}, facts.now().why_not(file), file)};
    }
    const std::string defrag = chosen(facts.now().line(directory + "/defrag").value_or(""));
    const std::string seen = fmt::format("enabled: {}, defrag: {}", word, defrag.empty() ? "?" : defrag);
    if (word != "always") {
        return {{.seen = seen, .source = file}};
    }
    return {{.severity = defrag == "always" ? Severity::warning : Severity::note,
             .sure = false,
             .seen = seen,
             .source = file,
             .cost = Cost::not_measured(
                 "khugepaged moves pages of any process, and with defrag \"always\" a page fault may wait "
                 "until memory is compacted (admin-guide/mm/transhuge.rst); not measured here"),
             .mend = "give them to the programs that ask (madvise)",
             .commands = {{Command::When::now, fmt::format("echo madvise > {}", file)},
                          {Command::When::boot, "transparent_hugepage=madvise"}}}};
}

constexpr Check kMemoryChecks[] = {
    {"hugepages", "whether there are hugepages for memory.size", &hugepages},
    {"swap", "whether pages may be swapped out", &swap},
    {"transparent-hugepages", "whether the kernel moves pages for huge ones", &transparent_hugepages},
};

}  // namespace

std::span<const Check> memory_checks() noexcept {
    return kMemoryChecks;
}

}  // namespace pollcore::doctor
