#include "checks.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "check_groups.hpp"

namespace pollcore::doctor {

std::vector<Check> all_checks() {
    std::vector<Check> all;
    for (const auto group :
         {cpu_checks(), limit_checks(), task_checks(), interrupt_checks(), frequency_checks(), numa_checks(),
          memory_checks(), pcie_checks(), network_checks(), counter_checks(), clock_checks()}) {
        all.insert(all.end(), group.begin(), group.end());
    }
    return all;
}

std::vector<Finding> judge(const Facts& facts) {
    std::vector<Finding> all;
    for (const Check& check : all_checks()) {
        std::vector<Finding> found = check.run(facts);
        if (found.empty()) {
            found.push_back({.seen = std::string(check.nothing)});
        }
        for (Finding& finding : found) {
            finding.id = check.id;
            // Nobody knows yet which of the CPUs will be workers', so nothing is wrong with one of them.
            if (facts.config() == nullptr && finding.about.core) {
                finding.severity = std::min(finding.severity, Severity::note);
                finding.commands.clear();
            }
            all.push_back(std::move(finding));
        }
    }
    return all;
}

}  // namespace pollcore::doctor
