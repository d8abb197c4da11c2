// Every call in every state of a queue pair: right, wrong and senseless calls return what the manual pages and the
// kernel's table of states promise, harm nothing, and leave the process attached.
//
// POLLCORE_STATE_CALLS is the number of random calls (4000), POLLCORE_STATE_SEED their seed (1).
#include <fcntl.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "kernel_states.hpp"
#include "verbs_fixture.hpp"

namespace pollcore::test {
namespace {

constexpr ibv_qp_state kStates[] = {IBV_QPS_RESET, IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS, IBV_QPS_SQE, IBV_QPS_ERR};
constexpr int kEnd = 1 << 30;

std::string text_of(ibv_qp_type type) {
    return type == IBV_QPT_RC ? "RC" : type == IBV_QPT_UC ? "UC" : "UD";
}
std::string text_of(ibv_qp_state state) {
    constexpr const char* kNames[] = {"RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"};
    return state <= IBV_QPS_ERR ? kNames[state] : "state " + std::to_string(state);
}

// A queue pair that is put into any state, with a peer that takes what it sends.
class StateCalls : public Verbs, public testing::WithParamInterface<ibv_qp_type> {
protected:
    void SetUp() override {
        Verbs::SetUp();
        cq_ = make_cq(256);
        make_pair();
        ibv_ah_attr there = way();
        ah_ = ibv_create_ah(pd_, &there);
        ASSERT_NE(ah_, nullptr);
    }
    void TearDown() override {
        EXPECT_EQ(ibv_destroy_qp(qp_), 0);
        EXPECT_EQ(ibv_destroy_qp(peer_), 0);
        EXPECT_EQ(ibv_destroy_ah(ah_), 0);
        EXPECT_EQ(ibv_destroy_cq(cq_), 0);
        Verbs::TearDown();
    }
    void make_pair() {
        qp_ = make_qp(cq_, cq_, GetParam());
        peer_ = make_qp(cq_, cq_, GetParam());
        ASSERT_NE(qp_, nullptr);
        ASSERT_NE(peer_, nullptr);
    }
    [[nodiscard]] static ibv_qp_state state_of(ibv_qp* qp) {
        ibv_qp_attr attr{};
        ibv_qp_init_attr init{};
        EXPECT_EQ(ibv_query_qp(qp, &attr, IBV_QP_STATE, &init), 0);
        EXPECT_EQ(attr.cur_qp_state, attr.qp_state);
        EXPECT_EQ(qp->state, attr.qp_state);
        return attr.qp_state;
    }
    void drain() {
        ibv_wc wc[16];
        while (ibv_poll_cq(cq_, 16, wc) > 0) {
        }
    }
    /// Returns false if queue pairs of this type have no such state.
    bool put_into(ibv_qp_state state) {
        if (state == IBV_QPS_SQE && GetParam() == IBV_QPT_RC) {
            return false;
        }
        EXPECT_EQ(to_state(qp_, IBV_QPS_RESET), 0);
        EXPECT_EQ(to_state(peer_, IBV_QPS_RESET), 0);
        drain();
        if (state == IBV_QPS_RESET) {
            return true;
        }
        for (ibv_qp* qp : {qp_, peer_}) {
            EXPECT_EQ(to_init(qp), 0);
        }
        if (state == IBV_QPS_INIT) {
            return true;
        }
        EXPECT_EQ(to_rtr(qp_, peer_->qp_num), 0);
        EXPECT_EQ(to_rtr(peer_, qp_->qp_num), 0);
        EXPECT_EQ(to_rts(peer_), 0);
        if (state == IBV_QPS_RTR) {
            return true;
        }
        EXPECT_EQ(to_rts(qp_), 0);
        if (state == IBV_QPS_SQE) {
            ibv_sge list = sge(0, 8);
            list.lkey ^= 1u << 30;
            EXPECT_EQ(post(qp_, send_of(1, &list, 1)), 0);
            EXPECT_EQ(take(cq_, 1).at(0).status, IBV_WC_LOC_PROT_ERR);
        } else if (state == IBV_QPS_ERR) {
            EXPECT_EQ(to_state(qp_, IBV_QPS_ERR), 0);
        }
        EXPECT_EQ(state_of(qp_), state);
        return true;
    }
    /// Gives the request what its type of queue pair needs.
    int post(ibv_qp* qp, ibv_send_wr wr) {
        if (GetParam() == IBV_QPT_UD) {
            wr.wr.ud = {.ah = ah_, .remote_qpn = peer_->qp_num, .remote_qkey = kQkey};
        }
        ibv_send_wr* bad = nullptr;
        const int error = ibv_post_send(qp, &wr, &bad);
        EXPECT_EQ(bad, error == 0 ? nullptr : &wr);
        return error;
    }
    /// Whether the pair can still be used.
    void expect_a_message() {
        ASSERT_TRUE(put_into(IBV_QPS_RTS));
        ASSERT_EQ(post_recv(peer_, 1, 4096, 256), 0);
        // When the worker has posted the receive, it also has ended a write.
        ibv_sge none = sge(0, 0);
        if (GetParam() != IBV_QPT_UD) {
            ASSERT_EQ(post(qp_, send_of(2, &none, 0, IBV_WR_RDMA_WRITE)), 0);
            ASSERT_EQ(take(cq_, 1).size(), 1u);
        }
        ibv_sge list = sge(0, 8);
        std::size_t ended = 0;
        for (int tries = 0; tries < 100 && ended < 2; ++tries) {
            // A datagram may come before the receive is there.
            ASSERT_EQ(post(qp_, send_of(3, &list, 1)), 0);
            ended = GetParam() == IBV_QPT_UD ? take(cq_, 1).size() + take_for_a_moment() : take(cq_, 2).size();
        }
        EXPECT_EQ(ended, 2u);
        drain();
    }
    std::size_t take_for_a_moment() {
        ibv_wc wc{};
        for (int i = 0; i < 100; ++i) {
            if (ibv_poll_cq(cq_, 1, &wc) == 1) {
                return 1;
            }
            std::this_thread::sleep_for(std::chrono::microseconds(100));
        }
        return 0;
    }

