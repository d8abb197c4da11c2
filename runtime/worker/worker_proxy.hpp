// The only way to a worker from outside: typed commands over a bounded ring, and their answers.
//
// Thread safety: the control thread's alone.
// What is begun and not waited for leaves room for calls: beyond half of the command ring it is NoRoomForCommand, and
// counted. Calls wait for room. Memory: a call allocates nothing on this side once its worker was given the command, so
// that what was done is known to have been done. A worker that has no memory for what it is given has changed nothing,
// and the call throws std::bad_alloc: only those that add something do, and those that begin a search, whose found()
// does.
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

/// EAGAIN: nothing was begun. Later there is room again.
class NoRoomForCommand : public Error {
public:
    using Error::Error;
};

class WorkerProxy {
public:
    using Clock = std::chrono::steady_clock;

    /// `wait` is called between looks for an answer: it sleeps a little, or, where no thread turns the worker,
    /// turns it. `now` is its time.
    WorkerProxy(Worker& worker, std::string name, ControlCounters& counters, std::function<void()> wait,
                std::function<Clock::time_point()> now = Clock::now);

    void add_session(std::uint32_t index, WorkerSession& session);
    /// `abandoned`: what it has in its ring is not waited for.
    void remove_session(std::uint32_t index, bool abandoned = false);
    /// Begins to remove it and does not wait. Returns the number to ask answered() about.
    [[nodiscard]] std::uint64_t begin_removing_session(std::uint32_t index, bool abandoned);
    [[nodiscard]] bool answered(std::uint64_t command) { return take_answer(command).has_value(); }
    void add_cq(std::uint32_t index, WorkerCq& cq);
    void remove_cq(std::uint32_t index);
    /// Its device is lost, and so are all its queue pairs: lose() was called for each.
    void lose_cq(std::uint32_t index);
    // Adding what there is room for does not fail.
    void make_room(WorkerQp& qp);
    void make_room(const BindableRegion& region);
    void make_room(const WorkerAh& ah);
    void add_qp(WorkerQp& qp);
    /// Between these two the provider may touch the QP and its CQs.
    void park(QpHandle qp);
    void unpark(QpHandle qp, QpState state, Status cause = Status::success, bool device_lags = false);
    /// Parks the QP while `change` runs; on success it goes on in `state`, else as it was.
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
    /// The QP is in ERR. True when all in flight was flushed before the deadline, in cycles. Receives alone are waited
    /// for no longer than `quiet` cycles after the last one came (0: up to the deadline): some providers never flush
    /// those that reached them in ERR (H1).
    [[nodiscard]] bool retire(QpHandle qp, std::uint64_t deadline, std::chrono::milliseconds limit,
                              std::uint32_t quiet = 0);
    /// Begins retire() and does not wait. Returns the number to ask retired() about, which says nothing as long as it
    /// is not over. `device_lags`: the device may not have the QP in ERR, so nothing is posted to it.
    [[nodiscard]] std::uint64_t begin_retiring(QpHandle qp, std::uint64_t deadline, std::uint32_t quiet,
                                               bool device_lags = false);
    [[nodiscard]] std::optional<bool> retired(std::uint64_t command);
    /// The QP is parked and destroyed: completes what is left, with status `leftovers`, and unparks its CQs.
    /// Afterwards the WorkerQp is the caller's again.
    void forget(QpHandle qp, Status leftovers = Status::qp_closed);
    /// The QP is parked, and was RESET and taken to where it begins, which is `state`: completes what is left of its
    /// earlier life, and unparks it and its CQs. It takes work under the new generation.
    void renew(QpHandle qp, std::uint32_t life, QpState state = QpState::init);
    /// The QP is parked and gone with its device: completes what is left, and unparks its CQs. It stays in error, and
    /// the worker's, until forget().
    void lose(QpHandle qp);
    void add_srq(WorkerSrq& srq);
    /// From now on nothing more is posted to it, and its session's receives for it are refused. What is left will end
    /// with status `leftovers`.
    void retire(SrqHandle srq, Status leftovers = Status::srq_closed);
    /// It was retired and is gone with its device: completes what is left. It stays the worker's until forget().
    void lose(SrqHandle srq);
    /// It is destroyed: completes what is left. Afterwards the WorkerSrq is the caller's again.
    void forget(SrqHandle srq);
    // The worker searches for what is in use in its own time: rings may be long. Each of these begins a search, and
    // returns the number to ask found() about.
    /// For a work request that was submitted before and names this key, or is a bind to this region. `client`: whose
    /// the protection domain is (ClientShare::id).
    [[nodiscard]] std::uint64_t begin_finding_key(std::uint32_t device, std::uint32_t pd, std::uint32_t lkey,
                                                  MrHandle region = {}, std::uint32_t client = 0);
    /// For a bind of the window that was submitted before and has not completed.
    [[nodiscard]] std::uint64_t begin_finding_window(MwHandle window);
    /// For a work request that was submitted before and names this address handle.
    [[nodiscard]] std::uint64_t begin_finding_ah(const WorkerAh& ah);
    /// Requests that the worker takes from now on do not find it. For one that it took before and that is still in
    /// flight: then the address handle must live on, and may be added again.
    [[nodiscard]] std::uint64_t begin_removing_ah(const WorkerAh& ah);
    /// Nothing: it is not over.
    [[nodiscard]] std::optional<bool> found(std::uint64_t search);
    /// Nobody will ask about it any more: of what was begun, or was not.
    void ignore(std::uint64_t command) noexcept;

