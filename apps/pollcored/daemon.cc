#include "daemon.hpp"

#include <unistd.h>

#include <algorithm>
#include <future>
#include <string_view>
#include <thread>

#include <fmt/format.h>

#include "base/log.hpp"
#include "base/log_writer.hpp"
#include "config/schema.hpp"
#include "control/eal.hpp"
#include "control_cores.hpp"
#include "daemon_exit_code.hpp"
#include "reload.hpp"
#include "start_report.hpp"

namespace pollcore::daemon {
namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

constexpr auto kWatchEvery = 500ms;   // how often the main thread checks the services while the daemon serves
constexpr auto kShutdownEvery = 5ms;  // how often the main thread checks for the end of the shutdown
// Time for the parts of the shutdown that drain_timeout does not limit: ending threads, deregistering memory, ending
// EAL.
constexpr auto kShutdownReserve = 10s;

constexpr config::ChoiceRule<ServiceConfig::Kind> kServiceKindRule{config::kServiceKinds};

}  // namespace

Daemon::Daemon(const Config& config, std::function<Config()> read_again)
    : config_(config), read_again_(std::move(read_again)), runtime_(config_) {
    // The runtime has already placed its threads, for which it needed the whole affinity. The services' threads inherit
    // the smaller affinity.
    const std::string cpus = leave_worker_cores(config_);
    log_runtime(runtime_, cpus);
    for (const ServiceConfig& service : config_.services) {
        services_.push_back(make_service(runtime_, service));
    }
    log_services(services_);
    if (!config_.attach.path.empty()) {
        attach_ = std::make_unique<AttachServer>(runtime_, config_.attach);
        log_info("processes may attach at {}", config_.attach.path.native());
    } else if (services_.empty()) {
        log_warning("the configuration names no [[service]] and no [attach] path: the workers poll for nobody");
    }
    open_control();
}

void Daemon::open_control() {
    if (config_.control.path.empty()) {
        return;
    }
    std::vector<std::uint32_t> cores;
    for (const WorkerConfig& worker : config_.workers) {
        cores.push_back(worker.core);
    }
    commands_ = std::make_unique<ControlCommands>(
        runtime_.state(), attach_.get(),
        ControlCommands::Ways{.health = [this] { return health(); },
                              .order = [this](Order&& order) { inbox_.put(std::move(order)); },
                              .services = [this] { return service_figures(); },
                              .state = [this]() -> std::string_view {
                                  switch (state_.load(std::memory_order_relaxed)) {
                                      case State::serving: return "serving";
                                      case State::draining: return "draining";
                                      case State::stopping: return "stopping";
                                  }
                                  return "unknown";
                              }});
    control_ = std::make_unique<ControlSocket>(
        config_.control,
        ControlSocket::Ways{
            .carry_out =
                [this](const ControlCommand& command, const ControlCaller& caller,
                       const std::shared_ptr<ControlAnswer>& answer) {
                    return commands_->carry_out(command, caller, answer);
                },
            .why_late = [this](const ControlCommand& command,
                               ControlAnswer::Given given) { return commands_->why_late(command, given); },
            .begin_thread = [cpus = helper_cpus(cores)] { become_helper(ControlSocket::kThreadName, cpus); }});
    control_->start();
    log_info("pollctl may connect at {}", config_.control.path.native());
}

Daemon::~Daemon() = default;

int Daemon::run() {
    for (const auto& service : services_) {
        service->start();
    }
    log_info("ready: {}", status());
    notifier_.ready(status());
    watchdog_ = std::make_unique<Watchdog>(
        notifier_, backtrace_, config_.hang_limit,
        Watchdog::Ways{.look = [this] { return health(); }, .count_hang = [this] { runtime_.count_hang(); }});
    const bool asked = serve();
    const bool whole = shut_down();
    if (!asked) {
        return kExitFailed;
    }
    log_info("stopped{}", whole ? "" : ", cut short");
    return whole ? kExitOk : kExitCutShort;
}

std::string Daemon::status() const {
    return status_line(services_, attach_.get(), state_.load(std::memory_order_relaxed) == State::draining);
}

