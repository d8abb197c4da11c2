// A shared receive queue: receives that several queue pairs take as their messages come.
//
// Thread safety: control calls; from any thread.
//
// The queue belongs to one session, which submits its receives, as Opcode::srq_recv with WorkRequest::srq, and gets all
// their completions. Completion::qp says which queue pair took the receive, and Completion::srq names the queue.
// Receives are taken in the order of submission and complete in any order.
//
// Who owns a buffer: the application before the receive is accepted and after its completion. A receive that no message
// took stays in the queue when queue pairs are closed or fail, and completes with Status::srq_closed when the queue is
// closed. A receive that a queue pair had taken completes when that queue pair fails. When the device is lost, all
// complete with Status::device_removed; the queue then takes no more receives (stale_handle) and can only be closed.
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

/// What a shared receive queue is made with.
struct SharedReceiveQueueOptions {
    std::string device{};                  ///< name from the configuration; empty: the only one
    const ProtectionDomain* pd = nullptr;  ///< protection domain of its buffers; null: the device's default
    Session* session = nullptr;            ///< submits the receives and gets all their completions
    std::uint32_t depth = 256;             ///< receives in flight, on all queue pairs together
    std::uint32_t sges_max = 1;            ///< SGEs of each receive
    const ReceivePool* pool = nullptr;     ///< the pool that posts the receives; null: the session posts them
    std::uint32_t pool_share = 0;          ///< as QueuePairOptions::pool_share; 0: twice the depth
    /// How many queue pairs with FlowControl::credits may use it at a time. Each is granted at most an equal part of
    /// the depth, so that an idle peer keeps no receive from the others. If this is not 0, all its queue pairs must
    /// have credits; if it is 0, none may.
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

    /// The device raises IBV_EVENT_SRQ_LIMIT_REACHED once, when fewer than `limit` receives are left that no message
    /// has taken; Context::next_event tells of it. 0 disarms it.
    void arm_limit(std::uint32_t limit);
    /// The armed limit; 0 when none is armed, or when it was reached.
    [[nodiscard]] std::uint32_t limit() const;

    /// Ends the queue: receives that are left complete with Status::srq_closed. Throws Error(EBUSY), and changes
    /// nothing, while queue pairs use it. Closing its session closes the queue and its queue pairs. The destructor
    /// closes, too, but leaves a queue in use to its session.
    void close();

private:
    std::shared_ptr<ControlSide> control_;
    SrqHandle handle_{};
};

}  // namespace pollcore
