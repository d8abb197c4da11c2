// PathRun for one class of path. It is a template so that the loops call the path without indirection.
#pragma once

#include <algorithm>
#include <barrier>
#include <cstring>
#include <numeric>
#include <utility>

#include <fmt/format.h>

#include "pollperf/cycle_stamp.hpp"
#include "pollperf/measure/messages.hpp"
#include "pollperf/measure/path_run.hpp"
#include "pollperf/measure/ping_pong.hpp"
#include "pollperf/measure/recorder.hpp"
#include "pollperf/measure/team.hpp"
#include "pollperf/measure/watch.hpp"
#include "pollperf/report/disturbances.hpp"
#include "pollperf/threads.hpp"

namespace pollcore::perf {

template <class Path>
class PathRunOf final : public PathRun {
public:
    /// `paths` has one path for each thread.
    PathRunOf(PathPlan plan, std::vector<std::unique_ptr<Path>> paths) : plan_(std::move(plan)) {
        for (auto& path : paths) {
            path->hand_over();  // from the thread that has posted its receives
            lanes_.push_back(std::make_unique<Lane>(std::move(path), plan_));
            lanes_.back()->seed = lanes_.size() << 32;
        }
    }

    [[nodiscard]] PathKind kind() const noexcept override { return Path::kKind; }

    // ---- connections ----

    void connect_ends() override {
        for (const auto& lane : lanes_) {
            std::vector<EndInfo> peers = lane->path->own_ends();
            std::rotate(peers.begin(), peers.begin() + plan_.connections, peers.end());
            lane->path->connect(peers);
        }
    }
    [[nodiscard]] std::vector<EndInfo> own_ends() const override {
        std::vector<EndInfo> all;
        for (const auto& lane : lanes_) {
            const auto ends = lane->path->own_ends();
            all.insert(all.end(), ends.begin(), ends.end());
        }
        return all;
    }
    void connect(std::span<const EndInfo> peers) override {
        for (std::size_t i = 0; i < lanes_.size(); ++i) {
            lanes_[i]->path->connect(peers.subspan(i * plan_.connections, plan_.connections));
        }
    }
    void set_remote(std::span<const EndInfo> peers) override {
        for (std::size_t i = 0; i < lanes_.size(); ++i) {
            for (unsigned end = 0; end < plan_.connections; ++end) {
                lanes_[i]->path->end(end).remote = peers[i * plan_.connections + end].memory;
            }
        }
    }
    [[nodiscard]] std::vector<std::string> listen(std::span<const std::string> addresses) override {
        std::vector<std::string> listening;
        for (std::size_t i = 0; i < lanes_.size(); ++i) {
            listening.push_back(lanes_[i]->path->listen(addresses[i]));
        }
        return listening;
    }
    void accept_all(const std::vector<std::byte>& token, std::chrono::milliseconds timeout) override {
        const auto deadline = std::chrono::steady_clock::now() + timeout;
        for (const auto& lane : lanes_) {
            for (unsigned end = 0; end < plan_.connections;) {
                const auto left =
                    std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
                const auto request = lane->path->next_request(std::max(left, std::chrono::milliseconds(1)));
                if (!request) {
                    if (left <= std::chrono::milliseconds(0)) {
                        throw MeasurementError("rdma_cm: the client has not made its connections in time");
                    }
                    continue;
                }
                if (!std::equal(token.begin(), token.end(), request->private_data.begin(),
                                request->private_data.begin() + static_cast<std::ptrdiff_t>(std::min(
                                                                    token.size(), request->private_data.size())))) {
                    static constexpr std::string_view kWhy = "this port is for another client";
                    const auto bytes = std::as_bytes(std::span(kWhy));
                    lane->path->reject({bytes.begin(), bytes.end()});
                    continue;
                }
                lane->path->accept(end++, {}, timeout);
            }
        }
    }
    void connect_all(std::span<const std::string> addresses, const std::vector<std::byte>& token,
                     std::chrono::milliseconds timeout) override {
        for (std::size_t i = 0; i < lanes_.size(); ++i) {
            for (unsigned end = 0; end < plan_.connections; ++end) {
                (void)lanes_[i]->path->connect(end, addresses[i], token, timeout);
            }
        }
    }
    std::vector<std::byte> connect_service(const std::string& address, std::chrono::milliseconds timeout) override {
        return lanes_.front()->path->connect(0, address, {}, timeout);
    }
    void disconnect(std::chrono::milliseconds timeout) override {
        const auto deadline = std::chrono::steady_clock::now() + timeout;
        for (const auto& lane : lanes_) {
            const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
            lane->path->disconnect(std::max(left, std::chrono::milliseconds(1)));
        }
    }

