// Makes the objects that each mode needs, and runs the measurements in order.
#include "lat.hpp"

#include <arpa/inet.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <optional>

#include <fmt/format.h>

#include "base/log.hpp"
#include "device/open_device.hpp"
#include "direct_path.hpp"
#include "peer.hpp"
#include "pollcore/attach.hpp"
#include "pollcore/attach_server.hpp"
#include "pollcore/runtime.hpp"
#include "rounds.hpp"
#include "runtime_path.hpp"

namespace pollcore::perf {
namespace {

constexpr std::chrono::milliseconds kRoundTripTime{1000};

// The usual limit for inline data in bytes: the limit of perftest for writes. Inline data saves a NIC a read over its
// bus. The software device has no bus. There inline data helps only if it fits into the cache line of the request, so
// that the worker need not fetch another cache line.
constexpr std::uint32_t kInlineUsual = 220;

std::uint32_t choose_inline(const LatOptions& options, std::uint32_t device_max, const std::string& device) {
    if (!options.inline_size) {
        const bool software = options.config.devices.front().kind == DeviceConfig::Kind::soft;
        return std::min({software ? WorkRequest::kOwnPayload : kInlineUsual, device_max, kInlineMax});
    }
    if (*options.inline_size > device_max) {
        throw UsageError(fmt::format("--inline_size {}: {} takes at most {} bytes inline", *options.inline_size, device,
                                     device_max));
    }
    return *options.inline_size;
}

Workload make_workload(const LatOptions& options, Op op, std::uint32_t inline_max) {
    Workload workload{.op = op, .size = size_of(options, op), .verify = options.verify};
    workload.one_sided = op == Op::read || op == Op::fetch_add;
    workload.inlined = !workload.one_sided && workload.size <= inline_max;
    return workload;
}

// The address of the GID with this index. A configuration names a GID by address, because the index may change.
std::string gid_address(const DeviceConfig& config, std::uint32_t index) {
    const auto device = open_device(config);
    for (const GidEntry& entry : device->gids()) {
        if (entry.index == index && entry.type == IBV_GID_TYPE_ROCE_V2) {
            char text[INET6_ADDRSTRLEN] = "";
            const bool v4 = IN6_IS_ADDR_V4MAPPED(reinterpret_cast<const in6_addr*>(entry.gid.raw));
            (void)::inet_ntop(v4 ? AF_INET : AF_INET6, entry.gid.raw + (v4 ? 12 : 0), text, sizeof text);
            return text;
        }
    }
    throw UsageError(fmt::format("--gid-index {}: {} has no such GID of RoCE v2", index, device->describe()));
}

// Lets this process attach to its own runtime, at a private socket.
class OwnServer {
public:
    explicit OwnServer(Runtime& runtime)
        : config_{.path = std::filesystem::temp_directory_path() / fmt::format("pollperf-{}.socket", ::getpid()),
                  .mode = 0600,
                  .registered_max = std::numeric_limits<std::uint64_t>::max()},
          server_(runtime, config_) {}
    [[nodiscard]] std::string path() const { return config_.path.string(); }

private:
    const AttachConfig config_;
    AttachServer server_;
};

template <class Path>
void connect_ends(Path& path) {
    path.connect_ends();
    path.end(kNear).remote = path.own_block(kFar);
    path.end(kFar).remote = path.own_block(kNear);
}

// One path in a measurement of several paths. A null path is not measured: all calls do nothing.
template <class Path>
class Part {
public:
    explicit Part(Path* path) : path_(path) {}
    void begin(const LatOptions& options, const Workload& workload, Watch& watch) {
        measurement_.reset();
        if (path_ != nullptr) {
            begin_workload(*path_, workload, 2);
            measurement_.emplace(*path_, workload, Role::both, options.iterations, watch);
            measurement_->warm_up(options.warmup);
        }
    }
    void round(std::uint32_t iterations) {
        if (measurement_) {
            measurement_->round(iterations);
        }
    }
    void tell(LatResults& results) const {
        if (measurement_) {
            results.paths.push_back(measurement_->result());
        }
    }

private:
    Path* path_;
    std::optional<Measurement<Path>> measurement_;
};

// Measures with both ends in this process. The paths take turns, so that a change of the machine's speed affects all
// paths in the same way.
template <class... Paths>
void measure_both_ends(const LatOptions& options, std::uint32_t inline_max, LatResults& results, Part<Paths>... parts) {
    Watch watch(options.timeout);
    const PinnedScope pinned(options.core);
    for (const Op op : options.ops) {
        const Workload workload = make_workload(options, op, inline_max);
        (parts.begin(options, workload, watch), ...);
        std::uint32_t done = 0;
        for (std::uint32_t round = 1; round <= options.rounds; ++round) {
            const auto up_to = static_cast<std::uint32_t>(std::uint64_t{options.iterations} * round / options.rounds);
            (parts.round(up_to - done), ...);
            done = up_to;
        }
        (parts.tell(results), ...);
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

// `Direct` is the class for the path of plain verbs: DirectPath or EventPath.
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
    setup.wait = options.wait;
    setup.flow = options.flow;

    // These variables are destroyed from the bottom: first the paths, then the objects that the paths use.
    std::unique_ptr<Device> device;
    std::optional<Runtime> embedded;
    std::optional<OwnServer> server;
    std::optional<Attachment> attachment;
    std::unique_ptr<Direct> direct;
    std::unique_ptr<RuntimePath> through_runtime;
    std::unique_ptr<AttachedPath> through_attachment;
    if (options.plain_verbs()) {
        device = open_device(device_config);
        results.device = device->describe();
        setup.inline_max = choose_inline(options, device->limits().inline_max, results.device);
        direct = std::make_unique<Direct>(*device, setup);
    }
    const auto describe = [&](const Context& context) {
        const RuntimeReport report = context.report();
        results.device = report.devices.front().description;
        results.memory = report.memory;
        results.hugepages = report.hugepages;
        setup.inline_max = choose_inline(options, report.devices.front().inline_max, results.device);
    };
    const auto worker_thread = [&](std::uint32_t worker) { return embedded ? embedded->worker_thread_id(worker) : 0; };
    if (options.own_worker()) {
        describe(embedded.emplace(options.config));
    }
    if (options.runtime) {
        through_runtime =
            std::make_unique<RuntimePath>(*embedded, worker_thread, options.device, options.worker, setup);
    }
    if (options.attached) {
        if (options.attach.empty()) {
            server.emplace(*embedded);
        }
        attachment.emplace(AttachOptions{.path = server ? server->path() : options.attach, .name = "pollperf"});
        if (!embedded) {
            describe(*attachment);
        }
        through_attachment =
            std::make_unique<AttachedPath>(*attachment, worker_thread, options.device, options.worker, setup);
    }
    if (options.role == Role::both) {
        const auto connect = [](auto& path) {
            if (path) {
                connect_ends(*path);
            }
        };
        connect(direct);
        connect(through_runtime);
        connect(through_attachment);
        measure_both_ends(options, setup.inline_max, results, Part(direct.get()), Part(through_runtime.get()),
                          Part(through_attachment.get()));
    } else if (direct) {
        measure_with_peer(options, setup.inline_max, *direct, results);
    } else if (through_runtime) {
        measure_with_peer(options, setup.inline_max, *through_runtime, results);
    } else {
        measure_with_peer(options, setup.inline_max, *through_attachment, results);
    }
}

}  // namespace

LatResults run_lat(LatOptions options) {
    set_log_level(options.config.log_level);
    LatResults results;
    results.machine = this_machine();
    (void)cycles_per_ns();  // the first call measures the clock for a while: do it before the measurement

    // The raw round trip is measured while no worker of this process runs. It serves to judge a path over such a
    // worker.
    const auto round_trip = [&options]() -> std::optional<RoundTrip> {
        // With a daemon's worker it is not measured, because that worker polls on its core all the time.
        return options.own_worker() && !options.one_cpu()
                   ? measure_round_trip(options.core, options.worker_core, kRoundTripTime)
                   : std::nullopt;
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