    void add_window(WorkerWindow& window);
    /// False, and nothing has changed, when binds of it are in flight.
    [[nodiscard]] bool remove_window(MwHandle window);
    void add_region(const BindableRegion& region);
    /// False, and nothing has changed, when binds to it are in flight.
    [[nodiscard]] bool remove_region(MrHandle region);

    /// It is connected; its peer's control block is there.
    void start_flow(QpHandle qp, const FlowStart& how);
    void add_pool(WorkerPool& pool);
    /// Nothing takes receives from it any more. Returns how many slots of its session's completion ring were written
    /// until then, modulo 2^32: its last completion is among them.
    std::uint32_t remove_pool(PoolHandle pool);
    void add_ah(const WorkerAh& ah);
    /// Nothing is in flight that could name it.
    void forget(const WorkerAh& ah);

    /// What the worker said without being asked, since the last call.
    [[nodiscard]] std::vector<Answer> take_unasked();

private:
    [[nodiscard]] std::uint64_t await() noexcept;
    [[nodiscard]] std::uint64_t begin(const command::Any& what);
    [[nodiscard]] std::optional<Answer> take_answer(std::uint64_t id) noexcept;
    Answer call(const command::Any& what, std::chrono::milliseconds usual = kUsual);
    void drain_answers() noexcept;
    [[nodiscard]] bool keep(const Answer& answer) noexcept;

    // A worker answers within microseconds. One that takes longer than this is said to, in the log; the command is
    // not given up, since the worker may come to it later and what it names must still be there then.
    static constexpr std::chrono::milliseconds kUsual{5000};
    static constexpr std::size_t kSlotsForCalls = kCommandSlots / 2;
    // What there is room for without allocating.
    static constexpr std::size_t kAnswersUsual = 64;

    Worker& worker_;
    std::string name_;
    ControlCounters& counters_;
    std::function<void()> wait_;
    std::function<Clock::time_point()> now_;
    RingProducer<Command> commands_;
    RingConsumer<Answer> answers_;
    std::uint64_t next_id_ = 1;
    std::vector<std::uint64_t> awaited_;  // commands whose answer nobody has taken or ignored; ascending
    std::vector<Answer> answered_;        // of these
    std::vector<Answer> unasked_;
};

}  // namespace pollcore