    // ---- measuring ----

    void begin(const Workload& workload, const std::optional<Arrivals>& arrivals) override {
        workload_ = workload;
        arrivals_ = arrivals;
        if (arrivals_) {
            arrivals_->per_s /= static_cast<double>(lanes_.size());
        }
        stop_.store(false, std::memory_order_relaxed);
        total_ = {};
        for (std::size_t i = 0; i < lanes_.size(); ++i) {
            Lane& lane = *lanes_[i];
            begin_workload(*lane.path, workload);
            lane.path->prepare(workload);
            lane.ping_pong.reset();
            lane.window.reset();
            // A server does not know whether its client has an open loop.
            if (workload.one_sided && (workload.test != Test::lat || arrivals || plan_.role == Role::server)) {
                lane.window.emplace(*lane.path, workload, lane.watch, senders());
            } else {
                lane.ping_pong.emplace(*lane.path, workload, lane.watch, plan_.connections);
            }
            lane.recorder.emplace(recorder());
            lane.chunk = kChunkLeast;
            lane.posted_before = posted_by(lane);
        }
    }

    void warm_up(const Until& until) override {
        run_lanes(until, [&](Lane& lane, const Until& mine) {
            Recorder unused = recorder();
            (void)run(lane, mine, unused);
        });
    }

    void round(const Until& until, const std::function<void()>& sent) override {
        std::vector<Done> done(lanes_.size());
        std::vector<Disturbance> disturbances(lanes_.size());
        const Counts before = counts();
        run_lanes(until, [&](Lane& lane, const Until& mine) {
            const auto index = static_cast<std::size_t>(lane.index);
            const std::optional<int> worker =
                index == 0 && plan_.worker_thread != 0 ? std::optional(plan_.worker_thread) : std::nullopt;
            NoiseWatch noise({this_thread_id()}, {plan_.cores[index]}, worker);
            try {
                begin_round(lane, mine);
                noise.begin();
                done[index] = run(lane, mine, *lane.recorder);
                disturbances[index] = noise.end();
                if (sent) {
                    lane.rendezvous->arrive_and_wait();
                    if (index == 0) {
                        sent();
                    }
                    serve_or_stop(lane);
                }
            } catch (...) {
                stop_serving();  // or the others would serve on, and nobody would learn of the failure
                throw;
            }
        });
        stop_.store(false, std::memory_order_relaxed);
        add_round(done, disturbances);
        const Counts after = counts();
        total_.messages += after.messages - before.messages;
        total_.send_doorbells += after.send_doorbells - before.send_doorbells;
        total_.receive_doorbells += after.receive_doorbells - before.receive_doorbells;
        if (after.stages) {
            if (!total_.stages) {
                total_.stages.emplace();
            }
            *total_.stages += *after.stages;
            *total_.stages -= *before.stages;
        }
    }

