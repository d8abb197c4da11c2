// A worker: one thread that polls. step() does all its work: commands, submissions, completions, and the lists of
// objects that have something due. The class itself has no thread, clock or random numbers (I11), so a test can call
// step() directly.
//
//   worker.cc     the loop body, falling asleep     commands.cc    the control thread's commands
//   submitter     session ring -> chain per queue   router         CQ -> completed requests
//   ordinary      the work of submitter and router, for ordinary requests
//   worker_*      the objects that the worker works on; each keeps its own counts
//   turn.hpp      data that the worker shares with all of these
//
// Thread safety: while the worker's thread runs, only this thread calls the functions, except knock(). Any thread may
// read counters() and heartbeat(). Other threads use WorkerProxy.
// Invariants
//   - For each session's request in an in-flight table, a completion slot is reserved in the session's ring.
//   - The worker does not touch a parked QP and its CQs (D43).
//   - After construction, only commands that add objects or begin a search (in_use.hpp) allocate memory. They allocate
//     before they change anything. If there is no memory, the worker answers `no_memory` (D29).
#pragma once

#include <poll.h>

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/heartbeat.hpp"
#include "pollcore/counters.hpp"
#include "pollcore/own_lines.hpp"
#include "worker/command.hpp"
#include "worker/in_use.hpp"
#include "worker/router.hpp"
#include "worker/sleeper.hpp"
#include "worker/submitter.hpp"
#include "worker/tables.hpp"
#include "worker/turn.hpp"

namespace pollcore {

class alignas(kCacheLine) Worker {
public:
    explicit Worker(const WorkerOptions& options);
    Worker(const Worker&) = delete;
    Worker& operator=(const Worker&) = delete;

    /// Does one step: first commands; then submissions, completions and write rings; then the objects that have
    /// something due. While it finds nothing, it looks again for submissions, completions and messages in write rings,
    /// up to `looks` looks in total. `now` is the time in cycles, on the clock of the deadlines. Returns the number of
    /// things done.
    std::uint32_t step(std::uint64_t now, std::uint32_t looks = 1) noexcept;

    // ---- Sleeping, for the thread's loop when it has found nothing to do ----
    //
    // 1. The worker tells each session and the control side that it sleeps. From then on a request or a command signals
    //    the bell; a request from another process signals an eventfd that visitors() reports.
    // 2. It arms its CQs. From then on a completion raises an event.
    // 3. It looks once more, at one burst of each CQ, the submission rings, the command ring, and memory that peers
    //    write. If anything came earlier, this look finds something (I8). Otherwise the worker's thread waits.

    /// Adds the channel of a device before the worker's thread starts. The channel must outlive the worker.
    void add_channel(CompletionChannel& channel) { sleeper_.add(channel); }
    /// For poll(2), before a wait: first bell(), then visitors(), then the channels.
    [[nodiscard]] std::span<pollfd> descriptors() noexcept { return sleeper_.descriptors(); }
    [[nodiscard]] int bell() const noexcept { return turn_.options.bell; }
    /// A descriptor that is readable if an attached process has signaled the eventfd of one of its sessions.
    [[nodiscard]] int visitors() const noexcept { return turn_.options.visitors; }
    /// Falls asleep: from now on new work makes bell(), visitors() or a channel readable. A peer's write to memory
    /// makes nothing readable (look_every_ns()). Returns false if the worker stays awake: it has no bell, there is
    /// something to do, some activity will end without an event, or a CQ could not be armed.
    [[nodiscard]] bool fall_asleep(std::uint64_t now) noexcept;
    /// Called when bell(), visitors() or a channel became readable, at the time of look_again_ns(), and after each
    /// look_every_ns(). Returns true if there is a reason to wake up. `rung` is true if bell() or visitors() was
    /// signaled.
    [[nodiscard]] bool woken(bool rung, std::uint64_t now) noexcept;
    /// The earliest time at which a channel requires a call of woken() (CompletionChannel::look_again_ns()).
    [[nodiscard]] std::uint64_t look_again_ns() const noexcept { return sleeper_.look_again_ns(); }
    /// The interval, in ns, at which the loop of a sleeping worker must call woken(), because a peer's writes to memory
    /// raise no event. CompletionChannel::kNever if no queue pair waits for such a write.
    [[nodiscard]] std::uint64_t look_every_ns() const noexcept;
    void wake_up(std::uint64_t now) noexcept;
    /// begin_wait() and end_wait() enclose only the wait itself. The thread's work between two waits does not count as
    /// sleep.
    void begin_wait() noexcept;
    void end_wait(std::uint64_t now) noexcept;
    /// Called after the thread has ended. Acknowledges the events that the worker had taken, so that the CQs can be
    /// destroyed.
    void acknowledge_events() noexcept;
    /// Called after a command was written. Wakes the worker if it sleeps. Any thread.
    void knock() noexcept { sleeper_.knock(); }
    /// If there is only one session, and nothing is in flight or due, the next work can only be a request in that
    /// session's ring or a command (D34). Then this returns the ring, else null.
    [[nodiscard]] const RingConsumer<WorkRequest>* only_source() const noexcept;

