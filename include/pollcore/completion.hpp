// The completion: 32 bytes, two to a cache line, that a worker writes into a session's completion ring; or, by the
// session's choice, 64 bytes that also say where a datagram came from.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <type_traits>

#include "pollcore/export.h"
#include "pollcore/handle.hpp"
#include "pollcore/work_request.hpp"

namespace pollcore {

/// How a work request ended. Values below 128 are those of `enum ibv_wc_status`, by the same names
/// (ibv_poll_cq(3)); from 128 on the runtime's own, given to work that no device completed.
enum class Status : std::uint8_t {
    success = 0,
    loc_len_err = 1,
    loc_qp_op_err = 2,
    loc_eec_op_err = 3,
    loc_prot_err = 4,
    wr_flush_err = 5,
    mw_bind_err = 6,
    bad_resp_err = 7,
    loc_access_err = 8,
    rem_inv_req_err = 9,
    rem_access_err = 10,
    rem_op_err = 11,
    retry_exc_err = 12,
    rnr_retry_exc_err = 13,
    loc_rdd_viol_err = 14,
    rem_inv_rd_req_err = 15,
    rem_abort_err = 16,
    inv_eecn_err = 17,
    inv_eec_state_err = 18,
    fatal_err = 19,
    resp_timeout_err = 20,
    general_err = 21,
    tm_err = 22,
    tm_rndv_incomplete = 23,

    post_refused = 128,     ///< the provider took no such work: ibv_post_send or ibv_post_recv failed
    request_refused = 129,  ///< the worker's own check refused it: stale or foreign handle, bad opcode, a limit
    qp_closed = 130,        ///< the queue pair was closed before the device completed the work
    session_closed = 131,
    device_removed = 132,
    daemon_gone = 133,
    srq_closed = 134,        ///< the shared receive queue was closed before a message took the receive
    flow_violation = 135,    ///< the peer's announcement of its receives is impossible: see FlowControl
    message_too_long = 136,  ///< longer than the peer's receives; nothing was sent, and the queue pair goes on
};

/// The verbs' name, such as "IBV_WC_WR_FLUSH_ERR"; the runtime's own begin with "POLLCORE_".
[[nodiscard]] POLLCORE_API std::string_view status_name(Status status) noexcept;
/// One sentence in words.
[[nodiscard]] POLLCORE_API std::string_view status_text(Status status) noexcept;

/// What completed. Values of `enum ibv_wc_opcode`; valid on errors too, since the runtime knows what
/// was posted (the device's own opcode is not read from a failed completion).
enum class CompletionOpcode : std::uint8_t {
    send = 0,
    rdma_write = 1,
    rdma_read = 2,
    comp_swap = 3,
    fetch_add = 4,
    bind_mw = 5,
    local_inv = 6,
    recv = 128,
    recv_rdma_with_imm = 129,
};

/// Bits of Completion::flags.
enum CompletionFlag : std::uint8_t {
    kWithImm = 1 << 0,    ///< imm_data is valid
    kWithGrh = 1 << 1,    ///< the first kGrhBytes of the buffer hold a GRH (UD)
    kByRuntime = 1 << 2,  ///< made by the runtime: no device completed this work
    kFromRecvQueue = 1 << 3,
    kWithInv = 1 << 4,    ///< a receive whose message ended the binding of the window with key `invalidated_rkey`
    kDatagram = 1 << 5,   ///< received by a UD queue pair: the payload begins at byte kGrhBytes, GRH or not
    kPooled = 1 << 6,     ///< pool() and buffer() say where the message is; Session::release gives the buffer back
    kNotInLine = 1 << 7,  ///< internal: the request was marked for an answer in its own line. poll() clears it
};

/// The tag of a completion that names a buffer of a receive pool.
[[nodiscard]] constexpr std::uint64_t pool_tag(PoolHandle pool, std::uint32_t buffer) noexcept {
    return std::uint64_t{pool.index} << 48 | std::uint64_t{pool.generation} << 32 | buffer;
}

/// Bytes before the payload of each datagram in its receive's buffer (ibv_create_ah_from_wc(3)).
inline constexpr std::uint32_t kGrhBytes = 40;

/// One completion, as Session::poll gives it.
struct alignas(32) Completion {
    std::uint64_t tag = 0;  ///< WorkRequest::tag; with kPooled the pool and the buffer: see pool_tag()
    QpHandle qp{};          ///< the queue pair; none for a receive of a shared receive queue that no message took
    /// Bytes placed in memory by a receive, read or atomic that succeeded; else 0. As in verbs, a datagram's count
    /// includes the kGrhBytes before its payload: see payload_length().
    std::uint32_t byte_len = 0;
    union {
        std::uint32_t imm_data = 0;      ///< with kWithImm: the peer's number, in host order
        std::uint32_t vendor_err;        ///< on failure: the device's own code
        std::uint32_t invalidated_rkey;  ///< with kWithInv
        std::uint32_t window_rkey;       ///< bind_mw that succeeded: the key that peers use from now on
    };
    SrqHandle srq{};  ///< receives: the shared receive queue that the request was submitted to, if any
    Status status = Status::success;
    CompletionOpcode opcode = CompletionOpcode::send;
    std::uint8_t flags = 0;           ///< CompletionFlag bits
    std::uint8_t sampled_at[4] = {};  ///< internal: low half of a clock in sampled requests, for stage latency
    std::uint8_t ring_lap = 0;        ///< internal: written by the ring

