// The fault plan of a software device: which faults happen, and when (D45).
//
// A planned fault looks like a real one: an error status, a lost packet, a full CQ or a call that fails. The device
// reacts to it as to a real one: with flushes, retries and events.
//
// Thread safety: any thread may call FaultPlan's functions. Engines call them under their own lock. A plan calls no
// other code while it holds its mutex.
// Cost: armed() is one relaxed load. While no fault of a kind is planned, posts, polls and packets do nothing else.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>
#include <random>
#include <vector>

#include <infiniband/verbs.h>

namespace pollcore {

/// One planned fault. From the time when the fault is planned, the matching occasions of its kind are counted. The
/// fault hits `count` occasions, beginning with the `nth`.
struct SoftFault {
    enum class Kind : std::uint8_t {
        send,  ///< a request posted to a send queue is not carried out and completes with `status`
        /// A receive of an RC QP completes with `status` when a message arrives for it; `nth` counts posted receives.
        receive,
        overrun,       ///< a completion finds its CQ full
        lose_packet,   ///< a packet is lost instead of arriving
        delay_packet,  ///< a packet, and each packet behind it on its link, arrives `delay_ns` late
        post_send,     ///< the post of a request is refused with `error`, even in the middle of a chain
        post_recv,
        hang,       ///< the post of a send is accepted, but does not return before `delay_ns` are over, or clear()
        poll_cq,    ///< ibv_poll_cq, ibv_start_poll or ibv_next_poll fails on a CQ that is not empty
        create_pd,  ///< this kind and all kinds below it: the call fails with `error`
        create_channel,
        create_cq,
        req_notify_cq,
        create_qp,
        register_memory,
        modify,
        destroy_qp,
        destroy_cq,
    };

    Kind kind = Kind::send;
    /// The fault hits only occasions of this QP. 0 means any occasion. Calls that concern no QP, such as create_*,
    /// match only 0.
    std::uint32_t qp_num = 0;
    std::optional<ibv_qp_state> state = {};  ///< modify: only transitions to this state; empty: to any
    std::uint64_t nth = 1;                   ///< number of the first occasion that is hit; counted from 1
    std::uint64_t count = 1;
    /// Probability with which each of these occasions is hit; the device's fault_seed seeds the draws.
    double probability = 1;
    ibv_wc_status status = IBV_WC_GENERAL_ERR;
    int error = 0;  ///< errno value; 0: EIO
    std::uint64_t delay_ns = 0;
};

namespace soft {

class FaultPlan {
public:
    using Kind = SoftFault::Kind;

    explicit FaultPlan(std::uint64_t seed) : random_(seed) {}

    /// Throws pollcore::Error when the fault makes no sense.
    void add(const SoftFault& fault);
    void clear();
    /// Returns when `ns` of real time are over, or the faults are cleared. Call this without an engine's lock.
    void wait_out(std::uint64_t ns) const noexcept;

    /// Whether a fault of one of these kinds was planned since the last clear(). Relaxed is enough: a thread that plans
    /// a fault and then posts work hands the work over by a stronger memory order.
    template <class... Kinds>
    [[nodiscard]] bool armed(Kinds... kinds) const noexcept {
        return (armed_.load(std::memory_order_relaxed) & (bit(kinds) | ...)) != 0;
    }
    /// Counts an occasion. Returns the fault that hits it, if there is one.
    [[nodiscard]] std::optional<SoftFault> meet(Kind kind, std::uint32_t qp_num = 0,
                                                std::optional<ibv_qp_state> state = std::nullopt) noexcept;

    /// Number of occasions of this kind that a fault has hit so far.
    [[nodiscard]] std::uint64_t met(Kind kind) const noexcept {
        return met_[static_cast<std::size_t>(kind)].load(std::memory_order_relaxed);
    }

private:
    struct Planned {
        SoftFault fault;
        std::uint64_t seen = 0;
    };

    static constexpr std::uint32_t bit(Kind kind) noexcept { return 1u << static_cast<unsigned>(kind); }

    static constexpr std::size_t kKinds = static_cast<std::size_t>(Kind::destroy_cq) + 1;

    std::atomic<std::uint32_t> armed_{0};
    std::atomic<std::uint32_t> cleared_{0};  ///< how often the faults were cleared
    std::array<std::atomic<std::uint64_t>, kKinds> met_{};
    std::mutex mutex_;
    std::vector<Planned> planned_;
    std::mt19937_64 random_;
};

}  // namespace soft
}  // namespace pollcore