    /// What the kernel's table says, and what the library does not serve.
    [[nodiscard]] static std::set<int> expected(ibv_qp_type type, ibv_qp_state from, ibv_qp_state wanted, int mask) {
        const bool has_state = (mask & IBV_QP_STATE) != 0;
        const bool unserved = (mask & kNotServed) != 0 || (has_state && wanted == IBV_QPS_SQD);
        // Workers know one state for all errors, and leave it by RESET only.
        const bool leaves_sqe = from == IBV_QPS_SQE && (!has_state || wanted == IBV_QPS_RTS);
        if (!kernel_accepts(type, from, wanted, mask)) {
            return unserved || leaves_sqe ? std::set<int>{EINVAL, EOPNOTSUPP} : std::set<int>{EINVAL};
        }
        if (unserved || leaves_sqe) {
            return {EOPNOTSUPP};
        }
        if (from == IBV_QPS_ERR && !has_state) {
            return {0, EINVAL};  // nothing is asked for
        }
        return {0};
    }

    ibv_qp_attr attributes(ibv_qp_state from) {
        ibv_qp_attr attr{};
        attr.cur_qp_state = from;
        attr.port_num = kPort;
        attr.qp_access_flags = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;
        attr.qkey = kQkey;
        attr.path_mtu = IBV_MTU_1024;
        attr.dest_qp_num = peer_->qp_num;
        attr.ah_attr = way();
        attr.max_rd_atomic = attr.max_dest_rd_atomic = 4;
        attr.min_rnr_timer = 1;
        attr.timeout = 14;
        attr.retry_cnt = attr.rnr_retry = 7;
        return attr;
    }

