// Credits: a message is sent only when the peer has a receive for it. If a message is too long for the peer's receives,
// the peer reads it by rendezvous.
//
// Thread safety: like Flow.
#pragma once

#include <cstdint>

#include "flow/block_flow.hpp"
#include "flow/rendezvous.hpp"
#include "flow/shared_grants.hpp"

namespace pollcore {

class CreditFlow final : public BlockFlow, private SharedGrants::Grantee {
public:
    CreditFlow(WorkerQp& qp, FlowParts& parts);

    [[nodiscard]] Rendezvous& rendezvous() noexcept { return rendezvous_; }
    [[nodiscard]] const Rendezvous& rendezvous() const noexcept { return rendezvous_; }
    /// Receives that were posted, or granted from a shared receive queue, modulo 2^32.
    [[nodiscard]] std::uint32_t posted() const noexcept { return offered(); }

    /// Receives of a shared receive queue that are granted to the peer and that no message has taken. The peer may not
    /// know of all these grants yet.
    [[nodiscard]] std::uint32_t unused_grants() const noexcept { return unused(); }

    void receives_posted(Turn& turn, std::uint32_t n) noexcept override;
    [[nodiscard]] bool received(Turn& turn, const Completion& completion, bool pooled) noexcept override;
    [[nodiscard]] bool expects_message() const noexcept override { return rendezvous_.reading(); }
    void completed(Turn& turn, const InFlightEntry& entry, const ibv_wc& wc) noexcept override;
    [[nodiscard]] bool passed_over(Turn& turn, const InFlightEntry& entry, Status status) noexcept override;
    [[nodiscard]] Limits limits() const noexcept override {
        return {BlockFlow::limits().message_max, rendezvous_.announce_max(), false};
    }
    [[nodiscard]] bool peer_may_act() const noexcept override { return rendezvous_.open(); }
    void flush(Turn& turn) noexcept override {
        rendezvous_.flush(turn);
        settle();
    }
    void end_life(Turn& turn) noexcept override;
    void begin_life(Turn& turn) noexcept override;
    void dismiss(Turn& turn) noexcept override;
    [[nodiscard]] bool uses_key(std::uint32_t lkey) const noexcept override { return rendezvous_.uses_key(lkey); }

private:
    void complete_terms(Turn& turn, FlowTerms& terms) noexcept override;
    void take_terms(const FlowTerms& terms) noexcept override;
    [[nodiscard]] bool can_announce(const WorkRequest& request, std::uint64_t length) const noexcept override {
        return rendezvous_.can_announce(request, length);
    }
    void announce(Turn& turn, WorkerSession& session, const WorkRequest& request) noexcept override {
        rendezvous_.announce(turn, session, request, consumed(), peer().addr, peer().rkey);
        settle();
    }
    std::uint32_t turn_announced(Turn& turn) noexcept override;
    [[nodiscard]] bool announced_news() const noexcept override {
        return (rendezvous_.waits_for_buffer() && rendezvous_.has_buffer()) || rendezvous_.peer_has_read();
    }
    void grants_added(Turn& turn, std::uint32_t n) noexcept override;

    /// Must be called after any call that may change the rendezvous.
    void settle() noexcept { set_announced(rendezvous_.open(), rendezvous_.open() || rendezvous_.waits_for_buffer()); }
    /// Messages that have taken receives, counted like the peer's consumed(). Counted only for receives of a shared
    /// receive queue or of a pool.
    [[nodiscard]] std::uint32_t used() const noexcept {
        return counts_from() + (shared_ != nullptr ? used_ : qp().recvs().messages());
    }

    // Grants of the shared receive queue from which the queue pair takes its receives. Null if the queue pair has its
    // own receive queue.
    SharedGrants* shared_;
    Rendezvous rendezvous_;
    std::uint32_t used_ = 0;  // messages that have taken receives of a shared receive queue
};

}  // namespace pollcore
