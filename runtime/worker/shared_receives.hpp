// The worker's end of a shared receive queue.
//
// Its receives complete in any order, on the CQ of whichever queue pair took them (H4): the wr_id on the wire names
// queue, generation and slot, and a completion frees its slot wherever it stands. Which queue pair it was is known by
// the work completion's qp_num only, which is valid whatever the status.
//
// Thread safety: the worker's alone.
#pragma once

#include <infiniband/verbs.h>

#include <bit>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "pollcore/handle.hpp"
#include "pollcore/own_lines.hpp"
#include "flow/receive_pool.hpp"
#include "worker/in_flight.hpp"

namespace pollcore {

struct WorkerQp;

/// The wr_id of a shared receive. One bit, which WrId never sets, tells the two apart.
struct SrqWrId {
    SrqHandle srq;
    std::uint32_t slot = 0;

    static constexpr std::uint64_t kMark = std::uint64_t{1} << 31;
    static constexpr std::uint64_t kRecv = WrId{.recv = true}.pack();  ///< as of any receive
    static_assert((WrId{QpHandle{0xffff, 0xffff}, true, WrId::kPositionMask}.pack() & kMark) == 0);
    static_assert(kQueueDepthMax - 1 <= WrId::kPositionMask);

    [[nodiscard]] static constexpr bool names(std::uint64_t word) noexcept { return (word & kMark) != 0; }
    [[nodiscard]] constexpr std::uint64_t pack() const noexcept {
        return std::uint64_t{std::bit_cast<std::uint32_t>(srq)} << 32 | kMark | kRecv | slot;
    }
    [[nodiscard]] static constexpr SrqWrId unpack(std::uint64_t word) noexcept {
        return {std::bit_cast<SrqHandle>(static_cast<std::uint32_t>(word >> 32)),
                static_cast<std::uint32_t>(word) & WrId::kPositionMask};
    }
};

/// A wr_id of a send queue.
[[nodiscard]] constexpr bool names_send(std::uint64_t word) noexcept { return (word & (SrqWrId::kMark | SrqWrId::kRecv)) == 0; }

/// Receives in flight, by slot.
class SlotTable {
public:
    SlotTable() = default;
    /// Room for `depth` entries; `sges_max` keys each.
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

    /// A slot for an entry that the caller fills in; not when full.
    [[nodiscard]] std::uint32_t take() noexcept {
        const std::uint32_t slot = free_.back();
        free_.pop_back();
        return slot;
    }
    void give_back(std::uint32_t slot) noexcept {
        entries_[slot].kind = InFlightEntry::Kind::done;
        free_.push_back(slot);
    }
    /// The keys of the entry's SGEs after the first.
    void set_more_keys(std::uint32_t slot, std::span<const ibv_sge> more) noexcept {
        for (std::size_t i = 0; i < more.size() && i < more_keys_per_entry_; ++i) {
            more_keys_[std::size_t{slot} * more_keys_per_entry_ + i] = more[i].lkey;
        }
    }
    /// True when an entry in flight uses this key.
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
    OwnLines<std::uint32_t> free_;  // the last that was given back first, since it is in the cache
};

/// Queue pairs by the number in a work completion: open addressing, at most half full. Only make_room() allocates.
/// Invariant: no number twice. Providers use numbers again (H3), but a queue pair leaves the table only after its CQs
/// were seen empty, and a new one comes only after that.
class QpNumberTable {
public:
    [[nodiscard]] WorkerQp* find(std::uint32_t qp_num) const noexcept {
        for (std::size_t at = home(qp_num);; at = next(at)) {
            if (places_[at].qp == nullptr || places_[at].qp_num == qp_num) {
                return places_[at].qp;
            }
        }
    }
    /// For one more: the next add() then allocates nothing.
    void make_room() {
        if (2 * (size_ + 1) > places_.size()) {
            const OwnLines<Place> old = std::exchange(places_, OwnLines<Place>(2 * places_.size()));
            for (const Place& place : old) {
                if (place.qp != nullptr) {
                    put(place);
                }
            }
        }
    }
    void add(std::uint32_t qp_num, WorkerQp* qp) {
        make_room();
        put({qp_num, qp});
        ++size_;
    }
    void remove(std::uint32_t qp_num) noexcept {
        std::size_t hole = home(qp_num);
        while (places_[hole].qp_num != qp_num || places_[hole].qp == nullptr) {
            if (places_[hole].qp == nullptr) {
                return;
            }
            hole = next(hole);
        }
        // What stands behind moves up, unless that would take it before its home.
        for (std::size_t at = next(hole); places_[at].qp != nullptr; at = next(at)) {
            const std::size_t mask = places_.size() - 1;
            if (((at - home(places_[at].qp_num)) & mask) >= ((at - hole) & mask)) {
                places_[hole] = places_[at];
                hole = at;
            }
        }
        places_[hole] = {};
        --size_;
    }
    [[nodiscard]] std::size_t size() const noexcept { return size_; }

private:
    struct Place {
        std::uint32_t qp_num = 0;
        WorkerQp* qp = nullptr;  // null: empty
    };

    // Providers number in sequence, mostly; the multiplication spreads those that do not.
    [[nodiscard]] std::size_t home(std::uint32_t qp_num) const noexcept {
        return (qp_num * 0x9E3779B1u >> 8) & (places_.size() - 1);
    }
    [[nodiscard]] std::size_t next(std::size_t at) const noexcept { return (at + 1) & (places_.size() - 1); }
    void put(const Place& place) noexcept {
        std::size_t at = home(place.qp_num);
        while (places_[at].qp != nullptr) {
            at = next(at);
        }
        places_[at] = place;
    }

    OwnLines<Place> places_ = OwnLines<Place>(8);
    std::size_t size_ = 0;
};

class WorkerSession;

/// Made by the control thread, the worker's from add_srq until the answer to forget_srq.
struct alignas(kCacheLine) WorkerSrq {
    ibv_srq* srq = nullptr;
    SrqHandle handle;
    WorkerSession* session = nullptr;  ///< submits the receives and gets all completions; set by add_srq
    std::uint8_t sges_max = 1;
    bool closing = false;  ///< takes nothing more
    Status leftover_status = Status::srq_closed;  ///< then, of what it has and of what it does not take
    bool chained = false;  ///< stands in the list that begins with Worker::chained_srqs_
    WorkerSrq* next_chained = nullptr;
    ibv_recv_wr* head = nullptr;
    ibv_recv_wr* tail = nullptr;
    SlotTable receives;
    PoolTaker pool;
    // With credits: what its queue pairs' peers may send adds up to no more than the receives that are posted.
    std::uint32_t granted = 0;      ///< to all of them, and not used
    std::uint32_t granted_max = 0;  ///< to each; 0: without credits
    std::size_t next_granted = 0;   ///< whose turn it is
    std::vector<WorkerQp*> creditors;
    QpNumberTable qps;  ///< that take receives from it
    // Cold.
    std::uint32_t session_index = 0;
    std::uint32_t device = 0;  ///< whose keys its requests name
    std::uint32_t pd = 0;      ///< the control thread's number of it
};

}  // namespace pollcore
