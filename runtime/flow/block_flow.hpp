// The common part of the flow controls that use control blocks. Each end has a control block that the other end may
// write. peer/control_block.hpp explains terms and grants.
//
// The end that has something to send first writes its terms into the other end's block. The other end answers with its
// own terms. From then on each receiver writes its grants into the sender's block, and the sender sends no more than it
// was granted. A request that finds no credit waits, and so do all requests behind it.
//
// The peer writes this end's block, so values in the block may be torn (H11), stale or lies. No value is used before it
// was checked.
//
// Thread safety: like Flow. The device writes the block.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

#include "flow/flow_kind.hpp"
#include "peer/control_block.hpp"
#include "worker/flow.hpp"
#include "worker/worker_qp.hpp"

namespace pollcore {

class BlockFlow : public Flow {
public:
    /// Send-queue slots and CQEs for the runtime's own writes: terms and grants.
    static constexpr std::uint32_t kWritesMax = 4;

    BlockFlow(WorkerQp& qp, FlowParts& parts)
        : Flow(qp, std::move(parts.waiting)),
          block_(*parts.block),
          lkey_(parts.block_lkey),
          terms_(parts.terms),
          counts_from_(parts.counts_from) {
        (void)qp.gate().close();
    }

    [[nodiscard]] bool agreed() const noexcept { return agreed_; }
    /// Units of the peer's grants that this end has used, modulo 2^32. A unit is a message, or a line of the peer's
    /// ring.
    [[nodiscard]] std::uint32_t consumed() const noexcept { return granted_ - credit(); }
    [[nodiscard]] std::uint32_t granted() const noexcept { return granted_; }
    [[nodiscard]] std::uint32_t writes() const noexcept { return writes_; }
    /// FlowTerms::depth in the peer's terms.
    [[nodiscard]] std::uint32_t depth() const noexcept { return depth_; }

    [[nodiscard]] bool hold(Turn& turn, WorkerSession& session, Share& share, const WorkRequest& request,
                            std::size_t slot) noexcept override;
    [[nodiscard]] bool refused(Opcode opcode, bool others) noexcept override;
    void completed(Turn& turn, const InFlightEntry& entry, const ibv_wc& wc) noexcept override;
    [[nodiscard]] bool passed_over(Turn& turn, const InFlightEntry& entry, Status status) noexcept override;

    [[nodiscard]] bool turn(Turn& turn, std::uint32_t& work) noexcept override;
    [[nodiscard]] bool has_news(std::uint64_t now) const noexcept override;
    [[nodiscard]] std::uint64_t look_every_ns() const noexcept override;

    void start(Turn& turn, const FlowStart& start) noexcept override;
    [[nodiscard]] Limits limits() const noexcept override { return {message_max_, 0, false}; }
    void fail() noexcept override { close_gate(); }
    void begin_life(Turn& turn) noexcept override;

protected:
    // ---- Overridden by a kind ----

    /// The bits of FlowTerms::features that both ends must have.
    [[nodiscard]] virtual std::uint16_t features() const noexcept { return 0; }
    /// Called just before this end's terms are sent. The kind fills in its own fields.
    virtual void complete_terms(Turn&, FlowTerms&) noexcept {}
    /// Called when the peer's terms have been accepted.
    virtual void take_terms(const FlowTerms&) noexcept {}
    /// Takes the credit for a message of this length in bytes. Returns false, and takes none, if there is too little.
    [[nodiscard]] virtual bool consume(std::uint32_t) noexcept { return take_credit(1); }
    /// Whether a message that the provider refused gives its credit back. If not, the refusal ends the connection.
    [[nodiscard]] virtual bool gives_credit_back() const noexcept { return true; }
    /// Whether the message can be announced to the peer, although it is too long for the peer's receives.
    [[nodiscard]] virtual bool can_announce(const WorkRequest&, std::uint64_t) const noexcept { return false; }
    virtual void announce(Turn&, WorkerSession&, const WorkRequest&) noexcept {}
    /// The kind's part of turn(). Called only if the last set_announced() passed `busy` as true. Returns the amount of
    /// work done.
    virtual std::uint32_t turn_announced(Turn&) noexcept { return 0; }
    /// The kind's part of has_news(). Called only if the last set_announced() passed `busy` as true.
    [[nodiscard]] virtual bool announced_news() const noexcept { return false; }

    /// hold() for a kind whose consume() is known at compile time. `consumes` calls that consume(). A request that need
    /// not wait takes a short path.
    template <class Consume>
    [[nodiscard]] [[gnu::always_inline]] bool hold_unless(Consume&& consumes, Turn& turn, WorkerSession& session,
                                                          Share& share, const WorkRequest& request,
                                                          std::size_t slot) noexcept {
        const std::uint64_t length = message_length(request, session.submissions(), slot);
        const bool fits = length <= message_max_ || !is_send(request.opcode);
        if (fits && waiting().empty() && !announced_ &&
            (!takes_receive(request.opcode) || (agreed_ && consumes(static_cast<std::uint32_t>(length))))) [[likely]] {
            return false;
        }
        return hold_back(turn, session, share, request, slot, length);
    }

    // ---- Called by a kind ----

