// The state machine of a QP: which values of attributes it accepts, and what each transition does.
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include <fmt/format.h>

#include "device/qp_moves.hpp"
#include "device/soft/engine.hpp"
#include "device/soft/queues.hpp"
#include "device/soft/soft_device.hpp"

namespace pollcore {

namespace {

using soft::SoftQp;

struct Check {
    const SoftDevice& device;
    const SoftQp& qp;
    ibv_qp_state from;
    ibv_qp_state to;

    [[nodiscard]] Error refuse(const std::string& why) const {
        return {std::errc::invalid_argument, fmt::format("cannot move queue pair {} on {} from {} to {}: {}", qp.qp_num,
                                                         device.describe(), name_of(from), name_of(to), why)};
    }

    void masks(int mask) const {
        if (const std::string why = why_no_move(qp.qp_type, from, to, mask); !why.empty())
            throw refuse(why);
    }

    void at_most(std::string_view what, std::uint64_t value, std::uint64_t most) const {
        if (value > most)
            throw refuse(fmt::format("{} is {}, accepted is at most {}", what, value, most));
    }

    void values(const ibv_qp_attr& attr, int mask, const DeviceLimits& limits, ibv_mtu active_mtu) const {
        if ((mask & IBV_QP_CUR_STATE) != 0 && attr.cur_qp_state != from) {
            throw refuse(fmt::format("cur_qp_state says it is in {}", name_of(attr.cur_qp_state)));
        }
        if ((mask & IBV_QP_PORT) != 0 && attr.port_num != device.port()) {
            throw refuse(fmt::format("port_num is {}, the device has port {}", attr.port_num, device.port()));
        }
        if ((mask & IBV_QP_PKEY_INDEX) != 0)
            at_most("pkey_index", attr.pkey_index, 0);
        if ((mask & IBV_QP_ACCESS_FLAGS) != 0) {
            constexpr unsigned kKnown =
                IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;
            if ((attr.qp_access_flags & ~kKnown) != 0) {
                throw refuse(
                    fmt::format("qp_access_flags is {:#x}, accepted are bits of {:#x}", attr.qp_access_flags, kKnown));
            }
        }
        if ((mask & IBV_QP_PATH_MTU) != 0 && (attr.path_mtu < IBV_MTU_256 || attr.path_mtu > active_mtu)) {
            throw refuse(fmt::format("path_mtu is {}, accepted is 1 (256 bytes) to {}, what the port has active",
                                     static_cast<int>(attr.path_mtu), static_cast<int>(active_mtu)));
        }
        if ((mask & IBV_QP_AV) != 0) {
            if (attr.ah_attr.is_global == 0)
                throw refuse("ah_attr has no GRH; set is_global and grh.dgid");
            if (attr.ah_attr.port_num != device.port()) {
                throw refuse(fmt::format("ah_attr.port_num is {}, the device has port {}", attr.ah_attr.port_num,
                                         device.port()));
            }
            at_most("ah_attr.grh.sgid_index", attr.ah_attr.grh.sgid_index, 0);
        }
        if ((mask & IBV_QP_DEST_QPN) != 0)
            at_most("dest_qp_num", attr.dest_qp_num, 0xffffff);
        if ((mask & IBV_QP_MAX_DEST_RD_ATOMIC) != 0) {
            at_most("max_dest_rd_atomic", attr.max_dest_rd_atomic, limits.rd_atomic_max);
        }
        if ((mask & IBV_QP_MAX_QP_RD_ATOMIC) != 0)
            at_most("max_rd_atomic", attr.max_rd_atomic, limits.rd_atomic_max);
        if ((mask & IBV_QP_MIN_RNR_TIMER) != 0)
            at_most("min_rnr_timer", attr.min_rnr_timer, 31);
        if ((mask & IBV_QP_TIMEOUT) != 0)
            at_most("timeout", attr.timeout, 31);
        if ((mask & IBV_QP_RETRY_CNT) != 0)
            at_most("retry_cnt", attr.retry_cnt, 7);
        if ((mask & IBV_QP_RNR_RETRY) != 0)
            at_most("rnr_retry", attr.rnr_retry, 7);
    }
};

/// Stores the attributes that the mask names. The caller holds the engine's lock.
void apply(SoftQp& qp, const ibv_qp_attr& attr, int mask) {
    if ((mask & IBV_QP_PKEY_INDEX) != 0)
        qp.attr.pkey_index = attr.pkey_index;
    if ((mask & IBV_QP_PORT) != 0)
        qp.attr.port_num = attr.port_num;
    if ((mask & IBV_QP_ACCESS_FLAGS) != 0) {
        qp.attr.qp_access_flags = attr.qp_access_flags;
        qp.access = static_cast<int>(attr.qp_access_flags);
    }
    if ((mask & IBV_QP_QKEY) != 0)
        qp.attr.qkey = attr.qkey;
    if ((mask & IBV_QP_AV) != 0)
        qp.attr.ah_attr = attr.ah_attr;
    if ((mask & IBV_QP_PATH_MTU) != 0) {
        qp.attr.path_mtu = attr.path_mtu;
        qp.mtu = 128u << static_cast<unsigned>(attr.path_mtu);
    }
    if ((mask & IBV_QP_DEST_QPN) != 0)
        qp.attr.dest_qp_num = qp.dest_qpn = attr.dest_qp_num;
    if ((mask & IBV_QP_RQ_PSN) != 0)
        qp.attr.rq_psn = qp.rx.expected_psn = attr.rq_psn & soft::kPsnMask;
    if ((mask & IBV_QP_MAX_DEST_RD_ATOMIC) != 0) {
        qp.attr.max_dest_rd_atomic = qp.max_dest_rd_atomic = attr.max_dest_rd_atomic;
    }
    if ((mask & IBV_QP_MIN_RNR_TIMER) != 0)
        qp.attr.min_rnr_timer = attr.min_rnr_timer;
    if ((mask & IBV_QP_TIMEOUT) != 0) {
        qp.attr.timeout = attr.timeout;
        qp.tx.ack_timeout_ns = soft::ack_timeout_ns(attr.timeout);
    }
    if ((mask & IBV_QP_RETRY_CNT) != 0)
        qp.attr.retry_cnt = qp.tx.retry_count = qp.tx.retries_left = attr.retry_cnt;
    if ((mask & IBV_QP_RNR_RETRY) != 0) {
        qp.attr.rnr_retry = qp.tx.rnr_retry = qp.tx.rnr_retries_left = attr.rnr_retry;
    }
    if ((mask & IBV_QP_SQ_PSN) != 0) {
        qp.attr.sq_psn = attr.sq_psn & soft::kPsnMask;
        qp.tx.next_psn = qp.tx.una_psn = qp.tx.sent_psn = qp.attr.sq_psn;
    }
    if ((mask & IBV_QP_MAX_QP_RD_ATOMIC) != 0)
        qp.attr.max_rd_atomic = qp.max_rd_atomic = attr.max_rd_atomic;
}

}  // namespace

void SoftDevice::modify(ibv_qp* base, ibv_qp_attr& attr, int mask) {
    const std::optional<ibv_qp_state> wanted = (mask & IBV_QP_STATE) != 0 ? std::optional(attr.qp_state) : std::nullopt;
    meet_fault(SoftFault::Kind::modify, "modify a QP", base, wanted);
    const std::lock_guard guard(control_mutex_);
    require_working("modify a QP");
    auto& qp = static_cast<SoftQp&>(*base);
    soft::Engine& engine = *qp.engine;
    // Found before the engine's lock is taken, because route() may take the lock of the peer's engine.
    std::shared_ptr<soft::LinkPair> peer;
    const bool to_rtr = (mask & IBV_QP_STATE) != 0 && attr.qp_state == IBV_QPS_RTR;
    if (to_rtr && (mask & IBV_QP_AV) != 0)
        peer = fabric_->route(engine, attr.ah_attr.grh.dgid, attr.dest_qp_num);

    const std::lock_guard engine_guard(engine.lock());
    const ibv_qp_state from = qp.current;
    const ibv_qp_state to = (mask & IBV_QP_STATE) != 0 ? attr.qp_state : from;
    const Check check{*this, qp, from, to};
    check.masks(mask);
    check.values(attr, mask, options_.limits, options_.active_mtu);
    if (to == IBV_QPS_RESET) {
        engine.reset(qp);
        qp.attr = {};
        peer.swap(qp.peer_owner);  // the links are released after the lock
    } else if (to == IBV_QPS_ERR) {
        engine.enter_error(qp, false);
    } else {
        apply(qp, attr, mask);
        if (from == IBV_QPS_SQE)
            engine.leave_send_error(qp);
        if (to_rtr) {
            qp.peer = peer.get();
            peer.swap(qp.peer_owner);
        }
        qp.current = to;
    }
    qp.state = to;
}

ibv_qp_attr SoftDevice::query(ibv_qp* base, int mask) {
    auto& qp = static_cast<SoftQp&>(*base);
    const std::lock_guard engine_guard(qp.engine->lock());
    ibv_qp_attr attr = qp.attr;
    attr.qp_state = attr.cur_qp_state = qp.current;
    attr.path_mig_state = IBV_MIG_MIGRATED;
    attr.rq_psn = qp.rx.expected_psn;
    attr.sq_psn = qp.tx.next_psn;
    attr.cap = qp.cap;
    if ((mask & IBV_QP_STATE) != 0)
        qp.state = qp.current;  // as ibv_query_qp() does
    return attr;
}

}  // namespace pollcore
