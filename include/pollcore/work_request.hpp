// The work request: one 64-byte line that an application writes into its submission ring.
//
// Different processes and compilers share the layout, so it is plain data, little endian, without padding. The last
// byte of every line belongs to the ring. Further SGEs, and an inline payload of more than kOwnPayload bytes, follow in
// continuation slots, which Session writes together with the request.
//
// A program's request with kInline says where its payload is. In the ring, the request has the payload itself.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

#include "pollcore/handle.hpp"
#include "pollcore/limits.hpp"

namespace pollcore {

/// The operation of a work request. Values for send queues are those of `enum ibv_wr_opcode` (ibv_post_send(3)).
enum class Opcode : std::uint8_t {
    rdma_write = 0,
    rdma_write_with_imm = 1,
    send = 2,
    send_with_imm = 3,
    rdma_read = 4,
    atomic_cmp_and_swp = 5,
    atomic_fetch_and_add = 6,
    local_inv = 7,      ///< ends the binding of a type 2 window
    bind_mw = 8,        ///< binds a memory window; see WindowBind
    send_with_inv = 9,  ///< a send that also ends the binding of one of the peer's windows
    recv = 128,         ///< a receive (ibv_post_recv(3))
    srq_recv = 129,  ///< a receive of a shared receive queue (ibv_post_srq_recv(3)), which WorkRequest::srq names (D20)
    release = 130,   ///< gives buffers back to a receive pool: see ReleaseRequest. Session::release submits it
};

[[nodiscard]] constexpr bool is_recv(Opcode opcode) noexcept {
    return opcode == Opcode::recv || opcode == Opcode::srq_recv;
}
[[nodiscard]] constexpr bool has_imm(Opcode opcode) noexcept {
    return opcode == Opcode::send_with_imm || opcode == Opcode::rdma_write_with_imm;
}
/// Whether the request's payload goes into a receive of the peer.
[[nodiscard]] constexpr bool is_send(Opcode opcode) noexcept {
    return opcode == Opcode::send || opcode == Opcode::send_with_imm || opcode == Opcode::send_with_inv;
}
/// Whether the request uses up a receive of the peer (ibv_post_send(3)).
[[nodiscard]] constexpr bool takes_receive(Opcode opcode) noexcept {
    return is_send(opcode) || opcode == Opcode::rdma_write_with_imm;
}
[[nodiscard]] constexpr bool is_atomic(Opcode opcode) noexcept {
    return opcode == Opcode::atomic_cmp_and_swp || opcode == Opcode::atomic_fetch_and_add;
}

/// A set of send-queue opcodes, with one bit for each value.
using OpcodeMask = std::uint16_t;
[[nodiscard]] constexpr OpcodeMask opcode_bit(Opcode opcode) noexcept {
    return static_cast<OpcodeMask>(1u << static_cast<unsigned>(opcode));
}
/// Whether `opcode` is in the mask. `opcode` may be any byte.
[[nodiscard]] constexpr bool allows(OpcodeMask opcodes, Opcode opcode) noexcept {
    const auto value = static_cast<unsigned>(opcode);
    return value < 16 && (opcodes >> value & 1) != 0;
}
/// Opcodes that may carry their payload inline.
inline constexpr OpcodeMask kInlineOpcodes = opcode_bit(Opcode::send) | opcode_bit(Opcode::send_with_imm) |
                                             opcode_bit(Opcode::rdma_write) | opcode_bit(Opcode::rdma_write_with_imm) |
                                             opcode_bit(Opcode::send_with_inv);
/// Whether the request changes only the keys of this side. Such a request has no SGE and sends nothing.
[[nodiscard]] constexpr bool is_local(Opcode opcode) noexcept {
    return opcode == Opcode::local_inv || opcode == Opcode::bind_mw;
}

/// Bits of WorkRequest::flags. The first four are those of `enum ibv_send_flags`.
enum SendFlag : std::uint8_t {
    kFence = 1 << 0,      ///< the request waits for earlier reads and atomics (IBV_SEND_FENCE)
    kSignaled = 1 << 1,   ///< the request has a completion also when it succeeds; else only when it fails
    kSolicited = 1 << 2,  ///< raises a solicited event at the receiver (IBV_SEND_SOLICITED)
    /// The call that takes the request copies the bytes of its SGE, so they need not be in registered memory, and are
    /// the program's again when the call returns (IBV_SEND_INLINE). See WorkRequest::with_inline.
    kInline = 1 << 3,
};

/// A range of registered memory, as `struct ibv_sge`.
struct Sge {
    std::uint64_t addr = 0;
    std::uint32_t length = 0;
    std::uint32_t lkey = 0;
};

/// A range of the peer's memory: its address at the peer, and the remote key that the peer has given away.
struct RemoteMemory {
    std::uint64_t addr = 0;
    std::uint32_t rkey = 0;
};

/// The destination of a datagram, together with WorkRequest::remote_qkey.
struct UdDestination {
    UdDestination() = default;
    /// `handle` comes from AddressHandle::handle(). `qpn` is the number of the queue pair at the destination.
    constexpr UdDestination(AhHandle handle, std::uint32_t qpn) noexcept
        : ah_index(handle.index), ah_generation(handle.generation), remote_qpn(qpn) {}
    [[nodiscard]] constexpr AhHandle ah() const noexcept { return {ah_index, ah_generation}; }

