// Queue pairs that the program drives by hand, and queries of queue pairs.
#include <fmt/format.h>

#include "connect/transitions.hpp"
#include "control/runtime_state.hpp"
#include "device/qp_moves.hpp"

namespace pollcore {
namespace {

// The session's name for a queue pair's state at the device. INIT and RTR are one state for sessions: both take
// receives and no sends.
QpState as_sessions_see(VerbsQpState state) noexcept {
    switch (state) {
        case VerbsQpState::init:
        case VerbsQpState::rtr: return QpState::init;
        case VerbsQpState::rts: return QpState::ready;
        default: return QpState::error;
    }
}

}  // namespace

void RuntimeState::modify_qp(QpHandle handle, const QpAttributes& attributes) {
    const OutsideCall outside(*this);
    if (const std::optional<AhPlan> way = executor_->run([&] { return plan_modify_here(handle, attributes); })) {
        way->find_neighbour();
    }
    executor_->run([&] { modify_here(handle, attributes); });
}

std::optional<AhPlan> RuntimeState::plan_modify_here(QpHandle handle, const QpAttributes& attributes) {
    const QpSlot& qp = live_qp_slot(handle);
    require_not_ending(qp);
    if (!qp.by_hand) {
        throw Error(EINVAL, fmt::format("queue pair {} was not made to be driven by hand (QueuePairOptions::by_hand)",
                                        qp.qp_num));
    }
    if (attributes.qp_state == VerbsQpState::sqd) {
        throw Error(EOPNOTSUPP, fmt::format("queue pair {} cannot go to SQD: the states are RESET, INIT, RTR, RTS and "
                                            "ERR",
                                            qp.qp_num));
    }
    if (attributes.qp_state == VerbsQpState::reset || attributes.qp_state == VerbsQpState::sqe) {
        throw Error(EINVAL, fmt::format("queue pair {} cannot be moved to this state", qp.qp_num));
    }
    DeviceSlot& device = *devices_[qp.device];
    if (attributes.port_num.has_value()) {
        require_port(*attributes.port_num, *device.device);
    }
    require_move_here(qp, to_verbs(attributes));
    if (!attributes.ah_attr.has_value()) {
        return std::nullopt;
    }
    require_port(attributes.ah_attr->port_num, *device.device);
    return plan_ah_here(device, qp.pd, to_verbs(*attributes.ah_attr));
}

// Refuses what the device would refuse by the table of its queue pairs' moves. The device itself is asked only while
// the queue pair and its CQs are parked, and other processes' queue pairs may complete on these CQs.
void RuntimeState::require_move_here(const QpSlot& qp, const Transition& move) {
    const ibv_qp_state from = query_here(qp).qp_state;
    const ibv_qp_state to = (move.mask & IBV_QP_STATE) != 0 ? move.attr.qp_state : from;
    const bool to_error = (move.mask & IBV_QP_STATE) != 0 && to == IBV_QPS_ERR;
    const bool in_error = qp.state == QpState::error || qp.error_told || from == IBV_QPS_ERR || from == IBV_QPS_SQE ||
                          workers_[qp.worker]->worker->failed_qps().contains(qp.handle.index);
    if (in_error && !to_error) {
        // The worker has one state for all errors, and leaves it by a reset only.
        const bool verbs_have_it = from == IBV_QPS_SQE && to == IBV_QPS_RTS;
        throw Error(verbs_have_it ? EOPNOTSUPP : EINVAL,
                    fmt::format("queue pair {} is in error ({}): reset it", qp.qp_num, name_of(from)));
    }
    if ((move.mask & IBV_QP_CUR_STATE) != 0 && move.attr.cur_qp_state != from) {
        throw Error(EINVAL, fmt::format("queue pair {} is in {}, and cur_qp_state says {}", qp.qp_num, name_of(from),
                                        name_of(move.attr.cur_qp_state)));
    }
    const std::string why = why_no_move(static_cast<ibv_qp_type>(qp.type), from, to, move.mask);
    if (!why.empty()) {
        throw Error(EINVAL, fmt::format("cannot move queue pair {} from {} to {}: {}", qp.qp_num, name_of(from),
                                        name_of(to), why));
    }
}

void RuntimeState::modify_here(QpHandle handle, const QpAttributes& attributes) {
    (void)plan_modify_here(handle, attributes);
    QpSlot& qp = live_qp_slot(handle);
    Transition to = to_verbs(attributes);
    const QpState after = attributes.qp_state.has_value() ? as_sessions_see(*attributes.qp_state) : qp.state;
    modify_here(qp, to.attr, to.mask, after, Status::wr_flush_err);
    qp.error_told = qp.error_told || after == QpState::error;
    // What info() tells the peer.
    qp.psn = attributes.sq_psn.value_or(qp.psn);
    qp.qkey = attributes.qkey.value_or(qp.qkey);
}

// The queue pair is not parked: other processes' queue pairs may complete on its CQs, and a process may ask all the
// time. With IBV_QP_STATE, ibv_query_qp() would also store the state in the ibv_qp, which the worker may be reading.
// Without it, the state is in the result all the same.
ibv_qp_attr RuntimeState::query_here(const QpSlot& qp) {
    constexpr int kAllButState = IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY | IBV_QP_AV |
                                 IBV_QP_PATH_MTU | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                                 IBV_QP_RQ_PSN | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_MAX_DEST_RD_ATOMIC |
                                 IBV_QP_MIN_RNR_TIMER | IBV_QP_DEST_QPN | IBV_QP_CAP;
    return devices_[qp.device]->device->query(qp.qp.get(), kAllButState);
}

QpQuery RuntimeState::query_qp(QpHandle handle) {
    return executor_->run([&] { return from_verbs(query_here(live_qp_slot(handle))); });
}

}  // namespace pollcore
