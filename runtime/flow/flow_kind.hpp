// The properties of a kind of flow control, for the code that makes queue pairs. Each kind has a row in
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

/// The parts of one end of a connection with flow control. The objects that it points to outlive it.
struct FlowParts {
    ControlBlock* block = nullptr;  ///< registered for the peer to write
    std::uint32_t block_lkey = 0;
    /// The terms of FlowKind::terms. They go into the block only when they are sent, since a peer can write there.
    FlowTerms terms;
    std::uint32_t counts_from = 0;  ///< number with which its counts, and its peer's, begin
    WaitingRequests waiting;

    std::uint32_t receives = 0;      ///< receives that its own receive queue has at a time
    std::uint32_t message_max = 0;   ///< the longest message that the receives take
    SharedGrants* grants = nullptr;  ///< not null: it takes its receives from a shared receive queue
    BufferPool* rendezvous = nullptr;
    std::uint32_t rendezvous_buffers = 0;
    RingPool* ring = nullptr;  ///< its messages arrive there

    /// FlowKind::entry_bytes for each place of the send queue: registered, for the device to read.
    std::byte* entries = nullptr;
    std::uint32_t entry_count = 0;  ///< a power of two
    std::uint32_t entries_lkey = 0;
};

struct FlowKind {
    // ---- What a queue pair needs for it, beside the needs of its sessions ----

    std::uint32_t send_entries = 0;  ///< places in the send queue and its CQ
    std::uint32_t sges = 0;          ///< more SGEs for each send
    /// Bytes of inline data that an inline payload of `length` takes.
    std::uint32_t (*inline_bytes)(std::uint32_t length) = [](std::uint32_t length) { return length; };
    std::uint32_t entry_bytes = 0;
    RemoteAccess access{};   ///< access that the peer needs to our memory
    OpcodeMask without = 0;  ///< opcodes that its sessions cannot submit

    // ---- What it can do, and what it cannot do without ----

    bool needs_receives = false;  ///< a queue pair must have receives, its own or a shared receive queue's
    /// It works with a shared receive queue that has SharedReceiveQueueOptions::credit_connections.
    bool shares_receives = false;
    std::uint32_t rendezvous_reads = 0;  ///< at a time; 0: QueuePairOptions::rendezvous_pool is of no use

    // ---- Its end ----

    FlowTerms (*terms)(const FlowParts& parts) = [](const FlowParts&) { return FlowTerms{}; };
    /// Takes parts.waiting. Null: no flow control.
    std::unique_ptr<Flow> (*make)(WorkerQp& qp, FlowParts& parts) = nullptr;
};

namespace flow_kinds {
#define POLLCORE_ROW(name, NAME, arrival, text) extern const FlowKind name;
POLLCORE_FLOW_CONTROLS(POLLCORE_ROW)
#undef POLLCORE_ROW
}  // namespace flow_kinds

/// `kind` must be one of the known kinds.
[[nodiscard]] const FlowKind& flow_kind(FlowControl kind) noexcept;

}  // namespace pollcore
