#include "pollperf/measure/run_test.hpp"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <ctime>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <thread>

#include <fmt/chrono.h>
#include <fmt/format.h>

#include "base/log.hpp"
#include "config/units.hpp"
#include "pollperf/measure/path_run.hpp"
#include "pollperf/peer/client_side.hpp"
#include "pollperf/peer/service_peer.hpp"
#include "pollperf/place.hpp"
#include "pollperf/report/disturbances.hpp"
#include "pollperf/report/progress.hpp"
#include "pollperf/round_trip.hpp"
#include "pollperf/threads.hpp"

namespace pollcore::perf {
namespace {

constexpr std::chrono::milliseconds kRoundTripTime{1000};
// In lat, only every so many messages have a completion, unless each needs one.
constexpr std::uint32_t kSignalEveryOfLatency = 16;

Workload make_workload(const TestOptions& options, Op op, std::uint32_t size, std::uint32_t inline_most,
                       std::uint32_t slots) {
    Workload workload{.test = options.test,
                      .op = op,
                      .transport = options.transport,
                      .size = size_of(op, size),
                      .verify = options.verify,
                      .one_sided = options.one_sided(op),
                      .bidirectional = options.bidirectional,
                      .tx_depth = options.tx_depth,
                      .post_list = options.post_list,
                      .signal_every = options.signal_every};
    workload.inlined = !is_answered(op) && workload.size <= inline_most;
    if (options.usual_signals && workload.size > kSignalEachAbove) {
        workload.signal_every = 1;
    }
    if (workload.one_sided && options.verify && options.tx_depth > 1) {
        // Each operation in flight has a buffer of its own.
        workload.tx_depth = std::min(workload.tx_depth, slots);
        workload.signal_every = std::min(workload.signal_every, std::max(1u, workload.tx_depth / 2));
        workload.post_list = std::min(workload.post_list, workload.tx_depth);
    }
    if (options.test == Test::lat && !workload.one_sided && !workload.buffer_reused()) {
        workload.signal_every = kSignalEveryOfLatency;
    }
    return workload;
}

/// One path, and the server's end of it if there is a server.
struct Line {
    PathKind kind{};
    std::unique_ptr<PathRun> run;
    std::uint32_t inline_most = 0;
    std::uint32_t peer_id = 0;
    bool one_sided = false;  ///< a peer that does not answer: each operation ends at its own completion
    Workload workload;
    std::uint64_t peer_operations = 0;
    double peer_seconds = 0;
};

/// Makes the lines, and measures on them.
class Bench {
public:
    Bench(const TestOptions& options, Results& results)
        : options_(options),
          plan_(connection_plan(options)),
          results_(results),
          place_(options, std::make_shared<OwnRuntime>()) {
        if (options.role == Role::client && !options.service) {
            client_.emplace(options);
            place_.prefer_address(client_->own_address());
            results.peer_host = client_->host();
        }
        for (const PathKind path : options.paths) {
            lines_.push_back(make(path));
        }
        results.device = place_.device();
        results.memory = place_.memory();
        results.hugepages = place_.hugepages();
    }

    void measure() {
        Progress progress(steps(), expected());
        for (const Op op : options_.ops) {
            bool atomic_done = false;
            for (const std::uint32_t size : sizes_) {
                if (is_atomic(op) && std::exchange(atomic_done, true)) {
                    continue;  // atomics have one size
                }
                measure(op, size, progress);
            }
        }
        try {
            for (Line& line : lines_) {
                if (client_) {
                    client_->close(line.peer_id);
                }
                line.run->disconnect(options_.timeout);
            }
        } catch (const std::exception& error) {
            // All was measured, and is worth a report.
            results_.warnings.push_back(fmt::format("the connections could not be ended: {}", error.what()));
        }
    }

private:
    Line make(PathKind path) {
        Line line{.kind = path};
        const bool both = options_.role == Role::both;
        line.inline_most = place_.inline_most(path);
        PathPlan plan{.role = options_.role,
                      .connections = plan_.connections,
                      .cores = options_.cores,
                      .timeout = options_.timeout,
                      .warm_rounds = options_.warmup != 0u};
        if (client_) {
            plan.look_about = [this] { client_->look(); };
        }
        line.run = place_.make(path, plan_.setup(both ? 2 : 1), std::move(plan));
        std::uint16_t mtu = place_.port_mtu(path);
        if (both) {
            line.run->connect_ends();
        } else if (options_.service) {
            connect_service(line);
        } else {
            const Client::Opened opened = client_->open(path, plan_);
            client_->connect(*line.run, opened, plan_);
            line.peer_id = opened.id;
            mtu = std::min(mtu, opened.mtu);
            results_.peer = fmt::format("pollperf on {}, path {}, {}", results_.peer_host->name, path_name(opened.path),
                                        opened.device);
        }
        limit_sizes(mtu);
        return line;
    }

