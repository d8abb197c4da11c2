#include "redaction.hpp"

#include <algorithm>
#include <iterator>
#include <sstream>
#include <utility>
#include <vector>

namespace pollcore::doctor {
namespace {

// Whole names, or their begins if they end with '.'.
constexpr std::string_view kShown[] = {
    "acpi_osi",
    "amd_iommu",
    "amd_pstate",
    "clocksource",
    "cpufreq.",
    "cpuidle.",
    "default_hugepagesz",
    "hugepages",
    "hugepagesz",
    "idle",
    "intel_idle.",
    "intel_iommu",
    "intel_pstate",
    "iommu",
    "iommu.passthrough",
    "irqaffinity",
    "isolcpus",
    "kthread_cpus",
    "maxcpus",
    "mitigations",
    "nmi_watchdog",
    "nohz",
    "nohz_full",
    "nosmt",
    "nosoftlockup",
    "nowatchdog",
    "nr_cpus",
    "numa_balancing",
    "pci",
    "pcie_aspm",
    "pcie_aspm.",
    "preempt",
    "processor.",
    "pti",
    "rcu_nocb_poll",
    "rcu_nocbs",
    "rcupdate.",
    "rcutree.",
    "skew_tick",
    "spectre_v2",
    "transparent_hugepage",
    "tsc",
};

bool may_be_shown(std::string_view name) {
    return std::any_of(std::begin(kShown), std::end(kShown), [&](std::string_view shown) {
        return shown.ends_with('.') ? name.starts_with(shown) : name == shown;
    });
}

}  // namespace

// TOML 1.0: a comment begins with '#' outside of strings. Strings are "basic" with escapes, 'literal' without, and both
// have forms of several lines in three quotes.
std::string without_comments(std::string_view toml) {
    std::string result;
    std::string_view quote;  // what ends the string in which `at` is
    for (std::size_t at = 0; at < toml.size();) {
        const std::string_view rest = toml.substr(at);
        if (!quote.empty()) {
            if (quote.front() == '"' && rest.front() == '\\' && rest.size() > 1) {
                result += rest.substr(0, 2);
                at += 2;
                continue;
            }
            // A string of one line ends with its line, also if somebody forgot its quote: pollcored refuses that.
            const bool ends = rest.starts_with(quote) || (quote.size() == 1 && rest.front() == '\n');
            const std::size_t taken = ends && rest.front() != '\n' ? quote.size() : 1;
            result += rest.substr(0, taken);
            at += taken;
            if (ends) {
                quote = {};
            }
        } else if (rest.front() == '#') {
            at += std::min(rest.find('\n'), rest.size());
        } else {
            for (const std::string_view begin : {"\"\"\"", "'''", "\"", "'"}) {
                if (rest.starts_with(begin)) {
                    quote = begin;
                    break;
                }
            }
            const std::size_t taken = std::max<std::size_t>(quote.size(), 1);
            result += rest.substr(0, taken);
            at += taken;
        }
    }
    return result;
}

namespace {

/// Between double quotes, blanks belong to a word, as for next_arg() of the kernel.
std::vector<std::string> words_of_kernel(std::string_view line) {
    std::vector<std::string> words;
    std::string word;
    bool quoted = false;
    for (const char c : line) {
        quoted ^= c == '"';
        if (quoted || (c != ' ' && c != '\t' && c != '\n')) {
            word += c;
        } else if (!word.empty()) {
            words.push_back(std::exchange(word, {}));
        }
    }
    if (!word.empty()) {
        words.push_back(std::move(word));
    }
    return words;
}

}  // namespace

std::string kernel_parameters_shown(std::string_view command_line) {
    std::string result;
    for (const std::string& word : words_of_kernel(command_line)) {
        result += result.empty() ? "" : " ";
        if (word == "--") {  // what follows is for init
            return result + "-- ...\n";
        }
        const std::size_t equals = word.find('=');
        result +=
            equals == word.npos || may_be_shown(word.substr(0, equals)) ? word : word.substr(0, equals + 1) + "...";
    }
    return result + "\n";
}

std::string without_command_line(std::string_view kernel_log) {
    std::istringstream lines{std::string(kernel_log)};
    std::string result;
    for (std::string line; std::getline(lines, line);) {
        result += line.find("ommand line") == line.npos ? line : "(a line about the kernel's command line is left out)";
        result += '\n';
    }
    return result;
}

}  // namespace pollcore::doctor
