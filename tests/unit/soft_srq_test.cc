// Shared receive queues of the software device: which QP takes a receive, what completes, and which events are raised.
#include <array>

#include "soft_fixture.hpp"

namespace pollcore::test {
namespace {

class SoftSrq : public SoftPair {
protected:
    static constexpr std::uint32_t kDepth = 8;
    static constexpr std::size_t kPairs = 3;
    /// A message of this length has more packets than the device takes off a link in one move.
    static constexpr std::uint32_t kLong = 256 * 1024;

    void SetUp() override {
        for (std::size_t i = 0; i < kPairs; ++i) {
            from.push_back(std::make_unique<End>(*device));
            to.push_back(std::make_unique<End>(*device, EndOptions{.srq = srq.get()}));
            connect(*from[i], *to[i], {.rnr_retry = 7, .min_rnr_timer = 1});
        }
    }

    [[nodiscard]] std::uint64_t address(std::size_t at) { return reinterpret_cast<std::uint64_t>(memory.data() + at); }
    int post(std::uint64_t wr_id, std::uint32_t length = 1024) {
        ibv_sge sge{address(wr_id * 8192), length, mr->lkey};
        ibv_recv_wr wr{};
        wr.wr_id = wr_id;
        wr.sg_list = &sge;
        wr.num_sge = 1;
        ibv_recv_wr* bad = nullptr;
        return ibv_post_srq_recv(srq.get(), &wr, &bad);
    }
    void arm(std::uint32_t limit) {
        ibv_srq_attr attr{};
        attr.srq_limit = limit;
        device->modify(srq.get(), attr, IBV_SRQ_LIMIT);
    }
    void expect_received(End& at, std::uint64_t wr_id, std::uint32_t length) {
        const auto wc = at.received();
        EXPECT_WC(wc, wr_id, IBV_WC_SUCCESS);
        EXPECT_EQ(wc->byte_len, length);
        EXPECT_EQ(wc->qp_num, at.qp->qp_num);
    }
    /// The events since the last call, each with the QP or the SRQ that it names.
    std::vector<std::pair<ibv_event_type, void*>> events() {
        std::vector<std::pair<ibv_event_type, void*>> all;
        while (const auto event = device->next_async_event()) {
            if (event->event_type != IBV_EVENT_COMM_EST)
                // `element` is a union, so this reads the pointer to an SRQ as well
                all.emplace_back(event->event_type, event->element.qp);
            device->acknowledge(*event);
        }
        return all;
    }
    using Events = std::vector<std::pair<ibv_event_type, void*>>;

