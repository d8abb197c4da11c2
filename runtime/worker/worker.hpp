// A worker: one thread that polls. step() is the whole of it: commands, submissions, completions,
// housekeeping. It has no thread, clock or randomness of its own (I11), so a test can turn it by hand.
//
//   step.cc      the loop body and its bookkeeping        commands.cc  what the control thread asks
//   submit.cc    session ring -> chain per QP            retire.cc     taking queue pairs out of service
//   doorbells.cc chain per QP -> post                    sleep.cc      falling asleep, and being woken
//   complete.cc  CQ -> in-flight entry -> session ring   windows.cc    binds of memory windows
//   fast_path.cc both of that for ordinary requests
//   pools.cc     receives from pools, and buffers        credits.cc    what waits for the peer's receives, and what it
//                that come back                                        is told of ours
//   rings.cc     messages by write rings                 rendezvous.cc messages that the peer reads
//   reply.hpp    completions in their requests' lines    objects.hpp  sessions, CQs, queue pairs as a worker has them
//
// Thread safety: all but the constructor is the worker's thread's. WorkerProxy talks to it from outside.
// Invariants
//   - An entry in an in-flight table stands for a WR whose completion slot is reserved in its session's ring.
//   - Nothing of a parked QP or of its CQs is touched.
//   - Nothing here allocates after construction, except commands that add things or begin a search. These make room before they change
//     anything, and are answered `no_memory` where there is none.
#pragma once

#include <infiniband/verbs.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/heartbeat.hpp"
#include "base/sleep_word.hpp"
#include "device/completion_channel.hpp"
#include "pollcore/counters.hpp"
#include "pollcore/own_lines.hpp"
#include "worker/command.hpp"
#include "worker/objects.hpp"
#include "worker/turn.hpp"

namespace pollcore {

class alignas(kCacheLine) Worker {
public:
    explicit Worker(const WorkerOptions& options);
    Worker(const Worker&) = delete;
    Worker& operator=(const Worker&) = delete;

    /// One turn: commands, then submissions and completions, the latter two up to `looks` times until there are some.
    /// `now` is in cycles of the clock that deadlines are in. Returns how much was done.
    std::uint32_t step(std::uint64_t now, std::uint32_t looks = 1) noexcept;

    // ---- Sleeping (sleep.cc): what the thread's loop does when it has found nothing to do ----

    /// Before anything else: the channel of each device, which outlives the worker.
    void add_channel(CompletionChannel& channel) { channels_.push_back(&channel); }
    [[nodiscard]] std::span<CompletionChannel* const> channels() const noexcept { return channels_; }
    [[nodiscard]] int bell() const noexcept { return turn_.options.bell; }
    [[nodiscard]] int visitors() const noexcept { return turn_.options.visitors; }
    /// Sees to it that whatever comes makes the bell or a channel readable, and looks once more (I8). False: there is
    /// something to do, or something that no event would tell of; the worker is awake.
    [[nodiscard]] bool fall_asleep(std::uint64_t now) noexcept;
    /// Something became readable, or the time of look_again_ns() has come: whether there is a reason to wake up.
    /// `rung`: it was the bell.
    [[nodiscard]] bool woken(bool rung, std::uint64_t now) noexcept;
    /// The earliest CompletionChannel::look_again_ns().
    [[nodiscard]] std::uint64_t look_again_ns() const noexcept;
    /// So often woken() is to be asked, since what is written to memory makes no event; CompletionChannel::kNever: nothing is.
    [[nodiscard]] std::uint64_t look_every_ns() const noexcept;
    void wake_up(std::uint64_t now) noexcept;
    /// Around the wait alone: what the thread does between two waits is no sleep.
    void begin_wait() noexcept;
    void end_wait(std::uint64_t now) noexcept;
    /// The thread has ended: acknowledges what it had taken, so that the CQs can be destroyed.
    void acknowledge_events() noexcept;
    /// A command was written. Any thread.
    void knock() noexcept;
    /// Where nothing is in flight, so that nothing but the next request of one session, or a command, can come: that
    /// session's submissions. Else null.
    [[nodiscard]] const RingConsumer<WorkRequest>* only_source() const noexcept;