    std::uint16_t ah_index;
    std::uint16_t ah_generation;
    std::uint32_t remote_qpn;
};

/// Bits of WorkRequest::bind_access; those of `enum ibv_access_flags`.
enum WindowAccess : std::uint32_t {
    kWindowWrite = 1 << 1,  ///< the region needs local write
    kWindowRead = 1 << 2,
    kWindowAtomic = 1 << 3,     ///< the region needs local write
    kWindowZeroBased = 1 << 5,  ///< type 2 only: peers' addresses are offsets from the window's beginning
};
inline constexpr std::uint32_t kWindowAccessKnown = kWindowWrite | kWindowRead | kWindowAtomic | kWindowZeroBased;

/// The operands of a bind (D24). Two further operands are WorkRequest::bind_access, and WorkRequest::remote_addr for
/// the address where the window begins. Window and region must be in the queue pair's protection domain. A bind of a
/// type 2 window must not have length 0, and the window must not be bound already. A bind of a type 1 window moves the
/// window if it is bound already; a bind with length 0 closes the window.
struct WindowBind {
    WindowBind() = default;
    constexpr WindowBind(MwHandle window, MrHandle region, std::uint64_t bytes) noexcept
        : window_index(window.index),
          window_generation(window.generation),
          region_index(region.index),
          region_generation(region.generation),
          length(bytes) {}
    [[nodiscard]] constexpr MwHandle window() const noexcept { return {window_index, window_generation}; }
    [[nodiscard]] constexpr MrHandle region() const noexcept { return {region_index, region_generation}; }

    std::uint16_t window_index;
    std::uint16_t window_generation;
    std::uint16_t region_index;
    std::uint16_t region_generation;
    std::uint64_t length;
};
static_assert(sizeof(WindowBind) == sizeof(Sge));

/// The key that a bind gives to a window whose key is `rkey` now (ibv_inc_rkey(3)). For type 1 the device chooses this
/// key. For type 2 the program may also choose any other lowest byte.
[[nodiscard]] constexpr std::uint32_t next_rkey(std::uint32_t rkey) noexcept {
    return (rkey & ~0xffu) | ((rkey + 1) & 0xffu);
}

/// One work request. Fields that an opcode does not use are ignored.
///
/// The static members make requests. They set the fields that the opcode uses. A request for a send queue is signaled:
///
///     session.try_submit(WorkRequest::send(qp.handle(), memory.sge(0, 64)).with_tag(7));
struct alignas(kCacheLine) WorkRequest {
    /// Inline bytes that fit into the request's own line in the ring (D2). There they take the place of `swap` and
    /// `sge.addr`.
    static constexpr std::uint32_t kOwnPayload = 16;

