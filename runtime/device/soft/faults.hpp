// The fault plan of a software device: what is to go wrong, and when (D45).
//
// Faults happen where real ones do: as statuses, lost packets, full CQs and calls that fail. Their consequences
// (flushes, retries, events) are the device's ordinary behaviour.
//
// Thread safety: FaultPlan's functions from any thread. Engines call them under their lock. A plan calls nothing while
// it holds its own lock.
// Cost: armed() is one relaxed load; everything else happens only while a fault of that kind is planned.
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

/// One thing that goes wrong. It hits occasions of its kind that come after it was planned: the `nth` one that matches,
/// and the following ones, `count` in all.
struct SoftFault {
    enum class Kind : std::uint8_t {
        send,          ///< a request posted to a send queue is not carried out and completes with `status`
        receive,       ///< a receive, counted as posted, completes with `status` when a message arrives for it
        overrun,       ///< a completion finds its CQ full
        lose_packet,   ///< a packet is lost instead of arriving
        delay_packet,  ///< a packet arrives `delay_ns` late, with all behind it on its link
        post_send,     ///< a request is refused with `error`, even in the middle of its chain
        post_recv,
        poll_cq,    ///< ibv_poll_cq, ibv_start_poll or ibv_next_poll fails on a CQ that has something
        create_pd,  ///< this kind and those that follow: the call fails with `error`
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
    std::uint32_t qp_num = 0;                ///< only for this QP; 0: for any. Not for create_*.
    std::optional<ibv_qp_state> state = {};  ///< modify: only to this state
    std::uint64_t nth = 1;                   ///< the first is 1
    std::uint64_t count = 1;
    double probability = 1;  ///< of each of these occasions to be hit; drawn by the device's fault_seed
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

    /// Whether faults of one of these kinds were planned since the last clear(). Relaxed: a thread that plans a fault
    /// and then posts work hands the work over by a stronger order.
    template <class... Kinds>
    [[nodiscard]] bool armed(Kinds... kinds) const noexcept {
        return (armed_.load(std::memory_order_relaxed) & (bit(kinds) | ...)) != 0;
    }
    /// Counts an occasion, and returns the fault that it meets.
    [[nodiscard]] std::optional<SoftFault> meet(Kind kind, std::uint32_t qp_num = 0,
                                                std::optional<ibv_qp_state> state = std::nullopt) noexcept;

    /// Occasions of this kind that met a fault, so far.
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
    std::array<std::atomic<std::uint64_t>, kKinds> met_{};
    std::mutex mutex_;
    std::vector<Planned> planned_;
    std::mt19937_64 random_;
};

}  // namespace soft
}  // namespace pollcore
