// The software device's CQs, polled by ibv_start_poll, ibv_next_poll and ibv_end_poll.
#include "soft_fixture.hpp"

namespace pollcore::test {
namespace {

class SoftExtendedCq : public SoftPair {
protected:
    void SetUp() override { connect(a, b); }
    int write(std::uint64_t wr_id, unsigned flags = IBV_SEND_SIGNALED) {
        return a.post(wr_id, IBV_WR_RDMA_WRITE, {a.sge(0, 8)}, b.address(0), b.mr->rkey, flags);
    }
    static int start(ibv_cq_ex& cq) {
        ibv_poll_cq_attr attr{};
        return ibv_start_poll(&cq, &attr);
    }

    End a{*device};
    End b{*device};
    ibv_cq_ex& sends = *extended(a.send_cq.get());
    ibv_cq_ex& receives = *extended(b.recv_cq.get());
};

TEST_F(SoftExtendedCq, an_empty_one_says_so_each_time_and_is_left_as_it_was) {
    for (int i = 0; i < 3; ++i)
        EXPECT_EQ(start(sends), ENOENT);
    ASSERT_EQ(write(1), 0);
    EXPECT_WC(a.sent(), 1, IBV_WC_SUCCESS);
}

TEST_F(SoftExtendedCq, a_batch_goes_on_until_nothing_is_left_and_takes_each_once) {
    for (std::uint64_t id = 0; id < 5; ++id)
        ASSERT_EQ(write(id), 0);
    device->advance(1000);
    ASSERT_EQ(start(sends), 0);
    for (std::uint64_t id = 0; id < 5; ++id) {
        EXPECT_EQ(sends.wr_id, id);
        EXPECT_EQ(sends.status, IBV_WC_SUCCESS);
        EXPECT_EQ(ibv_wc_read_opcode(&sends), IBV_WC_RDMA_WRITE);
        EXPECT_EQ(ibv_wc_read_qp_num(&sends), a.qp->qp_num);
        EXPECT_EQ(ibv_next_poll(&sends), id < 4 ? 0 : ENOENT);
    }
    ibv_end_poll(&sends);  // must follow even a failed ibv_next_poll, and then takes no completion
    EXPECT_EQ(start(sends), ENOENT);
    ASSERT_EQ(write(9), 0);
    EXPECT_WC(a.sent(), 9, IBV_WC_SUCCESS);
}

TEST_F(SoftExtendedCq, the_current_one_is_taken_by_the_end_and_the_rest_stays) {
    for (std::uint64_t id = 0; id < 3; ++id)
        ASSERT_EQ(write(id), 0);
    device->advance(1000);
    ASSERT_EQ(start(sends), 0);
    EXPECT_EQ(sends.wr_id, 0u);
    ibv_end_poll(&sends);
    EXPECT_WC(a.sent(), 1, IBV_WC_SUCCESS);  // a program may alternate between the two ways to poll
    ASSERT_EQ(start(sends), 0);
    EXPECT_EQ(sends.wr_id, 2u);
    ibv_end_poll(&sends);
    EXPECT_EQ(start(sends), ENOENT);
}

TEST_F(SoftExtendedCq, what_is_taken_gives_its_queue_slots_back) {
    for (int round = 0; round < 4; ++round) {
        for (std::uint64_t id = 0; id < 32; ++id)
            ASSERT_EQ(write(id, id == 31 ? unsigned{IBV_SEND_SIGNALED} : 0u), 0) << "round " << round;
        EXPECT_EQ(write(99), ENOMEM);
        device->advance(1000);
        ASSERT_EQ(start(sends), 0);
        EXPECT_EQ(sends.wr_id, 31u);
        ibv_end_poll(&sends);
    }
}

TEST_F(SoftExtendedCq, a_receive_has_its_length_and_immediate) {
    ASSERT_EQ(b.post_recv(7, {b.sge(0, 64)}), 0);
    ASSERT_EQ(a.post(1, IBV_WR_SEND_WITH_IMM, {a.sge(0, 24)}, 0, 0, IBV_SEND_SIGNALED, htobe32(0x01020304)), 0);
    device->advance(1000);
    ASSERT_EQ(start(receives), 0);
    EXPECT_EQ(receives.wr_id, 7u);
    EXPECT_EQ(ibv_wc_read_opcode(&receives), IBV_WC_RECV);
    EXPECT_EQ(ibv_wc_read_byte_len(&receives), 24u);
    EXPECT_TRUE(ibv_wc_read_wc_flags(&receives) & IBV_WC_WITH_IMM);
    EXPECT_EQ(ibv_wc_read_imm_data(&receives), htobe32(0x01020304));
    ibv_end_poll(&receives);
}

TEST_F(SoftExtendedCq, an_error_has_its_status) {
    ASSERT_EQ(a.post(1, IBV_WR_RDMA_WRITE, {a.sge(0, 8)}, b.address(0), b.mr->rkey ^ 0x5500), 0);
    ASSERT_EQ(write(2), 0);
    device->advance(1'000'000);
    ASSERT_EQ(start(sends), 0);
    EXPECT_EQ(sends.wr_id, 1u);
    EXPECT_EQ(sends.status, IBV_WC_REM_ACCESS_ERR);
    ASSERT_EQ(ibv_next_poll(&sends), 0);
    EXPECT_EQ(sends.wr_id, 2u);
    EXPECT_EQ(sends.status, IBV_WC_WR_FLUSH_ERR);
    ibv_end_poll(&sends);
}

TEST_F(SoftExtendedCq, one_that_overran_fails_and_is_not_merely_empty) {
    End c(*device, {.cqe = 4}), d(*device);
    connect(c, d);
    for (std::uint64_t i = 0; i < 8; ++i)
        ASSERT_EQ(c.post(i, IBV_WR_RDMA_WRITE, {c.sge(0, 8)}, d.address(0), d.mr->rkey), 0);
    device->advance(1000);
    EXPECT_EQ(start(*extended(c.send_cq.get())), EIO);
    EXPECT_EQ(start(*extended(c.send_cq.get())), EIO);
}

TEST_F(SoftExtendedCq, an_attribute_of_the_future_is_refused) {
    ASSERT_EQ(write(1), 0);
    ibv_poll_cq_attr attr{.comp_mask = 1};
    EXPECT_EQ(ibv_start_poll(&sends, &attr), EINVAL);
    EXPECT_WC(a.sent(), 1, IBV_WC_SUCCESS);
}

TEST_F(SoftExtendedCq, a_device_without_them_refuses_to_make_one) {
    DeviceLimits limits = default_soft_limits();
    limits.extended_cqs = false;
    const auto without = open_soft_device({.name = "plain", .limits = limits});
    EXPECT_THROW((void)without->create_cq({.cqe = 4, .extended = true}), Error);
    const UniqueCq cq{without->create_cq({.cqe = 4}), {without.get()}};
    EXPECT_NE(cq, nullptr);
}

/// The CQs of both ends have time stamps.
class SoftTimes : public SoftExtendedCq {
protected:
    static constexpr std::uint64_t kBetween = 10'000;

