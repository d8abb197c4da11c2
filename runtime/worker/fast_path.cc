// The way of ordinary requests: one SGE or none, or a payload in the request's own line, on a connected queue pair with nothing
// particular about it, which the device completes with success.
//
// What is decided here is decided in submit.cc and complete.cc too, for all others. These loops only know when to let go: at
// the first request or completion that is not ordinary they end, with everything as if they had not looked at it, and the
// general way decides. So nothing is refused or failed here.
#include <arpa/inet.h>

#include <algorithm>

#include "base/bare.hpp"
#include "base/planted.hpp"
#include "worker/admission.hpp"

namespace pollcore {

// Whatever of this changes has to ask again. Not begin(), which goes on to fail(), nor drop(), after which no share leads here.
void Worker::choose_way(WorkerQp& qp) noexcept {
    const bool framed = qp.flow != nullptr && qp.flow->rings;
    const bool ordinary = qp.state == QpState::ready && qp.parked == 0 && !framed && !qp.datagram;
    qp.ordinary = ordinary ? static_cast<OpcodeMask>(qp.opcodes & RequestHead::kOrdinary) : OpcodeMask{0};
}

/// So many requests may be taken whatever they are: each one's completion has a place (I3), and the chains have room.
[[gnu::always_inline]] inline std::uint32_t Worker::ordinary_room(WorkerSession& session, std::uint32_t wanted) noexcept {
    if (!kAdmission) {
        return static_cast<std::uint32_t>(std::min<std::size_t>(wanted, kChainWrs - wrs_used_));
    }
    if (session.closing()) [[unlikely]] {
        return 0;
    }
    const std::uint32_t room = session.completion_room(wanted);
    const std::size_t chain = std::min({kChainWrs - wrs_used_, kChainSges - sges_used_, (kChainInline - inline_used_) / WorkRequest::kOwnPayload});
    return static_cast<std::uint32_t>(std::min(chain, std::size_t{room}));
}

// Requests of one queue pair often stand together. It is looked up, and its books are kept, once for all of them.
struct Worker::SendRun {
    static constexpr std::uint64_t kNone = ~std::uint64_t{0};  // no handle's bits

