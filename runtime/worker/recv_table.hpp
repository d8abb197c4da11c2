// The receives that a receive queue has in flight.
//
// The device completes the receives of a queue pair's own receive queue in post order. The runtime keeps this order for
// receives that it completes itself. Receives of a shared receive queue complete in any order (H4). Their entries are
// in numbered slots, and a completion frees its slot (D20).
//
// Thread safety: only the worker's thread uses it.
#pragma once

#include <cstdint>
#include <span>

#include <infiniband/verbs.h>

#include "pollcore/own_lines.hpp"
#include "worker/in_flight.hpp"

namespace pollcore {

/// Receives in flight, which complete in any order. Each has a numbered slot.
class SlotTable {
public:
    SlotTable() = default;
    /// Has room for `depth` entries with `sges_max` lkeys each.
    SlotTable(std::uint32_t depth, std::uint32_t sges_max)
        : more_keys_per_entry_(sges_max > 1 ? sges_max - 1 : 0),
          entries_(depth, InFlightEntry{.kind = InFlightEntry::Kind::done}),
          more_keys_(std::size_t{depth} * more_keys_per_entry_) {
        free_.reserve(depth);
        for (std::uint32_t slot = depth; slot > 0; --slot) {
            free_.push_back(slot - 1);
        }
    }

    [[nodiscard]] std::uint32_t depth() const noexcept { return static_cast<std::uint32_t>(entries_.size()); }
    [[nodiscard]] std::uint32_t size() const noexcept { return depth() - static_cast<std::uint32_t>(free_.size()); }
    [[nodiscard]] bool full() const noexcept { return free_.empty(); }
    [[nodiscard]] std::uint32_t room() const noexcept { return static_cast<std::uint32_t>(free_.size()); }
    [[nodiscard]] bool in_flight(std::uint32_t slot) const noexcept {
        return slot < depth() && entries_[slot].with_provider();
    }
    [[nodiscard]] InFlightEntry& at(std::uint32_t slot) noexcept { return entries_[slot]; }

    /// Takes a free slot for an entry that the caller fills in. Must not be called when full().
    [[nodiscard]] std::uint32_t take() noexcept {
        const std::uint32_t slot = free_.back();
        free_.pop_back();
        return slot;
    }
    void give_back(std::uint32_t slot) noexcept {
        entries_[slot].end();
        free_.push_back(slot);
    }
    /// Stores the lkeys of the entry's SGEs, without the first SGE.
    void set_more_keys(std::uint32_t slot, std::span<const ibv_sge> more) noexcept {
        for (std::size_t i = 0; i < more.size() && i < more_keys_per_entry_; ++i) {
            more_keys_[std::size_t{slot} * more_keys_per_entry_ + i] = more[i].lkey;
        }
    }
    /// Returns true if an entry in flight uses this lkey.
    [[nodiscard]] bool uses_key(std::uint32_t lkey) const noexcept {
        for (std::uint32_t slot = 0; slot < depth(); ++slot) {
            const InFlightEntry& entry = entries_[slot];
            if (!in_flight(slot) || entry.num_sge == 0) {
                continue;
            }
            if (entry.lkey == lkey) {
                return true;
            }
            for (std::uint32_t i = 0; i + 1 < entry.num_sge; ++i) {
                if (more_keys_[std::size_t{slot} * more_keys_per_entry_ + i] == lkey) {
                    return true;
                }
            }
        }
        return false;
    }

private:
    std::uint32_t more_keys_per_entry_ = 0;
    OwnLines<InFlightEntry> entries_;
    OwnLines<std::uint32_t> more_keys_;
    OwnLines<std::uint32_t> free_;  // a stack, because the slot given back last is most likely still in the cache
};

/// Receives in flight, which complete in post order or in any order. A place is a position of the InFlightTable or a
/// slot of the SlotTable. A wr_id contains the low WrId::kPositionBits of a place.
class RecvTable {
public:
    enum class Order : std::uint8_t { as_posted, any };

    RecvTable() = default;
    /// Has room for `depth` entries with `sges_max` lkeys each.
    RecvTable(Order order, std::uint32_t depth, std::uint32_t sges_max) : any_(order == Order::any) {
        if (any_) {
            slots_ = SlotTable(depth, sges_max);
        } else {
            positions_ = InFlightTable(depth, sges_max);
        }
    }

