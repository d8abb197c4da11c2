#include "random_program.hpp"

#include <cstdlib>
#include <cstring>

#include "random_parts.hpp"

namespace pollcore::test {

RandomProgram::RandomProgram(DirectWay& direct, ServedWay& served, std::uint64_t seed)
    : ways_{&direct, &served},
      random_(seed),
      clumsy_(seed % 2 == 0),
      mtu_(static_cast<ibv_mtu>(IBV_MTU_256 + pick(5))) {
    const auto allocated = [] { return static_cast<char*>(std::aligned_alloc(kPage, kMemory)); };
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
    end_cq(*cqs_[0], true);
    end_pd(*pds_[0], true);
    if (!cqs_.empty() || !pds_.empty()) {
        differ("an object without users cannot be destroyed");
    }
}

}  // namespace pollcore::test
