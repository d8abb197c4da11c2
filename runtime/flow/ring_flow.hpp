// Write rings: the sender writes each message as a record into a ring in the peer's memory (peer/record.hpp). The
// peer's worker finds the record by polling that memory.
//
// As a sender, the worker counts credit in lines of the peer's ring. After the peer has read lines, it grants them
// again. A message that finds too few granted lines waits, and so do all requests behind it. As a receiver, the worker
// polls its own ring (worker/ring_pool.hpp).
//
// Thread safety: like Flow.
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
    /// Whether our ring serves this queue pair, so that the queue pair's peer writes to the ring.
    [[nodiscard]] bool receives() const noexcept { return pool_ != nullptr && pool_->serves(qp()); }

    /// Registered memory for the parts of a record behind its payload: one frame for each place in the send queue.
    struct Frames {
        RecordFrame* frames = nullptr;
        std::uint32_t count = 0;  ///< a power of two
        std::uint32_t lkey = 0;
    };

    Frames frames_;
    RingPool* pool_;  // holds the ring in which the peer's messages arrive; null: this end takes no messages
    RingTarget target_;
    // The record that is posted next, and its place in the peer's ring.
    struct Next {
        std::uint32_t length = 0;
        std::uint32_t position = 0;
        std::uint32_t skipped = 0;
    };
    Next next_;
};

}  // namespace pollcore
