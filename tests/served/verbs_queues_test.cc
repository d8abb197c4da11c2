// What verbs promise to programs of queue pairs and shared receive queues, their states and their ends:
// ibv_modify_qp(3), ibv_create_srq(3).
#include <cstdint>
#include <cstring>

#include "verbs_fixture.hpp"

namespace pollcore::test {
namespace {

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

TEST_F(Verbs, ASharedReceiveQueueTakesReceivesBeforeItHasAQueuePair) {
    ibv_srq* const srq = make_srq();
    ASSERT_NE(srq, nullptr);
    for (std::uint64_t i = 0; i < 4; ++i) {
        ASSERT_EQ(post_srq_recv(srq, 100 + i, 4096 + 64 * i, 64), 0);
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
    ibv_srq* const srq = make_srq();
    ASSERT_NE(srq, nullptr);
    ibv_cq* const cq = make_cq();
    ibv_qp* const a = make_qp(cq, cq);
    ibv_qp* const b = make_qp(cq, cq, IBV_QPT_RC, srq);
    connect(a, b);
    for (std::uint64_t i = 0; i < 4; ++i) {
        ASSERT_EQ(post_srq_recv(srq, i, 4096 + 64 * i, 64), 0);
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
    ibv_srq* const srq = make_srq();
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
    ASSERT_EQ(post_srq_recv(srq, 1, 4096, 64), 0) << "memory in the shared receive queue's";
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
    ibv_srq* const srq = make_srq();
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
    ibv_srq* const srq = make_srq();
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

}  // namespace
}  // namespace pollcore::test
