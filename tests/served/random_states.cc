// Taking queue pairs from state to state.
#include <cstring>
#include <iterator>

#include <fmt/format.h>

#include "kernel_states.hpp"
#include "random_parts.hpp"
#include "random_program.hpp"

namespace pollcore::test {

ibv_qp_state RandomProgram::state_of(Qp& qp) {
    ibv_qp_attr attr{};
    (void)ways_[kDirect]->query_qp(qp.at[kDirect], attr);
    return attr.qp_state;
}

int RandomProgram::move_to(Qp& qp, ibv_qp_state state, Qp* peer, bool with_mistakes) {
    const ibv_qp_state from = state_of(qp);
    ibv_qp_attr attr{};
    attr.qp_state = state;
    attr.cur_qp_state = from;
    attr.port_num = 1;
    attr.qp_access_flags = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;
    attr.qp_access_flags = !mistake(20) ? attr.qp_access_flags : attr.qp_access_flags & random_();
    attr.qkey = kQkeys[mistake(20) ? 1 : 0];
    attr.path_mtu = mtu_;  // with another one than the peer's, what happens depends on the order of packets
    attr.rq_psn = peer != nullptr ? peer->psn : 1;
    attr.sq_psn = qp.psn;
    // More than the peer accepts is refused only if earlier ones are not answered yet.
    attr.max_rd_atomic = static_cast<std::uint8_t>(mistake(3) ? 0 : 1 + pick(4));
    attr.max_dest_rd_atomic = static_cast<std::uint8_t>(mistake(3) ? 0 : 4 + pick(4));
    attr.min_rnr_timer = kRnrTimers[pick(std::size(kRnrTimers))];
    attr.timeout = kTimeoutTwoMs;
    attr.retry_cnt = kRetries;
    attr.rnr_retry = static_cast<std::uint8_t>(mistake(40) ? pick(3) : 7);
    attr.ah_attr.is_global = 1;
    attr.ah_attr.port_num = 1;
    attr.ah_attr.grh.hop_limit = static_cast<std::uint8_t>(1 + pick(255));
    attr.ah_attr.grh.traffic_class = static_cast<std::uint8_t>(random_());
    attr.ah_attr.grh.flow_label = static_cast<std::uint32_t>(random_()) & 0xfffff;
    attr.ah_attr.sl = static_cast<std::uint8_t>(pick(8));
    int mask = kernel_mask(qp.type, from, state, [&](int optional) { return chance(30) ? optional : 0; });
    bool wrong_peer = false;
    if (with_mistakes) {
        if (chance(15)) {
            mask ^= 1 << pick(21);
        }
        switch (pick(40)) {
            case 0: attr.port_num = 3; break;
            case 1: attr.ah_attr.is_global = 0; break;
            case 2: attr.path_mtu = static_cast<ibv_mtu>(chance(50) ? 0 : 6); break;
            case 3: attr.timeout = 32; break;
            case 4: attr.max_rd_atomic = attr.max_dest_rd_atomic = 100; break;
            case 5: attr.cur_qp_state = static_cast<ibv_qp_state>(pick(7)); break;
            case 6: attr.pkey_index = 1; break;
            case 8: attr.min_rnr_timer = 32; break;
            case 9: attr.rnr_retry = 8; break;
            case 10: attr.retry_cnt = 8; break;
            case 11: attr.ah_attr.grh.sgid_index = 3; break;
            case 12: attr.ah_attr.port_num = 2; break;
            case 13: wrong_peer = true; break;
            default: break;
        }
    }
    const int error = move(qp, attr, mask, wrong_peer ? nullptr : peer);
    settle();
    if (with_mistakes || chance(25)) {
        query(qp);
    }
    return error;
}

int RandomProgram::move(Qp& qp, ibv_qp_attr attr, int mask, const Qp* peer) {
    const std::string what =
        fmt::format("modify_qp {} from {} to {} with mask {:#x}", qp.id, static_cast<int>(state_of(qp)),
                    static_cast<int>(attr.qp_state), static_cast<unsigned>(mask));
    const bool to_state = (mask & IBV_QP_STATE) != 0;
    const bool stays_in_error = !to_state && state_of(qp) == IBV_QPS_ERR;
    const bool is_served = (mask & kNotServed) == 0 && !(to_state && attr.qp_state == IBV_QPS_SQD) && !stays_in_error;
    std::array<int, kWays> errors{};
    for (const std::size_t way : {kServed, kDirect}) {
        attr.dest_qp_num = peer == nullptr ? kNobody : peer->at[way]->qp_num;
        attr.ah_attr.grh.dgid = ways_[way]->gid();
        if (is_served || way == kServed) {
            errors[way] = ways_[way]->modify_qp(qp.at[way], attr, mask);
        }
    }
    if (!is_served) {
        say(what + ": not served");
        if (errors[kServed] != EOPNOTSUPP && errors[kServed] != EINVAL) {
            differ(fmt::format("{} is not served, and returned {}", what, name_of(errors[kServed])));
        }
        return errors[kServed];
    }
    const int error = same(what, errors[kDirect], errors[kServed]);
    if (error == 0 && to_state && attr.qp_state == IBV_QPS_RESET) {
        qp.sends.clear();
        qp.recvs.clear();
    }
    moving_ = true;
    return error;
}

void RandomProgram::modify(Qp& qp) {
    Qp* const peer = any(qps_);
    renew_psn(qp);
    (void)move_to(qp, static_cast<ibv_qp_state>(pick(7)), peer == &qp ? nullptr : peer, true);
}

// The software device repeats requests for ever whose PSNs its peer has seen before, if the peer refuses one of them.
void RandomProgram::renew_psn(Qp& qp) {
    qp.psn = next_psn_ += 4096;
}

void RandomProgram::bring_up(Qp& qp, Qp& peer) {
    while (state_of(qp) < IBV_QPS_RTS) {
        if (move_to(qp, static_cast<ibv_qp_state>(state_of(qp) + 1), &peer, false) != 0) {
            differ(fmt::format("queue pair {} cannot be brought up", qp.id));
        }
        if (mistake(3)) {
            break;
        }
    }
}

void RandomProgram::connect() {
    Qp* const one = any(qps_);
    if (one == nullptr) {
        return;
    }
    std::vector<Qp*> others;
    for (const auto& qp : qps_) {
        // A queue pair that is its own peer also fails as such, and that may be before or after its sends have ended.
        if (qp->type == one->type && qp.get() != one) {
            others.push_back(qp.get());
        }
    }
    if (!others.empty()) {
        Qp* const other = others[pick(others.size())];
        for (Qp* qp : {one, other}) {
            renew_psn(*qp);
            if (state_of(*qp) != IBV_QPS_RESET) {
                (void)move_to(*qp, IBV_QPS_RESET, nullptr, false);
            }
        }
        bring_up(*one, *other);
        bring_up(*other, *one);
    }
}

void RandomProgram::query(Qp& qp) {
    std::array<ibv_qp_attr, kWays> attr{};
    (void)same(fmt::format("query_qp {}", qp.id), ways_[kDirect]->query_qp(qp.at[kDirect], attr[kDirect]),
               ways_[kServed]->query_qp(qp.at[kServed], attr[kServed]));
    const ibv_qp_attr& a = attr[kDirect];
    const ibv_qp_attr& b = attr[kServed];
    const auto equal = [&](const char* what, auto direct, auto served) {
        if (direct != served) {
            differ(fmt::format("{} of queue pair {} (state {}): {} and {}", what, qp.id, static_cast<int>(a.qp_state),
                               direct, served));
        }
    };
    equal("qp_state", static_cast<int>(a.qp_state), static_cast<int>(b.qp_state));
    equal("cur_qp_state", static_cast<int>(a.cur_qp_state), static_cast<int>(b.cur_qp_state));
    equal("max_send_wr", a.cap.max_send_wr, b.cap.max_send_wr);
    equal("max_recv_wr", a.cap.max_recv_wr, b.cap.max_recv_wr);
    equal("max_send_sge", a.cap.max_send_sge, b.cap.max_send_sge);
    equal("max_recv_sge", a.cap.max_recv_sge, b.cap.max_recv_sge);
    equal("max_inline_data", a.cap.max_inline_data, b.cap.max_inline_data);
    if (a.qp_state == IBV_QPS_RESET) {
        return;
    }
    equal("pkey_index", a.pkey_index, b.pkey_index);
    equal("port_num", a.port_num, b.port_num);
    equal("qp_access_flags", a.qp_access_flags, b.qp_access_flags);
    if (a.qp_state < IBV_QPS_SQD && qp.sends.empty()) {  // else it says how far requests have come
        equal("sq_psn", a.sq_psn, b.sq_psn);
    }
    if (qp.type == IBV_QPT_UD) {
        equal("qkey", a.qkey, b.qkey);
        return;
    }
    if (a.qp_state < IBV_QPS_SQD) {
        equal("rq_psn", a.rq_psn, b.rq_psn);
    }
    if (a.path_mtu == 0) {
        return;  // RTR was not reached
    }
    equal("path_mtu", static_cast<int>(a.path_mtu), static_cast<int>(b.path_mtu));
    equal("dest_qp_num", index_of(kDirect, a.dest_qp_num), index_of(kServed, b.dest_qp_num));
    equal("max_dest_rd_atomic", a.max_dest_rd_atomic, b.max_dest_rd_atomic);
    equal("max_rd_atomic", a.max_rd_atomic, b.max_rd_atomic);
    equal("min_rnr_timer", a.min_rnr_timer, b.min_rnr_timer);
    equal("timeout", a.timeout, b.timeout);
    equal("retry_cnt", a.retry_cnt, b.retry_cnt);
    equal("rnr_retry", a.rnr_retry, b.rnr_retry);
    equal("is_global", a.ah_attr.is_global, b.ah_attr.is_global);
    equal("hop_limit", a.ah_attr.grh.hop_limit, b.ah_attr.grh.hop_limit);
    equal("traffic_class", a.ah_attr.grh.traffic_class, b.ah_attr.grh.traffic_class);
    equal("flow_label", a.ah_attr.grh.flow_label, b.ah_attr.grh.flow_label);
    equal("sl", a.ah_attr.sl, b.ah_attr.sl);
    equal("the peer's GID", std::memcmp(a.ah_attr.grh.dgid.raw, ways_[kDirect]->gid().raw, 16) == 0,
          std::memcmp(b.ah_attr.grh.dgid.raw, ways_[kServed]->gid().raw, 16) == 0);
}

int RandomProgram::index_of(int way, std::uint32_t qp_num) const {
    for (const auto& qp : qps_) {
        if (qp->at[static_cast<std::size_t>(way)]->qp_num == qp_num) {
            return qp->id;
        }
    }
    return -1;  // a queue pair that is gone
}

}  // namespace pollcore::test