    [[nodiscard]] const WorkerCounters& counters() const noexcept { return turn_.counters; }
    /// For the loop that turns it, which counts how it waits.
    [[nodiscard]] WorkerCounters& own_counters() noexcept { return turn_.counters; }
    [[nodiscard]] const Heartbeat& heartbeat() const noexcept { return heartbeat_; }
    /// For that loop, too.
    [[nodiscard]] Heartbeat& own_heartbeat() noexcept { return heartbeat_; }
    [[nodiscard]] void* command_memory() noexcept { return command_memory_.data(); }
    [[nodiscard]] void* answer_memory() noexcept { return turn_.answers.memory(); }

private:
    // A chain is built in these before the doorbell rings; when one is used up, the chains go out and the
    // building goes on.
    static constexpr std::size_t kChainWrs = 256;
    static constexpr std::size_t kChainSges = kChainWrs * 4;
    static constexpr std::size_t kChainInline = 64 * kInlineMax;
    static_assert(kChainSges > kSgesMax && kChainInline >= kInlineMax);
    // Completions that a session sees together, where so many have come: who waits for the first waits for them all.
    static constexpr std::uint32_t kPublishedAtOnce = 32;

    enum class Take : std::uint8_t { taken, later };

    // step.cc
    std::uint32_t take_submissions() noexcept;
    std::uint32_t take_completions() noexcept;
    std::uint32_t look_at_cqs() noexcept;
    std::uint32_t poll_plain(WorkerCq& cq) noexcept;
    std::uint32_t poll_extended(WorkerCq& cq) noexcept;
    std::uint32_t poll_with_times(WorkerCq& cq) noexcept;
    /// Routes the first `n` of wcs_, with the device's times of them or without; -1: the CQ has failed.
    std::uint32_t polled(WorkerCq& cq, int n, bool with_times) noexcept;

    // sleep.cc
    void wake_applications() noexcept;
    [[nodiscard]] bool at_rest() const noexcept;
    [[nodiscard]] bool arm() noexcept;
    [[nodiscard]] bool look_again() noexcept;
    [[nodiscard]] std::uint32_t take_events() noexcept;
    void acknowledge(WorkerCq& cq) noexcept;

    // submit.cc
    std::uint32_t submit(WorkerSession& session) noexcept;
    void prefetch_qps(const WorkerSession& session) const noexcept;
    Take take(WorkerSession& session, const WorkRequest& request, std::size_t slot) noexcept;
    Take take_recv(WorkerSession& session, WorkerQp& qp, Share& share, const WorkRequest& request,
                   std::size_t slot) noexcept;
    [[nodiscard]] ibv_ah* find_ah(const WorkerQp& qp, AhHandle handle) const noexcept;
    Take take_send(WorkerSession& session, WorkerQp& qp, Share& share, const WorkRequest& request,
                   std::size_t slot) noexcept;
    [[nodiscard]] std::uint32_t budget_left(WorkerQp& qp) const noexcept;
    bool over_budget(WorkerQp& qp) noexcept;
    static void use_share(WorkerSession& session, const WorkRequest& request, std::size_t slot) noexcept;
    // fast_path.cc
    static void choose_way(WorkerQp& qp) noexcept;
    [[nodiscard]] std::uint32_t ordinary_room(WorkerSession& session, std::uint32_t wanted) noexcept;
    struct SendRun;
    struct EndRun;
    [[nodiscard]] bool begin(SendRun& run, WorkerSession& session, RequestHead head) noexcept;
    static void count(SendRun& run, WorkerSession& session) noexcept;
    void settle(SendRun& run, WorkerSession& session) noexcept;
    static void settle(EndRun& run) noexcept;
    [[nodiscard]] std::uint32_t submit_ordinary(WorkerSession& session, std::uint32_t taken) noexcept;
    [[nodiscard]] std::uint32_t route_ordinary(WorkerCq& cq, std::uint32_t i, std::uint32_t n) noexcept;
    void publish_written(WorkerSession* session, std::uint32_t n) noexcept;
    [[nodiscard]] bool must_signal(const WorkerSession& session, const WorkerQp& qp, const Share& share) const noexcept;
    [[nodiscard]] [[gnu::always_inline]] bool chain_room(std::size_t sges, std::size_t inline_bytes) const noexcept {
        return wrs_used_ < kChainWrs && recv_wrs_used_ < kChainWrs && sges_used_ + sges < kChainSges &&
               inline_used_ + inline_bytes <= kChainInline;
    }
    // Inlined by what is said here: where a template's body stands below its use, what is said there comes too late.
    template <class Slots>
    [[gnu::always_inline]] std::span<ibv_sge> gather(const Slots& slots, const WorkRequest& request, std::size_t slot) noexcept;
    template <class Slots>
    [[gnu::always_inline]] ibv_sge* gather_inline(const Slots& slots, const WorkRequest& request, std::size_t slot, std::size_t room) noexcept;
    template <class Slots>
    [[gnu::always_inline]] Take put_send(WorkerSession& session, WorkerQp& qp, Share& share, const WorkRequest& request, const Slots& slots,
                  std::size_t slot, ibv_ah* ah) noexcept;
    /// What an inline payload takes of inline_.
    [[nodiscard]] static constexpr std::size_t inline_room(std::uint32_t length) noexcept {
        constexpr std::size_t kPiece = WorkRequest::kOwnPayload;
        return std::max((length + kPiece - 1) / kPiece * kPiece, kPiece);  // so much is written in any case
    }
    [[gnu::always_inline]] void chain(WorkerQp& qp) noexcept {
        if (!qp.chained) {
            qp.chained = true;
            qp.next_chained = nullptr;
            *chained_end_ = &qp;
            chained_end_ = &qp.next_chained;
        }
    }
    [[gnu::always_inline]] void chain(WorkerQp& qp, ibv_recv_wr& wr) noexcept {
        (qp.recv_tail != nullptr ? qp.recv_tail->next : qp.recv_head) = &wr;
        qp.recv_tail = &wr;
        chain(qp);
    }
    void chain(WorkerSrq& srq, ibv_recv_wr& wr) noexcept;
    [[nodiscard]] bool completion_room(WorkerSession& session) noexcept;
    Take take_other(WorkerSession& session, const WorkRequest& request, std::size_t slot) noexcept;
    Take take_shared_recv(WorkerSession& session, const WorkRequest& request, std::size_t slot) noexcept;

