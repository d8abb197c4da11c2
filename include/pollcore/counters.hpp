// Counters. Each counter is written by one thread, and any thread may read it. cycles.hpp converts those that are in
// cycles into nanoseconds.
#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "pollcore/config.hpp"
#include "pollcore/counter.hpp"
#include "pollcore/event.hpp"
#include "pollcore/limits.hpp"

namespace pollcore {

/// RNR NAKs ("receiver not ready"): a receiver sends such a negative acknowledgement when a message finds no receive.
/// Each RNR NAK makes the sender wait for the receiver's min_rnr_timer. So RNR NAKs are a sign of receive queues that
/// are too short.
struct RnrCounts {
    std::uint64_t received = 0;  ///< RNR NAKs received by senders on this side
    std::uint64_t sent = 0;      ///< RNR NAKs sent by receivers on this side

    bool operator==(const RnrCounts&) const = default;
};

/// Wake-up latencies are counted in buckets, one for each power of two.
inline constexpr std::size_t kWakeBuckets = 40;
[[nodiscard]] constexpr std::size_t wake_bucket(std::uint64_t cycles) noexcept {
    const auto bucket = static_cast<std::size_t>(std::bit_width(cycles));
    return bucket < kWakeBuckets ? bucket : kWakeBuckets - 1;
}

/// See WorkerCounters::waiting.
inline constexpr unsigned kWaitingBits = 3;
static_assert(kIdlePolicies < 1u << kWaitingBits);

/// Written by the worker's thread.
struct alignas(kCacheLine) WorkerCounters {
    Counter steps;              ///< looks for work
    Counter busy_steps;         ///< steps that found something to do
    Counter sends;              ///< send-queue work requests of sessions, given to the provider
    Counter send_doorbells;     ///< calls of ibv_post_send and ibv_bind_mw
    Counter receives;           ///< receives given to the provider
    Counter receive_doorbells;  ///< calls of ibv_post_recv and ibv_post_srq_recv
    Counter completions;        ///< work completions taken from CQs
    Counter delivered;          ///< completions written to sessions
    Counter retired;            ///< unsignaled work requests that succeeded
    Counter forced_signals;     ///< signals that the application did not ask for
    Counter markers;            ///< marker work requests, which the runtime posts for itself
    Counter post_failures;      ///< work requests that the provider refused
    Counter rendezvous;         ///< messages announced to the peer because they were too long for its receives
    Counter waits_for_credit;   ///< work requests that had to wait until the peer had room for them
    Counter grants;             ///< RDMA writes that granted room to a peer
    Counter flow_faults;        ///< queue pairs that failed because the peer broke the rules of flow control
    Counter refused_requests;   ///< work requests that the worker refused
    Counter cut_short;          ///< work requests whose queue pair ended before the device had completed them
    Counter stale_completions;  ///< work completions whose queue pair is gone, or whose request is not in flight
    Counter failed_polls;       ///< CQs that were given up because a poll failed
    Counter broken_sessions;    ///< sessions whose rings had impossible contents
    Counter commands;           ///< commands of the control thread that the worker has carried out
    // How the worker waits for work: see IdlePolicy.
    /// Cycles without work, by policy; all other cycles were work. The wait under way is not in it: idle_cycles_now().
    std::array<Counter, kIdlePolicies> idle_cycles;
    /// 0 while the worker works; else when it began to wait by its present policy, with the policy in the lowest
    /// kWaitingBits bits.
    Counter waiting;
    Counter sleeps;            ///< times that the worker slept
    Counter spurious_wakeups;  ///< times that the worker found nothing to do after a sleep
    Counter cq_events;         ///< completion events taken
    Counter cq_event_acks;     ///< calls that acknowledged completion events
    Counter failed_arms;       ///< times that the worker stayed awake because a CQ could not be armed
    Counter failed_channels;   ///< completion channels that were given up
    Counter applications_woken;
    Counter asleep;  ///< 1 while the worker sleeps, else 0
    /// Cycles from the wake-up by a session to the worker's next step, by wake_bucket().
    std::array<Counter, kWakeBuckets> wake_cycles;
    /// The longest turn, in cycles. In a turn the worker carries out commands, and then looks for work until it finds
    /// some, at most 16 times (D17).
    Counter longest_step_cycles;
    Counter stalls;        ///< turns that took longer than StatisticsConfig::stall_threshold
    Counter stall_cycles;  ///< cycles of all stalls together
};

/// WorkerCounters::idle_cycles, with the wait under way. `now` is the worker's clock (cycles.hpp). Any thread.
[[nodiscard]] inline std::array<std::uint64_t, kIdlePolicies> idle_cycles_now(const WorkerCounters& worker,
                                                                              std::uint64_t now) noexcept {
    std::array<std::uint64_t, kIdlePolicies> all{};
    const auto read = [&] {
        std::uint64_t sum = 0;
        for (std::size_t i = 0; i < all.size(); ++i) {
            all[i] = worker.idle_cycles[i].value();
            sum += all[i];
        }
        std::atomic_thread_fence(std::memory_order_acquire);
        return sum;
    };
    constexpr int kTries = 16;
    std::uint64_t sum = read();
    for (int tries = 0; tries < kTries; ++tries) {
        const std::uint64_t waiting = worker.waiting.value();
        std::atomic_thread_fence(std::memory_order_acquire);
        if (const std::uint64_t again = read(); again != sum) {
            sum = again;  // a wait has ended meanwhile, and must not count twice or not at all
            continue;
        }
        const std::uint64_t since = waiting >> kWaitingBits << kWaitingBits;
        if (const std::uint64_t policy = waiting - since; waiting != 0 && policy < kIdlePolicies && now > since) {
            all[policy] += now - since;
        }
        break;
    }
    return all;
}

/// The counters of one receive pool. Written by its worker's thread.
struct alignas(kCacheLine) ReceivePoolCounters {
    Counter posted;        ///< buffers that wait for a message now
    Counter held;          ///< buffers that the application has now
    Counter orphaned;      ///< held buffers whose queue pair or shared receive queue was closed
    Counter delivered;     ///< messages delivered to the application
    Counter released;      ///< buffers that the application has given back
    Counter refills;       ///< batches of receives that were posted
    Counter low_water;     ///< times that a queue fell to its refill mark
    Counter ran_dry;       ///< times that a queue had no receive left
    Counter bad_releases;  ///< releases of buffers that the application did not have
    Counter torn;          ///< messages of a write ring that were seen before all their bytes had arrived
};

/// Written by the control thread, except for `hangs`.
struct ControlCounters {
    Counter command_ring_full;  ///< commands that were refused with EAGAIN because a worker's command ring was full
    Counter answers_untaken;    ///< answers of workers that came after the caller had stopped waiting
    Counter cut_short;          ///< queue pairs that were closed before the device had completed their requests
    Counter failed_cqs;         ///< CQs that overran or could not be polled: their queue pairs were closed
    Counter async_events;       ///< asynchronous events taken from devices
    /// Asynchronous events acknowledged. Equal to async_events while the control thread is idle.
    Counter async_events_acknowledged;
    std::array<Counter, kVerbsEventTypes> async_events_by_type;  ///< asynchronous events by the value of EventType
    Counter events_lost;   ///< events dropped because kEventsMax events were waiting, or for lack of memory
    Counter devices_lost;  ///< devices that were lost by a fatal error or removal
    Counter connections;   ///< connections established
    Counter disconnections;
    /// Connection requests that were rejected because kListenerBacklogMax requests waited at their listener.
    Counter requests_refused;
    Counter hangs;  ///< hangs of the runtime's threads, as counted by Runtime::count_hang()
    // Numbers of objects that exist now. In a Runtime they are up to 50 ms old. In an Attachment they are those at the
    // call of control_counters().
    Counter sessions;
    Counter queue_pairs;
    /// CQs that the workers poll. The last CQ of a worker on a device stays for the next queue pair.
    Counter completion_queues;
    Counter shared_receive_queues;
    Counter receive_pools;
    Counter memory_regions;
    Counter protection_domains;
};

}  // namespace pollcore
