// The calls that only an embedded runtime has, that is, one in the application's process. The calls that it shares with
// an attachment are in session/context.cc.
#include "pollcore/runtime.hpp"

#include <set>
#include <utility>

#include "base/log.hpp"
#include "config/cpus.hpp"
#include "control/program_threads.hpp"
#include "control/runtime_state.hpp"

namespace pollcore {

Runtime::Runtime(const Config& config) : Runtime(config, host_platform()) {}

Runtime::Runtime(const Config& config, std::unique_ptr<Platform> platform)
    : Runtime(make_control_side<RuntimeState>(config, platform != nullptr ? std::move(platform) : host_platform())) {}

Runtime::Runtime(std::shared_ptr<RuntimeState> state) : Context(state), state_(state.get()) {
    const std::optional<std::uint32_t> only = only_cpu_of_this_thread();
    for (const WorkerConfig& worker : state_->config.workers) {
        if (only == worker.core && config::Cpus::of_this_process().allowed.size() > 1) {
            log_warning(
                "the thread that starts this runtime may run only on CPU {}, the core of worker \"{}\": the two take "
                "turns of milliseconds; pin the thread elsewhere, or call Runtime::keep_off_workers()",
                *only, worker.name);
        }
    }
}

Runtime::Runtime(Runtime&& other) noexcept : Context(std::move(other)), state_(std::exchange(other.state_, nullptr)) {}

Runtime& Runtime::operator=(Runtime&& other) noexcept {
    Context::operator=(std::move(other));
    std::swap(state_, other.state_);
    return *this;
}

Runtime::~Runtime() {
    try {
        if (valid() && !state_->is_forked()) {
            stop();
        }
    } catch (const std::exception& error) {
        log_error("stopping the runtime: {}", error.what());
    }
}

RuntimeState& Runtime::state() const {
    (void)control();
    return *state_;
}

bool Runtime::stop() {
    return control().stop();
}
const Config& Runtime::config() const noexcept {
    return state_->config;
}
int Runtime::worker_thread_id(std::size_t worker) const {
    (void)control();
    return state_->worker(worker).thread->thread_id();
}
void Runtime::keep_off_workers() const {
    std::set<std::uint32_t> cores;
    for (const WorkerConfig& worker : state().config.workers) {
        cores.insert(worker.core);
    }
    keep_this_thread_off(cores);
}
Health Runtime::health() const {
    return state().health();
}
void Runtime::count_hang() noexcept {
    state_->counters.hangs.add();
}
Device& Runtime::device(const std::string& name) {
    (void)control();
    return state_->device(name);
}

}  // namespace pollcore
