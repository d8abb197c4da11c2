// Many histories, in several processes, and what to make of one that fails.
#pragma once

#include <cstdint>
#include <string>

#include "sim/bug_kinds.hpp"
#include "sim/world.hpp"

namespace pollcore::sim {

/// What a campaign that looks for a planted bug came to.
struct Found {
    std::uint64_t histories = 0;
    std::string invariant;  ///< that did not hold; empty: all did
};

struct Campaign {
    std::uint64_t seeds = 1000;
    std::uint64_t from = 1;
    std::uint64_t steps = 2000;
    std::string world{kAllWorlds};
    std::uint32_t jobs = 1;
    Bug bug = Bug::none;     ///< that is planted, and to be found
    Found* found = nullptr;  ///< where to say so, instead of printing
    double seconds = 0;      ///< 0: as long as it takes
    bool print_coverage = false;
    bool complete = false;  ///< every trouble is to meet queue pairs in every state in which it can
};

/// Returns the exit code: 0 when all held, 1 when one did not. Then its shrunk form was printed.
[[nodiscard]] int run_campaign(const Campaign& campaign);

/// A line for each history. Two runs print the same, in any two processes.
[[nodiscard]] int print_digests(const Campaign& campaign);

/// Each planted bug is to be found within so many histories. Returns the exit code.
[[nodiscard]] int prove_that_it_bites(std::uint64_t seeds, std::uint32_t jobs);

/// One history with all its events. Returns the exit code.
[[nodiscard]] int print_history(HistoryOptions options);

}  // namespace pollcore::sim
