// A worker: one thread that polls. step() is the whole of it: commands, submissions, completions, and what is due. The
// class has no thread, clock or randomness of its own (I11), so a test can turn it by hand.
//
//   worker.cc     the loop body, falling asleep     commands.cc    what the control thread asks
//   submitter     session ring -> chain per queue   router         CQ -> what it completes
//   ordinary      both of these for ordinary requests
//   worker_*      what it works on, each with its own books
//   turn.hpp      what it lends to all of these
//
// Thread safety: all but the constructor is the worker's thread's. WorkerProxy talks to it from outside.
// Invariants
//   - An entry in an in-flight table stands for a WR whose completion slot is reserved in its session's ring.
//   - A parked QP and its CQs are not touched (D43).
//   - Nothing here allocates after construction, except commands that add things or begin a search. Such a command
//     makes room before it changes anything, and is answered `no_memory` if there is none (D29).
#pragma once

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

    /// One turn: commands; then submissions and completions, up to `looks` times until there are some; then what is
    /// due. `now` is in cycles of the clock that deadlines are in. Returns how much was done.
    std::uint32_t step(std::uint64_t now, std::uint32_t looks = 1) noexcept;

    // ---- Sleeping: what the thread's loop does when it has found nothing to do ----
    //
    // The worker first tells each session and the control side that it sleeps. Then it arms its CQs. Then it looks once
    // more, at one burst of each CQ and at all rings, and its thread waits only if there was nothing. A request or
    // command that comes after the telling rings the bell, a completion after the arming raises an event, and the last
    // look finds everything earlier (I8).

    /// Called before anything else, with the channel of each device. The channel must outlive the worker.
    void add_channel(CompletionChannel& channel) { sleeper_.add_channel(channel); }
    [[nodiscard]] std::span<CompletionChannel* const> channels() const noexcept { return sleeper_.channels(); }
    [[nodiscard]] int bell() const noexcept { return turn_.options.bell; }
    [[nodiscard]] int visitors() const noexcept { return turn_.options.visitors; }
    /// Arranges that everything that comes makes the bell or a channel readable, and looks once more. False: there is
    /// something to do, or something goes on that raises no event; the worker is awake.
    [[nodiscard]] bool fall_asleep(std::uint64_t now) noexcept;
    /// Called when something became readable, or the time of look_again_ns() has come. True: there is a reason to wake
    /// up. `rung`: the bell became readable.
    [[nodiscard]] bool woken(bool rung, std::uint64_t now) noexcept;
    /// The earliest CompletionChannel::look_again_ns().
    [[nodiscard]] std::uint64_t look_again_ns() const noexcept { return sleeper_.look_again_ns(); }
    /// How often, in ns, a sleeping worker must call woken(): a peer's writes to memory raise no event.
    /// CompletionChannel::kNever: no queue pair waits for one.
    [[nodiscard]] std::uint64_t look_every_ns() const noexcept;
    void wake_up(std::uint64_t now) noexcept;
    /// begin_wait() and end_wait() enclose the wait alone: the thread's work between two waits is no sleep.
    void begin_wait() noexcept;
    void end_wait(std::uint64_t now) noexcept;
    /// The thread has ended: acknowledges the events that it had taken, so that the CQs can be destroyed.
    void acknowledge_events() noexcept;
    /// A command was written. Any thread.
    void knock() noexcept { sleeper_.knock(); }
    /// The submissions of the only session, if nothing is in flight, so that only its next request or a command can
    /// come (D34). Else null.
    [[nodiscard]] const RingConsumer<WorkRequest>* only_source() const noexcept;

    [[nodiscard]] const WorkerCounters& counters() const noexcept { return turn_.counters; }
    /// For the loop that turns it, which counts how it waits.
    [[nodiscard]] WorkerCounters& own_counters() noexcept { return turn_.counters; }
    [[nodiscard]] const Heartbeat& heartbeat() const noexcept { return heartbeat_; }
    /// For the loop that turns it, which writes the heartbeat (D33).
    [[nodiscard]] Heartbeat& own_heartbeat() noexcept { return heartbeat_; }
    [[nodiscard]] void* command_memory() noexcept { return command_memory_.data(); }
    [[nodiscard]] void* answer_memory() noexcept { return turn_.answers.memory(); }

private:
    // worker.cc
    /// `looks_again`: the step looks again if there is nothing.
    std::uint32_t take_submissions(bool looks_again) noexcept;
    std::uint32_t take_completions() noexcept;
    std::uint32_t look_at_cqs() noexcept;
    std::uint32_t look_at_rings() noexcept;
    std::uint32_t poll_plain(WorkerCq& cq) noexcept;
    std::uint32_t poll_extended(WorkerCq& cq) noexcept;
    std::uint32_t poll_with_times(WorkerCq& cq) noexcept;
    /// Routes the `n` completions of a poll, with the device's times or without. `n` is -1: the CQ has failed.
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
    /// The answer to a command; nothing: it comes later.
    struct Answered {
        AnswerKind kind = AnswerKind::done;
        std::uint32_t index = 0;
    };
    using Result = std::optional<Answered>;
    Result carry_out(std::uint64_t id, const command::AddSession& what);
    Result carry_out(std::uint64_t id, const command::RemoveSession& what);
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
    std::size_t first_session_ = 0;  // index of the session that is looked at first; one past the last stands for 0
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
