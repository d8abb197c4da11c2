// Bugs that the simulation has to find, as a proof that it finds bugs.
//
// A program has none of them. The simulation, which is compiled from the same sources with POLLCORE_SIMULATED, asks for
// one by its name (tests/sim/bug_kinds.hpp), and chooses at which occasions it is there.
#pragma once

#include <cstdint>

namespace pollcore {

enum class Bug : std::uint8_t {
    none,
    lost,              ///< a completion is not delivered
    lost_ordinary,     ///< a completion of worker/fast_path.cc is not delivered
    lost_in_line,      ///< a completion that belongs in its request's line is not delivered
    twice,             ///< a completion is delivered twice
    swapped,           ///< the first two of a batch change places
    misread_status,    ///< a remote access error is told as a local one
    wedged,            ///< no signal is asked for before unsignaled work fills the send queue
    kept_reservation,  ///< a completion does not give its place in the send queue back
    stale_handle,      ///< the handle of a queue pair's earlier life is accepted
    published_early,   ///< a slot is published, and then written
    given_back_early,  ///< requests are completed, and then their queue pair is destroyed
    unacknowledged,    ///< an asynchronous event is not acknowledged
    missed_rearm,      ///< a CQ whose event was taken counts as armed
    no_last_look,      ///< a worker sleeps without looking once more
    late_word,         ///< a submitter looks whether the worker sleeps, and then publishes
    careless_sleeper,  ///< an application sleeps without looking once more
    kept_shared,       ///< the receive that a failed queue pair took from a shared receive queue does not complete
    ended_early,       ///< an address handle is destroyed though sends name it
    window_kept,       ///< a type 2 window stays bound when its queue pair is reset
    ring_first,        ///< completions in the ring are taken before an earlier one in its request's line
};

#ifdef POLLCORE_SIMULATED
[[nodiscard]] bool planted(Bug bug) noexcept;
#else
[[nodiscard]] consteval bool planted(Bug) noexcept {
    return false;
}
#endif

}  // namespace pollcore