    void SetUp() override { connect(c, d); }
    void at(std::uint64_t now) {
        *clock.now = now;
        device->advance(now);
    }

    End c{*device, {.device_time = true}};
    End d{*device, {.device_time = true}};
    ibv_cq_ex& timed_sends = *extended(c.send_cq.get());
    ibv_cq_ex& timed_receives = *extended(d.recv_cq.get());
};

TEST_F(SoftTimes, are_of_when_a_completion_came_not_of_when_it_is_polled) {
    for (std::uint64_t i = 1; i <= 4; ++i) {
        at(i * kBetween);
        ASSERT_EQ(d.post_recv(i, {d.sge(0, 64)}), 0);
        ASSERT_EQ(c.post(i, IBV_WR_SEND, {c.sge(0, 8)}), 0);
        device->advance(i * kBetween);
    }
    at(100 * kBetween);
    for (ibv_cq_ex* cq : {&timed_sends, &timed_receives}) {
        ASSERT_EQ(start(*cq), 0);
        for (std::uint64_t i = 1; i <= 4; ++i) {
            EXPECT_EQ(cq->wr_id, i);
            EXPECT_EQ(cq->status, IBV_WC_SUCCESS);
            EXPECT_EQ(ibv_wc_read_completion_ts(cq), i * kBetween);
            EXPECT_EQ(ibv_next_poll(cq), i < 4 ? 0 : ENOENT);
        }
        ibv_end_poll(cq);
    }
}

TEST_F(SoftTimes, stay_with_their_completions_when_the_queue_has_gone_round) {
    for (std::uint64_t i = 1; i <= 1000; ++i) {
        at(i * kBetween);
        ASSERT_EQ(c.post(i, IBV_WR_RDMA_WRITE, {c.sge(0, 8)}, d.address(0), d.mr->rkey), 0);
        device->advance(i * kBetween);
        ASSERT_EQ(start(timed_sends), 0);
        EXPECT_EQ(timed_sends.wr_id, i);
        EXPECT_EQ(ibv_wc_read_completion_ts(&timed_sends), i * kBetween);
        ibv_end_poll(&timed_sends);
    }
}

TEST_F(SoftTimes, are_refused_by_a_device_without_a_clock) {
    EXPECT_EQ(device->limits().completion_timestamp_mask, ~std::uint64_t{0});
    EXPECT_EQ(device->limits().hca_core_clock_khz, 1'000'000u) << "nanoseconds";
    const auto without = open_soft_device({.name = "timeless", .profile = kRxeLike});
    EXPECT_EQ(without->limits().completion_timestamp_mask, 0u);
    EXPECT_EQ(without->limits().hca_core_clock_khz, 0u);
    try {
        (void)without->create_cq({.cqe = 4, .extended = true, .device_time = true});
        ADD_FAILURE() << "it was made";
    } catch (const Error& error) {
        EXPECT_EQ(error.code().value(), EOPNOTSUPP);
    }
    const UniqueCq cq{without->create_cq({.cqe = 4, .extended = true}), {without.get()}};
    EXPECT_NE(cq, nullptr);
}

}  // namespace
}  // namespace pollcore::test
