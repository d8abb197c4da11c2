// All limits of pollcore in one place, with the relations between them.
//
// These limits follow from the formats and tables of this library. A device has its own limits (DeviceLimits). The
// configuration has the limits that an operator sets.
#pragma once

#include <cstddef>
#include <cstdint>

namespace pollcore {

inline constexpr std::size_t kCacheLine = 64;

/// Queue pairs of one runtime. The index in a QpHandle is less than this.
inline constexpr std::uint32_t kQpsMax = 65536;
inline constexpr std::uint32_t kQpsDefault = 1024;

/// Address handles of one runtime. The index in an AhHandle is less than this.
inline constexpr std::uint32_t kAhsMax = 65536;

/// Shared receive queues of one runtime. The memory block of each session has a record for each of them.
inline constexpr std::uint32_t kSrqsMax = 256;

/// Receive pools of one runtime; buffers of one pool; bytes of one buffer.
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

/// Outstanding work requests of one send or one receive queue. The wr_id has 24 bits for the position of an in-flight
/// entry, and no two entries in flight may have the same position (D19).
inline constexpr std::uint32_t kQueueDepthMax = 1u << 16;
static_assert(kQueueDepthMax <= (1u << 24) / 2, "a position in flight must be unambiguous");

/// Objects of each kind that attached processes may have together: memory regions, memory windows, address handles,
/// protection domains.
inline constexpr std::uint32_t kObjectsMax = 65536;
/// Memory windows of one runtime, and regions that windows may be bound to. The index in a MwHandle or MrHandle is less
/// than this.
inline constexpr std::uint32_t kMemoryWindowsMax = kObjectsMax;
inline constexpr std::uint32_t kBindableRegionsMax = kObjectsMax;

/// Scatter/gather elements of one work request (WorkRequest::num_sge).
inline constexpr std::uint32_t kSgesMax = 32;

/// Inline bytes of one work request. A device may allow fewer.
inline constexpr std::uint32_t kInlineMax = 1024;

/// The largest burst that a configuration may set for one step of a worker: slots taken from one session, work requests
/// posted to one queue pair, or work completions taken from one CQ.
inline constexpr std::uint32_t kBurstMax = 256;
inline constexpr std::uint32_t kBurstDefault = 32;

/// Entries of a CQ that a configuration may ask for. The device has its own limit (max_cqe).
inline constexpr std::uint32_t kCqDepthMin = 16;
inline constexpr std::uint32_t kCqDepthMax = 1u << 22;

/// Connection requests that may wait at a listener. Further requests are rejected (ControlCounters::requests_refused).
inline constexpr std::size_t kListenerBacklogMax = 128;

/// Asynchronous events that may wait for the application. Further events are dropped and counted (Event::lost_after).
inline constexpr std::size_t kEventsMax = 1024;

/// Characters of a name: in the configuration, and of a session or a queue pair. The kernel has the same limit for
/// device names (IBV_SYSFS_NAME_MAX - 1).
inline constexpr std::size_t kNameLengthMax = 63;

/// Lines of the log that may wait until they are written, or taken by a function of the program. Further lines are lost
/// and counted (log_lines_lost).
inline constexpr std::size_t kLogLinesMax = 1024;

/// Cache lines of a write ring.
inline constexpr std::uint32_t kRingLinesMin = 64;
inline constexpr std::uint32_t kRingLinesMax = 1u << 24;
/// Bytes that the runtime writes behind a message in a write ring. They fill the end of the message's last cache line.
inline constexpr std::uint32_t kRecordTail = 24;
/// A message of `length` bytes takes record_lines() cache lines of a write ring. Only the last record_bytes() bytes of
/// these lines are written.
[[nodiscard]] constexpr std::uint32_t record_bytes(std::uint32_t length) noexcept {
    return (length + 7) / 8 * 8 + kRecordTail;
}
[[nodiscard]] constexpr std::uint32_t record_lines(std::uint32_t length) noexcept {
    return (length + kRecordTail + kCacheLine - 1) / kCacheLine;
}

/// Limits of ReceivePoolOptions::first_byte and stride, and the page from which first_byte counts. All in bytes.
inline constexpr std::uint32_t kPoolFirstByteMax = 1u << 20;
inline constexpr std::uint32_t kPoolStrideMax = 1u << 31;
inline constexpr std::uint32_t kPoolPage = 4096;

/// Private data that a user may send along with a connection. With rdma_cm over RoCE, there are 56 bytes in a request,
/// 196 in a reply and 148 in a rejection (rdma_connect(3)). Four of these bytes hold the true length of the data,
/// because the network may pad the data with zeros. With flow control, twelve more bytes of a request or a reply hold
/// the address and the remote key of the control block.
inline constexpr std::size_t kPrivateDataHeader = 4;
inline constexpr std::size_t kPrivateDataFlow = 12;
static_assert(kPrivateDataHeader + kPrivateDataFlow <= 24);
inline constexpr std::size_t kRequestPrivateDataMax = 56 - kPrivateDataHeader;
inline constexpr std::size_t kReplyPrivateDataMax = 196 - kPrivateDataHeader;
inline constexpr std::size_t kRejectPrivateDataMax = 148 - kPrivateDataHeader;
/// Private data in the form PrivateDataForm::raw: the limits, and the number of bytes that arrive.
inline constexpr std::size_t kRawRequestPrivateDataMax = 56;
inline constexpr std::size_t kRawReplyPrivateDataMax = 196;
inline constexpr std::size_t kRawRejectPrivateDataMax = 148;

}  // namespace pollcore
