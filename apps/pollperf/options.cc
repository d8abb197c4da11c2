#include "options.hpp"

#include <algorithm>

#include <fmt/format.h>

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
constexpr std::uint32_t kRoundsDefault = 10;
constexpr std::uint32_t kRoundsOfStreams = 7;
constexpr std::uint64_t kIterationsMax = 10'000'000'000;
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
    options.port = parse_port(arguments.port);
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

}  // namespace pollcore::perf
