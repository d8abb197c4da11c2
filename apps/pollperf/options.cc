#include "options.hpp"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <set>
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
constexpr std::uint32_t kSizeOfBandwidth = 65536;
constexpr std::uint64_t kIterationsDefault = 1000;
constexpr std::uint64_t kIterationsOfBandwidth = 5000;
constexpr std::uint64_t kIterationsOfRate = 100'000;
// For a software device, which answers in less than a microsecond: enough iterations for a useful figure of 99.99%.
constexpr std::uint64_t kIterationsSoftware = 200'000;
constexpr std::uint64_t kIterationsSoftwareRate = 1'000'000;
// For a software device when the thread and the worker take turns on one CPU, which is slower.
constexpr std::uint64_t kIterationsByTurns = 20'000;
// By default a measurement moves no more bytes than this, so that a sweep ends.
constexpr std::uint64_t kBytesUsual = 1ull << 30;
constexpr std::uint32_t kPortDefault = 18515;
constexpr std::uint32_t kRoundsDefault = 10;
constexpr std::uint32_t kRoundsOfStreams = 7;
constexpr std::uint64_t kIterationsMax = 10'000'000'000;
constexpr std::uint32_t kSizeMax = 64u << 20;
constexpr std::uint32_t kSweepMost = 8u << 20;
constexpr std::uint32_t kQueuePairsMax = 4096;
constexpr std::uint32_t kThreadsMax = 256;
constexpr std::uint32_t kDepthMax = 16384;
constexpr std::uint32_t kPostListMax = 256;
constexpr double kRateMax = 1e9;
constexpr std::uint32_t kTxDepthOfStreams = 128;
constexpr std::uint32_t kTxDepthOpen = 64;
constexpr std::uint32_t kRxDepthOfStreams = 512;
constexpr std::uint32_t kRxDepthOfLatency = 64;
constexpr std::uint32_t kPostListOfRate = 16;
constexpr std::uint32_t kSignalEvery = 16;
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
                fmt::format("--op {}: there is no operation '{}'; there are send, write, write-imm, read, fetch-add, "
                            "cmp-swap, several with commas between them, and all",
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

template <class T>
T in_range(const char* option, T value, T min, T max) {
    if (value < min || value > max) {
        throw UsageError(fmt::format("{} {}: it takes {} to {}", option, value, min, max));
    }
    return value;
}

bool is_number(const std::string& text) {
    return !text.empty() && std::all_of(text.begin(), text.end(), [](unsigned char c) { return std::isdigit(c) != 0; });
}

// A number of bytes, perhaps with a unit as in the configuration.
std::uint32_t parse_size(const std::string& text) {
    const auto parsed = config::parse_bytes(is_number(text) ? text + "B" : text);
    if (const auto* reason = std::get_if<config::Reason>(&parsed)) {
        throw UsageError(
            fmt::format("--size {}: {}; it takes bytes, or {}", text, reason->text, config::kBytesExample));
    }
    return static_cast<std::uint32_t>(in_range<std::uint64_t>("--size", std::get<std::uint64_t>(parsed), 1, kSizeMax));
}

// "100000", "100k", "1.5M": a number with a decimal unit.
double parse_rate(const char* option, const std::string& text) {
    double value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    const std::string_view unit(end, static_cast<std::size_t>(text.data() + text.size() - end));
    const double factor = unit.empty() ? 1 : unit == "k" ? 1e3 : unit == "M" ? 1e6 : unit == "G" ? 1e9 : 0;
    if (error != std::errc() || factor == 0 || !(value > 0)) {
        throw UsageError(fmt::format("{} {}: it takes a number, perhaps with k, M or G, such as 100k", option, text));
    }
    return value * factor;
}

// "5GiB" or "5Gb", each for a second: bytes, or bits in decimal units.
double parse_bandwidth(const std::string& text) {
    if (text.ends_with("b")) {
        return parse_rate("--min-bw", text.substr(0, text.size() - 1)) / 8;
    }
    const auto parsed = config::parse_bytes(text);
    if (const auto* reason = std::get_if<config::Reason>(&parsed)) {
        throw UsageError(fmt::format("--min-bw {}: {}; it takes bytes a second such as 500MiB, or bits such as 100Gb",
                                     text, reason->text));
    }
    return static_cast<double>(std::get<std::uint64_t>(parsed));
}

double parse_tolerance(const std::string& text) {
    double value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    const std::string_view unit(end, static_cast<std::size_t>(text.data() + text.size() - end));
    value = unit == "%" ? value / 100 : value;
    if (error != std::errc() || (unit != "%" && !unit.empty()) || !(value >= 0) || value > 1000) {
        throw UsageError(fmt::format("--tolerance {}: it takes a share such as 5% or 0.05", text));
    }
    return value;
}

std::chrono::nanoseconds parse_ns(const char* option, const std::string& text) {
    const auto parsed = config::parse_duration(text);
    if (const auto* reason = std::get_if<config::Reason>(&parsed)) {
        throw UsageError(fmt::format("{} {}: {}; it takes {}", option, text, reason->text, config::kDurationExample));
    }
    return std::get<std::chrono::nanoseconds>(parsed);
}

// On a machine with one CPU the default is "yield": a thread that spins there would keep the worker from running.
std::string how_to_wait(const TestArguments& arguments, const config::Cpus& cpus) {
    return !arguments.wait.empty() ? arguments.wait : cpus.one_for_all() ? "yield" : "spin";
}

// Sets options.config: the configuration file with only one of its devices, or, without a file, a new configuration.
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

IdleLadder worker_idle(const TestArguments& arguments, const config::Cpus& cpus) {
    if (!arguments.idle.empty()) {
        return parse_idle("--idle", arguments.idle);
    }
    return parse_idle("--wait", how_to_wait(arguments, cpus));
}

// CPUs for `threads` measuring threads and `workers` workers of this process.
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

std::vector<PathKind> parse_paths(const std::string& text, bool sleeps) {
    const PathKind plain = sleeps ? PathKind::event : PathKind::direct;
    if (text == "both") {
        return {plain, PathKind::runtime};
    }
    if (text == "all") {
        return {plain, PathKind::runtime, PathKind::attached};
    }
    std::vector<PathKind> paths;
    std::istringstream words(text);
    for (std::string word; std::getline(words, word, ',');) {
        std::optional<PathKind> path;
        for (const PathKind kind : {PathKind::direct, PathKind::event, PathKind::runtime, PathKind::attached}) {
            path = path_name(kind) == word ? kind : path;
        }
        if (!path) {
            throw UsageError(fmt::format(
                "--path {}: there are direct, event, runtime, attached, several with commas between them, both and all",
                text));
        }
        path = *path == PathKind::direct ? plain : *path;
        if (std::find(paths.begin(), paths.end(), *path) == paths.end()) {
            paths.push_back(*path);
        }
    }
    if (paths.empty()) {
        throw UsageError("--path: it names no path");
    }
    return paths;
}

Role role_of(const TestArguments& arguments) {
    if (!arguments.address.empty()) {
        return Role::client;
    }
    return Role::both;
}

void resolve_paths(const TestArguments& arguments, const config::Cpus& cpus, TestOptions& options) {
    const bool sleeps = how_to_wait(arguments, cpus) == "event" || arguments.events;
    std::string path = arguments.path;
    if (path.empty()) {
        path = !options.attach.empty() ? "attached" : options.role == Role::both ? "both" : "direct";
    }
    options.paths = parse_paths(path, sleeps);
    refuse_if(!options.attach.empty() && (!options.uses(PathKind::attached) || options.uses(PathKind::runtime)),
              "--attach", "it is for --path attached: the daemon's worker and one of this process would share a core");
    refuse_if(!options.attach.empty() && arguments.config.empty(), "--attach",
              "say what the daemon runs with: --config FILE");
    const auto flow = flow_control_named(arguments.flow);
    if (!flow) {
        throw UsageError(fmt::format("--flow {}: there are {}", arguments.flow, flow_names()));
    }
    options.flow = *flow;
    refuse_if(arrival_of(options.flow) == Arrival::write_ring && options.wait == Waiting::sleep, "--flow",
              "a worker that sleeps does not look at memory; use --wait spin");
    refuse_if(options.flow != FlowControl::off && !options.has_worker(), "--flow",
              "plain verbs have none; --path runtime and attached have");
    refuse_if(options.flow != FlowControl::off && options.plain_verbs(), "--flow",
              "plain verbs have none; leave out paths direct and event");
    refuse_if(options.flow != FlowControl::off && options.transport == QpType::ud, "--flow", "UD has no flow control");
    refuse_if(arguments.sessions.has_value() && !options.has_worker(), "--sessions", "plain verbs have none");
    refuse_if(arguments.workers.has_value() && !options.has_worker(), "--workers", "plain verbs have none");
}

void resolve_ops(const TestArguments& arguments, TestOptions& options) {
    std::string op = arguments.op;
    if (op.empty()) {
        op = arguments.brief                                            ? "send,write,read,fetch-add"
             : arguments.config.empty() || options.role == Role::client ? "send"
                                                                        : "all";
    }
    options.ops = parse_ops(op);
    if (op == "all") {
        std::erase_if(options.ops, [&](Op one) { return !can_do(options.transport, one); });
    }
    if (options.ops.empty()) {
        throw UsageError("--op: it names no operation");
    }
    for (const Op one : options.ops) {
        if (!can_do(options.transport, one)) {
            throw UsageError(
                fmt::format("--op {}: {} does not have it", op_name(one), transport_name(options.transport)));
        }
    }
}

void resolve_sizes(const TestArguments& arguments, TestOptions& options) {
    if (arguments.all_sizes) {
        refuse_if(!arguments.size.empty(), "--size", "--all has all sizes");
        for (std::uint32_t size = 2; size <= (options.transport == QpType::ud ? 4096 : kSweepMost); size *= 2) {
            options.sizes.push_back(size);
        }
    }
    for (const std::string& text : arguments.size) {
        options.sizes.push_back(parse_size(text));
    }
    if (options.sizes.empty()) {
        options.sizes = {options.test == Test::bw ? (options.transport == QpType::ud ? 1024 : kSizeOfBandwidth)
                                                  : kSizeDefault};
    }
    std::sort(options.sizes.begin(), options.sizes.end());
    options.sizes.erase(std::unique(options.sizes.begin(), options.sizes.end()), options.sizes.end());
    const bool only_atomics = std::all_of(options.ops.begin(), options.ops.end(), [](Op op) { return is_atomic(op); });
    if (only_atomics && !arguments.size.empty() && options.sizes != std::vector{kAtomicSize}) {
        throw UsageError(
            fmt::format("--size {}: an atomic operation is on {} bytes always", options.sizes.front(), kAtomicSize));
    }
    if (options.transport == QpType::ud && options.sizes.back() > 4096) {
        throw UsageError(fmt::format("--size {}: a datagram has at most 4096 bytes", options.sizes.back()));
    }
}

void resolve_depths(const TestArguments& arguments, TestOptions& options) {
    const bool stream = options.test != Test::lat;
    const bool open = options.arrivals.has_value();
    refuse_if(arguments.tx_depth.has_value() && !stream && !open, "--tx-depth",
              "lat has one operation in flight; bw, rate and --rate have more");
    refuse_if(arguments.post_list.has_value() && (!stream || open), "--post_list",
              "only bw and rate in a closed loop post lists");
    refuse_if(arguments.signal_every.has_value() && (!stream || open), "--cq-mod",
              "only bw and rate in a closed loop leave out completions");
    refuse_if(arguments.bidirectional && !stream, "--bidirectional", "it is for bw and rate");
    refuse_if(arguments.bidirectional && open, "--bidirectional", "an open loop has one direction");
    options.bidirectional = arguments.bidirectional;
    const auto range = [](const char* name, std::optional<std::uint32_t> given, std::uint32_t usual,
                          std::uint32_t most) { return in_range<std::uint32_t>(name, given.value_or(usual), 1, most); };
    options.tx_depth = range("--tx-depth", arguments.tx_depth,
                             open     ? kTxDepthOpen
                             : stream ? kTxDepthOfStreams
                                      : 1,
                             kDepthMax);
    options.rx_depth =
        range("--rx-depth", arguments.rx_depth, stream || open ? kRxDepthOfStreams : kRxDepthOfLatency, kDepthMax);
    options.rx_depth = std::max<std::uint32_t>(options.rx_depth, 2);
    const std::uint32_t list = options.test == Test::rate ? std::min(kPostListOfRate, options.tx_depth) : 1;
    options.post_list = range("--post_list", arguments.post_list, open ? 1 : list, kPostListMax);
    if (options.post_list > options.tx_depth) {
        throw UsageError(fmt::format("--post_list {}: there are only {} operations in flight (--tx-depth)",
                                     options.post_list, options.tx_depth));
    }
    options.usual_signals = !arguments.signal_every.has_value();
    // Requests in flight have to contain one with a completion, or the loop would wait for ever.
    const std::uint32_t signal_most = std::max(1u, options.tx_depth / 2);
    options.signal_every =
        range("--cq-mod", arguments.signal_every, stream && !open ? std::min(kSignalEvery, signal_most) : 1, kDepthMax);
    if (options.signal_every > signal_most) {
        throw UsageError(
            fmt::format("--cq-mod {}: at most half of --tx-depth {}", options.signal_every, options.tx_depth));
    }
}

void resolve_counts(const TestArguments& arguments, const config::Cpus& cpus, TestOptions& options) {
    const bool stream = options.test != Test::lat;
    if (arguments.duration.empty()) {
        const bool turns = cpus.one_for_all();
        const std::uint64_t usual = options.software()          ? (turns                        ? kIterationsByTurns
                                                                   : options.test == Test::rate ? kIterationsSoftwareRate
                                                                                                : kIterationsSoftware)
                                    : options.test == Test::lat ? kIterationsDefault
                                    : options.test == Test::bw  ? kIterationsOfBandwidth
                                                                : kIterationsOfRate;
        options.usual_iterations = !arguments.iterations.has_value();
        options.iterations =
            in_range<std::uint64_t>("--iters", arguments.iterations.value_or(usual), 2, kIterationsMax);
    } else {
        refuse_if(arguments.iterations.has_value(), "--iters", "--duration says when a measurement ends");
        // perftest's -D is a number of seconds.
        options.duration =
            parse_ns("--duration", is_number(arguments.duration) ? arguments.duration + "s" : arguments.duration);
        if (options.duration < std::chrono::milliseconds(1) || options.duration > std::chrono::hours(24)) {
            throw UsageError(fmt::format("--duration {}: it takes 1ms to 86400s", arguments.duration));
        }
    }
    if (arguments.warmup) {
        options.warmup = in_range<std::uint64_t>("--warmup", *arguments.warmup, 0, kIterationsMax);
    }
    options.rounds = in_range<std::uint32_t>(
        "--rounds", arguments.rounds.value_or(stream ? kRoundsOfStreams : kRoundsDefault), 1, 1000);
    if (options.iterations != 0) {
        options.rounds = static_cast<std::uint32_t>(std::min<std::uint64_t>(options.rounds, options.iterations));
    }
    options.threads = in_range<std::uint32_t>("--threads", arguments.threads.value_or(1), 1, kThreadsMax);
    options.queue_pairs =
        in_range<std::uint32_t>("--qp", arguments.queue_pairs.value_or(options.threads), 1, kQueuePairsMax);
    if (options.queue_pairs % options.threads != 0) {
        throw UsageError(
            fmt::format("--qp {}: it takes a multiple of the {} threads", options.queue_pairs, options.threads));
    }
    options.sessions =
        in_range<std::uint32_t>("--sessions", arguments.sessions.value_or(options.threads), 1, kQueuePairsMax);
    if (options.sessions % options.threads != 0 || options.queue_pairs % options.sessions != 0) {
        throw UsageError(
            fmt::format("--sessions {}: it takes a multiple of the {} threads that divides the {} queue pairs",
                        options.sessions, options.threads, options.queue_pairs));
    }
    refuse_if(options.sessions > options.threads && options.wait == Waiting::sleep, "--sessions",
              "a thread sleeps on one session only");
    if (options.iterations != 0 && options.iterations < std::uint64_t{options.rounds} * options.threads) {
        throw UsageError(fmt::format("--iters {}: {} rounds of {} threads need more", options.iterations,
                                     options.rounds, options.threads));
    }
}

void resolve_connection(const TestArguments& arguments, TestOptions& options) {
    options.port =
        static_cast<std::uint16_t>(in_range<std::uint32_t>("--port", arguments.port.value_or(kPortDefault), 1, 65535));
    options.mtu = static_cast<std::uint16_t>(arguments.mtu.value_or(0));
    if (arguments.mtu && options.mtu != 256 && options.mtu != 512 && options.mtu != 1024 && options.mtu != 2048 &&
        options.mtu != 4096) {
        throw UsageError(fmt::format("--mtu {}: there are 256, 512, 1024, 2048 and 4096", *arguments.mtu));
    }
    options.rdma_cm = arguments.rdma_cm && options.role == Role::client;
    options.service = arguments.service;
    refuse_if(arguments.rdma_cm && options.role == Role::both, "--rdma_cm",
              "both ends are in this process, which connects them itself");
    const bool by_cm = options.rdma_cm || options.service;
    refuse_if(options.rdma_cm && options.transport == QpType::ud, "--rdma_cm",
              "it connects RC and UC; UD has no connections");
    refuse_if(by_cm && options.mtu != 0, "--mtu", "rdma_cm chooses the MTU");
    refuse_if(by_cm && arguments.gid_index.has_value(), "--gid-index",
              "rdma_cm chooses the GID by the address; say the address that has the GID instead");
    if (options.service) {
        refuse_if(options.role != Role::client, "--service", "say the address of the service");
        refuse_if(options.test != Test::lat || options.arrivals.has_value(), "--service",
                  "a service answers one message at a time: use lat");
        refuse_if(options.ops.size() > 1 || options.sizes.size() > 1 || options.paths.size() > 1, "--service",
                  "it takes one operation, size and path at a time");
        refuse_if(options.ops.front() == Op::write_imm, "--service", "a service does not answer write-imm");
        refuse_if(options.ops.front() == Op::compare_swap && options.verify, "--service",
                  "nobody knows what the service's memory holds, so cmp-swap cannot be verified");
        refuse_if(options.queue_pairs != 1 || options.transport != QpType::rc, "--service", "it has one RC queue pair");
    }
    refuse_if(!options.arrivals && arguments.poisson, "--poisson", "it is for an open loop: --rate");
}

void resolve_outputs(const TestArguments& arguments, TestOptions& options) {
    options.report_gbits = arguments.report_gbits;
    options.brief = arguments.brief;
    if (options.brief) {
        refuse_if(options.role != Role::both || options.test != Test::lat, "--brief",
                  "its table is of lat with both ends in one process");
        refuse_if(options.sizes.size() > 1 || !options.plain_verbs() || !options.uses(PathKind::runtime) ||
                      !options.uses(PathKind::attached),
                  "--brief", "its table has one size and --path all");
        if (options.config.log_level == LogLevel::warning) {
            options.config.log_level = LogLevel::error;
        }
    }
    options.json = arguments.json;
    options.csv = arguments.csv;
    options.hdr = arguments.hdr;
    options.report = arguments.report;
    std::vector<std::filesystem::path> files;
    for (const auto& file : {options.json, options.csv, options.hdr, options.report}) {
        if (!file.empty() && std::find(files.begin(), files.end(), file) != files.end()) {
            throw UsageError(fmt::format("{}: two outputs cannot go to one file", file.string()));
        }
        files.push_back(file);
    }
    if (!arguments.bandwidth_least.empty()) {
        options.bytes_per_s_least = parse_bandwidth(arguments.bandwidth_least);
    }
    if (!arguments.rate_least.empty()) {
        options.operations_per_s_least = parse_rate("--min-rate", arguments.rate_least);
    }
    if (!arguments.p99_most.empty()) {
        options.p99_ns_most = static_cast<double>(parse_ns("--max-p99", arguments.p99_most).count());
    }
    options.baseline = arguments.baseline;
    refuse_if(!arguments.tolerance.empty() && options.baseline.empty(), "--tolerance", "it is for --baseline");
    if (!arguments.tolerance.empty()) {
        options.tolerance = parse_tolerance(arguments.tolerance);
    }
}

// Without a configuration file, raises memory.size if the buffers would take more than a quarter of it. For small
// buffers the default remains, because users reserve hugepages for the default.
void make_room(const TestArguments& arguments, TestOptions& options) {
    constexpr std::uint64_t kGrain = 2ull << 20;
    const std::uint32_t ends = options.queue_pairs * (options.role == Role::both ? 2 : 1);
    const std::uint64_t buffers = ends * layout_of(options).bytes();
    // The rings of the sessions, and the send queues' books.
    const std::uint64_t rings = std::uint64_t{ends} * (options.tx_depth + options.rx_depth) * 256;
    if (arguments.config.empty() && buffers + rings > options.config.memory.size / 4) {
        options.config.memory.size += (buffers + rings + kGrain - 1) / kGrain * kGrain;
    }
}

}  // namespace

