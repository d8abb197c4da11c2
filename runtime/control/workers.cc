// Starts workers.
#include <sys/epoll.h>

#include <cerrno>
#include <chrono>

#include <fmt/format.h>

#include "base/event_fd.hpp"
#include "control/runtime_state.hpp"

namespace pollcore {
namespace {

// While a queue pair waits for its peer's credit, it checks this often whether the peer has vanished. Before such a
// check fails, the transport's retries take further time.
constexpr std::chrono::seconds kProbeEvery{1};

// Throws Error if the worker's configuration asks for something that the device cannot do.
void require_offered(const WorkerConfig& worker, Device& device) {
    const DeviceLimits& limits = device.limits();
    if (worker.poll == PollVerbs::extended && !limits.extended_cqs) {
        throw Error(EOPNOTSUPP,
                    fmt::format("worker \"{}\" has poll = \"extended\", and {} has no extended completion queues; "
                                "\"auto\" uses them where there are any",
                                worker.name, device.describe()));
    }
    if (worker.comp_vector && *worker.comp_vector >= limits.comp_vectors) {
        throw Error(EINVAL,
                    fmt::format("worker \"{}\" has comp_vector = {}, and the completion vectors of {} are 0 to {}; "
                                "\"spread\" uses all of them",
                                worker.name, *worker.comp_vector, device.describe(), limits.comp_vectors - 1));
    }
    if (worker.moderation_count > 1 && (worker.moderation_count > limits.moderation_count_max ||
                                        worker.moderation_period.count() > limits.moderation_period_max_us)) {
        throw Error(
            EOPNOTSUPP,
            limits.moderation_count_max == 0
                ? fmt::format("worker \"{}\" has moderation_count = {}, and {} does not moderate its completion "
                              "events; without the key each completion wakes the worker",
                              worker.name, worker.moderation_count, device.describe())
                : fmt::format("worker \"{}\" has moderation_count = {} and moderation_period = \"{}us\", and {} takes "
                              "up to {} and \"{}us\"",
                              worker.name, worker.moderation_count, worker.moderation_period.count(), device.describe(),
                              limits.moderation_count_max, limits.moderation_period_max_us));
    }
}

}  // namespace

CompletionChannel* RuntimeState::make_worker_objects(DeviceSlot& device, std::uint32_t index,
                                                     const WorkerSlot& worker) {
    ThreadDomain* const domain =
        device.domains.emplace(index, device.device->create_thread_domain()).first->second.get();
    if (!worker.bell.valid()) {
        return nullptr;
    }
    return device.channels.emplace(index, device.device->create_channel(domain)).first->second.get();
}

void RuntimeState::start_worker(const WorkerConfig& worker_config, std::uint32_t index) {
    for (const auto& device : devices_) {
        require_offered(worker_config, *device->device);
    }
    auto slot = std::make_unique<WorkerSlot>();
    slot->config = worker_config;
    const bool sleeps = worker_config.idle.has(IdlePolicy::event);
    if (sleeps) {
        slot->bell = make_event_fd("a worker that sleeps");
        slot->visitors = UniqueFd(::epoll_create1(EPOLL_CLOEXEC));
        if (!slot->visitors.valid()) {
            throw Error(errno, "cannot make an epoll for a worker that sleeps");
        }
    }
    slot->worker = std::make_unique<Worker>(
        WorkerOptions{.submit_burst = worker_config.submit_burst,
                      .complete_burst = worker_config.complete_burst,
                      .qp_burst = worker_config.qp_burst,
                      .qps_max = config.qps_max,
                      .bell = slot->bell.get(),
                      .visitors = slot->visitors.get(),
                      .solicited_only = worker_config.wake_on == WakeOn::solicited,
                      .clock = platform->cycles_function(),
                      .probe_cycles = platform->cycles_from(kProbeEvery),
                      .stall_cycles = platform->cycles_from(config.statistics.stall_threshold)});
    slot->proxy = std::make_unique<WorkerProxy>(
        *slot->worker, worker_config.name, counters, [this](std::uint32_t looks) { platform->wait_for_worker(looks); },
        [this] { return platform->now(); });
    for (const auto& device : devices_) {
        if (CompletionChannel* const channel = make_worker_objects(*device, index, *slot)) {
            slot->worker->add_channel(*channel);
        }
    }
    WorkerSlot& worker = *slot;
    workers_.push_back(std::move(slot));
    worker.thread = platform->start_worker(worker_config, *worker.worker);
}

const WorkerCounters& RuntimeState::worker_counters(std::size_t index) {
    return worker(index).worker->counters();
}

WorkerSlot& RuntimeState::worker(std::size_t index) {
    if (index >= workers_.size()) {
        throw Error(EINVAL, fmt::format("worker {}: there are {}", index, workers_.size()));
    }
    return *workers_[index];
}

}  // namespace pollcore
