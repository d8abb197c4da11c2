// Events of CQs, for a worker that may sleep (I8).
//
// Whatever completes after a CQ was armed makes an event, on the channel of its device.
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

    /// Before anything else: the channel of each device, which outlives the worker.
    void add_channel(CompletionChannel& channel) { channels_.push_back(&channel); }
    [[nodiscard]] std::span<CompletionChannel* const> channels() const noexcept { return channels_; }
    [[nodiscard]] bool has(const CompletionChannel* channel) const noexcept;

    /// Each CQ makes an event for its next completion. False: one does not.
    [[nodiscard]] bool arm() noexcept;
    /// Returns how many there were. One with nothing behind it is normal: its completion was polled before the worker
    /// slept.
    std::uint32_t take_events() noexcept;
    void acknowledge(WorkerCq& cq) noexcept;
    /// The earliest CompletionChannel::look_again_ns().
    [[nodiscard]] std::uint64_t look_again_ns() const noexcept;

    /// From here on who writes a command rings the bell.
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
    SleepWord command_sleep_;  // taken by who writes commands
    bool slept_ = false;       // has fallen asleep, and not woken up yet
};

}  // namespace pollcore