    [[nodiscard]] const WorkerCounters& counters() const noexcept { return turn_.counters; }
    /// For the thread's loop, which counts its waiting times.
    [[nodiscard]] WorkerCounters& own_counters() noexcept { return turn_.counters; }
    [[nodiscard]] const Heartbeat& heartbeat() const noexcept { return heartbeat_; }
    /// For the thread's loop, which writes the heartbeat (D33).
    [[nodiscard]] Heartbeat& own_heartbeat() noexcept { return heartbeat_; }
    [[nodiscard]] void* command_memory() noexcept { return command_memory_.data(); }
    [[nodiscard]] void* answer_memory() noexcept { return turn_.answers.memory(); }
    [[nodiscard]] const StallLog& stalls() const noexcept { return turn_.stalls; }
    /// For the thread's loop, after it has given its core away: that time is no part of a turn.
    void resume(std::uint64_t now) noexcept { turn_.resume(now); }
    /// For the control thread.
    [[nodiscard]] FailedQps& failed_qps() noexcept { return turn_.failed_qps; }

private:
    // worker.cc
    /// `looks_again` is true if the step will look again when this look finds nothing.
    std::uint32_t take_submissions(bool looks_again) noexcept;
    std::uint32_t take_completions() noexcept;
    std::uint32_t take_more_completions(std::uint32_t requests) noexcept;
    std::uint32_t look_at_cqs() noexcept;
    std::uint32_t look_at_rings() noexcept;
    std::uint32_t poll_plain(WorkerCq& cq) noexcept;
    std::uint32_t poll_extended(WorkerCq& cq) noexcept;
    std::uint32_t poll_with_times(WorkerCq& cq) noexcept;
    std::uint32_t poll_shared(WorkerCq& cq) noexcept;
    /// Routes the `n` completions of a poll, with the device's times or without. If `n` is negative, the CQ has failed.
    std::uint32_t polled(WorkerCq& cq, int n, bool with_times) noexcept;
    std::uint32_t refill() noexcept;
    std::uint32_t turn_flows() noexcept;
    std::uint32_t turn_lives() noexcept;
    [[nodiscard]] bool flows_have_news(std::uint64_t now) const noexcept;
    void wake_applications() noexcept;
    [[nodiscard]] bool at_rest() const noexcept;
    [[nodiscard]] bool look_again() noexcept;

    // commands.cc
    std::uint32_t run_commands() noexcept;
    void run(const Command& command) noexcept;
    void make_room_to_tell();
    void remove(WorkerSession& session) noexcept;
    /// The answer to a command.
    struct Answered {
        AnswerKind kind = AnswerKind::done;
        std::uint32_t index = 0;
    };
    using Result = std::optional<Answered>;  ///< empty: the worker answers the command later
    Result carry_out(std::uint64_t id, const command::AddSession& what);
    Result carry_out(std::uint64_t id, const command::RemoveSession& what);
    Result carry_out(std::uint64_t id, const command::AddChannel& what);
    Result carry_out(std::uint64_t id, const command::RemoveChannel& what);
    Result carry_out(std::uint64_t id, const command::AddCq& what);
    Result carry_out(std::uint64_t id, const command::RemoveCq& what);
    Result carry_out(std::uint64_t id, const command::LoseCq& what);
    Result carry_out(std::uint64_t id, const command::AddQp& what);
    Result carry_out(std::uint64_t id, const command::ParkQp& what);
    Result carry_out(std::uint64_t id, const command::UnparkQp& what);
    Result carry_out(std::uint64_t id, const command::RetireQp& what);
    Result carry_out(std::uint64_t id, const command::ForgetQp& what);
    Result carry_out(std::uint64_t id, const command::RenewQp& what);
    Result carry_out(std::uint64_t id, const command::LoseQp& what);
    Result carry_out(std::uint64_t id, const command::StartFlow& what);
    Result carry_out(std::uint64_t id, const command::AddSrq& what);
    Result carry_out(std::uint64_t id, const command::RetireSrq& what);
    Result carry_out(std::uint64_t id, const command::LoseSrq& what);
    Result carry_out(std::uint64_t id, const command::ForgetSrq& what);
    Result carry_out(std::uint64_t id, const command::AddPool& what);
    Result carry_out(std::uint64_t id, const command::RemovePool& what);
    Result carry_out(std::uint64_t id, const command::AddAh& what);
    Result carry_out(std::uint64_t id, const command::RemoveAh& what);
    Result carry_out(std::uint64_t id, const command::AddWindow& what);
    Result carry_out(std::uint64_t id, const command::RemoveWindow& what);
    Result carry_out(std::uint64_t id, const command::AddRegion& what);
    Result carry_out(std::uint64_t id, const command::RemoveRegion& what);
    Result carry_out(std::uint64_t id, const command::FindKey& what);
    Result carry_out(std::uint64_t id, const command::FindAh& what);
    Result carry_out(std::uint64_t id, const command::FindWindow& what);
    Result leave(std::uint32_t index, const WorkerQp::Leave& how) noexcept;

    Turn turn_;
    Tables tables_;
    RingConsumer<Command> commands_;
    // index of the session that the next look begins with; an index past the last means 0
    std::size_t first_session_ = 0;
    std::size_t first_cq_ = 0;
    Submitter submitter_{turn_, tables_};
    Router router_{turn_, tables_};
    InUse in_use_{turn_, tables_};
    std::vector<WorkerSession*> closing_;
    Sleeper sleeper_{turn_, tables_};
    Heartbeat heartbeat_;
    OwnLines<std::byte> command_memory_;
};

}  // namespace pollcore
