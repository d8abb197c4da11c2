// The loop of a worker's thread. It calls Worker::step(), and climbs the ladder of idle ways while there is nothing to
// do.
#pragma once

#include <poll.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <limits>
#include <span>

#include "base/cpu_pause.hpp"
#include "base/event_fd.hpp"
#include "pollcore/config.hpp"
#include "worker/worker.hpp"

namespace pollcore {

/// The ways in which an idle thread can wait. The host and tests implement them (D30).
class IdleWays {
public:
    virtual ~IdleWays() = default;
    /// Lets the core rest for about a microsecond. If `only_source` is not null, lets the core rest until that ring has
    /// a request, but for some tens of microseconds at most (D34).
    virtual void monitor(const RingConsumer<WorkRequest>* only_source) noexcept = 0;
    virtual void yield() noexcept = 0;
    /// Waits until one of `fds` is readable, or until the time `deadline_ns`, but for `most_ns` at most. The time is on
    /// the clock of CompletionChannel::look_again_ns().
    virtual void wait(std::span<pollfd> fds, std::uint64_t deadline_ns, std::uint64_t most_ns) noexcept = 0;
};

/// Called after Worker::fall_asleep() has returned true. Sleeps until there is a reason to wake up, or `stop` is set.
/// On return the worker is awake. `now` is the clock of Worker::step().
template <class Now>
void sleep_until_woken(Worker& worker, const std::atomic<bool>& stop, IdleWays& ways, Now now) noexcept {
    bool rung = false;
    do {
        const std::span<pollfd> fds = worker.descriptors();
        worker.begin_wait();
        ways.wait(fds, worker.look_again_ns(), worker.look_every_ns());
        worker.end_wait(now());
        rung = fds[0].revents != 0 && drain_event(worker.bell());
        rung = (fds[1].revents != 0 && visitor_came(worker.visitors())) || rung;
        // Relaxed: other threads read the worker's data only after they have joined its thread.
    } while (!stop.load(std::memory_order_relaxed) && !worker.woken(rung, now()));
    worker.wake_up(now());
}

/// Calls Worker::step() in this thread until `stop` is true. If the worker may sleep, a thread that sets `stop` must
/// signal the worker's bell afterwards.
template <class Now>
void turn_worker(Worker& worker, const std::atomic<bool>& stop, const IdleLadder& ladder, IdleWays& ways, Now now,
                 double cycles_per_ns) noexcept {
    // Reading the clock, the command ring and `stop` costs more than a look for work. So a step of a spinning worker
    // looks for work up to this many times (D17).
    constexpr std::uint32_t kLooks = 16;
    struct Rung {
        IdlePolicy policy;
        std::uint64_t cycles;
    };
    std::array<Rung, kIdlePolicies> rungs{};
    for (std::size_t i = 0; i < ladder.rungs.size(); ++i) {
        const IdleRung& rung = ladder.rungs[i];
        rungs[i] = {rung.policy, rung.time.count() == 0 ? std::numeric_limits<std::uint64_t>::max()
                                                        : static_cast<std::uint64_t>(
                                                              static_cast<double>(rung.time.count()) * cycles_per_ns)};
    }
    WorkerCounters& counters = worker.own_counters();
    Heartbeat& heartbeat = worker.own_heartbeat();
    const Rung* rung = rungs.data();
    std::uint64_t since = 0;  // when this rung began
    bool idle = false;
    bool slept = false;
    const auto leave = [&](std::uint64_t at) {
        counters.idle_cycles[static_cast<std::size_t>(rung->policy)].add(at - since);
        std::atomic_thread_fence(std::memory_order_release);
        since = at;
    };
    const auto enter = [&] {
        counters.waiting.set((since >> kWaitingBits << kWaitingBits) + static_cast<std::uint64_t>(rung->policy));
    };
    while (!stop.load(std::memory_order_relaxed)) {
        const std::uint64_t time = now();
        heartbeat.begin(time);
        if (worker.step(time, rung->policy == IdlePolicy::spin ? kLooks : 1) != 0) {
            if (idle) {
                leave(time);
                counters.waiting.set(0);
                rung = rungs.data();
                idle = slept = false;
            }
            continue;
        }
        if (!idle) {
            idle = true;
            since = time;
            enter();
        } else if (time - since >= rung->cycles) [[unlikely]] {
            leave(time);
            ++rung;
            enter();
        }
        if (slept) [[unlikely]] {
            slept = false;
            counters.spurious_wakeups.add();
        }
        switch (rung->policy) {
            case IdlePolicy::spin: break;
            case IdlePolicy::pause: cpu_pause(); break;
            case IdlePolicy::monitor:
                ways.monitor(worker.only_source());
                worker.resume(now());
                break;
            case IdlePolicy::yield:
                ways.yield();
                worker.resume(now());
                break;
            case IdlePolicy::event:
                // If the worker cannot sleep, there is work, some activity will end without an event, or a CQ cannot be
                // armed. Whether the worker has slept or not, the ladder begins again.
                slept = worker.fall_asleep(time);
                if (slept) {
                    sleep_until_woken(worker, stop, ways, now);
                }
                leave(now());
                rung = rungs.data();
                enter();
                break;
        }
    }
}

}  // namespace pollcore
