// The properties of each kind of flow control, for the code that makes queue pairs. Each kind has a row in
// pollcore/flow_control.h, and defines its FlowKind in the source file of its class. Other code only asks whether a
// queue pair has flow control, and where its messages arrive.
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

/// The parts from which the flow control of one end of a connection is made. The objects behind the pointers outlive
/// the flow control.
struct FlowParts {
    ControlBlock* block = nullptr;  ///< this end's control block, in memory that the peer may write
    std::uint32_t block_lkey = 0;
    /// This end's terms, from FlowKind::terms. They are copied into the block only when they are sent, because until
    /// then the peer could overwrite them.
    FlowTerms terms;
    std::uint32_t counts_from = 0;  ///< number from which both ends count grants and messages
    WaitingRequests waiting;

    std::uint32_t receives = 0;      ///< receives that the queue pair's own receive queue holds at a time
    std::uint32_t message_max = 0;   ///< longest message that fits the receives
    SharedGrants* grants = nullptr;  ///< set if the queue pair takes its receives from a shared receive queue
    BufferPool* rendezvous = nullptr;
    std::uint32_t rendezvous_buffers = 0;
    RingPool* ring = nullptr;  ///< holds the ring in which the peer's messages arrive; null: there is no ring

    /// Registered memory that the device reads: FlowKind::entry_bytes for each place in the send queue.
    std::byte* entries = nullptr;
    std::uint32_t entry_count = 0;  ///< a power of two
    std::uint32_t entries_lkey = 0;
};

struct FlowKind {
    // ---- What a queue pair needs for this kind, beside what its sessions need ----

    std::uint32_t send_entries = 0;  ///< extra places in the send queue and in its CQ
    std::uint32_t sges = 0;          ///< extra SGEs of each send
    /// Bytes of inline data that a work request needs for an inline payload of `length` bytes.
    std::uint32_t (*inline_bytes)(std::uint32_t length) = [](std::uint32_t length) { return length; };
    std::uint32_t entry_bytes = 0;
    RemoteAccess access{};   ///< access that the peer needs to our memory
    OpcodeMask without = 0;  ///< opcodes that sessions cannot submit to the queue pair

    // ---- What the kind can do, and what it requires ----

    bool needs_receives = false;  ///< the queue pair must have receives: its own, or those of a shared receive queue
    /// Whether the kind works with a shared receive queue that has SharedReceiveQueueOptions::credit_connections.
    bool shares_receives = false;
    /// Announced messages that are read at a time; 0 means that QueuePairOptions::rendezvous_pool cannot be used.
    std::uint32_t rendezvous_reads = 0;

    // ---- Making one end of a connection ----

    FlowTerms (*terms)(const FlowParts& parts) = [](const FlowParts&) { return FlowTerms{}; };
    /// Makes the Flow of a queue pair, and moves parts.waiting into it. Null if this kind is no flow control.
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
