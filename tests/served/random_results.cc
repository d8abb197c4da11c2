// Comparing what the two ways have done.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "daemon_process.hpp"
#include "random_parts.hpp"
#include "random_program.hpp"

namespace pollcore::test {

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
            wc.vendor_err = ibv_wc_read_vendor_err(extended_cq);
            wc.qp_num = ibv_wc_read_qp_num(extended_cq);
            if (wc.status != IBV_WC_SUCCESS) {
                all.push_back(wc);  // the other fields are not valid
                continue;
            }
            wc.opcode = ibv_wc_read_opcode(extended_cq);
            wc.byte_len = ibv_wc_read_byte_len(extended_cq);
            wc.imm_data = ibv_wc_read_imm_data(extended_cq);
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
