// The common part of flow controls by control blocks. Each end has a block that the other may write
// (peer/control_block.hpp).
//
// The end that first has something to send writes its terms, and the other end answers with its own. Then the receiver
// writes its grants, and the sender sends no more than that. A request that finds no credit waits, and so does
// everything behind it.
//
// A peer writes the block, so its contents may be torn (H11), stale or a lie. Nothing is used before it was checked.
//
// Thread safety: as Flow; the block is written by the device.
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
    /// Units of the peer's grants that were used, modulo 2^32. A unit is a message, or a line of the peer's ring.
    [[nodiscard]] std::uint32_t consumed() const noexcept { return granted_ - credit(); }
    [[nodiscard]] std::uint32_t granted() const noexcept { return granted_; }
    [[nodiscard]] std::uint32_t writes() const noexcept { return writes_; }
    /// FlowTerms::depth of the peer.
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
    // ---- Added by a kind ----

    /// FlowTerms::features that both ends must have.
    [[nodiscard]] virtual std::uint16_t features() const noexcept { return 0; }
    /// The terms are about to be sent.
    virtual void complete_terms(Turn&, FlowTerms&) noexcept {}
    /// The peer's terms are accepted.
    virtual void take_terms(const FlowTerms&) noexcept {}
    /// Takes the credit for a message of this length. False: there is not enough.
    [[nodiscard]] virtual bool consume(std::uint32_t) noexcept { return take_credit(1); }
    /// A message that the provider refused gives its credit back. False: the connection ends.
    [[nodiscard]] virtual bool gives_credit_back() const noexcept { return true; }
    /// A message that is too long for the peer's receives can be announced to it.
    [[nodiscard]] virtual bool can_announce(const WorkRequest&, std::uint64_t) const noexcept { return false; }
    virtual void announce(Turn&, WorkerSession&, const WorkRequest&) noexcept {}
    /// The kind's part of turn(), called while set_announced() has said `busy`. Returns how much was done.
    virtual std::uint32_t turn_announced(Turn&) noexcept { return 0; }
    /// The kind's part of has_news(), called while set_announced() has said `busy`.
    [[nodiscard]] virtual bool announced_news() const noexcept { return false; }

    /// hold(), for a kind whose consume() is known at compile time: the short way for requests that need not wait.
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

    // ---- For the kinds ----

    [[nodiscard]] std::uint32_t counts_from() const noexcept { return counts_from_; }
    [[nodiscard]] ControlBlock& block() const noexcept { return block_; }
    struct Peer {
        std::uint64_t addr = 0;  ///< address of its block
        std::uint32_t rkey = 0;
    };
    [[nodiscard]] Peer peer() const noexcept { return {start_.peer_addr, start_.peer_rkey}; }
    [[nodiscard]] const FlowStart& start() const noexcept { return start_; }
    [[nodiscard]] bool running() const noexcept { return connected_ && qp().life() == QpLife::ready && !qp().parked(); }
    /// `open`: the message that was announced last has not ended, so everything waits for it. `busy`: turn_announced()
    /// may have something to do.
    void set_announced(bool open, bool busy) noexcept {
        announced_ = open;
        busy_ = busy;
        set_gate();
    }
    /// The next three functions change what the peer may use, and how many announced messages were read. turn() tells
    /// the peer.
    void offer(std::uint32_t grants) noexcept { offered_ = grants; }
    void offer_more(std::uint32_t grants) noexcept { offered_ += grants; }
    void count_read() noexcept { ++read_; }
    /// What the peer may use, as far as it was told.
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
    /// The peer's ring begins at `position`.
    void set_consumed(std::uint32_t position) noexcept {
        granted_ = position;
        credit_ = 0;
    }
    /// Opens the gate if a request that comes now need not wait for anything but credit, else closes it.
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
    bool connected_ = false;  // the peer's block is known
    bool terms_sent_ = false;
    bool agreed_ = false;  // the peer's terms are there, and accepted
    bool gate_open_ = false;
    bool announced_ = false;
    bool busy_ = false;
    std::uint32_t depth_ = 0;  // of the peer's terms
    std::uint32_t message_max_ = 0;
    std::uint32_t granted_ = 0;
    std::uint32_t credit_ = 0;  // what is left of granted_; the gate has it while gate_open_
    std::uint32_t offered_ = 0;
    std::uint32_t told_ = 0;
    std::uint32_t read_ = 0;
    std::uint32_t read_told_ = 0;
    std::uint32_t writes_ = 0;  // our own writes in flight
    std::uint32_t unsignaled_writes_ = 0;
    std::uint64_t probe_at_ = 0;  // cycles; 0: nothing waits for the peer
};

}  // namespace pollcore