    [[nodiscard]] constexpr bool ok() const noexcept { return status == Status::success; }
    [[nodiscard]] constexpr bool pooled() const noexcept { return (flags & kPooled) != 0; }
    /// The pool. Valid with kPooled, whatever the status.
    [[nodiscard]] constexpr PoolHandle pool() const noexcept {
        return {static_cast<std::uint16_t>(tag >> 48), static_cast<std::uint16_t>(tag >> 32)};
    }
    /// The buffer's index in pool(). Valid with kPooled, whatever the status.
    [[nodiscard]] constexpr std::uint32_t buffer() const noexcept { return static_cast<std::uint32_t>(tag); }
    [[nodiscard]] constexpr bool from_recv_queue() const noexcept { return (flags & kFromRecvQueue) != 0; }
    /// For a successful receive: where the message begins in its buffer; payload_length() is its length. In bytes.
    [[nodiscard]] constexpr std::uint32_t payload_offset() const noexcept {
        return (flags & kDatagram) != 0 ? kGrhBytes : 0;
    }
    [[nodiscard]] constexpr std::uint32_t payload_length() const noexcept { return byte_len - payload_offset(); }
};

static_assert(std::is_trivially_copyable_v<Completion> && std::is_standard_layout_v<Completion>);
static_assert(sizeof(Completion) == 32);
static_assert(offsetof(Completion, qp) == 8 && offsetof(Completion, byte_len) == 12);
static_assert(offsetof(Completion, imm_data) == 16 && offsetof(Completion, srq) == 20);
static_assert(offsetof(Completion, status) == 24 && offsetof(Completion, sampled_at) == 27);
static_assert(offsetof(Completion, ring_lap) == 31);

/// The second half of a WideCompletion. For a received datagram it says where the datagram came from, as `struct
/// ibv_wc` does; for anything else, and on failure, those fields are 0.
struct alignas(32) CompletionExtension {
    /// With SessionOptions::device_time: the device's completion time (ibv_wc_read_completion_ts), in ticks of its
    /// clock. DeviceReport says how long a tick is and which bits count. 0 on failure, since the device then gives no
    /// time; for messages by write ring, and by rendezvous at both ends, since the runtime completes them itself; and
    /// in sessions that did not ask. With QueuePairOptions::coalesce_signals a request has the time of the request
    /// whose CQE it shares, hence 0 if that one failed.
    std::uint64_t device_time = 0;
    std::uint32_t reserved = 0;
    std::uint32_t src_qp = 0;  ///< the sender's QP number
    std::uint16_t slid = 0;    ///< the sender's LID; 0 on RoCE
    std::uint16_t pkey_index = 0;
    std::uint8_t sl = 0;  ///< service level
    std::uint8_t dlid_path_bits = 0;
    std::uint8_t reserved_more[9] = {};
    std::uint8_t more_ring_lap = 0;  ///< internal: written by the ring
};
static_assert(std::is_trivially_copyable_v<CompletionExtension> && std::is_standard_layout_v<CompletionExtension>);
static_assert(sizeof(CompletionExtension) == sizeof(Completion));
static_assert(offsetof(CompletionExtension, src_qp) == 12 && offsetof(CompletionExtension, sl) == 20);
static_assert(offsetof(CompletionExtension, more_ring_lap) == 31);

/// 64 bytes, two slots of the ring: for sessions opened with SessionOptions::wide_completions.
struct alignas(64) WideCompletion : Completion, CompletionExtension {};
static_assert(sizeof(WideCompletion) == 64);

}  // namespace pollcore