    // doorbells.cc
    void ring_doorbells() noexcept;
    void post_shared_recvs() noexcept;
    void post_shared_recvs(WorkerSrq& srq) noexcept;
    void complete_refused(WorkerQp& qp, InFlightTable& table, std::uint64_t wr_id) noexcept;
    void post_sends(WorkerQp& qp) noexcept;
    void post_recvs(WorkerQp& qp) noexcept;

    // complete.cc
    void route(WorkerCq& cq, std::uint32_t n) noexcept;
    void route_with_times(WorkerCq& cq, std::uint32_t n) noexcept;
    void route(WorkerCq& cq, const ibv_wc& wc) noexcept;
    void prefetch_entries(std::uint32_t n) noexcept;
    static const ibv_wc* take_recv_fields(const WorkerQp* qp, const ibv_wc& wc, Completion& completion) noexcept;
    void complete_send(WorkerQp& qp, std::uint32_t offset, const ibv_wc& wc) noexcept;
    void complete_own(WorkerQp& qp, const InFlightEntry& entry, const ibv_wc& wc) noexcept;
    void complete_recv(WorkerQp& qp, std::uint32_t offset, const ibv_wc& wc) noexcept;
    void complete_shared_recv(const ibv_wc& wc) noexcept;
    void deliver(WorkerSrq& srq, std::uint32_t slot, Completion& completion, const ibv_wc* datagram = nullptr) noexcept;
    void deliver_by_runtime(WorkerSrq& srq, std::uint32_t slot, Status status) noexcept;
    void fail_cq(WorkerCq& cq) noexcept;

    void deliver(WorkerQp& qp, const InFlightEntry& entry, Completion& completion, bool from_recv_queue,
                 const ibv_wc* datagram = nullptr) noexcept;
    void deliver_by_runtime(WorkerQp& qp, const InFlightEntry& entry, Status status) noexcept;
    void hand_out(PoolTaker& taker, std::uint32_t buffer, Completion& completion, const ibv_wc* datagram) noexcept;
    void hand_out(WorkerPool& pool, std::uint32_t place, Completion& completion) noexcept;
    void retire_entry(WorkerQp& qp, const InFlightEntry& entry) noexcept;
    void end_send(WorkerQp& qp, const InFlightEntry& entry, Completion& completion) noexcept;
    void complete_unposted(WorkerQp& qp, InFlightTable& table) noexcept;
    /// Entries at the front that the provider does not have complete now that all before them have (I2).
    void drain_unposted(WorkerQp& qp, InFlightTable& table) noexcept {
        if (!table.empty() && !table.front().with_provider()) [[unlikely]] {
            complete_unposted(qp, table);
        }
    }

