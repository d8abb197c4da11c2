// Making and ending objects, by both ways.
#include <algorithm>
#include <cerrno>
#include <iterator>

#include <fmt/format.h>

#include "random_parts.hpp"
#include "random_program.hpp"

namespace pollcore::test {

template <class T>
bool RandomProgram::made(const std::string& what, Both<T>& object, const std::array<int, kWays>& errors) {
    object.id = next_id_++;
    say(fmt::format("{} {}: {}", what, object.id, name_of(object.at[kServed] != nullptr ? 0 : errors[kServed])));
    if ((object.at[kDirect] == nullptr) != (object.at[kServed] == nullptr)) {
        differ(fmt::format("{}: {} and {}", what, name_of(errors[kDirect]), name_of(errors[kServed])));
    }
    if (object.at[kDirect] != nullptr) {
        return true;
    }
    (void)same(what, errors[kDirect], errors[kServed]);
    return false;
}

template <class T>
bool RandomProgram::ended(const std::string& what, std::vector<std::unique_ptr<T>>& all, T& object,
                          const std::array<int, kWays>& errors) {
    for (std::size_t way = 0; way < kWays; ++way) {
        object.at[way] = errors[way] == 0 ? nullptr : object.at[way];
    }
    if (same(fmt::format("{} {}", what, object.id), errors[kDirect], errors[kServed]) != 0) {
        return false;
    }
    const std::string its = fmt::format(" of {} ", object.id);
    for (auto& events : events_) {
        std::erase_if(events, [&](const auto& event) { return event.first.find(its) != std::string::npos; });
    }
    std::erase_if(all, [&](const auto& one) { return one.get() == &object; });
    return true;
}

void RandomProgram::make_pd() {
    if (pds_.size() >= 3) {
        return;
    }
    auto pd = std::make_unique<Pd>();
    std::array<int, kWays> errors{};
    for (std::size_t way = 0; way < kWays; ++way) {
        pd->at[way] = ways_[way]->alloc_pd();
        errors[way] = errno;
    }
    if (made("alloc_pd", *pd, errors)) {
        pds_.push_back(std::move(pd));
    }
}

void RandomProgram::end_pd(Pd& pd, bool the_last_too) {
    if (pds_.size() > 1 || the_last_too) {
        (void)ended("dealloc_pd", pds_, pd,
                    {ways_[kDirect]->dealloc_pd(pd.at[kDirect]), ways_[kServed]->dealloc_pd(pd.at[kServed])});
    }
}

void RandomProgram::make_cq() {
    if (cqs_.size() >= 4) {
        return;
    }
    auto cq = std::make_unique<Cq>();
    cq->is_extended = chance(40);
    const int cqe = !cqs_.empty() && chance(3) ? 0 : 2048;
    std::array<int, kWays> errors{};
    for (std::size_t way = 0; way < kWays; ++way) {
        // The device itself takes any number of entries, and libibverbs refuses none.
        cq->at[way] = cqe == 0 && way == kDirect ? nullptr : ways_[way]->create_cq(cqe, cq->is_extended);
        errors[way] = cqe == 0 && way == kDirect ? EINVAL : errno;
    }
    if (made("create_cq", *cq, errors)) {
        cqs_.push_back(std::move(cq));
    }
}

void RandomProgram::end_cq(Cq& cq, bool the_last_too) {
    if (cqs_.size() <= 1 && !the_last_too) {
        return;
    }
    const Cq* const its = &cq;
    if (ended("destroy_cq", cqs_, cq,
              {ways_[kDirect]->destroy_cq(cq.at[kDirect]), ways_[kServed]->destroy_cq(cq.at[kServed])})) {
        for (const auto& srq : srqs_) {
            srq->has_ended_cq = srq->has_ended_cq || srq->recv_cq == its;
        }
    }
}

void RandomProgram::make_srq() {
    if (srqs_.size() >= 3) {
        return;
    }
    auto srq = std::make_unique<Srq>();
    srq->pd = any(pds_);
    srq->attr = {.max_wr = static_cast<std::uint32_t>(chance(3) ? 0 : 1 + pick(16)),
                 .max_sge = static_cast<std::uint32_t>(chance(3) ? 10'000 : 1 + pick(3)),
                 .srq_limit = 0};
    std::array<int, kWays> errors{};
    for (std::size_t way = 0; way < kWays; ++way) {
        srq->at[way] = ways_[way]->create_srq(srq->pd->at[way], srq->attr);
        errors[way] = errno;
    }
    if (made("create_srq", *srq, errors)) {
        srqs_.push_back(std::move(srq));
    }
}

void RandomProgram::limit_srq() {
    Srq* const srq = any(srqs_);
    if (srq == nullptr) {
        return;
    }
    const auto limit = static_cast<std::uint32_t>(pick(srq->attr.max_wr + 2));
    // The library arms the limit when the shared receive queue gets its first queue pair, and the device at once.
    if (srq->users > 0) {
        const ibv_srq_attr attr{.max_wr = 0, .max_sge = 0, .srq_limit = limit};
        (void)same(fmt::format("modify_srq {} to limit {}", srq->id, limit),
                   ways_[kDirect]->modify_srq(srq->at[kDirect], attr, IBV_SRQ_LIMIT),
                   ways_[kServed]->modify_srq(srq->at[kServed], attr, IBV_SRQ_LIMIT));
        moving_ = true;
        settle();
    }
    std::array<ibv_srq_attr, kWays> attr{};
    (void)same(fmt::format("query_srq {}", srq->id), ways_[kDirect]->query_srq(srq->at[kDirect], attr[kDirect]),
               ways_[kServed]->query_srq(srq->at[kServed], attr[kServed]));
    if (attr[kDirect].max_wr != attr[kServed].max_wr || attr[kDirect].max_sge != attr[kServed].max_sge ||
        attr[kDirect].srq_limit != attr[kServed].srq_limit) {
        differ(fmt::format("attributes of shared receive queue {}: limits {} and {}", srq->id, attr[kDirect].srq_limit,
                           attr[kServed].srq_limit));
    }
}

void RandomProgram::end_srq(Srq& srq) {
    (void)ended("destroy_srq", srqs_, srq,
                {ways_[kDirect]->destroy_srq(srq.at[kDirect]), ways_[kServed]->destroy_srq(srq.at[kServed])});
}

void RandomProgram::make_mr() {
    if (mrs_.size() >= 10) {
        return;
    }
    auto mr = std::make_unique<Mr>();
    mr->pd = any(pds_);
    const std::size_t area = pick(kAreas);
    mr->range = {area * kAreaBytes, (area + 1) * kAreaBytes};
    const bool is_there = std::any_of(mrs_.begin(), mrs_.end(), [&](const auto& one) {
        return one->range.begin == mr->range.begin && one->range.end == mr->range.end;
    });
    if (is_there && chance(50)) {
        // Within pages that are registered already.
        const std::size_t bytes = 1 + pick(kAreaBytes - 1);
        mr->range.begin += pick(kAreaBytes - bytes);
        mr->range.end = mr->range.begin + bytes;
    }
    constexpr int kAll =
        IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
    const int access = !mistake(25) ? kAll : static_cast<int>(random_()) & kAll;
    const std::size_t length = chance(2) ? 0 : mr->range.end - mr->range.begin;
    std::array<int, kWays> errors{};
    for (std::size_t way = 0; way < kWays; ++way) {
        mr->at[way] = ways_[way]->reg_mr(mr->pd->at[way], memory_[way] + mr->range.begin, length, access);
        errors[way] = errno;
    }
    if (made(fmt::format("reg_mr of {:#x} to {:#x} with access {:#x} in pd {}", mr->range.begin, mr->range.end, access,
                         mr->pd->id),
             *mr, errors)) {
        mrs_.push_back(std::move(mr));
    }
}

void RandomProgram::end_mr(Mr& mr) {
    // If requests of two queue pairs wait for receives, both may find the memory gone, and one of them does so first.
    if (std::count_if(qps_.begin(), qps_.end(), [](const auto& qp) { return !qp->sends.empty(); }) > 1) {
        return;
    }
    moving_ = true;  // a request that is repeated may find its memory gone
    (void)ended("dereg_mr", mrs_, mr,
                {ways_[kDirect]->dereg_mr(mr.at[kDirect]), ways_[kServed]->dereg_mr(mr.at[kServed])});
}

void RandomProgram::make_ah() {
    if (ahs_.size() >= 4) {
        return;
    }
    auto ah = std::make_unique<Ah>();
    ah->pd = any(pds_);
    ibv_ah_attr attr{};
    attr.is_global = !mistake(4);
    attr.grh.sgid_index = mistake(3) ? 1 : 0;
    attr.grh.hop_limit = static_cast<std::uint8_t>(random_());
    attr.grh.traffic_class = static_cast<std::uint8_t>(random_());
    attr.grh.flow_label = static_cast<std::uint32_t>(random_()) & 0xfffff;
    attr.sl = static_cast<std::uint8_t>(pick(16));
    attr.port_num = mistake(3) ? 2 : 1;
    std::array<int, kWays> errors{};
    for (std::size_t way = 0; way < kWays; ++way) {
        attr.grh.dgid = ways_[way]->gid();
        ah->at[way] = ways_[way]->create_ah(ah->pd->at[way], attr);
        errors[way] = errno;
    }
    if (made("create_ah", *ah, errors)) {
        ahs_.push_back(std::move(ah));
    }
}

void RandomProgram::end_ah(Ah& ah) {
    (void)ended("destroy_ah", ahs_, ah,
                {ways_[kDirect]->destroy_ah(ah.at[kDirect]), ways_[kServed]->destroy_ah(ah.at[kServed])});
}

void RandomProgram::make_qp() {
    if (qps_.size() >= 6) {
        return;
    }
    auto qp = std::make_unique<Qp>();
    constexpr ibv_qp_type kTypes[] = {IBV_QPT_RC, IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD, IBV_QPT_UD};
    // Pairs of one type, so that many of them can be connected.
    qp->type = !qps_.empty() && chance(60) ? qps_.back()->type : kTypes[pick(std::size(kTypes))];
    qp->pd = any(pds_);
    qp->send_cq = any(cqs_);
    qp->recv_cq = any(cqs_);
    qp->signal_all = chance(20);
    qp->builds = !clumsy_ && chance(50);  // builders name no bad request
    if (Srq* const srq = any(srqs_); srq != nullptr && !srq->has_ended_cq && chance(30)) {
        qp->srq = srq;
    }
    if (qp->srq != nullptr && qp->srq->recv_cq != nullptr) {
        qp->recv_cq = qp->srq->recv_cq;
    }
    ibv_qp_init_attr init{};
    init.cap = {.max_send_wr = 1 + static_cast<std::uint32_t>(pick(32)),
                .max_recv_wr = static_cast<std::uint32_t>(pick(24)),
                .max_send_sge = 1 + static_cast<std::uint32_t>(pick(4)),
                .max_recv_sge = 1 + static_cast<std::uint32_t>(pick(4)),
                .max_inline_data = static_cast<std::uint32_t>(pick(200))};
    if (chance(2)) {
        init.cap.max_send_sge = 10'000;
    }
    init.qp_type = qp->type;
    init.sq_sig_all = qp->signal_all;
    std::array<int, kWays> errors{};
    ibv_qp_cap asked = init.cap;
    for (const std::size_t way : {kServed, kDirect}) {  // the device is asked for what the library has given
        init.send_cq = qp->send_cq->at[way];
        init.recv_cq = qp->recv_cq->at[way];
        init.srq = qp->srq == nullptr ? nullptr : qp->srq->at[way];
        init.cap = asked;
        qp->at[way] = ways_[way]->create_qp(qp->pd->at[way], init, qp->builds);
        errors[way] = errno;
        if (qp->at[way] != nullptr) {
            asked = init.cap;
        }
    }
    if (!made(fmt::format("create_qp of type {} (srq {}, send_cq {}, recv_cq {}, pd {}, {} sends, {} receives)",
                          static_cast<int>(qp->type), qp->srq == nullptr ? -1 : qp->srq->id, qp->send_cq->id,
                          qp->recv_cq->id, qp->pd->id, asked.max_send_wr, asked.max_recv_wr),
              *qp, errors)) {
        return;
    }
    qp->cap = asked;
    if (qp->srq != nullptr) {
        ++qp->srq->users;
        qp->srq->recv_cq = qp->recv_cq;
    }
    qps_.push_back(std::move(qp));
}

void RandomProgram::end_qp(Qp& qp) {
    Srq* const srq = qp.srq;
    moving_ = true;
    if (ended("destroy_qp", qps_, qp,
              {ways_[kDirect]->destroy_qp(qp.at[kDirect]), ways_[kServed]->destroy_qp(qp.at[kServed])}) &&
        srq != nullptr) {
        --srq->users;
    }
}

}  // namespace pollcore::test