bool TestOptions::uses(PathKind path) const noexcept {
    return std::find(paths.begin(), paths.end(), path) != paths.end();
}

EndLayout layout_of(const TestOptions& options) {
    const bool stream = options.test != Test::lat || options.arrivals.has_value();
    const bool receives = std::any_of(options.ops.begin(), options.ops.end(), [](Op op) { return takes_receive(op); });
    const std::uint32_t ends = options.queue_pairs * (options.role == Role::both ? 2 : 1);
    std::uint32_t size = 0;
    for (const Op op : options.ops) {
        size = std::max(size, size_of(op, options.sizes.back()));
    }
    // Buffers of long messages are fewer, so that all of them stay below kBufferBytesMost.
    const std::uint64_t fit = std::max<std::uint64_t>(2, kBufferBytesMost / ends / 2 / (size + kCacheLine));
    const auto slots = static_cast<std::uint32_t>(
        stream && options.verify ? std::min<std::uint64_t>(options.tx_depth, fit) : std::uint64_t{1});
    // Receives whose bytes nobody looks at may share buffers, so that a sweep up to long messages has as many of them.
    const bool own_buffers = options.verify || arrival_of(options.flow) == Arrival::write_ring;
    auto receive_slots = receives ? options.rx_depth : 2;
    if (own_buffers) {
        receive_slots = static_cast<std::uint32_t>(std::min<std::uint64_t>(receive_slots, fit));
    }
    if (receive_slots > 32) {
        receive_slots -= receive_slots % 32;  // receives are posted again in batches of 32
    }
    const auto buffers = static_cast<std::uint32_t>(std::min<std::uint64_t>(receive_slots, fit));
    return {size, slots, receive_slots, buffers, options.transport};
}

