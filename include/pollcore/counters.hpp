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

/// RNR NAKs: negative acknowledgements for want of a receive ("receiver not ready"). Each makes the sender wait for the
/// receiver's min_rnr_timer, so they are a sign of receive queues that are too short.
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
    Counter busy_steps;         ///< steps that found something to do
    Counter sends;              ///< send-queue work requests given to the provider
    Counter send_doorbells;     ///< ibv_post_send calls
    Counter receives;           ///< receives given to the provider
    Counter receive_doorbells;  ///< ibv_post_recv calls
    Counter completions;        ///< work completions taken from CQs
    Counter delivered;          ///< completions written to sessions
    Counter retired;            ///< unsignaled work requests that succeeded
    Counter forced_signals;     ///< signals that the application did not ask for
    Counter markers;            ///< work requests of the runtime's own
    Counter post_failures;      ///< work requests that the provider refused
    Counter rendezvous;         ///< messages that were announced to the peer, being too long for its receives
    Counter waits_for_credit;   ///< work requests that had to wait for a receive of the peer
    Counter grants;             ///< writes that told a peer of receives
    Counter flow_faults;        ///< peers that broke the agreement on flow control
    Counter refused_requests;   ///< work requests that failed the worker's own admission
    Counter cut_short;          ///< work requests whose queue pair ended before the device had completed them
    Counter stale_completions;  ///< completions of queue pairs that are gone, or that name nothing in flight
    Counter failed_polls;       ///< CQs that were given up because a poll failed
    Counter broken_sessions;    ///< sessions whose rings were tampered with
    Counter commands;
    // How it waits: see IdlePolicy.
    std::array<Counter, kIdlePolicies> idle_cycles;  ///< cycles without work, by policy; all other cycles were work
    Counter sleeps;                                  ///< times that it slept
    Counter spurious_wakeups;                        ///< times that it slept and then found nothing to do
    Counter cq_events;                               ///< completion events taken
    Counter cq_event_acks;                           ///< calls that acknowledged completion events
    Counter failed_arms;                             ///< times that it stayed awake because a CQ could not be armed
    Counter failed_channels;                         ///< completion channels that were given up
    Counter applications_woken;
    Counter asleep;  ///< 1 while it sleeps
    /// Cycles from a session's wake-up to the worker's next step, by wake_bucket().
    std::array<Counter, kWakeBuckets> wake_cycles;
    /// The longest turn, in cycles: commands, and then looks for work until one finds some (D17).
    Counter longest_step_cycles;
};

/// The counters of one receive pool. Written by its worker's thread.
struct alignas(kCacheLine) ReceivePoolCounters {
    Counter posted;        ///< buffers that wait for a message now
    Counter held;          ///< buffers that the application has now
    Counter orphaned;      ///< held buffers whose queue pair was closed
    Counter delivered;     ///< messages
    Counter released;      ///< buffers given back
    Counter refills;       ///< batches of receives that were posted
    Counter low_water;     ///< times that a queue fell to its refill mark
    Counter ran_dry;       ///< times that a queue had none left
    Counter bad_releases;  ///< releases of buffers that the application did not have
    Counter torn;          ///< messages of a write ring that were seen before they were whole
};

/// Written by the control thread, but for `hangs`.
struct ControlCounters {
    Counter command_ring_full;  ///< commands that found no room in a worker's ring, and were told to come later
    Counter answers_untaken;    ///< workers' answers that nobody asked about any more, since the matter had ended
                                ///< otherwise
    Counter cut_short;          ///< queue pairs that were closed before the device had completed their work
    Counter failed_cqs;         ///< CQs that overran or could not be polled: their queue pairs were closed
    Counter async_events;       ///< asynchronous events taken from devices
    /// Asynchronous events acknowledged; equal to async_events whenever the control thread rests.
    Counter async_events_acknowledged;
    std::array<Counter, kVerbsEventTypes> async_events_by_type;  ///< by the value of EventType
    Counter events_lost;   ///< events dropped, since the application had left kEventsMax of them waiting
    Counter devices_lost;  ///< devices that were lost: fatal or removed
    Counter connections;   ///< connections established
    Counter disconnections;
    /// Connection requests that were rejected because kListenerBacklogMax waited at their listener.
    Counter requests_refused;
    Counter hangs;  ///< hangs of the runtime's threads, as counted by Runtime::count_hang()
    // How many there are now. Up to 50 ms old; in an Attachment, as of the call of control_counters().
    Counter sessions;
    Counter queue_pairs;
    /// CQs that the workers poll; a worker keeps one CQ of a device for the next queue pair.
    Counter completion_queues;
    Counter shared_receive_queues;
    Counter receive_pools;
    Counter memory_regions;
    Counter protection_domains;
};

}  // namespace pollcore
