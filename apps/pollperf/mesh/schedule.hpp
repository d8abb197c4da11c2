// Which ranks measure at the same time.
//
// Thread safety: pure functions.
#pragma once

#include <string>
#include <vector>

namespace pollcore::perf {

/// A measurement between two ranks: `from` sends, `to` answers or receives.
struct Pair {
    int from = 0;
    int to = 0;

    friend bool operator==(const Pair&, const Pair&) = default;
};
/// Pairs that measure at the same time.
using Step = std::vector<Pair>;

/// Steps that have each ordered pair of ranks once. `hosts` has the host of each rank. In a step no host has two
/// measurements, so that no pair shares a link with another pair. If all ranks are on one host, no rank has two. With
/// `serial`, each step has one pair.
[[nodiscard]] std::vector<Step> pair_schedule(const std::vector<std::string>& hosts, bool serial);

/// Whether all ranks are on one host.
[[nodiscard]] bool on_one_host(const std::vector<std::string>& hosts);

}  // namespace pollcore::perf