    // A datagram is one packet.
    void limit_sizes(std::uint16_t mtu) {
        if (sizes_.empty()) {
            sizes_ = options_.sizes;
        }
        if (options_.transport != QpType::ud) {
            return;
        }
        const std::uint32_t most = options_.mtu == 0 ? mtu : std::min(mtu, options_.mtu);
        if (options_.sizes.size() == 1 && options_.sizes.front() > most) {
            throw UsageError(fmt::format("--size {}: a datagram has at most {} bytes here, the MTU of the ports",
                                         options_.sizes.front(), most));
        }
        std::erase_if(sizes_, [&](std::uint32_t size) { return size > most; });
        if (sizes_.empty()) {
            throw UsageError(fmt::format("--size: a datagram has at most {} bytes here, the MTU of the ports", most));
        }
    }

    void connect_service(Line& line) {
        const bool bare_ipv6 = options_.address.find(':') != std::string::npos && options_.address[0] != '[';
        const std::string address =
            fmt::format(fmt::runtime(bare_ipv6 ? "[{}]:{}" : "{}:{}"), options_.address, options_.port);
        const Op op = options_.ops.front();
        const PeerKind peer = recognize_peer(
            line.run->connect_service(address, std::max<std::chrono::milliseconds>(options_.timeout, kConnectLeast)),
            op, size_of(op, options_.sizes.front()));
        const EndInfo remote{.qp = {}, .memory = peer.memory};
        line.run->set_remote({&remote, 1});
        line.one_sided = !peer.answers;
        results_.peer = peer.description;
    }

    void measure(Op op, std::uint32_t size, Progress& progress) {
        for (Line& line : lines_) {
            line.workload = make_workload(options_, op, size, line.inline_most, plan_.slots);
            line.workload.one_sided = line.workload.one_sided || line.one_sided;
            line.workload.signal_every = line.workload.one_sided && options_.test == Test::lat && !options_.arrivals
                                             ? 1
                                             : line.workload.signal_every;
            line.peer_operations = 0;
            line.peer_seconds = 0;
            line.run->begin(line.workload, options_.arrivals);
            if (client_) {
                client_->begin(line.peer_id, line.workload);
            }
            serving(line, {}, [&] { warm_up(line, size); });
        }
        const std::uint64_t all = iterations_of(options_, size_of(op, size));
        std::uint64_t done = 0;
        for (std::uint32_t round = 1; round <= options_.rounds; ++round) {
            Until until;
            if (all == 0) {
                until.time = options_.duration / options_.rounds;
            } else {
                const std::uint64_t up_to = all * round / options_.rounds;
                until.operations = up_to - std::exchange(done, up_to);
            }
            if (client_ && options_.bidirectional && options_.usual_iterations) {
                // The two sides begin some milliseconds apart, and a round has to be much longer than that.
                until = {.time = kRoundOfBoth};
            }
            for (Line& line : lines_) {
                progress.step(fmt::format("{}, {} bytes, {}: round {} of {}", op_name(op), line.workload.size,
                                          path_name(line.kind), round, options_.rounds));
                measure_round(line, until);
            }
        }
        for (Line& line : lines_) {
            results_.measurements.push_back(result_of(line));
        }
    }

