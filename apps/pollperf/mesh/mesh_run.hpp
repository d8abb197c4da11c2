// Measures between all ranks: pairs, many to one, and all to all. All ranks go through the same steps, with barriers
// between them.
//
// Thread safety: the thread that has made the MpiWorld uses the object; further threads measure or serve within the
// call.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "pollperf/mesh/mesh_options.hpp"
#include "pollperf/mesh/mpi_world.hpp"
#include "pollperf/mesh/schedule.hpp"
#include "pollperf/peer/letters.hpp"
#include "pollperf/place.hpp"

namespace pollcore::perf {

/// What a rank has measured as the sender.
struct RankFigures {
    struct Latency {
        double median_ns = 0;
        double p99_ns = 0;
    };
    std::map<int, Latency> latency;   ///< by receiver
    std::map<int, double> bandwidth;  ///< by receiver, in bytes per second
    std::map<int, double> incast;     ///< by receiver
    std::optional<double> all_to_all;
    double seconds = 0;
    std::uint64_t steal_ms = 0;
    std::uint64_t involuntary_switches = 0;
};
[[nodiscard]] nlohmann::json to_json(const RankFigures& figures);
[[nodiscard]] RankFigures read_figures(const nlohmann::json& json);

class MeshRun {
public:
    /// `hosts` has the host of each rank.
    MeshRun(MpiWorld& world, const MeshOptions& options, Place& place, const std::vector<std::string>& hosts);

    /// All ranks call it. Errors: MeasurementError and pollcore::Error.
    [[nodiscard]] RankFigures measure();

private:
    void measure_pairs(const Step& step, bool latency);
    void measure_incast(int to);
    void measure_all_to_all();
    /// A path with an end for each of `peers`, ready for `workload`. The peers call this at the same time, and the ends
    /// are connected with theirs.
    [[nodiscard]] std::unique_ptr<PathRun> connected(Role role, const ConnectionPlan& plan, const Workload& workload,
                                                     const std::vector<int>& peers);
    /// Sends, and tells the peer when all is done.
    [[nodiscard]] Measurement send_to(PathRun& run, int peer, const Until& until);
    /// Serves until all peers have told that they are done.
    void serve(PathRun& run, const std::vector<int>& peers, const std::string& what);
    void count_noise(const Measurement& measurement);

    [[nodiscard]] Workload latency_workload() const;
    [[nodiscard]] Workload bandwidth_workload() const;
    [[nodiscard]] Workload many_workload() const;  ///< of incast and all to all
    [[nodiscard]] ConnectionPlan pair_plan(bool latency) const;
    [[nodiscard]] ConnectionPlan many_plan(unsigned connections) const;
    [[nodiscard]] std::vector<int> others() const;
    [[nodiscard]] Until until(bool may_count) const;

    /// To make connections: opening devices and registering memory take seconds on some hosts.
    [[nodiscard]] MpiWorld::Patience setting_up(std::string what) const;
    [[nodiscard]] MpiWorld::Patience measuring(std::string what) const;

    MpiWorld& world_;
    const MeshOptions& options_;
    Place& place_;
    const std::vector<Step> pairs_;
    std::uint32_t inline_most_ = 0;
    RankFigures figures_;
};

}  // namespace pollcore::perf
