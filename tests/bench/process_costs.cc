// The worker's cycles for an operation while attached processes keep it busy. The processes are real ones. They take
// turns on one CPU, and the worker has another. Each keeps a deep window of requests in flight, so that a turn is long
// and the worker has something to do nearly all the time. In a step it finds requests of one or a few processes, and
// looks at the sessions of the others in vain. If each process had its own CPU, the worker would find requests of more
// processes, and each look would cost an operation less.
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>

#include "base/clock.hpp"
#include "pollcore/attach_server.hpp"
#include "process_rows.hpp"
#include "running.hpp"
#include "system/daemon_process.hpp"

namespace pollcore::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::uint32_t kWindow = 512;
constexpr std::chrono::milliseconds kWarmUp{50};
/// A process has few turns in a shorter time, if it shares its CPU with many others.
constexpr std::chrono::milliseconds kTimeMin{100};

Config config_for(const Cpus& cpus, std::uint32_t processes, const std::filesystem::path& directory) {
    Config config;
    config.statistics.segment = StatisticsConfig::Segment::off;
    config.devices.push_back({.name = "net0"});
    config.workers.push_back({.name = "bench", .core = cpus.there, .poll = PollVerbs::plain});
    config.log_level = LogLevel::error;
    config.drain_timeout = std::chrono::milliseconds(200);
    config.attach.path = directory / "attach.sock";
    config.attach.clients_max = config.attach.user_clients_max = processes;
    config.attach.user_sessions_max = config.attach.user_queue_pairs_max = processes;
    return config;
}

/// What a worker has counted until now.
struct Count {
    explicit Count(const WorkerCounters& worker)
        : cycles(cycles_now()), completions(worker.completions.value()), busy_steps(worker.busy_steps.value()) {
        const auto waits = idle_cycles_now(worker, cycles);
        idle = std::accumulate(waits.begin(), waits.end(), std::uint64_t{0});
    }
    std::uint64_t cycles;
    std::uint64_t idle = 0;
    std::uint64_t completions;
    std::uint64_t busy_steps;
};

/// Waits until each process has printed `text`.
void await(const std::vector<std::unique_ptr<test::Process>>& processes, const std::string& text) {
    for (const auto& process : processes) {
        for (const auto until = Clock::now() + test::kPatience; process->out().find(text) == std::string::npos;) {
            if (Clock::now() > until) {
                throw std::runtime_error("a process has not attached: " + process->err());
            }
            std::this_thread::sleep_for(std::chrono::milliseconds(2));
        }
    }
}

std::vector<double> cycles_with(const Setting& setting, std::uint32_t processes) {
    const test::TemporaryDirectory directory;
    const Config config = config_for(setting.cpus, processes, directory.path());
    Runtime runtime(config, std::make_unique<InstantPlatform>());
    const AttachServer server(runtime, config.attach);
    const auto program = std::filesystem::read_symlink("/proc/self/exe").parent_path() / "window-load";
    std::vector<std::unique_ptr<test::Process>> all;
    for (std::uint32_t i = 0; i < processes; ++i) {
        all.push_back(std::make_unique<test::Process>(
            std::vector<std::string>{"/usr/bin/setpriv", "--pdeathsig", "KILL", program.native(), config.attach.path,
                                     std::to_string(kWindow)},
            std::vector<std::string>{}, directory.path()));
    }
    await(all, "ready");
    for (const auto& process : all) {
        process->signal(SIGUSR1);
    }
    std::this_thread::sleep_for(kWarmUp);
    const WorkerCounters& worker = runtime.worker_counters(0);
    const Count before(worker);
    std::this_thread::sleep_for(std::max(kTimeMin, setting.time));
    const Count after(worker);
    for (const auto& process : all) {
        process->signal(SIGTERM);
    }
    for (const auto& process : all) {
        if (process->wait() != 0) {
            throw std::runtime_error("an attached process has failed: " + process->err());
        }
    }
    const auto cycles = static_cast<double>(after.cycles - before.cycles);
    const auto idle = static_cast<double>(after.idle - before.idle);
    const auto completions = static_cast<double>(after.completions - before.completions);
    const auto steps = static_cast<double>(after.busy_steps - before.busy_steps);
    return {(cycles - idle) / completions, completions / steps, 100 * (cycles - idle) / cycles};
}

}  // namespace

std::vector<Measurement> process_costs(const Setting& setting) {
    std::vector<Measurement> all;
    for (const std::uint32_t processes : kProcesses) {
        all.push_back({.table = std::string(kProcessTable),
                       .row = row_of_processes(processes),
                       .columns = {std::string(kWorkerCycles), "operations completed in a step", "worker busy, %"},
                       .once = [setting, processes] { return cycles_with(setting, processes); },
                       .between_cpus = true});
    }
    return all;
}

}  // namespace pollcore::bench
