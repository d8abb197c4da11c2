// Which objects there are in which mode, and in which order things happen.
#include "lat.hpp"

#include <arpa/inet.h>

#include <algorithm>
#include <optional>

#include <fmt/format.h>

#include "base/log.hpp"
#include "device/open_device.hpp"
#include "direct_path.hpp"
#include "measurement.hpp"
#include "peer.hpp"
#include "pollcore/attach.hpp"
#include "pollcore/runtime.hpp"
#include "runtime_path.hpp"

namespace pollcore::perf {
namespace {

constexpr std::chrono::milliseconds kRoundTripTime{1000};

// perftest's for writes. A NIC that has the bytes in the request saves itself a read over its bus. The software device has
// no bus: there it pays as long as the bytes stand in the request's own cache line, and the worker need not fetch another.
constexpr std::uint32_t kInlineUsual = 220;

std::uint32_t choose_inline(const LatOptions& options, std::uint32_t device_max, const std::string& device) {
    if (!options.inline_size) {
        const bool software = options.config.devices.front().kind == DeviceConfig::Kind::soft;
        return std::min({software ? WorkRequest::kOwnPayload : kInlineUsual, device_max, kInlineMax});
    }
    if (*options.inline_size > device_max) {
        throw UsageError(fmt::format("--inline_size {}: {} takes at most {} bytes inline",
                                     *options.inline_size, device, device_max));
    }
    return *options.inline_size;
}

Workload make_workload(const LatOptions& options, Op op, std::uint32_t inline_max) {
    Workload workload{.op = op, .size = size_of(options, op), .verify = options.verify};
    workload.one_sided = op == Op::read || op == Op::fetch_add;
    workload.inlined = !workload.one_sided && workload.size <= inline_max;
    return workload;
}

// Everything else takes the address that a GID stands for, since indexes move.
std::string gid_address(const DeviceConfig& config, std::uint32_t index) {
    const auto device = open_device(config);
    for (const GidEntry& entry : device->gids()) {
        if (entry.index == index && entry.roce_v2) {
            char text[INET6_ADDRSTRLEN] = "";
            const bool v4 = IN6_IS_ADDR_V4MAPPED(reinterpret_cast<const in6_addr*>(entry.gid.raw));
            (void)::inet_ntop(v4 ? AF_INET : AF_INET6, entry.gid.raw + (v4 ? 12 : 0), text, sizeof text);
            return text;
        }
    }
    throw UsageError(fmt::format("--gid-index {}: {} has no such GID of RoCE v2", index, device->describe()));
}

template <class Path>
void connect_ends(Path& path) {
    path.connect_ends();
    path.end(kNear).remote = path.own_block(kFar);
    path.end(kFar).remote = path.own_block(kNear);
}

// Both ends here; the paths by turns, so that whatever drifts meets both alike.
template <class Direct>
void measure_both_ends(const LatOptions& options, std::uint32_t inline_max, Direct* direct, RuntimePath* runtime,
                       LatResults& results) {
    Watch watch(options.timeout);
    const PinnedScope pinned(options.core);
    for (const Op op : options.ops) {
        const Workload workload = make_workload(options, op, inline_max);
        std::optional<Measurement<Direct>> on_direct;
        std::optional<Measurement<RuntimePath>> on_runtime;
        const auto begin = [&](auto& measurement, auto* path) {
            if (path != nullptr) {
                begin_workload(*path, workload, 2);
                measurement.emplace(*path, workload, Role::both, options.iterations, watch);
                measurement->warm_up(options.warmup);
            }
        };
        begin(on_direct, direct);
        begin(on_runtime, runtime);
        std::uint32_t done = 0;
        for (std::uint32_t round = 1; round <= options.rounds; ++round) {
            const auto up_to =
                static_cast<std::uint32_t>(std::uint64_t{options.iterations} * round / options.rounds);
            if (on_direct) {
                on_direct->round(up_to - done);
            }
            if (on_runtime) {
                on_runtime->round(up_to - done);
            }
            done = up_to;
        }
        if (on_direct) {
            results.paths.push_back(on_direct->result());
        }
        if (on_runtime) {
            results.paths.push_back(on_runtime->result());
        }
    }
}

template <class Path>
void measure_with_peer(const LatOptions& options, std::uint32_t inline_max, Path& path, LatResults& results) {
    const Workload workload = make_workload(options, options.ops.front(), inline_max);
    if (options.role == Role::client) {
        run_client(options, workload, path, results);
    } else {
        run_server(options, workload, path, results);
    }
}

// `Direct`: the path of plain verbs.
template <class Direct>
void measure_paths(LatOptions& options, LatResults& results) {
    PathSetup setup;
    std::uint32_t size_max = 0;
    for (const Op op : options.ops) {
        size_max = std::max(size_max, size_of(options, op));
    }
    setup.layout = EndLayout(size_max);
    setup.ends = options.role == Role::both ? 2 : 1;
    DeviceConfig& device_config = options.config.devices.front();
    if (options.gid_index) {
        device_config.gid = gid_address(device_config, *options.gid_index);
    }
    setup.gid = device_config.gid;
    setup.sleeps = options.sleeps;
    setup.flow = options.flow;

    // Destroyed from the bottom: paths, then what they run on.
    std::unique_ptr<Device> device;
    std::optional<Runtime> embedded;
    std::optional<Attachment> attached;
    std::unique_ptr<Direct> direct;
    std::unique_ptr<RuntimePath> through_runtime;
    if (options.direct || options.event) {
        device = open_device(device_config);
        results.device = device->describe();
        setup.inline_max = choose_inline(options, device->limits().inline_max, results.device);
        direct = std::make_unique<Direct>(*device, setup);
    }
    if (options.runtime) {
        Context& runtime = options.attach.empty() ? static_cast<Context&>(embedded.emplace(options.config))
                                                  : attached.emplace(AttachOptions{.path = options.attach, .name = "pollperf"});
        const RuntimeReport report = runtime.report();
        results.device = report.devices.front().description;
        results.memory = report.memory;
        results.hugepages = report.hugepages;
        setup.inline_max = choose_inline(options, report.devices.front().inline_max, results.device);
        const auto worker_thread = [&](std::uint32_t worker) { return embedded ? embedded->worker_thread_id(worker) : 0; };
        through_runtime = std::make_unique<RuntimePath>(runtime, worker_thread, options.device, options.worker, setup);
    }
    if (options.role == Role::both) {
        if (direct) {
            connect_ends(*direct);
        }
        if (through_runtime) {
            connect_ends(*through_runtime);
        }
        measure_both_ends(options, setup.inline_max, direct.get(), through_runtime.get(), results);
    } else if (direct) {
        measure_with_peer(options, setup.inline_max, *direct, results);
    } else {
        measure_with_peer(options, setup.inline_max, *through_runtime, results);
    }
}

}  // namespace

LatResults run_lat(LatOptions options) {
    set_log_level(options.config.log_level);
    LatResults results;
    results.machine = this_machine();
    (void)cycles_per_ns();  // measured now, not in the middle of things

    // While no worker runs. Without a worker there is nothing to compare with it.
    const auto round_trip = [&options]() -> std::optional<RoundTrip> {
        // Nor where a daemon's worker polls on its core.
        return options.runtime && options.attach.empty() ? measure_round_trip(options.core, options.worker_core, kRoundTripTime) : std::nullopt;
    };
    const std::optional<RoundTrip> before = round_trip();
    options.event ? measure_paths<EventPath>(options, results) : measure_paths<DirectPath>(options, results);
    const std::optional<RoundTrip> after = round_trip();
    if (before && after) {
        results.round_trip = {*before, *after};
    }
    return results;
}

}  // namespace pollcore::perf
