#include "random_program.hpp"

#include <arpa/inet.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>

#include <fmt/format.h>

#include "daemon_process.hpp"
#include "kernel_states.hpp"

namespace pollcore::test {
namespace {

constexpr int kDirect = 0;
constexpr int kServed = 1;
constexpr std::size_t kPage = 4096;
constexpr std::size_t kAreas = 4;
constexpr std::size_t kAreaBytes = 16 * kPage;
constexpr std::size_t kMemory = kAreas * kAreaBytes;
constexpr std::uint32_t kQkeys[] = {0x1111, 0x2222};
constexpr std::uint32_t kNobody = 0xfff0f0;  // a number that no queue pair has
// On a busy machine a worker may not run for longer than this, so there are many retries.
constexpr std::uint8_t kTimeoutTwoMs = 9;
constexpr std::uint8_t kRetries = 7;
constexpr std::uint8_t kRnrTimers[] = {12, 14};  // 0.64 and 1.28 ms
constexpr std::uint32_t kGrh = 40;
constexpr std::size_t kLongest = 4200;  // of all messages, with a GRH

char* allocated() {
    return static_cast<char*>(std::aligned_alloc(kPage, kMemory));
}

std::string name_of(int error) {
    return error == 0 ? "success" : strerrorname_np(error);
}

bool is_atomic(ibv_wr_opcode opcode) {
    return opcode == IBV_WR_ATOMIC_CMP_AND_SWP || opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
}
bool is_rdma(ibv_wr_opcode opcode) {
    return opcode == IBV_WR_RDMA_WRITE || opcode == IBV_WR_RDMA_WRITE_WITH_IMM || opcode == IBV_WR_RDMA_READ;
}

}  // namespace

RandomProgram::RandomProgram(DirectWay& direct, ServedWay& served, std::uint64_t seed)
    : ways_{&direct, &served},
      random_(seed),
      clumsy_(seed % 2 == 0),
      mtu_(static_cast<ibv_mtu>(IBV_MTU_256 + pick(5))) {
    static const std::array<char*, kWays> memory{allocated(), allocated()};
    memory_ = memory;
    for (std::size_t i = 0; i < kMemory; i += 8) {
        const std::uint64_t word = random_();
        std::memcpy(memory_[kDirect] + i, &word, 8);
        std::memcpy(memory_[kServed] + i, &word, 8);
    }
}

RandomProgram::~RandomProgram() {
    // After a difference there may be anything.
    for (int way = 0; way < kWays; ++way) {
        const auto end = [&](auto& all, auto destroy) {
            for (auto& one : all) {
                if (one->at[static_cast<std::size_t>(way)] != nullptr) {
                    (void)destroy(one->at[static_cast<std::size_t>(way)]);
                }
            }
        };
        Way& its = *ways_[static_cast<std::size_t>(way)];
        (void)its.events();
        end(qps_, [&](ibv_qp* qp) { return its.destroy_qp(qp); });
        end(srqs_, [&](ibv_srq* srq) { return its.destroy_srq(srq); });
        end(cqs_, [&](ibv_cq* cq) { return its.destroy_cq(cq); });
        end(ahs_, [&](ibv_ah* ah) { return its.destroy_ah(ah); });
        end(mrs_, [&](ibv_mr* mr) { return its.dereg_mr(mr); });
        end(pds_, [&](ibv_pd* pd) { return its.dealloc_pd(pd); });
    }
}

void RandomProgram::run(int calls) {
    make_pd();
    make_cq();
    make_mr();
    make_mr();
    make_qp();
    make_qp();
    for (int i = 0; i < calls; ++i) {
        make_call();
        settle();
    }
    end_all();
}

void RandomProgram::make_call() {
    const std::size_t dice = pick(100);
    Qp* const qp = any(qps_);
    if (dice < 2) {
        make_pd();
    } else if (dice < 3) {
        end_pd(*any(pds_));
    } else if (dice < 5) {
        make_cq();
    } else if (dice < 6) {
        end_cq(*any(cqs_));
    } else if (dice < 8) {
        make_srq();
    } else if (dice < 10) {
        limit_srq();
    } else if (dice < 11) {
        if (Srq* const srq = any(srqs_)) {
            end_srq(*srq);
        }
    } else if (dice < 14) {
        make_mr();
    } else if (dice < 15) {
        if (Mr* const mr = any(mrs_)) {
            end_mr(*mr);
        }
    } else if (dice < 18) {
        make_ah();
    } else if (dice < 19) {
        if (Ah* const ah = any(ahs_)) {
            end_ah(*ah);
        }
    } else if (dice < 26) {
        make_qp();
    } else if (dice < 27 && qp != nullptr) {
        end_qp(*qp);
    } else if (dice < 38) {
        connect();
    } else if (dice < 44 && qp != nullptr) {
        if (clumsy_ || chance(30)) {
            modify(*qp);
        }
    } else if (dice < 47 && qp != nullptr) {
        query(*qp);
    } else if (dice < 62 && qp != nullptr) {
        post_recvs(*qp);
    } else if (dice < 67) {
        if (Srq* const srq = any(srqs_)) {
            post_srq_recvs(*srq);
        }
    } else if (dice < 69 && qp != nullptr) {
        fill_send_queue(*qp);
    } else if (qp != nullptr) {
        post_sends(*qp);
    }
}

// ---- making and ending objects ----

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

void RandomProgram::end_pd(Pd& pd) {
    if (pds_.size() > 1) {
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

void RandomProgram::end_cq(Cq& cq) {
    if (cqs_.size() <= 1) {
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

void RandomProgram::end_all() {
    while (!qps_.empty() || !srqs_.empty() || cqs_.size() > 1 || !ahs_.empty() || !mrs_.empty() || pds_.size() > 1) {
        switch (pick(6)) {
            case 0: end_pd(*any(pds_)); break;
            case 1: end_cq(*any(cqs_)); break;
            case 2:
                if (Srq* const srq = any(srqs_)) {
                    end_srq(*srq);
                }
                break;
            case 3:
                if (Mr* const mr = any(mrs_)) {
                    end_mr(*mr);
                }
                break;
            case 4:
                if (Ah* const ah = any(ahs_)) {
                    end_ah(*ah);
                }
                break;
            default:
                if (Qp* const qp = any(qps_)) {
                    end_qp(*qp);
                }
                break;
        }
        settle();
    }
    compare_events();
    (void)ended("destroy_cq", cqs_, *cqs_[0],
                {ways_[kDirect]->destroy_cq(cqs_[0]->at[kDirect]), ways_[kServed]->destroy_cq(cqs_[0]->at[kServed])});
    (void)ended("dealloc_pd", pds_, *pds_[0],
                {ways_[kDirect]->dealloc_pd(pds_[0]->at[kDirect]), ways_[kServed]->dealloc_pd(pds_[0]->at[kServed])});
    if (!cqs_.empty() || !pds_.empty()) {
        differ("an object without users cannot be destroyed");
    }
}

// ---- states ----

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
    equal("the peer's GID", std::memcmp(&a.ah_attr.grh.dgid, std::to_address(&a.ah_attr.grh.dgid), 16) == 0,
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

// ---- requests ----

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
        plan.opcode = static_cast<ibv_wr_opcode>(IBV_WR_SEND_WITH_INV + 1 + pick(20));
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

// ---- comparing ----

void RandomProgram::differ(const std::string& what) const {
    throw Difference("directly and served: " + what);
}

int RandomProgram::same(const std::string& what, int direct, int served) {
    say(fmt::format("{}: {}", what, name_of(served)));
    if (direct != served) {
        differ(fmt::format("{}: {} and {}", what, name_of(direct), name_of(served)));
    }
    refused_calls_ += direct != 0;
    return direct;
}

std::vector<ibv_wc> RandomProgram::poll(int way, const Cq& cq) {
    std::vector<ibv_wc> all;
    ibv_cq* const verbs = cq.at[static_cast<std::size_t>(way)];
    if (cq.is_extended) {
        auto* const extended_cq = reinterpret_cast<ibv_cq_ex*>(verbs);
        ibv_poll_cq_attr attr{};
        if (ibv_start_poll(extended_cq, &attr) != 0) {
            return all;
        }
        do {
            ibv_wc wc{};
            wc.wr_id = extended_cq->wr_id;
            wc.status = extended_cq->status;
            wc.opcode = ibv_wc_read_opcode(extended_cq);
            wc.vendor_err = ibv_wc_read_vendor_err(extended_cq);
            wc.byte_len = ibv_wc_read_byte_len(extended_cq);
            wc.imm_data = ibv_wc_read_imm_data(extended_cq);
            wc.qp_num = ibv_wc_read_qp_num(extended_cq);
            wc.src_qp = ibv_wc_read_src_qp(extended_cq);
            wc.wc_flags = ibv_wc_read_wc_flags(extended_cq);
            wc.slid = static_cast<std::uint16_t>(ibv_wc_read_slid(extended_cq));
            wc.sl = ibv_wc_read_sl(extended_cq);
            wc.dlid_path_bits = ibv_wc_read_dlid_path_bits(extended_cq);
            all.push_back(wc);
        } while (ibv_next_poll(extended_cq) == 0);
        ibv_end_poll(extended_cq);
        return all;
    }
    for (;;) {
        ibv_wc some[7];
        const int got = ibv_poll_cq(verbs, 1 + static_cast<int>(all.size() % 7), some);
        if (got < 0) {
            differ(fmt::format("poll_cq {} by way {} returned {}", cq.id, way, got));
        }
        if (got == 0) {
            return all;
        }
        all.insert(all.end(), some, some + got);
    }
}

void RandomProgram::settle() {
    while (std::exchange(moving_, false)) {
        settle_once();
        // Workers have one state for all errors: they flush receives in SQE, too.
        for (const auto& qp : qps_) {
            if (qp->type != IBV_QPT_RC && state_of(*qp) == IBV_QPS_SQE) {
                (void)move(*qp, {.qp_state = IBV_QPS_ERR}, IBV_QP_STATE, nullptr);
            }
        }
    }
}

void RandomProgram::settle_once() {
    std::vector<std::vector<ibv_wc>> direct(cqs_.size());
    std::size_t expected = 0;
    for (bool moved = true; moved;) {
        ways_[kDirect]->let_work();
        moved = false;
        for (std::size_t i = 0; i < cqs_.size(); ++i) {
            const auto more = poll(kDirect, *cqs_[i]);
            direct[i].insert(direct[i].end(), more.begin(), more.end());
            expected += more.size();
            moved = moved || !more.empty();
        }
    }
    const auto has_posted = [](const auto& one) { return !one->posted.empty(); };
    const auto has_work = [](const auto& qp) { return !qp->sends.empty() || !qp->recvs.empty(); };
    const bool more_may_come =
        std::any_of(qps_.begin(), qps_.end(), has_work) || std::any_of(srqs_.begin(), srqs_.end(), has_posted);
    if (std::exchange(receives_moving_, false) || (expected == 0 && more_may_come)) {
        ways_[kServed]->let_work();
    }
    std::vector<std::vector<ibv_wc>> served(cqs_.size());
    bool behind = true;
    const auto until = std::chrono::steady_clock::now() + kPatience;
    for (unsigned turn = 0; behind && std::chrono::steady_clock::now() < until; ++turn) {
        wait_a_little(turn);
        behind = false;
        for (std::size_t i = 0; i < cqs_.size(); ++i) {
            const auto more = poll(kServed, *cqs_[i]);
            served[i].insert(served[i].end(), more.begin(), more.end());
            behind = behind || served[i].size() < direct[i].size();
        }
    }
    for (std::size_t i = 0; i < cqs_.size(); ++i) {
        compare_completions(*cqs_[i], direct[i], served[i]);
    }
    compare_events();
    compare_memory();
}

void RandomProgram::compare_completions(Cq& cq, const std::vector<ibv_wc>& direct, const std::vector<ibv_wc>& served) {
    // Completions of different queues have no order.
    struct Queue {
        std::vector<ibv_wc> direct;
        std::vector<ibv_wc> served;
    };
    std::map<std::pair<int, bool>, Queue> queues;
    const auto is_receive = [&](std::uint64_t wr_id) {
        const auto has = [&](const std::deque<Posted>& all) {
            return std::any_of(all.begin(), all.end(), [&](const Posted& one) { return one.wr_id == wr_id; });
        };
        return std::any_of(qps_.begin(), qps_.end(), [&](const auto& qp) { return has(qp->recvs); }) ||
               std::any_of(srqs_.begin(), srqs_.end(), [&](const auto& srq) { return has(srq->posted); });
    };
    std::map<std::uint64_t, bool> receives;
    for (const auto* all : {&direct, &served}) {
        for (const ibv_wc& wc : *all) {
            receives.emplace(wc.wr_id, is_receive(wc.wr_id));
        }
    }
    for (const ibv_wc& wc : direct) {
        queues[{index_of(kDirect, wc.qp_num), receives[wc.wr_id]}].direct.push_back(wc);
    }
    for (const ibv_wc& wc : served) {
        queues[{index_of(kServed, wc.qp_num), receives[wc.wr_id]}].served.push_back(wc);
    }
    for (const auto& [key, queue] : queues) {
        const auto text = [](const std::vector<ibv_wc>& all) {
            std::string words;
            for (const ibv_wc& wc : all) {
                words += fmt::format(" {}: {}", wc.wr_id, ibv_wc_status_str(wc.status));
            }
            return words.empty() ? std::string(" nothing") : words;
        };
        say(fmt::format("  {} of queue pair {} in cq {}:{}", key.second ? "receives" : "sends", key.first, cq.id,
                        text(queue.direct)));
        if (queue.direct.size() != queue.served.size()) {
            differ(fmt::format("{} of queue pair {} in cq {}:{} and{}", key.second ? "receives" : "sends", key.first,
                               cq.id, text(queue.direct), text(queue.served)));
        }
        for (std::size_t i = 0; i < queue.direct.size(); ++i) {
            compare_one(queue.direct[i], queue.served[i]);
            took(queue.direct[i]);
        }
    }
}

void RandomProgram::compare_one(const ibv_wc& a, const ibv_wc& b) {
    const auto equal = [&](const char* what, auto direct, auto served) {
        if (direct != served) {
            differ(fmt::format("{} of completion {} ({}): {} and {}", what, a.wr_id, ibv_wc_status_str(a.status),
                               direct, served));
        }
    };
    equal("wr_id", a.wr_id, b.wr_id);
    equal("status", static_cast<int>(a.status), static_cast<int>(b.status));
    ++completions_;
    if (a.status != IBV_WC_SUCCESS) {
        ++failed_completions_;
        if (a.status != IBV_WC_WR_FLUSH_ERR) {  // a worker flushes by itself
            equal("vendor_err", a.vendor_err, b.vendor_err);
        }
        return;  // nothing else is valid
    }
    equal("opcode", static_cast<int>(a.opcode), static_cast<int>(b.opcode));
    equal("wc_flags", a.wc_flags, b.wc_flags);
    const bool is_receive = a.opcode == IBV_WC_RECV || a.opcode == IBV_WC_RECV_RDMA_WITH_IMM;
    if (is_receive || a.opcode == IBV_WC_RDMA_READ || a.opcode == IBV_WC_COMP_SWAP || a.opcode == IBV_WC_FETCH_ADD) {
        equal("byte_len", a.byte_len, b.byte_len);
    }
    if ((a.wc_flags & IBV_WC_WITH_IMM) != 0) {
        equal("imm_data", a.imm_data, b.imm_data);
    }
    if ((a.wc_flags & IBV_WC_GRH) != 0) {
        equal("src_qp", index_of(kDirect, a.src_qp), index_of(kServed, b.src_qp));
        equal("pkey_index", a.pkey_index, b.pkey_index);
        equal("slid", a.slid, b.slid);
        equal("sl", a.sl, b.sl);
        equal("dlid_path_bits", a.dlid_path_bits, b.dlid_path_bits);
    }
}

// The request of a completion, and those before it in its send queue, have ended.
void RandomProgram::took(const ibv_wc& direct) {
    const auto at = [&](std::deque<Posted>& all) {
        return std::find_if(all.begin(), all.end(), [&](const Posted& one) { return one.wr_id == direct.wr_id; });
    };
    for (const auto& qp : qps_) {
        if (const auto found = at(qp->sends); found != qp->sends.end()) {
            qp->sends.erase(qp->sends.begin(), found + 1);
            return;
        }
    }
    const auto take_receive = [&](std::deque<Posted>& all, bool datagram) {
        const auto found = at(all);
        if (found == all.end()) {
            return false;
        }
        if (datagram || direct.status != IBV_WC_SUCCESS) {
            drop_grh(*found, direct.status != IBV_WC_SUCCESS);
        }
        all.erase(found);
        return true;
    };
    const bool datagram = direct.status == IBV_WC_SUCCESS && (direct.wc_flags & IBV_WC_GRH) != 0;
    for (const auto& qp : qps_) {
        if (take_receive(qp->recvs, datagram)) {
            return;
        }
    }
    for (const auto& srq : srqs_) {
        if (take_receive(srq->posted, datagram)) {
            return;
        }
    }
    differ(fmt::format("completion {} belongs to no request", direct.wr_id));
}

// The GRH before a datagram has the GIDs of the two ways. A receive that has failed may hold anything.
void RandomProgram::drop_grh(const Posted& receive, bool whole) {
    std::size_t left = whole ? kMemory : kGrh;
    std::array<std::string, kWays> grh;
    for (const Range& sge : receive.sges) {
        const std::size_t end = std::min(sge.end, kMemory);
        const std::size_t bytes = std::min(left, end - std::min(sge.begin, end));
        for (std::size_t way = 0; way < kWays; ++way) {
            grh[way].append(memory_[way] + sge.begin, bytes);
            std::memset(memory_[way] + sge.begin, 0, bytes);
        }
        left -= bytes;
    }
    if (whole) {
        return;
    }
    for (std::size_t way = 0; way < kWays; ++way) {
        const ibv_gid gid = ways_[way]->gid();
        const std::string raw(reinterpret_cast<const char*>(gid.raw), sizeof gid.raw);
        if (grh[way].substr(8) != raw + raw) {
            differ(fmt::format("the GRH of receive {} by way {} does not have the GIDs", receive.wr_id, way));
        }
    }
    if (grh[kDirect].substr(0, 8) != grh[kServed].substr(0, 8)) {
        differ(fmt::format("the GRH of receive {}", receive.wr_id));
    }
}

void RandomProgram::compare_events() {
    const auto count = [&](std::size_t way) {
        for (const ibv_async_event& event : ways_[way]->events()) {
            int id = -1;
            switch (event.event_type) {
                case IBV_EVENT_SRQ_ERR:
                case IBV_EVENT_SRQ_LIMIT_REACHED:
                    for (const auto& srq : srqs_) {
                        id = srq->at[way] == event.element.srq ? srq->id : id;
                    }
                    break;
                default:
                    for (const auto& qp : qps_) {
                        id = qp->at[way] == event.element.qp ? qp->id : id;
                    }
            }
            ++events_[way][fmt::format("{} of {} ", ibv_event_type_str(event.event_type), id)];
        }
    };
    count(kDirect);
    const auto is_behind = [&] {
        return std::any_of(events_[kDirect].begin(), events_[kDirect].end(), [&](const auto& event) {
            const auto found = events_[kServed].find(event.first);
            return found == events_[kServed].end() || found->second < event.second;
        });
    };
    count(kServed);
    const auto until = std::chrono::steady_clock::now() + kPatience;
    for (unsigned turn = 0; is_behind() && std::chrono::steady_clock::now() < until; ++turn) {
        wait_a_little(turn);
        count(kServed);
    }
    for (const auto* events : {&events_[kDirect], &events_[kServed]}) {
        for (const auto& [name, times] : *events) {
            if (events_[kDirect][name] != events_[kServed][name]) {
                differ(fmt::format("event \"{}\" came {} and {} times", name, events_[kDirect][name],
                                   events_[kServed][name]));
            }
        }
    }
}

void RandomProgram::compare_memory() const {
    // Writes before a request that has not ended yet may still be under way.
    const auto equal = [&] { return std::memcmp(memory_[kDirect], memory_[kServed], kMemory) == 0; };
    const auto until = std::chrono::steady_clock::now() + kPatience;
    for (unsigned turn = 0; !equal() && std::chrono::steady_clock::now() < until; ++turn) {
        wait_a_little(turn);
    }
    if (!equal()) {
        const auto [direct, served] = std::mismatch(memory_[kDirect], memory_[kDirect] + kMemory, memory_[kServed]);
        differ(fmt::format("byte {:#x} of the memory is {:#x} and {:#x}", direct - memory_[kDirect],
                           static_cast<unsigned char>(*direct), static_cast<unsigned char>(*served)));
    }
}

}  // namespace pollcore::test
