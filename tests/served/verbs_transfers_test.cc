// What verbs promise to programs of their transfers: ibv_post_send(3), ibv_poll_cq(3), ibv_wr_post(3) and
// ibv_create_cq_ex(3).
#include <arpa/inet.h>

#include <chrono>
#include <cstdint>
#include <cstring>
#include <set>
#include <thread>
#include <vector>

#include "verbs_fixture.hpp"

namespace pollcore::test {
namespace {

TEST_F(Verbs, AChainOfSendsArrivesInOrder) {
    ibv_cq* const cq = make_cq();
    ibv_qp* const a = make_qp(cq, cq);
    ibv_qp* const b = make_qp(cq, cq);
    connect(a, b);
    for (std::uint64_t i = 0; i < 8; ++i) {
        ASSERT_EQ(post_recv(b, 100 + i, 4096 + 64 * i, 64), 0);
    }
    std::vector<ibv_sge> lists;
    for (std::size_t i = 0; i < 8; ++i) {
        memory_[64 * i] = static_cast<char>('a' + i);
        lists.push_back(sge(64 * i, 1));
    }
    std::vector<ibv_send_wr> chain(8);
    for (std::size_t i = 0; i < 8; ++i) {
        chain[i] = send_of(i, &lists[i], 1, i == 3 ? IBV_WR_SEND_WITH_IMM : IBV_WR_SEND);
        chain[i].imm_data = htonl(0x12345678);
        chain[i].next = i + 1 < 8 ? &chain[i + 1] : nullptr;
    }
    ibv_send_wr* bad = nullptr;
    ASSERT_EQ(ibv_post_send(a, chain.data(), &bad), 0);
    std::uint64_t sends = 0;
    std::uint64_t receives = 0;
    for (const ibv_wc& wc : take(cq, 16)) {
        ASSERT_EQ(wc.status, IBV_WC_SUCCESS) << ibv_wc_status_str(wc.status);
        if (wc.opcode == IBV_WC_SEND) {
            EXPECT_EQ(wc.wr_id, sends++);
            EXPECT_EQ(wc.qp_num, a->qp_num);
        } else {
            ASSERT_EQ(wc.opcode, IBV_WC_RECV);
            EXPECT_EQ(wc.wr_id, 100 + receives);
            EXPECT_EQ(wc.qp_num, b->qp_num);
            EXPECT_EQ(wc.byte_len, 1u);
            EXPECT_EQ(memory_[4096 + 64 * receives], static_cast<char>('a' + receives));
            EXPECT_EQ((wc.wc_flags & IBV_WC_WITH_IMM) != 0, receives == 3);
            if (receives == 3) {
                EXPECT_EQ(wc.imm_data, htonl(0x12345678));
            }
            ++receives;
        }
    }
    EXPECT_EQ(ibv_destroy_qp(a), 0);
    EXPECT_EQ(ibv_destroy_qp(b), 0);
    EXPECT_EQ(ibv_destroy_cq(cq), 0);
}

TEST_F(Verbs, ReadsWritesAndAtomicsMoveTheirBytes) {
    ibv_cq* const cq = make_cq();
    ibv_qp* const a = make_qp(cq, cq);
    ibv_qp* const b = make_qp(cq, cq);
    connect(a, b);
    const auto one = [&](ibv_wr_opcode opcode, std::size_t local, std::uint32_t length, std::size_t remote,
                         std::uint64_t compare_add = 0, std::uint64_t swap = 0) {
        ibv_sge list = sge(local, length);
        ibv_send_wr wr = send_of(1, &list, 1, opcode);
        const auto addr = reinterpret_cast<std::uintptr_t>(memory_ + remote);
        if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD || opcode == IBV_WR_ATOMIC_CMP_AND_SWP) {
            wr.wr.atomic = {.remote_addr = addr, .compare_add = compare_add, .swap = swap, .rkey = mr_->rkey};
        } else {
            wr.wr.rdma = {.remote_addr = addr, .rkey = mr_->rkey};
        }
        ibv_send_wr* bad = nullptr;
        ASSERT_EQ(ibv_post_send(a, &wr, &bad), 0);
        const auto done = take(cq, 1);
        ASSERT_EQ(done.size(), 1u);
        ASSERT_EQ(done[0].status, IBV_WC_SUCCESS) << ibv_wc_status_str(done[0].status);
    };
    std::strcpy(memory_, "written");
    one(IBV_WR_RDMA_WRITE, 0, 8, 8192);
    EXPECT_STREQ(memory_ + 8192, "written");
    std::strcpy(memory_ + 12288, "read");
    one(IBV_WR_RDMA_READ, 64, 8, 12288);
    EXPECT_STREQ(memory_ + 64, "read");
    auto& word = *reinterpret_cast<std::uint64_t*>(memory_ + 16384);
    const auto& old = *reinterpret_cast<std::uint64_t*>(memory_ + 128);
    word = 5;
    one(IBV_WR_ATOMIC_FETCH_AND_ADD, 128, 8, 16384, 37);
    EXPECT_EQ(old, 5u);
    EXPECT_EQ(word, 42u);
    one(IBV_WR_ATOMIC_CMP_AND_SWP, 128, 8, 16384, 42, 7);
    EXPECT_EQ(old, 42u);
    EXPECT_EQ(word, 7u);
    EXPECT_EQ(ibv_destroy_qp(a), 0);
    EXPECT_EQ(ibv_destroy_qp(b), 0);
    EXPECT_EQ(ibv_destroy_cq(cq), 0);
}

TEST_F(Verbs, InlineBytesAreGatheredAndMayChangeAtOnce) {
    ibv_cq* const cq = make_cq();
    ibv_qp* const a = make_qp(cq, cq);
    ibv_qp* const b = make_qp(cq, cq);
    connect(a, b);
    ASSERT_EQ(post_recv(b, 1, 4096, 64), 0);
    char parts[] = "hello world";
    ibv_sge lists[] = {{reinterpret_cast<std::uintptr_t>(parts), 6, 0},
                       {reinterpret_cast<std::uintptr_t>(parts + 6), 6, 0}};
    ibv_send_wr wr = send_of(2, lists, 2);
    wr.send_flags |= IBV_SEND_INLINE;
    ibv_send_wr* bad = nullptr;
    ASSERT_EQ(ibv_post_send(a, &wr, &bad), 0);
    std::memset(parts, 'x', sizeof parts);
    (void)take(cq, 2);
    EXPECT_STREQ(memory_ + 4096, "hello world");
    EXPECT_EQ(ibv_destroy_qp(a), 0);
    EXPECT_EQ(ibv_destroy_qp(b), 0);
    EXPECT_EQ(ibv_destroy_cq(cq), 0);
}

TEST_F(Verbs, ARequestThatIsWrongIsNamedAndThoseBeforeItArePosted) {
    ibv_cq* const cq = make_cq();
    ibv_qp* const a = make_qp(cq, cq);
    ibv_qp* const b = make_qp(cq, cq);
    connect(a, b);
    ASSERT_EQ(post_recv(b, 1, 4096, 64), 0);
    ibv_sge list = sge(0, 8);
    std::vector<ibv_sge> many(300, list);
    ibv_send_wr good = send_of(1, &list, 1);
    ibv_send_wr wrong = send_of(2, many.data(), static_cast<int>(many.size()));
    good.next = &wrong;
    ibv_send_wr* bad = nullptr;
    EXPECT_NE(ibv_post_send(a, &good, &bad), 0);
    EXPECT_EQ(bad, &wrong);
    EXPECT_EQ(take(cq, 2).size(), 2u);
    EXPECT_EQ(ibv_destroy_qp(a), 0);
    EXPECT_EQ(ibv_destroy_qp(b), 0);
    EXPECT_EQ(ibv_destroy_cq(cq), 0);
}

TEST_F(Verbs, ADatagramTellsWhereItCameFromAndCanBeAnswered) {
    ibv_cq* const cq = make_cq();
    ibv_qp* const a = make_qp(cq, cq, IBV_QPT_UD);
    ibv_qp* const b = make_qp(cq, cq, IBV_QPT_UD);
    for (ibv_qp* qp : {a, b}) {
        ASSERT_EQ(to_init(qp), 0);
        ASSERT_EQ(to_rtr(qp, 0), 0);
        ASSERT_EQ(to_rts(qp), 0);
    }
    constexpr std::uint32_t kGrh = 40;
    ibv_ah_attr there = way();
    ibv_ah* const ah = ibv_create_ah(pd_, &there);
    ASSERT_NE(ah, nullptr) << std::strerror(errno);
    const auto send = [&](ibv_qp* from, ibv_ah* by, std::uint32_t to, const char* text) {
        std::strcpy(memory_, text);
        ibv_sge list = sge(0, static_cast<std::uint32_t>(std::strlen(text) + 1));
        ibv_send_wr wr = send_of(1, &list, 1);
        wr.wr.ud = {.ah = by, .remote_qpn = to, .remote_qkey = kQkey};
        ibv_send_wr* bad = nullptr;
        ASSERT_EQ(ibv_post_send(from, &wr, &bad), 0);
    };
    const auto receive = [&](ibv_qp* at) {
        for (const ibv_wc& wc : take(cq, 2)) {
            EXPECT_EQ(wc.status, IBV_WC_SUCCESS) << ibv_wc_status_str(wc.status);
            if (wc.qp_num == at->qp_num && wc.opcode == IBV_WC_RECV) {
                return wc;
            }
        }
        return ibv_wc{};
    };
    ASSERT_EQ(post_recv(b, 2, 4096, 256), 0);
    send(a, ah, b->qp_num, "question");
    ibv_wc came = receive(b);
    EXPECT_EQ(came.byte_len, kGrh + sizeof "question");
    EXPECT_NE(came.wc_flags & IBV_WC_GRH, 0u);
    EXPECT_EQ(came.src_qp, a->qp_num);
    EXPECT_STREQ(memory_ + 4096 + kGrh, "question");

    ibv_ah* const back = ibv_create_ah_from_wc(pd_, &came, reinterpret_cast<ibv_grh*>(memory_ + 4096), kPort);
    ASSERT_NE(back, nullptr) << std::strerror(errno);
    ASSERT_EQ(post_recv(a, 3, 8192, 256), 0);
    send(b, back, came.src_qp, "answer");
    EXPECT_EQ(receive(a).src_qp, b->qp_num);
    EXPECT_STREQ(memory_ + 8192 + kGrh, "answer");
    EXPECT_EQ(ibv_destroy_ah(back), 0);
    EXPECT_EQ(ibv_destroy_ah(ah), 0);
    EXPECT_EQ(ibv_destroy_qp(a), 0);
    EXPECT_EQ(ibv_destroy_qp(b), 0);
    EXPECT_EQ(ibv_destroy_cq(cq), 0);
}

TEST_F(Verbs, RequestsCanBeBuiltAndCompletionsReadPieceByPiece) {
    ibv_cq_init_attr_ex cq_init{};
    cq_init.cqe = 64;
    cq_init.wc_flags = IBV_WC_STANDARD_FLAGS;
    ibv_cq_ex* const cq_ex = ibv_create_cq_ex(context_, &cq_init);
    ASSERT_NE(cq_ex, nullptr) << std::strerror(errno);
    ibv_cq* const cq = ibv_cq_ex_to_cq(cq_ex);
    ibv_qp_init_attr_ex init{};
    init.send_cq = init.recv_cq = cq;
    init.cap = {.max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 2, .max_recv_sge = 2, .max_inline_data = 64};
    init.qp_type = IBV_QPT_RC;
    init.pd = pd_;
    init.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    init.send_ops_flags = IBV_QP_EX_WITH_SEND_WITH_IMM | IBV_QP_EX_WITH_RDMA_WRITE;
    ibv_qp* const a = ibv_create_qp_ex(context_, &init);
    ASSERT_NE(a, nullptr) << std::strerror(errno);
    ibv_qp* const b = make_qp(cq, cq);
    connect(a, b);
    ASSERT_EQ(post_recv(b, 7, 4096, 64), 0);
    ibv_qp_ex* const builder = ibv_qp_to_qp_ex(a);
    ASSERT_NE(builder, nullptr);
    std::strcpy(memory_, "built");
    ibv_wr_start(builder);
    builder->wr_id = 1;
    builder->wr_flags = IBV_SEND_SIGNALED;
    ibv_wr_rdma_write(builder, mr_->rkey, reinterpret_cast<std::uintptr_t>(memory_ + 8192));
    ibv_wr_set_sge(builder, mr_->lkey, reinterpret_cast<std::uintptr_t>(memory_), 6);
    // Meanwhile this thread may poll, and post to others.
    EXPECT_TRUE(is_empty(cq));
    EXPECT_EQ(post_recv(b, 8, 4096, 64), 0);
    builder->wr_id = 2;
    ibv_wr_send_imm(builder, htonl(99));
    char inlined[] = "inline";
    ibv_wr_set_inline_data(builder, inlined, sizeof inlined);
    ASSERT_EQ(ibv_wr_complete(builder), 0);
    std::set<std::uint64_t> seen;
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    ibv_poll_cq_attr attr{};
    while (seen.size() < 3 && std::chrono::steady_clock::now() < end) {
        if (ibv_start_poll(cq_ex, &attr) != 0) {
            std::this_thread::yield();
            continue;
        }
        do {
            EXPECT_EQ(cq_ex->status, IBV_WC_SUCCESS) << ibv_wc_status_str(cq_ex->status);
            seen.insert(cq_ex->wr_id);
            EXPECT_EQ(post_recv(b, 9, 4096, 64), 0) << "between ibv_start_poll() and ibv_end_poll()";
            if (cq_ex->wr_id == 7) {
                EXPECT_EQ(ibv_wc_read_opcode(cq_ex), IBV_WC_RECV);
                EXPECT_EQ(ibv_wc_read_byte_len(cq_ex), sizeof inlined);
                EXPECT_EQ(ibv_wc_read_imm_data(cq_ex), htonl(99));
                EXPECT_EQ(ibv_wc_read_qp_num(cq_ex), b->qp_num);
                EXPECT_NE(ibv_wc_read_wc_flags(cq_ex) & IBV_WC_WITH_IMM, 0u);
            }
        } while (ibv_next_poll(cq_ex) == 0);
        ibv_end_poll(cq_ex);
    }
    EXPECT_EQ(seen, (std::set<std::uint64_t>{1, 2, 7}));
    EXPECT_STREQ(memory_ + 8192, "built");
    EXPECT_STREQ(memory_ + 4096, "inline");
    ibv_wr_start(builder);
    ibv_wr_rdma_write(builder, mr_->rkey, reinterpret_cast<std::uintptr_t>(memory_ + 8192));
    ibv_wr_abort(builder);
    EXPECT_TRUE(is_empty(cq));
    EXPECT_EQ(ibv_destroy_qp(a), 0);
    EXPECT_EQ(ibv_destroy_qp(b), 0);
    EXPECT_EQ(ibv_destroy_cq(cq), 0);
}

}  // namespace
}  // namespace pollcore::test
