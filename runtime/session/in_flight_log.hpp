// A log of the requests in flight of a session whose worker is in another process. If that process dies with its
// tables, the session uses the log to give each request its completion (I1).
//
// A send or receive queue completes in post order (D19). So the requests in flight of a queue are the last ones that
// were submitted to it, and the session knows their number. Submitting a request writes an entry; the completion of a
// request changes nothing in the log. There are two exceptions. A request that was refused completes out of order, and
// forget() removes it. Receives of a shared receive queue complete in any order, and forget() finds each by its tag.
//
// Thread safety: only the session's thread, except for prepare() and prepare_srq(). Another thread calls these two for
// a queue that the session's thread does not know yet.
#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "pollcore/limits.hpp"
#include "pollcore/work_request.hpp"

namespace pollcore {

struct LoggedRequest {
    std::uint64_t tag = 0;
    Opcode opcode{};
};

/// The log of one queue.
class QueueLog {
public:
    /// Makes an empty log with room for `depth` requests in flight.
    explicit QueueLog(std::uint32_t depth) : entries_(std::bit_ceil(std::max(depth, 1u))) {}

    [[nodiscard]] std::size_t depth() const noexcept { return entries_.size(); }
    void add(const WorkRequest& request) noexcept { at(next_++) = {request.tag, request.opcode}; }
    /// Removes the request with this tag, which has completed out of order, from the newest `in_flight` entries.
    void forget(std::uint64_t tag, std::uint32_t in_flight) noexcept {
        for (std::uint32_t back = in_flight; back > 0; --back) {
            if (at(next_ - back).tag == tag) {
                for (; back < in_flight; ++back) {
                    at(next_ - back) = at(next_ - back - 1);
                }
                return;
            }
        }
    }
    /// The oldest of the newest `in_flight` entries.
    [[nodiscard]] LoggedRequest oldest(std::uint32_t in_flight) const noexcept { return at(next_ - in_flight); }

private:
    [[nodiscard]] LoggedRequest& at(std::uint32_t position) noexcept {
        return entries_[position & (entries_.size() - 1)];
    }
    [[nodiscard]] const LoggedRequest& at(std::uint32_t position) const noexcept {
        return entries_[position & (entries_.size() - 1)];
    }

    std::vector<LoggedRequest> entries_;
    std::uint32_t next_ = 0;  // position of the next entry, modulo 2^32, which is a multiple of entries_.size()
};

/// The logs of one session.
class InFlightLog {
public:
    InFlightLog(std::uint32_t qps_max, std::uint32_t srqs_max) : qps_(qps_max), srqs_(srqs_max) {}

    /// Makes room for so many requests in flight on the queue pair with index `qp`. No thread may have the queue pair's
    /// handle yet.
    void prepare(std::uint16_t qp, std::uint32_t send_depth, std::uint32_t recv_depth) {
        const std::lock_guard lock(mutex_);
        grow(qps_[qp].sends, send_depth);
        grow(qps_[qp].recvs, recv_depth);
    }
    void prepare_srq(std::uint16_t srq, std::uint32_t depth) {
        const std::lock_guard lock(mutex_);
        grow(srqs_[srq], depth);
    }

    // Relaxed: a thread that has the handle also sees the log that was prepared before.
    [[nodiscard]] QueueLog& sends(std::uint16_t qp) noexcept { return *qps_[qp].sends.load(std::memory_order_relaxed); }
    [[nodiscard]] QueueLog& recvs(std::uint16_t qp) noexcept { return *qps_[qp].recvs.load(std::memory_order_relaxed); }
    [[nodiscard]] QueueLog& srq(std::uint16_t index) noexcept { return *srqs_[index].load(std::memory_order_relaxed); }

private:
    using Slot = std::atomic<QueueLog*>;
    struct OfQp {
        Slot sends{nullptr};
        Slot recvs{nullptr};
    };

    // The old log stays in memory, because completions of an earlier queue pair with this index may still be polled.
    void grow(Slot& slot, std::uint32_t depth) {
        if (const QueueLog* now = slot.load(std::memory_order_relaxed); now == nullptr || now->depth() < depth) {
            owned_.push_back(std::make_unique<QueueLog>(depth));
            slot.store(owned_.back().get(), std::memory_order_relaxed);
        }
    }

    std::vector<OfQp> qps_;
    std::vector<Slot> srqs_;
    std::mutex mutex_;
    std::vector<std::unique_ptr<QueueLog>> owned_;
};

}  // namespace pollcore
