// What is particular to a kind of flow control where queue pairs are made. Each kind has a row in
// pollcore/flow_control.h and defines its FlowKind beside its class; nothing else asks which kind it is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "peer/control_block.hpp"
#include "pollcore/flow_control.hpp"
#include "pollcore/queue_pair.hpp"
#include "worker/flow.hpp"
#include "worker/waiting_requests.hpp"

namespace pollcore {

class BufferPool;
class RingPool;
class SharedGrants;
class WorkerQp;

/// What one end of a connection with flow control is made of. What it points to outlives it.
struct FlowParts {
    ControlBlock* block = nullptr;  ///< registered for the peer to write
    std::uint32_t block_lkey = 0;
    FlowTerms
        terms;  ///< what FlowKind::terms said; into the block only when they are sent, since a peer can write there
    std::uint32_t counts_from = 0;  ///< with which its counts begin, and its peer's
    WaitingRequests waiting;

    std::uint32_t receives = 0;      ///< that its own receive queue has at a time
    std::uint32_t message_max = 0;   ///< the longest message that they take
    SharedGrants* grants = nullptr;  ///< it takes its receives from a shared receive queue
    BufferPool* rendezvous = nullptr;
    std::uint32_t rendezvous_buffers = 0;
    RingPool* ring = nullptr;  ///< its messages arrive there

    /// FlowKind::entry_bytes for each place of the send queue: registered, for the device to read.
    std::byte* entries = nullptr;
    std::uint32_t entry_count = 0;  ///< a power of two
    std::uint32_t entries_lkey = 0;
};

struct FlowKind {
    // ---- What a queue pair needs for it, beside what its sessions do ----

    std::uint32_t send_entries = 0;  ///< places in the send queue and its CQ
    std::uint32_t sges = 0;          ///< of each send
    /// Bytes of inline data that it takes to send as many.
    std::uint32_t (*inline_bytes)(std::uint32_t length) = [](std::uint32_t length) { return length; };
    std::uint32_t entry_bytes = 0;
    RemoteAccess access{};   ///< of the peer
    OpcodeMask without = 0;  ///< what its sessions cannot submit

    // ---- What it can do, and what it cannot do without ----

    bool needs_receives = false;  ///< a queue pair takes receives of its own, or of a shared receive queue
    bool shares_receives =
        false;  ///< with a shared receive queue that has SharedReceiveQueueOptions::credit_connections
    std::uint32_t rendezvous_reads = 0;  ///< at a time; 0: QueuePairOptions::rendezvous_pool is of no use

    // ---- Its end ----

    FlowTerms (*terms)(const FlowParts& parts) = [](const FlowParts&) { return FlowTerms{}; };
    std::unique_ptr<Flow> (*make)(WorkerQp& qp,
                                  FlowParts& parts) = nullptr;  ///< null: no flow control. Takes parts.waiting
};

namespace flow_kinds {
#define POLLCORE_ROW(name, NAME, arrival, text) extern const FlowKind name;
POLLCORE_FLOW_CONTROLS(POLLCORE_ROW)
#undef POLLCORE_ROW
}  // namespace flow_kinds

/// `kind` is known.
[[nodiscard]] const FlowKind& flow_kind(FlowControl kind) noexcept;

}  // namespace pollcore
