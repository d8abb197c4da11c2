// Events of CQs, for a worker that may sleep (I8).
//
// The first completion after a CQ was armed raises an event, on the channel of its device.
//
// Thread safety: the worker's thread's, but for knock().
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/sleep_word.hpp"
#include "device/completion_channel.hpp"
#include "worker/tables.hpp"
#include "worker/turn.hpp"

namespace pollcore {

class Sleeper {
public:
    Sleeper(Turn& turn, const Tables& tables) : turn_(turn), tables_(tables) {}

    /// Called before anything else, with the channel of each device. The channel must outlive the worker.
    void add_channel(CompletionChannel& channel) { channels_.push_back(&channel); }
    [[nodiscard]] std::span<CompletionChannel* const> channels() const noexcept { return channels_; }
    [[nodiscard]] bool has(const CompletionChannel* channel) const noexcept;

    /// Arms each CQ, which then raises an event for its next completion. False: one could not be armed.
    [[nodiscard]] bool arm() noexcept;
    /// Takes the channels' events, and returns how many there were. An event without a completion is normal: the
    /// completion was polled before the worker slept.
    std::uint32_t take_events() noexcept;
    void acknowledge(WorkerCq& cq) noexcept;
    /// The earliest CompletionChannel::look_again_ns().
    [[nodiscard]] std::uint64_t look_again_ns() const noexcept;

    /// From here on a thread that writes a command rings the bell (D23).
    void expect_commands() noexcept { command_sleep_.expect(); }
    void sleep() noexcept { slept_ = true; }
    /// True: it had fallen asleep.
    bool awake() noexcept;
    /// A command was written. Any thread.
    void knock() noexcept;

private:
    /// Null: it was removed.
    [[nodiscard]] WorkerCq* find(const ibv_cq& cq) const noexcept;

    Turn& turn_;
    const Tables& tables_;
    std::vector<CompletionChannel*> channels_;
    SleepWord command_sleep_;  // taken by the thread that writes commands
    bool slept_ = false;       // has fallen asleep, and not woken up yet
};

}  // namespace pollcore
