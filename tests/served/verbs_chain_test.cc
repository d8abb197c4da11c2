// Chains of requests: what is posted of them, and which request is named when one is refused. Over a daemon, requests
// of a chain go to the worker in bursts.
#include <algorithm>
#include <numeric>
#include <vector>

#include "verbs_fixture.hpp"

namespace pollcore::test {
namespace {

class VerbsChain : public Verbs {
protected:
    static constexpr std::size_t kFrom = 0;
    static constexpr std::size_t kInto = 16384;

    void make_pair(std::uint32_t max_send_wr) {
        cq_ = make_cq(static_cast<int>(max_send_wr) + 1);
        for (ibv_qp** qp : {&a_, &b_}) {
            ibv_qp_init_attr init{};
            init.send_cq = init.recv_cq = cq_;
            init.cap = {.max_send_wr = max_send_wr,
                        .max_recv_wr = 1,
                        .max_send_sge = 4,
                        .max_recv_sge = 1,
                        .max_inline_data = 64};
            init.qp_type = IBV_QPT_RC;
            *qp = ibv_create_qp(pd_, &init);
            ASSERT_NE(*qp, nullptr) << std::strerror(errno);
        }
        connect(a_, b_);
    }
    void end_pair() {
        EXPECT_EQ(ibv_destroy_qp(a_), 0);
        EXPECT_EQ(ibv_destroy_qp(b_), 0);
        EXPECT_EQ(ibv_destroy_cq(cq_), 0);
    }

    /// Makes a chain of writes of 64 bytes. Each fifth one has its bytes inline, each seventh one has them in two
    /// pieces.
    void make_chain(std::size_t length) {
        lists_.assign(2 * length, {});
        chain_.assign(length, {});
        for (std::size_t i = 0; i < length; ++i) {
            const bool in_pieces = i % 7 == 6;
            lists_[2 * i] = sge(kFrom, in_pieces ? 24 : 64);
            lists_[2 * i + 1] = sge(kFrom + 24, 40);
            chain_[i] = send_of(i, &lists_[2 * i], in_pieces ? 2 : 1, IBV_WR_RDMA_WRITE);
            chain_[i].send_flags |= i % 5 == 4 ? unsigned{IBV_SEND_INLINE} : 0u;
            chain_[i].wr.rdma = {.remote_addr = reinterpret_cast<std::uintptr_t>(memory_ + kInto), .rkey = mr_->rkey};
            chain_[i].next = i + 1 < length ? &chain_[i + 1] : nullptr;
        }
    }
    /// Expects that the first `count` requests of the chain complete, in their order, and no other one.
    void expect_first(std::size_t count) {
        const std::vector<ibv_wc> all = take(cq_, count);
        std::vector<std::uint64_t> ids;
        for (const ibv_wc& wc : all) {
            EXPECT_EQ(wc.status, IBV_WC_SUCCESS) << wc.wr_id << ": " << ibv_wc_status_str(wc.status);
            ids.push_back(wc.wr_id);
        }
        std::vector<std::uint64_t> expected(count);
        std::iota(expected.begin(), expected.end(), 0);
        EXPECT_EQ(ids, expected);
        EXPECT_TRUE(is_empty(cq_));
    }

    ibv_cq* cq_ = nullptr;
    ibv_qp* a_ = nullptr;
    ibv_qp* b_ = nullptr;
    std::vector<ibv_sge> lists_;
    std::vector<ibv_send_wr> chain_;
};

TEST_F(VerbsChain, IsPostedUpToTheRequestThatIsRefusedWhereverThatIs) {
    constexpr std::size_t kLength = 36;
    ASSERT_NO_FATAL_FAILURE(make_pair(64));
    for (std::size_t wrong = 0; wrong < kLength; ++wrong) {
        make_chain(kLength);
        std::vector<ibv_sge> many(300, lists_[0]);
        chain_[wrong].sg_list = many.data();
        chain_[wrong].num_sge = static_cast<int>(many.size());
        ibv_send_wr* bad = nullptr;
        EXPECT_NE(ibv_post_send(a_, chain_.data(), &bad), 0);
        EXPECT_EQ(bad, &chain_[wrong]) << wrong;
        expect_first(wrong);
    }
    end_pair();
}

TEST_F(VerbsChain, IsPostedAsFarAsTheQueueHasRoom) {
    ASSERT_NO_FATAL_FAILURE(make_pair(64));
    ibv_qp_attr attr{};
    ibv_qp_init_attr init{};
    ASSERT_EQ(ibv_query_qp(a_, &attr, IBV_QP_CAP, &init), 0);
    const std::size_t room = init.cap.max_send_wr;
    make_chain(room + 20);
    // No room comes back before these complete, and they cannot complete as long as there is no receive.
    ibv_sge list = sge(kFrom, 8);
    for (ibv_send_wr& wr : chain_) {
        wr.opcode = IBV_WR_SEND;
        wr.sg_list = &list;
        wr.num_sge = 1;
        wr.send_flags = IBV_SEND_SIGNALED;
    }
    ibv_send_wr* bad = nullptr;
    EXPECT_EQ(ibv_post_send(a_, chain_.data(), &bad), ENOMEM);
    // A provider may have more room than it says.
    ASSERT_GE(bad, &chain_[room]);
    end_pair();
}

TEST_F(VerbsChain, OfThousandsIsPostedWhole) {
    constexpr std::size_t kLength = 3000;
    ibv_device_attr attr{};
    ASSERT_EQ(ibv_query_device(context_, &attr), 0);
    ASSERT_GE(static_cast<std::size_t>(attr.max_qp_wr), kLength);
    ASSERT_NO_FATAL_FAILURE(make_pair(kLength));
    make_chain(kLength);
    std::memset(memory_ + kInto, 0, 64);
    for (int i = 0; i < 64; ++i) {
        memory_[kFrom + static_cast<std::size_t>(i)] = static_cast<char>(i);
    }
    ibv_send_wr* bad = nullptr;
    ASSERT_EQ(ibv_post_send(a_, chain_.data(), &bad), 0) << bad->wr_id;
    expect_first(kLength);
    EXPECT_TRUE(std::equal(memory_ + kFrom, memory_ + kFrom + 64, memory_ + kInto));
    end_pair();
}

}  // namespace
}  // namespace pollcore::test
