#include "place.hpp"

#include <arpa/inet.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <limits>

#include <fmt/format.h>

#include "connect/transitions.hpp"
#include "device/open_device.hpp"
#include "option_values.hpp"
#include "pollperf/measure/path_run_of.hpp"
#include "pollperf/paths/direct_path.hpp"
#include "pollperf/paths/runtime_path.hpp"
#include "pollperf/threads.hpp"

namespace pollcore::perf {
namespace {

// The usual limit for inline data in bytes: the limit of perftest for writes. Inline data saves a NIC a read over its
// bus. The software device has no bus. There inline data helps only if it fits into the cache line of the request, so
// that the worker need not fetch another cache line.
constexpr std::uint32_t kInlineUsual = 220;

std::string text_of(const ibv_gid& gid) {
    char text[INET6_ADDRSTRLEN] = "";
    const bool v4 = IN6_IS_ADDR_V4MAPPED(reinterpret_cast<const in6_addr*>(gid.raw));
    (void)::inet_ntop(v4 ? AF_INET : AF_INET6, gid.raw + (v4 ? 12 : 0), text, sizeof text);
    return text;
}

// The address of the GID with this index. A configuration names a GID by address, because the index may change.
std::string gid_address(const DeviceConfig& config, std::uint32_t index) {
    const auto device = open_device(config);
    for (const GidEntry& entry : device->gids()) {
        if (entry.index == index && entry.type == IBV_GID_TYPE_ROCE_V2) {
            return text_of(entry.gid);
        }
    }
    throw UsageError(fmt::format("--gid-index {}: {} has no such GID of RoCE v2", index, device->describe()));
}

}  // namespace

Runtime& OwnRuntime::get(const Config& config) {
    const std::lock_guard lock(mutex_);
    if (!runtime_) {
        runtime_.emplace(config);
    }
    return *runtime_;
}

std::string OwnRuntime::socket() {
    const std::lock_guard lock(mutex_);
    if (!server_) {
        attach_ = {.path = std::filesystem::temp_directory_path() / fmt::format("pollperf-{}.socket", ::getpid()),
                   .mode = 0600,
                   .registered_max = std::numeric_limits<std::uint64_t>::max()};
        server_.emplace(*runtime_, attach_);
    }
    return attach_.path.string();
}

Place::Place(PlaceOptions options, std::shared_ptr<OwnRuntime> runtime)
    : options_(std::move(options)), runtime_(std::move(runtime)) {
    if (options_.gid_index) {
        DeviceConfig& device = options_.config.devices.front();
        device.gid = gid_address(device, *options_.gid_index);
    }
}

Place::~Place() = default;

void Place::prefer_address(const std::string& address) {
    DeviceConfig& config = options_.config.devices.front();
    if (options_.software() || !config.gid.empty() || !options_.attach.empty()) {
        return;
    }
    const auto device = open_device(config);
    const auto gids = device->gids();
    if (std::any_of(gids.begin(), gids.end(), [&](const GidEntry& entry) {
            return entry.type == IBV_GID_TYPE_ROCE_V2 && text_of(entry.gid) == address;
        })) {
        config.gid = address;
    }
}

Device& Place::plain() {
    if (!plain_) {
        plain_ = open_device(options_.config.devices.front());
        device_description_ = plain_->describe();
    }
    return *plain_;
}

Context& Place::context(PathKind path) {
    if (path == PathKind::runtime) {
        Runtime& runtime = runtime_->get(options_.config);
        describe(runtime);
        return runtime;
    }
    if (!attachment_) {
        std::string socket = options_.attach;
        if (socket.empty()) {
            (void)runtime_->get(options_.config);
            socket = runtime_->socket();
        }
        attachment_.emplace(AttachOptions{.path = socket, .name = "pollperf"});
        describe(*attachment_);
    }
    return *attachment_;
}

void Place::describe(const Context& context) {
    const RuntimeReport report = context.report();
    device_description_ = report.devices.front().description;
    memory_ = report.memory;
    hugepages_ = report.hugepages;
}

std::uint32_t Place::inline_most(PathKind path) {
    const std::uint32_t device_most =
        has_worker(path) ? context(path).report().devices.front().inline_max : plain().limits().inline_max;
    if (!options_.inline_size) {
        return std::min({options_.software() ? WorkRequest::kOwnPayload : kInlineUsual, device_most, kInlineMax});
    }
    if (*options_.inline_size > device_most) {
        throw UsageError(fmt::format("--inline_size {}: {} takes at most {} bytes inline", *options_.inline_size,
                                     device_description_, device_most));
    }
    return *options_.inline_size;
}

std::uint16_t Place::port_mtu(PathKind path) {
    return has_worker(path) ? context(path).query_port(options_.device).active_mtu
                            : mtu_to_bytes(plain().query_port().active_mtu);
}

std::unique_ptr<PathRun> Place::make(PathKind path, PathSetup setup, PathPlan plan) {
    setup.wait = options_.wait_on(path);
    setup.gid = options_.config.devices.front().gid;
    setup.workers = options_.workers;
    setup.inline_max = inline_most(path);
    setup.others = plan.role != Role::both || plan.cores.size() > 1;
    const std::size_t threads = plan.cores.size();
    const auto of = [&]<class Path>(auto&& one) -> std::unique_ptr<PathRun> {
        std::vector<std::unique_ptr<Path>> paths;
        for (std::size_t i = 0; i < threads; ++i) {
            // Where its thread will run, so that its memory is near. Each thread begins at another worker.
            const PinnedScope pinned(plan.cores[i]);
            paths.push_back(one(setup));
            if (!setup.workers.empty()) {
                std::rotate(setup.workers.begin(),
                            setup.workers.begin() + static_cast<std::ptrdiff_t>(setup.sessions % setup.workers.size()),
                            setup.workers.end());
            }
        }
        return std::make_unique<PathRunOf<Path>>(std::move(plan), std::move(paths));
    };
    switch (path) {
        case PathKind::direct:
            return of.template operator()<DirectPath>(
                [&](const PathSetup& one) { return std::make_unique<DirectPath>(plain(), one); });
        case PathKind::event:
            return of.template operator()<EventPath>(
                [&](const PathSetup& one) { return std::make_unique<EventPath>(plain(), one); });
        case PathKind::runtime: {
            Runtime& runtime = runtime_->get(options_.config);
            plan.worker_thread = runtime.worker_thread_id(0);
            return of.template operator()<RuntimePath>(
                [&](const PathSetup& one) { return std::make_unique<RuntimePath>(runtime, options_.device, one); });
        }
        case PathKind::attached:
            if (options_.attach.empty()) {
                plan.worker_thread = runtime_->get(options_.config).worker_thread_id(0);
            }
            return of.template operator()<AttachedPath>([&](const PathSetup& one) {
                return std::make_unique<AttachedPath>(context(path), options_.device, one);
            });
    }
    throw MeasurementError("there is no such path");
}

}  // namespace pollcore::perf
