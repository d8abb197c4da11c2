// Data that a worker shares with all objects that it works on: the number and time of the step, the worker's counters,
// the chains of the burst, the messages to the control thread, and the lists of objects that have something due.
//
// Thread safety: only the worker's thread uses it, but other threads read the counters.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "pollcore/counters.hpp"
#include "pollcore/limits.hpp"
#include "worker/answers.hpp"
#include "worker/binds.hpp"
#include "worker/chains.hpp"
#include "worker/due_list.hpp"
#include "worker/failed_qps.hpp"
#include "worker/stall_log.hpp"

namespace pollcore {

class Flow;
class RingPool;
class WorkerSession;

struct WorkerOptions {
    std::uint32_t submit_burst = kBurstDefault;
    std::uint32_t complete_burst = kBurstDefault;
    std::uint32_t qp_burst = kBurstDefault;
    std::uint32_t qps_max = kQpsDefault;
    /// eventfd that wakes the worker's thread; -1 if the thread never sleeps. The eventfd must outlive the worker.
    int bell = -1;
    /// epoll descriptor of the eventfds by which sessions of other processes wake the worker; -1 if there are none
    int visitors = -1;
    bool solicited_only = false;  ///< only solicited completions wake the worker
    /// Clock for requests whose latency is measured. It is read at most once in a step. If it is null, the time of the
    /// step is used.
    std::uint64_t (*clock)() noexcept = nullptr;
    /// While requests wait for credit, or an announced message is open, the flow control writes to the peer once in
    /// this many cycles, to find out whether the peer still exists. 0 means never.
    std::uint64_t probe_cycles = 0;
    /// A turn that takes more cycles is a stall.
    std::uint64_t stall_cycles = std::numeric_limits<std::uint64_t>::max();
};

class Turn {
public:
    explicit Turn(const WorkerOptions& its_options) : options(its_options), failed_qps(its_options.qps_max) {}
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

    /// Begins a step at the time `time`.
    void begin(std::uint64_t time) noexcept {
        if (time != now_) {
            if (time - now_ > remarkable_ && number_ != 0) [[unlikely]] {
                remark(time - now_);
            }
            now_ = time;
        }
    }
    void end() noexcept { ++number_; }
    /// Called after a pause between two steps, so that the pause does not count as part of a step.
    void resume(std::uint64_t time) noexcept { now_ = time; }

    /// Time of this step, in cycles on the clock of the deadlines.
    [[nodiscard]] std::uint64_t now() const noexcept { return now_; }
    [[nodiscard]] std::uint64_t number() const noexcept { return number_; }

    /// The time for requests whose latency is measured. It is read once in a step, so all requests of a burst have the
    /// same time.
    [[nodiscard]] std::uint32_t sample_clock() noexcept {
        if (sample_step_ != number_ + 1) {
            sample_step_ = number_ + 1;
            sample_now_ = static_cast<std::uint32_t>(options.clock != nullptr ? options.clock() : now_);
        }
        return sample_now_;
    }

    /// The device's time of the completion that is being routed, or 0 if no completion is being routed or the
    /// completion has no time.
    [[nodiscard]] std::uint64_t device_time() const noexcept { return device_time_; }
    void set_device_time(std::uint64_t time) noexcept { device_time_ = time; }

    /// Returns true while reads of announced messages (rendezvous) are in flight. Their completions are not solicited.
    [[nodiscard]] bool reading() const noexcept { return reads_ != 0; }
    void begin_read() noexcept { ++reads_; }
    void end_read() noexcept { --reads_; }

    /// Notes a session to which completions or counts of retired requests were written and whose application may sleep.
    /// Between two calls for one session, WorkerSession::wake_told() must be called.
    void tell(WorkerSession& session) noexcept { told_.push_back(&session); }
    [[nodiscard]] const std::vector<WorkerSession*>& told() const noexcept { return told_; }
    void forget_told() noexcept { told_.clear(); }
    void forget_told(const WorkerSession& session) noexcept { std::erase(told_, &session); }
    /// Makes room for notes of `sessions` sessions. Throws std::bad_alloc.
    void make_room_to_tell(std::size_t sessions) { told_.reserve(sessions); }

    const WorkerOptions options;
    WorkerCounters counters;
    WorkerAnswers answers;
    Chains chains;
    Binds binds;
    // Objects that have something due.
    DueList<RecvQueue> refills;  ///< receive queues that must be refilled from their pool
    DueList<Flow> flows;  ///< flow controls that must look at memory that the peer writes, or must write to the peer
    /// queue pairs that have something to do because of an error, or that are being taken out of service
    DueList<WorkerQp> lives;
    DueList<RingPool> rings;  ///< write rings into which messages may come; the worker looks at all of them for work
    FailedQps failed_qps;     ///< for the control thread
    StallLog stalls;

private:
    /// The turn that began at now_ took remarkably long.
    [[gnu::cold, gnu::noinline]] void remark(std::uint64_t cycles) noexcept {
        counters.longest_step_cycles.raise_to(cycles);
        if (cycles > options.stall_cycles) {
            counters.stalls.add();
            counters.stall_cycles.add(cycles);
            stalls.note({now_, cycles});
        }
        remarkable_ = std::min(std::max(remarkable_, cycles), options.stall_cycles);
    }

    std::uint64_t now_ = 0;
    // A longer turn is the longest so far or a stall, so that one comparison finds both.
    std::uint64_t remarkable_ = 0;
    std::uint64_t number_ = 0;
    std::uint64_t sample_step_ = 0;  // number, plus one, of the step in which sample_now_ was read
    std::uint32_t sample_now_ = 0;
    std::uint32_t reads_ = 0;
    std::uint64_t device_time_ = 0;
    std::vector<WorkerSession*> told_;
};

}  // namespace pollcore
