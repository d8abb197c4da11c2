// Datagrams of the software device: the contents of the receive buffer, who receives a datagram, and which datagrams
// are dropped.
#include <arpa/inet.h>

#include "soft_fixture.hpp"

namespace pollcore::test {
namespace {

constexpr std::uint32_t kQkey = 0x1234;
constexpr std::uint32_t kGrh = 40;

class SoftUd : public SoftPair {
protected:
    static EndOptions options() { return {.type = QpType::ud, .qkey = kQkey}; }
    void expect_nothing(const End& end) { EXPECT_FALSE(end.received()); }
    [[nodiscard]] ibv_grh grh_at(End& end, std::size_t offset) {
        ibv_grh grh;
        std::memcpy(&grh, end.at(offset), sizeof(grh));
        return grh;
    }

    End a{*device, options()};
    End b{*device, options()};
    UniqueAh to_b = a.way_to(b);
};

TEST_F(SoftUd, the_payload_stands_behind_a_grh_and_the_completion_says_who_sent_it) {
    const UniqueAh way =
        a.way_to(b, {.traffic_class = 0x5a, .service_level = 3, .flow_label = 0x9abcd, .hop_limit = 7});
    for (const std::uint32_t length : {0u, 1u, 1000u, 4096u}) {
        std::memset(a.at(0), static_cast<int>(length + 1), 4096);
        std::memset(b.at(0), 0xee, 8192);
        ASSERT_EQ(b.post_recv(1, {b.sge(0, 30), b.sge(30, 4106)}), 0);
        ASSERT_EQ(a.post_datagram(2, {a.sge(0, length)}, way.get(), b.qp->qp_num, kQkey), 0);
        const auto sent = a.sent();
        EXPECT_WC(sent, 2, IBV_WC_SUCCESS);
        EXPECT_EQ(sent->opcode, IBV_WC_SEND);
        const auto received = b.received();
        EXPECT_WC(received, 1, IBV_WC_SUCCESS);
        EXPECT_EQ(received->opcode, IBV_WC_RECV);
        EXPECT_EQ(received->byte_len, kGrh + length);
        EXPECT_EQ(received->wc_flags, static_cast<unsigned>(IBV_WC_GRH));
        EXPECT_EQ(received->src_qp, a.qp->qp_num);
        EXPECT_EQ(received->qp_num, b.qp->qp_num);
        EXPECT_EQ(received->sl, 3);
        EXPECT_EQ(received->slid, 0);
        EXPECT_EQ(std::memcmp(b.at(kGrh), a.at(0), length), 0);
        EXPECT_EQ(*b.at(kGrh + length), std::byte{0xee});
        const ibv_grh grh = grh_at(b, 0);
        EXPECT_EQ(ntohl(grh.version_tclass_flow), 6u << 28 | 0x5au << 20 | 0x9abcdu);
        EXPECT_EQ(ntohs(grh.paylen), (length + 3) / 4 * 4 + 24);
        EXPECT_EQ(grh.next_hdr, 0x1b);
        EXPECT_EQ(grh.hop_limit, 7);
        EXPECT_EQ(std::memcmp(grh.sgid.raw, device->gids()[0].gid.raw, 16), 0);
        EXPECT_EQ(std::memcmp(grh.dgid.raw, device->gids()[0].gid.raw, 16), 0);
    }
}

// Bug found by the simulation: if a queue pair was never destroyed, it kept the parts of its device alive. This test
// shows more under the address sanitizer.
TEST_F(SoftUd, a_way_does_not_lead_by_a_device_that_has_ended_before_its_thread_domain) {
    auto other = open_soft_device({.name = "ended", .fabric = device->fabric_name()});
    auto domain = other->create_thread_domain();
    other.reset();
    const UniqueAh way = a.way_to(b);
    ASSERT_EQ(b.post_recv(1, {b.sge(0, 200)}), 0);
    ASSERT_EQ(a.post_datagram(2, {a.sge(0, 8)}, way.get(), b.qp->qp_num, kQkey), 0);
    EXPECT_WC(b.received(), 1, IBV_WC_SUCCESS);
    domain.reset();
}

TEST_F(SoftUd, an_immediate_and_inline_bytes_arrive) {
    std::memset(a.at(0), 5, 100);
    ASSERT_EQ(b.post_recv(1, {b.sge(0, 200)}), 0);
    ASSERT_EQ(a.post_datagram(2, {a.sge(0, 100)}, to_b.get(), b.qp->qp_num, kQkey, IBV_WR_SEND_WITH_IMM,
                              IBV_SEND_SIGNALED | IBV_SEND_INLINE, 77),
              0);
    std::memset(a.at(0), 6, 100);  // has no effect, because the payload was copied when it was posted
    EXPECT_WC(a.sent(), 2, IBV_WC_SUCCESS);
    const auto received = b.received();
    EXPECT_WC(received, 1, IBV_WC_SUCCESS);
    EXPECT_EQ(received->wc_flags, static_cast<unsigned>(IBV_WC_GRH | IBV_WC_WITH_IMM));
    EXPECT_EQ(received->imm_data, 77u);
    EXPECT_EQ(*b.at(kGrh + 99), std::byte{5});
}

TEST_F(SoftUd, one_queue_pair_sends_to_many_and_each_gets_its_own) {
    const auto domain = device->create_thread_domain();
    // The engine of c is created after the address handle.
    End c(*device, {.type = QpType::ud, .qkey = 9, .domain = domain.get()});
    const auto other = open_soft_device({.name = "other", .clock_ns = clock.reader()});
    End d(*other, options());
    const UniqueAh to_d = a.way_to(d);
    std::uint64_t id = 0;
    for (End* end : {&b, &c, &d}) {
        ASSERT_EQ(end->post_recv(50 + id, {end->sge(0, 100)}), 0);
        *a.at(id) = static_cast<std::byte>(id + 1);
        ASSERT_EQ(a.post_datagram(id, {a.sge(id, 1)}, end == &d ? to_d.get() : to_b.get(), end->qp->qp_num,
                                  end == &c ? 9 : kQkey),
                  0);
        ++id;
    }
    for (std::uint64_t sent = 0; sent < 3; ++sent)
        EXPECT_WC(a.sent(), sent, IBV_WC_SUCCESS);
    id = 0;
    for (End* end : {&b, &c, &d}) {
        EXPECT_WC(end->received(), 50 + id, IBV_WC_SUCCESS);
        EXPECT_EQ(*end->at(kGrh), static_cast<std::byte>(id + 1));
        ++id;
    }
}

TEST_F(SoftUd, the_way_back_is_in_the_grh) {
    const auto other = open_soft_device({.name = "other", .clock_ns = clock.reader()});
    End d(*other, options());
    const UniqueAh to_d = a.way_to(d, {.traffic_class = 0x21, .service_level = 5, .flow_label = 77});
    ASSERT_EQ(d.post_recv(1, {d.sge(0, 100)}), 0);
    ASSERT_EQ(a.post_recv(2, {a.sge(0, 100)}), 0);
    ASSERT_EQ(a.post_datagram(3, {}, to_d.get(), d.qp->qp_num, kQkey), 0);
    EXPECT_WC(a.sent(), 3, IBV_WC_SUCCESS);
    auto received = d.received();
    EXPECT_WC(received, 1, IBV_WC_SUCCESS);
    ibv_grh grh = grh_at(d, 0);
    ibv_ah_attr back = other->way_back(*received, grh);
    EXPECT_EQ(back.sl, 5);
    EXPECT_EQ(back.grh.traffic_class, 0x21);
    EXPECT_EQ(back.grh.flow_label, 77u);
    const UniqueAh to_a(other->create_ah(d.pd.get(), back), {other.get()});
    ASSERT_EQ(d.post_datagram(4, {}, to_a.get(), received->src_qp, kQkey), 0);
    EXPECT_WC(d.sent(), 4, IBV_WC_SUCCESS);
    EXPECT_WC(a.received(), 2, IBV_WC_SUCCESS);
    received->wc_flags = 0;
    EXPECT_THROW((void)other->way_back(*received, grh), Error);
}

TEST_F(SoftUd, what_the_receiver_cannot_use_is_dropped_and_the_sender_is_not_told) {
    const auto send = [&](std::uint32_t qpn, std::uint32_t qkey) {
        ASSERT_EQ(a.post_datagram(1, {a.sge(0, 8)}, to_b.get(), qpn, qkey), 0);
        EXPECT_WC(a.sent(), 1, IBV_WC_SUCCESS);
    };
    send(b.qp->qp_num, kQkey);  // b has no receive yet
    ASSERT_EQ(b.post_recv(2, {b.sge(0, 100)}), 0);
    send(b.qp->qp_num, kQkey + 1);
    send(b.qp->qp_num + 1000, kQkey);  // there is no such queue pair
    send(0xffffff, kQkey);             // there is no such engine
    End connected(*device);
    ASSERT_EQ(connected.post_recv(3, {connected.sge(0, 100)}), 0);
    send(connected.qp->qp_num, kQkey);  // this is not a UD queue pair
    expect_nothing(connected);
    expect_nothing(b);
    device->set_port_up(false);
    send(b.qp->qp_num, kQkey);
    device->set_port_up(true);
    expect_nothing(b);
    send(b.qp->qp_num, kQkey);
    EXPECT_WC(b.received(), 2, IBV_WC_SUCCESS);
    // A datagram may also be sent to a device that is gone.
    std::uint32_t gone = 0;
    UniqueAh there;
    {
        const auto other = open_soft_device({.name = "other", .clock_ns = clock.reader()});
        End d(*other, options());
        gone = d.qp->qp_num;
        there = a.way_to(d);
    }
    ASSERT_EQ(a.post_datagram(1, {a.sge(0, 8)}, there.get(), gone, kQkey), 0);
    EXPECT_WC(a.sent(), 1, IBV_WC_SUCCESS);
}

TEST_F(SoftUd, a_privileged_qkey_stands_for_the_senders_own) {
    End c(*device, {.type = QpType::ud, .qkey = 55});
    ASSERT_EQ(c.post_recv(1, {c.sge(0, 100)}), 0);
    // The datagram carries kQkey, the sender's own.
    ASSERT_EQ(a.post_datagram(2, {}, to_b.get(), c.qp->qp_num, 1u << 31 | 55), 0);
    EXPECT_WC(a.sent(), 2, IBV_WC_SUCCESS);
    expect_nothing(c);
    ASSERT_EQ(b.post_recv(3, {b.sge(0, 100)}), 0);
    ASSERT_EQ(a.post_datagram(4, {}, to_b.get(), b.qp->qp_num, 1u << 31 | 55), 0);
    EXPECT_WC(b.received(), 3, IBV_WC_SUCCESS);
}

TEST_F(SoftUd, a_message_longer_than_a_packet_fails_locally_and_only_the_send_queue) {
    ASSERT_EQ(a.post_datagram(1, {a.sge(0, 4097)}, to_b.get(), b.qp->qp_num, kQkey), 0);
    EXPECT_WC(a.sent(), 1, IBV_WC_LOC_LEN_ERR);
    EXPECT_EQ(a.state(), IBV_QPS_SQE);
    a.move_to(IBV_QPS_RTS);
    ASSERT_EQ(b.post_recv(2, {b.sge(0, 100)}), 0);
    ASSERT_EQ(a.post_datagram(3, {a.sge(0, 8)}, to_b.get(), b.qp->qp_num, kQkey), 0);
    EXPECT_WC(a.sent(), 3, IBV_WC_SUCCESS);
    EXPECT_WC(b.received(), 2, IBV_WC_SUCCESS);
}

TEST_F(SoftUd, a_receive_without_room_for_grh_and_payload_fails_its_owner) {
    ASSERT_EQ(b.post_recv(1, {b.sge(0, kGrh + 7)}), 0);
    ASSERT_EQ(a.post_datagram(2, {a.sge(0, 8)}, to_b.get(), b.qp->qp_num, kQkey), 0);
    EXPECT_WC(a.sent(), 2, IBV_WC_SUCCESS);
    EXPECT_WC(b.received(), 1, IBV_WC_LOC_LEN_ERR);
    EXPECT_EQ(b.state(), IBV_QPS_ERR);
}

TEST_F(SoftUd, an_address_handle_may_go_before_what_was_posted_with_it_is_sent) {
    ASSERT_EQ(b.post_recv(1, {b.sge(0, 100)}), 0);
    ASSERT_EQ(a.post_datagram(2, {a.sge(0, 8)}, to_b.get(), b.qp->qp_num, kQkey), 0);
    to_b.reset();
    EXPECT_WC(a.sent(), 2, IBV_WC_SUCCESS);
    EXPECT_WC(b.received(), 1, IBV_WC_SUCCESS);
}

TEST_F(SoftUd, only_sends_with_an_address_handle_of_the_own_domain_are_posted) {
    EXPECT_EQ(a.post(1, IBV_WR_RDMA_WRITE, {a.sge(0, 8)}, b.address(0), b.mr->rkey), EINVAL);
    EXPECT_EQ(a.post_datagram(1, {a.sge(0, 8)}, nullptr, b.qp->qp_num, kQkey), EINVAL);
    const UniqueAh foreign = b.way_to(b);
    EXPECT_EQ(a.post_datagram(1, {a.sge(0, 8)}, foreign.get(), b.qp->qp_num, kQkey), EINVAL);
}

TEST_F(SoftUd, an_address_handle_is_checked_and_keeps_its_domain_in_use) {
    ibv_ah_attr attr = to_address(b.info(), {}, 1, 0);
    ibv_ah_attr bad = attr;
    bad.is_global = 0;
    EXPECT_THROW((void)device->create_ah(a.pd.get(), bad), Error);
    bad = attr;
    bad.port_num = 2;
    EXPECT_THROW((void)device->create_ah(a.pd.get(), bad), Error);
    bad = attr;
    bad.grh.sgid_index = 1;
    EXPECT_THROW((void)device->create_ah(a.pd.get(), bad), Error);
    ibv_pd* pd = device->create_pd();
    ibv_ah* ah = device->create_ah(pd, attr);
    EXPECT_EQ(device->destroy(pd), EBUSY);
    EXPECT_EQ(device->destroy(ah), 0);
    EXPECT_EQ(device->destroy(pd), 0);
}

TEST_F(SoftUd, transitions_take_what_ud_has) {
    End c(*device, options());
    c.move_to(IBV_QPS_RESET);
    auto init = to_init(1, 0);
    EXPECT_THROW(device->modify(c.qp.get(), init.attr, init.mask), Error);
    init = to_datagram_init(1, 5);
    device->modify(c.qp.get(), init.attr, init.mask);
    EXPECT_EQ(device->query(c.qp.get(), 0).qkey, 5u);
    auto rtr = to_rtr(b.info(), {}, 1, 0, IBV_MTU_1024, QpType::uc);
    EXPECT_THROW(device->modify(c.qp.get(), rtr.attr, rtr.mask), Error);
    c.move_to(IBV_QPS_RTR);
    c.ready_to_send({});
    EXPECT_EQ(c.state(), IBV_QPS_RTS);
}

}  // namespace
}  // namespace pollcore::test
