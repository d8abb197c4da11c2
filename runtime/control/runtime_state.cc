// Start and stop of a runtime.
#include "control/runtime_state.hpp"

#include <algorithm>
#include <cerrno>
#include <future>
#include <numeric>
#include <utility>

#include <fmt/format.h>

#include "base/log.hpp"
#include "base/thread_health.hpp"
#include "pollcore/statistics.hpp"

namespace pollcore {
namespace {

constexpr const char* kControlThread = "pollcore-ctl";
constexpr std::chrono::milliseconds kTick{50};
constexpr std::chrono::microseconds kLittle{20};
constexpr std::chrono::seconds kSearchUsual{5};

}  // namespace

RuntimeState::RuntimeState(const Config& wanted, std::unique_ptr<Platform> stands_on)
    : config(wanted), platform(std::move(stands_on)) {
    validate(config);
    set_log_level(config.log_level);
    platform->prepare(config, report_);

    qps_.resize(config.qps_max);
    qp_lives_.resize(config.qps_max, 0);
    srqs_.resize(kSrqsMax);
    srq_generations_.resize(kSrqsMax, 0);
    executor_ = platform->start_executor(kControlThread);
    loop_ = platform->start_event_loop(*executor_, kTick, [this] {
        take_worker_reports();
        look_for_withdrawn_requests_here();
        expire_attempts_here();
        post_endings_here();  // if a job could not be posted for lack of memory
        count_things_here();
        if (statistics_ != nullptr) {
            statistics_->write(!running_.load());
        }
    });
    try {
        executor_->run([&] {
            for (const DeviceConfig& device : config.devices) {
                open_device(device);
            }
            for (std::size_t i = 0; i < config.workers.size(); ++i) {
                start_worker(config.workers[i], static_cast<std::uint32_t>(i));
            }
            statistics_ =
                RuntimeStatistics::make({config, *platform, counters, workers_, devices_, sessions_, qps_, host_});
        });
        running_.store(true);
    } catch (...) {
        executor_->run([&] { return stop_here(); }, Executor::Patience::unlimited);
        loop_->stop();
        executor_.reset();
        throw;
    }
}

RuntimeState::~RuntimeState() {
    if (executor_ != nullptr) {
        executor_->run([&] { return stop_here(); }, Executor::Patience::unlimited);
        loop_->stop();
        executor_.reset();
    }
    loop_.reset();
}

void RuntimeState::open_device(const DeviceConfig& device_config) {
    // The device gets its place in devices_ first: there it outlives all objects made on it, even if a later step
    // fails.
    DeviceSlot& device = *devices_.emplace_back(std::make_unique<DeviceSlot>());
    device.config = device_config;
    device.index = static_cast<std::uint32_t>(devices_.size() - 1);
    device.number = ++device_numbers_;
    device.device = platform->open_device(device_config);
    device.description = device.device->describe();
    device.connector = make_connector(*device.device);
    device.default_pd = next_pd_++;
    pds_.emplace(device.default_pd,
                 PdSlot{device.index, 0, UniquePd(device.device->create_pd(), {device.device.get()})});
    loop_->watch(device.device->async_fd(), [this, &device] { take_async_events(device); });
    loop_->watch(device.connector->fd(), [this, &device] { take_connect_events(device); });

    const DeviceLimits& limits = device.device->limits();
    ibv_device& verbs = *device.device->context()->device;
    report_.devices.push_back({.name = device_config.name,
                               .description = device.device->describe(),
                               .verbs_name = verbs.name,
                               .uverbs_name = device.device->has_kernel() ? verbs.dev_name : "",
                               .ibv_index = device.device->has_kernel() ? ::ibv_get_device_index(&verbs) : -1,
                               .port_num = device.device->port(),
                               .inline_max = limits.inline_max,
                               .qp_depth_max = limits.qp_depth_max,
                               .cqes_max = limits.cqes_max,
                               .sges_max = limits.sges_max,
                               .extended_cqs = limits.extended_cqs,
                               .memory_windows_1 = limits.memory_windows_1,
                               .memory_windows_2 = limits.memory_windows_2,
                               .invalidation = limits.invalidation,
                               .completion_timestamp_mask = limits.completion_timestamp_mask,
                               .hca_core_clock_khz = limits.hca_core_clock_khz});
}

bool RuntimeState::stop() {
    {
        std::unique_lock lock(outside_mutex_);
        stopping_ = true;
        await_outside_calls(lock);
    }
    return executor_->run([&] { return stop_here(); }, Executor::Patience::unlimited);
}

RuntimeState::OutsideCall::OutsideCall(RuntimeState& runtime) : runtime_(runtime) {
    const std::lock_guard lock(runtime.outside_mutex_);
    if (runtime.stopping_) {
        throw Error(ESHUTDOWN, "the runtime is stopped");
    }
    ++runtime.outside_calls_;
}

// Each call ends within the seconds that the kernel asks the network for.
void RuntimeState::await_outside_calls(std::unique_lock<std::mutex>& lock) {
    const auto none = [this] { return outside_calls_ == 0; };
    while (!none()) {
        (void)platform->wait(lock, outside_changed_, std::chrono::hours(1), none);
    }
}

RuntimeState::OutsideCall::~OutsideCall() {
    const std::lock_guard lock(runtime_.outside_mutex_);
    if (--runtime_.outside_calls_ == 0) {
        runtime_.outside_changed_.notify_all();
    }
}

bool RuntimeState::stop_here() {
    if (stopped_) {
        return *stopped_;
    }
    running_.store(false);
    if (host_ != nullptr) {
        host_->runtime_stops();
    }
    for (const auto& device : devices_) {
        if (device->client != 0 && device->device != nullptr) {
            device->device->let_go();  // the process may keep objects in use, and the daemon ends all the same
        }
    }
    const auto deadline = platform->now() + config.drain_timeout;
    bool whole = true;
    // If one object cannot be ended, the others must still be ended.
    const auto attempt = [&](auto&& end) {
        try {
            whole = end() && whole;
        } catch (const std::exception& error) {
            log_error("stopping: {}", error.what());
            whole = false;
        }
    };
    for (const auto& qp : qps_) {
        if (qp != nullptr) {
            attempt([&] { return close_qp_here(qp->handle, deadline); });
        }
    }
    for (auto& [id, session] : sessions_) {
        attempt([&, session_id = id] { return close_session_here(session_id, deadline); });
    }
    for (const auto& worker : workers_) {
        if (worker->thread != nullptr) {  // null if the worker did not start
            worker->thread->stop();
        }
    }
    for (const auto& worker : workers_) {
        if (worker->thread != nullptr) {
            worker->thread->join();
        }
    }
    // Now end the queue pairs that could not be closed above. Nobody polls their CQs any more.
    for (auto& qp : qps_) {
        qp.reset();
    }
    finish_endings_here();
    for (auto& srq : srqs_) {
        srq.reset();
    }
    for (auto& [id, session] : sessions_) {
        end_session_here(session);
    }
    for (const auto& worker : workers_) {
        worker->worker->acknowledge_events();
        worker->cqs.clear();
    }
    for (const auto& device : devices_) {
        if (device->connector != nullptr) {
            loop_->forget(device->connector->fd());
            loop_->forget(device->device->async_fd());
            device->connector.reset();
        }
    }
    ahs_.clear();
    for (const auto& window : windows_) {
        if (window != nullptr) {
            window->mw.reset();
        }
    }
    for (auto& [id, region] : regions_) {
        region.mr.reset();  // the memory stays until the application destroys its MemoryRegion
    }
    pds_.clear();
    for (const auto& device : devices_) {
        device->channels.clear();
        device->domains.clear();
        device->device.reset();
    }
    {
        const std::lock_guard lock(waiting_mutex_);
        // The attempts stay in the map, so that a waiting thread finds its attempt there, however late the thread
        // wakes.
        for (auto& [key, waited_for] : attempts_) {
            if (!std::exchange(waited_for.done, true)) {
                waited_for.event.kind = ConnectEvent::Kind::failed;
                waited_for.event.error = ESHUTDOWN;
                waited_for.event.text = "the runtime was stopped";
            }
        }
        requests_.clear();
    }
    tell_waiting();
    application_events.close();
    stopped_ = whole;
    return whole;
}

void RuntimeState::wait_a_little_here(std::uint32_t looks) {
    platform->wait_for_worker(looks);
    executor_->beat(steady_ns(platform->now()));
}

// Does not call Executor::beat(). So if a worker does not answer, the control thread counts as hanging (D33).
void RuntimeState::await_here(UseSearch& search) {
    auto warn_at = platform->now() + kSearchUsual;
    while (!search.over()) {
        if (platform->now() > warn_at) {
            log_error(
                "a worker does not say whether something is in use: it is stuck inside a provider's call, or its core "
                "is taken");
            warn_at += kSearchUsual;
        }
        platform->sleep(kLittle);
    }
}

Health RuntimeState::health() const {
    using Kind = ThreadHealth::Kind;
    constexpr std::chrono::nanoseconds kSecond = std::chrono::seconds(1);
    const double cycles_per_ns =
        static_cast<double>(platform->cycles_from(kSecond)) / static_cast<double>(kSecond.count());
    Health health;
    for (const auto& worker : workers_) {
        health.threads.push_back(thread_health(worker->config.name, Kind::worker, worker->worker->heartbeat(),
                                               platform->cycles(), cycles_per_ns));
        health.threads.back().turns = worker->worker->counters().steps.value();
    }
    health.threads.push_back(
        thread_health(kControlThread, Kind::control, executor_->heartbeat(), steady_ns(platform->now())));
    return health;
}

namespace {

[[noreturn]] void refuse_statistics() {
    throw Error(EOPNOTSUPP,
                "the runtime has no statistics: its configuration can switch them on ([statistics] segment)");
}

}  // namespace

// statistics_ is set before the runtime's first user is there, and stays.
statistics::Snapshot RuntimeState::statistics() {
    if (statistics_ == nullptr) {
        refuse_statistics();
    }
    return statistics::read_statistics(statistics_->fd());
}

UniqueFd RuntimeState::copy_statistics_here(std::uint32_t client) {
    if (statistics_ == nullptr) {
        refuse_statistics();
    }
    return statistics_->copy_for(client);
}

void RuntimeState::post(std::function<void()> job) {
    executor_->post_always([job = std::move(job)] {
        try {
            job();
        } catch (const std::exception& error) {
            log_error("control: {}", error.what());
        }
    });
}

void RuntimeState::call(std::function<void()> job) {
    // The task is shared, because the control thread may still be inside the task when the waiting thread returns from
    // call().
    const auto task = std::make_shared<std::packaged_task<void()>>(std::move(job));
    std::future<void> over = task->get_future();
    executor_->post_always([task] { (*task)(); });
    over.get();
}

void RuntimeState::count_things_here() noexcept {
    const auto there = [](const auto& slots) {
        return static_cast<std::uint64_t>(
            std::count_if(slots.begin(), slots.end(), [](const auto& slot) { return slot != nullptr; }));
    };
    counters.sessions.set(sessions_.size());
    counters.queue_pairs.set(there(qps_));
    counters.completion_queues.set(
        std::accumulate(workers_.begin(), workers_.end(), std::uint64_t{0},
                        [&](std::uint64_t all, const auto& worker) { return all + there(worker->cqs); }));
    counters.shared_receive_queues.set(there(srqs_));
    counters.receive_pools.set(there(pools_));
    counters.memory_regions.set(regions_.size());
    counters.protection_domains.set(pds_.size());
}

void RuntimeState::require_running() const {
    if (!running_.load()) {
        throw Error(ESHUTDOWN, "the runtime is stopped");
    }
}

DeviceSlot& RuntimeState::device_slot(const std::string& name) {
    DeviceSlot& device = find_device(name);
    if (device.lost) {
        throw Error(ENODEV, fmt::format("device \"{}\" was lost: it failed or was removed. Close what is on it; a new "
                                        "runtime opens it again when it is back",
                                        device.config.name));
    }
    return device;
}

DeviceSlot& RuntimeState::find_device(const std::string& name) {
    require_running();
    if (DeviceSlot* const own = client_device_here(name)) {
        return *own;
    }
    return *devices_[static_cast<std::size_t>(&configured_device(name) - config.devices.data())];
}

DeviceSlot* RuntimeState::client_device_here(const std::string& name) noexcept {
    const auto found = std::find_if(devices_.begin(), devices_.end(), [&](const auto& device) {
        return device->client != 0 && device->config.name == name;
    });
    return found != devices_.end() ? found->get() : nullptr;
}

const DeviceConfig& RuntimeState::configured_device(const std::string& name) const {
    if (name.empty() && config.devices.size() == 1) {
        return config.devices.front();
    }
    std::vector<std::string> names;
    for (const DeviceConfig& device : config.devices) {
        if (device.name == name) {
            return device;
        }
        names.push_back(device.name);
    }
    throw Error(ENODEV, name.empty() ? fmt::format("which device? The configuration has: {}", fmt::join(names, ", "))
                                     : fmt::format("no device \"{}\" in the configuration, which has: {}", name,
                                                   fmt::join(names, ", ")));
}

QpSlot* RuntimeState::find_qp(QpHandle handle) noexcept {
    QpSlot* qp = handle.index < qps_.size() ? qps_[handle.index].get() : nullptr;
    return qp != nullptr && qp->handle == handle ? qp : nullptr;
}

QpSlot* RuntimeState::find_qp_or_former(QpHandle handle) noexcept {
    QpSlot* qp = handle.index < qps_.size() ? qps_[handle.index].get() : nullptr;
    const bool is_it = qp != nullptr && handle.valid() && (qp->handle == handle || qp->former == handle);
    return is_it ? qp : nullptr;
}

QpSlot& RuntimeState::qp_slot(QpHandle handle) {
    require_running();
    if (QpSlot* qp = find_qp(handle); qp != nullptr) {
        return *qp;
    }
    if (const QpSlot* qp = find_qp_or_former(handle); qp != nullptr) {
        throw Error(EBUSY, fmt::format("queue pair {} was reset: first pass the event of its reset to "
                                       "QueuePair::renew, or close it",
                                       qp->called()));
    }
    throw Error(EINVAL, "this queue pair was closed");
}

QpSlot& RuntimeState::live_qp_slot(QpHandle handle) {
    QpSlot& qp = qp_slot(handle);
    if (qp.qp == nullptr) {
        throw Error(ENODEV,
                    fmt::format("queue pair {} ended with its device \"{}\", which was lost; it can only be closed",
                                qp.called(), devices_[qp.device]->config.name));
    }
    return qp;
}

Device& RuntimeState::device(const std::string& name) {
    return *executor_->run([&] { return find_device(name).device.get(); });
}

}  // namespace pollcore
