// Requests that wait until the flow control lets them go, in the order in which they were taken from the sessions.
//
// A waiting request counts as in flight. So admission never lets more requests wait than the send queue has places.
//
// Thread safety: only the worker's thread uses it.
#pragma once

#include <bit>
#include <cstdint>

#include "pollcore/own_lines.hpp"
#include "pollcore/work_request.hpp"

namespace pollcore {

class WorkerSession;

/// A ring of request lines, with the session of each request.
class WaitingRequests {
public:
    WaitingRequests() = default;
    /// Has room for `requests` requests of up to `slots_each` lines each.
    WaitingRequests(std::uint32_t requests, std::uint32_t slots_each)
        : mask_(std::bit_ceil(requests * slots_each) - 1), lines_(mask_ + 1), sessions_(mask_ + 1) {}

    [[nodiscard]] bool empty() const noexcept { return head_ == tail_; }
    // The next three functions have the meaning that they have in RingConsumer.
    [[nodiscard]] std::uint64_t released() const noexcept { return head_; }
    [[nodiscard]] std::size_t capacity() const noexcept { return lines_.size(); }
    [[nodiscard]] bool ready(std::size_t i) const noexcept { return i < tail_ - head_; }

    /// Adds `request` and its continuations, which are in `from` behind `slot`. `request` is the checked copy. The
    /// application can change the request at `slot` after the check, so the slot itself is not read again.
    template <class Slots>
    void push(WorkerSession& session, const WorkRequest& request, const Slots& from, std::size_t slot) noexcept {
        const std::uint32_t slots = slots_of(request);
        sessions_[tail_ & mask_] = &session;
        lines_[tail_++ & mask_] = request;
        for (std::uint32_t i = 1; i < slots; ++i) {
            lines_[tail_++ & mask_] = from.copy(slot + i);
        }
    }
    [[nodiscard]] WorkerSession& front_session() const noexcept { return *sessions_[head_ & mask_]; }
    /// The i-th line, counted from the front.
    [[nodiscard]] WorkRequest copy(std::size_t i) const noexcept { return lines_[(head_ + i) & mask_]; }
    void pop(std::uint32_t slots) noexcept { head_ += slots; }

private:
    std::uint64_t head_ = 0;
    std::uint64_t tail_ = 0;
    std::uint32_t mask_ = 0;
    OwnLines<WorkRequest> lines_;
    OwnLines<WorkerSession*> sessions_;
};

}  // namespace pollcore
