// A receive queue: a queue pair's own, or a shared one. Sessions post its receives, or the worker keeps it filled with
// buffers of a receive pool.
//
// Thread safety: the control thread makes the object. It belongs to the worker as long as its queue pair or shared
// receive queue does (worker_qp.hpp, worker_srq.hpp).
#pragma once

#include <cstdint>

#include <infiniband/verbs.h>

#include "pollcore/completion.hpp"
#include "pollcore/handle.hpp"
#include "worker/chains.hpp"
#include "worker/due_list.hpp"
#include "worker/gather.hpp"
#include "worker/recv_table.hpp"
#include "worker/turn.hpp"
#include "worker/worker_pool.hpp"
#include "worker/worker_session.hpp"
#include "worker/wr_id.hpp"

namespace pollcore {

class Flow;

/// Interface by which a flow control learns of posted receives.
class ReceiveWatcher {
public:
    virtual void receives_posted(Turn& turn, std::uint32_t n) noexcept = 0;

protected:
    ~ReceiveWatcher() = default;
};

class RecvQueue final : public PoolTaker::User {
public:
    struct Options {
        std::uint32_t depth = 0;
        std::uint32_t sges_max = 1;
        std::uint32_t device = 0;  ///< device whose lkeys the receives name
        std::uint32_t pd = 0;      ///< the control thread's number of the protection domain
    };
    /// Makes the receive queue of `qp`.
    RecvQueue(const Options& options, WorkerQp& qp)
        : table_(RecvTable::Order::as_posted, options.depth, options.sges_max),
          qp_(&qp),
          device_(options.device),
          pd_(options.pd) {}
    /// Makes the receive queue of `srq`.
    RecvQueue(const Options& options, SrqHandle srq)
        : id_base_(SrqWrId{srq, 0}.pack()),
          table_(RecvTable::Order::any, options.depth, options.sges_max),
          srq_(srq),
          device_(options.device),
          pd_(options.pd) {}

    // ---- Setup, before the worker gets the queue ----

    /// Sets the provider's queue.
    void set_provider(ibv_qp* qp) noexcept { verbs_qp_ = qp; }
    void set_provider(ibv_srq* srq) noexcept { verbs_srq_ = srq; }
    void set_watcher(ReceiveWatcher* watcher) noexcept { watcher_ = watcher; }
    /// Arranges that the worker keeps the queue filled with buffers of `pool`. `share` stands for the other arguments
    /// of PoolTaker::begin.
    template <class... Share>
    void fill_from(BufferPool& pool, Share... share) noexcept {
        pool_.begin(pool, share...);
    }
    [[nodiscard]] BufferPool* pool() const noexcept { return pool_.pool(); }
    [[nodiscard]] const PoolTaker& taker() const noexcept { return pool_; }
    /// The number of the pool's receives that have succeeded in this life of the queue pair, modulo 2^32.
    [[nodiscard]] std::uint32_t messages() const noexcept { return messages_; }

    // ---- Taking and posting receives ----

    [[nodiscard]] bool full() const noexcept { return table_.full(); }
    /// The number of receives in the table, posted or not.
    [[nodiscard]] std::uint32_t size() const noexcept { return table_.size(); }
    /// Takes a receive that the session has already counted as in flight. Must not be called when full(), and the
    /// chains must have room. `slots` holds the receive at `slot`, and its continuation slots behind it.
    template <class Slots>
    [[gnu::always_inline]] void take(Turn& turn, WorkerSession& session, const WorkRequest& request, const Slots& slots,
                                     std::size_t slot) noexcept {
        const std::uint32_t place = table_.push();
        InFlightEntry& entry = table_.at(place);
        entry = entry_of(session, request, kSignaled, request.num_sge);
        if (ended_) [[unlikely]] {
            // Some providers never flush a receive that is posted in ERR (H1), so this receive is not posted.
            table_.leave_unposted(place, ended_status_);
            complete_unposted(turn);
            return;
        }
        const std::span<ibv_sge> sges = gather(turn.chains, request, slots, slot);
        if (sges.size() > 1) {
            table_.set_more_keys(place, sges.subspan(1));
        }
        chain(turn, place, sges);
        turn.counters.receives.add();
    }
    /// Arranges that the worker fills the queue at the end of this step, if the queue has a pool and has not ended.
    void refill(Turn& turn) noexcept {
        if (pool_.pool() != nullptr && !ended_) {
            turn.refills.add(*this);
        }
    }
    static constexpr std::uint32_t kFillMax = 64;  ///< one queue gets at most this many receives in one step (I10)
    /// Adds receives with buffers of the pool to the chain, at most kFillMax. The chains must have room for that many.
    /// Adds the number of receives to `posted`. Returns true if fill() must be called again in the next step.
    [[nodiscard]] bool fill(Turn& turn, std::uint32_t& posted) noexcept;
    /// Posts the chain. Ends the receives that the provider refuses.
    void post(Turn& turn) noexcept;

    // ---- Completing receives ----