std::uint64_t iterations_of(const TestOptions& options, std::uint32_t size) noexcept {
    if (!options.usual_iterations) {
        return options.iterations;
    }
    const std::uint64_t least = std::uint64_t{10} * options.rounds * options.threads;
    // A window that is never full would be measured at its beginning and its end only.
    const std::uint64_t full =
        options.test == Test::lat ? 0 : std::uint64_t{4} * options.rounds * options.queue_pairs * options.tx_depth;
    const std::uint64_t usual = std::min(options.iterations, std::max(least, kBytesUsual / size));
    return std::max(usual, std::min(full, std::max(least, 4 * kBytesUsual / size)));
}

bool is_server(const TestArguments& arguments) {
    if (arguments.serve) {
        return true;
    }
    const bool software = arguments.device.starts_with(kSoftwarePrefix);
    return arguments.address.empty() && !arguments.loopback && !software &&
           (arguments.config.empty() || (!arguments.attach.empty() && arguments.port.has_value()));
}

TestOptions resolve(const TestArguments& arguments) {
    return resolve(arguments, config::Cpus::of_this_process());
}

TestOptions resolve(const TestArguments& arguments, const config::Cpus& cpus) {
    TestOptions options;
    options.test = arguments.test;
    options.role = role_of(arguments);
    if (options.role == Role::both) {
        const char* why = "both ends are in this process; it is for a server or a client";
        refuse_if(arguments.port.has_value(), "--port", why);
        refuse_if(arguments.service, "--service", why);
    } else {
        refuse_if(arguments.loopback, "--loopback", "both ends are in this process; there is no ADDRESS");
        refuse_if(arguments.device.starts_with(kSoftwarePrefix) && arguments.attach.empty(), "ADDRESS",
                  "a software device ends with its process; both ends are in this one, or attached to one daemon");
    }
    refuse_if(arguments.loopback && !arguments.config.empty(), "--loopback",
              "with --config both ends are in one process anyway");
    refuse_if(arguments.clients.has_value() || arguments.once, "--clients and --once", "they are for a server");
    resolve_device(arguments, cpus, options);
    const std::string& transport = arguments.transport;
    if (transport != "RC" && transport != "UC" && transport != "UD") {
        throw UsageError(fmt::format("--connection {}: there are RC, UC and UD", transport));
    }
    options.transport = transport == "UD" ? QpType::ud : transport == "UC" ? QpType::uc : QpType::rc;
    if (!arguments.rate.empty()) {
        options.arrivals = {.per_s = parse_rate("--rate", arguments.rate), .poisson = arguments.poisson};
        if (options.arrivals->per_s > kRateMax || options.arrivals->per_s < 1) {
            throw UsageError(fmt::format("--rate {}: it takes 1 to 1G operations a second", arguments.rate));
        }
    }
    resolve_ops(arguments, options);
    resolve_paths(arguments, cpus, options);
    refuse_if(!arguments.worker_core.empty() && !options.has_worker(), "--worker-core", "--path direct has no worker");
    const bool awaits_writes = options.test == Test::lat && !options.arrivals &&
                               std::find(options.ops.begin(), options.ops.end(), Op::write) != options.ops.end();
    refuse_if((options.wait == Waiting::sleep || options.uses(PathKind::event)) && awaits_writes && !arguments.service,
              "--op write",
              "its receiver looks for the bytes in its memory, and no event tells of them; --op "
              "send,write-imm,read,fetch-add,cmp-swap can wait for events");
    options.verify = arguments.verify;
    const bool streams_writes = (options.test != Test::lat || options.arrivals) &&
                                std::any_of(options.ops.begin(), options.ops.end(),
                                            [](Op op) { return op == Op::write || op == Op::write_imm; });
    refuse_if(options.verify && options.transport == QpType::uc && streams_writes, "--verify",
              "UC may lose writes, and nobody knows which ones have arrived; it can check sends");
    resolve_sizes(arguments, options);
    resolve_depths(arguments, options);
    resolve_counts(arguments, cpus, options);
    resolve_connection(arguments, options);
    const bool sleeps = std::all_of(options.paths.begin(), options.paths.end(),
                                    [&](PathKind path) { return options.wait_on(path) != Waiting::spin; });
    resolve_cores(arguments, cpus, options.role, options.has_worker(), sleeps, options.threads,
                  in_range<std::uint32_t>("--workers", arguments.workers.value_or(1), 1, kWorkersMax), options);
    resolve_outputs(arguments, options);
    make_room(arguments, options);
    if (options.role == Role::client) {
        options.address = arguments.address;
    }
    return options;
}