    void warm_up(Line& line, std::uint32_t size) {
        Until until;
        const std::uint64_t all = iterations_of(options_, size_of(line.workload.op, size));
        if (options_.warmup) {
            until.operations = *options_.warmup;
        } else if (all == 0) {
            until.time = options_.duration / 10;
        } else {
            until.operations = std::max<std::uint64_t>({all / 10, std::min<std::uint64_t>(all, 100), options_.threads});
        }
        if (until.operations != 0) {
            line.run->warm_up(until);
        }
    }

    void measure_round(Line& line, const Until& until) {
        if (!client_ || !options_.bidirectional) {
            serving(line, {}, [&] { line.run->round(until); });
            return;
        }
        serving(line, until, [&] { round_of_both(line, until); });
    }

    // The two ends send at the same time. Each goes on receiving until the other has sent all.
    void round_of_both(Line& line, const Until& until) {
        std::mutex mutex;
        std::condition_variable changed;
        bool sent = false;
        std::exception_ptr failure;
        {
            const std::jthread waits([&] {
                try {
                    {
                        std::unique_lock lock(mutex);
                        changed.wait(lock, [&] { return sent; });
                    }
                    client_->await_sent(line.peer_id);
                } catch (...) {
                    failure = std::current_exception();
                }
                line.run->stop_serving();
            });
            const auto tell = [&] {
                const std::lock_guard lock(mutex);
                sent = true;
                changed.notify_all();
            };
            try {
                line.run->round(until, tell);
            } catch (...) {
                tell();  // or the other thread would wait for ever
                throw;
            }
        }
        if (failure) {
            std::rethrow_exception(failure);
        }
    }

    /// Does `work` while the server serves.
    template <class Work>
    void serving(Line& line, const std::optional<Until>& sends, Work&& work) {
        if (client_) {
            client_->start(line.peer_id, sends);
        }
        work();
        if (client_) {
            const Client::Sent sent = client_->stop(line.peer_id);
            line.peer_operations += sent.operations;
            line.peer_seconds += sent.seconds;
        }
    }

    Measurement result_of(Line& line) {
        Measurement result = line.run->result();
        if (has_worker(line.kind)) {
            result.sessions = options_.sessions;
            result.workers = static_cast<std::uint32_t>(options_.workers.size());
            result.flow = options_.flow;
        }
        result.yields = options_.wait_on(line.kind) == Waiting::yield;
        result.peer_operations = line.peer_operations;
        result.peer_seconds = line.peer_seconds;
        if (client_ && line.workload.one_sided && !is_answered(line.workload.op)) {
            const auto posted = line.run->posted();
            const Client::Counted counted = client_->count(line.peer_id, posted);
            if (takes_receive(line.workload.op)) {
                result.arrived = counted.arrived;
                result.sent = std::accumulate(posted.begin(), posted.end(), std::uint64_t{0});
            }
            if (options_.bidirectional) {
                const auto here = line.run->arrived(counted.posted);
                if (takes_receive(line.workload.op)) {
                    *result.arrived += std::accumulate(here.begin(), here.end(), std::uint64_t{0});
                    result.sent += std::accumulate(counted.posted.begin(), counted.posted.end(), std::uint64_t{0});
                }
            }
        }
        return result;
    }

    [[nodiscard]] std::size_t steps() const {
        std::size_t measurements = 0;
        for (const Op op : options_.ops) {
            measurements += is_atomic(op) ? 1 : sizes_.size();
        }
        return measurements * options_.rounds * lines_.size();
    }
    [[nodiscard]] std::chrono::nanoseconds expected() const {
        return options_.duration * static_cast<std::int64_t>(steps() / options_.rounds);
    }

    static constexpr std::chrono::milliseconds kRoundOfBoth{200};
    /// The first connection after the network came up may need seconds to find the peer's link address (ARP).
    static constexpr std::chrono::seconds kConnectLeast{10};