bool Daemon::serve() {
    for (;;) {
        if (const std::optional<Order> order = inbox_.next(kWatchEvery); order && carry_out(*order)) {
            return true;
        }
        notifier_.status(status());
        for (const auto& service : services_) {
            if (service->broken()) {
                log_error("service {} broke down: stopping", service->name());
                return false;
            }
        }
    }
}

bool Daemon::carry_out(const Order& order) {
    if (order.answer != nullptr && !order.answer->begin()) {
        return false;
    }
    switch (order.what) {
        case Order::What::stop:
            log_info("{}: stopping", order.by);
            state_.store(State::stopping, std::memory_order_relaxed);
            conclude(order, {{"state", "stopping"}});
            return true;
        case Order::What::reload: reload(order); break;
        case Order::What::drain: drain(order, true); break;
        case Order::What::resume: drain(order, false); break;
    }
    return false;
}

void Daemon::conclude(const Order& order, const ControlJson& result) {
    if (order.answer != nullptr) {
        order.answer->done(result);
    }
}

void Daemon::drain(const Order& order, bool yes) {
    if (attach_ != nullptr) {
        yes ? attach_->pause() : attach_->resume();
    }
    for (const auto& service : services_) {
        service->admit_peers(!yes);
    }
    state_.store(yes ? State::draining : State::serving, std::memory_order_relaxed);
    log_info("{} {}", order.by,
             yes ? "drains the daemon: it takes no new processes and connections"
                 : "ends the draining: the daemon takes new processes and connections");
    conclude(order, {{"state", yes ? "draining" : "serving"}});
}

Health Daemon::health() const {
    Health health = runtime_.health();
    if (attach_ != nullptr) {
        health.threads.push_back(attach_->health());
    }
    if (control_ != nullptr) {
        health.threads.push_back(control_->health());
    }
    return health;
}

std::vector<ServiceFigures> Daemon::service_figures() const {
    const std::lock_guard lock(services_mutex_);
    std::vector<ServiceFigures> all;
    for (const auto& service : services_) {
        const auto config = std::find_if(config_.services.begin(), config_.services.end(),
                                         [&](const ServiceConfig& each) { return each.name == service->name(); });
        if (config != config_.services.end()) {
            all.push_back({.name = service->name(),
                           .kind = std::string(kServiceKindRule.word_of(config->kind)),
                           .device = config->device,
                           .address = service->address(),
                           .connections = service->connections(),
                           .connections_max = config->connections_max});
        }
    }
    return all;
}

void Daemon::reload(const Order& order) {
    std::vector<std::string> failures;
    const auto failed = [&](std::string why) {
        log_error("{}: {}", order.by, why);
        failures.push_back(std::move(why));
    };
    Config wanted;
    try {
        wanted = read_again_();
    } catch (const std::exception& error) {
        failed(fmt::format("{}; nothing was changed", error.what()));
        if (order.answer != nullptr) {
            order.answer->fail(failures.front());
        }
        return;
    }
    notifier_.reloading();
    const std::vector<std::string> restart = needs_restart(config_, wanted);
    for (const std::string& key : restart) {
        log_warning("{}: {} cannot change while the daemon runs; a restart applies it", order.by, key);
    }
    set_log_level(wanted.log_level);
    config_.log_level = wanted.log_level;
    if (attach_ != nullptr) {
        try {
            attach_->configure(wanted.attach);
            // config_ keeps the old values of keys that need a restart, so that the next reload names the keys again.
            const AttachConfig was = std::exchange(config_.attach, wanted.attach);
            config_.attach.path = was.path;
            config_.attach.owner = was.owner;
            config_.attach.group = was.group;
            config_.attach.mode = was.mode;
        } catch (const Error& error) {
            failed(fmt::format("{}; who may attach stays as it was", error.what()));
        }
    }
    // Ends services before it begins new ones, because a new service may have the address of an ended one.
    for (const ServiceConfig& service : services_missing(config_, wanted)) {
        end_service(service);
    }
    for (const ServiceConfig& service : services_missing(wanted, config_)) {
        try {
            begin_service(service);
        } catch (const std::exception& error) {
            failed(fmt::format("service {}: {}", service.name, error.what()));
        }
    }
    log_info("{}: reloaded: {}", order.by, status());
    notifier_.ready(status());
    if (failures.empty()) {
        conclude(order, {{"status", status()}, {"needs_restart", restart}});
    } else if (order.answer != nullptr) {
        order.answer->fail(fmt::format("{}; the rest of the file was applied", fmt::join(failures, "; ")));
    }
}

