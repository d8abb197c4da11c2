#include "worker/submitter.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <span>

#include "base/planted.hpp"
#include "worker/ordinary.hpp"

namespace pollcore {

// With many queue pairs, a burst would wait for the cache lines of one queue pair after the other. So this function
// prefetches all these lines first (D12). The words read here serve only for the prefetch, because the application may
// still change them.
[[gnu::noinline]] void Submitter::prefetch_qps(const WorkerSession& session) const noexcept {
    std::array<const WorkerQp*, kBurstMax> qps;
    const auto front = session.submissions().front();
    const std::uint32_t most = turn_.options.submit_burst;
    const std::uint32_t qps_mask = tables_.qps_mask();
    WorkerQp* const* const all = tables_.qps().data();
    const bool lines = tables_.provider_lines();
    std::uint32_t n = 0;
    std::uint64_t last = 0;
    for (; n < most && front.ready(n, last); ++n) {
        const std::uint32_t index = RequestHead(last).qp_index() & qps_mask;
        session.prefetch_share(index);
        const WorkerQp* const qp = all[index];
        qps[n] = qp;
        WorkerQp::prefetch(qp);
        if (lines) {
            WorkerQp::prefetch_provider_lines(qp);
        }
    }
    // Prefetches the provider's doorbell records, which show where the provider will write. The last loop prefetches
    // that memory.
    for (std::uint32_t i = 0; i < n; ++i) {
        if (qps[i] == nullptr) {
            continue;
        }
        qps[i]->sends().entries().prefetch_next();
        __builtin_prefetch(qps[i]->sends().provider());
        if (lines && qps[i]->provider_lines().known()) {
            qps[i]->provider_lines().prefetch_posted();
        }
    }
    for (std::uint32_t i = 0; lines && i < n; ++i) {
        if (qps[i] != nullptr && qps[i]->provider_lines().known() && qps[i]->provider_at_rest()) {
            qps[i]->provider_lines().prefetch_next_block();
        }
    }
}

std::uint32_t Submitter::submit(WorkerSession& session) noexcept {
    if (tables_.many_qps()) {
        prefetch_qps(session);
    }
    std::uint32_t slots_taken = 0;
    std::uint32_t requests = 0;
    std::uint32_t releases = 0;  // of these requests
    for (;;) {
        const std::uint32_t ordinary = take_ordinary(turn_, tables_.qps_mask(), session, slots_taken);
        slots_taken += ordinary;
        requests += ordinary;
        if (slots_taken >= turn_.options.submit_burst || !session.submissions().ready(slots_taken)) {
            break;
        }
        const WorkRequest request = session.submissions().copy(slots_taken);
        const std::uint32_t slots = slots_of(request);
        // A session publishes a request together with its continuations. A request without all its continuations waits
        // here, which delays only this session.
        if (slots > 1 &&
            (slots > session.submissions().capacity() || !session.submissions().ready(slots_taken + slots - 1))) {
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
            const bool carries = !is_local(request.opcode) && !is_recv(request.opcode);
            client->use(carries ? message_length(request, session.submissions(), slots_taken) : 0);
        }
        slots_taken += slots;
        ++requests;
        releases += request.opcode == Opcode::release;
    }
    session.count_accepted(requests - releases);
    session.release(slots_taken);
    return requests;
}

// Returns true if the completion ring has room for one more completion than the requests in flight need. Only a session
// that counts wrongly has no room, so the worker breaks it off.
[[gnu::always_inline]] inline bool Submitter::has_room(WorkerSession& session) noexcept {
    if (session.completion_room(1) == 0) [[unlikely]] {
        session.break_off(turn_);
        return false;
    }
    return true;
}

[[gnu::always_inline]] inline Submitter::Take Submitter::take(WorkerSession& session, const WorkRequest& request,
                                                              std::size_t slot) noexcept {
    if (request.opcode >= Opcode::srq_recv) [[unlikely]] {
        return take_other(session, request, slot);
    }
    if (!has_room(session)) [[unlikely]] {
        return Take::later;
    }
    if (session.closing()) [[unlikely]] {
        session.refuse(turn_, request, Status::session_closed);
        return Take::taken;
    }
    Share& share = session.share(request.qp.index & tables_.qps_mask());
    if (share.qp() == nullptr || (share.handle() != request.qp && !planted(Bug::stale_handle))) [[unlikely]] {
        session.refuse(turn_, request, Status::request_refused);
        return Take::taken;
    }
    return is_recv(request.opcode) ? take_recv(session, share, request, slot)
                                   : take_send(session, share, request, slot);
}

[[gnu::always_inline]] inline Submitter::Take Submitter::take_recv(WorkerSession& session, Share& share,
                                                                   const WorkRequest& request,
                                                                   std::size_t slot) noexcept {
    WorkerQp& qp = *share.qp();
    if (share.recvs_full() || request.num_sge > qp.sges_max() || qp.recvs().full() || qp.life() == QpLife::reset)
        [[unlikely]] {
        session.refuse(turn_, request, Status::request_refused);
        return Take::taken;
    }
    if (qp.parked() || !qp.sends().take_budget(turn_)) [[unlikely]] {
        return Take::later;
    }
    if (!turn_.chains.room(request.num_sge, 0)) [[unlikely]] {
        turn_.chains.ring(turn_);
    }
    session.take_recv(share);
    qp.recvs().take(turn_, session, request, session.submissions(), slot);
    return Take::taken;
}

[[gnu::always_inline]] inline Submitter::Take Submitter::take_send(WorkerSession& session, Share& share,
                                                                   const WorkRequest& request,
                                                                   std::size_t slot) noexcept {
    WorkerQp& qp = *share.qp();
    const bool is_inline = (request.flags & kInline) != 0;
    if (!allows(qp.opcodes(), request.opcode) || share.sends_full() || qp.sends().entries().full() ||
        request.num_sge > qp.sges_max() || qp.life() <= QpLife::init ||
        (is_inline && (request.sge.length > qp.inline_max() || !allows(kInlineOpcodes, request.opcode))) ||
        (is_atomic(request.opcode) && (request.remote_addr % sizeof(std::uint64_t) != 0 || request.num_sge != 1 ||
                                       request.sge.length != sizeof(std::uint64_t))) ||
        (request.opcode >= Opcode::local_inv && !turn_.binds.admits(qp.pd(), request))) [[unlikely]] {
        session.refuse(turn_, request, Status::request_refused);
        return Take::taken;
    }
    if ((qp.parked() && !qp.in_error()) || !qp.sends().take_budget(turn_)) [[unlikely]] {
        return Take::later;
    }
    ibv_ah* ah = nullptr;
    if (qp.datagram()) [[unlikely]] {
        ah = tables_.find(request.ud.ah(), qp.pd());
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
    qp.take(turn_, session, share, request, slot, ah);
    return Take::taken;
}

/// Takes a request that names no queue pair.
[[gnu::noinline]] Submitter::Take Submitter::take_other(WorkerSession& session, const WorkRequest& request,
                                                        std::size_t slot) noexcept {
    if (request.opcode == Opcode::release) {
        take_release(session, request);  // a release has no completion
        return Take::taken;
    }
    if (!has_room(session)) {
        return Take::later;
    }
    if (session.closing() || request.opcode != Opcode::srq_recv) {
        session.refuse(turn_, request, session.closing() ? Status::session_closed : Status::request_refused);
    } else {
        take_shared_recv(session, request, slot);
    }
    return Take::taken;
}

void Submitter::take_shared_recv(WorkerSession& session, const WorkRequest& request, std::size_t slot) noexcept {
    WorkerSrq* srq = tables_.find(request.srq);
    if (srq == nullptr || srq->session() != &session || request.num_sge > srq->options().sges_max ||
        srq->recvs().full() || srq->recvs().pool() != nullptr) {
        session.refuse(turn_, request, Status::request_refused);
        return;
    }
    if (srq->closing()) {
        session.refuse(turn_, request, srq->leftover_status());
        return;
    }
    if (!turn_.chains.room(request.num_sge, 0)) {
        turn_.chains.ring(turn_);
    }
    session.take_shared_recv();
    srq->recvs().take(turn_, session, request, session.submissions(), slot);
}

[[gnu::noinline]] void Submitter::take_release(WorkerSession& session, const WorkRequest& line) noexcept {
    const auto request = std::bit_cast<ReleaseRequest>(line);
    WorkerPool* pool = tables_.find(request.pool);
    if (pool == nullptr || &pool->session() != &session) {
        session.count_refused();
        return;  // the pool was closed, or belongs to another session
    }
    const std::size_t count = std::min<std::size_t>(request.count, ReleaseRequest::kBuffers);
    pool->release(turn_, std::span(request.buffers).first(count));
}

}  // namespace pollcore
