#include "worker/ordinary.hpp"

#include <arpa/inet.h>

#include <algorithm>

#include "base/bare.hpp"
#include "base/planted.hpp"
#include "worker/tables.hpp"

namespace pollcore {
namespace {

// At most this many completions are published to a session together, because the first completion waits for the last
// (D7).
constexpr std::uint32_t kPublishedAtOnce = 32;

/// Returns how many of `wanted` ordinary requests may be taken so that each completion has a slot (I3) and the chains
/// have room.
[[gnu::always_inline]] inline std::uint32_t room(const Turn& turn, WorkerSession& session,
                                                 std::uint32_t wanted) noexcept {
    const auto chain = static_cast<std::uint32_t>(std::min<std::size_t>(wanted, turn.chains.ordinary_room()));
    if (!kAdmission) {
        return chain;
    }
    return session.closing() ? 0 : std::min(chain, session.completion_room(wanted));
}

// Requests for one queue pair often follow each other. For such a run, the queue pair is looked up once, and its counts
// are updated once (D8).
struct SendRun {
    static constexpr std::uint64_t kNone = ~std::uint64_t{0};  // not the bits of any handle

    std::uint64_t handle = kNone;
    WorkerQp* qp = nullptr;
    Share* share = nullptr;
    std::uint32_t message_max = 0;
    bool limited = false;  // the queue pair's gate limits messages
    // Requests that the run may still take. Of 64 bits, because gcc 12 computes minima of 32 bits in vector registers.
    std::uint64_t left = 0;
    std::uint32_t taken = 0;  // requests that count() has not counted yet
    std::uint64_t bytes = 0;  // of these requests
    ibv_send_wr** end = nullptr;

    /// Begins a run. Returns false if there is no such queue pair, or if the session has no part in it.
    [[gnu::always_inline]] bool begin(const Turn& turn, std::uint32_t qps_mask, WorkerSession& session,
                                      RequestHead head) noexcept {
        handle = kNone;
        share = &session.share(head.qp_index() & qps_mask);
        qp = share->qp();
        if (qp == nullptr || bits_of(share->handle()) != head.qp_bits()) [[unlikely]] {
            return false;
        }
        SendQueue& sends = qp->sends();
        left = sends.budget_left(turn);
        if (kAdmission) {
            left = std::min<std::uint64_t>(left, share->send_room());
            left = std::min<std::uint64_t>(left, sends.entries().room());
        }
        limited = qp->gate().limited();
        if (limited) [[unlikely]] {
            // The credit also limits writes and reads, which need none: counting them separately does not pay.
            left = std::min<std::uint64_t>(left, qp->gate().credit());
            message_max = qp->gate().message_max();
        }
        handle = head.qp_bits();
        end = sends.chain_end();
        return true;
    }
    /// Adds the taken requests to the counts of the session and the queue.
    [[gnu::always_inline]] void count(WorkerSession& session) noexcept {
        session.take_sends(*share, taken);
        qp->sends().use_budget(taken);
        qp->sends().count(taken, bytes);
        taken = 0;
        bytes = 0;
    }
    /// Ends the run: counts the taken requests, and gives the queue pair its chain.
    [[gnu::always_inline]] void settle(Turn& turn, WorkerSession& session) noexcept {
        if (handle == kNone || end == qp->sends().chain_end()) {
            return;
        }
        count(session);
        qp->sends().set_chain_end(end);
        turn.chains.sends.add(*qp);
    }
};

// A run of completions of one queue pair and one session, whose counts are updated once (D8).
struct EndRun {
    std::uint64_t handle = SendRun::kNone;
    WorkerQp* qp = nullptr;
    WorkerSession* session = nullptr;
    std::uint32_t ended = 0;  // requests that settle() has not counted yet
    // completions, of any queue pair, that are written to the session's ring and not published yet
    std::uint32_t written = 0;
    std::uint32_t most = 0;  // how many completions may be written before they are published

