// Planted bugs, to prove that the simulation finds bugs.
//
// A normal build has none of these bugs. The simulation is compiled from the same sources with POLLCORE_SIMULATED. It
// asks for one bug by its name (tests/sim/bug_kinds.hpp), and chooses which calls of planted() return true for that
// bug.
#pragma once

#include <cstdint>

namespace pollcore {

enum class Bug : std::uint8_t {
    none,
    lost,            ///< a completion is not delivered
    lost_ordinary,   ///< a completion of worker/ordinary.cc is not delivered
    lost_in_line,    ///< a completion that belongs in the cache line of its request is not delivered
    twice,           ///< a completion is delivered twice
    swapped,         ///< the first two completions of a batch change places
    misread_status,  ///< a remote access error is reported as a local access error
    wedged,  ///< the worker lets unsignaled work requests fill the send queue, without a signaled one among them
    kept_reservation,  ///< a completion does not free its request's place in the send queue
    stale_handle,      ///< the handle of a queue pair's earlier life is accepted
    published_early,   ///< a slot is published before it is written
    given_back_early,  ///< requests are completed before their queue pair is destroyed
    unacknowledged,    ///< an asynchronous event is not acknowledged
    missed_rearm,      ///< a CQ still counts as armed after its event was taken
    no_last_look,      ///< a worker sleeps without a last look for work
    late_word,         ///< a submitter checks whether the worker sleeps before it publishes its request
    careless_sleeper,  ///< an application sleeps without a last look for completions
    kept_shared,       ///< the receive that a failed queue pair took from a shared receive queue does not complete
    ended_early,       ///< an address handle is destroyed although sends name it
    window_kept,       ///< a type 2 window stays bound when its queue pair is reset
    ring_first,  ///< completions in the ring are taken before an earlier completion in the cache line of its request
};

#ifdef POLLCORE_SIMULATED
[[nodiscard]] bool planted(Bug bug) noexcept;
#else
[[nodiscard]] consteval bool planted(Bug) noexcept {
    return false;
}
#endif

}  // namespace pollcore
