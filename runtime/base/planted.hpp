// Bugs that the simulation is to find: proof that it bites.
//
// In a program these are nothing. The simulation, which is compiled from the same sources with POLLCORE_SIMULATED, asks
// for one by its name (tests/sim/bug_kinds.hpp), and which times of many it is there.
#pragma once

#include <cstdint>

namespace pollcore {

enum class Bug : std::uint8_t {
    none,
    lost,              ///< a completion is not delivered
    lost_ordinary,     ///< nor is one of worker/fast_path.cc
    lost_in_line,      ///< nor one that was to come in its request's line
    twice,             ///< one is delivered twice
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
    late_word,         ///< who submits looks whether the worker sleeps, and then publishes
    careless_sleeper,  ///< an application sleeps without looking once more
    kept_shared,       ///< the receive that a failed queue pair took from a shared receive queue does not complete
    ended_early,       ///< an address handle is destroyed though sends name it
    window_kept,       ///< a type 2 window stays bound when its queue pair is reset
    ring_first,        ///< what stands in the completion ring is taken before what it came behind
};

#ifdef POLLCORE_SIMULATED
[[nodiscard]] bool planted(Bug bug) noexcept;
#else
[[nodiscard]] consteval bool planted(Bug) noexcept {
    return false;
}
#endif

}  // namespace pollcore
