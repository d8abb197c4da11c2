// Handles of one kind: which places are free, and the generation that each gets next.
//
// Thread safety: the control thread's.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

namespace pollcore {

template <class H>
class HandlePool {
public:
    explicit HandlePool(std::uint32_t most) : most_(most) {}

    /// Nothing when all are taken. The place that was given back first is used again first.
    [[nodiscard]] std::optional<H> take() {
        H handle;
        if (!free_.empty()) {
            handle.index = free_.front();
            free_.pop_front();
        } else if (generations_.size() < most_) {
            handle.index = static_cast<std::uint16_t>(generations_.size());
            generations_.push_back(0);
        } else {
            return std::nullopt;
        }
        std::uint16_t& generation = generations_[handle.index];
        generation = static_cast<std::uint16_t>(generation == 0xffff ? 1 : generation + 1);
        handle.generation = generation;
        return handle;
    }
    void give_back(H handle) { free_.push_back(handle.index); }

private:
    std::uint32_t most_;
    std::vector<std::uint16_t> generations_;
    std::deque<std::uint16_t> free_;
};

}  // namespace pollcore