    ibv_cq* cq_ = nullptr;
    ibv_qp* qp_ = nullptr;
    ibv_qp* peer_ = nullptr;
    ibv_ah* ah_ = nullptr;
};

TEST_P(StateCalls, EveryTransitionWithEveryMaskIsAsTheKernelHasIt) {
    for (const ibv_qp_state from : kStates) {
        if (!put_into(from)) {
            continue;
        }
        for (int to = IBV_QPS_RESET; to <= IBV_QPS_ERR + 1; ++to) {
            const auto state = static_cast<ibv_qp_state>(to);
            const int right = kernel_mask(GetParam(), from, state, [](int) { return 0; });
            const int full = kernel_mask(GetParam(), from, state, [](int bit) { return bit; });
            std::set<int> masks{right, full, right & ~IBV_QP_STATE, 0, -1, kEnd, right | kEnd};
            for (int bit = 0; bit <= 25; ++bit) {
                masks.insert(right ^ (1 << bit));
                masks.insert(full ^ (1 << bit));
            }
            for (const int mask : masks) {
                ibv_qp_attr attr = attributes(from);
                attr.qp_state = state;
                const int error = ibv_modify_qp(qp_, &attr, mask);
                const bool known = (mask & ~((IBV_QP_DEST_QPN << 1) - 1) & ~IBV_QP_RATE_LIMIT) == 0;
                const auto right_errors =
                    known ? expected(GetParam(), from, state, mask) : std::set<int>{EINVAL, EOPNOTSUPP};
                EXPECT_TRUE(right_errors.contains(error))
                    << text_of(GetParam()) << " from " << text_of(from) << " to " << text_of(state) << " with mask "
                    << std::hex << mask << " returned " << std::dec << error << " (" << strerror(error) << "), not "
                    << *right_errors.begin();
                const bool moved = error == 0 && (mask & IBV_QP_STATE) != 0;
                EXPECT_EQ(text_of(state_of(qp_)), text_of(moved ? state : from));
                if (error == 0) {
                    ASSERT_TRUE(put_into(from));
                }
            }
        }
    }
    expect_a_message();
}

TEST_P(StateCalls, AValueThatIsWrongChangesNothing) {
    const auto wrong = [&](ibv_qp_state from, ibv_qp_state to, int bit, auto spoil) {
        if (!put_into(from)) {
            return;
        }
        const int mask = kernel_mask(GetParam(), from, to, [&](int optional) { return optional & bit; });
        if ((mask & bit) == 0) {
            return;  // queue pairs of this type have no such attribute
        }
        ibv_qp_attr attr = attributes(from);
        attr.qp_state = to;
        spoil(attr);
        EXPECT_EQ(ibv_modify_qp(qp_, &attr, mask), EINVAL) << text_of(from) << " " << std::hex << bit;
        EXPECT_EQ(state_of(qp_), from);
    };
    wrong(IBV_QPS_RESET, IBV_QPS_INIT, IBV_QP_PORT, [](ibv_qp_attr& attr) { attr.port_num = 0; });
    wrong(IBV_QPS_RESET, IBV_QPS_INIT, IBV_QP_PORT, [](ibv_qp_attr& attr) { attr.port_num = 200; });
    wrong(IBV_QPS_RESET, IBV_QPS_INIT, IBV_QP_PKEY_INDEX, [](ibv_qp_attr& attr) { attr.pkey_index = 0xffff; });
    wrong(IBV_QPS_INIT, IBV_QPS_RTR, IBV_QP_PATH_MTU, [](ibv_qp_attr& attr) { attr.path_mtu = ibv_mtu(0); });
    wrong(IBV_QPS_INIT, IBV_QPS_RTR, IBV_QP_PATH_MTU, [](ibv_qp_attr& attr) { attr.path_mtu = ibv_mtu(99); });
    wrong(IBV_QPS_INIT, IBV_QPS_RTR, IBV_QP_AV, [](ibv_qp_attr& attr) { attr.ah_attr.is_global = 0; });
    wrong(IBV_QPS_INIT, IBV_QPS_RTR, IBV_QP_AV, [](ibv_qp_attr& attr) { attr.ah_attr.port_num = 9; });
    wrong(IBV_QPS_INIT, IBV_QPS_RTR, IBV_QP_AV, [](ibv_qp_attr& attr) { attr.ah_attr.grh.sgid_index = 255; });
    wrong(IBV_QPS_INIT, IBV_QPS_RTR, IBV_QP_DEST_QPN, [](ibv_qp_attr& attr) { attr.dest_qp_num = 1u << 24; });
    wrong(IBV_QPS_INIT, IBV_QPS_RTR, IBV_QP_MIN_RNR_TIMER, [](ibv_qp_attr& attr) { attr.min_rnr_timer = 32; });
    wrong(IBV_QPS_INIT, IBV_QPS_RTR, IBV_QP_MAX_DEST_RD_ATOMIC,
          [](ibv_qp_attr& attr) { attr.max_dest_rd_atomic = 255; });
    wrong(IBV_QPS_RTR, IBV_QPS_RTS, IBV_QP_TIMEOUT, [](ibv_qp_attr& attr) { attr.timeout = 32; });
    wrong(IBV_QPS_RTR, IBV_QPS_RTS, IBV_QP_RETRY_CNT, [](ibv_qp_attr& attr) { attr.retry_cnt = 8; });
    wrong(IBV_QPS_RTR, IBV_QPS_RTS, IBV_QP_RNR_RETRY, [](ibv_qp_attr& attr) { attr.rnr_retry = 8; });
    wrong(IBV_QPS_RTR, IBV_QPS_RTS, IBV_QP_MAX_QP_RD_ATOMIC, [](ibv_qp_attr& attr) { attr.max_rd_atomic = 255; });
    wrong(IBV_QPS_RTR, IBV_QPS_RTS, IBV_QP_CUR_STATE, [](ibv_qp_attr& attr) { attr.cur_qp_state = IBV_QPS_RTS; });
    wrong(IBV_QPS_RTS, IBV_QPS_RTS, IBV_QP_CUR_STATE,
          [](ibv_qp_attr& attr) { attr.cur_qp_state = static_cast<ibv_qp_state>(77); });
    expect_a_message();
}

// Queue pairs of each type have their operations (ibv_post_send(3)).
bool has_operation(ibv_qp_type type, int opcode) {
    switch (opcode) {
        case IBV_WR_SEND:
        case IBV_WR_SEND_WITH_IMM: return true;
        case IBV_WR_RDMA_WRITE:
        case IBV_WR_RDMA_WRITE_WITH_IMM: return type != IBV_QPT_UD;
        case IBV_WR_RDMA_READ:
        case IBV_WR_ATOMIC_CMP_AND_SWP:
        case IBV_WR_ATOMIC_FETCH_AND_ADD: return type == IBV_QPT_RC;
        default: return false;
    }
}

TEST_P(StateCalls, EverySendIsTakenOrRefusedByTheState) {
    for (const ibv_qp_state state : kStates) {
        for (const int opcode : {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 99, -1}) {
            if (!put_into(state)) {
                continue;
            }
            const bool invalidates = opcode == IBV_WR_LOCAL_INV || opcode == IBV_WR_SEND_WITH_INV;
            if (invalidates && GetParam() != IBV_QPT_UD) {
                continue;  // for memory windows, which are not served
            }
            SCOPED_TRACE(text_of(GetParam()) + " in " + text_of(state) + ", opcode " + std::to_string(opcode));
            for (std::uint64_t i = 0; i < 3 && state == IBV_QPS_RTS; ++i) {
                ASSERT_EQ(post_recv(peer_, 100 + i, 4096, 256), 0);
            }
            const auto kind = static_cast<ibv_wr_opcode>(opcode);
            const bool is_atomic = kind == IBV_WR_ATOMIC_CMP_AND_SWP || kind == IBV_WR_ATOMIC_FETCH_AND_ADD;
            ibv_sge list = sge(0, 8);
            std::vector<ibv_sge> many(300, list);
            ibv_send_wr wr = send_of(7, &list, 1, kind);
            const auto address = reinterpret_cast<std::uintptr_t>(memory_ + 8192);
            if (is_atomic) {
                wr.wr.atomic = {.remote_addr = address, .compare_add = 0, .swap = 0, .rkey = mr_->rkey};
            } else {
                wr.wr.rdma = {.remote_addr = address, .rkey = mr_->rkey};
            }
            // Wrong in any state.
            ibv_send_wr wrong = wr;
            wrong.sg_list = many.data();
            wrong.num_sge = static_cast<int>(many.size());
            EXPECT_EQ(post(qp_, wrong), EINVAL) << "too many SGEs";
            wrong.num_sge = -1;
            EXPECT_EQ(post(qp_, wrong), EINVAL) << "a negative number of SGEs";
            wrong.num_sge = 1;
            many[0].length = 60'000;
            wrong.send_flags |= IBV_SEND_INLINE;
            EXPECT_EQ(post(qp_, wrong), EINVAL) << "too long inline";
            if (is_atomic) {
                wrong = wr;
                wrong.wr.atomic.remote_addr += 4;
                EXPECT_EQ(post(qp_, wrong), EINVAL) << "not aligned";
                ibv_sge odd = sge(0, 4);
                wrong = wr;
                wrong.sg_list = &odd;
                EXPECT_EQ(post(qp_, wrong), EINVAL) << "not of 8 bytes";
            }
            if (GetParam() == IBV_QPT_UD) {
                wrong = wr;
                ibv_send_wr* bad = nullptr;
                wrong.wr.ud = {.ah = nullptr, .remote_qpn = peer_->qp_num, .remote_qkey = kQkey};
                EXPECT_EQ(ibv_post_send(qp_, &wrong, &bad), EINVAL) << "no address handle";
            }
            const bool in_error = state == IBV_QPS_SQE || state == IBV_QPS_ERR;
            const bool takes = (state == IBV_QPS_RTS || in_error) && has_operation(GetParam(), opcode);
            EXPECT_EQ(post(qp_, wr), takes ? 0 : EINVAL);
            if (!takes) {
                EXPECT_TRUE(is_empty(cq_));
                EXPECT_EQ(state_of(qp_), state);
                continue;
            }
            const bool takes_receive =
                !in_error && GetParam() != IBV_QPT_UD &&
                (kind == IBV_WR_SEND || kind == IBV_WR_SEND_WITH_IMM || kind == IBV_WR_RDMA_WRITE_WITH_IMM);
            const auto done = take(cq_, takes_receive ? 2 : 1);
            EXPECT_TRUE(std::any_of(done.begin(), done.end(), [&](const ibv_wc& wc) {
                return wc.wr_id == 7 && wc.status == (in_error ? IBV_WC_WR_FLUSH_ERR : IBV_WC_SUCCESS);
            }));
            EXPECT_EQ(state_of(qp_), state);
        }
    }
    expect_a_message();
}

TEST_P(StateCalls, EveryReceiveIsTakenButInReset) {
    for (const ibv_qp_state state : kStates) {
        if (!put_into(state)) {
            continue;
        }
        SCOPED_TRACE(text_of(GetParam()) + " in " + text_of(state));
        ibv_sge list = sge(0, 8);
        std::vector<ibv_sge> many(300, list);
        ibv_recv_wr wr{.wr_id = 9, .next = nullptr, .sg_list = many.data(), .num_sge = 300};
        ibv_recv_wr* bad = nullptr;
        EXPECT_EQ(ibv_post_recv(qp_, &wr, &bad), EINVAL);
        EXPECT_EQ(bad, &wr);
        wr.num_sge = -1;
        EXPECT_EQ(ibv_post_recv(qp_, &wr, &bad), EINVAL);
        EXPECT_EQ(ibv_post_recv(qp_, nullptr, &bad), 0) << "nothing is asked for";
        wr.num_sge = 0;
        EXPECT_EQ(ibv_post_recv(qp_, &wr, &bad), state == IBV_QPS_RESET ? EINVAL : 0);
        if (state == IBV_QPS_ERR || state == IBV_QPS_SQE) {
            const auto done = take(cq_, 1);
            ASSERT_EQ(done.size(), 1u);
            EXPECT_EQ(done[0].wr_id, 9u);
            EXPECT_EQ(done[0].status, IBV_WC_WR_FLUSH_ERR);
        } else {
            EXPECT_TRUE(is_empty(cq_));
        }
        int taken = 1;
        while (state != IBV_QPS_RESET && taken < 1000 && ibv_post_recv(qp_, &wr, &bad) == 0) {
            ++taken;
            if (state == IBV_QPS_ERR || state == IBV_QPS_SQE) {
                EXPECT_EQ(take(cq_, 1).size(), 1u);
            }
        }
        const bool flushes = state == IBV_QPS_ERR || state == IBV_QPS_SQE;
        EXPECT_EQ(taken, state == IBV_QPS_RESET ? 1 : flushes ? 1000 : 32);
        // What is posted does not keep the queue pair.
        EXPECT_EQ(ibv_destroy_qp(qp_), 0);
        EXPECT_EQ(ibv_destroy_qp(peer_), 0);
        EXPECT_TRUE(is_empty(cq_));
        make_pair();
    }
    expect_a_message();
}

TEST_P(StateCalls, OtherCallsDoNotDependOnTheState) {
    ibv_comp_channel* const channel = ibv_create_comp_channel(context_);
    ASSERT_NE(channel, nullptr);
    for (const ibv_qp_state state : kStates) {
        if (!put_into(state)) {
            continue;
        }
        SCOPED_TRACE(text_of(GetParam()) + " in " + text_of(state));
        EXPECT_EQ(ibv_destroy_cq(cq_), EBUSY);
        EXPECT_EQ(ibv_dealloc_pd(pd_), EBUSY);
        EXPECT_EQ(ibv_req_notify_cq(cq_, 0), 0);
        EXPECT_EQ(ibv_resize_cq(cq_, 300), 0);
        EXPECT_EQ(ibv_resize_cq(cq_, 0), EINVAL);
        EXPECT_EQ(ibv_resize_cq(cq_, -5), EINVAL);
        EXPECT_NE(ibv_resize_cq(cq_, 1 << 29), 0);
        EXPECT_NE(ibv_attach_mcast(qp_, &gid_, 0), 0);
        EXPECT_NE(ibv_detach_mcast(qp_, &gid_, 0), 0);
        EXPECT_EQ(ibv_alloc_mw(pd_, IBV_MW_TYPE_1), nullptr);
        ibv_ece ece{};
        EXPECT_EQ(ibv_query_ece(qp_, &ece), 0);
        ibv_qp_attr attr{};
        ibv_qp_init_attr init{};
        EXPECT_EQ(ibv_query_qp(qp_, &attr, -1, &init), 0);
        EXPECT_EQ(init.qp_type, GetParam());
        // Registered anew, or not at all.
        const std::uint32_t before = mr_->lkey;
        EXPECT_NE(ibv_rereg_mr(mr_, 0, nullptr, nullptr, 0, 0), 0);
        EXPECT_NE(ibv_rereg_mr(mr_, -1, pd_, memory_, kBytes, 0), 0);
        EXPECT_NE(ibv_rereg_mr(mr_, IBV_REREG_MR_CHANGE_TRANSLATION, nullptr, nullptr, 4096, 0), 0);
        EXPECT_NE(ibv_rereg_mr(mr_, IBV_REREG_MR_CHANGE_ACCESS, nullptr, nullptr, 0, IBV_ACCESS_REMOTE_WRITE), 0);
        EXPECT_EQ(mr_->lkey, before);
        EXPECT_EQ((ibv_reg_mr)(pd_, nullptr, 4096, 0), nullptr);
        EXPECT_EQ((ibv_reg_mr)(pd_, memory_, 0, 0), nullptr);
        ibv_cq* cq = nullptr;
        void* context = nullptr;
        ASSERT_EQ(::fcntl(channel->fd, F_SETFL, O_NONBLOCK), 0);
        EXPECT_EQ(ibv_get_cq_event(channel, &cq, &context), -1);
        EXPECT_EQ(errno, EAGAIN);
    }
    EXPECT_EQ(ibv_destroy_comp_channel(channel), 0);
    expect_a_message();
}

// Random calls with random arguments, within what a C library can survive. Only the process's own objects suffer.
TEST_P(StateCalls, RandomCallsLeaveTheProcessAttached) {
    const int calls = std::atoi(setting("POLLCORE_STATE_CALLS", "4000"));
    const auto seed = static_cast<unsigned>(std::atoi(setting("POLLCORE_STATE_SEED", "1")));
    SCOPED_TRACE("POLLCORE_STATE_SEED=" + std::to_string(seed));
    std::mt19937 random(seed);
    const std::set<int> errors{0, EINVAL, ENOMEM, EOPNOTSUPP, EBUSY, ENOSYS};
    std::map<int, int> seen;
    const auto check = [&](const char* call, int error) {
        EXPECT_TRUE(errors.contains(error)) << call << " returned " << error;
        ++seen[error];
    };
    for (int i = 0; i < calls && !HasFailure(); ++i) {
        ibv_sge lists[6];
        for (ibv_sge& list : lists) {
            list = sge(random() % kBytes, random() % 300);
            list.lkey ^= random() % 8 == 0 ? random() : 0;
        }
        ibv_qp* const qp = random() % 4 == 0 ? peer_ : qp_;
        switch (random() % 10) {
            case 0:
            case 1: {
                ibv_qp_attr attr = attributes(qp->state);
                attr.qp_state = static_cast<ibv_qp_state>(random() % 9);
                int mask = kernel_mask(GetParam(), qp->state, attr.qp_state,
                                       [&](int bit) { return random() % 4 == 0 ? bit : 0; });
                mask ^= random() % 3 == 0 ? static_cast<int>(1u << (random() % 31)) : 0;
                if (random() % 5 == 0) {
                    auto* const bytes = reinterpret_cast<unsigned char*>(&attr);
                    bytes[random() % sizeof attr] = static_cast<unsigned char>(random());
                }
                check("ibv_modify_qp()", ibv_modify_qp(qp, &attr, mask));
                break;
            }
            case 2:
            case 3:
            case 4: {
                ibv_send_wr wr = send_of(random(), lists, static_cast<int>(random() % 7) - 1,
                                         static_cast<ibv_wr_opcode>(random() % 8));
                wr.send_flags = random() % 32 & ~static_cast<unsigned>(IBV_SEND_INLINE);
                wr.wr.rdma = {.remote_addr = random() % 2 == 0 ? lists[5].addr : random(), .rkey = mr_->rkey};
                check("ibv_post_send()", post(qp, wr));
                break;
            }
            case 5:
            case 6: {
                ibv_recv_wr wr{.wr_id = random(),
                               .next = nullptr,
                               .sg_list = lists,
                               .num_sge = static_cast<int>(random() % 7) - 1};
                ibv_recv_wr* bad = nullptr;
                check("ibv_post_recv()", ibv_post_recv(qp, &wr, &bad));
                break;
            }
            case 7: {
                ibv_wc wc[8];
                EXPECT_GE(ibv_poll_cq(cq_, static_cast<int>(random() % 9), wc), 0);
                break;
            }
            case 8: check("ibv_resize_cq()", ibv_resize_cq(cq_, static_cast<int>(random()))); break;
            default:
                if (random() % 8 == 0) {
                    check("ibv_destroy_qp()", ibv_destroy_qp(qp));
                    (qp == qp_ ? qp_ : peer_) = make_qp(cq_, cq_, GetParam());
                } else {
                    (void)state_of(qp);
                }
        }
    }
    EXPECT_GT(seen[0], calls / 20);
    EXPECT_GT(seen[EINVAL], calls / 20);
    expect_a_message();
}

INSTANTIATE_TEST_SUITE_P(Of, StateCalls, testing::Values(IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD),
                         [](const auto& type) { return text_of(type.param); });

}  // namespace
}  // namespace pollcore::test
