// Write rings: a message is a record that is written into the peer's ring (peer/record.hpp), where the peer finds it by
// looking.
//
// For a sender the ring is credit in lines: the peer grants lines again when it has read them, and a message that finds
// no room waits with everything behind it. For a receiver the worker looks at its own ring (worker/ring_pool.hpp).
//
// Thread safety: as Flow.
#pragma once

#include <cstdint>

#include "flow/block_flow.hpp"
#include "peer/record.hpp"
#include "worker/ring_pool.hpp"

namespace pollcore {

class RingFlow final : public BlockFlow {
public:
    RingFlow(WorkerQp& qp, FlowParts& parts);

    [[nodiscard]] bool hold(Turn& turn, WorkerSession& session, Share& share, const WorkRequest& request,
                            std::size_t slot) noexcept override;
    [[nodiscard]] std::uint32_t framed_bytes(std::uint32_t length) const noexcept override {
        return record_bytes(length);
    }
    void frame(ibv_send_wr& wr, const WorkRequest& request, std::uint32_t position) noexcept override;
    [[nodiscard]] bool turn(Turn& turn, std::uint32_t& work) noexcept override;
    [[nodiscard]] Limits limits() const noexcept override {
        return {BlockFlow::limits().message_max, 0, !agreed() || target_.sums};
    }
    void end_life(Turn& turn) noexcept override;
    void leave(Turn& turn) noexcept override;
    void begin_life(Turn& turn) noexcept override;

private:
    [[nodiscard]] std::uint16_t features() const noexcept override { return FlowTerms::kRing; }
    void complete_terms(Turn& turn, FlowTerms& terms) noexcept override;
    void take_terms(const FlowTerms& terms) noexcept override;
    [[nodiscard]] bool consume(std::uint32_t length) noexcept override;
    [[nodiscard]] bool take_lines(std::uint32_t length) noexcept;
    [[nodiscard]] bool gives_credit_back() const noexcept override { return false; }
    /// The peer of this life writes to our ring.
    [[nodiscard]] bool receives() const noexcept { return pool_ != nullptr && pool_->serves(qp()); }

    /// Registered memory for what a record needs beside its payload, by position in the send queue.
    struct Frames {
        RecordFrame* frames = nullptr;
        std::uint32_t count = 0;  ///< a power of two
        std::uint32_t lkey = 0;
    };

    Frames frames_;
    RingPool* pool_;  // the peer's messages come by it; null: it takes none
    RingTarget target_;
    // The record that is posted next, and the room that it was given.
    struct Next {
        std::uint32_t length = 0;
        std::uint32_t position = 0;
        std::uint32_t skipped = 0;
    };
    Next next_;
};

}  // namespace pollcore