    [[gnu::always_inline]] void settle() noexcept {
        if (kAdmission && ended != 0) {
            session->end_sends(qp->handle().index, ended);
            ended = 0;
        }
    }
    [[gnu::always_inline]] void publish(Turn& turn) noexcept {
        if (written != 0) {
            session->publish_written(turn, written);
        }
    }
    /// Ends the first entry of the send queue, which is ordinary. `expected` is the number of completions that may
    /// follow, including this one. Returns false if the entry must go the general way.
    [[gnu::always_inline]] bool end(Turn& turn, WorkerCq& cq, InFlightTable& sends, std::uint32_t byte_len,
                                    std::uint32_t expected) noexcept {
        const InFlightEntry& entry = sends.front();
        if (entry.replies_in_line()) [[unlikely]] {
            if (!entry.session->complete_in_line(turn, qp->handle().index, byte_len)) {
                return false;
            }
            cq.forget(*entry.session);  // so that the next poll does not prefetch a line of the completion ring
            (void)sends.pop();
            return true;
        }
        if (entry.session != session || written >= most) {
            settle();
            publish(turn);
            session = entry.session;
            written = 0;
            most = session->write_room(std::min(expected, kPublishedAtOnce));
            if (most == 0) [[unlikely]] {
                return false;
            }
        }
        if (!planted(Bug::lost_ordinary)) {
            session->write(written++, entry.tag, handle, byte_len, entry.opcode);
        }
        (void)sends.pop();
        ++ended;
        return true;
    }
    /// Ends the first `n` entries, which complete together with the entry behind them. Returns false if an entry must
    /// go the general way.
    [[gnu::always_inline]] bool end_covered(Turn& turn, WorkerCq& cq, InFlightTable& sends, std::uint32_t n) noexcept {
        if (n >= sends.size()) [[unlikely]] {
            return false;
        }
        for (; n > 0; --n) {
            const InFlightEntry& entry = sends.front();
            if (!entry.is_ordinary(InFlightEntry::Kind::covered) || entry.session->wide() ||
                !end(turn, cq, sends, entry.covered_byte_len(), n + 1)) [[unlikely]] {
                return false;
            }
        }
        return true;
    }
};

/// For a send that invalidates the key that `wr` has as an immediate. Returns true if the entry replies in line.
[[gnu::cold, gnu::noinline]] bool invalidate(ibv_send_wr& wr, InFlightEntry& entry) noexcept {
    wr.invalidate_rkey = ntohl(wr.imm_data);
    entry.end_as_send();
    return entry.replies_in_line();
}

}  // namespace

std::uint32_t take_ordinary(Turn& turn, std::uint32_t qps_mask, WorkerSession& session, std::uint32_t taken) noexcept {
    // `taken` may be more than the burst, because it includes the continuations of a request.
    const std::uint32_t most =
        room(turn, session, turn.options.submit_burst - std::min(taken, turn.options.submit_burst));
    ibv_send_wr* wr = turn.chains.send_wrs();
    ibv_sge* sge = turn.chains.sges();
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
            run.settle(turn, session);
            if (!run.begin(turn, qps_mask, session, head)) [[unlikely]] {
                break;
            }
        }
        WorkerQp* const qp = run.qp;
        if (!head.is_plain() || !head.is_one_of(qp->ordinary()) || run.left == 0) [[unlikely]] {
            break;
        }
        const SharedWords request = front.words(at);
        // Each word is read only once, so the checked value is the value that is used (I7).
        std::uint64_t addr = request[2];
        std::uint64_t length_and_lkey = request[3];
        const std::uint64_t rkey_and_sample = request[6];
        const auto length = static_cast<std::uint32_t>(length_and_lkey);
        const bool is_inline = (head.flags() & kInline) != 0;
        if (is_inline && (length > std::min<std::uint32_t>(WorkRequest::kOwnPayload, qp->inline_max()) ||
                          !head.is_one_of(kInlineOpcodes))) [[unlikely]] {
            break;
        }
        const bool takes_credit = run.limited && takes_receive(head.opcode());
        if (takes_credit && is_send(head.opcode()) && length > run.message_max) [[unlikely]] {
            break;
        }
        if (ClientShare* const client = session.options().client; client != nullptr) [[unlikely]] {
            if (!session.has_share_left(turn, at)) {
                break;
            }
            client->use(length);  // without an SGE, an honest session's length is 0
        }
        if (is_inline) {
            head = head.as_inline();
            auto* const payload = reinterpret_cast<Word*>(turn.chains.take_inline(WorkRequest::kOwnPayload));
            payload[0] = request[1];
            payload[1] = addr;
            addr = reinterpret_cast<std::uintptr_t>(payload);
            length_and_lkey = length;
            wr->num_sge = 1;
        } else {
            wr->num_sge = static_cast<int>(head.num_sge());
        }

