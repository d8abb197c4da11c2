#include "pollperf/report/results.hpp"

#include <algorithm>

namespace pollcore::perf {

Disturbance Measurement::disturbance() const {
    Disturbance all;
    for (const Round& round : rounds) {
        const Disturbance& one = round.disturbance;
        all.steal_ms += one.steal_ms;
        all.migrations += one.migrations;
        all.application += one.application;
        if (one.worker) {
            all.worker = all.worker.value_or(ContextSwitches{});
            *all.worker += *one.worker;
        }
        // A frequency of 0 is no frequency: the kernel did not say.
        if (one.frequency_low_mhz > 0 &&
            (all.frequency_low_mhz <= 0 || one.frequency_low_mhz < all.frequency_low_mhz)) {
            all.frequency_low_mhz = one.frequency_low_mhz;
        }
        all.frequency_high_mhz = std::max(all.frequency_high_mhz, one.frequency_high_mhz);
    }
    return all;
}

std::vector<Hop> hops(const Results& results) {
    std::vector<Hop> hops;
    // A path without samples has no typical latency, and so no difference to another.
    const auto measured = [&](const Measurement& like, PathKind path) -> const Measurement* {
        const Measurement* found = results.find(like.op, path, like.size);
        return found != nullptr && found->test == Test::lat && found->latency.count() != 0 ? found : nullptr;
    };
    for (const Measurement& one : results.measurements) {
        if (std::ranges::any_of(hops, [&](const Hop& hop) { return hop.op == one.op && hop.size == one.size; })) {
            continue;
        }
        const Measurement* direct = measured(one, PathKind::direct);
        direct = direct != nullptr ? direct : measured(one, PathKind::event);
        const Measurement* const runtime = measured(one, PathKind::runtime);
        const Measurement* const attached = measured(one, PathKind::attached);
        const Measurement* const worker = runtime != nullptr ? runtime : attached;
        if (direct == nullptr || worker == nullptr) {
            continue;
        }
        Hop hop{.op = one.op,
                .size = one.size,
                .direct_ns = direct->percentile_ns(0.5),
                .worker_ns = worker->percentile_ns(0.5)};
        hop.difference_ns = hop.worker_ns - hop.direct_ns;
        if (runtime != nullptr && attached != nullptr) {
            hop.attached_ns = attached->percentile_ns(0.5);
        }
        if (results.round_trip && results.round_trip->typical_ns() > 0) {
            hop.round_trips = hop.difference_ns / results.round_trip->typical_ns();
        }
        hops.push_back(hop);
    }
    return hops;
}

}  // namespace pollcore::perf