ServeOptions resolve_server(const TestArguments& arguments) {
    return resolve_server(arguments, config::Cpus::of_this_process());
}

ServeOptions resolve_server(const TestArguments& arguments, const config::Cpus& cpus) {
    ServeOptions options;
    refuse_if(!arguments.address.empty(), "ADDRESS", "a server listens on all addresses");
    refuse_if(arguments.device.starts_with(kSoftwarePrefix) && arguments.attach.empty(), "--device",
              "a software device ends with its process; other processes reach it through a daemon: --attach");
    refuse_if(!arguments.json.empty() || !arguments.csv.empty() || !arguments.hdr.empty() ||
                  !arguments.report.empty() || !arguments.bandwidth_least.empty() || !arguments.rate_least.empty() ||
                  !arguments.p99_most.empty() || !arguments.baseline.empty() || arguments.brief,
              "outputs and limits", "the client has the figures; give them to the client");
    resolve_device(arguments, cpus, options);
    if (!arguments.path.empty()) {
        const auto paths = parse_paths(arguments.path, options.wait == Waiting::sleep || arguments.events);
        refuse_if(paths.size() > 1, "--path", "a server has one path, or without --path that of each client");
        options.path = paths.front();
    } else if (!options.attach.empty()) {
        options.path = PathKind::attached;
    }
    refuse_if(arguments.events && arguments.path.empty(), "--events", "say --path event");
    refuse_if(!options.attach.empty() && options.path != PathKind::attached, "--attach", "it is for --path attached");
    refuse_if(!options.attach.empty() && arguments.config.empty(), "--attach",
              "say what the daemon runs with: --config FILE");
    options.port =
        static_cast<std::uint16_t>(in_range<std::uint32_t>("--port", arguments.port.value_or(kPortDefault), 1, 65535));
    options.clients = in_range<std::uint32_t>("--clients", arguments.clients.value_or(1), 1, 64);
    options.once = arguments.once || !arguments.serve;
    options.client_timeout = parse_time("--client-timeout", arguments.client_timeout);
    const bool plain = options.path && !has_worker(*options.path);
    // A client may ask for a path with a worker, so there has to be a CPU for one, if there are two at all.
    const bool needs_worker = !plain && (cpus.allowed.size() > 1 || options.wait != Waiting::spin);
    resolve_cores(arguments, cpus, Role::server, needs_worker, options.path == PathKind::event,
                  static_cast<std::uint32_t>(std::max<std::size_t>(1, arguments.core.size())),
                  in_range<std::uint32_t>("--workers", arguments.workers.value_or(1), 1, kWorkersMax), options);
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

}  // namespace pollcore::perf