    [[nodiscard]] Measurement result() override {
        Measurement result = std::move(total_);
        total_ = {};
        result.test = workload_.test;
        result.op = workload_.op;
        result.path = Path::kKind;
        result.transport = workload_.transport;
        result.size = workload_.size;
        result.queue_pairs = static_cast<std::uint32_t>(lanes_.size()) * plan_.connections;
        result.threads = static_cast<std::uint32_t>(lanes_.size());
        result.inlined = workload_.inlined;
        result.bidirectional = workload_.bidirectional;
        result.half_round_trip = !workload_.one_sided;
        result.tx_depth = workload_.tx_depth;
        result.post_list = workload_.post_list;
        result.signal_every = workload_.signal_every;
        result.verified = workload_.verify;
        result.ns_per_unit = ns_per_unit();
        if (arrivals_) {
            result.offered_per_s = arrivals_->per_s * static_cast<double>(lanes_.size());
        }
        if (plan_.role == Role::both) {
            check_far_ends(result);
        }
        return result;
    }

    // ---- the other side ----

    void serve() override {
        run_lanes({}, [&](Lane& lane, const Until&) { serve_or_stop(lane); });
        stop_.store(false, std::memory_order_relaxed);
    }
    // Relaxed: `stop_` publishes no other data.
    void stop_serving() noexcept override { stop_.store(true, std::memory_order_relaxed); }

    [[nodiscard]] std::vector<std::uint64_t> posted() const override {
        std::vector<std::uint64_t> all;
        for (const auto& lane : lanes_) {
            for (unsigned end = 0; end < plan_.connections; ++end) {
                const auto& state = lane->path->end(end);
                all.push_back(state.issued - state.issued_before);
            }
        }
        return all;
    }
    [[nodiscard]] std::vector<std::uint64_t> arrived(std::span<const std::uint64_t> expected) override {
        std::vector<std::uint64_t> all;
        for (std::size_t i = 0; i < lanes_.size(); ++i) {
            Lane& lane = *lanes_[i];
            const auto mine = expected.subspan(i * plan_.connections, plan_.connections);
            take_arrivals(lane, mine, 0);
            lane.path->hand_over();
            for (unsigned end = 0; end < plan_.connections; ++end) {
                all.push_back(lane.path->end(end).arrived());
            }
        }
        return all;
    }

private:
    // The loops for one operation at a time return after about this time, to look at the clock and to keep their
    // samples.
    static constexpr double kChunkNs = 3e6;
    static constexpr std::size_t kChunkLeast = 64;
    static constexpr std::size_t kChunkMost = 1 << 15;

    struct Lane {
        Lane(std::unique_ptr<Path> one, const PathPlan& plan)
            : path(std::move(one)), watch(plan.timeout, plan.look_about) {}
        int index = 0;
        std::unique_ptr<Path> path;
        Watch watch;
        std::optional<PingPong<Path>> ping_pong;
        std::optional<Window<Path>> window;
        std::optional<Recorder> recorder;
        std::vector<std::uint64_t> samples = std::vector<std::uint64_t>(kChunkMost);
        std::size_t chunk = kChunkLeast;
        std::uint64_t posted_before = 0;
        std::uint64_t seed = 0;                ///< of the last part of an open loop, so that no two parts are alike
        std::barrier<>* rendezvous = nullptr;  ///< of all lanes, while they run
    };
    struct Counts {
        std::uint64_t messages = 0;
        std::uint64_t send_doorbells = 0;
        std::uint64_t receive_doorbells = 0;
        std::optional<StageLatency> stages;
    };

    [[nodiscard]] unsigned senders() const noexcept {
        return plan_.role == Role::both && workload_.bidirectional ? 2 * plan_.connections : plan_.connections;
    }
    [[nodiscard]] double ns_per_unit() const { return 1 / cycles_per_ns() / workload_.samples_per_iteration(); }
    [[nodiscard]] Recorder recorder() const {
        return Recorder(cycles_per_ns() * 1e9, workload_.samples_per_iteration());
    }

    /// Runs `work` on each lane, in its thread, pinned to its CPU, with its part of `until`.
    void run_lanes(const Until& until, const std::function<void(Lane&, const Until&)>& work) {
        const auto lanes = static_cast<unsigned>(lanes_.size());
        run_team(lanes, [&](unsigned index, std::barrier<>& together) {
            Lane& lane = *lanes_[index];
            lane.index = static_cast<int>(index);
            lane.rendezvous = &together;
            Until mine = until;
            if (!until.by_time()) {
                mine.operations = until.operations / lanes + (index < until.operations % lanes);
            }
            const PinnedScope pinned(plan_.cores[index]);
            together.arrive_and_wait();
            work(lane, mine);
            lane.path->hand_over();
        });
    }

