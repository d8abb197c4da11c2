// Events of CQs, for a worker that may sleep (I8).
//
// After a CQ is armed, its next completion raises an event on the channel of the CQ's device.
//
// Thread safety: only the worker's thread uses it, but any thread may call knock().
#pragma once

#include <poll.h>

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

    /// Adds the channel of a device. If std::bad_alloc is thrown, nothing has changed.
    void add(CompletionChannel& channel);
    /// The channel's CQs must have been removed.
    void remove(const CompletionChannel& channel) noexcept;
    [[nodiscard]] bool has(const CompletionChannel* channel) const noexcept;
    /// For poll(2): the worker's bell, its visitors, and the channels. Valid until a channel is added or removed.
    [[nodiscard]] std::span<pollfd> descriptors() noexcept;

    /// Takes pending events, and arms each CQ that has not failed, so that its next completion raises an event. Returns
    /// null, or a CQ that could not be armed.
    [[nodiscard]] WorkerCq* arm() noexcept;
    /// Takes events of all channels, and returns their number. A failed channel counts as one event. An event without a
    /// completion is normal: the worker had polled the completion before it slept.
    std::uint32_t take_events() noexcept;
    void acknowledge(WorkerCq& cq) noexcept;
    /// The earliest CompletionChannel::look_again_ns().
    [[nodiscard]] std::uint64_t look_again_ns() const noexcept;

    /// From now on a thread that writes a command signals the bell (D23).
    void expect_commands() noexcept { command_sleep_.expect(); }
    void sleep() noexcept { slept_ = true; }
    /// Ends the sleep. Returns true if the worker was asleep.
    bool awake() noexcept;
    /// Called after a command was written. Signals the bell if the worker sleeps. Any thread.
    void knock() noexcept;

private:
    /// Returns null if the CQ was removed.
    [[nodiscard]] WorkerCq* find(const ibv_cq& cq) const noexcept;

    Turn& turn_;
    const Tables& tables_;
    std::vector<CompletionChannel*> channels_;
    static constexpr std::size_t kOwnDescriptors = 2;                         // the bell and the visitors
    std::vector<pollfd> descriptors_ = std::vector<pollfd>(kOwnDescriptors);  // memory for descriptors()
    SleepWord command_sleep_;  // set while the worker sleeps; reset by the thread that writes a command
    bool slept_ = false;       // the worker has fallen asleep, and has not woken up yet
};

}  // namespace pollcore
