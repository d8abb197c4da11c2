#include "cpu_choice.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "config/cpus.hpp"
#include "option_values.hpp"

namespace pollcore::perf {
namespace {

void demand_allowed(std::uint32_t cpu, const std::set<std::uint32_t>& allowed, const char* option) {
    if (!allowed.contains(cpu)) {
        throw UsageError(fmt::format("{} {}: this process may not run on that CPU; it may run on {}", option, cpu,
                                     config::print_cpu_list(allowed)));
    }
}

/// `cpus`, those that are in `bound` before the others.
std::vector<std::uint32_t> bound_first(std::vector<std::uint32_t> cpus, const std::set<std::uint32_t>& bound) {
    std::stable_partition(cpus.begin(), cpus.end(), [&](std::uint32_t cpu) { return bound.contains(cpu); });
    return cpus;
}

}  // namespace

Placement place(const PlacementWish& wish) {
    if (wish.takes_turns && wish.allowed.size() == 1) {
        const std::uint32_t only = *wish.allowed.begin();
        for (const auto& [cpu, option] :
             {std::pair(wish.core, "--core"), std::pair(wish.worker_core, "--worker-core")}) {
            if (cpu) {
                demand_allowed(*cpu, wish.allowed, option);
            }
        }
        return {only, only};
    }
    const auto is_workers = [&](std::uint32_t cpu) {
        return std::find(wish.workers.begin(), wish.workers.end(), cpu) != wish.workers.end();
    };
    if (wish.core) {
        demand_allowed(*wish.core, wish.allowed, "--core");
        if (wish.needs_worker && is_workers(*wish.core)) {
            throw UsageError(
                fmt::format("--core {}: a worker of the configuration has that CPU; thread and worker would "
                            "block each other",
                            *wish.core));
        }
    }
    if (wish.worker_core) {
        demand_allowed(*wish.worker_core, wish.allowed, "--worker-core");
        if (wish.core == wish.worker_core) {
            throw UsageError(
                fmt::format("--core and --worker-core are both {}: the application's thread and the "
                            "worker both spin, each on a CPU of its own",
                            *wish.core));
        }
    }
    // The allowed CPUs, in the order in which this role takes them.
    std::vector<std::uint32_t> order(wish.allowed.begin(), wish.allowed.end());
    if (wish.role == Role::server) {
        std::reverse(order.begin(), order.end());
    }
    order = bound_first(std::move(order), wish.bound);
    const auto first_except = [&](auto&& taken) -> std::optional<std::uint32_t> {
        const auto at = std::find_if_not(order.begin(), order.end(), taken);
        return at == order.end() ? std::nullopt : std::optional(*at);
    };

    std::optional<std::uint32_t> core = wish.core;
    if (!core) {
        core = first_except([&](std::uint32_t cpu) { return is_workers(cpu) || cpu == wish.worker_core; });
    }
    if (!core && wish.needs_worker) {
        throw UsageError(fmt::format(
            "no CPU is left for the application's thread: this process may run on CPU {}, "
            "and workers have them; use --path direct, --wait yield with a worker that yields, or allow it more CPUs",
            config::print_cpu_list(wish.allowed)));
    }
    if (!core) {
        core = order.front();  // no worker runs
    }
    std::optional<std::uint32_t> worker = wish.worker_core;
    if (!worker && !wish.workers.empty()) {
        worker = wish.workers.front();
    }
    if (!worker) {
        worker = first_except([&](std::uint32_t cpu) { return cpu == *core; });
    }
    if (!worker && wish.needs_worker) {
        throw UsageError(
            fmt::format("the runtime's path needs two CPUs, one for the application's thread and one "
                        "for the worker, and this process may run on CPU {} only; use --path direct, or --wait yield",
                        config::print_cpu_list(wish.allowed)));
    }
    return {*core, worker.value_or(*core)};
}

std::vector<std::uint32_t> more_cpus(const MoreCpus& wish) {
    std::vector<std::uint32_t> cpus{wish.first};
    if (wish.named.size() > 1) {
        if (wish.named.size() != wish.wanted) {
            throw UsageError(
                fmt::format("{}: it names {} CPUs for {} {}", wish.option, wish.named.size(), wish.wanted, wish.what));
        }
        for (std::size_t i = 1; i < wish.named.size(); ++i) {
            demand_allowed(wish.named[i], wish.allowed, wish.option);
            if (!wish.may_share && (wish.taken.contains(wish.named[i]) ||
                                    std::find(cpus.begin(), cpus.end(), wish.named[i]) != cpus.end())) {
                throw UsageError(
                    fmt::format("{} {}: the CPU has another thread already, and threads that spin would "
                                "block each other",
                                wish.option, wish.named[i]));
            }
            cpus.push_back(wish.named[i]);
        }
        return cpus;
    }
    std::vector<std::uint32_t> free;
    for (const std::uint32_t cpu : bound_first({wish.allowed.begin(), wish.allowed.end()}, wish.bound)) {
        if (cpu != wish.first && !wish.taken.contains(cpu)) {
            free.push_back(cpu);
        }
    }
    if (free.empty() && wish.may_share) {
        free.push_back(wish.first);
    }
    for (std::size_t i = 0; cpus.size() < wish.wanted; ++i) {
        if (i >= free.size() && !wish.may_share) {
            throw UsageError(
                fmt::format("{} {} that spin need a CPU each, and this process has {} left for them; use "
                            "fewer, or --wait yield",
                            wish.wanted, wish.what, free.size() + 1));
        }
        cpus.push_back(free[i % free.size()]);
    }
    return cpus;
}

}  // namespace pollcore::perf
