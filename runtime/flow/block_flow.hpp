// What flow controls by control blocks have in common: each end has a block that the other may write
// (peer/control_block.hpp).
//
// First come the terms, from whoever has something to send, and the other's in answer. Then the receiver writes what it
// grants, and the sender sends no more than that. A request that finds no credit waits, and everything behind it with
// it.
//
// What stands in a block is a peer's: it may be torn (H11), stale or a lie. Nothing is used before it was checked.
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
    /// Units of what the peer has granted that were used, modulo 2^32: messages, or lines of its ring.
    [[nodiscard]] std::uint32_t consumed() const noexcept { return granted_ - credit(); }
    [[nodiscard]] std::uint32_t granted() const noexcept { return granted_; }
    [[nodiscard]] std::uint32_t writes() const noexcept { return writes_; }
    /// Of the peer's terms.
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
    // ---- What a kind adds ----

    /// FlowTerms::features that both ends must have.
    [[nodiscard]] virtual std::uint16_t features() const noexcept { return 0; }
    /// The terms are about to be sent.
    virtual void complete_terms(Turn&, FlowTerms&) noexcept {}
    /// The peer's terms are accepted.
    virtual void take_terms(const FlowTerms&) noexcept {}
    /// Takes what a message of `length` bytes costs. False: there is not so much.
    [[nodiscard]] virtual bool consume(std::uint32_t) noexcept { return take_credit(1); }
    /// A message that found no room at its provider's gives its credit back. Else the connection ends.
    [[nodiscard]] virtual bool gives_credit_back() const noexcept { return true; }
    /// A message that is too long for the peer's receives is announced to it.
    [[nodiscard]] virtual bool can_announce(const WorkRequest&, std::uint64_t) const noexcept { return false; }
    virtual void announce(Turn&, WorkerSession&, const WorkRequest&) noexcept {}
    /// Its part of turn(), while set_announced() says so. Returns how much was done.
    virtual std::uint32_t turn_announced(Turn&) noexcept { return 0; }
    /// As has_news(), while set_announced() says so.
    [[nodiscard]] virtual bool announced_news() const noexcept { return false; }

    /// hold(), for a kind whose consume() is known: the short way of what need not wait.
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

    // ---- What it has ----

    [[nodiscard]] std::uint32_t counts_from() const noexcept { return counts_from_; }
    [[nodiscard]] ControlBlock& block() const noexcept { return block_; }
    struct Peer {
        std::uint64_t addr = 0;  ///< of its block
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
    /// What the peer may use, and how many announced messages were read: it is told of them in turn().
    void offer(std::uint32_t grants) noexcept { offered_ = grants; }
    void offer_more(std::uint32_t grants) noexcept { offered_ += grants; }
    void count_read() noexcept { ++read_; }
    /// What the peer may use, as it knows.
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
    /// Where the peer's ring begins.
    void set_consumed(std::uint32_t position) noexcept {
        granted_ = position;
        credit_ = 0;
    }
    /// What comes now need not wait for anything but credit, or it has to.
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
    bool agreed_ = false;  // its terms are there, and accepted
    bool gate_open_ = false;
    bool announced_ = false;
    bool busy_ = false;
    std::uint32_t depth_ = 0;  // of the peer's terms
    std::uint32_t message_max_ = 0;
    std::uint32_t granted_ = 0;
    std::uint32_t credit_ = 0;  // what is left of it; the gate has it while that is open
    std::uint32_t offered_ = 0;
    std::uint32_t told_ = 0;
    std::uint32_t read_ = 0;
    std::uint32_t read_told_ = 0;
    std::uint32_t writes_ = 0;  // of ours in flight
    std::uint32_t unsignaled_writes_ = 0;
    std::uint64_t probe_at_ = 0;  // cycles; 0: nothing waits for the peer
};

}  // namespace pollcore