    std::uint64_t tag = 0;   ///< a value of the application's choice, which Completion::tag returns
    std::uint64_t swap = 0;  ///< compare-and-swap: the new value
    union {
        Sge sge{};        ///< the first SGE; used if num_sge >= 1
        WindowBind bind;  ///< bind_mw
    };
    union {
        std::uint64_t remote_addr = 0;  ///< RDMA and atomics: address at the peer; bind_mw: address of the window
        UdDestination ud;               ///< on a UD queue pair: the destination
        std::uint64_t payload_sum;      ///< internal: checksum of a send's payload, for write rings
    };
    union {
        std::uint64_t compare_add = 0;  ///< atomics: the value to compare with, or the addend
        std::uint32_t imm_data;         ///< *_with_imm: the number for the peer, in host order
        std::uint32_t invalidate_rkey;  ///< local_inv, send_with_inv: the window's key
        std::uint32_t bind_access;      ///< bind_mw: WindowAccess bits
    };
    union {
        /// RDMA and atomics: key of the peer's memory region or window. Sends that the peer may read by rendezvous: the
        /// remote key of the memory that `sge` names. Binds of a type 2 window: the new key, of which only the lowest
        /// byte counts.
        std::uint32_t rkey = 0;
        std::uint32_t remote_qkey;  ///< on a UD queue pair: the qkey of the destination (ibv_post_send(3))
    };
    std::uint32_t submitted_at = 0;  ///< internal: low half of the clock, for stage latency. Callers leave it 0
    union {
        QpHandle qp{};            ///< the queue pair
        PlainHandle<SrqTag> srq;  ///< srq_recv: the shared receive queue
    };
    Opcode opcode = Opcode::send;
    std::uint8_t flags = 0;     ///< SendFlag bits
    std::uint8_t num_sge = 0;   ///< number of SGEs
    std::uint8_t ring_lap = 0;  ///< internal: written by the ring

    // In each of these functions, an SGE of length 0 is left out. Session::try_submit with a span of SGEs and
    // Session::try_submit_inline replace the SGE.
    [[nodiscard]] static constexpr WorkRequest recv(QpHandle qp, const Sge& sge) noexcept {
        return of(Opcode::recv, qp, sge, 0);
    }
    [[nodiscard]] static constexpr WorkRequest srq_recv(SrqHandle srq, const Sge& sge) noexcept {
        WorkRequest request = of(Opcode::srq_recv, {}, sge, 0);
        request.srq = srq;
        return request;
    }
    [[nodiscard]] static constexpr WorkRequest send(QpHandle qp, const Sge& sge) noexcept {
        return of(Opcode::send, qp, sge);
    }
    /// The peer's completion has the number `imm`.
    [[nodiscard]] static constexpr WorkRequest send_with_imm(QpHandle qp, const Sge& sge, std::uint32_t imm) noexcept {
        WorkRequest request = of(Opcode::send_with_imm, qp, sge);
        request.imm_data = imm;
        return request;
    }
    /// Ends the binding of the peer's window whose key is `rkey`. Such a message cannot go by rendezvous.
    [[nodiscard]] static constexpr WorkRequest send_with_inv(QpHandle qp, const Sge& sge, std::uint32_t rkey) noexcept {
        WorkRequest request = of(Opcode::send_with_inv, qp, sge);
        request.invalidate_rkey = rkey;
        return request;
    }
    [[nodiscard]] static constexpr WorkRequest rdma_write(QpHandle qp, const Sge& from, RemoteMemory to) noexcept {
        return of(Opcode::rdma_write, qp, from).at(to);
    }
    /// Uses up a receive of the peer, whose completion has the number `imm`.
    [[nodiscard]] static constexpr WorkRequest rdma_write_with_imm(QpHandle qp, const Sge& from, RemoteMemory to,
                                                                   std::uint32_t imm) noexcept {
        WorkRequest request = of(Opcode::rdma_write_with_imm, qp, from).at(to);
        request.imm_data = imm;
        return request;
    }
    [[nodiscard]] static constexpr WorkRequest rdma_read(QpHandle qp, const Sge& into, RemoteMemory from) noexcept {
        return of(Opcode::rdma_read, qp, into).at(from);
    }
    /// Adds `addend` to the 8 bytes at `on`. Their old value arrives in the 8 bytes of `old`.
    [[nodiscard]] static constexpr WorkRequest atomic_fetch_and_add(QpHandle qp, const Sge& old, RemoteMemory on,
                                                                    std::uint64_t addend) noexcept {
        WorkRequest request = of(Opcode::atomic_fetch_and_add, qp, old).at(on);
        request.compare_add = addend;
        return request;
    }
    /// Writes `swap` to the 8 bytes at `on` if they equal `compare`. Their old value arrives in the 8 bytes of `old`.
    [[nodiscard]] static constexpr WorkRequest atomic_cmp_and_swp(QpHandle qp, const Sge& old, RemoteMemory on,
                                                                  std::uint64_t compare, std::uint64_t swap) noexcept {
        WorkRequest request = of(Opcode::atomic_cmp_and_swp, qp, old).at(on);
        request.compare_add = compare;
        request.swap = swap;
        return request;
    }
    /// Ends the binding of this side's window whose key is `rkey`.
    [[nodiscard]] static constexpr WorkRequest local_inv(QpHandle qp, std::uint32_t rkey) noexcept {
        WorkRequest request = of(Opcode::local_inv, qp, {});
        request.invalidate_rkey = rkey;
        return request;
    }
    /// Binds a window at address `addr` of its region. `access` has WindowAccess bits. `rkey`: the window's new key,
    /// which a window of type 1 does not need.
    [[nodiscard]] static constexpr WorkRequest bind_mw(QpHandle qp, const WindowBind& bind, std::uint64_t addr,
                                                       std::uint32_t access, std::uint32_t rkey = 0) noexcept {
        WorkRequest request = of(Opcode::bind_mw, qp, {}).at({addr, rkey});
        request.bind = bind;
        request.bind_access = access;
        return request;
    }