    // pools.cc
    Take take_release(WorkerSession& session, const WorkRequest& line) noexcept;
    void list(PoolTaker& taker) noexcept;
    std::uint32_t fill_pools() noexcept;
    std::uint32_t post_receives(PoolTaker& taker) noexcept;
    void came_back(PoolTaker& taker) noexcept;
    void complete_pooled(WorkerQp* qp, PoolTaker& taker, std::uint64_t tag, Completion& completion, const ibv_wc* datagram) noexcept;
    void return_unused(PoolTaker& taker, const InFlightEntry& entry) noexcept;
    void return_refused(PoolTaker& taker, const InFlightEntry& entry) noexcept;
    void tell_end(WorkerQp& qp) noexcept;
    void dismiss(PoolTaker& taker) noexcept;

    // credits.cc, and what posts those that waited in submit.cc
    void start_flow(WorkerQp& qp, const Command& command) noexcept;
    void list(WorkerQp& qp) noexcept;
    std::uint32_t turn_flows() noexcept;
    std::uint32_t turn_flow(WorkerQp& qp) noexcept;
    [[nodiscard]] bool probe(WorkerQp& qp) noexcept;
    [[nodiscard]] bool take_blocked(WorkerSession& session, WorkerQp& qp, Share& share, const WorkRequest& request, std::size_t slot,
                                    std::uint64_t length) noexcept;
    [[nodiscard]] bool keep_waiting(WorkerSession& session, WorkerQp& qp, const WorkRequest& request, std::size_t slot, std::uint32_t length) noexcept;
    [[nodiscard]] static bool is_too_long(const WorkerQp& qp, const WorkRequest& request, std::uint64_t length) noexcept;
    bool take_grants(WorkerQp& qp) noexcept;
    std::uint32_t post_waiting(WorkerQp& qp) noexcept;
    void post_kept(WorkerSession& session, WorkerQp& qp, const WorkRequest& request) noexcept;
    void give_credit_back(WorkerQp& qp, Opcode opcode) noexcept;
    void flush_waiting(WorkerQp& qp) noexcept;
    void count_posted(WorkerQp& qp, std::uint32_t n) noexcept;
    void grant(WorkerSrq& srq) noexcept;
    void grant(WorkerSrq& srq, WorkerQp& qp) noexcept;
    void use_grant(WorkerSrq& srq, WorkerQp& qp) noexcept;
    void drop_grants(WorkerQp& qp) noexcept;
    bool write_grants(WorkerQp& qp) noexcept;
    bool write_terms(WorkerQp& qp) noexcept;
    bool write_own(WorkerQp& qp, ibv_sge& sge, std::size_t to, unsigned flags) noexcept;
    void fail_flow(WorkerQp& qp, FlowFault fault) noexcept;
    void dismiss(WorkerQp& qp) noexcept;
    [[nodiscard]] bool flows_have_news(std::uint64_t now) noexcept;

    // rings.cc
    static void aim(CreditFlow& flow, const FlowTerms& terms) noexcept;
    void frame(WorkerQp& qp, ibv_send_wr& wr, const WorkRequest& request, std::uint32_t position) noexcept;
    void break_off(WorkerQp& qp, const ibv_send_wr* chain) noexcept;
    void offer_ring(WorkerQp& qp) noexcept;
    /// Messages may come to a write ring of this life's, or its end has not been told.
    [[nodiscard]] static bool in_ring(const WorkerQp& qp) noexcept { return qp.pool.pool != nullptr && qp.pool.pool->ring_qp == &qp; }
    std::uint32_t look_at_rings() noexcept;
    std::uint32_t take_records(WorkerQp& qp) noexcept;
    void tell_ring_end(WorkerQp& qp) noexcept;
    void release_records(WorkerPool& pool, std::span<const std::uint32_t> places) noexcept;
    void leave_ring(WorkerQp& qp) noexcept;

    // rendezvous.cc
    [[nodiscard]] static bool can_announce(const WorkerQp& qp, const WorkRequest& request, std::uint64_t length) noexcept;
    void announce(WorkerSession& session, WorkerQp& qp, const WorkRequest& request) noexcept;
    void complete_announced(WorkerQp& qp, const InFlightEntry& entry, const ibv_wc& wc) noexcept;
    std::uint32_t end_announced(WorkerQp& qp) noexcept;
    void flush_announced(WorkerQp& qp) noexcept;
    [[nodiscard]] bool take_announcement(WorkerQp& qp, const Completion& completion) noexcept;
    std::uint32_t read_announced(WorkerQp& qp) noexcept;
    void complete_reading(WorkerQp& qp, const InFlightEntry& entry, const ibv_wc& wc) noexcept;
    void lose_rendezvous(WorkerQp& qp, const InFlightEntry& entry, Status status) noexcept;