    const TestOptions& options_;
    const ConnectionPlan plan_;
    Results& results_;
    Place place_;
    std::optional<Client> client_;
    std::vector<std::uint32_t> sizes_;
    std::vector<Line> lines_;
};

std::string list(const std::vector<std::uint32_t>& numbers) {
    return fmt::format("{}", fmt::join(numbers, ","));
}

std::vector<std::pair<std::string, std::string>> settings_of(const TestOptions& options) {
    std::vector<std::pair<std::string, std::string>> all;
    const auto say = [&](const char* name, std::string value) { all.emplace_back(name, std::move(value)); };
    std::vector<std::string> names;
    for (const Op op : options.ops) {
        names.emplace_back(op_name(op));
    }
    say("op", fmt::format("{}", fmt::join(names, ",")));
    names.clear();
    for (const PathKind path : options.paths) {
        names.emplace_back(path_name(path));
    }
    say("path", fmt::format("{}", fmt::join(names, ",")));
    say("device", options.device);
    say("ends",
        options.role == Role::both ? "both in this process" : fmt::format("{}:{}", options.address, options.port));
    say("connection", fmt::format("{}{}", transport_name(options.transport),
                                  options.role == Role::both           ? ""
                                  : options.rdma_cm || options.service ? " by rdma_cm"
                                                                       : " by exchanged information"));
    say("size", list(options.sizes));
    if (options.duration.count() != 0) {
        say("duration", config::print_duration(options.duration.count(), 1));
    } else {
        say("iters",
            fmt::format("{}{}", options.iterations, options.usual_iterations ? " (of long messages fewer)" : ""));
    }
    say("warmup", options.warmup ? fmt::format("{}", *options.warmup) : "a tenth");
    say("rounds", fmt::format("{}", options.rounds));
    say("qp", fmt::format("{}", options.queue_pairs));
    say("threads", fmt::format("{}", options.threads));
    if (options.has_worker()) {
        say("sessions", fmt::format("{}", options.sessions));
        say("workers", fmt::format("{}", options.workers.size()));
        say("flow", std::string(flow_control_name(options.flow)));
    }
    const EndLayout layout = layout_of(options);
    say("tx-depth", fmt::format("{}", options.tx_depth));
    say("rx-depth", fmt::format("{}", layout.receive_slots));
    if (options.test != Test::lat) {
        say("post_list", fmt::format("{}", options.post_list));
        say("cq-mod", fmt::format("{}", options.signal_every));
        say("bidirectional", options.bidirectional ? "yes" : "no");
    }
    if (options.arrivals) {
        say("rate", fmt::format("{:g}/s{}", options.arrivals->per_s, options.arrivals->poisson ? ", Poisson" : ""));
    }
    if (options.inline_size) {
        say("inline_size", fmt::format("{}", *options.inline_size));
    }
    if (options.mtu != 0) {
        say("mtu", fmt::format("{}", options.mtu));
    }
    say("wait", options.wait == Waiting::spin ? "spin" : options.wait == Waiting::yield ? "yield" : "event");
    say("core", list(options.cores));
    if (options.own_worker()) {
        say("worker-core", fmt::format("{}", options.worker_core));
    }
    say("verify", options.verify ? "yes" : "no");
    if (options.report_gbits) {
        say("report_gbits", "yes");
    }
    return all;
}

}  // namespace

Results run_test(const TestOptions& options) {
    set_log_level(options.config.log_level);
    Results results;
    results.test = options.test;
    results.began = fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr)));
    results.host = host_facts();
    results.settings = settings_of(options);
    results.verified = options.verify;
    (void)cycles_per_ns();  // the first call measures the clock for a while: do it before the measurement

    // The raw round trip is measured while no worker of this process runs. It serves to judge a path over such a
    // worker.
    const auto round_trip = [&options]() -> std::optional<RoundTrip> {
        // With a daemon's worker it is not measured, because that worker polls on its core all the time.
        return options.test == Test::lat && options.own_worker() && !options.one_cpu()
                   ? measure_round_trip(options.cores.front(), options.worker_core, kRoundTripTime)
                   : std::nullopt;
    };
    const std::optional<RoundTrip> before = round_trip();
    {
        Bench bench(options, results);
        bench.measure();
    }
    const std::optional<RoundTrip> after = round_trip();
    if (before && after) {
        results.round_trip = {*before, *after};
    }
    const auto noise = noise_warnings(results);
    results.warnings.insert(results.warnings.end(), noise.begin(), noise.end());
    return results;
}

}  // namespace pollcore::perf
