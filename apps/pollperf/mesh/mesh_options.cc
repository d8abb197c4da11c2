#include "pollperf/mesh/mesh_options.hpp"

#include <algorithm>
#include <charconv>
#include <sstream>
#include <string_view>

#include <fmt/format.h>

#include "config/units.hpp"

namespace pollcore::perf {
namespace {

// As many as `pollperf bw` has in flight. A receiver has receives for twice as many messages, so that a sender need not
// wait until it has posted receives again.
constexpr std::uint32_t kDepth = 128;

double parse_share(const std::string& text) {
    double value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    const std::string_view unit(end, static_cast<std::size_t>(text.data() + text.size() - end));
    if (error != std::errc() || (unit != "%" && !unit.empty()) || !(value >= 0) || value > 1000) {
        throw UsageError(fmt::format("--outlier {}: it takes a share such as 20% or 0.2", text));
    }
    return unit == "%" ? value / 100 : value;
}

void resolve_parts(const std::string& text, MeshOptions& options) {
    if (text.empty()) {
        return;
    }
    options.with_latency = options.with_bandwidth = options.with_incast = options.with_all_to_all = false;
    std::istringstream words(text);
    for (std::string word; std::getline(words, word, ',');) {
        bool* const part = word == "latency"      ? &options.with_latency
                           : word == "bandwidth"  ? &options.with_bandwidth
                           : word == "incast"     ? &options.with_incast
                           : word == "all-to-all" ? &options.with_all_to_all
                                                  : nullptr;
        if (part == nullptr) {
            throw UsageError(fmt::format(
                "--only {}: there are latency, bandwidth, incast and all-to-all, several with commas between them",
                text));
        }
        *part = true;
    }
}

/// CPU number `index` of the set, which wraps around.
std::uint32_t in_turn(const std::set<std::uint32_t>& cpus, std::size_t index) {
    return *std::next(cpus.begin(), static_cast<std::ptrdiff_t>(index % cpus.size()));
}

std::set<std::uint32_t> without(std::set<std::uint32_t> cpus, const std::set<std::uint32_t>& others) {
    for (const std::uint32_t cpu : others) {
        cpus.erase(cpu);
    }
    return cpus;
}

/// The CPUs for measuring threads: those that MPI has bound this rank to, without those of `workers` if others are
/// left.
std::set<std::uint32_t> cpus_for_threads(const RankPlace& place, const std::set<std::uint32_t>& workers) {
    const std::set<std::uint32_t>& bound = place.cpus.bound;
    for (const auto& cpus : {without(bound, workers), without(place.cpus.allowed, workers), bound}) {
        if (!cpus.empty()) {
            return cpus;
        }
    }
    return place.cpus.allowed;
}

/// The arguments that a client of `pollperf` would have. The other end of each connection is another rank.
TestArguments as_client(const MeshArguments& arguments) {
    TestArguments client;
    client.address = "mesh";
    client.device = arguments.device;
    client.config = arguments.config;
    client.attach = arguments.attach;
    client.path = arguments.path;
    client.gid_index = arguments.gid_index;
    client.inline_size = arguments.inline_size;
    client.wait = arguments.wait;
    client.timeout = arguments.timeout;
    client.duration = arguments.duration;
    client.rounds = 1;
    client.json = arguments.json;
    client.csv = arguments.csv;
    client.report = arguments.report;
    return client;
}

void refuse_what_has_no_mesh(const MeshArguments& arguments, const RankPlace& place) {
    if (place.ranks < 2) {
        throw UsageError("a mesh has two ranks at least: start it by mpirun -np 2, or by srun --mpi=pmix");
    }
    if (arguments.incast_to && *arguments.incast_to >= static_cast<std::uint32_t>(place.ranks)) {
        throw UsageError(fmt::format("--incast-to {}: there are ranks 0 to {}", *arguments.incast_to, place.ranks - 1));
    }
    if (arguments.device.empty() && arguments.config.empty()) {
        throw UsageError(
            "say what to measure: --device NAME (as ibv_devices(1) prints it), or --config FILE and --attach SOCKET");
    }
    if (arguments.attach.empty() && arguments.path == "attached") {
        throw UsageError("--path attached: say where the pollcored listens: --attach SOCKET");
    }
    if (!arguments.wait.empty() && arguments.wait != "spin" && arguments.wait != "yield" && arguments.wait != "event") {
        throw UsageError(fmt::format("--wait {}: there are spin, yield and event", arguments.wait));
    }
    if (arguments.op == op_name(Op::fetch_add) || arguments.op == op_name(Op::compare_swap)) {
        throw UsageError(fmt::format("--op {}: bandwidth has write, read, send and write-imm", arguments.op));
    }
    if (arguments.iterations && (*arguments.iterations < 2 || *arguments.iterations > 1'000'000'000)) {
        throw UsageError(fmt::format("--iters {}: it takes 2 to 1000000000", *arguments.iterations));
    }
    if (arguments.device.starts_with("soft") && arguments.attach.empty()) {
        throw UsageError(
            "--device: a software device ends with its process, so it connects no ranks; ranks that are attached to "
            "one "
            "pollcored can measure its software device: --attach");
    }
}

}  // namespace

MeshOptions resolve(const MeshArguments& arguments, const RankPlace& place) {
    refuse_what_has_no_mesh(arguments, place);
    MeshOptions options;
    resolve_parts(arguments.only, options);
    options.outlier = parse_share(arguments.outlier);
    options.serial = arguments.serial;
    options.iterations = arguments.iterations.value_or(0);
    if (arguments.incast_to) {
        options.incast_to = static_cast<int>(*arguments.incast_to);
    }
    const auto local = static_cast<std::size_t>(place.local_rank);
    const bool own_worker = arguments.path == "runtime";

    TestArguments client = as_client(arguments);
    client.test = Test::bw;
    client.queue_pairs =
        static_cast<std::uint32_t>(place.ranks - 1);  // all to all has these, so there is memory for them
    client.tx_depth = arguments.tx_depth;
    client.rx_depth = 2 * arguments.tx_depth.value_or(kDepth);
    client.op = arguments.op;
    client.size = {arguments.size};
    if (client.wait.empty()) {
        // Threads that spin on one CPU would wait for each other for whole time slices.
        const auto threads = static_cast<std::size_t>(place.local_ranks) * (own_worker ? 2 : 1);
        client.wait = threads > cpus_for_threads(place, {}).size() || place.cpus.one_for_all() ? "yield" : "spin";
    }
    if (own_worker && arguments.config.empty() && arguments.core.empty() && place.cpus.allowed.size() > 1) {
        const auto cpus = cpus_for_threads(place, {});
        const auto& all = cpus.size() > 1 ? cpus : place.cpus.allowed;
        client.core = {in_turn(all, 2 * local)};
        client.worker_core = {in_turn(all, 2 * local + 1)};
        client.share_core = 2 * static_cast<std::size_t>(place.local_ranks) > all.size();
    } else if (!arguments.core.empty()) {
        client.core = {arguments.core[local % arguments.core.size()]};
    }
    options.bandwidth = resolve(client, place.cpus);
    if (options.bandwidth.paths.size() != 1 || options.bandwidth.ops.size() != 1) {
        throw UsageError(fmt::format("{}: a mesh has one at a time", options.bandwidth.paths.size() != 1
                                                                         ? "--path " + arguments.path
                                                                         : "--op " + arguments.op));
    }
    if (options.bandwidth.software() && arguments.attach.empty()) {
        throw UsageError(
            "--config: its device is a software device, which ends with its process, so it connects no ranks; add "
            "--attach");
    }
    options.duration = options.bandwidth.duration;

    client.test = Test::lat;
    client.queue_pairs.reset();
    client.tx_depth.reset();
    client.rx_depth.reset();
    client.op = "send";
    client.size = {arguments.latency_size};
    try {
        options.latency = resolve(client, place.cpus);
    } catch (const UsageError& error) {
        const std::string_view text = error.what();
        constexpr std::string_view kSize = "--size";
        if (!text.starts_with(kSize)) {
            throw;
        }
        throw UsageError(fmt::format("--latency-size{}", text.substr(kSize.size())));
    }

    if (client.core.empty()) {
        std::set<std::uint32_t> workers;
        if (options.latency.has_worker()) {
            for (const WorkerConfig& worker : options.latency.config.workers) {
                workers.insert(worker.core);
            }
        }
        options.latency.cores = {in_turn(cpus_for_threads(place, workers), local)};
        options.bandwidth.cores = options.latency.cores;
    }
    return options;
}

std::vector<std::pair<std::string, std::string>> settings_of(const MeshOptions& options) {
    const std::string duration = config::print_duration(options.duration.count(), 1);
    std::vector<std::string> parts;
    for (const auto& [with, name] :
         {std::pair(options.with_latency, "latency"), std::pair(options.with_bandwidth, "bandwidth"),
          std::pair(options.with_incast, "incast"), std::pair(options.with_all_to_all, "all-to-all")}) {
        if (with) {
            parts.emplace_back(name);
        }
    }
    return {{"only", fmt::format("{}", fmt::join(parts, ","))},
            {"path", std::string(path_name(options.path()))},
            {"latency-size", fmt::to_string(options.latency_size())},
            {"op", std::string(op_name(options.op()))},
            {"size", fmt::to_string(options.size())},
            {"tx-depth", fmt::to_string(options.bandwidth.tx_depth)},
            {"duration", duration},
            {"iters", options.iterations == 0 ? "by duration" : fmt::to_string(options.iterations)},
            {"incast-to", options.incast_to ? fmt::to_string(*options.incast_to) : "each"},
            {"serial", options.serial ? "yes" : "no"},
            {"outlier", fmt::format("{:g}%", options.outlier * 100)}};
}

}  // namespace pollcore::perf
