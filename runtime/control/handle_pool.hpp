// Hands out the handles of one kind. Knows which places (indices) are free, and the generation of each place.
//
// Thread safety: only the control thread.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace pollcore {

template <class H>
class HandlePool {
public:
    explicit HandlePool(std::uint32_t most) : most_(most) {}

    /// Returns nothing if all places are taken. Reuses the place that has been free for the longest time.
    [[nodiscard]] std::optional<H> take() {
        H handle;
        if (first_free_ != kNone) {
            handle.index = static_cast<std::uint16_t>(first_free_);
            first_free_ = places_[first_free_].next_free;
            last_free_ = first_free_ == kNone ? kNone : last_free_;
        } else if (places_.size() < most_) {
            handle.index = static_cast<std::uint16_t>(places_.size());
            places_.push_back({});
        } else {
            return std::nullopt;
        }
        std::uint16_t& generation = places_[handle.index].generation;
        generation = static_cast<std::uint16_t>(generation == 0xffff ? 1 : generation + 1);
        handle.generation = generation;
        return handle;
    }
    /// Allocates nothing.
    void give_back(H handle) noexcept {
        (last_free_ == kNone ? first_free_ : places_[last_free_].next_free) = handle.index;
        last_free_ = handle.index;
        places_[handle.index].next_free = kNone;
    }

private:
    static constexpr std::uint32_t kNone = ~0u;

    struct Place {
        std::uint16_t generation = 0;
        std::uint32_t next_free = kNone;  // if this place is free
    };

    std::uint32_t most_;
    std::vector<Place> places_;
    std::uint32_t first_free_ = kNone;
    std::uint32_t last_free_ = kNone;
};

}  // namespace pollcore
