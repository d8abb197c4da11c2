// A shared receive queue: receives that several queue pairs take as their messages come.
//
// Thread safety: control calls; from any thread. Its receives are submitted by the one session that it belongs to, as
// Opcode::srq_recv with WorkRequest::srq, and all their completions come to that session, whichever queue pair took
// them. Each says by Completion::qp which one that was, and by Completion::srq where its buffer came from.
// Receives are taken in the order they were submitted and complete in any order.
//
// Who owns a buffer: the application before the receive is accepted and after its completion. A receive that no message
// took stays in the queue when queue pairs are closed or fail, and completes with Status::srq_closed when the queue is
// closed. One that a queue pair had taken completes as that queue pair fails. When the device is lost, all complete
// with Status::device_removed; the queue then takes no more receives (stale_handle) and can only be closed.
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

struct SharedReceiveQueueOptions {
    std::string device{};                  ///< name from the configuration; empty: the only one
    const ProtectionDomain* pd = nullptr;  ///< of its buffers; null: the device's default
    Session* session = nullptr;            ///< submits the receives and gets all their completions
    std::uint32_t depth = 256;             ///< receives in flight, on all queue pairs together
    std::uint32_t sges_max = 1;            ///< per receive
    const ReceivePool* pool = nullptr;     ///< posts the receives, and the session none. Null: the session does
    std::uint32_t pool_share = 0;          ///< as QueuePairOptions::pool_share; 0: twice the depth
    /// Queue pairs with FlowControl::credits that may use it at a time; each is granted an equal part of the depth at
    /// most, so that one that sends nothing keeps no receive from the others. Then all its queue pairs have credits. 0:
    /// none has.
    std::uint32_t credit_connections = 0;
};

/// Move-only. Named by QueuePairOptions::srq.
class POLLCORE_API SharedReceiveQueue {
public:
    SharedReceiveQueue() = default;
    /// By Context.
    POLLCORE_INTERNAL SharedReceiveQueue(std::shared_ptr<ControlSide> control, SrqHandle handle) noexcept;
    ~SharedReceiveQueue();
    SharedReceiveQueue(SharedReceiveQueue&& other) noexcept;
    SharedReceiveQueue& operator=(SharedReceiveQueue&& other) noexcept;

    /// What goes into WorkRequest::srq.
    [[nodiscard]] SrqHandle handle() const noexcept { return handle_; }
    [[nodiscard]] bool valid() const noexcept { return control_ != nullptr; }

    /// The device raises IBV_EVENT_SRQ_LIMIT_REACHED once, when fewer than `limit` receives are left that no message
    /// has taken; Context::next_event tells of it. 0 disarms it.
    void arm_limit(std::uint32_t limit);
    /// The limit as it is armed; 0 when it is not, or was reached.
    [[nodiscard]] std::uint32_t limit() const;

    /// Ends it: receives that are left complete with Status::srq_closed. Throws Error(EBUSY) while queue pairs use it;
    /// nothing has changed then. Closing its session closes it, with its queue pairs. The destructor closes too, but
    /// leaves a queue that is in use to its session.
    void close();

private:
    std::shared_ptr<ControlSide> control_;
    SrqHandle handle_{};
};

}  // namespace pollcore