    [[nodiscard]] bool full() const noexcept { return any_ ? slots_.full() : positions_.full(); }
    [[nodiscard]] std::uint32_t room() const noexcept { return any_ ? slots_.room() : positions_.room(); }
    [[nodiscard]] std::uint32_t size() const noexcept { return any_ ? slots_.size() : positions_.size(); }

    /// Adds an entry that the caller fills in, and returns its place. Must not be called when full().
    [[nodiscard]] std::uint32_t push() noexcept {
        if (any_) {
            return slots_.take();
        }
        (void)positions_.push();
        return positions_.next_position() - 1;
    }
    [[nodiscard]] InFlightEntry& at(std::uint32_t place) noexcept {
        return any_ ? slots_.at(place) : positions_.at(full_position(place));
    }
    /// Stores the lkeys of the SGEs, without the first SGE, for the newest entry, which is at `place`.
    void set_more_keys(std::uint32_t place, std::span<const ibv_sge> more) noexcept {
        any_ ? slots_.set_more_keys(place, more) : positions_.push_more_keys(more);
    }
    /// Returns the entry at a place that a work completion names, or null if the provider has no receive there.
    [[nodiscard]] [[gnu::always_inline]] InFlightEntry* find(std::uint32_t place) noexcept {
        if (any_) {
            return slots_.in_flight(place) ? &slots_.at(place) : nullptr;
        }
        const std::uint32_t offset = positions_.offset_of(place);
        if (offset >= positions_.size()) [[unlikely]] {
            return nullptr;
        }
        InFlightEntry& entry = positions_.at(positions_.head_position() + offset);
        return entry.with_provider() ? &entry : nullptr;
    }
    /// Removes an entry that has completed.
    [[gnu::always_inline]] void remove(std::uint32_t place) noexcept {
        if (any_) {
            slots_.give_back(place);
        } else if (positions_.offset_of(place) == 0) [[likely]] {
            (void)positions_.pop();
        } else {
            positions_.at(full_position(place)).end();
            ++strays_;
        }
    }
    /// Removes an entry that the provider refused. Returns true if the entries behind it have moved up by one place.
    [[nodiscard]] bool erase(std::uint32_t place) noexcept {
        if (any_) {
            slots_.give_back(place);
            return false;
        }
        positions_.erase(full_position(place));
        return true;
    }
    /// Returns true if the provider does not have the front entry.
    [[nodiscard]] bool has_unposted() const noexcept { return strays_ != 0 && !positions_.front().with_provider(); }
    /// Marks the newest entry, which is at `place`, as never posted. It completes with status `why`.
    void leave_unposted(std::uint32_t place, Status why) noexcept {
        at(place).leave_unposted(why);
        ++strays_;
    }
    /// If the provider does not have the front entry, removes the entry and returns it; else returns null. The pointer
    /// is valid until the next push().
    [[nodiscard]] const InFlightEntry* pop_unposted() noexcept {
        if (!has_unposted()) {
            return nullptr;
        }
        --strays_;
        return &positions_.pop();
    }
    /// Removes all entries, and gives each to `take`.
    template <class Take>
    void take_all(Take&& take) noexcept {
        if (!any_) {
            strays_ = 0;
            while (!positions_.empty()) {
                take(positions_.pop());
            }
            return;
        }
        for (std::uint32_t slot = 0; slot < slots_.depth(); ++slot) {
            if (slots_.in_flight(slot)) {
                const InFlightEntry entry = slots_.at(slot);
                slots_.give_back(slot);
                take(entry);
            }
        }
    }
    [[nodiscard]] bool uses_key(std::uint32_t lkey) const noexcept {
        return any_ ? slots_.uses_key(lkey) : positions_.uses_key(lkey);
    }
    void prefetch(std::uint32_t place) const noexcept {
        if (!any_) {
            positions_.prefetch(place);
        }
    }

private:
    [[nodiscard]] std::uint32_t full_position(std::uint32_t travelled) const noexcept {
        return positions_.head_position() + positions_.offset_of(travelled);
    }

    bool any_ = false;
    std::uint32_t strays_ = 0;  // entries of positions_ that the provider does not have
    InFlightTable positions_;
    SlotTable slots_;
};

}  // namespace pollcore
