// A completion, which a worker writes into a session's completion ring. It takes 32 bytes, so a cache line holds two.
// In a session with wide completions it takes 64 bytes, which also tell where a datagram came from.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <type_traits>

#include "pollcore/export.h"
#include "pollcore/handle.hpp"
#include "pollcore/work_request.hpp"

namespace pollcore {

/// How a work request ended. Values below 128 are those of `enum ibv_wc_status`, by the same names (ibv_poll_cq(3)).
/// Values from 128 on are the runtime's own, for work requests that no device completed.
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

    post_refused = 128,     ///< the provider refused the request: ibv_post_send or ibv_post_recv failed
    request_refused = 129,  ///< refused by the worker's own check: stale or foreign handle, bad opcode, a limit
    qp_closed = 130,        ///< the queue pair was closed before the device completed the request
    session_closed = 131,
    device_removed = 132,
    daemon_gone = 133,
    srq_closed = 134,        ///< the shared receive queue was closed before a message took the receive
    flow_violation = 135,    ///< the peer broke the rules of flow control (flow_control.h)
    message_too_long = 136,  ///< longer than the peer's receives; nothing was sent, and the queue pair still works
};

/// The verbs' name of a status, such as "IBV_WC_WR_FLUSH_ERR". Names of the runtime's own statuses begin with
/// "POLLCORE_".
[[nodiscard]] POLLCORE_API std::string_view status_name(Status status) noexcept;
/// A sentence that describes a status.
[[nodiscard]] POLLCORE_API std::string_view status_text(Status status) noexcept;

/// The operation that completed, as a value of `enum ibv_wc_opcode`. Valid also when the request failed: the runtime
/// takes the operation from the request, because a failed work completion has no valid opcode.
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
    kByRuntime = 1 << 2,  ///< made by the runtime: no device completed this request
    kFromRecvQueue = 1 << 3,
    kWithInv = 1 << 4,    ///< the message ended the binding of the memory window with key `invalidated_rkey`
    kDatagram = 1 << 5,   ///< received by a UD queue pair: the payload begins at byte kGrhBytes, even without a GRH
    kPooled = 1 << 6,     ///< the message is in buffer() of pool(); Session::release gives the buffer back
    kNotInLine = 1 << 7,  ///< internal, cleared by poll(): this answer did not come in its request's line (D50)
};

/// The tag of a completion that names a buffer of a receive pool.
[[nodiscard]] constexpr std::uint64_t pool_tag(PoolHandle pool, std::uint32_t buffer) noexcept {
    return std::uint64_t{pool.index} << 48 | std::uint64_t{pool.generation} << 32 | buffer;
}

/// Bytes before the payload of a datagram in the receive buffer (ibv_create_ah_from_wc(3)).
inline constexpr std::uint32_t kGrhBytes = 40;

/// One completion, as Session::poll returns it.
struct alignas(32) Completion {
    std::uint64_t tag = 0;  ///< WorkRequest::tag; with kPooled the pool and the buffer: see pool_tag()
    QpHandle qp{};          ///< the queue pair; invalid if no message took this receive of a shared receive queue
    /// Bytes that a successful receive, read or atomic placed in memory; 0 in other completions. As in verbs, the count
    /// for a datagram includes the kGrhBytes before the payload: see payload_length().
    std::uint32_t byte_len = 0;
    union {
        std::uint32_t imm_data = 0;      ///< with kWithImm: the peer's number, in host order
        std::uint32_t vendor_err;        ///< on failure: the device's own code
        std::uint32_t invalidated_rkey;  ///< with kWithInv
        std::uint32_t window_rkey;       ///< successful bind_mw: the key that peers use from now on
    };
    SrqHandle srq{};  ///< receives: the shared receive queue that the request was submitted to, if any
    Status status = Status::success;
    CompletionOpcode opcode = CompletionOpcode::send;
    std::uint8_t flags = 0;           ///< CompletionFlag bits
    std::uint8_t sampled_at[4] = {};  ///< internal: low half of the clock, for stage latency; 0: not measured
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

/// The second half of a WideCompletion. For a successful receive of a datagram, the fields from src_qp to
/// dlid_path_bits tell where the datagram came from, as in `struct ibv_wc`. In all other completions these fields are
/// 0.
struct alignas(32) CompletionExtension {
    /// With SessionOptions::device_time: the device's completion time (ibv_wc_read_completion_ts), in ticks of the
    /// device's clock. DeviceReport tells how long a tick is and which bits count. The field is 0 in three cases: the
    /// session did not ask for it, the request failed, or the runtime completed the request itself. The runtime itself
    /// completes messages by rendezvous, at both ends, and messages that arrive in a write ring. With
    /// QueuePairOptions::coalesce_signals a request has the time of the request whose CQE it shares, and 0 if that
    /// request failed.
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

/// A completion of 64 bytes, which takes two slots of the ring. For sessions with SessionOptions::wide_completions.
struct alignas(64) WideCompletion : Completion, CompletionExtension {};
static_assert(sizeof(WideCompletion) == 64);

}  // namespace pollcore