    [[nodiscard]] constexpr WorkRequest with_tag(std::uint64_t value) const noexcept {
        WorkRequest request = *this;
        request.tag = value;
        return request;
    }
    /// Adds SendFlag bits.
    [[nodiscard]] constexpr WorkRequest with_flags(std::uint8_t more) const noexcept {
        WorkRequest request = *this;
        request.flags |= more;
        return request;
    }
    /// The request has a completion only if it fails: see Session::retired.
    [[nodiscard]] constexpr WorkRequest unsignaled() const noexcept {
        WorkRequest request = *this;
        request.flags &= static_cast<std::uint8_t>(~kSignaled);
        return request;
    }
    /// For sends and RDMA writes: the payload is inline (kInline). The request refers to the payload, which must stay
    /// until the call that submits the request has returned. QueuePairOptions::inline_max limits its length.
    [[nodiscard]] WorkRequest with_inline(std::span<const std::byte> payload) const noexcept {
        WorkRequest request = *this;
        request.sge = {.addr = reinterpret_cast<std::uintptr_t>(payload.data()),
                       .length = static_cast<std::uint32_t>(std::min<std::size_t>(payload.size(), ~std::uint32_t{0}))};
        request.num_sge = payload.empty() ? 0 : 1;
        request.flags |= kInline;
        return request;
    }
    /// For sends that may be longer than the peer's receives: the peer may read the SGE's memory by `rkey`
    /// (QueuePairOptions::rendezvous_pool).
    [[nodiscard]] constexpr WorkRequest with_rkey(std::uint32_t value) const noexcept {
        WorkRequest request = *this;
        request.rkey = value;
        return request;
    }
    /// On a UD queue pair: sends the datagram to `destination`, a queue pair with the key `qkey`.
    [[nodiscard]] constexpr WorkRequest to(const UdDestination& destination, std::uint32_t qkey) const noexcept {
        WorkRequest request = *this;
        request.ud = destination;
        request.remote_qkey = qkey;
        return request;
    }

private:
    [[nodiscard]] static constexpr WorkRequest of(Opcode opcode, QpHandle qp, const Sge& sge,
                                                  std::uint8_t flags = kSignaled) noexcept;
    [[nodiscard]] constexpr WorkRequest at(RemoteMemory remote) const noexcept {
        WorkRequest request = *this;
        request.remote_addr = remote.addr;
        request.rkey = remote.rkey;
        return request;
    }
};

constexpr WorkRequest WorkRequest::of(Opcode opcode, QpHandle qp, const Sge& sge, std::uint8_t flags) noexcept {
    WorkRequest request;
    request.sge = sge;
    request.qp = qp;
    request.opcode = opcode;
    request.flags = flags;
    request.num_sge = sge.length != 0 ? 1 : 0;
    return request;
}

static_assert(std::is_trivially_copyable_v<WorkRequest> && std::is_standard_layout_v<WorkRequest>);
static_assert(sizeof(WorkRequest) == 64);
static_assert(offsetof(WorkRequest, swap) == 8 && offsetof(WorkRequest, sge) == 16 && offsetof(Sge, addr) == 0);
static_assert(offsetof(WorkRequest, bind) == 16 && offsetof(WorkRequest, invalidate_rkey) == 40);
static_assert(offsetof(WorkRequest, remote_addr) == 32 && offsetof(WorkRequest, ud) == 32 &&
              sizeof(UdDestination) == 8 && offsetof(WorkRequest, remote_qkey) == 48);
static_assert(offsetof(WorkRequest, compare_add) == 40 && offsetof(WorkRequest, imm_data) == 40);
static_assert(offsetof(WorkRequest, rkey) == 48 && offsetof(WorkRequest, submitted_at) == 52);
static_assert(offsetof(WorkRequest, qp) == 56 && offsetof(WorkRequest, srq) == 56);
static_assert(offsetof(WorkRequest, opcode) == 60);
static_assert(offsetof(WorkRequest, ring_lap) == 63);

/// A continuation slot: SGEs or inline bytes that do not fit into the WorkRequest's own line.
struct alignas(kCacheLine) WorkRequestContinuation {
    static constexpr std::size_t kPayload = 56;
    static constexpr std::size_t kSges = kPayload / sizeof(Sge);

