// How far device, core and memory are from each other, and the cores among themselves.
//
// Sources: Documentation/ABI/stable/sysfs-devices-node, ABI/testing/sysfs-devices-system-cpu (cache),
// ABI/testing/sysfs-bus-pci (numa_node), Documentation/admin-guide/sysctl/kernel.rst (numa_balancing).
#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "check_groups.hpp"
#include "config/cpus.hpp"

namespace pollcore::doctor {
namespace {

constexpr const char* kNodes = "/sys/devices/system/node";

/// The number of a name such as "node3".
std::optional<std::uint32_t> node_number(const std::string& name) {
    constexpr std::string_view kPrefix = "node";
    if (!name.starts_with(kPrefix) || name.find_first_not_of("0123456789", kPrefix.size()) != name.npos ||
        name.size() == kPrefix.size() || name.size() > 9) {
        return std::nullopt;
    }
    return static_cast<std::uint32_t>(std::stoul(name.substr(kPrefix.size())));
}

std::set<std::uint32_t> nodes(const Tree& tree) {
    std::set<std::uint32_t> all;
    for (const std::string& name : tree.list(kNodes)) {
        if (const auto number = node_number(name)) {
            all.insert(*number);
        }
    }
    return all;
}

std::string node_file(std::uint32_t node, const char* leaf) {
    return fmt::format("{}/node{}/{}", kNodes, node, leaf);
}

std::optional<std::uint32_t> node_of(const Tree& tree, std::uint32_t core) {
    for (const std::uint32_t node : nodes(tree)) {
        if (const auto cpus = cpus_in(tree, node_file(node, "cpulist")); cpus && cpus->contains(core)) {
            return node;
        }
    }
    return std::nullopt;
}

/// The distance of node `to` in node `from`'s list, whose own distance is 10 (ACPI's SLIT).
std::optional<int> distance(const Tree& tree, std::uint32_t from, std::uint32_t to) {
    std::istringstream words(tree.read(node_file(from, "distance")).text);
    int value = 0;
    for (const std::uint32_t node : nodes(tree)) {
        if (!(words >> value)) {
            return std::nullopt;
        }
        if (node == to) {
            return value;
        }
    }
    return std::nullopt;
}

std::vector<Finding> numa_device(const Facts& facts) {
    std::vector<Finding> found;
    for (const JudgedDevice& device : facts.devices()) {
        const std::string file = device.directory() + "/device/numa_node";
        const auto node = facts.now().number(file);
        for (const JudgedWorker& worker : facts.workers()) {
            const About about{.worker = worker.name, .core = worker.core, .device = device.shown};
            const auto own = node_of(facts.now(), worker.core);
            if (!node || !own) {
                found.push_back(not_judged(about, facts.now().why_not(node ? node_file(0, "cpulist") : file), file));
            } else if (nodes(facts.now()).size() == 1) {
                found.push_back({.about = about, .seen = "this host has one NUMA node", .source = kNodes});
            } else if (*node < 0) {
                found.push_back(not_judged(about, "the firmware does not say on which NUMA node the device is", file));
            } else if (static_cast<std::uint32_t>(*node) == *own) {
                found.push_back({.about = about, .seen = fmt::format("both on NUMA node {}", *own), .source = file});
            } else {
                const auto far = distance(facts.now(), *own, static_cast<std::uint32_t>(*node));
                const auto near = cpus_in(facts.now(), node_file(static_cast<std::uint32_t>(*node), "cpulist"));
                found.push_back(
                    {.about = about,
                     .severity = Severity::warning,
                     .seen = fmt::format("the device is on NUMA node {:.0f}, the core on node {}{}", *node, *own,
                                         far ? fmt::format(", at distance {} (10 is the own node)", *far) : ""),
                     .source = file,
                     .cost = Cost::not_measured(
                         "each doorbell and each completion crosses the link between the sockets; not "
                         "measured here"),
                     .mend = fmt::format("give the worker a core of the device's node{}",
                                         near ? ": " + config::print_cpu_list(*near) : "")});
            }
        }
    }
    return found;
}

std::optional<double> free_hugepages(const Tree& tree, std::uint32_t node, std::string& file) {
    file = node_file(node, "hugepages/hugepages-2048kB/free_hugepages");
    return tree.number(file);
}

std::vector<Finding> numa_memory(const Facts& facts) {
    std::vector<Finding> found;
    const auto all = nodes(facts.now());
    const bool never = facts.config() != nullptr && facts.config()->memory.hugepages == MemoryConfig::Hugepages::never;
    for (const JudgedWorker& worker : facts.workers()) {
        const auto own = node_of(facts.now(), worker.core);
        if (!own) {
            found.push_back(not_judged(worker.about(), "no NUMA node lists the CPU", node_file(0, "cpulist")));
            continue;
        }
        if (all.size() == 1) {
            found.push_back({.about = worker.about(), .seen = "this host has one NUMA node", .source = kNodes});
            continue;
        }
        std::string file;
        const auto pages = free_hugepages(facts.now(), *own, file);
        if (never || !pages) {
            found.push_back(never ? Finding{.about = worker.about(),
                                            .seen = "memory.hugepages = \"never\": pages come from the node of the "
                                                    "thread that touches them first",
                                            .source = facts.config_file()}
                                  : not_judged(worker.about(), facts.now().why_not(file), file));
            continue;
        }
        std::string others;
        for (const std::uint32_t node : all) {
            std::string other;
            const auto there = free_hugepages(facts.now(), node, other);
            if (node != *own && there && *there > 0) {
                others += fmt::format("{}node {} has {:.0f}", others.empty() ? "" : ", ", node, *there);
            }
        }
        if (*pages > 0 || others.empty()) {
            found.push_back({.about = worker.about(),
                             .seen = fmt::format("NUMA node {} has {:.0f} free hugepages", *own, *pages),
                             .source = file});
            continue;
        }
        found.push_back(
            {.about = worker.about(),
             .severity = facts.running_on(worker.core) != nullptr ? Severity::note : Severity::warning,
             .sure = facts.running_on(worker.core) == nullptr,  // it may have taken them
             .seen = fmt::format("NUMA node {} of the core has no free hugepage, but {}", *own, others),
             .source = file,
             .cost = Cost::not_measured(
                 "rings and queues lie on another node, and each access crosses the link; not measured "
                 "here"),
             .mend = "reserve hugepages on the core's node",
             .commands = {{Command::When::now, fmt::format("echo 32 > {}", node_file(*own,
                                                                                     "hugepages/hugepages-2048kB/"
                                                                                     "nr_hugepages"))}}});
    }
    return found;
}

std::vector<Finding> numa_balancing(const Facts& facts) {
    const std::string file = "/proc/sys/kernel/numa_balancing";
    const auto value = facts.now().number(file);
    const bool one_node = nodes(facts.now()).size() <= 1;
    if (!value) {
        return {facts.now().read(file).error == ENOENT
                    ? Finding{.seen = "this kernel does not balance NUMA nodes", .source = file}
                    : not_judged({}, facts.now().why_not(file), file)};
    }
    if (*value == 0 || one_node) {
        return {{.seen = *value == 0 ? "off" : "on, without effect on a host of one node", .source = file}};
    }
    return {{.severity = Severity::warning,
             .seen = "on: the kernel unmaps pages from time to time, to see which node uses them",
             .source = file,
             .cost = Cost::not_measured(
                 "page faults in the worker and in applications (admin-guide/sysctl/kernel.rst); not "
                 "measured here"),
             .mend = "switch it off",
             .commands = {{Command::When::now, "sysctl kernel.numa_balancing=0"},
                          {Command::When::boot, "numa_balancing=disable"}}}};
}

/// The CPUs that share the last level of cache with the core, from the index with the highest level.
std::optional<std::set<std::uint32_t>> cache_mates(const Tree& tree, std::uint32_t core, std::string& file,
                                                   int& level) {
    const std::string directory = fmt::format("/sys/devices/system/cpu/cpu{}/cache", core);
    level = 0;
    for (const std::string& index : tree.list(directory)) {
        const auto its = tree.number(directory + "/" + index + "/level");
        if (its && *its > level) {
            level = static_cast<int>(*its);
            file = directory + "/" + index + "/shared_cpu_list";
        }
    }
    if (level == 0) {
        file = directory + "/index3/shared_cpu_list";
        return std::nullopt;
    }
    return cpus_in(tree, file);
}

std::vector<Finding> shared_cache(const Facts& facts) {
    std::map<std::string, std::set<std::uint32_t>> groups;  // by the CPUs that share the cache
    std::string file;
    int level = 0;
    for (const JudgedWorker& worker : facts.workers()) {
        const auto mates = cache_mates(facts.now(), worker.core, file, level);
        if (!mates) {
            return {not_judged({}, facts.now().why_not(file) + ", so nothing says which cores share a cache", file)};
        }
        groups[config::print_cpu_list(*mates)].insert(worker.core);
    }
    if (groups.empty()) {
        return {};
    }
    std::string text;
    for (const auto& [mates, cores] : groups) {
        text += fmt::format("{}workers' CPUs {} share it with {}", text.empty() ? "" : "; ",
                            config::print_cpu_list(cores), mates);
    }
    return {{.severity = groups.size() > 1 ? Severity::note : Severity::ok,
             .seen = fmt::format("L{} cache: {}", level, text),
             .source = "/sys/devices/system/cpu/cpu*/cache/index*/shared_cpu_list",
             .cost = Cost::not_measured(groups.size() > 1 ? "see round-trips" : ""),
             .mend = groups.size() > 1 ? "run the threads of an application on CPUs that share the cache with their "
                                         "worker"
                                       : ""}};
}

std::vector<Finding> round_trips(const Facts& facts) {
    constexpr std::size_t kPairsShown = 8;
    const auto pairs = round_trip_pairs(facts);
    std::string text;
    std::size_t measured = 0;
    std::string why = "this run measured nothing";
    double least = 0;
    double most = 0;
    for (const auto& [a, b] : pairs) {
        const std::string file = round_trip_file(a, b);
        const auto ns = asked_number(facts.now(), file, "typical_ns");
        if (!ns) {
            why = asked_text(facts.now(), file, "not_measured").value_or(why);
            continue;
        }
        least = measured == 0 ? *ns : std::min(least, *ns);
        most = std::max(most, *ns);
        ++measured;
        if (measured <= kPairsShown) {
            text += fmt::format("{}{}-{} {:.0f} ns", text.empty() ? "" : ", ", a, b, *ns);
        }
    }
    const std::string source = "two threads that take turns to write a cache line each";
    if (facts.core_set().size() > kRoundTripCpusMax) {
        return {not_judged({}, fmt::format("not measured: these are more than {} CPUs", kRoundTripCpusMax), source)};
    }
    if (pairs.empty()) {
        return {{.seen = "fewer than two cores: there is nothing between them", .source = source}};
    }
    if (measured == 0) {
        return {not_judged({}, "not measured: " + why, source)};
    }
    if (measured > kPairsShown) {
        text = fmt::format("{} pairs of CPUs, from {:.0f} to {:.0f} ns", measured, least, most);
    }
    return {{.severity = most > 2 * least ? Severity::note : Severity::ok,
             .seen = text + (measured < pairs.size()
                                 ? fmt::format("; {} pairs were not measured: {}", pairs.size() - measured, why)
                                 : ""),
             .source = source,
             .cost = Cost::measured(
                 fmt::format("an operation of another core's thread takes a round trip, {:.0f} ns and more", least)),
             .mend = most > 2 * least ? "put threads that work together on cores with short round trips" : ""}};
}

constexpr Check kNumaChecks[] = {
    {"numa-device", "whether device and core are on one NUMA node", &numa_device, "there is no verbs device"},
    {"numa-memory", "whether the core's NUMA node has hugepages", &numa_memory, "there is no worker"},
    {"numa-balancing", "whether the kernel moves pages between NUMA nodes", &numa_balancing},
    {"shared-cache", "which cores share the last level of cache", &shared_cache, "there is no worker"},
    {"round-trips", "how long a cache line takes from core to core and back", &round_trips},
};

}  // namespace

std::span<const Check> numa_checks() noexcept {
    return kNumaChecks;
}

}  // namespace pollcore::doctor