    // Between two rounds the thread slept, or did not exist yet. The first operations after that are slow for a reason
    // that is not the device's.
    void begin_round(Lane& lane, const Until& until) {
        constexpr std::uint64_t kOperations = 20;  // on each connection
        if (!arrivals_ && plan_.warm_rounds) {
            Recorder unused = recorder();
            (void)run(lane, {.operations = std::min(until.operations, kOperations * plan_.connections)}, unused);
        }
    }

    Done run(Lane& lane, const Until& until, Recorder& recorder) {
        if (lane.window) {
            if (!arrivals_) {
                return lane.window->run(until, recorder, &stop_);
            }
            Arrivals arrivals = *arrivals_;
            arrivals.seed = ++lane.seed;
            arrivals.phase = static_cast<double>(lane.index) / static_cast<double>(lanes_.size());
            return lane.window->run_open(until, arrivals, recorder);
        }
        return one_at_a_time(lane, until, recorder);
    }

    Done one_at_a_time(Lane& lane, const Until& until, Recorder& recorder) {
        Done done;
        const auto budget = until.by_time()
                                ? static_cast<std::uint64_t>(static_cast<double>(until.time.count()) * cycles_per_ns())
                                : ~std::uint64_t{0};
        const std::uint64_t began = stamp();
        while (done.operations < until.operations && stamp() - began < budget &&
               !stop_.load(std::memory_order_relaxed)) {
            const auto n =
                static_cast<std::size_t>(std::min<std::uint64_t>(lane.chunk, until.operations - done.operations));
            const std::span<std::uint64_t> part = std::span(lane.samples).first(n);
            const std::uint64_t from = stamp();
            lane.ping_pong->run(plan_.role, part);
            done.units += stamp() - from;
            recorder.add_part(part);
            const std::uint64_t units = std::accumulate(part.begin(), part.end(), std::uint64_t{0});
            done.operations += n;
            const double each = std::max(1.0, static_cast<double>(units) / static_cast<double>(n));
            lane.chunk = static_cast<std::size_t>(std::clamp(
                kChunkNs * cycles_per_ns() / each, static_cast<double>(kChunkLeast), static_cast<double>(kChunkMost)));
            if (until.by_time()) {
                const auto left = static_cast<double>(budget) - static_cast<double>(stamp() - began);
                lane.chunk = std::min(lane.chunk, static_cast<std::size_t>(std::max(1.0, left / each)));
            }
        }
        return done;
    }

    // A thread that fails ends the others, so that serve() returns.
    void serve_or_stop(Lane& lane) {
        try {
            lane.window ? lane.window->serve(stop_) : lane.ping_pong->serve(stop_);
        } catch (...) {
            stop_serving();
            throw;
        }
    }

    void add_round(std::span<const Done> done, std::span<const Disturbance> disturbances) {
        Round round;
        Histogram latency;
        for (std::size_t i = 0; i < lanes_.size(); ++i) {
            round.operations += done[i].operations;
            round.seconds = std::max(round.seconds, static_cast<double>(done[i].units) / (cycles_per_ns() * 1e9));
            total_.posted_late += done[i].late;
            auto [mine, slices] = lanes_[i]->recorder->take();
            latency += mine;
            if (i == 0) {
                total_.slices.insert(total_.slices.end(), slices.begin(), slices.end());
            }
            if (!disturbances.empty()) {
                add(round.disturbance, disturbances[i], i == 0);
            }
        }
        round.median_ns = static_cast<double>(latency.percentile(0.5)) * ns_per_unit();
        round.p99_ns = static_cast<double>(latency.percentile(0.99)) * ns_per_unit();
        total_.latency += latency;
        total_.operations += round.operations;
        total_.seconds += round.seconds;
        total_.rounds.push_back(std::move(round));
    }

