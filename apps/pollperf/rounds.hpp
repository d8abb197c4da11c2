// The measurement of one operation on one path: its rounds, and the counters that are read before and after each round.
//
// Thread safety: used by the measuring thread only.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

#include "results.hpp"
#include "timed_loops.hpp"

namespace pollcore::perf {

template <class Path>
class Measurement {
public:
    /// The path must be connected, and the remote blocks of both ends must be set.
    Measurement(Path& path, const Workload& workload, Role role, std::uint32_t iterations, Watch& watch)
        : path_(path), workload_(workload), role_(role), loops_(path, workload, watch), samples_(iterations) {}

    /// Prepares the path for the workload, and runs iterations whose times are dropped. No other measurement may use
    /// the path at the same time.
    void warm_up(std::uint32_t iterations) {
        path_.prepare(workload_);
        for (std::uint32_t left = iterations; left > 0;) {
            // The warm-up writes to samples_, so that this memory is warm, too.
            const auto part = std::min<std::uint32_t>(left, static_cast<std::uint32_t>(samples_.size()));
            loops_.run(role_, std::span(samples_).first(part));
            left -= part;
        }
        std::fill(samples_.begin(), samples_.end(), 0);
    }

    /// Measures the next `iterations` iterations. All rounds together have the number that the constructor got.
    void round(std::uint32_t iterations) {
        const std::span<std::uint64_t> part = std::span(samples_).subspan(done_, iterations);
        const Snapshot before = take();
        // Read last: reading the other counters may sleep, and those context switches do not belong to the timed part.
        const ContextSwitches application = context_switches(this_thread_id());
        const auto begin = std::chrono::steady_clock::now();
        loops_.run(role_, part);
        const auto end = std::chrono::steady_clock::now();
        total_.application += context_switches(this_thread_id()) - application;
        const Snapshot after = take();
        done_ += iterations;
        total_.wall_ns += std::chrono::duration<double, std::nano>(end - begin).count();
        total_.messages += after.messages - before.messages;
        total_.send_doorbells += after.send_doorbells - before.send_doorbells;
        total_.receive_doorbells += after.receive_doorbells - before.receive_doorbells;
        total_.steal_ms += after.steal - before.steal;
        if constexpr (has_worker(Path::kKind)) {
            if (!total_.worker) {
                total_.worker.emplace();
                total_.stages.emplace();
            }
            *total_.worker += after.worker - before.worker;
            *total_.stages += after.stages;
            *total_.stages -= before.stages;
        }
    }

    [[nodiscard]] PathResult result() const {
        std::span<const std::uint64_t> samples(samples_);
        if (role_ == Role::server) {
            samples = samples.subspan(1);  // the first sample is the time that the client took to begin
        }
        const double ns_per_cycle = 1 / cycles_per_ns();
        PathResult result = total_;
        result.op = workload_.op;
        result.path = Path::kKind;
        result.size = workload_.size;
        result.inlined = workload_.inlined;
        result.half_round_trip = !workload_.one_sided;
        result.samples_sum_ns =
            static_cast<double>(std::accumulate(samples.begin(), samples.end(), std::uint64_t{0})) * ns_per_cycle;
        result.summary = summarize({samples.begin(), samples.end()}, ns_per_cycle / workload_.samples_per_iteration());
        return result;
    }

private:
    struct Snapshot {
        std::uint64_t messages = 0;
        std::uint64_t send_doorbells = 0;
        std::uint64_t receive_doorbells = 0;
        std::uint64_t steal = 0;
        ContextSwitches worker;
        StageLatency stages;
    };

    [[nodiscard]] Snapshot take() {
        Snapshot now;
        now.messages = path_.end(kNear).issued + path_.end(kFar).issued;
        now.send_doorbells = path_.send_doorbells();
        now.receive_doorbells = path_.receive_doorbells();
        now.steal = steal_ms();
        if constexpr (has_worker(Path::kKind)) {
            now.worker = path_.worker_thread_id() != 0 ? context_switches(path_.worker_thread_id()) : ContextSwitches{};
            now.stages = path_.stage_latency();
        }
        return now;
    }

    Path& path_;
    const Workload workload_;
    const Role role_;
    TimedLoops<Path> loops_;
    std::vector<std::uint64_t> samples_;
    std::size_t done_ = 0;
    PathResult total_;
};

}  // namespace pollcore::perf
