// The context of the conformance tests: a runtime in this process, or, with POLLCORE_TEST_ATTACH=yes, an attachment to
// a pollcored with the same configuration.
#pragma once

#include <cstdlib>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "base/log.hpp"
#include "control/platform.hpp"
#include "exercised.hpp"
#include "mlx5_model.hpp"
#include "patient.hpp"
#include "pollcore/attach.hpp"
#include "pollcore/runtime.hpp"
#include "system/daemon_process.hpp"

namespace pollcore::testing {

[[nodiscard]] inline bool attached_tests() {
    static const bool attached = std::getenv("POLLCORE_TEST_ATTACH") != nullptr;
    return attached;
}
/// POLLCORE_TEST_ATTACH=own: each attachment has a context of its own (AttachOptions::own_memory).
[[nodiscard]] inline bool own_contexts() {
    static const bool own = attached_tests() && std::string_view(std::getenv("POLLCORE_TEST_ATTACH")) == "own";
    return own;
}

/// A pollcored that keeps running from one test to the next, as long as the tests need the same configuration.
class SharedDaemon {
public:
    /// Starts the daemon unless it runs already. Returns the path of its socket.
    static std::string serve(Config config) {
        static SharedDaemon shared;
        config.attach.path = shared.directory_.path() / "attach.sock";
        config.attach.queue_pairs_max = 4096;
        config.attach.work_requests_max = 1u << 24;
        config.attach.sessions_max = 1024;
        config.attach.own_memory.all = own_contexts();
        const std::string text = print_config(config);
        if (shared.process_ == nullptr || text != shared.text_ || shared.process_->wait(std::chrono::milliseconds(0))) {
            shared.process_.reset();  // kills the daemon; tests/attach tests its orderly end
            shared.text_ = text;
            shared.process_ = std::make_unique<test::Process>(
                // The tool setpriv makes the kernel kill the daemon when this process ends in any way.
                std::vector<std::string>{"/usr/bin/setpriv", "--pdeathsig", "KILL", test::pollcored_path(), "--config",
                                         shared.directory_.write("pollcored.toml", text).string()},
                std::vector<std::string>{}, shared.directory_.path());
        }
        return config.attach.path;
    }

private:
    test::TemporaryDirectory directory_;
    std::string text_;
    std::unique_ptr<test::Process> process_;
};

/// A context that notes which queue pairs the test creates.
class TestRuntime : public Context {
public:
    /// With a platform, the runtime is in this process, whatever the environment says. So this is only for tests with
    /// "InThisProcess" in their names.
    explicit TestRuntime(const Config& config, std::unique_ptr<Platform> platform = nullptr)
        : TestRuntime(open(config, std::move(platform))) {}

    /// Stops the runtime. With an attachment, closes everything that the attachment has opened.
    bool stop() { return embedded_ != nullptr ? embedded_->stop() : attached_->stop(); }

    [[nodiscard]] TestSession open_session(const SessionOptions& options = {}) {
        return Context::open_session(options);
    }
    [[nodiscard]] QueuePair create_queue_pair(const QueuePairOptions& options) {
        QueuePair qp = Context::create_queue_pair(options);
        Exercised::get().created(qp.handle(), options);
        return qp;
    }

    /// The counts since this object was made. A daemon's own counters include other tests that it has served before.
    [[nodiscard]] const WorkerCounters& worker_counters(std::size_t worker) {
        const WorkerCounters& now = Context::worker_counters(worker);
        if (embedded_ != nullptr) {
            return now;
        }
        WorkerCounters& since = *since_[worker];
        subtract(now, *before_[worker], since);
        since.asleep.set(now.asleep.value());
        since.longest_step_cycles.set(now.longest_step_cycles.value());
        return since;
    }
    [[nodiscard]] const ControlCounters& control_counters() {
        const ControlCounters& now = Context::control_counters();
        if (embedded_ != nullptr) {
            return now;
        }
        subtract(now, control_before_, control_since_);
        return control_since_;
    }

    // ---- Only for a runtime in this process: tests that call these functions have "InThisProcess" in their names ----

    [[nodiscard]] Device& device(const std::string& name = "") { return in_this_process().device(name); }
    [[nodiscard]] Health health() { return in_this_process().health(); }
    [[nodiscard]] int worker_thread_id(std::size_t worker) { return in_this_process().worker_thread_id(worker); }

private:
    template <class Base>
    struct Open : Base {
        using Base::Base;
        [[nodiscard]] std::shared_ptr<ControlSide> shared() const { return this->control_side(); }
    };
    struct Made {
        std::unique_ptr<Open<Runtime>> embedded;
        std::unique_ptr<Open<Attachment>> attached;
    };
    static Made open(const Config& config, std::unique_ptr<Platform> platform) {
        Made made;
        if (platform != nullptr) {
            made.embedded = std::make_unique<Open<Runtime>>(config, std::move(platform));
        } else if (attached_tests()) {
            set_log_level(config.log_level);
            AttachOptions options = test::patient({.path = SharedDaemon::serve(config)});
            // Without a kernel behind the device, own memory needs no permission.
            const bool kernel =
                config.devices.front().kind == DeviceConfig::Kind::verbs && !test::Mlx5Model::is_there();
            options.own_memory = own_contexts() || !kernel;
            made.attached = std::make_unique<Open<Attachment>>(options);
        } else {
            made.embedded = std::make_unique<Open<Runtime>>(config);
        }
        return made;
    }
    explicit TestRuntime(Made made)
        : Context(made.embedded != nullptr ? made.embedded->shared() : made.attached->shared()),
          embedded_(std::move(made.embedded)),
          attached_(std::move(made.attached)) {
        if (attached_ == nullptr) {
            return;
        }
        const WorkerCounters no_worker;
        const ControlCounters no_control;
        for (std::size_t worker = 0; worker < worker_count(); ++worker) {
            before_.push_back(std::make_unique<WorkerCounters>());
            since_.push_back(std::make_unique<WorkerCounters>());
            subtract(Context::worker_counters(worker), no_worker, *before_.back());
        }
        subtract(Context::control_counters(), no_control, control_before_);
    }

    template <class Counters>
    static void subtract(const Counters& from, const Counters& before, Counters& into) {
        for (std::size_t i = 0; i < sizeof(Counters) / sizeof(Counter); ++i) {
            reinterpret_cast<Counter*>(&into)[i].set(reinterpret_cast<const Counter*>(&from)[i].value() -
                                                     reinterpret_cast<const Counter*>(&before)[i].value());
        }
    }
    Runtime& in_this_process() {
        if (embedded_ == nullptr) {
            throw std::logic_error("this test looks into a runtime of its own process: its name must say so");
        }
        return *embedded_;
    }

    std::unique_ptr<Open<Runtime>> embedded_;
    std::unique_ptr<Open<Attachment>> attached_;
    std::vector<std::unique_ptr<WorkerCounters>> before_;
    std::vector<std::unique_ptr<WorkerCounters>> since_;
    ControlCounters control_before_;
    ControlCounters control_since_;
};

}  // namespace pollcore::testing