    // Steal time and the worker are those of the whole machine, so the first lane's count.
    static void add(Disturbance& sum, const Disturbance& one, bool first) {
        if (first) {
            sum = one;
            return;
        }
        sum.migrations += one.migrations;
        sum.application += one.application;
        sum.frequency_low_mhz = std::min(sum.frequency_low_mhz, one.frequency_low_mhz);
        sum.frequency_high_mhz = std::max(sum.frequency_high_mhz, one.frequency_high_mhz);
    }

    [[nodiscard]] static std::uint64_t posted_by(const Lane& lane) {
        std::uint64_t sum = 0;
        for (unsigned end = 0; end < lane.path->ends(); ++end) {
            sum += lane.path->end(end).issued;
        }
        return sum;
    }
    [[nodiscard]] Counts counts() const {
        Counts now;
        for (const auto& lane : lanes_) {
            now.messages += posted_by(*lane);
            if constexpr (has_worker(Path::kKind)) {
                if (!now.stages) {
                    now.stages.emplace();
                }
                *now.stages += lane->path->stage_latency();
            } else {
                now.send_doorbells += lane->path->send_doorbells();
                now.receive_doorbells += lane->path->receive_doorbells();
            }
        }
        if constexpr (has_worker(Path::kKind)) {
            now.send_doorbells = lanes_.front()->path->send_doorbells();  // of all workers, whichever path is asked
            now.receive_doorbells = lanes_.front()->path->receive_doorbells();
        }
        return now;
    }

    void take_arrivals(Lane& lane, std::span<const std::uint64_t> expected, unsigned first_receiver) {
        if (!lane.window) {
            return;
        }
        if (takes_receive(workload_.op)) {
            // What was sent by RC comes, however late. Others may have lost it.
            lane.window->finish(expected, first_receiver,
                                std::chrono::milliseconds(workload_.transport == QpType::rc ? 10'000 : 100));
        }
        if (workload_.verify && workload_.transport == QpType::rc &&
            (workload_.op == Op::write || workload_.op == Op::write_imm)) {
            for (std::size_t i = 0; i < expected.size(); ++i) {
                lane.window->check_writes(first_receiver + static_cast<unsigned>(i), expected[i]);
            }
        }
    }

    void check_far_ends(Measurement& result) {
        if (!workload_.one_sided || is_answered(workload_.op)) {
            return;
        }
        std::uint64_t arrived = 0;
        for (const auto& lane : lanes_) {
            std::vector<std::uint64_t> near;
            std::vector<std::uint64_t> far;
            for (unsigned end = 0; end < plan_.connections; ++end) {
                const auto& a = lane->path->end(end);
                const auto& b = lane->path->end(end + plan_.connections);
                near.push_back(a.issued - a.issued_before);
                far.push_back(b.issued - b.issued_before);
            }
            take_arrivals(*lane, near, plan_.connections);
            if (workload_.bidirectional) {
                take_arrivals(*lane, far, 0);
            }
            lane->path->hand_over();
            for (unsigned end = workload_.bidirectional ? 0 : plan_.connections; end < 2 * plan_.connections; ++end) {
                arrived += lane->path->end(end).arrived();
            }
        }
        if (takes_receive(workload_.op)) {
            result.arrived = arrived;
            result.sent = sent_since_begin();
        }
    }
    [[nodiscard]] std::uint64_t sent_since_begin() const {
        std::uint64_t sum = 0;
        for (const auto& lane : lanes_) {
            sum += posted_by(*lane) - lane->posted_before;
        }
        return sum;
    }

    const PathPlan plan_;
    Workload workload_;
    std::optional<Arrivals> arrivals_;  ///< of one thread
    std::vector<std::unique_ptr<Lane>> lanes_;
    std::atomic<bool> stop_{false};
    Measurement total_;
};

}  // namespace pollcore::perf
