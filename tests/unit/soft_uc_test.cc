// Unreliable connections of the software device: messages that arrive, messages that are lost silently, and failures at
// the sender or the receiver alone.
#include "soft_fixture.hpp"

namespace pollcore::test {
namespace {

class SoftUc : public SoftPair {
protected:
    void SetUp() override { connect(a, b, {}, IBV_MTU_256); }
    void fill(std::byte value, std::size_t size) { std::memset(a.at(0), static_cast<int>(value), size); }
    static EndOptions options() { return {.type = QpType::uc}; }

    End a{*device, options()};
    End b{*device, options()};
};

TEST_F(SoftUc, a_send_completes_though_nobody_answers) {
    b.move_to(IBV_QPS_ERR);
    ASSERT_EQ(a.post(1, IBV_WR_SEND, {a.sge(0, 1000)}), 0);
    EXPECT_WC(a.sent(), 1, IBV_WC_SUCCESS);
    EXPECT_EQ(a.state(), IBV_QPS_RTS);
    EXPECT_EQ(device->query(a.qp.get(), 0).sq_psn, (a.psn + 4) & 0xffffff);
}

TEST_F(SoftUc, sends_and_writes_arrive_whole_and_in_order) {
    for (const std::uint32_t length : {0u, 1u, 256u, 257u, 5000u}) {
        fill(static_cast<std::byte>(length + 1), 5000);
        ASSERT_EQ(b.post_recv(1, {b.sge(0, 8000)}), 0);
        ASSERT_EQ(b.post_recv(2, {}), 0);
        ASSERT_EQ(a.post(3, IBV_WR_SEND_WITH_IMM, {a.sge(0, length)}, 0, 0, IBV_SEND_SIGNALED, 7), 0);
        ASSERT_EQ(a.post(4, IBV_WR_RDMA_WRITE_WITH_IMM, {a.sge(0, length)}, b.address(10000), b.mr->rkey,
                         IBV_SEND_SIGNALED, 8),
                  0);
        EXPECT_WC(a.sent(), 3, IBV_WC_SUCCESS);
        EXPECT_WC(a.sent(), 4, IBV_WC_SUCCESS);
        const auto send = b.received();
        EXPECT_WC(send, 1, IBV_WC_SUCCESS);
        EXPECT_EQ(send->byte_len, length);
        EXPECT_EQ(send->imm_data, 7u);
        EXPECT_EQ(send->opcode, IBV_WC_RECV);
        EXPECT_EQ(send->src_qp, a.qp->qp_num);
        const auto write = b.received();
        EXPECT_WC(write, 2, IBV_WC_SUCCESS);
        EXPECT_EQ(write->byte_len, length);
        EXPECT_EQ(write->imm_data, 8u);
        EXPECT_EQ(write->opcode, IBV_WC_RECV_RDMA_WITH_IMM);
        EXPECT_EQ(std::memcmp(a.at(0), b.at(0), length), 0);
        EXPECT_EQ(std::memcmp(a.at(0), b.at(10000), length), 0);
    }
}

TEST_F(SoftUc, a_message_that_loses_a_packet_is_lost_and_its_receive_serves_the_next) {
    constexpr std::uint32_t kLong = 600 * 256;  // more packets than one move of the device sends
    fill(std::byte{1}, kLong);
    ASSERT_EQ(b.post_recv(1, {b.sge(0, kLong)}), 0);
    ASSERT_EQ(a.post(2, IBV_WR_SEND, {a.sge(0, kLong)}), 0);
    EXPECT_FALSE(End::poll(a.send_cq.get()));  // after this the first packets have arrived
    EXPECT_EQ(*b.at(0), std::byte{1});
    device->set_port_up(false);
    EXPECT_FALSE(End::poll(a.send_cq.get()));  // the packets that are sent now are lost
    device->set_port_up(true);
    EXPECT_WC(a.sent(), 2, IBV_WC_SUCCESS);
    EXPECT_FALSE(b.received());

    fill(std::byte{2}, 300);
    ASSERT_EQ(a.post(3, IBV_WR_SEND, {a.sge(0, 300)}), 0);
    EXPECT_WC(a.sent(), 3, IBV_WC_SUCCESS);
    const auto received = b.received();
    EXPECT_WC(received, 1, IBV_WC_SUCCESS);
    EXPECT_EQ(received->byte_len, 300u);
    EXPECT_EQ(*b.at(299), std::byte{2});
}

TEST_F(SoftUc, a_message_without_its_first_packet_is_dropped) {
    constexpr std::uint32_t kLong = 600 * 256;
    ASSERT_EQ(b.post_recv(1, {b.sge(0, kLong)}), 0);
    device->set_port_up(false);
    ASSERT_EQ(a.post(2, IBV_WR_RDMA_WRITE_WITH_IMM, {a.sge(0, kLong)}, b.address(0), b.mr->rkey), 0);
    EXPECT_FALSE(End::poll(a.send_cq.get()));
    device->set_port_up(true);
    fill(std::byte{9}, kLong);
    EXPECT_WC(a.sent(), 2, IBV_WC_SUCCESS);
    EXPECT_FALSE(b.received());
    EXPECT_EQ(*b.at(kLong - 1), std::byte{0});
}

TEST_F(SoftUc, what_meets_no_receive_is_lost_and_nobody_is_told) {
    ASSERT_EQ(a.post(1, IBV_WR_SEND, {a.sge(0, 1000)}), 0);
    EXPECT_WC(a.sent(), 1, IBV_WC_SUCCESS);
    ASSERT_EQ(b.post_recv(2, {b.sge(0, 2000)}), 0);
    EXPECT_FALSE(b.received());
    ASSERT_EQ(a.post(3, IBV_WR_SEND, {a.sge(0, 8)}), 0);
    const auto received = b.received();
    EXPECT_WC(received, 2, IBV_WC_SUCCESS);
    EXPECT_EQ(received->byte_len, 8u);
}

TEST_F(SoftUc, writes_that_are_not_permitted_are_dropped) {
    fill(std::byte{1}, 8);
    constexpr std::size_t kEnd = 1u << 20;
    const auto try_write = [&](std::size_t at, std::uint32_t rkey) {
        ASSERT_EQ(a.post(1, IBV_WR_RDMA_WRITE, {a.sge(0, 8)}, b.address(at), rkey), 0);
        EXPECT_WC(a.sent(), 1, IBV_WC_SUCCESS);
        EXPECT_EQ(b.state(), IBV_QPS_RTS);
    };
    try_write(0, b.mr->rkey ^ 0x4400);
    try_write(kEnd - 4, b.mr->rkey);
    EXPECT_EQ(*b.at(0), std::byte{0});
    EXPECT_EQ(*b.at(kEnd - 4), std::byte{0});
    try_write(kEnd - 8, b.mr->rkey);
    EXPECT_EQ(*b.at(kEnd - 8), std::byte{1});
}

TEST_F(SoftUc, a_receive_that_is_too_small_fails_its_owner_alone) {
    ASSERT_EQ(b.post_recv(1, {b.sge(0, 10)}), 0);
    ASSERT_EQ(a.post(2, IBV_WR_SEND, {a.sge(0, 11)}), 0);
    EXPECT_WC(a.sent(), 2, IBV_WC_SUCCESS);
    EXPECT_WC(b.received(), 1, IBV_WC_LOC_LEN_ERR);
    EXPECT_EQ(b.state(), IBV_QPS_ERR);
    EXPECT_EQ(a.state(), IBV_QPS_RTS);
}

TEST_F(SoftUc, a_failed_send_stops_the_send_queue_until_it_is_moved_back) {
    ASSERT_EQ(b.post_recv(1, {b.sge(0, 100)}), 0);
    ASSERT_EQ(a.post_recv(2, {a.sge(0, 100)}), 0);
    ibv_sge bad = a.sge(0, 8);
    bad.lkey ^= 0x4400;
    ASSERT_EQ(a.post(3, IBV_WR_SEND, {bad}), 0);
    ASSERT_EQ(a.post(4, IBV_WR_SEND, {a.sge(0, 8)}), 0);
    EXPECT_WC(a.sent(), 3, IBV_WC_LOC_PROT_ERR);
    EXPECT_WC(a.sent(), 4, IBV_WC_WR_FLUSH_ERR);
    EXPECT_EQ(a.state(), IBV_QPS_SQE);
    ASSERT_EQ(a.post(5, IBV_WR_SEND, {a.sge(0, 8)}), 0);
    EXPECT_WC(a.sent(), 5, IBV_WC_WR_FLUSH_ERR);
    // In the state SQE the receive queue still works.
    ASSERT_EQ(b.post(6, IBV_WR_SEND, {b.sge(0, 8)}), 0);
    EXPECT_WC(a.received(), 2, IBV_WC_SUCCESS);

    ASSERT_EQ(a.post(7, IBV_WR_SEND, {a.sge(0, 8)}), 0);
    a.move_to(IBV_QPS_RTS);
    EXPECT_WC(a.sent(), 7, IBV_WC_WR_FLUSH_ERR);
    ASSERT_EQ(a.post(8, IBV_WR_SEND, {a.sge(0, 8)}), 0);
    EXPECT_WC(a.sent(), 8, IBV_WC_SUCCESS);
    EXPECT_WC(b.received(), 1, IBV_WC_SUCCESS);
}

TEST_F(SoftUc, reads_and_atomics_are_not_posted) {
    EXPECT_EQ(a.post(1, IBV_WR_RDMA_READ, {a.sge(0, 8)}, b.address(0), b.mr->rkey), EINVAL);
    EXPECT_EQ(a.post_atomic(1, IBV_WR_ATOMIC_FETCH_AND_ADD, a.sge(0, 8), b.address(0), b.mr->rkey, 1), EINVAL);
}

TEST_F(SoftUc, transitions_take_what_uc_has) {
    End c(*device, options());
    auto rtr = to_rtr(b.info(), {}, 1, 0, IBV_MTU_1024, QpType::rc);
    EXPECT_THROW(device->modify(c.qp.get(), rtr.attr, rtr.mask), Error);
    rtr = to_rtr(b.info(), {}, 1, 0, IBV_MTU_1024, QpType::uc);
    device->modify(c.qp.get(), rtr.attr, rtr.mask);
    auto rts = to_rts(0, {}, QpType::rc);
    EXPECT_THROW(device->modify(c.qp.get(), rts.attr, rts.mask), Error);
    rts = to_rts(0, {}, QpType::uc);
    device->modify(c.qp.get(), rts.attr, rts.mask);
    EXPECT_EQ(c.state(), IBV_QPS_RTS);
}

TEST_F(SoftUc, two_engines_hold_back_rather_than_lose) {
    const auto domain = device->create_thread_domain();
    End far(*device, {.type = QpType::uc, .domain = domain.get()});
    End near(*device, options());
    connect(near, far, {}, IBV_MTU_4096);
    // The link cannot hold all these messages while the far end does not poll.
    for (std::uint64_t id = 0; id < 8; ++id) {
        ASSERT_EQ(far.post_recv(id, {far.sge(0, 1u << 16)}), 0);
        ASSERT_EQ(near.post(id, IBV_WR_SEND, {near.sge(0, 1u << 16)}), 0);
    }
    std::uint64_t sent = 0;
    for (int i = 0; i < 100; ++i)
        sent += End::poll(near.send_cq.get()).has_value();
    EXPECT_LT(sent, 8u);
    for (std::uint64_t received = 0; received < 8;) {
        sent += End::poll(near.send_cq.get()).has_value();
        if (const auto wc = End::poll(far.recv_cq.get())) {
            EXPECT_EQ(wc->wr_id, received++);
            EXPECT_EQ(wc->status, IBV_WC_SUCCESS);
        }
    }
    while (sent < 8)
        sent += near.sent().has_value();
    EXPECT_EQ(sent, 8u);
}

}  // namespace
}  // namespace pollcore::test