    std::uint64_t handle = kNone;
    WorkerQp* qp = nullptr;
    Share* share = nullptr;
    CreditFlow* flow = nullptr;  ///< with credits
    std::uint32_t left = 0;   ///< so many more it may have
    std::uint32_t taken = 0;  ///< and not in the books yet
    ibv_send_wr** end = nullptr;
};

/// False: no such queue pair, the session has no part in it, or what is waiting for credit goes first.
[[gnu::always_inline]] inline bool Worker::begin(SendRun& run, WorkerSession& session, RequestHead head) noexcept {
    run.handle = SendRun::kNone;
    run.share = &session.share(head.qp_index() & qps_mask_);
    run.qp = run.share->qp();
    if (run.qp == nullptr || bits_of(run.share->handle()) != head.qp_bits()) [[unlikely]] {
        return false;
    }
    run.left = kAdmission ? std::min({run.share->send_room(), run.qp->sends.room(), budget_left(*run.qp)})
                          : budget_left(*run.qp);
    run.flow = run.qp->flow.get();
    if (run.flow != nullptr) [[unlikely]] {
        if (!run.flow->flows()) {
            return false;
        }
        run.left = std::min(run.left, run.flow->granted - run.flow->consumed);  // writes and reads need none, and are not worth a count
    }
    run.handle = head.qp_bits();
    run.end = run.qp->send_end;
    return true;
}

/// What was taken of it stands in the books.
[[gnu::always_inline]] inline void Worker::count(SendRun& run, WorkerSession& session) noexcept {
    session.take_sends(*run.share, run.taken);
    run.qp->budget_used += run.taken;
    run.taken = 0;
}

/// The same, and the queue pair has its chain.
[[gnu::always_inline]] inline void Worker::settle(SendRun& run, WorkerSession& session) noexcept {
    if (run.handle == SendRun::kNone || run.end == run.qp->send_end) {
        return;
    }
    count(run, session);
    run.qp->send_end = run.end;
    chain(*run.qp);
}

/// Takes what is ordinary from the slots behind the first `taken`, as far as that goes. Returns how many there were.
std::uint32_t Worker::submit_ordinary(WorkerSession& session, std::uint32_t taken) noexcept {
    // A request with continuations may have gone beyond the burst.
    const std::uint32_t most = ordinary_room(session, turn_.options.submit_burst - std::min(taken, turn_.options.submit_burst));
    ibv_send_wr* wr = wrs_.data() + wrs_used_;
    ibv_sge* sge = sges_.data() + sges_used_;
    const auto front = session.submissions().front();
    SendRun run;
    std::uint32_t at = taken;
    for (const std::uint32_t end = taken + most; at < end; ++at, ++wr, ++sge) {
        std::uint64_t last = 0;
        if (!front.ready(at, last)) {
            break;
        }
        RequestHead head(last);
        if (head.qp_bits() != run.handle) {
            settle(run, session);
            if (!begin(run, session, head)) [[unlikely]] {
                break;
            }
        }
        WorkerQp* const qp = run.qp;
        if (!head.is_plain() || !head.is_one_of(qp->ordinary) || run.left == 0) [[unlikely]] {
            break;
        }
        const SharedWords request = front.words(at);
        // Each word is asked for once, so what was checked is what is used (I7).
        std::uint64_t addr = request[2];
        std::uint64_t length_and_lkey = request[3];
        const std::uint64_t rkey_and_sample = request[6];
        const auto length = static_cast<std::uint32_t>(length_and_lkey);
        const bool is_inline = (head.flags() & kInline) != 0;
        if (is_inline && (length > std::min<std::uint32_t>(WorkRequest::kOwnPayload, qp->inline_max) || !head.is_one_of(kInlineOpcodes))) [[unlikely]] {
            break;
        }
        const bool takes_credit = run.flow != nullptr && takes_receive(head.opcode());
        if (takes_credit && is_send(head.opcode()) && (is_inline || head.num_sge() != 0) && length > run.flow->message_max) [[unlikely]] {
            break;
        }
        if (session.options().client != nullptr) [[unlikely]] {
            if (!session.has_share_left(turn_, at)) {
                break;
            }
            session.options().client->use(is_inline || head.num_sge() != 0 ? length : 0);
        }
        if (is_inline) {
            head = head.as_inline();
            auto* const payload = reinterpret_cast<Word*>(&inline_[inline_used_]);
            inline_used_ += WorkRequest::kOwnPayload;
            payload[0] = request[1];
            payload[1] = addr;
            addr = reinterpret_cast<std::uintptr_t>(payload);
            length_and_lkey = length;
        }

        // From here on it is taken.
        if (takes_credit) {
            ++run.flow->consumed;
        }
        --run.left;
        ++run.taken;
        const std::uint32_t position = qp->sends.next_position();
        InFlightEntry& entry = qp->sends.push();
        entry.post(request[0], &session, static_cast<std::uint32_t>(length_and_lkey >> 32), head);
        if (entry.replies_in_line()) [[unlikely]] {
            session.expect_reply(at);
        }
        if (const auto since = static_cast<std::uint32_t>(rkey_and_sample >> 32); kStageLatency && since != 0) [[unlikely]] {
            session.begin_sample(turn_, entry, since);
        }
        bool signal = (head.flags() & kSignaled) != 0;
        if (!signal) {
            count(run, session);  // with this one
            session.take_unsignaled();
            signal = must_signal(session, *qp, *run.share);
            turn_.counters.forced_signals.add(signal);
        }
        qp->unsignaled_run = signal ? 0 : qp->unsignaled_run + 1;

        wr->wr_id = WrId::pack_send(head.qp_bits(), position);
        wr->sg_list = sge;
        wr->num_sge = is_inline ? 1 : static_cast<int>(head.num_sge());
        wr->opcode = static_cast<ibv_wr_opcode>(head.opcode());
        wr->send_flags = (head.flags() & (kFence | kSolicited | kInline)) | (signal ? unsigned{IBV_SEND_SIGNALED} : 0u);
        wr->imm_data = htonl(static_cast<std::uint32_t>(request[5]));  // read with the opcodes that have one
        wr->wr.rdma.remote_addr = request[4];
        wr->wr.rdma.rkey = static_cast<std::uint32_t>(rkey_and_sample);
        words_of(*sge)[0] = addr;
        words_of(*sge)[1] = length_and_lkey;
        *run.end = wr;
        run.end = &wr->next;
    }
    settle(run, session);
    const std::uint32_t n = at - taken;
    wrs_used_ += n;
    sges_used_ += n;
    turn_.counters.sends.add(n);
    return n;
}

// As SendRun, of completions: of one queue pair and one session.
struct Worker::EndRun {
    std::uint64_t handle = SendRun::kNone;
    WorkerQp* qp = nullptr;
    WorkerSession* session = nullptr;
    std::uint32_t ended = 0;    ///< and not in the books yet
    std::uint32_t written = 0;  ///< to the session's ring, of whichever queue pairs, and not published
    std::uint32_t most = 0;     ///< so many have room there
};

[[gnu::always_inline]] inline void Worker::settle(EndRun& run) noexcept {
    if (kAdmission && run.ended != 0) {
        run.session->end_sends(run.qp->handle.index, run.ended);
        run.ended = 0;
    }
}

/// The same of the completions in wcs_ from the i-th to the n-th. Returns the number of the first that is not ordinary, or n.
std::uint32_t Worker::route_ordinary(WorkerCq& cq, std::uint32_t i, std::uint32_t n) noexcept {
    EndRun run;
    for (; i < n; ++i) {
        const ibv_wc& wc = wcs_[i];
        const std::uint64_t id = wc.wr_id;
        if (wc.status != IBV_WC_SUCCESS || !names_send(id)) [[unlikely]] {
            break;
        }
        if (id >> 32 != run.handle) {
            settle(run);
            run.handle = SendRun::kNone;
            run.qp = qps_[WrId::unpack(id).qp.index & qps_mask_];
            if (run.qp == nullptr || bits_of(run.qp->handle) != id >> 32 || run.qp->state == QpState::error) [[unlikely]] {
                break;
            }
            run.handle = id >> 32;
        }
        InFlightTable& sends = run.qp->sends;
        if (sends.empty() || sends.offset_of(static_cast<std::uint32_t>(id)) != 0) [[unlikely]] {
            break;
        }
        const InFlightEntry& entry = sends.front();
        if (!entry.is_ordinary() || entry.session->wide()) [[unlikely]] {
            break;
        }
        const auto opcode = entry.opcode;
        constexpr OpcodeMask kWithLength = opcode_bit(Opcode::rdma_read) | opcode_bit(Opcode::atomic_cmp_and_swp) | opcode_bit(Opcode::atomic_fetch_and_add);
        const std::uint32_t byte_len = allows(kWithLength, opcode) ? wc.byte_len : 0;
        if (entry.replies_in_line()) [[unlikely]] {
            if (!entry.session->complete_in_line(turn_, run.qp->handle.index, byte_len)) {
                break;
            }
            if (cq.served == entry.session) {
                cq.served = nullptr;  // so that the next poll does not ask for the ring's line
            }
            (void)sends.pop();
            continue;
        }
        if (entry.session != run.session || run.written >= run.most) {
            settle(run);
            publish_written(run.session, run.written);
            run.session = entry.session;
            run.written = 0;
            run.most = run.session->write_room(std::min(n - i, kPublishedAtOnce));
            if (run.most == 0) [[unlikely]] {
                break;
            }
        }
        if (!planted(Bug::lost_ordinary)) {
            run.session->write(run.written++, entry.tag, run.handle, byte_len, opcode);
        }
        (void)sends.pop();
        ++run.ended;
    }
    settle(run);
    publish_written(run.session, run.written);
    if (run.session != nullptr) {
        cq.served = run.session;
    }
    return i;
}

[[gnu::always_inline]] inline void Worker::publish_written(WorkerSession* session, std::uint32_t n) noexcept {
    if (n == 0) {
        return;
    }
    session->publish_written(turn_, n);
}

}  // namespace pollcore
