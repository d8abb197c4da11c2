// From a session's ring to chains: one per QP and burst, for ibv_post_send and ibv_post_recv (doorbells.cc).
//
// The worker repeats the session's admission on its own figures, since a client's library is not trusted.
#include <arpa/inet.h>

#include <algorithm>
#include <cstring>

#include "base/planted.hpp"
#include "worker/admission.hpp"

namespace pollcore {
namespace {

// The provider reads imm_data in network order; the application gave a number (row 7 of the semantics).
void fill(ibv_send_wr& wr, const WorkRequest& request) noexcept {
    wr.opcode = static_cast<ibv_wr_opcode>(request.opcode);
    if (request.opcode >= Opcode::local_inv) [[unlikely]] {
        wr.invalidate_rkey = request.invalidate_rkey;
        return;
    }
    if (is_atomic(request.opcode)) {
        wr.wr.atomic.remote_addr = request.remote_addr;
        wr.wr.atomic.compare_add = request.compare_add;
        wr.wr.atomic.swap = request.swap;
        wr.wr.atomic.rkey = request.rkey;
        return;
    }
    wr.wr.rdma.remote_addr = request.remote_addr;
    wr.wr.rdma.rkey = request.rkey;
    wr.imm_data = has_imm(request.opcode) ? htonl(request.imm_data) : 0;
}

[[gnu::noinline]] void fill_datagram(ibv_send_wr& wr, const WorkRequest& request, ibv_ah* ah) noexcept {
    wr.opcode = static_cast<ibv_wr_opcode>(request.opcode);
    wr.wr.ud.ah = ah;
    wr.wr.ud.remote_qpn = request.ud.remote_qpn;
    wr.wr.ud.remote_qkey = request.remote_qkey;
    wr.imm_data = has_imm(request.opcode) ? htonl(request.imm_data) : 0;
}

/// In no template: clang 14 finds no member of an unnamed union by its name there.
[[nodiscard, gnu::always_inline]] inline InFlightEntry entry_of(WorkerSession& session, const WorkRequest& request, std::uint8_t flags,
                                                                std::uint8_t num_sge) noexcept {
    return {.tag = request.tag,
            .session = &session,
            .lkey = request.sge.lkey,
            .opcode = request.opcode,
            .flags = flags,
            .num_sge = num_sge};
}

/// The inline payload from the continuations of the request in `slot`.
template <class Slots>
[[gnu::noinline]] void gather_continuations(const Slots& slots, std::size_t slot, std::span<std::byte> to) noexcept {
    for (std::size_t at = 0; at < to.size();) {
        const auto more = std::bit_cast<WorkRequestContinuation>(slots.copy(++slot));
        const std::size_t here = std::min(WorkRequestContinuation::kPayload, to.size() - at);
        std::memcpy(&to[at], more.payload.data(), here);
        at += here;
    }
}

/// The bytes of a message.
template <class Slots>
[[nodiscard]] [[gnu::noinline]] std::uint64_t gathered_length(const WorkRequest& request, const Slots& slots, std::size_t slot) noexcept {
    std::uint64_t length = request.sge.length;
    for (std::size_t next = 1; next < request.num_sge;) {
        const auto more = std::bit_cast<WorkRequestContinuation>(slots.copy(++slot));
        for (std::size_t i = 0; i < WorkRequestContinuation::kSges && next < request.num_sge; ++i, ++next) {
            Sge sge;
            std::memcpy(&sge, more.payload.data() + i * sizeof(Sge), sizeof(sge));
            length += sge.length;
        }
    }
    return length;
}
template <class Slots>
[[nodiscard]] std::uint64_t message_length(const WorkRequest& request, const Slots& slots, std::size_t slot) noexcept {
    if ((request.flags & kInline) != 0 || request.num_sge == 1) [[likely]] {
        return request.sge.length;
    }
    return request.num_sge == 0 ? 0 : gathered_length(request, slots, slot);
}

}  // namespace

// With many queue pairs a burst would wait for each one's lines in turn: here it asks for all of them at once. What stands in
// the ring is believed no further than that.
[[gnu::noinline]] void Worker::prefetch_qps(const WorkerSession& session) const noexcept {
    std::array<const WorkerQp*, kBurstMax> qps;
    const auto front = session.submissions().front();
    const std::uint32_t most = turn_.options.submit_burst;
    const std::uint32_t qps_mask = qps_mask_;
    WorkerQp* const* const all = qps_.data();
    std::uint32_t n = 0;
    std::uint64_t last = 0;
    for (; n < most && front.ready(n, last); ++n) {
        const std::uint32_t index = RequestHead(last).qp_index() & qps_mask;
        session.prefetch_share(index);
        const WorkerQp* const qp = all[index];
        qps[n] = qp;
        __builtin_prefetch(qp, 1);  // which may be null
        __builtin_prefetch(reinterpret_cast<const void*>(reinterpret_cast<std::uintptr_t>(qp) + offsetof(WorkerQp, sends)), 1);
    }
    for (std::uint32_t i = 0; i < n; ++i) {
        if (qps[i] != nullptr) {
            qps[i]->sends.prefetch_next();
            __builtin_prefetch(qps[i]->qp);
        }
    }
}

std::uint32_t Worker::submit(WorkerSession& session) noexcept {
    if (many_qps_) {
        prefetch_qps(session);
    }
    std::uint32_t slots_taken = 0;
    std::uint32_t requests = 0;
    for (;;) {
        const std::uint32_t ordinary = submit_ordinary(session, slots_taken);
        slots_taken += ordinary;
        requests += ordinary;
        if (slots_taken >= turn_.options.submit_burst || !session.submissions().ready(slots_taken)) {
            break;
        }
        const WorkRequest request = session.submissions().copy(slots_taken);
        const std::uint32_t slots = slots_of(request);
        // A session publishes a request and its continuations at once; anything else waits here, which
        // costs nobody but that session.
        if (slots > 1 && (slots > session.submissions().capacity() || !session.submissions().ready(slots_taken + slots - 1))) {
            if (slots > session.submissions().capacity()) {
                session.break_off(turn_);
            }
            break;
        }
        ClientShare* const client = session.options().client;
        if (client != nullptr && !session.has_share_left(turn_, slots_taken)) [[unlikely]] {
            break;
        }
        if (take(session, request, slots_taken) == Take::later || session.broken()) {
            break;
        }
        if (client != nullptr) [[unlikely]] {
            use_share(session, request, slots_taken);
        }
        slots_taken += slots;
        ++requests;
    }
    session.release(slots_taken);
    return requests;
}

[[gnu::always_inline]] inline void Worker::use_share(WorkerSession& session, const WorkRequest& request, std::size_t slot) noexcept {
    const bool carries = request.opcode < Opcode::local_inv && !is_recv(request.opcode);
    const std::uint64_t bytes = carries ? message_length(request, session.submissions(), slot) : 0;
    session.options().client->use(bytes);
}

// For one completion beside all that are owed already: only a session that miscounts has none.
[[gnu::always_inline]] inline bool Worker::completion_room(WorkerSession& session) noexcept {
    if (session.completion_room(1) == 0) [[unlikely]] {
        session.break_off(turn_);
        return false;
    }
    return true;
}

[[gnu::always_inline]] inline Worker::Take Worker::take(WorkerSession& session, const WorkRequest& request, std::size_t slot) noexcept {
    if (request.opcode >= Opcode::srq_recv) [[unlikely]] {
        return take_other(session, request, slot);
    }
    if (!completion_room(session)) [[unlikely]] {
        return Take::later;
    }
    if (session.closing()) [[unlikely]] {
        session.refuse(turn_, request, Status::session_closed);
        return Take::taken;
    }
    Share& share = session.share(request.qp.index & qps_mask_);
    if (share.qp() == nullptr || (share.handle() != request.qp && !planted(Bug::stale_handle))) [[unlikely]] {
        session.refuse(turn_, request, Status::request_refused);
        return Take::taken;
    }
    return is_recv(request.opcode) ? take_recv(session, *share.qp(), share, request, slot)
                                   : take_send(session, *share.qp(), share, request, slot);
}

[[gnu::always_inline]] inline Worker::Take Worker::take_recv(WorkerSession& session, WorkerQp& qp, Share& share, const WorkRequest& request,
                               std::size_t slot) noexcept {
    if (share.recvs_full() || request.num_sge > qp.sges_max || qp.recvs.full()) [[unlikely]] {
        session.refuse(turn_, request, Status::request_refused);
        return Take::taken;
    }
    if (qp.parked != 0 || over_budget(qp)) [[unlikely]] {
        return Take::later;
    }
    if (!chain_room(request.num_sge, 0)) [[unlikely]] {
        ring_doorbells();
    }
    session.take_recv(share);
    const std::uint32_t position = qp.recvs.next_position();
    InFlightEntry& entry = qp.recvs.push();
    entry = entry_of(session, request, kSignaled, request.num_sge);
    if (qp.state == QpState::error) [[unlikely]] {
        // Some providers never flush a receive that is posted in ERR (H1), so it is not posted.
        entry.kind = InFlightEntry::Kind::unposted;
        entry.status = qp.unposted_status;
        drain_unposted(qp, qp.recvs);
        return Take::taken;
    }
    const std::span<ibv_sge> sges = gather(session.submissions(), request, slot);
    if (sges.size() > 1) {
        qp.recvs.push_more_keys(sges.subspan(1));
    }
    ibv_recv_wr& wr = recv_wrs_[recv_wrs_used_++];
    wr.wr_id = WrId{qp.handle, true, position}.pack();
    wr.next = nullptr;
    wr.sg_list = sges.data();
    wr.num_sge = request.num_sge;
    turn_.counters.receives.add();
    chain(qp, wr);
    if (qp.flow != nullptr) [[unlikely]] {
        count_posted(qp, 1);
    }
    return Take::taken;
}

// Null for a handle that is stale, or of another protection domain, hence of another device too.
[[gnu::noinline]] ibv_ah* Worker::find_ah(const WorkerQp& qp, AhHandle handle) const noexcept {
    const WorkerAh* ah = handle.index < ahs_.size() ? ahs_[handle.index] : nullptr;
    return ah != nullptr && ah->handle == handle && ah->pd == qp.pd ? ah->ah : nullptr;
}

[[gnu::always_inline]] inline Worker::Take Worker::take_send(WorkerSession& session, WorkerQp& qp, Share& share, const WorkRequest& request,
                               std::size_t slot) noexcept {
    const bool is_inline = (request.flags & kInline) != 0;
    if (!allows(qp.opcodes, request.opcode) || share.sends_full() || qp.sends.full() ||
        request.num_sge > qp.sges_max || qp.state == QpState::init ||
        (is_inline && (request.sge.length > qp.inline_max || !allows(kInlineOpcodes, request.opcode))) ||
        (is_atomic(request.opcode) && (request.remote_addr % sizeof(std::uint64_t) != 0 || request.num_sge != 1 ||
                                       request.sge.length != sizeof(std::uint64_t))) ||
        (request.opcode >= Opcode::local_inv && !admits_keys(qp, request))) [[unlikely]] {
        session.refuse(turn_, request, Status::request_refused);
        return Take::taken;
    }
    if ((qp.parked != 0 && qp.state != QpState::error) || over_budget(qp)) [[unlikely]] {
        return Take::later;
    }
    ibv_ah* ah = nullptr;
    if (qp.datagram) [[unlikely]] {
        ah = find_ah(qp, request.ud.ah());
        if (ah == nullptr) {
            session.refuse(turn_, request, Status::request_refused);
            return Take::taken;
        }
    }
    session.take_sends(share, 1);
    if ((request.flags & kSignaled) == 0) {
        session.take_unsignaled();
    }
    if ((request.flags & RequestHead::kReplyInLine) != 0) {
        session.expect_reply(slot);
    }
    // In error, too, as long as what waits has not ended: the request ends behind it.
    if (qp.flow != nullptr && (qp.state != QpState::error || qp.failing || qp.flush_held)) [[unlikely]] {
        const std::uint64_t length = message_length(request, session.submissions(), slot);
        const bool fits = length <= qp.flow->message_max || !is_send(request.opcode);
        if ((!fits || !qp.flow->admit(request.opcode, static_cast<std::uint32_t>(length))) &&
            take_blocked(session, qp, share, request, slot, length)) {
            return Take::taken;
        }
    }
    return put_send(session, qp, share, request, session.submissions(), slot, ah);
}

/// Into the queue pair's chain. `slots` has the continuations of the request, which stands in `slot`.
template <class Slots>
inline Worker::Take Worker::put_send(WorkerSession& session, WorkerQp& qp, Share& share,
                                                            const WorkRequest& request, const Slots& slots, std::size_t slot,
                                                            ibv_ah* ah) noexcept {
    const bool is_inline = (request.flags & kInline) != 0;
    const bool signaled = (request.flags & kSignaled) != 0;
    const bool framed = qp.flow != nullptr && qp.flow->rings && is_send(request.opcode);
    const std::size_t inline_bytes = !is_inline ? 0 : framed ? record_bytes(request.sge.length) : inline_room(request.sge.length);
    if (!chain_room(request.num_sge + framed, inline_bytes) || request.opcode == Opcode::bind_mw) [[unlikely]] {
        ring_doorbells();  // a bind goes by itself, behind what was submitted before it
    }
    const std::uint32_t position = qp.sends.next_position();
    InFlightEntry& entry = qp.sends.push();
    entry = entry_of(session, request, InFlightEntry::known(request.flags), is_inline ? std::uint8_t{0} : request.num_sge);
    if (ah != nullptr) [[unlikely]] {
        entry.ah = request.ud.ah();
    }
    if (request.submitted_at != 0) [[unlikely]] {
        session.begin_sample(turn_, entry, request.submitted_at);
    }
    if (qp.state == QpState::error) [[unlikely]] {
        entry.kind = InFlightEntry::Kind::unposted;
        entry.status = qp.unposted_status;
        if (request.opcode == Opcode::bind_mw) {
            begin_bind(entry, request);
        }
        drain_unposted(qp, qp.sends);
        due(qp);
        return Take::taken;
    }
    const bool signal = signaled || must_signal(session, qp, share);
    qp.unsignaled_run = signal ? 0 : qp.unsignaled_run + 1;
    if (signal && !signaled) {
        turn_.counters.forced_signals.add();
    }
    if (request.opcode == Opcode::bind_mw) [[unlikely]] {
        post_bind(qp, request,
                  (request.flags & kFence) | (signal ? unsigned{IBV_SEND_SIGNALED} : 0u));
        return Take::taken;
    }

    ibv_send_wr& wr = wrs_[wrs_used_++];
    wr.wr_id = WrId{qp.handle, false, position}.pack();
    wr.send_flags = (request.flags & (kFence | kSolicited | kInline)) | (signal ? unsigned{IBV_SEND_SIGNALED} : 0u);
    if (ah != nullptr) [[unlikely]] {
        fill_datagram(wr, request, ah);
    } else {
        fill(wr, request);
    }
    if (is_inline) {
        wr.sg_list = gather_inline(slots, request, slot, inline_bytes);
        wr.num_sge = 1;
    } else {
        const std::span<ibv_sge> sges = gather(slots, request, slot);
        wr.sg_list = sges.data();
        wr.num_sge = request.num_sge;
        if (sges.size() > 1) {
            qp.sends.push_more_keys(sges.subspan(1));
        }
    }
    if (framed) [[unlikely]] {
        sges_used_ += !is_inline;
        frame(qp, wr, request, position);
    }
    *qp.send_end = &wr;
    qp.send_end = &wr.next;
    turn_.counters.sends.add();
    chain(qp);
    return Take::taken;
}

/// With flow control: what is too long for a receive of the peer's, as far as is known, or has no credit. False: it is to be posted after all.
[[gnu::noinline]] bool Worker::take_blocked(WorkerSession& session, WorkerQp& qp, Share& share, const WorkRequest& request, std::size_t slot,
                                          std::uint64_t length) noexcept {
    if (is_too_long(qp, request, length)) {
        session.give_up(turn_, share, request, Status::message_too_long);
        return true;
    }
    const auto bytes = static_cast<std::uint32_t>(length);
    if (!qp.flow->must_announce(request.opcode, bytes)) {
        return keep_waiting(session, qp, request, slot, bytes);
    }
    if (qp.flow->admit(request.opcode, bytes) || !keep_waiting(session, qp, request, slot, bytes)) {
        announce(session, qp, request);
    }
    return true;
}

// What waits for credit, as far as it goes.
[[gnu::noinline]] std::uint32_t Worker::post_waiting(WorkerQp& qp) noexcept {
    CreditFlow& flow = *qp.flow;
    std::uint32_t posted = 0;
    while (!flow.waiting.empty() && !flow.announced.open() && !over_budget(qp)) {
        const WorkRequest request = flow.waiting.copy(0);
        const std::uint64_t bytes = takes_receive(request.opcode) ? message_length(request, flow.waiting, 0) : 0;
        const auto length = static_cast<std::uint32_t>(bytes);
        // What rings the doorbells does so now: if the provider refuses something, and the connection ends of it, what stands here
        // ends too.
        if (!chain_room(kSgesMax + 1, record_bytes(kInlineMax)) || request.opcode == Opcode::bind_mw ||
            flow.must_announce(request.opcode, length)) {
            ring_doorbells();
            if (qp.state == QpState::error) {
                break;
            }
        }
        if (takes_receive(request.opcode)) {
            if (is_too_long(qp, request, bytes)) {  // it was taken before the peer had said what it takes
                WorkerSession& session = flow.waiting.front_session();
                session.give_up(turn_, session.share(qp.handle.index), request, Status::message_too_long);
                flow.waiting.pop(slots_of(request));
                ++posted;
                continue;
            }
            if (!flow.has_credit(length) && (!take_grants(qp) || !flow.has_credit(length))) {
                break;
            }
            flow.consume(length);
        }
        WorkerSession& session = flow.waiting.front_session();
        if (flow.must_announce(request.opcode, length)) {
            announce(session, qp, request);
        } else {
            post_kept(session, qp, request);
        }
        flow.waiting.pop(slots_of(request));
        ++posted;
    }
    ring_doorbells();
    return posted;
}

/// The front of those that wait for credit goes on its way.
[[gnu::noinline]] void Worker::post_kept(WorkerSession& session, WorkerQp& qp, const WorkRequest& request) noexcept {
    if (request.opcode == Opcode::bind_mw) {
        let_bind_go(request);
    }
    (void)put_send(session, qp, session.share(qp.handle.index), request, qp.flow->waiting, 0, nullptr);
}

/// What concerns no queue pair.
[[gnu::noinline]] Worker::Take Worker::take_other(WorkerSession& session, const WorkRequest& request,
                                                  std::size_t slot) noexcept {
    if (request.opcode == Opcode::release) {
        return take_release(session, request);  // makes no completion
    }
    if (!completion_room(session)) {
        return Take::later;
    }
    if (session.closing() || request.opcode != Opcode::srq_recv) {
        session.refuse(turn_, request, session.closing() ? Status::session_closed : Status::request_refused);
        return Take::taken;
    }
    return take_shared_recv(session, request, slot);
}

Worker::Take Worker::take_shared_recv(WorkerSession& session, const WorkRequest& request, std::size_t slot) noexcept {
    WorkerSrq* srq = find_srq(request.srq);
    if (srq == nullptr || srq->session != &session || request.num_sge > srq->sges_max || srq->receives.full() ||
        srq->pool.pool != nullptr) {
        session.refuse(turn_, request, Status::request_refused);
        return Take::taken;
    }
    if (srq->closing) {
        session.refuse(turn_, request, srq->leftover_status);
        return Take::taken;
    }
    if (!chain_room(request.num_sge, 0)) {
        ring_doorbells();
    }
    session.take_shared_recv();
    const std::uint32_t at = srq->receives.take();
    srq->receives.at(at) = {.tag = request.tag,
                            .session = &session,
                            .lkey = request.sge.lkey,
                            .opcode = request.opcode,
                            .flags = kSignaled,
                            .num_sge = request.num_sge};
    const std::span<ibv_sge> sges = gather(session.submissions(), request, slot);
    if (sges.size() > 1) {
        srq->receives.set_more_keys(at, sges.subspan(1));
    }
    ibv_recv_wr& wr = recv_wrs_[recv_wrs_used_++];
    wr.wr_id = SrqWrId{srq->handle, at}.pack();
    wr.next = nullptr;
    wr.sg_list = sges.data();
    wr.num_sge = request.num_sge;
    chain(*srq, wr);
    turn_.counters.receives.add();
    return Take::taken;
}

// ---- Chains ----

static_assert(sizeof(Sge) == sizeof(ibv_sge) && offsetof(Sge, addr) == offsetof(ibv_sge, addr) &&
              offsetof(Sge, length) == offsetof(ibv_sge, length) && offsetof(Sge, lkey) == offsetof(ibv_sge, lkey));

// The request's SGEs in the worker's own memory: the first from its line, the rest from continuations.
template <class Slots>
inline std::span<ibv_sge> Worker::gather(const Slots& slots, const WorkRequest& request, std::size_t slot) noexcept {
    ibv_sge* to = &sges_[sges_used_];
    const std::size_t n = request.num_sge;
    sges_used_ += n;
    if (n > 0) {
        *to = {.addr = request.sge.addr, .length = request.sge.length, .lkey = request.sge.lkey};
    }
    for (std::size_t next = 1; next < n;) {
        const auto more = std::bit_cast<WorkRequestContinuation>(slots.copy(++slot));
        const std::size_t here = std::min(WorkRequestContinuation::kSges, n - next);
        std::memcpy(&to[next], more.payload.data(), here * sizeof(Sge));
        next += here;
    }
    return {to, n};
}

template <class Slots>
inline ibv_sge* Worker::gather_inline(const Slots& slots, const WorkRequest& request, std::size_t slot,
                                                             std::size_t room) noexcept {
    std::byte* bytes = &inline_[inline_used_];
    const std::uint32_t length = request.sge.length;
    inline_used_ += room;
    if (length <= WorkRequest::kOwnPayload) {
        // Whole words, whatever the length: each is then read as it was written.
        std::memcpy(bytes, &request.swap, sizeof(request.swap));
        std::memcpy(bytes + sizeof(request.swap), &request.sge.addr, sizeof(request.sge.addr));
    } else {
        gather_continuations(slots, slot, {bytes, length});
    }
    ibv_sge* sge = &sges_[sges_used_++];
    *sge = {.addr = reinterpret_cast<std::uintptr_t>(bytes), .length = length, .lkey = 0};
    return sge;
}

void Worker::chain(WorkerSrq& srq, ibv_recv_wr& wr) noexcept {
    (srq.tail != nullptr ? srq.tail->next : srq.head) = &wr;
    srq.tail = &wr;
    if (!srq.chained) {
        srq.chained = true;
        srq.next_chained = std::exchange(chained_srqs_, &srq);
    }
}

}  // namespace pollcore