    std::array<std::byte, kPayload> payload{};  ///< inline bytes, or up to kSges SGEs
    std::array<std::uint8_t, 7> reserved{};
    std::uint8_t ring_lap = 0;
};
static_assert(sizeof(WorkRequestContinuation) == sizeof(WorkRequest));
static_assert(WorkRequestContinuation::kSges == 3);

/// A request in the submission ring that gives back buffers of a receive pool. It has no completion.
struct alignas(kCacheLine) ReleaseRequest {
    static constexpr std::size_t kBuffers = 13;

    std::array<std::uint32_t, kBuffers> buffers{};  ///< the first `count` are valid
    std::uint32_t count = 0;
    PoolHandle pool{};
    Opcode opcode = Opcode::release;
    std::array<std::uint8_t, 2> zero{};  ///< in the place of WorkRequest::flags and WorkRequest::num_sge
    std::uint8_t ring_lap = 0;
};
static_assert(sizeof(ReleaseRequest) == sizeof(WorkRequest) && std::is_trivially_copyable_v<ReleaseRequest>);
static_assert(offsetof(ReleaseRequest, opcode) == offsetof(WorkRequest, opcode));
static_assert(offsetof(ReleaseRequest, zero) == offsetof(WorkRequest, flags));

/// Slots that a work request with `num_sge` SGEs takes in the submission ring.
[[nodiscard]] constexpr std::uint32_t slots_for_sges(std::uint32_t num_sge) noexcept {
    constexpr auto per_slot = static_cast<std::uint32_t>(WorkRequestContinuation::kSges);
    return 1 + (num_sge > 1 ? (num_sge - 1 + per_slot - 1) / per_slot : 0);
}
[[nodiscard]] constexpr std::uint32_t slots_for_inline(std::uint32_t length) noexcept {
    constexpr auto per_slot = static_cast<std::uint32_t>(WorkRequestContinuation::kPayload);
    return length <= WorkRequest::kOwnPayload ? 1 : 1 + (length + per_slot - 1) / per_slot;
}
/// Slots that a request takes in the submission ring. The result is bounded, even if the fields of the request are
/// wrong.
[[nodiscard]] constexpr std::uint32_t slots_of(const WorkRequest& request) noexcept {
    if ((request.flags & kInline) != 0 && !is_recv(request.opcode)) {
        return slots_for_inline(request.sge.length < kInlineMax ? request.sge.length : kInlineMax);
    }
    return slots_for_sges(request.num_sge < kSgesMax ? request.num_sge : kSgesMax);
}
inline constexpr std::uint32_t kSlotsPerWorkRequestMax = slots_for_inline(kInlineMax) > slots_for_sges(kSgesMax)
                                                             ? slots_for_inline(kInlineMax)
                                                             : slots_for_sges(kSgesMax);

}  // namespace pollcore
