// Runs many histories in several processes, and shrinks one that fails.
#pragma once

#include <cstdint>
#include <string>

#include "sim/bug_kinds.hpp"
#include "sim/world.hpp"

namespace pollcore::sim {

/// The result of a campaign that looks for a planted bug.
struct Found {
    std::uint64_t histories = 0;
    std::string invariant;  ///< the invariant that did not hold; empty: all held
};

struct Campaign {
    std::uint64_t seeds = 1000;
    std::uint64_t from = 1;
    std::uint64_t steps = 2000;
    std::string world{kAllWorlds};
    std::uint32_t jobs = 1;
    Bug bug = Bug::none;     ///< the planted bug to find
    Found* found = nullptr;  ///< takes the result instead of printing it
    double seconds = 0;      ///< 0: as long as it takes
    bool print_coverage = false;
    bool complete = false;  ///< every trouble must meet queue pairs in every state that can_meet() allows
};

/// Returns the exit code: 1 if an invariant did not hold, or if `complete` is set and a trouble has missed a state;
/// otherwise 0. Prints the shrunk history of a failure, unless `found` is set.
[[nodiscard]] int run_campaign(const Campaign& campaign);

/// Prints the seed, the trace's digest and the number of steps of each history. Every process prints the same lines.
[[nodiscard]] int print_digests(const Campaign& campaign);

/// Checks that each planted bug is found within `seeds` histories. Returns the exit code.
[[nodiscard]] int prove_that_it_bites(std::uint64_t seeds, std::uint32_t jobs);

/// Prints one history with all its events. Returns the exit code.
[[nodiscard]] int print_history(HistoryOptions options);

}  // namespace pollcore::sim
