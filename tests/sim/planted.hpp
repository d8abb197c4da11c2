// Bugs that the simulation is to find: proof that it bites.
//
// tests/sim/plant.py puts them into copies of the runtime's sources, each behind planted(); the sources themselves know
// nothing of them. None is there unless it is asked for by name.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace pollcore::sim {

enum class Bug : std::uint8_t {
    none,
    lost,               ///< one completion in 100,000 is not delivered
    twice,              ///< one in 10,000 is delivered twice
    swapped,            ///< two of a batch change places, once in 1,000 batches
    misread_status,     ///< a remote access error is told as a local one
    wedged,             ///< no signal is asked for before unsignaled work fills the send queue
    kept_reservation,   ///< one completion in 1,000 does not give its place in the send queue back
    stale_handle,       ///< the handle of a queue pair's earlier life is accepted
    published_early,    ///< a slot is published, and then written
    given_back_early,   ///< requests are completed, and then their queue pair is destroyed
    unacknowledged,     ///< one asynchronous event in ten is not acknowledged
    missed_rearm,       ///< a CQ whose event was taken counts as armed
    no_last_look,       ///< a worker sleeps without looking once more
    late_word,          ///< who submits looks whether the worker sleeps, and then publishes
    careless_sleeper,   ///< an application sleeps without looking once more
    ring_first,         ///< what stands in the completion ring is taken before what it came behind
};

struct BugKind {
    Bug bug{};
    std::string_view name;
    std::string_view world;  ///< in which it is looked for
};
[[nodiscard]] const std::vector<BugKind>& bug_kinds();

/// Makes it so in this process.
void plant(Bug bug) noexcept;
[[nodiscard]] bool planted(Bug bug) noexcept;
/// True once in `n` times that it is asked while the bug is planted.
[[nodiscard]] bool planted(Bug bug, std::uint64_t n) noexcept;

}  // namespace pollcore::sim
