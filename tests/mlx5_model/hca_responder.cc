// Answers the requests of a queue pair's peer, by InfiniBand Architecture Specification 1.4, 9.7.4, 9.7.5.1 and 11.6.2.
#include <endian.h>

#include <algorithm>
#include <atomic>
#include <cstring>

#include "hca_fabric.hpp"
#include "hca_queue_pair.hpp"
#include "uverbs_file.hpp"

namespace mlx5_model {
namespace {

constexpr std::uint32_t kHalfOfSequence = 0x800000;
constexpr std::uint32_t kWithGrh = 1u << 28;
constexpr std::uint32_t kGrhBytes = 40;

// The 40 bytes before a datagram's payload. With RoCE v2 over IPv4 their second half is the IPv4 header (RoCEv2 annex
// A17).
struct DatagramHeader {
    std::uint8_t bytes[kGrhBytes] = {};
};
DatagramHeader datagram_header(const ibv_gid& from, const ibv_gid& to, std::uint32_t payload) {
    DatagramHeader header;
    std::uint8_t* ip = header.bytes + 20;
    constexpr std::uint32_t kAround = 20 + 8 + 12 + 8 + 4;  // IPv4, UDP, BTH, DETH, ICRC
    const std::uint32_t length = kAround + payload;
    ip[0] = 0x45;
    ip[2] = static_cast<std::uint8_t>(length >> 8);
    ip[3] = static_cast<std::uint8_t>(length);
    ip[8] = 64;
    ip[9] = 17;
    std::memcpy(ip + 12, from.raw + 12, 4);
    std::memcpy(ip + 16, to.raw + 12, 4);
    std::uint32_t sum = 0;
    for (int i = 0; i < 20; i += 2) {
        sum += static_cast<std::uint32_t>(ip[i] << 8 | ip[i + 1]);
    }
    while (sum >> 16 != 0) {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    ip[10] = static_cast<std::uint8_t>(~sum >> 8);
    ip[11] = static_cast<std::uint8_t>(~sum);
    return header;
}

}  // namespace

bool QueuePair::hears() const noexcept {
    switch (state_) {
        case IBV_QPS_RTR:
        case IBV_QPS_RTS:
        case IBV_QPS_SQD: return true;
        case IBV_QPS_SQE: return facts_.type != IBV_QPT_RC;
        default: return false;
    }
}

Answer QueuePair::answer(const Request& request, std::uint64_t now_ns) {
    if (!hears() || !facts_.hca->port_up() || recv_cq_->lost()) {
        return {};
    }
    if (state_ == IBV_QPS_RTR && !heard_ && facts_.type != IBV_QPT_UD) {
        heard_ = true;
        raise(IBV_EVENT_COMM_EST);
    }
    if (facts_.type != IBV_QPT_RC) {
        return answer_first(request, now_ns);
    }
    const std::uint32_t ahead = (request.sequence - expected_sequence_) & kSequenceMask;
    if (ahead >= kHalfOfSequence) {
        return answer_again(request);
    }
    if (ahead > 0) {
        return {};
    }
    const Answer answer = answer_first(request, now_ns);
    if (answer.kind == Answer::Kind::acknowledged) {
        expected_sequence_ = (expected_sequence_ + 1) & kSequenceMask;
    }
    return answer;
}

Answer QueuePair::answer_first(const Request& request, std::uint64_t now_ns) {
    switch (request.wqe.opcode) {
        case MLX5_OPCODE_SEND:
        case MLX5_OPCODE_SEND_IMM:
        case MLX5_OPCODE_SEND_INVAL: return answer_send(request, now_ns);
        case MLX5_OPCODE_RDMA_WRITE:
        case MLX5_OPCODE_RDMA_WRITE_IMM: return answer_write(request, now_ns);
        case MLX5_OPCODE_RDMA_READ: return answer_read(request, now_ns, false);
        default: return answer_atomic(request, now_ns);
    }
}

// Answers a repeated request: acknowledges sends and writes, carries reads out again, answers atomics from the kept
// results.
Answer QueuePair::answer_again(const Request& request) {
    switch (request.wqe.opcode) {
        case MLX5_OPCODE_RDMA_READ: return answer_read(request, 0, true);
        case MLX5_OPCODE_ATOMIC_CS:
        case MLX5_OPCODE_ATOMIC_FA: {
            const auto kept = std::ranges::find(atomics_, request.sequence, &AnsweredAtomic::sequence);
            return kept == atomics_.end() ? Answer{} : Answer{Answer::Kind::acknowledged, kept->found, 0};
        }
        default: return {Answer::Kind::acknowledged, 0, 0};
    }
}

Answer QueuePair::refuse_request(Answer::Kind kind, bool event, std::uint64_t now_ns) {
    if (facts_.type != IBV_QPT_RC) {
        return {};  // dropped
    }
    if (event) {
        raise(kind == Answer::Kind::access_error ? IBV_EVENT_QP_ACCESS_ERR : IBV_EVENT_QP_REQ_ERR);
    }
    enter_error(now_ns);
    return {kind, 0, 0};
}

std::optional<Receive> QueuePair::take_receive() {
    if (srq_ == nullptr) {
        return receives_.take();
    }
    std::optional<Receive> receive = srq_->take();
    if (receive && srq_->falls_below_limit()) {
        facts_.file->raise_srq_limit(*srq_);
    }
    return receive;
}

void QueuePair::fail_receive(const Receive& receive, std::uint8_t syndrome, std::uint64_t now_ns,
                             std::uint8_t vendor_syndrome) {
    error_cqe(*recv_cq_, false, syndrome, vendor_syndrome, receive.counter, 0, now_ns);
}

Answer QueuePair::answer_send(const Request& request, std::uint64_t now_ns) {
    const std::uint8_t opcode = request.wqe.opcode;
    const std::uint8_t kind = opcode == MLX5_OPCODE_SEND       ? MLX5_CQE_RESP_SEND
                              : opcode == MLX5_OPCODE_SEND_IMM ? MLX5_CQE_RESP_SEND_IMM
                                                               : MLX5_CQE_RESP_SEND_INV;
    switch (receive(request, kind, now_ns)) {
        case Receipt::delivered: return {Answer::Kind::acknowledged, 0, 0};
        case Receipt::none: return {Answer::Kind::not_ready, 0, attributes_.min_rnr_timer};
        case Receipt::too_short: return refuse_request(Answer::Kind::invalid_request, false, now_ns);
        default: return refuse_request(Answer::Kind::operational_error, false, now_ns);
    }
}

// If a receive cannot take its message, the program that posted the receive is at fault. So a queue pair of any type
// enters the error state.
QueuePair::Receipt QueuePair::receive(const Request& request, std::uint8_t cqe_opcode, std::uint64_t now_ns) {
    const bool datagram = facts_.type == IBV_QPT_UD;
    const std::optional<Receive> receive = take_receive();
    if (!receive) {
        if (facts_.type == IBV_QPT_RC) {
            facts_.hca->count_rnr_nak();
        }
        return Receipt::none;
    }
    const auto failed = [&](std::uint8_t syndrome, Receipt receipt, std::uint8_t vendor = 0) {
        fail_receive(*receive, syndrome, now_ns, vendor);
        if (facts_.type != IBV_QPT_RC) {
            enter_error(now_ns);
        }
        return receipt;
    };
    if (const auto planned = facts_.hca->fabric().faults.next_receive_error(facts_.number)) {
        return failed(planned->syndrome, Receipt::failed, planned->vendor_syndrome);
    }
    DatagramHeader header;
    Pieces message;
    if (datagram) {
        header = datagram_header(request.source_gid, facts_.hca->facts().gid,
                                 static_cast<std::uint32_t>(request.payload.total()));
        message.add(header.bytes, kGrhBytes);
    }
    const bool has_payload = cqe_opcode != MLX5_CQE_RESP_WR_IMM;
    for (const Pieces::Piece& piece : request.payload.all()) {
        message.add(piece.at, piece.length);
    }
    const auto bytes = static_cast<std::uint32_t>(message.total());
    if (!has_payload) {
        receive_cqe(request, *receive, cqe_opcode, bytes, nullptr, now_ns);
        return Receipt::delivered;
    }
    std::uint64_t room = 0;
    for (const DataSegment& segment : receive->data()) {
        room += segment.length;
    }
    if (room < bytes) {
        return failed(MLX5_CQE_SYNDROME_LOCAL_LENGTH_ERR, Receipt::too_short);
    }
    Pieces into;
    for (const DataSegment& segment : receive->data()) {
        const auto part = static_cast<std::uint32_t>(std::min<std::uint64_t>(segment.length, bytes - into.total()));
        if (part == 0) {
            break;
        }
        void* at = facts_.hca->keys.local(segment.lkey, segment.address, part,
                                          srq_ != nullptr ? srq_->facts().pd : facts_.pd, IBV_ACCESS_LOCAL_WRITE);
        if (at == nullptr) {
            return failed(MLX5_CQE_SYNDROME_LOCAL_PROT_ERR, Receipt::forbidden);
        }
        into.add(at, part);
    }
    std::uint8_t small[64];
    const bool in_cqe = facts_.payload_in_receiver_cqe && !datagram && bytes > 0 && bytes <= recv_cq_->scatter_max();
    if (in_cqe) {
        Pieces flat;
        flat.add(small, bytes);
        copy(flat, message);
    } else {
        copy(into, message);
    }
    if (cqe_opcode == MLX5_CQE_RESP_SEND_INV &&
        !facts_.hca->keys.invalidate(be32toh(request.wqe.immediate), facts_.pd, facts_.number)) {
        // The message is complete, so its sender gets an acknowledgement; only the receiver learns of the wrong key.
        fail_receive(*receive, MLX5_CQE_SYNDROME_REMOTE_INVAL_REQ_ERR, now_ns);
        enter_error(now_ns);
        return Receipt::delivered;
    }
    receive_cqe(request, *receive, cqe_opcode, bytes, in_cqe ? small : nullptr, now_ns);
    return Receipt::delivered;
}

void QueuePair::receive_cqe(const Request& request, const Receive& receive, std::uint8_t cqe_opcode,
                            std::uint32_t bytes, const void* payload, std::uint64_t now_ns) {
    mlx5_cqe64 cqe{};
    cqe.srqn_uidx = htobe32(facts_.user_index);
    cqe.imm_inval_pkey = cqe_opcode == MLX5_CQE_RESP_SEND ? 0 : request.wqe.immediate;
    cqe.byte_cnt = htobe32(bytes);
    cqe.flags_rqpn = htobe32(request.source_qpn | (facts_.type == IBV_QPT_UD ? kWithGrh : 0));
    cqe.sop_drop_qpn = htobe32(facts_.number);
    cqe.wqe_counter = htobe16(receive.counter);
    cqe.op_own = static_cast<std::uint8_t>(cqe_opcode << 4);
    recv_cq_->write(cqe, payload, payload == nullptr ? 0 : bytes, request.wqe.solicited, now_ns);
}

void* QueuePair::reach(const Request& request, std::uint64_t length, int access) const {
    return facts_.hca->keys.remote(request.wqe.rkey, request.wqe.remote_address, length, facts_.pd, access,
                                   facts_.number);
}

// If the queue pair does not permit the operation, the request is invalid. If the key does not permit the operation,
// the error is an access error (9.7.4.1).
Answer QueuePair::answer_write(const Request& request, std::uint64_t now_ns) {
    const bool takes_receive = request.wqe.opcode == MLX5_OPCODE_RDMA_WRITE_IMM;
    if ((attributes_.qp_access_flags & IBV_ACCESS_REMOTE_WRITE) == 0) {
        return refuse_request(Answer::Kind::invalid_request, true, now_ns);
    }
    const std::uint64_t length = request.payload.total();
    void* target = length > 0 ? reach(request, length, IBV_ACCESS_REMOTE_WRITE) : nullptr;
    if (length > 0 && target == nullptr) {
        if (takes_receive && facts_.type == IBV_QPT_RC) {
            if (const std::optional<Receive> receive = take_receive()) {
                fail_receive(*receive, MLX5_CQE_SYNDROME_LOCAL_ACCESS_ERR, now_ns);
                return refuse_request(Answer::Kind::access_error, false, now_ns);
            }
        }
        return refuse_request(Answer::Kind::access_error, true, now_ns);
    }
    if (takes_receive && (srq_ != nullptr ? srq_->left() : receives_.left()) == 0) {
        if (facts_.type == IBV_QPT_RC) {
            facts_.hca->count_rnr_nak();
        }
        return {Answer::Kind::not_ready, 0, attributes_.min_rnr_timer};
    }
    if (length > 0) {
        Pieces into;
        into.add(target, static_cast<std::uint32_t>(length));
        copy(into, request.payload);
    }
    if (takes_receive && receive(request, MLX5_CQE_RESP_WR_IMM, now_ns) != Receipt::delivered) {
        return refuse_request(Answer::Kind::operational_error, false, now_ns);
    }
    return {Answer::Kind::acknowledged, 0, 0};
}

Answer QueuePair::answer_read(const Request& request, std::uint64_t now_ns, bool again) {
    const std::uint64_t length = request.payload.total();
    if ((attributes_.qp_access_flags & IBV_ACCESS_REMOTE_READ) == 0 || attributes_.max_dest_rd_atomic == 0) {
        return again ? Answer{} : refuse_request(Answer::Kind::invalid_request, true, now_ns);
    }
    void* source = length > 0 ? reach(request, length, IBV_ACCESS_REMOTE_READ) : nullptr;
    if (length > 0 && source == nullptr) {
        return again ? Answer{} : refuse_request(Answer::Kind::access_error, true, now_ns);
    }
    if (length > 0) {
        Pieces from;
        from.add(source, static_cast<std::uint32_t>(length));
        copy(request.payload, from);
    }
    return {Answer::Kind::acknowledged, 0, 0};
}

Answer QueuePair::answer_atomic(const Request& request, std::uint64_t now_ns) {
    if ((attributes_.qp_access_flags & IBV_ACCESS_REMOTE_ATOMIC) == 0 || attributes_.max_dest_rd_atomic == 0 ||
        request.wqe.remote_address % sizeof(std::uint64_t) != 0) {
        return refuse_request(Answer::Kind::invalid_request, true, now_ns);
    }
    auto* target = static_cast<std::uint64_t*>(reach(request, sizeof(std::uint64_t), IBV_ACCESS_REMOTE_ATOMIC));
    if (target == nullptr) {
        return refuse_request(Answer::Kind::access_error, true, now_ns);
    }
    if (reinterpret_cast<std::uintptr_t>(target) % sizeof(std::uint64_t) != 0) {
        return refuse_request(Answer::Kind::invalid_request, true, now_ns);
    }
    std::uint64_t found = request.wqe.compare;
    const std::atomic_ref<std::uint64_t> word(*target);
    if (request.wqe.opcode == MLX5_OPCODE_ATOMIC_FA) {
        found = word.fetch_add(request.wqe.swap_add);
    } else {
        word.compare_exchange_strong(found, request.wqe.swap_add);
    }
    atomics_.push_back({request.sequence, found});
    if (atomics_.size() > Hca::kReadsMax) {
        atomics_.pop_front();
    }
    return {Answer::Kind::acknowledged, found, 0};
}

}  // namespace mlx5_model
