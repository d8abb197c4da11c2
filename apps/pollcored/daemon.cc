#include "daemon.hpp"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <future>
#include <thread>

#include <fmt/format.h>

#include "base/log.hpp"
#include "base/log_writer.hpp"
#include "control_cores.hpp"
#include "daemon_exit_code.hpp"
#include "reload.hpp"
#include "signals.hpp"
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

std::string_view signal_name(int signal) noexcept {
    return signal == SIGTERM ? "SIGTERM" : signal == SIGINT ? "SIGINT" : "SIGHUP";
}

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
}

Daemon::~Daemon() = default;

int Daemon::run() {
    for (const auto& service : services_) {
        service->start();
    }
    log_info("ready: {}", status_line(services_, attach_.get()));
    notifier_.ready(status_line(services_, attach_.get()));
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

bool Daemon::serve() {
    for (;;) {
        if (const std::optional<int> signal = wait_signal(kWatchEvery)) {
            if (*signal != SIGHUP) {
                log_info("{}: stopping", signal_name(*signal));
                return true;
            }
            reload();
        }
        notifier_.status(status_line(services_, attach_.get()));
        for (const auto& service : services_) {
            if (service->broken()) {
                log_error("service {} broke down: stopping", service->name());
                return false;
            }
        }
    }
}

Health Daemon::health() const {
    Health health = runtime_.health();
    if (attach_ != nullptr) {
        health.threads.push_back(attach_->health());
    }
    return health;
}

void Daemon::reload() {
    Config wanted;
    try {
        wanted = read_again_();
    } catch (const std::exception& error) {
        log_error("SIGHUP: {}; nothing was changed", error.what());
        return;
    }
    notifier_.reloading();
    for (const std::string& key : needs_restart(config_, wanted)) {
        log_warning("SIGHUP: {} cannot change while the daemon runs; a restart applies it", key);
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
            log_error("SIGHUP: {}; who may attach stays as it was", error.what());
        }
    }
    // Ends services before it begins new ones, because a new service may have the address of an ended one.
    for (const ServiceConfig& service : services_missing(config_, wanted)) {
        end_service(service);
    }
    for (const ServiceConfig& service : services_missing(wanted, config_)) {
        begin_service(service);
    }
    log_info("SIGHUP: reloaded: {}", status_line(services_, attach_.get()));
    notifier_.ready(status_line(services_, attach_.get()));
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
        services_.erase(found);
    }
    std::erase(config_.services, config);
}

void Daemon::begin_service(const ServiceConfig& config) {
    try {
        services_.push_back(make_service(runtime_, config));
        services_.back()->start();
        config_.services.push_back(config);
        log_info("service {} begins: listens on {}", config.name, services_.back()->address());
    } catch (const std::exception& error) {
        log_error("SIGHUP: service {}: {}", config.name, error.what());
        std::erase_if(services_, [&](const auto& service) { return service->name() == config.name; });
    }
}

std::chrono::microseconds Daemon::shutdown_limit() const noexcept {
    // drain_timeout three times: for draining, for closing the services' queue pairs, and for closing the runtime's.
    return 3 * config_.drain_timeout + kShutdownReserve;
}

bool Daemon::shut_down() {
    notifier_.stopping("draining", shutdown_limit());
    watchdog_->stopping(Clock::now() + shutdown_limit());
    std::future<bool> done = std::async(std::launch::async, [this] { return drain_and_stop(); });
    while (done.wait_for(0s) != std::future_status::ready) {
        const std::optional<int> signal = wait_signal(kShutdownEvery);
        if (signal && *signal != SIGHUP) {
            log_warning("{} again: ending at once; connections and requests in flight are cut off",
                        signal_name(*signal));
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
    services_.clear();
    if (attach_ != nullptr) {
        log_attached(attach_->counts());
    }
    attach_.reset();
    return runtime_.stop() && whole;
}

}  // namespace pollcore::daemon
