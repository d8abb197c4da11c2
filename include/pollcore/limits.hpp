// All limits of pollcore in one place, with the relations between them.
//
// A limit here is a property of the formats and tables of this library. The device says what it can do (DeviceLimits);
// the configuration says what an operator allows.
#pragma once

#include <cstddef>
#include <cstdint>

namespace pollcore {

inline constexpr std::size_t kCacheLine = 64;

/// Queue pairs of one runtime: the index part of a QpHandle.
inline constexpr std::uint32_t kQpsMax = 65536;
inline constexpr std::uint32_t kQpsDefault = 1024;

/// Address handles of one runtime: the index part of an AhHandle.
inline constexpr std::uint32_t kAhsMax = 65536;

/// Shared receive queues of one runtime: each session has a record of every one.
inline constexpr std::uint32_t kSrqsMax = 256;

/// Receive pools of one runtime, and buffers of one of them.
inline constexpr std::uint32_t kReceivePoolsMax = 256;
inline constexpr std::uint32_t kPoolBuffersMax = 1u << 20;
inline constexpr std::uint32_t kPoolBufferBytesMax = 1u << 30;

/// Sessions of one worker. An in-flight entry names its session in 16 bits.
inline constexpr std::uint32_t kSessionsPerWorkerMax = 1024;

/// Processes that are attached to one runtime.
inline constexpr std::uint32_t kAttachedMax = 1024;

/// Listeners of all attached processes of one runtime.
inline constexpr std::uint32_t kListenersMax = 1024;

/// Sessions that post to one queue pair.
inline constexpr std::uint32_t kQpSharesMax = 64;

/// Workers and devices of one runtime.
inline constexpr std::uint32_t kWorkersMax = 128;
inline constexpr std::uint32_t kDevicesMax = 16;

/// Slots of a ring, a power of two.
inline constexpr std::uint32_t kRingSlotsMax = 1u << 20;

/// Outstanding work requests of one send or one receive queue. The position of an in-flight entry
/// travels in the wr_id in 24 bits; no two entries in flight may have the same position (D19).
inline constexpr std::uint32_t kQueueDepthMax = 1u << 16;
static_assert(kQueueDepthMax <= (1u << 24) / 2, "a position in flight must be unambiguous");

/// Objects of each kind that attached processes may have together: memory regions, memory windows, address handles,
/// protection domains.
inline constexpr std::uint32_t kObjectsMax = 65536;
/// Memory windows of one runtime, and regions that windows may be bound to: the index parts of their handles.
inline constexpr std::uint32_t kMemoryWindowsMax = kObjectsMax;
inline constexpr std::uint32_t kBindableRegionsMax = kObjectsMax;

/// Scatter/gather elements of one work request (WorkRequest::num_sge).
inline constexpr std::uint32_t kSgesMax = 32;

/// Inline bytes of one work request. A device may allow fewer.
inline constexpr std::uint32_t kInlineMax = 1024;

/// Work requests or completions that one drain of a step may take.
inline constexpr std::uint32_t kBurstMax = 256;
inline constexpr std::uint32_t kBurstDefault = 32;

/// Entries that a configuration may ask of a CQ. The device says how many it really has (max_cqe).
inline constexpr std::uint32_t kCqDepthMin = 16;
inline constexpr std::uint32_t kCqDepthMax = 1u << 22;

/// Connection requests that wait at a listener; those beyond are rejected (ControlCounters::requests_refused).
inline constexpr std::size_t kListenerBacklogMax = 128;

/// Asynchronous events that wait for the application. Those that find no room are counted (Event::lost_after).
inline constexpr std::size_t kEventsMax = 1024;

/// Characters of a name in the configuration. The kernel's device names have as many (IBV_SYSFS_NAME_MAX - 1).
inline constexpr std::size_t kNameLengthMax = 63;

/// Lines of a write ring.
inline constexpr std::uint32_t kRingLinesMin = 64;
inline constexpr std::uint32_t kRingLinesMax = 1u << 24;
/// Bytes that follow a message in a write ring, at the end of its last line.
inline constexpr std::uint32_t kRecordTail = 24;
/// A message of `length` bytes is written to a write ring as record_bytes(), at the end of record_lines() cache lines.
[[nodiscard]] constexpr std::uint32_t record_bytes(std::uint32_t length) noexcept {
    return (length + 7) / 8 * 8 + kRecordTail;
}
[[nodiscard]] constexpr std::uint32_t record_lines(std::uint32_t length) noexcept {
    return (length + kRecordTail + kCacheLine - 1) / kCacheLine;
}

/// Private data that a user may send along with a connection. rdma_cm over RoCE carries 56 bytes in
/// a request, 196 in a reply and 148 in a rejection (rdma_connect(3)). Four of them hold the true length, since the
/// network may pad the data with zeros. With flow control, twelve more hold the place of the control block.
inline constexpr std::size_t kPrivateDataHeader = 4;
inline constexpr std::size_t kPrivateDataFlow = 12;
static_assert(kPrivateDataHeader + kPrivateDataFlow <= 24);
inline constexpr std::size_t kRequestPrivateDataMax = 56 - kPrivateDataHeader;
inline constexpr std::size_t kReplyPrivateDataMax = 196 - kPrivateDataHeader;
inline constexpr std::size_t kRejectPrivateDataMax = 148 - kPrivateDataHeader;

}  // namespace pollcore