        // Now the request is taken: nothing below can refuse it.
        if (takes_credit) {
            qp->gate().take(1);
        }
        --run.left;
        ++run.taken;
        run.bytes += length;
        SendQueue& sends = qp->sends();
        const std::uint32_t position = sends.entries().next_position();
        InFlightEntry& entry = sends.entries().push();
        entry.post(request[0], &session, static_cast<std::uint32_t>(length_and_lkey >> 32), head);
        wr->imm_data = htonl(static_cast<std::uint32_t>(request[5]));  // read only if the opcode has an immediate
        if (head.invalidates_or_replies()) [[unlikely]] {
            if (head.opcode() != Opcode::send_with_inv || invalidate(*wr, entry)) [[likely]] {
                session.expect_reply(at);
            }
        }
        if (const auto since = static_cast<std::uint32_t>(rkey_and_sample >> 32); kStageLatency && since != 0)
            [[unlikely]] {
            session.begin_sample(turn, entry, since);
        }
        bool signal = (head.flags() & kSignaled) != 0;
        if (!signal) {
            run.count(session);  // so that must_signal() also counts this request
            session.take_unsignaled();
            signal = sends.must_signal() || session.must_signal(*run.share);
            turn.counters.forced_signals.add(signal);
        }
        sends.count_signal(signal);

        wr->wr_id = WrId::pack_send(head.qp_bits(), position);
        wr->sg_list = sge;
        wr->opcode = static_cast<ibv_wr_opcode>(head.opcode());
        wr->send_flags = (head.flags() & (kFence | kSolicited | kInline)) | (signal ? unsigned{IBV_SEND_SIGNALED} : 0u);
        wr->wr.rdma.remote_addr = request[4];
        wr->wr.rdma.rkey = static_cast<std::uint32_t>(rkey_and_sample);
        words_of(*sge)[0] = addr;
        words_of(*sge)[1] = length_and_lkey;
        *run.end = wr;
        run.end = &wr->next;
    }
    run.settle(turn, session);
    const std::uint32_t n = at - taken;
    turn.chains.use(n);
    turn.counters.sends.add(n);
    return n;
}

std::uint32_t route_ordinary(Turn& turn, const Tables& tables, WorkerCq& cq, const ibv_wc* wcs, std::uint32_t i,
                             std::uint32_t n) noexcept {
    EndRun run;
    for (; i < n; ++i) {
        const ibv_wc& wc = wcs[i];
        const std::uint64_t id = wc.wr_id;
        if (wc.status != IBV_WC_SUCCESS || !names_send(id)) [[unlikely]] {
            break;
        }
        if (id >> 32 != run.handle) {
            run.settle();
            run.handle = SendRun::kNone;
            run.qp = tables.qp_at(WrId::unpack(id).qp.index);
            if (run.qp == nullptr || bits_of(run.qp->handle()) != id >> 32 || run.qp->in_error()) [[unlikely]] {
                break;
            }
            run.handle = id >> 32;
        }
        InFlightTable& sends = run.qp->sends().entries();
        if (sends.empty()) [[unlikely]] {
            break;
        }
        if (const std::uint32_t before = sends.offset_of(static_cast<std::uint32_t>(id)); before != 0) [[unlikely]] {
            if (!run.end_covered(turn, cq, sends, before)) {
                break;
            }
        }
        const InFlightEntry& entry = sends.front();
        if (!entry.is_ordinary(InFlightEntry::Kind::posted) || entry.session->wide()) [[unlikely]] {
            break;
        }
        if (!run.end(turn, cq, sends, brings_bytes(entry.opcode) ? wc.byte_len : 0, n - i)) [[unlikely]] {
            break;
        }
    }
    run.settle();
    run.publish(turn);
    if (run.session != nullptr) {
        cq.serve(run.session);
    }
    return i;
}

}  // namespace pollcore