void Daemon::end_service(const ServiceConfig& config) {
    const auto found = std::find_if(services_.begin(), services_.end(),
                                    [&](const auto& service) { return service->name() == config.name; });
    if (found != services_.end()) {
        Service& service = **found;
        service.begin_drain();
        const auto deadline = Clock::now() + config_.drain_timeout;
        while (!service.drained() && !service.broken() && Clock::now() < deadline) {
            std::this_thread::sleep_for(1ms);
        }
        const bool whole = service.drained();
        log_info("service {} ends{}", service.name(), service.close() && whole ? "" : ", cut short");
        std::unique_ptr<Service> ended;
        const std::lock_guard lock(services_mutex_);
        ended = std::move(*found);
        services_.erase(found);
    }
    const std::lock_guard lock(services_mutex_);
    std::erase(config_.services, config);
}

void Daemon::begin_service(const ServiceConfig& config) {
    std::unique_ptr<Service> service = make_service(runtime_, config);
    service->admit_peers(state_.load(std::memory_order_relaxed) != State::draining);
    service->start();
    log_info("service {} begins: listens on {}", config.name, service->address());
    const std::lock_guard lock(services_mutex_);
    services_.push_back(std::move(service));
    config_.services.push_back(config);
}

std::chrono::microseconds Daemon::shutdown_limit() const noexcept {
    // drain_timeout three times: for draining, for closing the services' queue pairs, and for closing the runtime's.
    return 3 * config_.drain_timeout + kShutdownReserve;
}

bool Daemon::shut_down() {
    state_.store(State::stopping, std::memory_order_relaxed);
    notifier_.stopping("draining", shutdown_limit());
    watchdog_->stopping(Clock::now() + shutdown_limit());
    std::future<bool> done = std::async(std::launch::async, [this] { return drain_and_stop(); });
    while (done.wait_for(0s) != std::future_status::ready) {
        const std::optional<Order> order = inbox_.next(kShutdownEvery);
        if (order && order->answer != nullptr) {
            order->what == Order::What::stop ? conclude(*order, {{"state", "stopping"}})
                                             : order->answer->fail("the daemon is stopping");
        } else if (order && order->what == Order::What::stop) {
            log_warning("{} again: ending at once; connections and requests in flight are cut off", order->by);
            (void)flush_log(LogWriter::kPatience);
            // Does not return, because destructors would wait for queue pairs that are still being closed. The kernel
            // frees all resources.
            ::_exit(kExitCutShort);
        }
    }
    return done.get();
}

bool Daemon::drain_and_stop() {
    const auto deadline = Clock::now() + config_.drain_timeout;
    for (const auto& service : services_) {
        service->begin_drain();
    }
    // Attached processes drain at the same time as the services, with the same deadline.
    std::future<bool> attached =
        std::async(std::launch::async, [this] { return attach_ == nullptr || attach_->stop(config_.drain_timeout); });
    bool whole = true;
    for (const auto& service : services_) {
        while (!service->drained() && !service->broken() && Clock::now() < deadline) {
            std::this_thread::sleep_for(1ms);
        }
        if (!service->drained()) {
            log_warning("service {}: not drained within drain_timeout ({} ms)", service->name(),
                        config_.drain_timeout.count());
            whole = false;
        }
    }
    whole = attached.get() && whole;
    for (const auto& service : services_) {
        whole = service->close() && whole;
    }
    std::vector<std::unique_ptr<Service>> ended;
    {
        const std::lock_guard lock(services_mutex_);
        ended.swap(services_);
    }
    ended.clear();
    if (attach_ != nullptr) {
        log_attached(attach_->counts());
    }
    if (control_ != nullptr) {
        control_->stop();  // until now an operator could see what holds up the end
    }
    attach_.reset();
    return runtime_.stop() && whole;
}

}  // namespace pollcore::daemon
