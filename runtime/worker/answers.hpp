// A worker's messages to the control thread: an answer to each command, and reports that answer no command. No message
// is lost if the control thread takes no messages for a while (D28). The worker carries out a command only if the ring
// has room for the answer. Reports that find no room wait here.
//
// Thread safety: only the worker's thread uses it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "pollcore/own_lines.hpp"
#include "worker/command.hpp"

namespace pollcore {

class WorkerAnswers {
public:
    WorkerAnswers() : memory_(ring_bytes<Answer>(kAnswerSlots)) {
        format_ring<Answer>(memory_.data(), kAnswerSlots);
        ring_ = RingProducer<Answer>(memory_.data(), kAnswerSlots);
    }

    /// The ring's memory, for a RingConsumer<Answer> of kAnswerSlots.
    [[nodiscard]] void* memory() noexcept { return memory_.data(); }

    /// Returns true if the ring has room for one more answer.
    [[nodiscard]] bool room() noexcept { return ring_.reserve(1) != 0; }
    /// Must be called only if there is room().
    void answer(std::uint64_t command, AnswerKind kind, std::uint32_t index = 0) noexcept {
        (void)ring_.try_push(Answer{.id = command, .kind = kind, .index = index});
    }

    /// Allocates room for one waiting report of each of `objects` objects. Throws std::bad_alloc.
    void make_room(std::size_t objects) { untold_.reserve(objects); }
    /// Reports an event that concerns an object. Replaces an earlier report of this kind about the object if the
    /// earlier report still waits here.
    void say(AnswerKind kind, std::uint32_t index, std::uint32_t object_id) noexcept {
        withdraw(kind, index);
        untold_.push_back({.id = 0, .kind = kind, .index = index, .object_id = object_id});
        catch_up();
    }
    /// Called when the object is removed. Deletes its report if the report still waits here.
    void withdraw(AnswerKind kind, std::uint32_t index) noexcept {
        std::erase_if(untold_, [&](const Answer& said) { return said.kind == kind && said.index == index; });
    }
    [[nodiscard]] bool behind() const noexcept { return !untold_.empty(); }
    void catch_up() noexcept {
        std::size_t told = 0;
        while (told < untold_.size() && ring_.try_push(untold_[told])) {
            ++told;
        }
        untold_.erase(untold_.begin(), untold_.begin() + static_cast<std::ptrdiff_t>(told));
    }

private:
    OwnLines<std::byte> memory_;
    RingProducer<Answer> ring_;
    std::vector<Answer> untold_;  // reports that wait for room in the ring
};

}  // namespace pollcore
