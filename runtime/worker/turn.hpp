// What a worker lends to everything that it works on: the step's number and time, its counters, the chains of the
// burst, its messages to the control thread, and the lists of what is due.
//
// Thread safety: the worker's thread's; counters are read by others, too.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "pollcore/counters.hpp"
#include "pollcore/limits.hpp"
#include "worker/answers.hpp"
#include "worker/binds.hpp"
#include "worker/chains.hpp"
#include "worker/due_list.hpp"

namespace pollcore {

class Flow;
class RingPool;
class WorkerSession;

struct WorkerOptions {
    std::uint32_t submit_burst = kBurstDefault;
    std::uint32_t complete_burst = kBurstDefault;
    std::uint32_t qp_burst = kBurstDefault;
    std::uint32_t qps_max = kQpsDefault;
    /// eventfd of the thread that turns the worker, where that one may sleep; -1: it never does. Must outlive the
    /// worker.
    int bell = -1;
    int visitors = -1;  ///< an epoll of the eventfds by which sessions of other processes wake it; -1: there are none
    bool solicited_only = false;  ///< only solicited completions wake it
    /// Clock for requests whose latency is followed, read once in a step; null: the step's own time is used.
    std::uint64_t (*clock)() noexcept = nullptr;
    /// How often a peer is written to while requests wait for its credit, which finds a peer that has vanished; 0:
    /// never.
    std::uint64_t probe_cycles = 0;
};

class Turn {
public:
    explicit Turn(const WorkerOptions& its_options) : options(its_options) {}
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

    /// A step begins, at `time`.
    void begin(std::uint64_t time) noexcept {
        if (time != now_) {
            if (number_ != 0) [[likely]] {
                counters.longest_step_cycles.raise_to(time - now_);
            }
            now_ = time;
        }
    }
    void end() noexcept { ++number_; }
    /// The time between two steps belongs to none of them.
    void resume(std::uint64_t time) noexcept { now_ = time; }

    /// Time of this step, in cycles of the clock that deadlines are in.
    [[nodiscard]] std::uint64_t now() const noexcept { return now_; }
    [[nodiscard]] std::uint64_t number() const noexcept { return number_; }

    /// The time for requests that are followed. Read once in a step, since the requests of a burst are not told apart.
    [[nodiscard]] std::uint32_t sample_clock() noexcept {
        if (sample_step_ != number_ + 1) {
            sample_step_ = number_ + 1;
            sample_now_ = static_cast<std::uint32_t>(options.clock != nullptr ? options.clock() : now_);
        }
        return sample_now_;
    }

    /// The device's time of the completion that is being routed; 0: none is being routed, or it has no time.
    [[nodiscard]] std::uint64_t device_time() const noexcept { return device_time_; }
    void set_device_time(std::uint64_t time) noexcept { device_time_ = time; }

    /// Reads of announced messages are under way. Their completions are not solicited.
    [[nodiscard]] bool reading() const noexcept { return reads_ != 0; }
    void begin_read() noexcept { ++reads_; }
    void end_read() noexcept { --reads_; }

    /// Completions were written to a session whose application may sleep. Called for a session no more than once until
    /// WorkerSession::wake_told().
    void tell(WorkerSession& session) noexcept { told_.push_back(&session); }
    [[nodiscard]] const std::vector<WorkerSession*>& told() const noexcept { return told_; }
    void forget_told() noexcept { told_.clear(); }
    void forget_told(const WorkerSession& session) noexcept { std::erase(told_, &session); }
    /// Throws std::bad_alloc.
    void make_room_to_tell(std::size_t sessions) { told_.reserve(sessions); }

    const WorkerOptions options;
    WorkerCounters counters;
    WorkerAnswers answers;
    Chains chains;
    Binds binds;
    // What is due, in the order of the step.
    DueList<RecvQueue> refills;  ///< few of their receives from a pool are left
    DueList<Flow> flows;         ///< a change can only be seen in memory, or something has to be written to the peer
    DueList<WorkerQp> lives;     ///< in error with something to do, or leaving service
    DueList<RingPool> rings;     ///< messages may come to them; each look of a step looks at them

private:
    std::uint64_t now_ = 0;
    std::uint64_t number_ = 0;
    std::uint64_t sample_step_ = 0;  // one more than the number of the step in which sample_now_ was read
    std::uint32_t sample_now_ = 0;
    std::uint32_t reads_ = 0;
    std::uint64_t device_time_ = 0;
    std::vector<WorkerSession*> told_;
};

}  // namespace pollcore
