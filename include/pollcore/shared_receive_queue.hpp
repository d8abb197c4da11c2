// A shared receive queue holds receives for several queue pairs. Each message of these queue pairs takes a receive from
// it.
//
// Thread safety: any thread may make any call. No other call may be made during close().
//
// The queue belongs to one session. Without a pool, this session submits the receives, as Opcode::srq_recv with
// WorkRequest::srq. It gets all completions of receives. Completion::qp names the queue pair that took the receive, and
// Completion::srq names the queue. Receives are taken in the order of submission and complete in any order.
//
// Who owns a buffer: without a pool, the application owns it before the receive is accepted and after its completion.
// If queue pairs are closed or fail, a receive that no message took stays in the queue. It completes with
// Status::srq_closed when the queue is closed. A receive that a message had taken
// completes when the message's queue pair fails or is closed. When the device is lost, all receives complete with
// Status::device_removed. The queue then takes no more receives (stale_handle) and can only be closed.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "pollcore/export.h"
#include "pollcore/handle.hpp"

namespace pollcore {

class ProtectionDomain;
class ReceivePool;
class ControlSide;
class Session;

/// The options of a shared receive queue.
struct SharedReceiveQueueOptions {
    std::string device{};                  ///< name from the configuration; empty: the only device
    const ProtectionDomain* pd = nullptr;  ///< protection domain of the buffers; null: the device's default domain
    Session* session = nullptr;            ///< submits the receives (without a pool), and gets all their completions
    std::uint32_t depth = 256;             ///< receives in flight, on all queue pairs together
    std::uint32_t sges_max = 1;            ///< SGEs of each receive
    const ReceivePool* pool = nullptr;     ///< the pool that posts the receives; null: the session posts them
    std::uint32_t pool_share = 0;          ///< as QueuePairOptions::pool_share; 0: twice the depth
    /// How many queue pairs with FlowControl::credits may use this queue at a time. Each peer is granted at most an
    /// equal part of the depth, so that an idle peer does not hold receives that other peers need. If this number is
    /// not 0, all queue pairs of this queue must have credits. If it is 0, none may have credits.
    std::uint32_t credit_connections = 0;
};

/// A shared receive queue. Move-only. QueuePairOptions::srq names it.
class POLLCORE_API SharedReceiveQueue {
public:
    SharedReceiveQueue() = default;
    /// Made by Context.
    POLLCORE_INTERNAL SharedReceiveQueue(std::shared_ptr<ControlSide> control, SrqHandle handle) noexcept;
    ~SharedReceiveQueue();
    SharedReceiveQueue(SharedReceiveQueue&& other) noexcept;
    SharedReceiveQueue& operator=(SharedReceiveQueue&& other) noexcept;

    /// Goes into WorkRequest::srq.
    [[nodiscard]] SrqHandle handle() const noexcept { return handle_; }
    [[nodiscard]] bool valid() const noexcept { return control_ != nullptr; }

    /// Asks the device for one event, IBV_EVENT_SRQ_LIMIT_REACHED, when fewer than `limit` receives are left that no
    /// message has taken. Context::next_event returns the event. 0 disarms the limit.
    void arm_limit(std::uint32_t limit);
    /// The armed limit; 0 if no limit is armed, or if the limit was reached.
    [[nodiscard]] std::uint32_t limit() const;

    /// Closes the queue: receives that no message took complete with Status::srq_closed. Throws Error(EBUSY), and
    /// changes nothing, while queue pairs use the queue. Closing the session closes its shared receive queues and their
    /// queue pairs, too. The destructor closes the queue, too. If queue pairs still use the queue, it stays until its
    /// session is closed.
    void close();

private:
    std::shared_ptr<ControlSide> control_;
    SrqHandle handle_{};
};

}  // namespace pollcore
