// The only way to a worker from outside: typed commands over a bounded ring, and their answers.
//
// Thread safety: the control thread's alone.
//
// Room: a command that is begun and not waited for may take half of the command ring, so that calls have room. Beyond
// that it throws NoRoomForCommand, which is counted. Calls wait for room.
//
// Memory: a call allocates nothing on this side once its worker was given the command, so the caller knows what was
// done (D29). A worker without memory for a command changes nothing. Then a call that adds something throws
// std::bad_alloc, and for a search found() does.
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

/// EAGAIN: nothing was begun. There will be room again later.
class NoRoomForCommand : public Error {
public:
    using Error::Error;
};

class WorkerProxy {
public:
    using Clock = std::chrono::steady_clock;

    /// `wait` is called between looks for an answer: it sleeps a little, or turns the worker where no thread does.
    /// `now` tells the time for the warnings.
    WorkerProxy(Worker& worker, std::string name, ControlCounters& counters, std::function<void()> wait,
                std::function<Clock::time_point()> now = Clock::now);

    void add_session(std::uint32_t index, WorkerSession& session);
    /// `abandoned`: requests in its ring are not waited for.
    void remove_session(std::uint32_t index, bool abandoned = false);
    /// Begins to remove it and does not wait. Returns the number to ask answered() about.
    [[nodiscard]] std::uint64_t begin_removing_session(std::uint32_t index, bool abandoned);
    [[nodiscard]] bool answered(std::uint64_t command) { return take_answer(command).has_value(); }
    void add_cq(std::uint32_t index, WorkerCq& cq);
    void remove_cq(std::uint32_t index);
    /// The CQ's device is lost, and lose() was called for each of its queue pairs.
    void lose_cq(std::uint32_t index);
    // Adding an object does not fail if there is room for it.
    void make_room(WorkerQp& qp);
    void make_room(const BindableRegion& region);
    void make_room(const WorkerAh& ah);
    void add_qp(WorkerQp& qp);
    /// Between park() and unpark() the worker leaves the QP and its CQs alone, so the control thread may have the
    /// provider change them (D43).
    void park(QpHandle qp);
    void unpark(QpHandle qp, QpState state, Status cause = Status::success, bool device_lags = false);
    /// Parks the QP while `change` runs. After success it goes on in `after`, else in `before` (D47).
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
    /// The QP is in ERR. True: everything in flight was flushed before the deadline, which is in cycles. When only
    /// receives are left, they are waited for no longer than `quiet` cycles after the last one came (0: up to the
    /// deadline): some providers never flush receives that reached them in ERR (H1, D27).
    [[nodiscard]] bool retire(QpHandle qp, std::uint64_t deadline, std::chrono::milliseconds limit,
                              std::uint32_t quiet = 0);
    /// Begins retire() and does not wait. Returns the number to ask retired() about, which returns nothing until it is
    /// over. `device_lags`: the device may not have the QP in ERR, so nothing is posted to it.
    [[nodiscard]] std::uint64_t begin_retiring(QpHandle qp, std::uint64_t deadline, std::uint32_t quiet,
                                               bool device_lags = false);
    [[nodiscard]] std::optional<bool> retired(std::uint64_t command);
    /// The QP is parked and destroyed: completes its remaining requests with status `leftovers`, and unparks its CQs.
    /// Afterwards the WorkerQp is the caller's again.
    void forget(QpHandle qp, Status leftovers = Status::qp_closed);
    /// The QP is parked, was RESET, and is in `state`, where its new life begins: completes the remaining requests of
    /// its earlier life, and unparks it and its CQs. It takes work under the new generation.
    void renew(QpHandle qp, std::uint32_t life, QpState state = QpState::init);
    /// The QP is parked and gone with its device: completes its remaining requests, and unparks its CQs. It stays in
    /// error, and belongs to the worker, until forget().
    void lose(QpHandle qp);
    void add_srq(WorkerSrq& srq);
    /// From now on nothing more is posted to the SRQ, and its session's receives for it are refused. Receives that it
    /// still has will end with status `leftovers`.
    void retire(SrqHandle srq, Status leftovers = Status::srq_closed);
    /// The SRQ was retired and is gone with its device: completes its remaining receives. It belongs to the worker
    /// until forget().
    void lose(SrqHandle srq);
    /// The SRQ is destroyed: completes its remaining receives. Afterwards the WorkerSrq is the caller's again.
    void forget(SrqHandle srq);
    // A search takes the worker many steps, since rings may be long. Each function here begins one, and returns the
    // number to ask found() about.
    /// Searches for a work request that was submitted before and names this key, or binds a window to this region.
    /// `client`: process that the protection domain belongs to (ClientShare::id).
    [[nodiscard]] std::uint64_t begin_finding_key(std::uint32_t device, std::uint32_t pd, std::uint32_t lkey,
                                                  MrHandle region = {}, std::uint32_t client = 0);
    /// Searches for a bind of the window that was submitted before and has not completed.
    [[nodiscard]] std::uint64_t begin_finding_window(MwHandle window);
    /// Searches for a work request that was submitted before and names this address handle.
    [[nodiscard]] std::uint64_t begin_finding_ah(const WorkerAh& ah);
    /// Requests that the worker takes from now on do not find the address handle. Searches for one that it took before
    /// and that is still in flight. If there is one, the address handle must live on, and may be added again (D40).
    [[nodiscard]] std::uint64_t begin_removing_ah(const WorkerAh& ah);
    /// Nothing: the search is not over.
    [[nodiscard]] std::optional<bool> found(std::uint64_t search);
    /// Nobody will ask about the command any more. It need not have been begun.
    void ignore(std::uint64_t command) noexcept;

    void add_window(WorkerWindow& window);
    /// False, and nothing has changed, when binds of it are in flight.
    [[nodiscard]] bool remove_window(MwHandle window);
    void add_region(const BindableRegion& region);
    /// False, and nothing has changed, when binds to it are in flight.
    [[nodiscard]] bool remove_region(MrHandle region);

    /// The QP is connected, and its peer's control block is there.
    void start_flow(QpHandle qp, const FlowStart& how);
    void add_pool(WorkerPool& pool);
    /// No queue takes receives from the pool any more. Returns how many slots of its session's completion ring were
    /// written so far, modulo 2^32; the pool's last completion is among them.
    std::uint32_t remove_pool(PoolHandle pool);
    void add_ah(const WorkerAh& ah);
    /// Nothing in flight can name the address handle.
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

    // A worker answers within microseconds. If it takes longer than this, the log says so, and the command is not given
    // up (D28).
    static constexpr std::chrono::milliseconds kUsual{5000};
    static constexpr std::size_t kSlotsForCalls = kCommandSlots / 2;
    // Answers that there is room for without allocating.
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
    std::vector<Answer> answered_;        // answers to commands of awaited_
    std::vector<Answer> unasked_;
};

}  // namespace pollcore
