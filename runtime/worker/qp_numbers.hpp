// The queue pairs that use a shared receive queue, by QP number. A work completion contains this number.
//
// Thread safety: only the worker's thread uses it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "pollcore/own_lines.hpp"

namespace pollcore {

class WorkerQp;

/// A hash table with open addressing, at most half full. Only make_room() allocates. Invariant: each number is in the
/// table at most once. Providers reuse numbers (H3). But a queue pair with a reused number is added only after the old
/// queue pair has left the table. The old one leaves only after its CQs were seen empty.
class QpNumberTable {
public:
    [[nodiscard]] WorkerQp* find(std::uint32_t qp_num) const noexcept {
        for (std::size_t at = home(qp_num);; at = next(at)) {
            if (places_[at].qp == nullptr || places_[at].qp_num == qp_num) {
                return places_[at].qp;
            }
        }
    }
    /// Makes room for one more queue pair, so that the next add() allocates nothing.
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
        // Entries behind the hole move up, except an entry that would get in front of its home place.
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
        WorkerQp* qp = nullptr;  // null: the place is empty
    };

    // Most providers number queue pairs in sequence. The multiplication spreads other numbers.
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

}  // namespace pollcore
