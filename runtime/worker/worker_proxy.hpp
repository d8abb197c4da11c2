// By a WorkerProxy the control thread commands a worker. It sends typed commands over a bounded ring, and receives the
// worker's answers.
//
// Thread safety: only the control thread uses it.
//
// Room: the begin_...() functions send a command and do not wait for its answer. They use at most half of the command
// ring, so that room remains for the other functions. If their half is full, they count this and throw
// NoRoomForCommand. The other functions wait for room.
//
// Memory: a function allocates what it needs before it sends its command. A worker that has no memory for a command
// changes nothing, and the function that sent the command throws std::bad_alloc (found() for a search). So after
// std::bad_alloc the command was not carried out (D29).
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "pollcore/counters.hpp"
#include "pollcore/error.hpp"
#include "worker/worker.hpp"

namespace pollcore {

/// The error number is EAGAIN. The command was not sent; a later call may find room.
class NoRoomForCommand : public Error {
public:
    using Error::Error;
};

class WorkerProxy {
public:
    using Clock = std::chrono::steady_clock;

    /// `wait` is called between two looks for an answer, with the number of looks so far. It waits for a short time; if
    /// the worker has no thread, it calls Worker::step(). `now` is the clock that decides when to log that an answer is
    /// late.
    WorkerProxy(Worker& worker, std::string name, ControlCounters& counters, std::function<void(std::uint32_t)> wait,
                std::function<Clock::time_point()> now = Clock::now);

    void add_session(std::uint32_t index, WorkerSession& session);
    /// If `abandoned` is true, the worker does not wait for requests that are still in the session's ring.
    void remove_session(std::uint32_t index, bool abandoned = false);
    /// Begins to remove the session and does not wait. Returns the command's number, for answered().
    [[nodiscard]] std::uint64_t begin_removing_session(std::uint32_t index, bool abandoned);
    [[nodiscard]] bool answered(std::uint64_t command) { return take_answer(command).has_value(); }
    /// For a worker that may sleep.
    void add_channel(CompletionChannel& channel);
    /// The channel's CQs must have been removed. Afterwards the worker does not use the channel.
    void remove_channel(CompletionChannel& channel);
    void add_cq(std::uint32_t index, WorkerCq& cq);
    void remove_cq(std::uint32_t index);
    /// Called when the CQ's device is lost, after lose() was called for each queue pair of the CQ.
    void lose_cq(std::uint32_t index);
    // After make_room() for an object, adding the object does not fail.
    void make_room(WorkerQp& qp);
    void make_room(const BindableRegion& region);
    void make_room(const WorkerAh& ah);
    void add_qp(WorkerQp& qp);
    /// Between park() and unpark() the worker does not touch the QP and its CQs, so the control thread may let the
    /// provider change them (D43).
    void park(QpHandle qp);
    void unpark(QpHandle qp, QpState state, Status cause = Status::success, bool device_lags = false);
    /// Parks the QP while `change` runs. Then the QP goes on in state `after`. If `change` throws, the QP goes on in
    /// state `before` (D47).
    template <class F>
    void while_parked(QpHandle qp, QpState before, QpState after, Status cause, F&& change) {
        park(qp);
        try {
            change();
        } catch (...) {
            unpark(qp, before, Status::success, true);
            throw;
        }
        unpark(qp, after, cause);
    }
    /// Called when the QP is in ERR. Waits until everything in flight was flushed. Returns false if the deadline came
    /// first. `deadline` is in cycles of the worker's clock. `limit` is the time until the deadline, and decides when
    /// to log that the answer is late. Some providers never flush a receive that was posted in ERR (H1, D27). `quiet`
    /// is for these providers: if only receives remain, and none has completed for `quiet` cycles, the worker stops
    /// waiting, and retire() returns true. If `quiet` is 0, the worker waits until the deadline.
    [[nodiscard]] bool retire(QpHandle qp, std::uint64_t deadline, std::chrono::milliseconds limit,
                              std::uint32_t quiet = 0);
    /// Begins retire() and does not wait. Returns the command's number, for retired(). Unlike retire(), it may
    /// be called before the device has the QP in ERR. Then `device_lags` is true, and the worker posts nothing yet.
    [[nodiscard]] std::uint64_t begin_retiring(QpHandle qp, std::uint64_t deadline, std::uint32_t quiet,
                                               bool device_lags = false);
    [[nodiscard]] std::optional<bool> retired(std::uint64_t command);
    /// Called when the QP is parked and destroyed. Completes its remaining requests (command::ForgetQp), and unparks
    /// its CQs. Afterwards the WorkerQp belongs to the caller again.
    void forget(QpHandle qp, Status leftovers = Status::qp_closed);
    /// Called when the QP is parked, was RESET, and is now in `state`. Completes the requests that remain from before
    /// the reset, and unparks the QP and its CQs. Then the QP takes requests under its new generation. `life` is the
    /// number of the new life, for life_of().
    void renew(QpHandle qp, std::uint32_t life, QpState state = QpState::init);
    /// Called when the QP is parked and its device is lost. Completes the remaining requests, and unparks the CQs.
    /// Until forget(), the QP stays in error and belongs to the worker.
    void lose(QpHandle qp);
    void add_srq(WorkerSrq& srq);
    /// From now on the worker posts nothing to the SRQ, and refuses receives of the session for the SRQ. Receives that
    /// the device does not complete will end with status `leftovers`.
    void retire(SrqHandle srq, Status leftovers = Status::srq_closed);
    /// Called when the SRQ was retired and its device is lost. Completes the remaining receives. The SRQ belongs to the
    /// worker until forget().
    void lose(SrqHandle srq);
    /// Called when the SRQ is destroyed. Completes the remaining receives. Afterwards the WorkerSrq belongs to the
    /// caller again.
    void forget(SrqHandle srq);
    // A search takes the worker many steps, because rings may be long. Each of the next functions begins a search, and
    // returns the search's number, for found().
    /// Searches for a work request that was submitted before this call and names `lkey`, or binds a window to `region`.
    /// `client` is the process that owns the protection domain (ClientShare::id).
    [[nodiscard]] std::uint64_t begin_finding_key(std::uint32_t device, std::uint32_t pd, std::uint32_t lkey,
                                                  MrHandle region = {}, std::uint32_t client = 0);
    /// Searches for a bind of `window` that was submitted before this call and has not completed.
    [[nodiscard]] std::uint64_t begin_finding_window(MwHandle window);
    /// Searches for a work request that was submitted before this call and names `ah`.
    [[nodiscard]] std::uint64_t begin_finding_ah(const WorkerAh& ah);
    /// Removes the address handle from the worker's table, so that later requests do not find it. Then searches for a
    /// request in flight that names the address handle. If there is one, the address handle must stay alive, and may be
    /// added again (D40).
    [[nodiscard]] std::uint64_t begin_removing_ah(const WorkerAh& ah);
    /// Returns an empty result until the search is complete.
    [[nodiscard]] std::optional<bool> found(std::uint64_t search);
    /// Drops the answer to `command`, because the caller will not ask for it. `command` may be a number that was never
    /// sent.
    void ignore(std::uint64_t command) noexcept;

