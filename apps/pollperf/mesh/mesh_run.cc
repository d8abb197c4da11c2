#include "pollperf/mesh/mesh_run.hpp"

#include <algorithm>
#include <atomic>
#include <exception>
#include <memory>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "pollperf/measure/path_run.hpp"
#include "pollperf/report/progress.hpp"

namespace pollcore::perf {
namespace {

using Json = nlohmann::json;

constexpr std::chrono::milliseconds kSetUpTime{30'000};
constexpr std::chrono::milliseconds kWarmUp{20};
// A measurement by iterations may take so long for each. A rank that waits for others ends it after that.
constexpr std::chrono::milliseconds kIterationMost{1};
// A server waits for its client without a limit: MPI tells it when the client is done, and there the wait has a limit.
constexpr std::chrono::hours kNoLimit{24};
// In lat, only every so many messages have a completion.
constexpr std::uint32_t kSignalEveryOfLatency = 16;
// Operations in flight on each of many connections are fewer, so that all together are as many as on one.
constexpr std::uint32_t kDepthLeast = 8;

/// A thread that measures or serves, while the thread that owns MPI waits for other ranks.
class Beside {
public:
    template <class Work>
    Beside(PathRun& run, Work work)
        : run_(run), thread_([this, work = std::move(work)] {
              try {
                  work();
              } catch (...) {
                  failure_ = std::current_exception();
                  failed_.store(true, std::memory_order_release);
              }
          }) {}
    ~Beside() { run_.stop_serving(); }
    Beside(const Beside&) = delete;
    Beside& operator=(const Beside&) = delete;

    /// Throws what the work has thrown.
    void look() {
        if (failed_.load(std::memory_order_acquire)) {
            std::rethrow_exception(failure_);
        }
    }
    /// Waits until the work has ended. Throws what it has thrown.
    void stop() {
        run_.stop_serving();
        thread_.join();
        look();
    }

private:
    PathRun& run_;
    std::atomic<bool> failed_{false};
    std::exception_ptr failure_;
    std::jthread thread_;  // last: its end is awaited before the others are gone
};

template <class Value, class Convert>
Json map_json(const std::map<int, Value>& map, Convert&& convert) {
    Json json = Json::array();
    for (const auto& [rank, value] : map) {
        json.push_back({rank, convert(value)});
    }
    return json;
}

}  // namespace

Json to_json(const RankFigures& figures) {
    const auto same = [](double value) { return value; };
    Json json = {{"latency", map_json(figures.latency,
                                      [](const RankFigures::Latency& one) {
                                          return Json::array({one.median_ns, one.p99_ns});
                                      })},
                 {"bandwidth", map_json(figures.bandwidth, same)},
                 {"incast", map_json(figures.incast, same)},
                 {"seconds", figures.seconds},
                 {"steal_ms", figures.steal_ms},
                 {"involuntary_switches", figures.involuntary_switches}};
    if (figures.all_to_all) {
        json["all_to_all"] = *figures.all_to_all;
    }
    return json;
}

RankFigures read_figures(const Json& json) {
    RankFigures figures;
    for (const Json& one : json.at("latency")) {
        figures.latency[one.at(0)] = {.median_ns = one.at(1).at(0), .p99_ns = one.at(1).at(1)};
    }
    for (const Json& one : json.at("bandwidth")) {
        figures.bandwidth[one.at(0)] = one.at(1);
    }
    for (const Json& one : json.at("incast")) {
        figures.incast[one.at(0)] = one.at(1);
    }
    if (json.contains("all_to_all")) {
        figures.all_to_all = json.at("all_to_all").get<double>();
    }
    figures.seconds = json.at("seconds");
    figures.steal_ms = json.at("steal_ms");
    figures.involuntary_switches = json.at("involuntary_switches");
    return figures;
}

MeshRun::MeshRun(MpiWorld& world, const MeshOptions& options, Place& place, const std::vector<std::string>& hosts)
    : world_(world),
      options_(options),
      place_(place),
      pairs_(pair_schedule(hosts, options.serial)),
      inline_most_(place.inline_most(options.path())) {}

RankFigures MeshRun::measure() {
    std::vector<int> targets;
    for (int rank = 0; options_.with_incast && rank < world_.size(); ++rank) {
        if (!options_.incast_to || *options_.incast_to == rank) {
            targets.push_back(rank);
        }
    }
    const std::size_t pair_kinds = (options_.with_latency ? 1u : 0u) + (options_.with_bandwidth ? 1u : 0u);
    const std::size_t steps = pairs_.size() * pair_kinds + targets.size() + (options_.with_all_to_all ? 1 : 0);
    std::optional<Progress> progress;
    if (world_.rank() == 0) {
        progress.emplace(steps, options_.duration * static_cast<std::int64_t>(steps));
    }
    const auto say = [&](std::string text) {
        if (progress) {
            progress->step(std::move(text));
        }
    };
    for (const bool latency : {true, false}) {
        if (!(latency ? options_.with_latency : options_.with_bandwidth)) {
            continue;
        }
        for (std::size_t i = 0; i < pairs_.size(); ++i) {
            say(fmt::format("{} of pairs: step {} of {}", latency ? "latency" : "bandwidth", i + 1, pairs_.size()));
            measure_pairs(pairs_[i], latency);
        }
    }
    for (const int to : targets) {
        say(fmt::format("all to rank {}", to));
        measure_incast(to);
    }
    if (options_.with_all_to_all) {
        say("all to all");
        measure_all_to_all();
    }
    return std::move(figures_);
}

// ---- the three kinds of steps ----

void MeshRun::measure_pairs(const Step& step, bool latency) {
    const auto mine = std::find_if(step.begin(), step.end(), [&](const Pair& pair) {
        return pair.from == world_.rank() || pair.to == world_.rank();
    });
    const bool sends = mine != step.end() && mine->from == world_.rank();
    std::unique_ptr<PathRun> run;
    if (mine != step.end()) {
        run = connected(sends ? Role::client : Role::server, pair_plan(latency),
                        latency ? latency_workload() : bandwidth_workload(), {sends ? mine->to : mine->from});
    }
    world_.barrier(setting_up("the other ranks' connections"));
    if (sends) {
        const Measurement result = send_to(*run, mine->to, until(true));
        if (latency) {
            figures_.latency[mine->to] = {.median_ns = result.percentile_ns(0.5), .p99_ns = result.percentile_ns(0.99)};
        } else {
            figures_.bandwidth[mine->to] = result.bytes_per_s();
        }
    } else if (run) {
        serve(*run, {mine->from}, fmt::format("the end of the measurement of rank {}", mine->from));
    }
    world_.barrier(measuring("the other pairs"));
}

void MeshRun::measure_incast(int to) {
    if (to == world_.rank()) {
        const auto senders = others();
        const auto run =
            connected(Role::server, many_plan(static_cast<unsigned>(senders.size())), many_workload(), senders);
        world_.barrier(setting_up("the other ranks' connections"));
        serve(*run, senders, "the end of the measurements of all senders");
        world_.barrier(measuring("the senders"));
        return;
    }
    const auto run = connected(Role::client, many_plan(1), many_workload(), {to});
    world_.barrier(setting_up("the other ranks' connections"));
    figures_.incast[to] = send_to(*run, to, until(false)).bytes_per_s();
    world_.barrier(measuring("the other senders"));
}

void MeshRun::measure_all_to_all() {
    const auto peers = others();
    Workload workload = many_workload();
    workload.bidirectional = true;
    const auto run = connected(Role::client, many_plan(static_cast<unsigned>(peers.size())), workload, peers);
    world_.barrier(setting_up("the other ranks' connections"));
    std::atomic<bool> sent{false};
    Beside beside(*run, [&] {
        run->warm_up({.time = kWarmUp});
        // A rank goes on receiving until the others have sent all, too.
        run->round(until(false), [&] { sent.store(true, std::memory_order_release); });
    });
    auto patience = measuring("the end of this rank's sending");
    patience.look = [&] { beside.look(); };
    world_.wait([&] { return sent.load(std::memory_order_acquire); }, patience);
    patience.what = "the end of the other ranks' sending";
    world_.barrier(patience);
    beside.stop();
    const Measurement result = run->result();
    figures_.all_to_all = result.bytes_per_s();
    count_noise(result);
    world_.barrier(measuring("the other ranks"));  // nobody closes connections before all have stopped
}

// ---- what they have in common ----

std::unique_ptr<PathRun> MeshRun::connected(Role role, const ConnectionPlan& plan, const Workload& workload,
                                            const std::vector<int>& peers) {
    auto run = place_.make(options_.path(), plan.setup(1),
                           {.role = role,
                            .connections = plan.connections,
                            .cores = {options_.core()},
                            .timeout = role == Role::server ? kNoLimit : options_.latency.timeout});
    const auto own = run->own_ends();
    for (std::size_t i = 0; i < peers.size(); ++i) {
        world_.send(peers[i], to_json(std::vector{own[i]}).dump(),
                    setting_up(fmt::format("rank {} to take an end", peers[i])));
    }
    std::vector<EndInfo> ends;
    for (const int peer : peers) {
        const auto text = world_.receive(peer, setting_up(fmt::format("an end of rank {}", peer)));
        ends.push_back(read_ends(Json::parse(text, nullptr, false), 1).front());
    }
    run->connect(ends);
    run->begin(workload, std::nullopt);
    return run;
}

Measurement MeshRun::send_to(PathRun& run, int peer, const Until& until) {
    run.warm_up({.time = kWarmUp});
    run.round(until);
    world_.send(peer, "done", measuring(fmt::format("rank {} to take a message", peer)));
    Measurement result = run.result();
    count_noise(result);
    return result;
}

void MeshRun::serve(PathRun& run, const std::vector<int>& peers, const std::string& what) {
    Beside beside(run, [&] { run.serve(); });
    auto patience = measuring(what);
    patience.look = [&] { beside.look(); };
    for (const int peer : peers) {
        (void)world_.receive(peer, patience);
    }
    beside.stop();
}

void MeshRun::count_noise(const Measurement& measurement) {
    const Disturbance noise = measurement.disturbance();
    figures_.seconds += measurement.seconds;
    figures_.steal_ms += noise.steal_ms;
    figures_.involuntary_switches += noise.application.involuntary;
}

Workload MeshRun::latency_workload() const {
    Workload workload{.test = Test::lat, .op = Op::send, .size = options_.latency_size()};
    workload.inlined = workload.size <= inline_most_;
    workload.signal_every = kSignalEveryOfLatency;
    return workload;
}

Workload MeshRun::bandwidth_workload() const {
    const TestOptions& options = options_.bandwidth;
    Workload workload{.test = Test::bw,
                      .op = options_.op(),
                      .size = options_.size(),
                      .one_sided = true,
                      .tx_depth = options.tx_depth,
                      .signal_every = options.signal_every};
    workload.inlined = !is_answered(workload.op) && workload.size <= inline_most_;
    if (workload.size > kSignalEachAbove) {
        workload.signal_every = 1;
    }
    return workload;
}

Workload MeshRun::many_workload() const {
    Workload workload = bandwidth_workload();
    const auto others = static_cast<std::uint32_t>(std::max(1, world_.size() - 1));
    workload.tx_depth = std::max(std::min(workload.tx_depth, kDepthLeast), workload.tx_depth / others);
    workload.signal_every = std::min(workload.signal_every, std::max(1u, workload.tx_depth / 2));
    return workload;
}

ConnectionPlan MeshRun::pair_plan(bool latency) const {
    ConnectionPlan plan = connection_plan(latency ? options_.latency : options_.bandwidth);
    plan.connections = 1;
    return plan;
}

ConnectionPlan MeshRun::many_plan(unsigned connections) const {
    constexpr std::uint32_t kBatch = 32;  // receives that are posted again together
    ConnectionPlan plan = connection_plan(options_.bandwidth);
    plan.connections = connections;
    const std::uint32_t depth = many_workload().tx_depth;
    plan.send_depth = std::max(depth, 2 * kBatch);
    if (takes_receive(options_.op())) {
        const std::uint32_t receives = std::min(plan.receive_slots, 2 * depth);
        plan.receive_slots = receives > kBatch ? receives - receives % kBatch : receives;
    }
    return plan;
}

std::vector<int> MeshRun::others() const {
    std::vector<int> all;
    for (int rank = 0; rank < world_.size(); ++rank) {
        if (rank != world_.rank()) {
            all.push_back(rank);
        }
    }
    return all;
}

Until MeshRun::until(bool may_count) const {
    Until until;
    if (may_count && options_.iterations != 0) {
        until.operations = options_.iterations;
    } else {
        until.time = options_.duration;
    }
    return until;
}

MpiWorld::Patience MeshRun::setting_up(std::string what) const {
    return {.limit = options_.latency.timeout + kSetUpTime, .what = std::move(what)};
}

MpiWorld::Patience MeshRun::measuring(std::string what) const {
    return {.limit = options_.latency.timeout + kSetUpTime + kWarmUp +
                     std::chrono::ceil<std::chrono::milliseconds>(options_.duration) +
                     kIterationMost * static_cast<std::int64_t>(options_.iterations),
            .what = std::move(what)};
}

}  // namespace pollcore::perf
