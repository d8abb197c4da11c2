// What verbs promise to programs, asked of libibverbs alone: ibv_post_send(3), ibv_poll_cq(3), ibv_modify_qp(3) and
// the other manual pages.
#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <numeric>
#include <set>

#include "verbs_fixture.hpp"

namespace pollcore::test {
namespace {

bool is_readable(int fd, int milliseconds = 0) {
    pollfd one{.fd = fd, .events = POLLIN, .revents = 0};
    return ::poll(&one, 1, milliseconds) == 1;
}

// ---- Transfers ----

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

// ---- States ----

TEST_F(Verbs, AQueuePairTakesRequestsByItsState) {
    ibv_cq* const cq = make_cq();
    ibv_qp* const qp = make_qp(cq, cq);
    EXPECT_NE(post_send(qp, 1, 0, 8), 0) << "RESET takes no sends";
    ASSERT_EQ(to_init(qp), 0);
    EXPECT_EQ(post_recv(qp, 2, 0, 8), 0) << "INIT takes receives";
    EXPECT_NE(post_send(qp, 3, 0, 8), 0) << "INIT takes no sends";
    EXPECT_TRUE(is_empty(cq));
    EXPECT_EQ(ibv_destroy_qp(qp), 0);
    EXPECT_EQ(ibv_destroy_cq(cq), 0);
}

TEST_F(Verbs, AnErrorFlushesInOrderAndAlsoWhatIsPostedLater) {
    ibv_cq* const send_cq = make_cq();
    ibv_cq* const recv_cq = make_cq();
    ibv_qp* const a = make_qp(send_cq, recv_cq);
    ibv_qp* const b = make_qp(send_cq, recv_cq);
    connect(a, b);
    for (std::uint64_t i = 0; i < 4; ++i) {
        ASSERT_EQ(post_recv(a, i, 64 * i, 64), 0);
    }
    ASSERT_EQ(to_state(a, IBV_QPS_ERR), 0);
    // Soft-RoCE does not flush a receive that is posted to a queue pair in error (H1 of pollcore's hazards).
    const std::uint64_t late = is_served() ? 1 : 0;
    if (late != 0) {
        ASSERT_EQ(post_recv(a, 4, 0, 64), 0);
    }
    ASSERT_EQ(post_send(a, 10, 0, 8), 0);
    ASSERT_EQ(post_send(a, 11, 0, 8), 0);
    std::uint64_t expected = 0;
    for (const ibv_wc& wc : take(recv_cq, 4 + late)) {
        EXPECT_EQ(wc.status, IBV_WC_WR_FLUSH_ERR);
        EXPECT_EQ(wc.wr_id, expected++);
    }
    expected = 10;
    for (const ibv_wc& wc : take(send_cq, 2)) {
        EXPECT_EQ(wc.status, IBV_WC_WR_FLUSH_ERR);
        EXPECT_EQ(wc.wr_id, expected++);
    }
    for (ibv_qp* qp : {a, b}) {
        EXPECT_EQ(ibv_destroy_qp(qp), 0);
    }
    EXPECT_EQ(ibv_destroy_cq(send_cq), 0);
    EXPECT_EQ(ibv_destroy_cq(recv_cq), 0);
}

TEST_F(Verbs, AResetQueuePairBeginsAnew) {
    ibv_cq* const cq = make_cq();
    ibv_qp* const a = make_qp(cq, cq);
    ibv_qp* const b = make_qp(cq, cq);
    const std::uint32_t numbers[] = {a->qp_num, b->qp_num};
    for (int round = 0; round < 3; ++round) {
        connect(a, b);
        ASSERT_EQ(post_recv(b, 1, 4096, 64), 0);
        ASSERT_EQ(post_send(a, 2, 0, 8), 0);
        EXPECT_EQ(take(cq, 2).size(), 2u);
        ASSERT_EQ(post_recv(b, 3, 4096, 64), 0) << "stays posted";
        ASSERT_EQ(to_state(a, IBV_QPS_RESET), 0);
        ASSERT_EQ(to_state(b, IBV_QPS_RESET), 0);
        EXPECT_EQ(a->qp_num, numbers[0]);
        EXPECT_EQ(b->qp_num, numbers[1]);
        EXPECT_TRUE(is_empty(cq)) << "a reset leaves no completions";
    }
    EXPECT_EQ(ibv_destroy_qp(a), 0);
    EXPECT_EQ(ibv_destroy_qp(b), 0);
    EXPECT_EQ(ibv_destroy_cq(cq), 0);
}

TEST_F(Verbs, AQueryReturnsWhatWasSet) {
    ibv_cq* const cq = make_cq();
    ibv_qp* const a = make_qp(cq, cq, IBV_QPT_RC, nullptr, true);
    ibv_qp* const b = make_qp(cq, cq);
    ibv_qp_attr attr{};
    ibv_qp_init_attr init{};
    ASSERT_EQ(ibv_query_qp(a, &attr, IBV_QP_STATE, &init), 0);
    EXPECT_EQ(attr.qp_state, IBV_QPS_RESET);
    EXPECT_EQ(init.sq_sig_all, 1);
    EXPECT_EQ(init.send_cq, cq);
    EXPECT_GE(init.cap.max_send_wr, 32u);
    ASSERT_EQ(to_init(a), 0);
    ASSERT_EQ(to_rtr(a, b->qp_num, 0x123456), 0);
    ASSERT_EQ(to_rts(a, 0x654321), 0);
    constexpr int kAsked =
        IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_TIMEOUT | IBV_QP_RQ_PSN | IBV_QP_SQ_PSN | IBV_QP_DEST_QPN;
    ASSERT_EQ(ibv_query_qp(a, &attr, kAsked, &init), 0);
    EXPECT_EQ(attr.qp_state, IBV_QPS_RTS);
    EXPECT_EQ(attr.dest_qp_num, b->qp_num);
    EXPECT_EQ(attr.path_mtu, IBV_MTU_1024);
    EXPECT_EQ(attr.timeout, 14);
    EXPECT_EQ(std::memcmp(attr.ah_attr.grh.dgid.raw, gid_.raw, sizeof gid_.raw), 0);
    EXPECT_EQ(ibv_destroy_qp(a), 0);
    EXPECT_EQ(ibv_destroy_qp(b), 0);
    EXPECT_EQ(ibv_destroy_cq(cq), 0);
}

TEST_F(Verbs, AQueuePairThatIsDestroyedLeavesNoCompletions) {
    ibv_cq* const send_cq = make_cq();
    ibv_cq* const recv_cq = make_cq();
    ibv_qp* const a = make_qp(send_cq, recv_cq);
    ibv_qp* const b = make_qp(send_cq, recv_cq);
    connect(a, b);
    ASSERT_EQ(post_recv(b, 1, 4096, 64), 0);
    ASSERT_EQ(post_send(a, 2, 0, 8), 0);
    EXPECT_EQ(take(send_cq, 1).size(), 1u);
    EXPECT_EQ(ibv_destroy_qp(a), 0);
    EXPECT_EQ(ibv_destroy_qp(b), 0);
    // A provider may leave them (H1 of pollcore's hazards).
    if (is_served()) {
        EXPECT_TRUE(is_empty(recv_cq));
    }
    EXPECT_EQ(ibv_destroy_cq(send_cq), 0);
    EXPECT_EQ(ibv_destroy_cq(recv_cq), 0);
}

// ---- Shared receive queues ----

TEST_F(Verbs, ASharedReceiveQueueTakesReceivesBeforeItHasAQueuePair) {
    ibv_srq_init_attr init{};
    init.attr = {.max_wr = 16, .max_sge = 1, .srq_limit = 0};
    ibv_srq* const srq = ibv_create_srq(pd_, &init);
    ASSERT_NE(srq, nullptr) << std::strerror(errno);
    for (std::uint64_t i = 0; i < 4; ++i) {
        ibv_sge list = sge(4096 + 64 * i, 64);
        ibv_recv_wr wr{.wr_id = 100 + i, .next = nullptr, .sg_list = &list, .num_sge = 1};
        ibv_recv_wr* bad = nullptr;
        ASSERT_EQ(ibv_post_srq_recv(srq, &wr, &bad), 0);
    }
    ibv_cq* const cq = make_cq();
    ibv_qp* const a = make_qp(cq, cq);
    ibv_qp* const b = make_qp(cq, cq, IBV_QPT_RC, srq);
    connect(a, b);
    EXPECT_NE(post_recv(b, 1, 0, 8), 0) << "the queue pair has no receive queue of its own";
    std::strcpy(memory_, "shared");
    ASSERT_EQ(post_send(a, 1, 0, 8), 0);
    for (const ibv_wc& wc : take(cq, 2)) {
        EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
        if (wc.opcode == IBV_WC_RECV) {
            EXPECT_EQ(wc.wr_id, 100u);
            EXPECT_EQ(wc.qp_num, b->qp_num);
        }
    }
    EXPECT_STREQ(memory_ + 4096, "shared");
    EXPECT_EQ(ibv_destroy_srq(srq), EBUSY);
    EXPECT_EQ(ibv_destroy_qp(a), 0);
    EXPECT_EQ(ibv_destroy_qp(b), 0);
    EXPECT_EQ(ibv_destroy_srq(srq), 0);
    EXPECT_EQ(ibv_destroy_cq(cq), 0);
}

TEST_F(Verbs, ALimitOfASharedReceiveQueueIsAnEvent) {
    ibv_srq_init_attr init{};
    init.attr = {.max_wr = 16, .max_sge = 1, .srq_limit = 0};
    ibv_srq* const srq = ibv_create_srq(pd_, &init);
    ASSERT_NE(srq, nullptr);
    ibv_cq* const cq = make_cq();
    ibv_qp* const a = make_qp(cq, cq);
    ibv_qp* const b = make_qp(cq, cq, IBV_QPT_RC, srq);
    connect(a, b);
    for (std::uint64_t i = 0; i < 4; ++i) {
        ibv_sge list = sge(4096 + 64 * i, 64);
        ibv_recv_wr wr{.wr_id = i, .next = nullptr, .sg_list = &list, .num_sge = 1};
        ibv_recv_wr* bad = nullptr;
        ASSERT_EQ(ibv_post_srq_recv(srq, &wr, &bad), 0);
    }
    // When this message has arrived, the receives have come to the device, which a served program does not wait for.
    ASSERT_EQ(post_send(a, 1, 0, 8), 0);
    EXPECT_EQ(take(cq, 2).size(), 2u);
    ibv_srq_attr attr{.max_wr = 0, .max_sge = 0, .srq_limit = 3};
    ASSERT_EQ(ibv_modify_srq(srq, &attr, IBV_SRQ_LIMIT), 0);
    EXPECT_FALSE(is_readable(context_->async_fd));
    ASSERT_EQ(post_send(a, 1, 0, 8), 0);
    EXPECT_EQ(take(cq, 2).size(), 2u);
    ASSERT_TRUE(is_readable(context_->async_fd, 10'000));
    ibv_async_event event{};
    ASSERT_EQ(ibv_get_async_event(context_, &event), 0);
    EXPECT_EQ(event.event_type, IBV_EVENT_SRQ_LIMIT_REACHED);
    EXPECT_EQ(event.element.srq, srq);
    ibv_ack_async_event(&event);
    ASSERT_EQ(ibv_query_srq(srq, &attr), 0);
    EXPECT_EQ(attr.srq_limit, 0u);
    EXPECT_EQ(ibv_destroy_qp(a), 0);
    EXPECT_EQ(ibv_destroy_qp(b), 0);
    EXPECT_EQ(ibv_destroy_srq(srq), 0);
    EXPECT_EQ(ibv_destroy_cq(cq), 0);
}

TEST_F(Verbs, ASharedReceiveQueueHasAProtectionDomainOfItsOwn) {
    ibv_srq_init_attr init{};
    init.attr = {.max_wr = 16, .max_sge = 1, .srq_limit = 0};
    ibv_srq* const srq = ibv_create_srq(pd_, &init);
    ASSERT_NE(srq, nullptr);
    ibv_pd* const own = pd_;
    ibv_pd* const other = ibv_alloc_pd(context_);
    ASSERT_NE(other, nullptr);
    ibv_cq* const cq = make_cq();
    ibv_qp* const a = make_qp(cq, cq);
    pd_ = other;
    ibv_qp* const b = make_qp(cq, cq, IBV_QPT_RC, srq);
    pd_ = own;
    connect(a, b);
    ibv_sge list = sge(4096, 64);  // of memory in the shared receive queue's
    ibv_recv_wr wr{.wr_id = 1, .next = nullptr, .sg_list = &list, .num_sge = 1};
    ibv_recv_wr* bad = nullptr;
    ASSERT_EQ(ibv_post_srq_recv(srq, &wr, &bad), 0);
    ASSERT_EQ(post_send(a, 2, 0, 8), 0);
    for (const ibv_wc& wc : take(cq, 2)) {
        EXPECT_EQ(wc.status, IBV_WC_SUCCESS) << ibv_wc_status_str(wc.status);
    }
    EXPECT_EQ(ibv_destroy_qp(a), 0);
    EXPECT_EQ(ibv_destroy_qp(b), 0);
    EXPECT_EQ(ibv_dealloc_pd(other), 0);
    EXPECT_EQ(ibv_destroy_srq(srq), 0);
    EXPECT_EQ(ibv_destroy_cq(cq), 0);
}

TEST_F(Verbs, ACompletionQueueMayEndBeforeTheSharedReceiveQueue) {
    ibv_srq_init_attr init{};
    init.attr = {.max_wr = 16, .max_sge = 1, .srq_limit = 0};
    ibv_srq* const srq = ibv_create_srq(pd_, &init);
    ASSERT_NE(srq, nullptr);
    ibv_cq* const cq = make_cq();
    ibv_qp* const qp = make_qp(cq, cq, IBV_QPT_RC, srq);
    EXPECT_EQ(ibv_destroy_cq(cq), EBUSY);
    EXPECT_EQ(ibv_destroy_qp(qp), 0);
    EXPECT_EQ(ibv_destroy_cq(cq), 0);
    ibv_srq_attr attr{};
    EXPECT_EQ(ibv_query_srq(srq, &attr), 0);
    EXPECT_EQ(ibv_destroy_srq(srq), 0);
}

TEST_F(Verbs, AResetIsNoError) {
    ibv_srq_init_attr init{};
    init.attr = {.max_wr = 16, .max_sge = 1, .srq_limit = 0};
    ibv_srq* const srq = ibv_create_srq(pd_, &init);
    ASSERT_NE(srq, nullptr);
    ibv_cq* const cq = make_cq();
    ibv_qp* const a = make_qp(cq, cq);
    ibv_qp* const b = make_qp(cq, cq, IBV_QPT_RC, srq);
    for (int round = 0; round < 20; ++round) {
        connect(a, b);
        ASSERT_EQ(to_state(b, IBV_QPS_RESET), 0);
        ASSERT_EQ(to_state(a, IBV_QPS_RESET), 0);
    }
    // On the way to ERR there is IBV_EVENT_QP_LAST_WQE_REACHED.
    EXPECT_FALSE(is_readable(context_->async_fd, 20));
    EXPECT_EQ(ibv_destroy_qp(a), 0);
    EXPECT_EQ(ibv_destroy_qp(b), 0);
    EXPECT_EQ(ibv_destroy_srq(srq), 0);
    EXPECT_EQ(ibv_destroy_cq(cq), 0);
}

// ---- Events of completion queues ----

class Events : public Verbs {
protected:
    void SetUp() override {
        Verbs::SetUp();
        channel_ = ibv_create_comp_channel(context_);
        ASSERT_NE(channel_, nullptr);
        recv_cq_ = make_cq(64, channel_);
        send_cq_ = make_cq();
        a_ = make_qp(send_cq_, send_cq_);
        b_ = make_qp(send_cq_, recv_cq_);
        connect(a_, b_);
    }
    void TearDown() override {
        EXPECT_EQ(ibv_destroy_qp(a_), 0);
        EXPECT_EQ(ibv_destroy_qp(b_), 0);
        EXPECT_EQ(ibv_destroy_comp_channel(channel_), EBUSY);
        EXPECT_EQ(ibv_destroy_cq(recv_cq_), 0);
        EXPECT_EQ(ibv_destroy_cq(send_cq_), 0);
        EXPECT_EQ(ibv_destroy_comp_channel(channel_), 0);
        Verbs::TearDown();
    }
    void message() {
        ASSERT_EQ(post_recv(b_, 1, 4096, 64), 0);
        ASSERT_EQ(post_send(a_, 2, 0, 8), 0);
        EXPECT_EQ(take(send_cq_, 1).size(), 1u);
    }
    void take_event() {
        ibv_cq* cq = nullptr;
        void* context = nullptr;
        ASSERT_EQ(ibv_get_cq_event(channel_, &cq, &context), 0);
        EXPECT_EQ(cq, recv_cq_);
        EXPECT_EQ(context, static_cast<void*>(this));
        ibv_ack_cq_events(cq, 1);
    }

    ibv_comp_channel* channel_ = nullptr;
    ibv_cq* recv_cq_ = nullptr;
    ibv_cq* send_cq_ = nullptr;
    ibv_qp* a_ = nullptr;
    ibv_qp* b_ = nullptr;
};

TEST_F(Events, OneArmingIsOneEvent) {
    for (int round = 0; round < 20; ++round) {
        ASSERT_EQ(ibv_req_notify_cq(recv_cq_, 0), 0);
        EXPECT_FALSE(is_readable(channel_->fd)) << round;
        message();
        ASSERT_TRUE(is_readable(channel_->fd, 10'000)) << round;
        take_event();
        EXPECT_FALSE(is_readable(channel_->fd)) << round;
        EXPECT_EQ(take(recv_cq_, 1).size(), 1u);
        message();
        EXPECT_EQ(take(recv_cq_, 1).size(), 1u);
        EXPECT_FALSE(is_readable(channel_->fd)) << "not armed";
    }
}

TEST_F(Events, AnEventComesThoughItsCompletionWasPolled) {
    ASSERT_EQ(ibv_req_notify_cq(recv_cq_, 0), 0);
    message();
    EXPECT_EQ(take(recv_cq_, 1).size(), 1u);
    ASSERT_TRUE(is_readable(channel_->fd, 10'000));
    take_event();
}

TEST_F(Events, ANonblockingChannelSaysThatThereIsNone) {
    ASSERT_EQ(::fcntl(channel_->fd, F_SETFL, ::fcntl(channel_->fd, F_GETFL) | O_NONBLOCK), 0);
    ibv_cq* cq = nullptr;
    void* context = nullptr;
    ASSERT_EQ(ibv_req_notify_cq(recv_cq_, 0), 0);
    EXPECT_EQ(ibv_get_cq_event(channel_, &cq, &context), -1);
    EXPECT_EQ(errno, EAGAIN);
    message();
    ASSERT_TRUE(is_readable(channel_->fd, 10'000));
    take_event();
    EXPECT_EQ(take(recv_cq_, 1).size(), 1u);
}

TEST_F(Events, AThreadThatWaitsIsWoken) {
    ASSERT_EQ(ibv_req_notify_cq(recv_cq_, 0), 0);
    std::thread waiting([&] { take_event(); });
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    message();
    waiting.join();
    EXPECT_EQ(take(recv_cq_, 1).size(), 1u);
}

TEST_F(Events, ACompletionQueueCountsAcknowledgedEvents) {
    ASSERT_EQ(ibv_req_notify_cq(recv_cq_, 0), 0);
    message();
    ASSERT_TRUE(is_readable(channel_->fd, 10'000));
    ibv_cq* cq = nullptr;
    void* context = nullptr;
    ASSERT_EQ(ibv_get_cq_event(channel_, &cq, &context), 0);
    EXPECT_EQ(take(recv_cq_, 1).size(), 1u);
    std::atomic<bool> acknowledged{false};
    ibv_cq* const other = make_cq(16, channel_);
    std::thread later([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
        acknowledged = true;
        ibv_ack_cq_events(cq, 1);
    });
    EXPECT_EQ(ibv_destroy_cq(other), 0) << "it has no events";
    ASSERT_EQ(ibv_destroy_qp(b_), 0);
    ASSERT_EQ(ibv_destroy_cq(recv_cq_), 0);
    EXPECT_TRUE(acknowledged) << "ibv_destroy_cq() waits for the acknowledgement";
    later.join();
    recv_cq_ = make_cq(64, channel_);
    b_ = make_qp(send_cq_, recv_cq_);
}

// ---- Extended interfaces ----

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

// ---- Objects ----

TEST_F(Verbs, AnObjectThatIsInUseStays) {
    EXPECT_EQ(ibv_dealloc_pd(pd_), EBUSY);
    ibv_cq* const cq = make_cq();
    ibv_qp* const qp = make_qp(cq, cq);
    EXPECT_EQ(ibv_destroy_cq(cq), EBUSY);
    EXPECT_EQ(ibv_destroy_qp(qp), 0);
    EXPECT_EQ(ibv_destroy_cq(cq), 0);
}

TEST_F(Verbs, MemoryThatIsNotThePeersIsRefused) {
    ibv_cq* const cq = make_cq();
    ibv_qp* const a = make_qp(cq, cq);
    ibv_qp* const b = make_qp(cq, cq);
    connect(a, b);
    ibv_sge list = sge(0, 8);
    ibv_send_wr wr = send_of(1, &list, 1, IBV_WR_RDMA_WRITE);
    wr.wr.rdma = {.remote_addr = reinterpret_cast<std::uintptr_t>(memory_) + kBytes, .rkey = mr_->rkey};
    ibv_send_wr* bad = nullptr;
    ASSERT_EQ(ibv_post_send(a, &wr, &bad), 0);
    const auto done = take(cq, 1);
    ASSERT_EQ(done.size(), 1u);
    EXPECT_EQ(done[0].status, IBV_WC_REM_ACCESS_ERR);
    EXPECT_EQ(done[0].wr_id, 1u);
    ibv_qp_attr attr{};
    ibv_qp_init_attr init{};
    ASSERT_EQ(ibv_query_qp(a, &attr, IBV_QP_STATE, &init), 0);
    EXPECT_EQ(attr.qp_state, IBV_QPS_ERR);
    EXPECT_EQ(ibv_destroy_qp(a), 0);
    EXPECT_EQ(ibv_destroy_qp(b), 0);
    EXPECT_EQ(ibv_destroy_cq(cq), 0);
}

TEST_F(Verbs, WhatDoesNotExistIsRefused) {
    ibv_gid gid{};
    EXPECT_NE(ibv_query_gid(context_, kPort, 100'000, &gid), 0);
    ibv_port_attr port{};
    EXPECT_NE(ibv_query_port(context_, 77, &port), 0);
    EXPECT_EQ(ibv_create_cq(context_, 0, nullptr, nullptr, 0), nullptr);
    EXPECT_EQ(ibv_create_cq(context_, 16, nullptr, nullptr, context_->num_comp_vectors), nullptr);
    ibv_ah_attr local{};
    local.port_num = kPort;
    EXPECT_EQ(ibv_create_ah(pd_, &local), nullptr) << "on RoCE an address handle is global";
    ibv_cq* const cq = make_cq();
    ibv_qp_init_attr init{};
    init.send_cq = init.recv_cq = cq;
    init.cap.max_send_wr = 1u << 30;
    init.qp_type = IBV_QPT_RC;
    EXPECT_EQ(ibv_create_qp(pd_, &init), nullptr);
    ibv_qp* const qp = make_qp(cq, cq, IBV_QPT_UC);
    ASSERT_EQ(to_init(qp), 0);
    ibv_qp_attr attr{};
    attr.qp_state = IBV_QPS_RTR;
    attr.path_mtu = IBV_MTU_1024;
    attr.ah_attr = local;
    const int mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
    EXPECT_EQ(ibv_modify_qp(qp, &attr, mask), EINVAL) << "and so is the way to a peer";
    EXPECT_EQ(ibv_destroy_qp(qp), 0);
    EXPECT_EQ(ibv_destroy_cq(cq), 0);
}

TEST_F(Verbs, ACompletionQueueDoesNotShrinkBelowWhatItHolds) {
    ibv_cq* const cq = make_cq(8);
    ibv_qp* const qp = make_qp(cq, cq);
    ASSERT_EQ(ibv_resize_cq(cq, 16), 0);
    ASSERT_GE(cq->cqe, 16);
    ASSERT_EQ(to_init(qp), 0);
    constexpr int kReceives = 5;
    for (int i = 0; i < kReceives; ++i) {
        ASSERT_EQ(post_recv(qp, 1, 0, 64), 0);
    }
    ASSERT_EQ(to_state(qp, IBV_QPS_ERR), 0);
    int error = 0;  // the receives are flushed some time later
    for (const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
         error == 0 && std::chrono::steady_clock::now() < end;) {
        error = ibv_resize_cq(cq, kReceives - 1);
        EXPECT_EQ(ibv_resize_cq(cq, 16), 0);
    }
    EXPECT_EQ(error, EINVAL);
    EXPECT_EQ(take(cq, kReceives).size(), std::size_t{kReceives}) << "nothing is lost";
    EXPECT_EQ(ibv_destroy_qp(qp), 0);
    EXPECT_EQ(ibv_destroy_cq(cq), 0);
}

TEST_F(Verbs, ThePortAndItsTablesAreThere) {
    ibv_device_attr device{};
    ASSERT_EQ(ibv_query_device(context_, &device), 0);
    EXPECT_NE(device.node_guid, 0u);
    EXPECT_NE(device.sys_image_guid, 0u);
    EXPECT_NE(device.vendor_id, 0u);
    EXPECT_GE(device.phys_port_cnt, 1);
    EXPECT_GT(device.max_qp_wr, 0);
    ibv_device_attr_ex extended{};
    ASSERT_EQ(ibv_query_device_ex(context_, nullptr, &extended), 0);
    EXPECT_EQ(extended.orig_attr.max_qp_wr, device.max_qp_wr);
    ibv_port_attr port{};
    ASSERT_EQ(ibv_query_port(context_, kPort, &port), 0);
    EXPECT_EQ(port.state, IBV_PORT_ACTIVE);
    EXPECT_GT(port.gid_tbl_len, 0);
    ibv_gid_entry entry{};
    ASSERT_EQ(ibv_query_gid_ex(context_, kPort, static_cast<std::uint32_t>(gid_index_), &entry, 0), 0);
    EXPECT_EQ(std::memcmp(entry.gid.raw, gid_.raw, sizeof gid_.raw), 0);
    __be16 pkey = 0;
    ASSERT_EQ(ibv_query_pkey(context_, kPort, 0, &pkey), 0);
    EXPECT_EQ(ibv_get_pkey_index(context_, kPort, pkey), 0);
}

// ---- Threads and processes ----

TEST_F(Verbs, SeveralThreadsPostAndPollOneQueuePair) {
    constexpr std::uint64_t kThreads = 3;
    constexpr std::uint64_t kEach = 400;
    ibv_cq* const send_cq = make_cq(128);
    ibv_cq* const recv_cq = make_cq(128);
    ibv_qp* const a = make_qp(send_cq, send_cq);
    ibv_qp* const b = make_qp(send_cq, recv_cq);
    connect(a, b);
    std::atomic<std::uint64_t> sent{0};
    std::atomic<std::uint64_t> received{0};
    std::atomic<std::uint64_t> failures{0};
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    const auto run = [&](std::uint64_t thread) {
        std::uint64_t receives = 0;
        std::uint64_t sends = 0;
        while ((sent < kThreads * kEach || received < kThreads * kEach) && std::chrono::steady_clock::now() < end) {
            if (receives < kEach && post_recv(b, receives, 4096 + 64 * thread, 64) == 0) {
                ++receives;
            }
            if (sends < receives && post_send(a, thread * kEach + sends, 64 * thread, 8) == 0) {
                ++sends;
            }
            ibv_wc wc[4];
            for (auto& [cq, count] : {std::pair{send_cq, &sent}, std::pair{recv_cq, &received}}) {
                const int got = ibv_poll_cq(cq, 4, wc);
                for (int i = 0; i < got; ++i) {
                    failures += wc[i].status != IBV_WC_SUCCESS;
                    ++*count;
                }
            }
            std::this_thread::yield();
        }
    };
    std::vector<std::thread> threads;
    for (std::uint64_t i = 0; i < kThreads; ++i) {
        threads.emplace_back(run, i);
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
    EXPECT_EQ(failures, 0u);
    EXPECT_EQ(sent, kThreads * kEach);
    EXPECT_EQ(received, kThreads * kEach);
    EXPECT_EQ(ibv_destroy_qp(a), 0);
    EXPECT_EQ(ibv_destroy_qp(b), 0);
    EXPECT_EQ(ibv_destroy_cq(send_cq), 0);
    EXPECT_EQ(ibv_destroy_cq(recv_cq), 0);
}

// Not a fixture's test: the process must have listed devices, and opened none.
TEST(BeforeAnyDevice, AChildOfForkOpensWhatItsParentHasListed) {
    int count = 0;
    ibv_device** const list = ibv_get_device_list(&count);
    ASSERT_GT(count, 0);
    ibv_device* device = nullptr;
    for (int i = 0; i < count; ++i) {
        device = ibv_get_device_name(list[i]) == std::string(setting("POLLCORE_TEST_VERBS", "")) ? list[i] : device;
    }
    ASSERT_NE(device, nullptr);
    const pid_t child = ::fork();
    if (child == 0) {
        ibv_context* const context = ibv_open_device(device);
        ibv_pd* const pd = context == nullptr ? nullptr : ibv_alloc_pd(context);
        ::_exit(context == nullptr ? 1 : pd == nullptr ? 2 : ibv_dealloc_pd(pd) + ibv_close_device(context));
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status));
    EXPECT_EQ(WEXITSTATUS(status), 0) << "1: it cannot open the device, 2: it cannot use it";
    ibv_free_device_list(list);
}

TEST_F(Verbs, AChildOfForkLeavesItsParentsObjectsAlone) {
    ibv_cq* const cq = make_cq();
    ibv_qp* const a = make_qp(cq, cq);
    ibv_qp* const b = make_qp(cq, cq);
    connect(a, b);
    if (is_served()) {
        const pid_t child = ::fork();
        if (child == 0) {
            ibv_wc wc{};
            const bool refused = post_send(a, 1, 0, 8) == EPERM && post_recv(b, 1, 0, 8) == EPERM &&
                                 ibv_poll_cq(cq, 1, &wc) < 0 && ibv_destroy_qp(a) != 0 &&
                                 ibv_reg_mr(pd_, memory_, 4096, 0) == nullptr;
            int count = 0;
            ibv_device** const list = ibv_get_device_list(&count);
            ibv_context* const own = count > 0 ? ibv_open_device(list[0]) : nullptr;
            ibv_pd* const pd = own == nullptr ? nullptr : ibv_alloc_pd(own);
            ::_exit(!refused ? 1 : pd == nullptr ? 2 : 0);
        }
        int status = 0;
        ASSERT_EQ(::waitpid(child, &status, 0), child);
        EXPECT_TRUE(WIFEXITED(status));
        EXPECT_EQ(WEXITSTATUS(status), 0) << "1: a call succeeded, 2: the child cannot open the device";
    }
    ASSERT_EQ(post_recv(b, 1, 4096, 64), 0);
    ASSERT_EQ(post_send(a, 2, 0, 8), 0);
    EXPECT_EQ(take(cq, 2).size(), 2u);
    EXPECT_EQ(ibv_destroy_qp(a), 0);
    EXPECT_EQ(ibv_destroy_qp(b), 0);
    EXPECT_EQ(ibv_destroy_cq(cq), 0);
}

}  // namespace
}  // namespace pollcore::test
