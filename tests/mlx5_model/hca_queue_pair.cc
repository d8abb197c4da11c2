#include "hca_queue_pair.hpp"

#include <endian.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "hca_fabric.hpp"
#include "hca_transitions.hpp"
#include "uverbs_file.hpp"

namespace mlx5_model {
namespace {

constexpr std::uint8_t kTimerMax = 31;
constexpr std::uint8_t kRetriesMax = 7;

}  // namespace

void copy(const Pieces& to, const Pieces& from) {
    std::size_t i = 0;
    std::size_t j = 0;
    std::uint32_t at_i = 0;
    std::uint32_t at_j = 0;
    while (i < to.all().size() && j < from.all().size()) {
        const std::uint32_t bytes = std::min(to.all()[i].length - at_i, from.all()[j].length - at_j);
        std::memmove(to.all()[i].at + at_i, from.all()[j].at + at_j, bytes);
        at_i += bytes;
        at_j += bytes;
        if (at_i == to.all()[i].length) {
            ++i;
            at_i = 0;
        }
        if (at_j == from.all()[j].length) {
            ++j;
            at_j = 0;
        }
    }
}

QueuePair::QueuePair(const Facts& facts, const SendQueueMemory& sends, RingReceiveQueue receives,
                     std::shared_ptr<CompletionQueue> send_cq, std::shared_ptr<CompletionQueue> recv_cq,
                     std::shared_ptr<SharedReceiveQueue> srq)
    : facts_(facts),
      sends_(facts.number, facts.type, sends),
      receives_(receives),
      send_cq_(std::move(send_cq)),
      recv_cq_(std::move(recv_cq)),
      srq_(std::move(srq)) {}

void QueuePair::raise(ibv_event_type type) {
    facts_.file->raise(type, facts_.user_handle, events_);
}

std::uint32_t QueuePair::forget_events() {
    facts_.file->forget(events_);
    return events_->load();
}

int QueuePair::check(const ib_uverbs_modify_qp& request, ibv_qp_state to) const {
    const auto mask = static_cast<int>(request.attr_mask);
    if ((mask & IBV_QP_CUR_STATE) != 0 && request.cur_qp_state != state_ &&
        !(request.cur_qp_state == IBV_QPS_RTS && state_ == IBV_QPS_SQE)) {
        return EINVAL;
    }
    if (!may_modify(facts_.type, state_, to, mask)) {
        return EINVAL;
    }
    const auto beyond = [&](int bit, std::uint32_t value, std::uint32_t most) {
        return (mask & bit) != 0 && value > most;
    };
    const Hca& hca = *facts_.hca;
    if (((mask & IBV_QP_PORT) != 0 && request.port_num != 1) || beyond(IBV_QP_PKEY_INDEX, request.pkey_index, 0) ||
        beyond(IBV_QP_TIMEOUT, request.timeout, kTimerMax) ||
        beyond(IBV_QP_MIN_RNR_TIMER, request.min_rnr_timer, kTimerMax) ||
        beyond(IBV_QP_RETRY_CNT, request.retry_cnt, kRetriesMax) ||
        beyond(IBV_QP_RNR_RETRY, request.rnr_retry, kRetriesMax) ||
        beyond(IBV_QP_MAX_QP_RD_ATOMIC, request.max_rd_atomic, Hca::kReadsMax) ||
        beyond(IBV_QP_MAX_DEST_RD_ATOMIC, request.max_dest_rd_atomic, Hca::kReadsMax)) {
        return EINVAL;
    }
    if ((mask & IBV_QP_PATH_MTU) != 0 && (request.path_mtu < IBV_MTU_256 || request.path_mtu > IBV_MTU_4096)) {
        return EINVAL;
    }
    if ((mask & IBV_QP_AV) != 0) {
        // RoCE addresses are always GIDs.
        if (request.dest.is_global == 0 || request.dest.port_num != 1 || request.dest.sgid_index >= Hca::kGids) {
            return EINVAL;
        }
        ibv_gid to_gid;
        std::memcpy(to_gid.raw, request.dest.dgid, sizeof to_gid.raw);
        // The kernel would try for about a second to resolve the neighbour's address.
        if (!hca.fabric().knows(to_gid)) {
            return EHOSTUNREACH;
        }
    }
    return 0;
}

void QueuePair::store(const ib_uverbs_modify_qp& request) {
    const std::uint32_t mask = request.attr_mask;
    auto& to = attributes_;
    const auto set = [mask](std::uint32_t bit, auto& field, auto value) {
        if ((mask & bit) != 0) {
            field = value;
        }
    };
    set(IBV_QP_AV, to.dest, request.dest);
    set(IBV_QP_QKEY, to.qkey, request.qkey);
    set(IBV_QP_RQ_PSN, to.rq_psn, request.rq_psn);
    set(IBV_QP_SQ_PSN, to.sq_psn, request.sq_psn);
    set(IBV_QP_DEST_QPN, to.dest_qp_num, request.dest_qp_num);
    set(IBV_QP_ACCESS_FLAGS, to.qp_access_flags, request.qp_access_flags);
    set(IBV_QP_PKEY_INDEX, to.pkey_index, request.pkey_index);
    set(IBV_QP_PATH_MTU, to.path_mtu, request.path_mtu);
    set(IBV_QP_MAX_QP_RD_ATOMIC, to.max_rd_atomic, request.max_rd_atomic);
    set(IBV_QP_MAX_DEST_RD_ATOMIC, to.max_dest_rd_atomic, request.max_dest_rd_atomic);
    set(IBV_QP_MIN_RNR_TIMER, to.min_rnr_timer, request.min_rnr_timer);
    set(IBV_QP_PORT, to.port_num, request.port_num);
    set(IBV_QP_TIMEOUT, to.timeout, request.timeout);
    set(IBV_QP_RETRY_CNT, to.retry_cnt, request.retry_cnt);
    set(IBV_QP_RNR_RETRY, to.rnr_retry, request.rnr_retry);
}

int QueuePair::modify(const ib_uverbs_modify_qp& request) {
    const ibv_qp_state to =
        (request.attr_mask & IBV_QP_STATE) != 0 ? static_cast<ibv_qp_state>(request.qp_state) : state_;
    if (const int error = check(request, to); error != 0) {
        return error;
    }
    store(request);
    const ibv_qp_state from = state_;
    if ((request.attr_mask & IBV_QP_STATE) == 0 || to == from) {
        return 0;
    }
    switch (to) {
        case IBV_QPS_RESET:
            sends_.reset();
            receives_.reset();
            attributes_ = {};
            wait_until_ns_ = 0;
            silences_ = rnr_naks_ = 0;
            heard_ = false;
            atomics_.clear();
            break;
        case IBV_QPS_RTR: expected_sequence_ = attributes_.rq_psn & kSequenceMask; break;
        case IBV_QPS_RTS:
            if (from == IBV_QPS_RTR) {
                next_sequence_ = attributes_.sq_psn & kSequenceMask;
            } else if (from == IBV_QPS_SQE) {
                // Requests that were posted in SQE are flushed first.
                int ended = 0;
                flush_sends(1 << 16, ended, now_ns());
            }
            break;
        case IBV_QPS_ERR: enter_error(now_ns()); return 0;
        default: break;
    }
    state_ = to;
    if (to == IBV_QPS_SQD && (request.attr_mask & IBV_QP_EN_SQD_ASYNC_NOTIFY) != 0 &&
        request.en_sqd_async_notify != 0) {
        raise(IBV_EVENT_SQ_DRAINED);
    }
    return 0;
}

void QueuePair::query(ib_uverbs_query_qp_resp& response) const {
    response.dest = attributes_.dest;
    response.qkey = attributes_.qkey;
    response.rq_psn = attributes_.rq_psn;
    response.sq_psn = attributes_.sq_psn;
    response.dest_qp_num = attributes_.dest_qp_num;
    response.qp_access_flags = attributes_.qp_access_flags;
    response.pkey_index = attributes_.pkey_index;
    response.path_mtu = attributes_.path_mtu;
    response.max_rd_atomic = attributes_.max_rd_atomic;
    response.max_dest_rd_atomic = attributes_.max_dest_rd_atomic;
    response.min_rnr_timer = attributes_.min_rnr_timer;
    response.port_num = attributes_.port_num;
    response.timeout = attributes_.timeout;
    response.retry_cnt = attributes_.retry_cnt;
    response.rnr_retry = attributes_.rnr_retry;
    response.qp_state = response.cur_qp_state = static_cast<std::uint8_t>(state_);
    response.max_send_wr = facts_.cap.max_send_wr;
    response.max_recv_wr = facts_.cap.max_recv_wr;
    response.max_send_sge = facts_.cap.max_send_sge;
    response.max_recv_sge = facts_.cap.max_recv_sge;
    response.max_inline_data = facts_.cap.max_inline_data;
    response.sq_sig_all = facts_.signal_all ? 1 : 0;
}

void QueuePair::error_cqe(CompletionQueue& cq, bool of_send, std::uint8_t syndrome, std::uint8_t vendor_syndrome,
                          std::uint16_t counter, std::uint8_t opcode, std::uint64_t now_ns) {
    mlx5_cqe64 cqe{};
    auto& error = reinterpret_cast<mlx5_err_cqe&>(cqe);
    // The verbs leave all other fields of a failed completion undefined. Garbage exposes a program that reads them.
    std::fill(std::begin(error.rsvd0), std::end(error.rsvd0), std::uint8_t{0xa5});
    error.srqn = htobe32(facts_.user_index);
    error.vendor_err_synd = vendor_syndrome;
    error.syndrome = syndrome;
    error.s_wqe_opcode_qpn = htobe32(std::uint32_t{opcode} << 24 | facts_.number);
    error.wqe_counter = htobe16(counter);
    error.op_own = (of_send ? MLX5_CQE_REQ_ERR : MLX5_CQE_RESP_ERR) << 4;
    cq.write(cqe, nullptr, 0, true, now_ns);
}

void QueuePair::flush_receives(std::uint64_t now_ns) {
    if (srq_ != nullptr) {
        return;
    }
    while (const std::optional<Receive> receive = receives_.take()) {
        error_cqe(*recv_cq_, false, MLX5_CQE_SYNDROME_WR_FLUSH_ERR, 0, receive->counter, 0, now_ns);
    }
}

void QueuePair::enter_error(std::uint64_t now_ns) {
    const bool before = state_ == IBV_QPS_ERR;
    state_ = IBV_QPS_ERR;
    wait_until_ns_ = 0;
    flush_receives(now_ns);
    if (!before && srq_ != nullptr) {
        raise(IBV_EVENT_QP_LAST_WQE_REACHED);
    }
}

}  // namespace mlx5_model