    // windows.cc
    [[nodiscard]] WorkerWindow* find_window(MwHandle handle) const noexcept;
    [[nodiscard]] WorkerRegion* find_region(MrHandle handle) noexcept;
    [[nodiscard]] bool admits_keys(const WorkerQp& qp, const WorkRequest& request) noexcept;
    void hold_bind(const WorkRequest& request) noexcept;
    void let_bind_go(const WorkRequest& request) noexcept;
    void begin_bind(InFlightEntry& entry, const WorkRequest& request) noexcept;
    void post_bind(WorkerQp& qp, const WorkRequest& request, unsigned flags) noexcept;
    void take_over_key(const InFlightEntry& bind) noexcept;
    void end_bind(const InFlightEntry& entry, Status status) noexcept;
    [[nodiscard]] bool remove_window(MwHandle handle) noexcept;
    [[nodiscard]] bool remove_region(MrHandle handle) noexcept;

    // retire.cc
    void fail(WorkerQp& qp, Status cause, bool device_too = true) noexcept;
    void due(WorkerQp& qp) noexcept;
    std::uint32_t turn_lives() noexcept;
    void end_life(WorkerQp& qp) noexcept;
    void device_follows(WorkerQp& qp) noexcept;
    void publish_record(const WorkerQp& qp) noexcept;
    void publish_record(const WorkerSrq& srq) noexcept;
    void post_marker(WorkerQp& qp) noexcept;
    void cover(WorkerQp& qp) noexcept;
    bool advance(WorkerQp& qp) noexcept;
    [[nodiscard]] bool only_late_receives(WorkerQp& qp) const noexcept;
    void complete_leftovers(WorkerQp& qp) noexcept;
    void complete_leftovers(WorkerQp& qp, InFlightTable& table) noexcept;
    void drop(WorkerQp& qp) noexcept;
    void complete_leftovers(WorkerSrq& srq) noexcept;
    void renew(WorkerQp& qp) noexcept;
    void await_empty_cqs(WorkerQp& qp) noexcept;
    [[nodiscard]] bool cqs_emptied(const WorkerQp& qp) const noexcept;

    // commands.cc
    std::uint32_t run_commands() noexcept;
    void run(const Command& command) noexcept;
    void carry_out(const Command& command);
    void add_session(WorkerSession& session, std::uint32_t index);
    void add_cq(WorkerCq& cq, std::uint32_t index);
    void make_room(const WorkerQp& qp);
    void add_qp(WorkerQp& qp) noexcept;
    void add_srq(WorkerSrq& srq);
    void add_taker(PoolTaker& taker) noexcept;
    void open_shares(WorkerQp& qp) noexcept;
    void begin(WorkerQp& qp, WorkerQp::Phase phase, const Command& command) noexcept;
    void make_room_to_tell();
    void remove_if_drained(WorkerSession& session) noexcept;
    struct Search;
    void begin(const Search& search);
    enum class Looked { found, over, more };
    std::uint32_t search() noexcept;
    [[nodiscard]] Looked look_further() noexcept;
    template <class Slots>
    [[nodiscard]] Looked look_through(std::uint64_t whose, const Slots& slots) noexcept;
    template <class Slots>
    [[nodiscard]] bool names_key(const WorkRequest& request, const Slots& slots, std::size_t at) noexcept;
    [[nodiscard]] bool has_in_flight(const WorkerQp& qp) const noexcept;
    [[nodiscard]] bool names_it(const WorkRequest& request) noexcept;
    [[nodiscard]] bool binds_use_it() noexcept;
    template <class Queue>
    [[nodiscard]] bool concerns_search(const Queue* queue) const noexcept {
        return queue != nullptr && queue->device == search_.device && queue->pd == search_.pd;
    }
    [[nodiscard]] bool may_name_it(const WorkerSession& session) const noexcept {
        const ClientShare* const client = session.options().client;
        return search_.client == (client != nullptr ? client->id() : 0);
    }

