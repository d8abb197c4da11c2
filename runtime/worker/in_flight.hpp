// What a worker knows of each work request between taking it from its session and completing it.
//
// One table per work queue, in post order. The wr_id on the wire names queue pair, generation, queue and
// position, so a completion finds its entry whatever QP number it carries (H3).
//
// Thread safety: the worker's alone.
#pragma once

#include <infiniband/verbs.h>

#include <bit>
#include <cstdint>
#include <span>

#include "pollcore/completion.hpp"
#include "pollcore/handle.hpp"
#include "pollcore/own_lines.hpp"
#include "pollcore/work_request.hpp"

namespace pollcore {

/// The wr_id on the wire.
struct WrId {
    QpHandle qp;
    bool recv = false;
    std::uint32_t position = 0;  ///< kPositionBits of it travel

    static constexpr unsigned kPositionBits = 24;
    static constexpr std::uint32_t kPositionMask = (1u << kPositionBits) - 1;

    [[nodiscard]] constexpr std::uint64_t pack() const noexcept {
        return std::uint64_t{qp.index} << 48 | std::uint64_t{qp.generation} << 32 | std::uint64_t{recv} << 24 |
               (position & kPositionMask);
    }
    [[nodiscard]] static constexpr WrId unpack(std::uint64_t word) noexcept {
        return {QpHandle{static_cast<std::uint16_t>(word >> 48), static_cast<std::uint16_t>(word >> 32)},
                (word >> 24 & 1) != 0, static_cast<std::uint32_t>(word) & kPositionMask};
    }
};

struct WorkerSession;

struct InFlightEntry {
    enum class Kind : std::uint8_t {
        posted,    ///< the provider has it
        pooled,    ///< so it has, and a receive pool posted it
        announced, ///< so it has, of a message the announcement; the request ends later
        reading,   ///< so it has; reads what the peer has announced, into a buffer of a pool
        flow,      ///< so it has; terms or grants for the peer
        marker,    ///< so it has; both are the runtime's own and reach no session
        unposted,  ///< it never will: completes with `status` when its turn comes
        done,      ///< completed out of turn; only waits to leave the table
    };

    std::uint64_t tag = 0;
    WorkerSession* session = nullptr;
    union {
        std::uint32_t lkey = 0;  ///< of the first SGE; the others stand in the table's side array
        std::uint32_t new_rkey;  ///< bind: the window's key when it has succeeded
    };
    Opcode opcode = Opcode::send;
    Kind kind = Kind::posted;
    bool signaled = false;  ///< the application asked for a completion
    std::uint8_t num_sge = 0;
    Status status = Status::success;  ///< unposted: how it completes
    /// What a bind names, by their indices.
    struct Bind {
        std::uint16_t window;
        std::uint16_t region;
    };
    union {
        AhHandle ah{};  ///< of a datagram that is sent
        Bind bind;      ///< bind_mw
    };

    [[nodiscard]] bool with_provider() const noexcept { return kind <= Kind::marker; }
};

static_assert(sizeof(InFlightEntry) == 32);

class InFlightTable {
public:
    InFlightTable() = default;
    /// Room for `depth` entries; `sges_max` keys each.
    InFlightTable(std::uint32_t depth, std::uint32_t sges_max)
        : mask_(std::bit_ceil(depth) - 1),
          more_keys_per_entry_(sges_max > 1 ? sges_max - 1 : 0),
          entries_(make_own_lines<InFlightEntry>(mask_ + 1)),
          more_keys_(make_own_lines<std::uint32_t>(std::size_t{mask_ + 1} * more_keys_per_entry_)) {}

    [[nodiscard]] std::uint32_t size() const noexcept { return tail_ - head_; }
    [[nodiscard]] bool empty() const noexcept { return tail_ == head_; }
    [[nodiscard]] bool full() const noexcept { return size() > mask_; }
    [[nodiscard]] std::uint32_t room() const noexcept { return mask_ + 1 - size(); }
    [[nodiscard]] std::uint32_t next_position() const noexcept { return tail_; }
    [[nodiscard]] std::uint32_t head_position() const noexcept { return head_; }

    /// Adds an entry at next_position(), to be filled in by the caller. The reference holds until the next push.
    [[nodiscard]] InFlightEntry& push() noexcept { return entries_[tail_++ & mask_]; }
    /// The keys of the newest entry's SGEs after the first.
    void push_more_keys(std::span<const ibv_sge> more) noexcept {
        for (std::size_t i = 0; i < more.size() && i < more_keys_per_entry_; ++i) {
            more_keys_[std::size_t{(tail_ - 1) & mask_} * more_keys_per_entry_ + i] = more[i].lkey;
        }
    }
    [[nodiscard]] InFlightEntry& front() noexcept { return entries_[head_ & mask_]; }
    /// Removes the front. The reference holds until the next push.
    InFlightEntry& pop() noexcept { return entries_[head_++ & mask_]; }
    void pop_back() noexcept { --tail_; }
    /// Removes one from the middle. Those behind it, which no provider may know yet, move up by one position.
    void erase(std::uint32_t position) noexcept {
        for (std::uint32_t next = position + 1; next != tail_; ++next) {
            entries_[(next - 1) & mask_] = entries_[next & mask_];
            for (std::size_t i = 0; i < more_keys_per_entry_; ++i) {
                more_keys_[std::size_t{(next - 1) & mask_} * more_keys_per_entry_ + i] =
                    more_keys_[std::size_t{next & mask_} * more_keys_per_entry_ + i];
            }
        }
        --tail_;
    }
    [[nodiscard]] InFlightEntry& at(std::uint32_t position) noexcept { return entries_[position & mask_]; }

    /// Asks for the line of the entry that push() will give, or at() does.
    void prefetch_next() const noexcept { prefetch(tail_); }
    void prefetch(std::uint32_t position) const noexcept { __builtin_prefetch(&entries_[position & mask_], 1); }

    /// The full position behind the bits that travelled; size() or more from the head when it names nothing
    /// in flight.
    [[nodiscard]] std::uint32_t offset_of(std::uint32_t travelled) const noexcept {
        return (travelled - head_) & WrId::kPositionMask;
    }

    /// True when a posted entry uses this key.
    [[nodiscard]] bool uses_key(std::uint32_t lkey) const noexcept {
        for (std::uint32_t p = head_; p != tail_; ++p) {
            const InFlightEntry& entry = entries_[p & mask_];
            if (!entry.with_provider() || entry.num_sge == 0) {
                continue;
            }
            if (entry.lkey == lkey) {
                return true;
            }
            for (std::uint32_t i = 0; i + 1 < entry.num_sge && i < more_keys_per_entry_; ++i) {
                if (more_keys_[std::size_t{p & mask_} * more_keys_per_entry_ + i] == lkey) {
                    return true;
                }
            }
        }
        return false;
    }

    /// True when a posted entry uses this address handle.
    [[nodiscard]] bool uses_ah(AhHandle ah) const noexcept {
        for (std::uint32_t p = head_; p != tail_; ++p) {
            const InFlightEntry& entry = entries_[p & mask_];
            if (entry.kind == InFlightEntry::Kind::posted && entry.ah == ah) {
                return true;
            }
        }
        return false;
    }

private:
    std::uint32_t head_ = 0;
    std::uint32_t tail_ = 0;
    std::uint32_t mask_ = 0;
    std::uint32_t more_keys_per_entry_ = 0;
    OwnLinesArray<InFlightEntry> entries_;
    OwnLinesArray<std::uint32_t> more_keys_;
};
static_assert(sizeof(InFlightTable) == 32, "half a line of a WorkerQp");

}  // namespace pollcore
