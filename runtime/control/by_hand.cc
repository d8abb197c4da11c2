// Queue pairs that the program drives by hand, and queries of queue pairs.
#include <fmt/format.h>

#include "connect/transitions.hpp"
#include "control/runtime_state.hpp"

namespace pollcore {
namespace {

// What the queue pair's sessions may post in `state`.
QpState as_sessions_see(VerbsQpState state) noexcept {
    switch (state) {
        case VerbsQpState::init:
        case VerbsQpState::rtr: return QpState::init;
        case VerbsQpState::rts: return QpState::ready;
        default: return QpState::error;
    }
}

void require_port(std::uint8_t asked, const Device& device) {
    if (asked != device.port()) {
        throw Error(EINVAL, fmt::format("the port is {}, and the configuration has port {} of {}", asked, device.port(),
                                        device.describe()));
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
    if (!attributes.ah_attr.has_value()) {
        return std::nullopt;
    }
    require_port(attributes.ah_attr->port_num, *device.device);
    return plan_ah_here(device, qp.pd, to_verbs(*attributes.ah_attr));
}

void RuntimeState::modify_here(QpHandle handle, const QpAttributes& attributes) {
    (void)plan_modify_here(handle, attributes);
    QpSlot& qp = live_qp_slot(handle);
    Transition to = to_verbs(attributes);
    const QpState after = attributes.qp_state.has_value() ? as_sessions_see(*attributes.qp_state) : qp.state;
    modify_here(qp, to.attr, to.mask, after, Status::wr_flush_err);
    qp.error_told = qp.error_told || after == QpState::error;
    // info() tells the peer of these.
    qp.psn = attributes.sq_psn.value_or(qp.psn);
    qp.qkey = attributes.qkey.value_or(qp.qkey);
}

QpQuery RuntimeState::query_qp(QpHandle handle) {
    return executor_->run([&] {
        const QpSlot& qp = live_qp_slot(handle);
        constexpr int kAll = IBV_QP_STATE | IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY |
                             IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                             IBV_QP_RQ_PSN | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_MAX_DEST_RD_ATOMIC |
                             IBV_QP_MIN_RNR_TIMER | IBV_QP_DEST_QPN | IBV_QP_CAP;
        // Not parked: other processes' queue pairs may complete on the same CQ, and a process may ask all the time. The
        // call changes nothing that a worker reads.
        return from_verbs(devices_[qp.device]->device->query(qp.qp.get(), kAll));
    });
}

}  // namespace pollcore