    [[nodiscard]] WorkerQp* find_qp(QpHandle handle) noexcept {
        WorkerQp* qp = qps_[handle.index & qps_mask_];
        return qp != nullptr && qp->handle == handle ? qp : nullptr;
    }
    /// One came, or went.
    void count_qps(std::ptrdiff_t more) noexcept {
        constexpr std::size_t kFew = 256;
        qps_used_ += static_cast<std::size_t>(more);
        many_qps_ = qps_used_ > kFew;
    }
    [[nodiscard]] WorkerSrq* find_srq(SrqHandle handle) noexcept {
        WorkerSrq* srq = handle.index < kSrqsMax ? srqs_[handle.index] : nullptr;
        return srq != nullptr && srq->handle == handle ? srq : nullptr;
    }

    // Per step.
    Turn turn_;
    std::size_t first_session_ = 0;  ///< whose turn it is to be first; one past the last stands for 0
    std::size_t first_cq_ = 0;
    std::uint32_t qps_mask_ = 0;
    bool many_qps_ = false;          ///< more than the first cache holds
    RingConsumer<Command> commands_;
    OwnLines<WorkerSession*> polled_sessions_;
    OwnLines<WorkerCq*> polled_cqs_;
    WorkerQp* chained_ = nullptr;  ///< with a chain to post, in the order of their first request
    WorkerQp** chained_end_ = &chained_;
    WorkerSrq* chained_srqs_ = nullptr;  ///< the same of shared receive queues, in no order
    OwnLines<WorkerQp*> qps_;      ///< by index
    OwnLines<WorkerSession*> sessions_;  ///< by index
    OwnLines<WorkerCq*> cqs_;            ///< by index
    OwnLines<const WorkerAh*> ahs_;      ///< by index
    OwnLines<WorkerSrq*> srqs_;          ///< by index
    OwnLines<WorkerPool*> pools_;        ///< by index
    OwnLines<PoolTaker*> to_fill_;       ///< at the end of the step
    std::size_t takers_ = 0;             ///< that there are
    OwnLines<WorkerQp*> flows_;          ///< with credits, to be looked at: see credits.cc
    std::size_t flow_qps_ = 0;           ///< that there are
    std::uint32_t reads_ = 0;            ///< of announced messages, in flight
    OwnLines<WatchedRing> rings_;        ///< that messages may come to
    OwnLines<WorkerWindow*> windows_;    ///< by index
    OwnLines<WorkerRegion> regions_;     ///< by index
    std::size_t qps_used_ = 0;           ///< that there are
    std::vector<WorkerQp*> lives_;  ///< in error, and something of them has changed, or leaving service: turn_lives()
    std::vector<WorkerSession*> closing_;
    std::vector<CompletionChannel*> channels_;
    SleepWord command_sleep_;                    ///< taken by who writes commands
    bool slept_ = false;                         ///< has fallen asleep, and not woken up yet

    std::size_t wrs_used_ = 0;
    std::size_t recv_wrs_used_ = 0;
    std::size_t sges_used_ = 0;
    std::size_t inline_used_ = 0;
    OwnLines<ibv_send_wr> wrs_;
    OwnLines<ibv_recv_wr> recv_wrs_;
    OwnLines<ibv_sge> sges_;
    OwnLines<std::byte> inline_;
    OwnLines<ibv_wc> wcs_;
    OwnLines<std::uint64_t> device_times_;  ///< of these, on a CQ that has them: what an ibv_wc has no place for

    Heartbeat heartbeat_;

    // For work requests that name a key of a device, or an address handle.
    struct Search {
        std::uint64_t command = 0;  ///< 0: none
        std::uint32_t device = 0;
        std::uint32_t pd = 0;
        std::uint32_t client = 0;  ///< whose sessions alone can name it
        std::uint32_t lkey = 0;
        MrHandle region{};  ///< of the key's region, if windows may be bound to it
        AhHandle ah{};      ///< valid: this is looked for, and no key
        MwHandle window{};  ///< valid: this is looked for, and no key
        std::uint32_t next_session = 0;
        std::uint32_t next_qp = 0;
        std::uint32_t next_srq = 0;
        std::uint64_t whose = 0;  ///< it has come to `slot` of this session, by its id, or of this queue pair, by its handle
        std::uint64_t slot = 0;
        std::uint64_t slots_end = 0;
    };
    Search search_;                  ///< whose turn it is
    std::vector<Search> searches_;   ///< the others
    std::size_t next_search_ = 0;    ///< of these

    OwnLines<std::byte> command_memory_;
};

}  // namespace pollcore
