#include "place_options.hpp"

#include <algorithm>
#include <cstddef>
#include <set>

#include <fmt/format.h>

#include "config/validation.hpp"
#include "cpu_choice.hpp"
#include "option_values.hpp"

namespace pollcore::perf {
namespace {

constexpr const char* kOwnWorker = "pollperf";

IdleLadder worker_idle(const TestArguments& arguments, const config::Cpus& cpus) {
    if (!arguments.idle.empty()) {
        return parse_idle("--idle", arguments.idle);
    }
    return parse_idle("--wait", how_to_wait(arguments, cpus));
}

}  // namespace

DeviceConfig device_named(const std::string& name) {
    DeviceConfig device{.name = name};
    if (!name.starts_with(kSoftwarePrefix)) {
        device.kind = DeviceConfig::Kind::verbs;
        device.verbs_name = name;
    }
    return device;
}

std::string how_to_wait(const TestArguments& arguments, const config::Cpus& cpus) {
    return !arguments.wait.empty() ? arguments.wait : cpus.one_for_all() ? "yield" : "spin";
}

void resolve_device(const TestArguments& arguments, const config::Cpus& cpus, PlaceOptions& options) {
    if (arguments.config.empty()) {
        if (arguments.device.empty()) {
            throw UsageError(
                "say what to measure: --config FILE, or --device NAME (soft0, or as ibv_devices(1) "
                "prints it)");
        }
        options.config.devices = {device_named(arguments.device)};
        options.config.log_level = LogLevel::warning;
    } else {
        refuse_if(!arguments.worker_core.empty(), "--worker-core", "the configuration says where workers run");
        refuse_if(!arguments.idle.empty(), "--idle", "the configuration says how workers wait");
        refuse_if(!arguments.wait.empty() && arguments.wait != "spin" && arguments.wait != "yield" &&
                      arguments.wait != "event",
                  "--wait",
                  "the configuration says how workers wait; the application's thread has spin, yield and event");
        options.config = config::load(arguments.config, cpus);
        auto& devices = options.config.devices;
        const auto chosen = std::find_if(devices.begin(), devices.end(), [&](const DeviceConfig& device) {
            return arguments.device.empty() || device.name == arguments.device;
        });
        if (chosen == devices.end()) {
            throw UsageError(fmt::format("{} has no device '{}'", arguments.config.string(), arguments.device));
        }
        devices = {DeviceConfig(*chosen)};
        options.config.services.clear();  // only pollcored runs services
        if (options.config.log_level == LogLevel::info) {
            options.config.log_level = LogLevel::warning;  // the report has the information
        }
    }
    options.config.share_cores = options.config.share_cores || arguments.share_core;
    options.device = options.config.devices.front().name;
    options.attach = arguments.attach.string();
    const std::string wait = how_to_wait(arguments, cpus);
    options.wait = wait == "event" ? Waiting::sleep : wait == "yield" ? Waiting::yield : Waiting::spin;
    options.timeout = parse_time("--timeout", arguments.timeout);
    if (arguments.inline_size) {
        options.inline_size = in_range<std::uint32_t>("--inline_size", *arguments.inline_size, 0, kInlineMax);
    }
    if (arguments.gid_index) {
        refuse_if(options.software(), "--gid-index", "a software device has one GID");
        refuse_if(!arguments.config.empty(), "--gid-index", "the device's `gid` in the configuration chooses it");
        options.gid_index = in_range<std::uint32_t>("--gid-index", *arguments.gid_index, 0, 255);
    }
}

void resolve_cores(const TestArguments& arguments, const config::Cpus& cpus, Role role, bool needs_worker, bool sleeps,
                   std::uint32_t threads, std::uint32_t workers, PlaceOptions& options) {
    PlacementWish wish{
        .role = role,
        .needs_worker = needs_worker,
        .takes_turns = sleeps || options.wait != Waiting::spin,
        .allowed = cpus.allowed,
        .bound = cpus.bound,
        .core = arguments.core.empty() ? std::nullopt : std::optional(arguments.core.front()),
        .worker_core = arguments.worker_core.empty() ? std::nullopt : std::optional(arguments.worker_core.front())};
    for (const WorkerConfig& worker : options.config.workers) {
        wish.workers.push_back(worker.core);
    }
    if (needs_worker && !arguments.config.empty() && wish.workers.empty()) {
        throw UsageError(
            fmt::format("{} has no worker; paths runtime and attached need one", arguments.config.string()));
    }
    const Placement placement = place(wish);
    options.worker_core = placement.worker;
    std::set<std::uint32_t> taken(wish.workers.begin(), wish.workers.end());
    std::vector<std::uint32_t> worker_cores{placement.worker};
    if (needs_worker) {
        taken.insert(placement.worker);
        if (options.config.workers.empty()) {
            worker_cores = more_cpus({.first = placement.worker,
                                      .wanted = workers,
                                      .allowed = cpus.allowed,
                                      .bound = cpus.bound,
                                      .taken = {placement.core},
                                      .named = arguments.worker_core,
                                      .may_share = wish.takes_turns,
                                      .option = "--worker-core",
                                      .what = "workers"});
        }
    }
    taken.insert(worker_cores.begin(), needs_worker ? worker_cores.end() : worker_cores.begin());
    options.cores = more_cpus({.first = placement.core,
                               .wanted = threads,
                               .allowed = cpus.allowed,
                               .bound = cpus.bound,
                               .taken = taken,
                               .named = arguments.core,
                               .may_share = wish.takes_turns,
                               .option = "--core",
                               .what = "threads"});
    if (!needs_worker) {
        return;
    }
    if (options.config.workers.empty()) {
        for (std::size_t i = 0; i < worker_cores.size(); ++i) {
            options.config.workers.push_back({.name = i == 0 ? kOwnWorker : fmt::format("{}{}", kOwnWorker, i + 1),
                                              .core = worker_cores[i],
                                              .idle = worker_idle(arguments, cpus)});
        }
    }
    for (const WorkerConfig& worker : options.config.workers) {
        options.workers.push_back(worker.name);
    }
    if (workers > options.workers.size()) {
        throw UsageError(fmt::format("--workers {}: there are {}", workers, options.workers.size()));
    }
    options.workers.resize(workers);
}

}  // namespace pollcore::perf
