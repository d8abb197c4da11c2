// Planning and posting requests.
#include <algorithm>
#include <cstring>
#include <iterator>

#include <fmt/format.h>

#include "random_parts.hpp"
#include "random_program.hpp"

namespace pollcore::test {

ibv_sge RandomProgram::sge_of(int way, const Sge& sge) const {
    const std::uint32_t key = sge.mr == nullptr ? 0 : sge.mr->at[static_cast<std::size_t>(way)]->lkey;
    return {.addr = reinterpret_cast<std::uintptr_t>(memory(way) + sge.range.begin),
            .length = static_cast<std::uint32_t>(sge.range.end - sge.range.begin),
            .lkey = key + sge.spoilt_key};
}

std::optional<RandomProgram::Range> RandomProgram::free_range(const Mr& mr, std::size_t bytes, std::size_t align) {
    const std::size_t first = (mr.range.begin + align - 1) / align * align;
    if (first + bytes > mr.range.end) {
        return std::nullopt;
    }
    for (int tries = 0; tries < 8; ++tries) {
        const std::size_t begin = first + pick((mr.range.end - first - bytes) / align + 1) * align;
        const Range range{begin, begin + bytes};
        const auto overlaps = [&](const Range& used) { return used.begin < range.end && range.begin < used.end; };
        const auto any_overlaps = [&](const std::vector<Range>& all) {
            return std::any_of(all.begin(), all.end(), overlaps);
        };
        const auto are_used = [&](const std::deque<Posted>& all) {
            return std::any_of(all.begin(), all.end(), [&](const Posted& one) { return any_overlaps(one.uses); });
        };
        const bool used =
            any_overlaps(in_burst_) ||
            std::any_of(qps_.begin(), qps_.end(),
                        [&](const auto& qp) { return are_used(qp->sends) || are_used(qp->recvs); }) ||
            std::any_of(srqs_.begin(), srqs_.end(), [&](const auto& srq) { return are_used(srq->posted); });
        if (!used) {
            in_burst_.push_back(range);
            return range;
        }
    }
    return std::nullopt;
}

// SGEs that hold `least` to `most` bytes together, or fewer if there is no room for them.
std::vector<RandomProgram::Sge> RandomProgram::plan_sges(Pd* pd, std::size_t count, std::size_t least, std::size_t most,
                                                         std::size_t align) {
    std::vector<Mr*> usable;
    for (const auto& mr : mrs_) {
        if (mr->pd == pd || mistake(3)) {
            usable.push_back(mr.get());
        }
    }
    std::vector<Sge> all;
    for (std::size_t i = 0; i < count && !usable.empty(); ++i) {
        Mr* const mr = usable[pick(usable.size())];
        const std::size_t bytes = least / count + pick((most - least) / count + 1);
        const auto range = free_range(*mr, bytes, align);
        if (!range) {
            continue;
        }
        Sge one{.range = *range, .mr = mr};
        if (mistake(2)) {
            one.range.end = mr->range.end + 1;  // one byte too many
            in_burst_.push_back(one.range);
        } else if (mistake(2)) {
            one.spoilt_key = 1u << 30;
        }
        all.push_back(one);
    }
    return all;
}

RandomProgram::SendPlan RandomProgram::plan_send(Qp& qp, bool is_last) {
    SendPlan plan;
    plan.wr_id = next_wr_id_++;
    constexpr ibv_wr_opcode kAny[] = {IBV_WR_SEND,
                                      IBV_WR_SEND_WITH_IMM,
                                      IBV_WR_RDMA_WRITE,
                                      IBV_WR_RDMA_READ,
                                      IBV_WR_RDMA_WRITE_WITH_IMM,
                                      IBV_WR_ATOMIC_CMP_AND_SWP,
                                      IBV_WR_ATOMIC_FETCH_AND_ADD};
    constexpr ibv_wr_opcode kOfUc[] = {IBV_WR_SEND, IBV_WR_SEND_WITH_IMM, IBV_WR_RDMA_WRITE,
                                       IBV_WR_RDMA_WRITE_WITH_IMM};
    constexpr ibv_wr_opcode kOfUd[] = {IBV_WR_SEND, IBV_WR_SEND_WITH_IMM};
    const bool any_opcode = qp.type == IBV_QPT_RC || mistake(4);
    plan.opcode = any_opcode              ? kAny[pick(std::size(kAny))]
                  : qp.type == IBV_QPT_UC ? kOfUc[pick(std::size(kOfUc))]
                                          : kOfUd[pick(std::size(kOfUd))];
    if (mistake(1)) {
        plan.opcode = static_cast<ibv_wr_opcode>(IBV_WR_SEND_WITH_INV + 1 + pick(6));
    }
    plan.imm = static_cast<std::uint32_t>(random_());
    plan.flags = is_last || chance(60) ? unsigned{IBV_SEND_SIGNALED} : 0;
    plan.flags |= chance(15) ? unsigned{IBV_SEND_SOLICITED} : 0;
    plan.flags |= chance(10) ? unsigned{IBV_SEND_FENCE} : 0;
    const bool may_be_inline = !is_atomic(plan.opcode) && plan.opcode != IBV_WR_RDMA_READ;
    const bool is_inline = may_be_inline ? chance(25) : mistake(3);
    plan.flags |= is_inline ? unsigned{IBV_SEND_INLINE} : 0;
    std::size_t bytes = is_inline ? qp.cap.max_inline_data + mistake(5) * 100 : chance(80) ? 600 : 3500;
    std::size_t count = mistake(3) ? qp.cap.max_send_sge + 1 : pick(qp.cap.max_send_sge + 1);
    if (is_atomic(plan.opcode)) {
        count = 1;
        bytes = 8;
    }
    plan.sges = plan_sges(qp.pd, count, 0, bytes, is_atomic(plan.opcode) ? 8 : 1);
    if (is_atomic(plan.opcode)) {
        // Others are refused when they are posted.
        std::erase_if(plan.sges, [](const Sge& one) { return one.range.end - one.range.begin > 8; });
        for (Sge& one : plan.sges) {
            one.range.end = one.range.begin + 8;
            in_burst_.push_back(one.range);
        }
        if (plan.sges.size() != 1) {
            plan.opcode = qp.type == IBV_QPT_RC ? IBV_WR_RDMA_READ : IBV_WR_SEND;
        }
    }
    plan.num_sge_given = mistake(1) ? -1 : static_cast<int>(plan.sges.size());
    std::size_t length = 0;
    for (const Sge& one : plan.sges) {
        length += one.range.end - one.range.begin;
    }
    if (qp.type == IBV_QPT_UD) {
        std::vector<Ah*> usable;
        for (const auto& ah : ahs_) {
            if (ah->pd == qp.pd) {
                usable.push_back(ah.get());
            }
        }
        plan.ah = usable.empty() ? nullptr : usable[pick(usable.size())];
        plan.to = mistake(5) ? nullptr : any(qps_);
        plan.to = plan.to == &qp ? nullptr : plan.to;  // see connect()
        plan.qkey = kQkeys[mistake(15) ? 1 : 0];
    } else if (is_atomic(plan.opcode) || is_rdma(plan.opcode)) {
        const auto remote = plan_sges(clumsy_ ? any(pds_) : qp.pd, 1, 0, 0, 8);
        if (remote.empty()) {
            plan.opcode = IBV_WR_SEND;
        } else {
            Mr& mr = *remote[0].mr;
            const auto range = free_range(mr, is_atomic(plan.opcode) ? 8 : length, 8);
            plan.remote = Sge{.range = range ? *range : Range{0, 0}, .mr = &mr, .spoilt_key = remote[0].spoilt_key};
            if (mistake(3)) {
                plan.remote->range.begin = mr.range.end + (8 - mr.range.end % 8) % 8;
            }
        }
        plan.compare_add = random_();
        plan.swap = random_();
        if (plan.opcode == IBV_WR_ATOMIC_CMP_AND_SWP && plan.remote && plan.remote->range.end <= kMemory &&
            plan.remote->range.end - plan.remote->range.begin == 8 && chance(60)) {
            std::memcpy(&plan.compare_add, memory_[kDirect] + plan.remote->range.begin, 8);
        }
    }
    return plan;
}

// Posts a chain. Returns the errno value.
int RandomProgram::submit(Qp& qp, std::vector<SendPlan>& plans, bool may_build) {
    std::array<int, kWays> errors{};
    std::array<std::size_t, kWays> taken{};
    for (const std::size_t way : {kServed, kDirect}) {
        std::vector<std::vector<ibv_sge>> sges(plans.size());
        std::vector<ibv_send_wr> chain(plans.size());
        for (std::size_t i = 0; i < plans.size(); ++i) {
            const SendPlan& plan = plans[i];
            for (const Sge& one : plan.sges) {
                sges[i].push_back(sge_of(static_cast<int>(way), one));
            }
            ibv_send_wr& wr = chain[i];
            wr = {};
            wr.wr_id = plan.wr_id;
            wr.next = i + 1 < plans.size() ? &chain[i + 1] : nullptr;
            wr.sg_list = sges[i].data();
            wr.num_sge = plan.num_sge_given;
            wr.opcode = plan.opcode;
            wr.send_flags = plan.flags;
            wr.imm_data = plan.imm;
            if (qp.type == IBV_QPT_UD) {
                wr.wr.ud.ah = plan.ah == nullptr ? nullptr : plan.ah->at[way];
                wr.wr.ud.remote_qpn = plan.to == nullptr ? kNobody : plan.to->at[way]->qp_num;
                wr.wr.ud.remote_qkey = plan.qkey;
            } else if (plan.remote) {
                const auto addr = reinterpret_cast<std::uintptr_t>(memory_[way] + plan.remote->range.begin);
                const std::uint32_t rkey = plan.remote->mr->at[way]->rkey + plan.remote->spoilt_key;
                if (is_atomic(plan.opcode)) {
                    wr.wr.atomic = {
                        .remote_addr = addr, .compare_add = plan.compare_add, .swap = plan.swap, .rkey = rkey};
                } else {
                    wr.wr.rdma = {.remote_addr = addr, .rkey = rkey};
                }
            }
        }
        ibv_send_wr* bad = nullptr;
        const bool builds = qp.builds && may_build && way == kServed;
        errors[way] = builds ? build(qp, plans) : ibv_post_send(qp.at[way], chain.data(), &bad);
        taken[way] = errors[way] == 0 ? plans.size() : builds ? 0 : static_cast<std::size_t>(bad - chain.data());
    }
    std::string what = fmt::format("{} {} of", qp.builds && may_build ? "build" : "post_send", qp.id);
    for (const SendPlan& plan : plans) {
        what += fmt::format(" {}: opcode {} flags {:#x} sges", plan.wr_id, static_cast<int>(plan.opcode), plan.flags);
        for (const Sge& one : plan.sges) {
            what += fmt::format(" [{:#x},{:#x}) of mr {}{}", one.range.begin, one.range.end, one.mr->id,
                                one.spoilt_key != 0 ? " spoilt" : "");
        }
        if (plan.remote) {
            what += fmt::format(" remote {:#x} of mr {}{}", plan.remote->range.begin, plan.remote->mr->id,
                                plan.remote->spoilt_key != 0 ? " spoilt" : "");
        }
        if (qp.type == IBV_QPT_UD) {
            what += fmt::format(" to {} by ah {}", plan.to == nullptr ? -1 : plan.to->id,
                                plan.ah == nullptr ? -1 : plan.ah->id);
        }
        if (plan.num_sge_given < 0) {
            what += " num_sge -1";
        }
    }
    moving_ = true;
    const int error = same(what, errors[kDirect], errors[kServed]);
    if (taken[kDirect] != taken[kServed]) {
        differ(fmt::format("{}: {} and {} requests were taken", what, taken[kDirect], taken[kServed]));
    }
    for (std::size_t i = 0; i < taken[kDirect]; ++i) {
        Posted posted{.wr_id = plans[i].wr_id};
        for (const Sge& one : plans[i].sges) {
            posted.uses.push_back(one.range);
        }
        if (plans[i].remote) {
            posted.uses.push_back(plans[i].remote->range);
        }
        qp.sends.push_back(std::move(posted));
    }
    in_burst_.clear();
    return error;
}

// As submit(), on the served queue pair.
int RandomProgram::build(Qp& qp, const std::vector<SendPlan>& plans) {
    ibv_qp_ex* const builder = ibv_qp_to_qp_ex(qp.at[kServed]);
    ibv_wr_start(builder);
    for (const SendPlan& plan : plans) {
        builder->wr_id = plan.wr_id;
        builder->wr_flags = plan.flags;
        const std::uint32_t rkey = plan.remote ? plan.remote->mr->at[kServed]->rkey : 0;
        const auto addr =
            plan.remote ? reinterpret_cast<std::uintptr_t>(memory_[kServed] + plan.remote->range.begin) : 0;
        switch (plan.opcode) {
            case IBV_WR_SEND: ibv_wr_send(builder); break;
            case IBV_WR_SEND_WITH_IMM: ibv_wr_send_imm(builder, plan.imm); break;
            case IBV_WR_RDMA_WRITE: ibv_wr_rdma_write(builder, rkey, addr); break;
            case IBV_WR_RDMA_WRITE_WITH_IMM: ibv_wr_rdma_write_imm(builder, rkey, addr, plan.imm); break;
            case IBV_WR_RDMA_READ: ibv_wr_rdma_read(builder, rkey, addr); break;
            case IBV_WR_ATOMIC_CMP_AND_SWP:
                ibv_wr_atomic_cmp_swp(builder, rkey, addr, plan.compare_add, plan.swap);
                break;
            default: ibv_wr_atomic_fetch_add(builder, rkey, addr, plan.compare_add); break;
        }
        if (qp.type == IBV_QPT_UD) {
            ibv_wr_set_ud_addr(builder, plan.ah->at[kServed],
                               plan.to == nullptr ? kNobody : plan.to->at[kServed]->qp_num, plan.qkey);
        }
        std::vector<ibv_sge> sges;
        std::vector<ibv_data_buf> buffers;
        for (const Sge& one : plan.sges) {
            sges.push_back(sge_of(kServed, one));
            buffers.push_back({.addr = memory_[kServed] + one.range.begin, .length = sges.back().length});
        }
        if ((plan.flags & IBV_SEND_INLINE) != 0) {
            ibv_wr_set_inline_data_list(builder, buffers.size(), buffers.data());
        } else if (sges.size() == 1) {
            ibv_wr_set_sge(builder, sges[0].lkey, sges[0].addr, sges[0].length);
        } else {
            ibv_wr_set_sge_list(builder, sges.size(), sges.data());
        }
    }
    return ibv_wr_complete(builder);
}

void RandomProgram::post_sends(Qp& qp) {
    const bool has_ah = std::any_of(ahs_.begin(), ahs_.end(), [&](const auto& ah) { return ah->pd == qp.pd; });
    if (qp.type == IBV_QPT_UD && qp.builds && !has_ah) {
        return;
    }
    const std::size_t count = 1 + pick(6);
    if (qp.sends.size() + count >= qp.cap.max_send_wr) {
        return;
    }
    std::vector<SendPlan> plans;
    for (std::size_t i = 0; i < count; ++i) {
        plans.push_back(plan_send(qp, i + 1 == count));
    }
    if (submit(qp, plans) != 0) {
        // The last of those that were taken may be unsignaled: an empty request of any type that ends with a
        // completion.
        std::vector<SendPlan> last(1);
        last[0].wr_id = next_wr_id_++;
        last[0].opcode = qp.type == IBV_QPT_UD ? IBV_WR_SEND : IBV_WR_RDMA_WRITE;
        last[0].flags = IBV_SEND_SIGNALED;
        for (const auto& ah : ahs_) {
            last[0].ah = ah->pd == qp.pd ? ah.get() : last[0].ah;
        }
        (void)submit(qp, last);
    }
}

// One more than there is room for.
void RandomProgram::fill_send_queue(Qp& qp) {
    if (qp.type != IBV_QPT_RC || !qp.sends.empty()) {
        return;
    }
    std::vector<SendPlan> plans(qp.cap.max_send_wr + 1);
    for (SendPlan& plan : plans) {
        plan.wr_id = next_wr_id_++;
        plan.flags = IBV_SEND_SIGNALED;
        plan.opcode = chance(50) ? IBV_WR_SEND : IBV_WR_RDMA_WRITE;
    }
    (void)submit(qp, plans, false);  // builders do not say how many had room
}

template <class Target, class Post>
void RandomProgram::post_receives(Target& to, std::deque<Posted>& posted, const char* what, Pd* pd,
                                  std::uint32_t sges_max, std::uint32_t depth, const Post& post) {
    const std::size_t count = 1 + pick(5);
    std::vector<std::vector<Sge>> plans;
    for (std::size_t i = 0; i < count; ++i) {
        const bool too_many = posted.size() + count <= depth && mistake(3);
        if (clumsy_) {
            const std::size_t sges = too_many ? sges_max + 1 : pick(sges_max + 1);
            plans.push_back(plan_sges(pd, sges, 0, chance(30) ? 200 : 4200, 1));
        } else {
            plans.push_back(plan_sges(pd, 1 + pick(sges_max), kLongest, kLongest, 1));
        }
    }
    const std::uint64_t first = next_wr_id_;
    next_wr_id_ += count;
    const int num_sge_wrong = posted.size() + count <= depth && mistake(1) ? -1 : 0;
    std::array<int, kWays> errors{};
    std::array<std::size_t, kWays> taken{};
    for (const std::size_t way : {kServed, kDirect}) {
        std::vector<std::vector<ibv_sge>> sges(count);
        std::vector<ibv_recv_wr> chain(count);
        for (std::size_t i = 0; i < count; ++i) {
            for (const Sge& one : plans[i]) {
                sges[i].push_back(sge_of(static_cast<int>(way), one));
            }
            chain[i] = {.wr_id = first + i,
                        .next = i + 1 < count ? &chain[i + 1] : nullptr,
                        .sg_list = sges[i].data(),
                        .num_sge = num_sge_wrong != 0 ? num_sge_wrong : static_cast<int>(sges[i].size())};
        }
        ibv_recv_wr* bad = nullptr;
        errors[way] = post(way, chain.data(), &bad);
        taken[way] = errors[way] == 0 ? count : static_cast<std::size_t>(bad - chain.data());
    }
    std::string text = fmt::format("{} {} of {} from {}", what, to.id, count, first);
    for (const auto& plan : plans) {
        text += ";";
        for (const Sge& one : plan) {
            text += fmt::format(" [{:#x},{:#x}) of mr {}{}", one.range.begin, one.range.end, one.mr->id,
                                one.spoilt_key != 0 ? " spoilt" : "");
        }
    }
    moving_ = receives_moving_ = true;
    (void)same(text, errors[kDirect], errors[kServed]);
    if (taken[kDirect] != taken[kServed]) {
        differ(fmt::format("{}: {} and {} were taken", text, taken[kDirect], taken[kServed]));
    }
    for (std::size_t i = 0; i < taken[kDirect]; ++i) {
        Posted one{.wr_id = first + i};
        for (const Sge& sge : plans[i]) {
            one.uses.push_back(sge.range);
            one.sges.push_back(sge.range);
        }
        posted.push_back(std::move(one));
    }
    in_burst_.clear();
}

void RandomProgram::post_recvs(Qp& qp) {
    if (qp.cap.max_recv_wr == 0 && state_of(qp) == IBV_QPS_RESET) {
        return;  // two reasons to refuse it
    }
    post_receives(
        qp, qp.recvs, "post_recv", qp.pd, std::max(qp.cap.max_recv_sge, 1u), qp.cap.max_recv_wr,
        [&](std::size_t way, ibv_recv_wr* wr, ibv_recv_wr** bad) { return ibv_post_recv(qp.at[way], wr, bad); });
}

void RandomProgram::post_srq_recvs(Srq& srq) {
    post_receives(
        srq, srq.posted, "post_srq_recv", srq.pd, srq.attr.max_sge, srq.attr.max_wr,
        [&](std::size_t way, ibv_recv_wr* wr, ibv_recv_wr** bad) { return ibv_post_srq_recv(srq.at[way], wr, bad); });
}

}  // namespace pollcore::test