    [[nodiscard]] std::uint32_t counts_from() const noexcept { return counts_from_; }
    [[nodiscard]] ControlBlock& block() const noexcept { return block_; }
    struct Peer {
        std::uint64_t addr = 0;  ///< address of the peer's control block
        std::uint32_t rkey = 0;
    };
    [[nodiscard]] Peer peer() const noexcept { return {start_.peer_addr, start_.peer_rkey}; }
    [[nodiscard]] const FlowStart& start() const noexcept { return start_; }
    [[nodiscard]] bool running() const noexcept { return connected_ && qp().life() == QpLife::ready && !qp().parked(); }
    /// `open` is true while the last announced message has not ended; all later requests then wait. `busy` is true if
    /// turn_announced() may have something to do.
    void set_announced(bool open, bool busy) noexcept {
        announced_ = open;
        busy_ = busy;
        set_gate();
    }
    /// The next three functions change the grants for the peer and the count of announced messages that this end has
    /// read. turn() writes both to the peer's block.
    void offer(std::uint32_t grants) noexcept { offered_ = grants; }
    void offer_more(std::uint32_t grants) noexcept { offered_ += grants; }
    void count_read() noexcept { ++read_; }
    /// The grants that were last sent to the peer.
    [[nodiscard]] std::uint32_t told() const noexcept { return told_; }
    [[nodiscard]] std::uint32_t offered() const noexcept { return offered_; }
    void set_told(std::uint32_t grants) noexcept { told_ = grants; }
    [[nodiscard]] bool take_credit(std::uint32_t units) noexcept {
        if (credit() < units) {
            return false;
        }
        if (gate_open_) {
            qp().gate().take(units);
        } else {
            credit_ -= units;
        }
        return true;
    }
    /// The peer's ring begins at `position`: the peer's grants count from there, and there is no credit yet.
    void set_consumed(std::uint32_t position) noexcept {
        granted_ = position;
        credit_ = 0;
    }
    /// Opens the gate if a new request waits only when it finds no credit. Otherwise closes the gate. If sends are
    /// framed, the gate stays closed, because the loop of worker/ordinary.cc does not frame sends.
    void set_gate() noexcept;
    void close_gate() noexcept {
        if (gate_open_) {
            credit_ = qp().gate().close();
            gate_open_ = false;
        }
    }

private:
    [[nodiscard]] bool flows() const noexcept { return agreed_ && waiting().empty() && !announced_; }
    [[nodiscard]] std::uint32_t credit() const noexcept { return gate_open_ ? qp().gate().credit() : credit_; }
    [[nodiscard]] bool hold_back(Turn& turn, WorkerSession& session, Share& share, const WorkRequest& request,
                                 std::size_t slot, std::uint64_t length) noexcept;
    [[nodiscard]] bool admit(Opcode opcode, std::uint32_t length) noexcept;
    [[nodiscard]] bool is_too_long(const WorkRequest& request, std::uint64_t length) const noexcept;
    [[nodiscard]] bool must_announce(Opcode opcode, std::uint32_t length) const noexcept {
        return agreed_ && is_send(opcode) && length > message_max_;
    }
    [[nodiscard]] bool keep_waiting(Turn& turn, WorkerSession& session, const WorkRequest& request, std::size_t slot,
                                    std::uint32_t length) noexcept;
    [[nodiscard]] bool take_grants(Turn& turn) noexcept;
    [[nodiscard]] std::optional<std::uint32_t> news_of_grants() const noexcept;
    [[nodiscard]] std::uint32_t agree(Turn& turn) noexcept;
    [[nodiscard]] std::uint32_t post_waiting(Turn& turn) noexcept;
    [[nodiscard]] bool owes() const noexcept { return offered_ != told_ || read_ != read_told_; }
    [[nodiscard]] bool unsettled() const noexcept {
        return !agreed_ || !terms_sent_ || !waiting().empty() || announced_ || owes() || qp().parked();
    }
    [[nodiscard]] bool write_terms(Turn& turn) noexcept;
    [[nodiscard]] bool write_grants(Turn& turn) noexcept;
    [[nodiscard]] bool write(Turn& turn, ibv_sge sge, std::size_t to, unsigned flags) noexcept;
    [[nodiscard]] bool probe(Turn& turn) noexcept;

    ControlBlock& block_;
    std::uint32_t lkey_;
    FlowTerms terms_;
    std::uint32_t counts_from_;
    FlowStart start_;
    bool connected_ = false;  // the address of the peer's block is known
    bool terms_sent_ = false;
    bool agreed_ = false;  // the peer's terms have come, and were accepted
    bool gate_open_ = false;
    bool announced_ = false;
    bool busy_ = false;
    std::uint32_t depth_ = 0;  // FlowTerms::depth of the peer
    std::uint32_t message_max_ = 0;
    std::uint32_t granted_ = 0;
    std::uint32_t credit_ = 0;  // unused part of granted_; while gate_open_ is true, the gate holds it instead
    std::uint32_t offered_ = 0;
    std::uint32_t told_ = 0;
    std::uint32_t read_ = 0;
    std::uint32_t read_told_ = 0;
    std::uint32_t writes_ = 0;  // the runtime's own writes that are in flight
    std::uint32_t unsignaled_writes_ = 0;
    std::uint64_t probe_at_ = 0;  // time of the next probe, in cycles; 0: none is planned
};

}  // namespace pollcore
