#include "options.hpp"

#include <algorithm>
#include <cctype>
#include <sstream>
#include <utility>
#include <variant>

#include <fmt/format.h>

#include "config/cpus.hpp"
#include "config/refusal.hpp"
#include "config/rules.hpp"
#include "config/toml_tree.hpp"
#include "config/units.hpp"
#include "config/validation.hpp"
#include "cpu_choice.hpp"

namespace pollcore::perf {
namespace {

// Defaults, as far as possible those of perftest.
constexpr std::uint32_t kSizeDefault = 2;
constexpr std::uint32_t kIterationsDefault = 1000;
// For a software device, which answers in less than a microsecond: enough iterations for a useful figure of 99.99%.
constexpr std::uint32_t kIterationsSoftware = 200000;
// For a software device when the thread and the worker take turns on one CPU, which is slower.
constexpr std::uint32_t kIterationsByTurns = 20000;
constexpr std::uint32_t kPortDefault = 18515;
constexpr std::uint32_t kRoundsDefault = 10;
constexpr std::uint32_t kIterationsMax = 100'000'000;
constexpr std::uint32_t kSizeMax = 64u << 20;
// Without a configuration file, a device whose name begins with this is a software device.
constexpr std::string_view kSoftwarePrefix = "soft";
constexpr const char* kOwnWorker = "pollperf";

std::vector<Op> parse_ops(const std::string& text) {
    if (text == "all") {
        return {std::begin(kOps), std::end(kOps)};
    }
    std::vector<Op> ops;
    std::istringstream words(text);
    for (std::string word; std::getline(words, word, ',');) {
        const auto at = std::find_if(std::begin(kOps), std::end(kOps), [&](Op op) { return op_name(op) == word; });
        if (at == std::end(kOps)) {
            throw UsageError(
                fmt::format("--op {}: there is no operation '{}'; there are send, write, read, "
                            "fetch-add, several with commas between them, and all",
                            text, word));
        }
        if (std::find(ops.begin(), ops.end(), *at) != ops.end()) {
            throw UsageError(fmt::format("--op {}: '{}' is there twice", text, word));
        }
        ops.push_back(*at);
    }
    return ops;
}

std::chrono::milliseconds parse_time(const char* option, const std::string& text) {
    const auto parsed = config::parse_duration(text);
    if (const auto* reason = std::get_if<config::Reason>(&parsed)) {
        throw UsageError(fmt::format("{} {}: {}; it takes {}", option, text, reason->text, config::kDurationExample));
    }
    const auto time = std::get<std::chrono::nanoseconds>(parsed);
    if (time < std::chrono::milliseconds(100) || time > std::chrono::hours(24) ||
        time % std::chrono::milliseconds(1) != std::chrono::nanoseconds(0)) {
        throw UsageError(fmt::format("{} {}: it takes whole milliseconds from 100ms to 86400s", option, text));
    }
    return std::chrono::duration_cast<std::chrono::milliseconds>(time);
}

void refuse_if(bool given, const char* option, const char* why) {
    if (given) {
        throw UsageError(fmt::format("{}: {}", option, why));
    }
}

Role role_of(const LatArguments& arguments) {
    // Through a daemon, every kind of device reaches other processes.
    if (!arguments.attach.empty()) {
        return !arguments.address.empty() ? Role::client : arguments.port.has_value() ? Role::server : Role::both;
    }
    if (!arguments.config.empty() || arguments.loopback) {
        const char* why = "both ends are in this process; it is for a server or a client";
        refuse_if(!arguments.address.empty(), "ADDRESS", why);
        refuse_if(arguments.port.has_value(), "--port", why);
        return Role::both;
    }
    if (arguments.device.starts_with(kSoftwarePrefix)) {
        refuse_if(!arguments.address.empty() || arguments.port.has_value(), "ADDRESS and --port",
                  "a software device ends with its process; both ends are in this one");
        return Role::both;
    }
    return arguments.address.empty() ? Role::server : Role::client;
}

// Sets options.config: the configuration file with only one of its devices, or, without a file, a new configuration.
void resolve_device(const LatArguments& arguments, const config::Cpus& cpus, LatOptions& options) {
    if (arguments.config.empty()) {
        if (arguments.device.empty()) {
            throw UsageError(
                "say what to measure: --config FILE, or --device NAME (soft0, or as ibv_devices(1) "
                "prints it)");
        }
        options.config.devices = {device_named(arguments.device)};
        options.config.log_level = LogLevel::warning;
    } else {
        refuse_if(arguments.worker_core.has_value(), "--worker-core", "the configuration says where workers run");
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
}

// On a machine with one CPU the default is "yield": a thread that spins there would keep the worker from running.
std::string how_to_wait(const LatArguments& arguments, const config::Cpus& cpus) {
    return !arguments.wait.empty() ? arguments.wait : cpus.one_for_all() ? "yield" : "spin";
}

void resolve_path(const LatArguments& arguments, const config::Cpus& cpus, LatOptions& options) {
    std::string path = arguments.path;
    options.attach = arguments.attach.string();
    if (path.empty()) {
        path = !options.attach.empty() ? "attached" : options.role == Role::both ? "both" : "direct";
    }
    if (path != "direct" && path != "event" && path != "runtime" && path != "attached" && path != "both" &&
        path != "all") {
        throw UsageError(fmt::format(
            "--path {}: there are direct, event, runtime, attached, and both and all in one process", path));
    }
    refuse_if((path == "both" || path == "all") && options.role != Role::both, "--path both or all",
              "a connection to another process has one path at a time; run them one after the other");
    const std::string wait = how_to_wait(arguments, cpus);
    options.wait = wait == "event" || path == "event" ? Waiting::sleep
                   : wait == "yield"                  ? Waiting::yield
                                                      : Waiting::spin;
    options.direct = path == "direct" || path == "both" || path == "all";
    options.event = path == "event" || (options.direct && options.sleeps());
    options.direct = options.direct && !options.event;
    options.runtime = path == "runtime" || path == "both" || path == "all";
    options.attached = path == "attached" || path == "all";
    refuse_if(!options.attach.empty() && (!options.attached || options.runtime), "--attach",
              "it is for --path attached: the daemon's worker and one of this process would share a core");
    refuse_if(!options.attach.empty() && arguments.config.empty(), "--attach",
              "say what the daemon runs with: --config FILE");
    const auto flow = flow_control_named(arguments.flow);
    if (!flow) {
        throw UsageError(fmt::format("--flow {}: there are {}", arguments.flow, flow_names()));
    }
    options.flow = *flow;
    refuse_if(arrival_of(options.flow) == Arrival::write_ring && options.sleeps(), "--flow",
              "a worker that sleeps does not look at memory; use --wait spin");
    refuse_if(options.flow != FlowControl::off && !options.has_worker(), "--flow",
              "plain verbs have none; --path runtime and attached have");
}

void resolve_figures(const LatArguments& arguments, const config::Cpus& cpus, LatOptions& options) {
    const auto in_range = [](const char* option, std::uint32_t value, std::uint32_t min, std::uint32_t max) {
        if (value < min || value > max) {
            throw UsageError(fmt::format("{} {}: it takes {} to {}", option, value, min, max));
        }
        return value;
    };
    const bool software = options.config.devices.front().kind == DeviceConfig::Kind::soft;
    options.size = in_range("--size", arguments.size.value_or(kSizeDefault), 1, kSizeMax);
    const bool only_adds = options.ops.size() == 1 && options.ops.front() == Op::fetch_add;
    if (only_adds && arguments.size && options.size != kAtomicSize) {
        throw UsageError(fmt::format("--size {}: a fetch-add is on {} bytes always", options.size, kAtomicSize));
    }
    const std::uint32_t usual = !software            ? kIterationsDefault
                                : cpus.one_for_all() ? kIterationsByTurns
                                                     : kIterationsSoftware;
    options.iterations = in_range("--iters", arguments.iterations.value_or(usual), 2, kIterationsMax);
    options.warmup =
        in_range("--warmup", arguments.warmup.value_or(std::max(100u, options.iterations / 10)), 0, kIterationsMax);
    refuse_if(arguments.rounds.has_value() && options.role != Role::both, "--rounds",
              "rounds take turns between the paths of one process");
    options.rounds = in_range("--rounds", arguments.rounds.value_or(kRoundsDefault), 1, 1000);
    options.rounds = options.role == Role::both ? std::min(options.rounds, options.iterations) : 1;
    if (arguments.inline_size) {
        options.inline_size = in_range("--inline_size", *arguments.inline_size, 0, kInlineMax);
    }
    if (arguments.gid_index) {
        refuse_if(options.role != Role::both, "--gid-index",
                  "rdma_cm chooses the GID by the address; say the address that has the GID instead");
        refuse_if(software, "--gid-index", "a software device has one GID");
        refuse_if(!arguments.config.empty(), "--gid-index", "the device's `gid` in the configuration chooses it");
        options.gid_index = in_range("--gid-index", *arguments.gid_index, 0, 255);
    }
    options.port = static_cast<std::uint16_t>(in_range("--port", arguments.port.value_or(kPortDefault), 1, 65535));
    options.timeout = parse_time("--timeout", arguments.timeout);
    options.client_timeout = parse_time("--client-timeout", arguments.client_timeout);
}

IdleLadder worker_idle(const LatArguments& arguments, const config::Cpus& cpus) {
    if (!arguments.idle.empty()) {
        return parse_idle("--idle", arguments.idle);
    }
    return parse_idle("--wait", how_to_wait(arguments, cpus));
}

void resolve_cores(const LatArguments& arguments, const config::Cpus& cpus, LatOptions& options) {
    PlacementWish wish{.role = options.role,
                       .needs_worker = options.has_worker(),
                       .takes_turns = options.wait != Waiting::spin,
                       .allowed = cpus.allowed,
                       .core = arguments.core,
                       .worker_core = arguments.worker_core};
    for (const WorkerConfig& worker : options.config.workers) {
        wish.workers.push_back(worker.core);
    }
    if (options.has_worker() && !arguments.config.empty() && wish.workers.empty()) {
        throw UsageError(
            fmt::format("{} has no worker; paths runtime and attached need one", arguments.config.string()));
    }
    const Placement placement = place(wish);
    options.core = placement.core;
    options.worker_core = placement.worker;
    if (options.has_worker() && options.config.workers.empty()) {
        options.config.workers = {{.name = kOwnWorker, .core = placement.worker, .idle = worker_idle(arguments, cpus)}};
    }
    if (options.has_worker()) {
        options.worker = options.config.workers.front().name;
    }
}

// Without a configuration file, raises memory.size if the buffers of both ends would take more than a quarter of it.
// For small buffers the default remains, because users reserve hugepages for the default.
void make_room(const LatArguments& arguments, LatOptions& options) {
    constexpr std::uint64_t kGrain = 2ull << 20;
    const std::uint64_t buffers = 2 * EndLayout(options.size).bytes();
    if (arguments.config.empty() && buffers > options.config.memory.size / 4) {
        options.config.memory.size += (buffers + kGrain - 1) / kGrain * kGrain;
    }
}

}  // namespace

LatOptions resolve(const LatArguments& arguments) {
    return resolve(arguments, config::Cpus::of_this_process());
}

LatOptions resolve(const LatArguments& arguments, const config::Cpus& cpus) {
    LatOptions options;
    options.role = role_of(arguments);
    resolve_device(arguments, cpus, options);
    std::string op = arguments.op;
    if (op.empty()) {
        op = arguments.config.empty() ? "send" : "all";
    }
    options.ops = parse_ops(op);
    if (options.ops.empty()) {
        throw UsageError("--op: it names no operation");
    }
    refuse_if(options.ops.size() > 1 && options.role != Role::both, "--op",
              "a server and its client measure one operation at a time");
    refuse_if(arguments.loopback && !arguments.config.empty(), "--loopback",
              "with --config both ends are in one process anyway");
    resolve_path(arguments, cpus, options);
    refuse_if(arguments.worker_core.has_value() && !options.has_worker(), "--worker-core",
              "--path direct has no worker");
    refuse_if(
        options.sleeps() && std::find(options.ops.begin(), options.ops.end(), Op::write) != options.ops.end(),
        "--op write",
        "its receiver looks for the bytes in its memory, and no event tells of them; --op send,read,fetch-add can wait "
        "for events");
    resolve_figures(arguments, cpus, options);
    resolve_cores(arguments, cpus, options);
    make_room(arguments, options);
    options.verify = arguments.verify;
    options.brief = arguments.brief;
    if (options.brief && options.config.log_level == LogLevel::warning) {
        options.config.log_level = LogLevel::error;
    }
    refuse_if(options.brief && options.role != Role::both, "--brief", "its table is of both ends in one process");
    options.json = arguments.json;
    if (options.role == Role::client) {
        const bool bare_ipv6 = arguments.address.find(':') != std::string::npos && arguments.address[0] != '[';
        options.address = fmt::format(fmt::runtime(bare_ipv6 ? "[{}]:{}" : "{}:{}"), arguments.address, options.port);
    }
    return options;
}

DeviceConfig device_named(const std::string& name) {
    DeviceConfig device{.name = name};
    if (!name.starts_with(kSoftwarePrefix)) {
        device.kind = DeviceConfig::Kind::verbs;
        device.verbs_name = name;
    }
    return device;
}

IdleLadder parse_idle(const char* option, const std::string& text) {
    const auto cpus = config::Cpus::of_this_process();
    const config::IdleRule rule{cpus};
    const auto refuse = [&](const std::string& why) {
        return UsageError(fmt::format("{} {}: {}; accepted: {}", option, text, why, rule.accepted()));
    };
    // The value has the syntax of the configuration file, but a single word needs no quotes.
    const bool word = std::all_of(text.begin(), text.end(), [](unsigned char c) { return std::isalpha(c) != 0; });
    try {
        const config::TomlNode document =
            config::read_toml(word ? fmt::format("idle = \"{}\"", text) : "idle = " + text, config::Origin(option));
        const config::TomlNode* node = document.find("idle");
        if (node == nullptr) {
            throw refuse("it is empty");
        }
        auto ladder = rule.read(*node);
        if (const auto* reason = std::get_if<config::Reason>(&ladder)) {
            throw refuse(reason->text);
        }
        if (const auto why = rule.check(std::get<IdleLadder>(ladder))) {
            throw refuse(*why);
        }
        return std::get<IdleLadder>(std::move(ladder));
    } catch (const ConfigError&) {
        throw refuse("it is neither a word nor a value as in TOML");
    }
}

std::uint32_t size_of(const LatOptions& options, Op op) noexcept {
    return op == Op::fetch_add ? kAtomicSize : options.size;
}

}  // namespace pollcore::perf
