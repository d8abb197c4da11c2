// The work requests of a burst that are not posted yet: one chain for each queue, in the worker's own memory.
//
// Thread safety: only the worker's thread uses it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include <infiniband/verbs.h>

#include "pollcore/limits.hpp"
#include "pollcore/own_lines.hpp"
#include "pollcore/work_request.hpp"

namespace pollcore {

class RecvQueue;
class Turn;
class WorkerQp;

/// A queue's link in the list of queues that have a chain.
template <class Queue>
class ChainLink {
public:
    /// Returns false if the queue is in the list already.
    [[nodiscard]] bool enter() noexcept {
        if (next_ != nowhere()) {
            return false;
        }
        next_ = nullptr;
        return true;
    }
    /// Address of the pointer to the next queue in the list.
    [[nodiscard]] Queue** next() noexcept { return &next_; }
    /// Takes the queue out of the list. Returns the next queue.
    Queue* leave() noexcept { return std::exchange(next_, nowhere()); }

private:
    // The value of next_ while the queue is not in the list. Only compared.
    [[nodiscard]] static Queue* nowhere() noexcept { return reinterpret_cast<Queue*>(std::uintptr_t{1}); }

    Queue* next_ = nowhere();
};

/// The list of queues that have a chain, in the order of their first request. Queue has a member `link`, a
/// ChainLink<Queue>.
template <class Queue>
class ChainedQueues {
public:
    ChainedQueues() = default;
    ChainedQueues(const ChainedQueues&) = delete;  // end_ points into the object
    ChainedQueues& operator=(const ChainedQueues&) = delete;

    [[gnu::always_inline]] void add(Queue& queue) noexcept {
        if (queue.link.enter()) {
            *end_ = &queue;
            end_ = queue.link.next();
        }
    }
    [[nodiscard]] bool empty() const noexcept { return first_ == nullptr; }
    template <class Post>
    [[gnu::always_inline]] void post_all(Post&& post) noexcept {
        end_ = &first_;
        for (Queue* queue = std::exchange(first_, nullptr); queue != nullptr;) {
            Queue& one = *queue;
            queue = one.link.leave();
            post(one);
        }
    }

private:
    Queue* first_ = nullptr;
    Queue** end_ = &first_;
};

class Chains {
public:
    static constexpr std::size_t kWrs = 256;
    static constexpr std::size_t kSges = kWrs * 4;
    static constexpr std::size_t kInline = 64 * kInlineMax;
    static_assert(kSges > kSgesMax && kInline >= kInlineMax);

    Chains() : wrs_(kWrs), recv_wrs_(kWrs), sges_(kSges), inline_(kInline) {}

    /// Returns true if there is room for one more request.
    [[nodiscard]] [[gnu::always_inline]] bool room(std::size_t sges, std::size_t inline_bytes) const noexcept {
        return wrs_used_ < kWrs && recv_wrs_used_ < kWrs && sges_used_ + sges < kSges &&
               inline_used_ + inline_bytes <= kInline;
    }
    /// Returns true if there is room for one more request of any kind, with any frame that a flow control adds.
    [[nodiscard]] bool room_for_any() const noexcept { return room(kSgesMax + 1, 2 * kInlineMax); }
    /// Returns true if there is room for `n` more receives with one SGE each.
    [[nodiscard]] bool recv_room(std::size_t n) const noexcept {
        return recv_wrs_used_ + n <= kWrs && sges_used_ + n <= kSges;
    }
    [[nodiscard]] ibv_send_wr& take_send_wr() noexcept { return wrs_[wrs_used_++]; }
    [[nodiscard]] ibv_recv_wr& take_recv_wr() noexcept { return recv_wrs_[recv_wrs_used_++]; }
    [[nodiscard]] ibv_sge* take_sges(std::size_t n) noexcept {
        ibv_sge* const sges = &sges_[sges_used_];
        sges_used_ += n;
        return sges;
    }
    [[nodiscard]] std::byte* take_inline(std::size_t bytes) noexcept {
        std::byte* const place = &inline_[inline_used_];
        inline_used_ += bytes;
        return place;
    }

    // For the loop that takes ordinary requests. Each request needs one SGE and at most WorkRequest::kOwnPayload bytes
    // of inline payload.

    /// The number of ordinary requests for which there is room.
    [[nodiscard]] std::size_t ordinary_room() const noexcept {
        return std::min({kWrs - wrs_used_, kSges - sges_used_, (kInline - inline_used_) / WorkRequest::kOwnPayload});
    }
    [[nodiscard]] ibv_send_wr* send_wrs() noexcept { return wrs_.data() + wrs_used_; }
    [[nodiscard]] ibv_sge* sges() noexcept { return sges_.data() + sges_used_; }
    void use(std::size_t n) noexcept {
        wrs_used_ += n;
        sges_used_ += n;
    }

    /// Posts all chains. Afterwards all memory is free again.
    void ring(Turn& turn) noexcept;

    ChainedQueues<WorkerQp> sends;
    ChainedQueues<RecvQueue> recvs;

private:
    std::size_t wrs_used_ = 0;
    std::size_t recv_wrs_used_ = 0;
    std::size_t sges_used_ = 0;
    std::size_t inline_used_ = 0;
    OwnLines<ibv_send_wr> wrs_;
    OwnLines<ibv_recv_wr> recv_wrs_;
    OwnLines<ibv_sge> sges_;
    OwnLines<std::byte> inline_;
};

}  // namespace pollcore
