// Counters: each written by the one thread that its struct is named after, read by anyone.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "pollcore/config.hpp"
#include "pollcore/counter.hpp"
#include "pollcore/event.hpp"
#include "pollcore/limits.hpp"

namespace pollcore {

/// Negative acknowledgements for want of a receive ("receiver not ready"). Each costs the sender a wait of the
/// receiver's min_rnr_timer, so they tell of receive queues that are too short.
struct RnrCounts {
    std::uint64_t received = 0;  ///< by senders on this side
    std::uint64_t sent = 0;      ///< by receivers on this side

    bool operator==(const RnrCounts&) const = default;
};

/// Wake-up latencies are counted in buckets of powers of two.
inline constexpr std::size_t kWakeBuckets = 40;
[[nodiscard]] constexpr std::size_t wake_bucket(std::uint64_t cycles) noexcept {
    const auto bucket = static_cast<std::size_t>(std::bit_width(cycles));
    return bucket < kWakeBuckets ? bucket : kWakeBuckets - 1;
}

/// Written by the worker's thread.
struct alignas(kCacheLine) WorkerCounters {
    Counter steps;              ///< looks for work
    Counter busy_steps;         ///< of those, the ones that found something to do
    Counter sends;              ///< send-queue work requests given to the provider
    Counter send_doorbells;     ///< ibv_post_send calls
    Counter receives;           ///< receives given to the provider
    Counter receive_doorbells;  ///< ibv_post_recv calls
    Counter completions;        ///< work completions taken from CQs
    Counter delivered;          ///< completions written to sessions
    Counter retired;            ///< unsignaled work requests that succeeded
    Counter forced_signals;     ///< signals that the application did not ask for
    Counter markers;            ///< work requests of the runtime's own
    Counter post_failures;      ///< of those, the ones that it refused
    Counter rendezvous;         ///< messages that were too long for the peer's receives, and announced to it
    Counter waits_for_credit;   ///< work requests that the peer had no receive for at once
    Counter grants;             ///< writes that told a peer of receives
    Counter flow_faults;        ///< peers that broke the agreement on flow control
    Counter refused_requests;   ///< work requests that failed the worker's own admission
    Counter cut_short;          ///< work requests whose queue pair ended before the device had completed them
    Counter stale_completions;  ///< of queue pairs that are gone, or that name nothing in flight
    Counter failed_polls;       ///< CQs that were given up
    Counter broken_sessions;    ///< sessions whose rings were tampered with
    Counter commands;
    // How it waits: see IdlePolicy.
    std::array<Counter, kIdlePolicies> idle_cycles;  ///< by policy; what is missing from all cycles was work
    Counter sleeps;                                  ///< times that it has slept
    Counter spurious_wakeups;                        ///< of those, the ones after which there was nothing to do
    Counter cq_events;                               ///< completion events taken
    Counter cq_event_acks;                           ///< calls that acknowledged them
    Counter failed_arms;                             ///< times that it stayed awake since a CQ could not be armed
    Counter failed_channels;                         ///< completion channels that were given up
    Counter applications_woken;
    Counter asleep;  ///< 1 while it sleeps
    std::array<Counter, kWakeBuckets>
        wake_cycles;              ///< from a session's wake-up to the worker's next step, by wake_bucket()
    Counter longest_step_cycles;  ///< longest time between two turns: commands, and then looks for work until one found
                                  ///< some
};

/// Of one receive pool. Written by its worker's thread.
struct alignas(kCacheLine) ReceivePoolCounters {
    Counter posted;        ///< buffers that wait for a message now
    Counter held;          ///< buffers that the application has now
    Counter orphaned;      ///< of those, the ones whose queue pair was closed
    Counter delivered;     ///< messages
    Counter released;      ///< buffers given back
    Counter refills;       ///< batches of receives that were posted
    Counter low_water;     ///< times that a queue had no more receives than at which it is filled
    Counter ran_dry;       ///< times that a queue had none left
    Counter bad_releases;  ///< of buffers that the application did not have
    Counter torn;          ///< messages of a write ring that were seen before they were whole
};

/// Written by the control thread, but for `hangs`.
struct ControlCounters {
    Counter command_ring_full;  ///< commands that found no room, and were told to come later
    Counter answers_untaken;    ///< by workers to commands that nobody asked about any more: what they were about had
                                ///< ended otherwise
    Counter cut_short;          ///< queue pairs that were closed before the device had completed their work
    Counter failed_cqs;         ///< CQs that overran or could not be polled: their queue pairs were closed
    Counter async_events;       ///< asynchronous events taken from devices
    Counter async_events_acknowledged;                           ///< of those; equal whenever the control thread rests
    std::array<Counter, kVerbsEventTypes> async_events_by_type;  ///< by the value of EventType
    Counter events_lost;   ///< for the application, which left kEventsMax of them waiting
    Counter devices_lost;  ///< fatal or removed
    Counter connections;   ///< established
    Counter disconnections;
    Counter requests_refused;  ///< connection requests that were rejected since kListenerBacklogMax waited at their
                               ///< listener
    Counter hangs;             ///< of the runtime's threads, as told by whoever watches them: Runtime::count_hang()
    // What there is; up to 50 ms old, and of an attachment as of the question.
    Counter sessions;
    Counter queue_pairs;
    Counter completion_queues;  ///< which the workers poll: a worker keeps one of a device for the next queue pair
    Counter shared_receive_queues;
    Counter receive_pools;
    Counter memory_regions;
    Counter protection_domains;
};

}  // namespace pollcore