    std::vector<std::byte> memory = std::vector<std::byte>(64 * 8192);
    UniquePd pd{device->create_pd(), {device.get()}};
    UniqueMr mr{device->register_memory(pd.get(), memory.data(), memory.size(), address(0), kAllAccess),
                {device.get()}};
    SrqOptions options{.pd = pd.get(), .depth = kDepth, .sges_max = 2};
    UniqueSrq srq{device->create_srq(options), {device.get()}};
    std::vector<std::unique_ptr<End>> from;
    std::vector<std::unique_ptr<End>> to;
};

TEST_F(SoftSrq, receives_are_taken_in_post_order_by_whichever_qp_gets_a_message) {
    for (std::uint64_t id = 0; id < 6; ++id)
        ASSERT_EQ(post(id), 0);
    for (std::uint64_t id = 0; id < 6; ++id) {
        const std::size_t who = (id * 2) % kPairs;
        *from[who]->at(0) = static_cast<std::byte>(40 + id);
        ASSERT_EQ(from[who]->post(100 + id, IBV_WR_SEND, {from[who]->sge(0, 100)}), 0);
        expect_received(*to[who], id, 100);
        EXPECT_EQ(memory[id * 8192], static_cast<std::byte>(40 + id));
        EXPECT_WC(from[who]->sent(), 100 + id, IBV_WC_SUCCESS);
    }
}

TEST_F(SoftSrq, a_write_with_immediate_takes_a_receive_and_leaves_its_buffer) {
    ASSERT_EQ(post(1), 0);
    End& b = *to[1];
    ASSERT_EQ(from[1]->post(2, IBV_WR_RDMA_WRITE_WITH_IMM, {from[1]->sge(0, 3000)}, b.address(0), b.mr->rkey,
                            IBV_SEND_SIGNALED, 77),
              0);
    const auto wc = b.received();
    EXPECT_WC(wc, 1, IBV_WC_SUCCESS);
    EXPECT_EQ(wc->opcode, IBV_WC_RECV_RDMA_WITH_IMM);
    EXPECT_EQ(wc->imm_data, 77u);
    EXPECT_EQ(wc->byte_len, 3000u);
    EXPECT_EQ(memory[8192], std::byte{0});
}

TEST_F(SoftSrq, receives_complete_in_the_order_the_messages_end_not_in_post_order) {
    ASSERT_EQ(post(0, kLong), 0);
    ASSERT_EQ(post(20), 0);
    ASSERT_EQ(from[0]->post(10, IBV_WR_SEND, {from[0]->sge(0, kLong)}), 0);
    ASSERT_EQ(from[1]->post(11, IBV_WR_SEND, {from[1]->sge(0, 8)}), 0);
    std::vector<std::uint64_t> order;
    for (int i = 0; i < 1000 && order.size() < 2; ++i) {
        for (const auto& end : to) {
            if (const auto wc = End::poll(end->recv_cq.get()))
                order.push_back(wc->wr_id);
        }
    }
    EXPECT_EQ(order, (std::vector<std::uint64_t>{20, 0}));
}

TEST_F(SoftSrq, an_empty_srq_answers_not_ready_until_a_receive_is_posted) {
    ASSERT_EQ(from[0]->post(1, IBV_WR_SEND, {from[0]->sge(0, 8)}), 0);
    ASSERT_EQ(from[2]->post(2, IBV_WR_SEND, {from[2]->sge(0, 8)}), 0);
    device->advance(*clock.now += 50'000'000);
    EXPECT_FALSE(End::poll(from[0]->send_cq.get()).has_value());
    EXPECT_FALSE(End::poll(from[2]->send_cq.get()).has_value());
    ASSERT_EQ(post(5), 0);
    ASSERT_EQ(post(6), 0);
    device->advance(*clock.now += 50'000'000);
    EXPECT_WC(from[0]->sent(), 1, IBV_WC_SUCCESS);
    EXPECT_WC(from[2]->sent(), 2, IBV_WC_SUCCESS);
    EXPECT_TRUE(to[0]->received().has_value());
    EXPECT_TRUE(to[2]->received().has_value());
}

TEST_F(SoftSrq, a_slot_is_free_when_a_completion_was_polled_whichever_came_first) {
    for (std::uint64_t id = 0; id < kDepth; ++id)
        ASSERT_EQ(post(id), 0);
    EXPECT_EQ(post(20), ENOMEM);
    ASSERT_EQ(from[1]->post(30, IBV_WR_SEND, {from[1]->sge(0, 8)}), 0);
    EXPECT_WC(from[1]->sent(), 30, IBV_WC_SUCCESS);
    EXPECT_EQ(post(20), ENOMEM) << "the completion stands in the CQ";
    expect_received(*to[1], 0, 8);
    EXPECT_EQ(post(20), 0);
    EXPECT_EQ(post(21), ENOMEM);
}

TEST_F(SoftSrq, what_is_wrong_with_a_receive_is_said_by_the_post) {
    std::array<ibv_sge, 3> sges{};
    ibv_recv_wr bad_one{};
    bad_one.wr_id = 2;
    bad_one.sg_list = sges.data();
    bad_one.num_sge = 3;
    ibv_recv_wr good{};
    good.wr_id = 1;
    good.next = &bad_one;
    ibv_recv_wr* bad = nullptr;
    EXPECT_EQ(ibv_post_srq_recv(srq.get(), &good, &bad), EINVAL);
    EXPECT_EQ(bad, &bad_one);
    ASSERT_EQ(from[0]->post(9, IBV_WR_SEND, {}), 0);
    expect_received(*to[0], 1, 0);
    EXPECT_EQ(to[0]->post_recv(3, {}), EINVAL) << "a QP with an SRQ has no receive queue of its own";
}

TEST_F(SoftSrq, the_keys_of_a_receive_belong_to_the_pd_of_the_srq) {
    ibv_sge sge = to[0]->sge(0, 64);  // the key belongs to the PD of the QP
    ibv_recv_wr wr{};
    wr.wr_id = 1;
    wr.sg_list = &sge;
    wr.num_sge = 1;
    ibv_recv_wr* bad = nullptr;
    ASSERT_EQ(ibv_post_srq_recv(srq.get(), &wr, &bad), 0);
    ASSERT_EQ(from[0]->post(2, IBV_WR_SEND, {from[0]->sge(0, 8)}), 0);
    EXPECT_WC(to[0]->received(), 1, IBV_WC_LOC_PROT_ERR);
    EXPECT_WC(from[0]->sent(), 2, IBV_WC_REM_OP_ERR);
}

TEST_F(SoftSrq, an_error_of_one_qp_takes_its_own_receive_only) {
    ASSERT_EQ(post(0, 16), 0);
    ASSERT_EQ(post(1), 0);
    ASSERT_EQ(post(2), 0);
    // The message is too long for the first receive.
    ASSERT_EQ(from[0]->post(10, IBV_WR_SEND, {from[0]->sge(0, 64)}), 0);
    EXPECT_WC(to[0]->received(), 0, IBV_WC_LOC_LEN_ERR);
    EXPECT_FALSE(to[0]->received().has_value());
    EXPECT_EQ(events(), (Events{{IBV_EVENT_QP_LAST_WQE_REACHED, to[0]->qp.get()}}));
    for (const std::size_t who : {1u, 2u}) {
        ASSERT_EQ(from[who]->post(11, IBV_WR_SEND, {from[who]->sge(0, 64)}), 0);
        expect_received(*to[who], who, 64);
    }
    EXPECT_TRUE(events().empty());
}

TEST_F(SoftSrq, a_qp_that_goes_to_error_flushes_what_it_had_taken_and_says_that_this_was_the_last) {
    ASSERT_EQ(post(0, kLong), 0);
    ASSERT_EQ(post(20), 0);
    ASSERT_EQ(from[0]->post(10, IBV_WR_SEND, {from[0]->sge(0, kLong)}), 0);
    EXPECT_FALSE(End::poll(to[0]->recv_cq.get()).has_value()) << "one move: the message is half there";
    from[0]->move_to(IBV_QPS_ERR);
    EXPECT_WC(from[0]->sent(), 10, IBV_WC_WR_FLUSH_ERR);
    EXPECT_TRUE(events().empty()) << "the sender has no SRQ";

    to[0]->move_to(IBV_QPS_ERR);
    EXPECT_TRUE(events().empty()) << "nothing happens before the device moves";
    EXPECT_WC(to[0]->received(), 0, IBV_WC_WR_FLUSH_ERR);
    EXPECT_FALSE(to[0]->received().has_value()) << "the other receive serves other QPs";
    EXPECT_EQ(events(), (Events{{IBV_EVENT_QP_LAST_WQE_REACHED, to[0]->qp.get()}}));
    to[0]->move_to(IBV_QPS_RESET);
    auto init = to_init(device->port(), 0);
    device->modify(to[0]->qp.get(), init.attr, init.mask);
    to[0]->move_to(IBV_QPS_ERR);
    (void)to[0]->received();
    EXPECT_EQ(events(), (Events{{IBV_EVENT_QP_LAST_WQE_REACHED, to[0]->qp.get()}})) << "once each time";
}

TEST_F(SoftSrq, an_armed_limit_raises_one_event_when_fewer_are_left) {
    for (std::uint64_t id = 0; id < 5; ++id)
        ASSERT_EQ(post(id), 0);
    arm(4);
    EXPECT_EQ(device->query(srq.get()).srq_limit, 4u);
    const auto one_message = [&](std::uint64_t id) {
        ASSERT_EQ(from[0]->post(id, IBV_WR_SEND, {from[0]->sge(0, 8)}), 0);
        expect_received(*to[0], id, 8);
    };
    one_message(0);
    EXPECT_TRUE(events().empty()) << "four are left";
    one_message(1);
    EXPECT_EQ(events(), (Events{{IBV_EVENT_SRQ_LIMIT_REACHED, srq.get()}}));
    EXPECT_EQ(device->query(srq.get()).srq_limit, 0u) << "to be armed again";
    one_message(2);
    EXPECT_TRUE(events().empty());
    arm(3);
    EXPECT_EQ(events(), (Events{{IBV_EVENT_SRQ_LIMIT_REACHED, srq.get()}})) << "two are left already";
    arm(2);
    arm(0);
    one_message(3);
    EXPECT_TRUE(events().empty()) << "disarmed";
    EXPECT_THROW(arm(kDepth + 1), Error);
}

TEST_F(SoftSrq, it_stays_while_qps_use_it_and_while_an_event_of_it_is_not_acknowledged) {
    EXPECT_EQ(device->destroy(srq.get()), EBUSY);
    EXPECT_EQ(device->destroy(pd.get()), EBUSY);
    ASSERT_EQ(post(0), 0);
    to.clear();
    arm(2);
    const auto event = device->next_async_event();
    ASSERT_TRUE(event.has_value());
    EXPECT_EQ(device->destroy(srq.get()), EBUSY);
    device->acknowledge(*event);
    EXPECT_EQ(device->destroy(srq.release()), 0) << "what is left in it does not hold it";
}

TEST_F(SoftSrq, a_reset_qp_gives_its_slots_of_the_srq_back) {
    for (std::uint64_t id = 0; id < kDepth; ++id)
        ASSERT_EQ(post(id), 0);
    ASSERT_EQ(from[0]->post(1, IBV_WR_SEND, {from[0]->sge(0, 8)}), 0);
    EXPECT_WC(from[0]->sent(), 1, IBV_WC_SUCCESS);
    EXPECT_EQ(post(20), ENOMEM);
    to[0]->move_to(IBV_QPS_RESET);
    EXPECT_EQ(post(20), 0);
    expect_received(*to[0], 0, 8);  // polling this completion does not give the place back a second time
    EXPECT_EQ(post(21), ENOMEM);
}

TEST_F(SoftSrq, limits_of_the_device_are_checked_before_it_is_made) {
    const auto make = [&](std::uint32_t depth, std::uint32_t sges) {
        SrqOptions wanted{.pd = pd.get(), .depth = depth, .sges_max = sges};
        return UniqueSrq(device->create_srq(wanted), {device.get()});
    };
    EXPECT_THROW((void)make(0, 1), Error);
    EXPECT_THROW((void)make(device->limits().srq_depth_max + 1, 1), Error);
    EXPECT_THROW((void)make(1, device->limits().srq_sges_max + 1), Error);
    EXPECT_NO_THROW((void)make(1, 0));
    std::vector<UniqueSrq> all;
    for (std::uint32_t i = 1; i < device->limits().srqs_max; ++i)
        all.push_back(make(1, 1));
    EXPECT_THROW((void)make(1, 1), Error);
    const auto domain = device->create_thread_domain();
    EXPECT_THROW(End(*device, {.domain = domain.get(), .srq = srq.get()}), Error) << "an SRQ of another thread domain";
}

}  // namespace
}  // namespace pollcore::test
