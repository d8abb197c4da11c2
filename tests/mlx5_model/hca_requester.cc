// Sends the requests of a queue pair in order, with the retries of InfiniBand Architecture Specification 1.4, 9.7.5.2
// and 9.9.2.
#include <endian.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "hca_fabric.hpp"
#include "hca_queue_pair.hpp"

namespace mlx5_model {
namespace {

constexpr std::uint8_t kForEver = 7;
constexpr std::uint64_t kMessageMax = 1u << 30;
constexpr std::uint64_t kNever = std::numeric_limits<std::uint64_t>::max();
constexpr std::uint32_t kOwnQkey = 0x80000000;

std::uint64_t timeout_ns(std::uint8_t timeout) {
    return timeout == 0 ? kNever : 4096ull << timeout;
}

// Table 45, "Encoding for RNR NAK Timer Field", in tens of microseconds.
std::uint64_t rnr_ns(std::uint8_t timer) {
    static constexpr std::uint32_t kTens[32] = {65536, 1,    2,    3,    4,    6,     8,     12,    16,    24,   32,
                                                48,    64,   96,   128,  192,  256,   384,   512,   768,   1024, 1536,
                                                2048,  3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152};
    return std::uint64_t{kTens[timer & 31]} * 10'000;
}

std::uint32_t mtu_bytes(std::uint32_t mtu) {
    return 128u << mtu;
}

}  // namespace

QueuePair* QueuePair::peer(const SendWqe& wqe) const {
    if (facts_.type == IBV_QPT_UD) {
        QueuePair* to = facts_.hca->fabric().find(wqe.dest_gid, wqe.dest_qpn);
        const std::uint32_t qkey = (wqe.qkey & kOwnQkey) != 0 ? attributes_.qkey : wqe.qkey;
        return to != nullptr && to->facts_.type == IBV_QPT_UD && to->attributes_.qkey == qkey ? to : nullptr;
    }
    ibv_gid gid;
    std::memcpy(gid.raw, attributes_.dest.dgid, sizeof gid.raw);
    QueuePair* to = facts_.hca->fabric().find(gid, attributes_.dest_qp_num);
    return to != nullptr && to->facts_.type == facts_.type && to->attributes_.dest_qp_num == facts_.number ? to
                                                                                                           : nullptr;
}

int QueuePair::serve(int most, std::uint64_t now_ns) {
    if (send_cq_->lost() || recv_cq_->lost()) {
        if (state_ == IBV_QPS_RTR || state_ == IBV_QPS_RTS || state_ == IBV_QPS_SQD || state_ == IBV_QPS_SQE) {
            raise(IBV_EVENT_QP_FATAL);
            enter_error(now_ns);
        }
    }
    int ended = 0;
    switch (state_) {
        case IBV_QPS_RTS: break;
        case IBV_QPS_ERR: flush_receives(now_ns); [[fallthrough]];
        case IBV_QPS_SQE: flush_sends(most, ended, now_ns); return ended;
        default: return 0;
    }
    while (ended < most && state_ == IBV_QPS_RTS) {
        const SendWqe* wqe = sends_.next();
        if (wqe == nullptr || wait_until_ns_ > now_ns || carry_out(*wqe, now_ns) == Outcome::waits) {
            break;
        }
        facts_.hca->fabric().journal.write(facts_.number, *wqe);
        sends_.done();
        ++ended;
    }
    return ended;
}

void QueuePair::flush_sends(int most, int& ended, std::uint64_t now_ns) {
    for (const SendWqe* wqe = nullptr; ended < most && (wqe = sends_.next()) != nullptr; ++ended) {
        error_cqe(*send_cq_, true, MLX5_CQE_SYNDROME_WR_FLUSH_ERR, 0, wqe->index, wqe->opcode, now_ns);
        facts_.hca->fabric().journal.write(facts_.number, *wqe);
        sends_.done();
    }
}

QueuePair::Outcome QueuePair::carry_out(const SendWqe& wqe, std::uint64_t now_ns) {
    answer_size_ = 0;
    if (wait_until_ns_ == 0) {
        if (const auto planned = facts_.hca->fabric().faults.next_send_error(facts_.number)) {
            return fail(wqe, planned->syndrome, now_ns, planned->vendor_syndrome);
        }
    }
    if (wqe.opcode == MLX5_OPCODE_NOP) {
        return succeed(wqe, now_ns);
    }
    if (wqe.opcode == MLX5_OPCODE_UMR) {
        const bool bound = facts_.hca->keys.bind(wqe.bind, facts_.pd, facts_.number);
        return bound ? succeed(wqe, now_ns) : fail(wqe, MLX5_CQE_SYNDROME_MW_BIND_ERR, now_ns);
    }
    const std::uint64_t length = wqe.length();
    if (length > kMessageMax || (facts_.type == IBV_QPT_UD && length > mtu_bytes(Hca::kMtu))) {
        return fail(wqe, MLX5_CQE_SYNDROME_LOCAL_LENGTH_ERR, now_ns);
    }
    Pieces local;
    if (wqe.is_inline) {
        local.add(const_cast<std::uint8_t*>(wqe.inline_data), wqe.inline_bytes);
    }
    for (int i = 0; i < wqe.segment_count; ++i) {
        const DataSegment& segment = wqe.segments[i];
        void* at = facts_.hca->keys.local(segment.lkey, segment.address, segment.length, facts_.pd,
                                          wqe.answers_with_data() ? IBV_ACCESS_LOCAL_WRITE : 0);
        if (at == nullptr) {
            return fail(wqe, MLX5_CQE_SYNDROME_LOCAL_PROT_ERR, now_ns);
        }
        local.add(at, segment.length);
    }
    if (wqe.answers_with_data() && facts_.payload_in_sender_cqe && length > 0 && length <= send_cq_->scatter_max()) {
        Pieces small;
        answer_size_ = static_cast<std::uint32_t>(length);
        small.add(answer_bytes_, answer_size_);
        return ask(wqe, small, now_ns);
    }
    return ask(wqe, local, now_ns);
}

QueuePair::Outcome QueuePair::ask(const SendWqe& wqe, const Pieces& local, std::uint64_t now_ns) {
    const bool reliable = facts_.type == IBV_QPT_RC;
    if (reliable && silences_ > attributes_.retry_cnt) {
        return fail(wqe, MLX5_CQE_SYNDROME_TRANSPORT_RETRY_EXC_ERR, now_ns);
    }
    Fabric& fabric = facts_.hca->fabric();
    const Fate fate = fabric.faults.next_fate(facts_.number, reliable);
    QueuePair* to = fate == Fate::is_lost || !facts_.hca->port_up() ? nullptr : peer(wqe);
    const Request request{wqe, local, facts_.hca->facts().gid, facts_.number, next_sequence_};
    Answer answer;
    if (to != nullptr) {
        answer = to->answer(request, now_ns);
        if (fate == Fate::arrives_twice) {
            to->answer(request, now_ns);
        }
        // A refusal is never lost. After a refusal the responder is in error and does not answer again, so the
        // requester could not learn the reason.
        if (fate == Fate::answer_is_lost && answer.kind == Answer::Kind::acknowledged) {
            answer = {};
        }
    }
    if (!reliable) {
        next_sequence_ = (next_sequence_ + 1) & kSequenceMask;
        return succeed(wqe, now_ns);
    }
    switch (answer.kind) {
        case Answer::Kind::silent: return wait_for_answer(wqe, now_ns);
        case Answer::Kind::not_ready: return wait_for_receiver(wqe, answer.rnr_timer, now_ns);
        case Answer::Kind::invalid_request: return fail(wqe, MLX5_CQE_SYNDROME_REMOTE_INVAL_REQ_ERR, now_ns);
        case Answer::Kind::access_error: return fail(wqe, MLX5_CQE_SYNDROME_REMOTE_ACCESS_ERR, now_ns);
        case Answer::Kind::operational_error: return fail(wqe, MLX5_CQE_SYNDROME_REMOTE_OP_ERR, now_ns);
        case Answer::Kind::acknowledged: break;
    }
    if (wqe.opcode == MLX5_OPCODE_ATOMIC_CS || wqe.opcode == MLX5_OPCODE_ATOMIC_FA) {
        Pieces found;
        found.add(&answer.found, sizeof answer.found);
        copy(local, found);
    }
    next_sequence_ = (next_sequence_ + 1) & kSequenceMask;
    return succeed(wqe, now_ns);
}

QueuePair::Outcome QueuePair::wait_for_answer(const SendWqe&, std::uint64_t now_ns) {
    ++silences_;
    const std::uint64_t wait = timeout_ns(attributes_.timeout & 31);
    wait_until_ns_ = wait == kNever ? kNever : now_ns + wait;
    return Outcome::waits;
}

QueuePair::Outcome QueuePair::wait_for_receiver(const SendWqe& wqe, std::uint8_t rnr_timer, std::uint64_t now_ns) {
    if (attributes_.rnr_retry != kForEver && rnr_naks_++ >= attributes_.rnr_retry) {
        return fail(wqe, MLX5_CQE_SYNDROME_RNR_RETRY_EXC_ERR, now_ns);
    }
    silences_ = 0;
    wait_until_ns_ = now_ns + rnr_ns(rnr_timer);
    return Outcome::waits;
}

QueuePair::Outcome QueuePair::succeed(const SendWqe& wqe, std::uint64_t now_ns) {
    wait_until_ns_ = 0;
    silences_ = rnr_naks_ = 0;
    if (!wqe.signaled) {
        return Outcome::done;
    }
    mlx5_cqe64 cqe{};
    cqe.srqn_uidx = htobe32(facts_.user_index);
    cqe.byte_cnt = htobe32(static_cast<std::uint32_t>(wqe.length()));
    cqe.sop_drop_qpn = htobe32(std::uint32_t{wqe.opcode} << 24 | facts_.number);
    cqe.wqe_counter = htobe16(wqe.index);
    cqe.op_own = MLX5_CQE_REQ << 4;
    send_cq_->write(cqe, answer_bytes_, answer_size_, false, now_ns);
    return Outcome::done;
}

QueuePair::Outcome QueuePair::fail(const SendWqe& wqe, std::uint8_t syndrome, std::uint64_t now_ns,
                                   std::uint8_t vendor_syndrome) {
    wait_until_ns_ = 0;
    silences_ = rnr_naks_ = 0;
    error_cqe(*send_cq_, true, syndrome, vendor_syndrome, wqe.index, wqe.opcode, now_ns);
    if (facts_.type == IBV_QPT_RC) {
        enter_error(now_ns);
    } else {
        state_ = IBV_QPS_SQE;
    }
    return Outcome::done;
}

}  // namespace mlx5_model