    /// Returns the receive in flight at the place that a work completion names, or null if no receive is there.
    [[nodiscard]] const InFlightEntry* find(std::uint32_t place) noexcept { return table_.find(place); }
    /// Ends a receive, and delivers `completion`. `entry` is the receive, from find(place). `completion` names the
    /// queue pair on which the receive has completed, and `flow` is the WorkerQp::asked() of this queue pair.
    /// `datagram` is the work completion if a datagram was received, else null.
    [[gnu::always_inline]] void complete(Turn& turn, std::uint32_t place, const InFlightEntry& entry,
                                         Completion& completion, Flow* flow, const ibv_wc* datagram) noexcept {
        if (entry.kind == InFlightEntry::Kind::pooled) {
            const auto buffer = static_cast<std::uint32_t>(entry.tag);
            table_.remove(place);
            complete_pooled(turn, buffer, completion, flow, datagram);
        } else {
            deliver(turn, entry, completion, datagram);
            table_.remove(place);
            if (flow != nullptr) [[unlikely]] {
                tell(turn, completion, *flow);
            }
        }
        if (table_.has_unposted()) [[unlikely]] {
            complete_unposted(turn);
        }
    }

    // ---- The queue's end ----

    /// From now on nothing is posted. A receive that is taken ends with `status`, after all receives before it have
    /// completed.
    void end(Status status) noexcept {
        ended_ = true;
        ended_status_ = status;
    }
    /// Called when the queue pair is in error. If the queue has a pool, all receives have come back and a buffer is
    /// free, sends the application one final completion. It says that no more messages come, and is sent once in a life
    /// of the queue pair.
    void tell_end(Turn& turn, QpHandle qp, Status cause) noexcept;
    /// Completes the remaining posted receives with `status`, and returns the buffers of a pool to the pool. The device
    /// must not touch the buffers any more.
    void complete_leftovers(Turn& turn, Status status) noexcept;
    /// A new life of the queue pair begins. Its new handle is `qp`.
    void begin_life(QpHandle qp) noexcept {
        qp_handle_ = qp;
        id_base_ = WrId{qp, true, 0}.pack();
        ended_ = false;
        messages_ = 0;
        pool_.renew();
    }
    void dismiss(Turn& turn) noexcept {
        turn.refills.remove(*this);
        pool_.dismiss();
    }

    // ---- For searches (in_use.hpp) ----

    [[nodiscard]] bool uses_key(std::uint32_t lkey) const noexcept { return table_.uses_key(lkey); }
    [[nodiscard]] std::uint32_t device() const noexcept { return device_; }
    [[nodiscard]] std::uint32_t pd() const noexcept { return pd_; }

    void prefetch(std::uint32_t place) const noexcept { table_.prefetch(place); }

    void buffer_released(Turn& turn) noexcept override;

    ChainLink<RecvQueue> link;
    Due due;  ///< this queue's place in Turn::refills

private:
    [[gnu::always_inline]] void chain(Turn& turn, std::uint32_t place, std::span<ibv_sge> sges) noexcept {
        ibv_recv_wr& wr = turn.chains.take_recv_wr();
        wr.wr_id = id_base_ | (place & WrId::kPositionMask);
        wr.next = nullptr;
        wr.sg_list = sges.data();
        wr.num_sge = static_cast<int>(sges.size());
        (tail_ != nullptr ? tail_->next : head_) = &wr;
        tail_ = &wr;
        ++chained_;
        turn.chains.recvs.add(*this);
    }
    [[nodiscard]] int post_chain(ibv_recv_wr* chain, ibv_recv_wr*& bad) noexcept {
        return verbs_srq_ != nullptr ? ibv_post_srq_recv(verbs_srq_, chain, &bad)
                                     : ibv_post_recv(verbs_qp_, chain, &bad);
    }
    void refuse(Turn& turn, ibv_recv_wr& bad) noexcept;
    [[gnu::noinline]] void complete_pooled(Turn& turn, std::uint32_t buffer, Completion& completion, Flow* flow,
                                           const ibv_wc* datagram) noexcept;
    void tell(Turn& turn, const Completion& completion, Flow& flow) noexcept;
    [[gnu::always_inline]] void deliver(Turn& turn, const InFlightEntry& entry, Completion& completion,
                                        const ibv_wc* datagram) noexcept {
        completion.flags |= kFromRecvQueue;
        if (completion.opcode != CompletionOpcode::recv_rdma_with_imm) {
            completion.opcode = CompletionOpcode::recv;
        }
        if (qp_ != nullptr) [[likely]] {
            completion.qp = qp_handle_;
            entry.session->complete(turn, qp_handle_.index, entry, completion, true, datagram);
        } else {
            completion.srq = srq_;
            completion.tag = entry.tag;
            entry.session->complete_shared_recv(turn, completion, datagram);
        }
    }
    void complete_by_runtime(Turn& turn, const InFlightEntry& entry, Status status) noexcept;
    /// Completes the receives at the front that the provider does not have. Every receive before them has completed
    /// (I2).
    void complete_unposted(Turn& turn) noexcept;

    ibv_qp* verbs_qp_ = nullptr;
    ibv_srq* verbs_srq_ = nullptr;
    ibv_recv_wr* head_ = nullptr;
    ibv_recv_wr* tail_ = nullptr;
    std::uint32_t chained_ = 0;
    std::uint32_t messages_ = 0;
    bool ended_ = false;
    Status ended_status_ = Status::wr_flush_err;
    std::uint64_t id_base_ = 0;
    RecvTable table_;
    PoolTaker pool_{*this};
    ReceiveWatcher* watcher_ = nullptr;
    WorkerQp* qp_ = nullptr;  // the queue pair that owns this queue; null for a shared receive queue
    QpHandle qp_handle_;
    SrqHandle srq_;
    std::uint32_t device_ = 0;
    std::uint32_t pd_ = 0;
};

}  // namespace pollcore