    void add_window(WorkerWindow& window);
    /// Returns false, and changes nothing, if binds of the window are in flight.
    [[nodiscard]] bool remove_window(MwHandle window);
    void add_region(const BindableRegion& region);
    /// Returns false, and changes nothing, if binds to the region are in flight.
    [[nodiscard]] bool remove_region(MrHandle region);

    /// Called when the QP is connected and the peer's control block is known.
    void start_flow(QpHandle qp, const FlowStart& how);
    void add_pool(WorkerPool& pool);
    /// Called when no queue uses the pool. Returns how many slots the worker has written to the session's completion
    /// ring since the session began, modulo 2^32. The pool's last completion is among these slots.
    std::uint32_t remove_pool(PoolHandle pool);
    void add_ah(const WorkerAh& ah);
    /// Called when no request in flight can name the address handle. Removes it from the worker's table.
    void forget(const WorkerAh& ah);

    /// Returns the worker's reports since the last call. A report, such as that of a failed CQ, answers no command.
    [[nodiscard]] std::vector<Answer> take_unasked();

private:
    [[nodiscard]] std::uint64_t await() noexcept;
    [[nodiscard]] std::uint64_t begin(const command::Any& what);
    [[nodiscard]] std::optional<Answer> take_answer(std::uint64_t id) noexcept;
    Answer call(const command::Any& what, std::chrono::milliseconds usual = kUsual);
    void drain_answers() noexcept;
    [[nodiscard]] bool keep(const Answer& answer) noexcept;

    // A worker normally answers within microseconds. If it takes longer than this, an error is logged, and the proxy
    // goes on waiting (D28).
    static constexpr std::chrono::milliseconds kUsual{5000};
    static constexpr std::size_t kSlotsForCalls = kCommandSlots / 2;
    // Room for answers that is allocated in advance.
    static constexpr std::size_t kAnswersUsual = 64;

    Worker& worker_;
    std::string name_;
    ControlCounters& counters_;
    std::function<void(std::uint32_t looks)> wait_;
    std::function<Clock::time_point()> now_;
    RingProducer<Command> commands_;
    RingConsumer<Answer> answers_;
    std::uint64_t next_id_ = 1;
    // numbers of commands whose answer nobody has taken or ignored, in ascending order
    std::vector<std::uint64_t> awaited_;
    std::vector<Answer> answered_;  // answers that have arrived, to commands in awaited_
    std::vector<Answer> unasked_;
};

}  // namespace pollcore
