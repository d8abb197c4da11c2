// The fault plan of the software device.
#include <string>

#include "planned_error.hpp"
#include "soft_fixture.hpp"

namespace pollcore::test {
namespace {

using Kind = SoftFault::Kind;

constexpr int kStatuses = IBV_WC_TM_RNDV_INCOMPLETE + 1;

class SoftFaults : public SoftPair {
protected:
    void SetUp() override { connect(a, b, path); }
    void start_over() {
        for (End* end : {&a, &b}) {
            end->move_to(IBV_QPS_RESET);
            while (end->sent() || end->received()) {
            }
            auto init = to_init(1, kAllAccess);
            device->modify(end->qp.get(), init.attr, init.mask);
        }
        connect(a, b, path);
    }
    int write(std::uint64_t wr_id, unsigned flags = IBV_SEND_SIGNALED) {
        return a.post(wr_id, IBV_WR_RDMA_WRITE, {a.sge(0, 8)}, b.address(0), b.mr->rkey, flags);
    }

    PathAttributes path{.timeout = 10, .retry_count = 3};  // timeout 10 is 4.2 ms
    End a{*device};
    End b{*device};
};

TEST_F(SoftFaults, any_status_of_a_send_comes_in_its_turn_and_is_not_carried_out) {
    for (int status = 1; status < kStatuses; ++status) {
        SCOPED_TRACE(status);
        start_over();
        b.memory[0] = 5;
        device->inject(
            {.kind = Kind::send, .qp_num = a.qp->qp_num, .nth = 2, .status = static_cast<ibv_wc_status>(status)});
        ASSERT_EQ(a.post(1, IBV_WR_RDMA_READ, {a.sge(8, 8)}, b.address(8), b.mr->rkey), 0);
        ASSERT_EQ(write(2, 0), 0);
        ASSERT_EQ(write(3), 0);
        EXPECT_WC(a.sent(), 1, IBV_WC_SUCCESS);
        EXPECT_WC(a.sent(), 2, status);
        EXPECT_WC(a.sent(), 3, IBV_WC_WR_FLUSH_ERR);
        EXPECT_EQ(a.state(), IBV_QPS_ERR);
        EXPECT_EQ(b.memory[0], 5u);
    }
}

TEST_F(SoftFaults, any_status_of_a_receive_comes_with_the_message_and_the_sender_learns_of_it) {
    for (int status = 1; status < kStatuses; ++status) {
        for (const ibv_wr_opcode opcode : {IBV_WR_SEND, IBV_WR_RDMA_WRITE_WITH_IMM}) {
            SCOPED_TRACE(status);
            start_over();
            device->inject({.kind = Kind::receive,
                            .qp_num = b.qp->qp_num,
                            .nth = 2,
                            .status = static_cast<ibv_wc_status>(status)});
            for (std::uint64_t id = 1; id <= 3; ++id)
                ASSERT_EQ(b.post_recv(id, {b.sge(0, 8)}), 0);
            for (std::uint64_t id = 1; id <= 3; ++id)
                ASSERT_EQ(a.post(id, opcode, {a.sge(0, 8)}, b.address(0), b.mr->rkey), 0);
            EXPECT_WC(b.received(), 1, IBV_WC_SUCCESS);
            EXPECT_WC(b.received(), 2, status);
            EXPECT_WC(b.received(), 3, IBV_WC_WR_FLUSH_ERR);
            EXPECT_WC(a.sent(), 1, IBV_WC_SUCCESS);
            EXPECT_WC(a.sent(), 2, IBV_WC_REM_OP_ERR);
            EXPECT_WC(a.sent(), 3, IBV_WC_WR_FLUSH_ERR);
        }
    }
}

TEST_F(SoftFaults, a_lost_packet_is_sent_again_after_the_timeout) {
    a.memory[0] = 42;
    device->inject({.kind = Kind::lose_packet, .qp_num = b.qp->qp_num});
    ASSERT_EQ(write(1), 0);
    device->advance(4'000'000);
    EXPECT_FALSE(End::poll(a.send_cq.get()).has_value());
    EXPECT_EQ(b.memory[0], 0u);
    device->advance(5'000'000);
    EXPECT_WC(a.sent(), 1, IBV_WC_SUCCESS);
    EXPECT_EQ(b.memory[0], 42u);
}

TEST_F(SoftFaults, a_lost_answer_makes_a_duplicate_that_is_carried_out_once) {
    b.memory[0] = 10;
    device->inject({.kind = Kind::lose_packet, .qp_num = a.qp->qp_num});
    ASSERT_EQ(a.post_atomic(1, IBV_WR_ATOMIC_FETCH_AND_ADD, a.sge(0, 8), b.address(0), b.mr->rkey, 1), 0);
    device->advance(6'000'000);
    EXPECT_WC(a.sent(), 1, IBV_WC_SUCCESS);
    EXPECT_EQ(b.memory[0], 11u);
    EXPECT_EQ(a.memory[0], 10u);
}

TEST_F(SoftFaults, when_all_packets_are_lost_the_retries_are_exceeded) {
    device->inject({.kind = Kind::lose_packet, .count = 1000});
    ASSERT_EQ(write(1), 0);
    ASSERT_EQ(write(2), 0);
    device->advance(100'000'000);
    EXPECT_WC(a.sent(), 1, IBV_WC_RETRY_EXC_ERR);
    EXPECT_WC(a.sent(), 2, IBV_WC_WR_FLUSH_ERR);
}

TEST_F(SoftFaults, a_delayed_packet_arrives_when_its_time_has_come_with_all_behind_it) {
    device->inject({.kind = Kind::delay_packet, .qp_num = b.qp->qp_num, .nth = 2, .delay_ns = 3'000'000});
    for (std::uint64_t id = 1; id <= 3; ++id)
        ASSERT_EQ(write(id), 0);
    device->advance(2'900'000);
    EXPECT_WC(a.sent(), 1, IBV_WC_SUCCESS);
    EXPECT_FALSE(a.sent().has_value());
    device->advance(3'100'000);
    EXPECT_WC(a.sent(), 2, IBV_WC_SUCCESS);
    EXPECT_WC(a.sent(), 3, IBV_WC_SUCCESS);
}

TEST_F(SoftFaults, a_packet_that_is_later_than_the_timeout_is_a_duplicate_and_counts_once) {
    ASSERT_EQ(b.post_recv(1, {b.sge(0, 8)}), 0);
    ASSERT_EQ(b.post_recv(2, {b.sge(0, 8)}), 0);
    device->inject({.kind = Kind::delay_packet, .qp_num = b.qp->qp_num, .delay_ns = 10'000'000});
    ASSERT_EQ(a.post(3, IBV_WR_SEND, {a.sge(0, 8)}), 0);
    device->advance(9'900'000);
    EXPECT_FALSE(a.sent().has_value());
    device->advance(30'000'000);
    EXPECT_WC(a.sent(), 3, IBV_WC_SUCCESS);
    EXPECT_WC(b.received(), 1, IBV_WC_SUCCESS);
    EXPECT_FALSE(b.received().has_value());
}

// The two ends belong to two threads, and each end is polled only by its own thread. A packet waits until its
// destination is polled.
class SoftFaultsAcrossThreads : public SoftFaults {
protected:
    const std::unique_ptr<ThreadDomain> near = device->create_thread_domain();
    const std::unique_ptr<ThreadDomain> far = device->create_thread_domain();
    End x{*device, {.domain = near.get()}};
    std::optional<End> y{std::in_place, *device, EndOptions{.domain = far.get()}};
};

// Bug found by the simulation: a packet that was delivered late counted as lost for as long as its receiver was not
// polled.
TEST_F(SoftFaultsAcrossThreads, a_late_packet_that_nobody_polls_for_is_not_lost) {
    connect(x, *y, path);
    device->inject({.kind = Kind::delay_packet, .qp_num = y->qp->qp_num, .delay_ns = 1'000});
    ASSERT_EQ(x.post(1, IBV_WR_RDMA_WRITE, {x.sge(0, 8)}, y->address(0), y->mr->rkey), 0);
    EXPECT_FALSE(x.sent().has_value());
    EXPECT_FALSE(y->sent().has_value());  // finds the packet late; this end is not polled again for a long time
    for (int timeout = 0; timeout < 20; ++timeout) {
        *clock.now += 5'000'000;
        ASSERT_FALSE(x.sent().has_value()) << timeout;
    }
    EXPECT_FALSE(y->sent().has_value());
    EXPECT_WC(x.sent(), 1, IBV_WC_SUCCESS);
}

// Bug found by the simulation: a peer waited for ever for a thread that did not poll its CQs, because the thread's QP
// could not be destroyed.
TEST_F(SoftFaultsAcrossThreads, what_waits_very_long_for_a_thread_that_does_not_poll_is_lost) {
    connect(x, *y, path);
    ASSERT_EQ(x.post(1, IBV_WR_RDMA_WRITE, {x.sge(0, 8)}, y->address(0), y->mr->rkey), 0);
    EXPECT_FALSE(x.sent().has_value());
    const auto polled_until = [&](std::uint64_t now, std::uint64_t step) {
        std::optional<ibv_wc> ended;
        for (; *clock.now < now && !ended; *clock.now += step) {
            ended = x.sent();
        }
        return ended;
    };
    EXPECT_FALSE(polled_until(10'000'000'000, 1'000'000'000).has_value());
    EXPECT_WC(polled_until(14'000'000'000, 100'000'000), 1, IBV_WC_RETRY_EXC_ERR);
}

// Bug found by the simulation: a peer waited for ever for an engine that nobody polled any more, because the engine's
// last QP was gone.
TEST_F(SoftFaultsAcrossThreads, what_is_sent_to_a_thread_without_qps_is_lost) {
    connect(x, *y, path);
    ASSERT_EQ(x.post(1, IBV_WR_SEND, {x.sge(0, 8)}), 0);
    EXPECT_FALSE(x.sent().has_value());
    y.reset();
    for (int timeout = 0; timeout < 4; ++timeout) {
        EXPECT_FALSE(x.sent().has_value());
        *clock.now += 5'000'000;
    }
    EXPECT_WC(x.sent(), 1, IBV_WC_RETRY_EXC_ERR);
}

// Bug found by the simulation: the responder counted a duplicate as a further request in flight, which was one more
// than it serves.
TEST_F(SoftFaultsAcrossThreads, a_duplicate_of_an_atomic_leaves_room_for_the_next_one) {
    path.max_rd_atomic = path.max_dest_rd_atomic = 1;
    connect(x, *y, path);
    device->inject({.kind = Kind::delay_packet, .qp_num = x.qp->qp_num, .delay_ns = 5'000'000});
    const auto add = [&](std::uint64_t wr_id) {
        return x.post_atomic(wr_id, IBV_WR_ATOMIC_FETCH_AND_ADD, x.sge(0, 8), y->address(0), y->mr->rkey, 1);
    };
    ASSERT_EQ(add(1), 0);
    EXPECT_FALSE(x.sent().has_value());
    EXPECT_FALSE(y->sent().has_value());  // carries the atomic out
    EXPECT_FALSE(x.sent().has_value());   // the answer is delayed
    *clock.now += 4'500'000;
    EXPECT_FALSE(x.sent().has_value());  // sends the atomic again
    *clock.now += 600'000;
    EXPECT_WC(x.sent(), 1, IBV_WC_SUCCESS);
    ASSERT_EQ(add(2), 0);
    EXPECT_FALSE(x.sent().has_value());
    EXPECT_FALSE(y->sent().has_value());  // gets the duplicate and the new atomic at once
    EXPECT_WC(x.sent(), 2, IBV_WC_SUCCESS);
    EXPECT_EQ(*reinterpret_cast<std::uint64_t*>(y->at(0)), 2u);
}

// The time that a fixed exchange takes if a fifth of the packets is lost and a fifth is late.
std::uint64_t time_of_exchange(std::uint64_t seed) {
    ManualClock clock;
    const auto device = open_soft_device(
        {.clock_ns = clock.reader(),
         .faults = {{.kind = Kind::lose_packet, .count = 1'000'000, .probability = 0.2},
                    {.kind = Kind::delay_packet, .count = 1'000'000, .probability = 0.2, .delay_ns = 70'000}},
         .fault_seed = seed});
    End a(*device), b(*device);
    connect(a, b, {.timeout = 8, .retry_count = 7});
    std::uint64_t now = 0;
    for (std::uint64_t id = 0; id < 200; ++id) {
        EXPECT_EQ(b.post_recv(id, {b.sge(0, 8)}), 0);
        a.memory[0] = id;
        EXPECT_EQ(a.post(id, IBV_WR_SEND, {a.sge(0, 8)}), 0);
        std::optional<ibv_wc> sent;
        while (!sent && now < 10'000'000'000) {
            device->advance(now += 10'000);
            sent = End::poll(a.send_cq.get());
        }
        const auto received = End::poll(b.recv_cq.get());
        if (!sent || !received || sent->status != IBV_WC_SUCCESS || received->status != IBV_WC_SUCCESS ||
            sent->wr_id != id || received->wr_id != id || b.memory[0] != id) {
            ADD_FAILURE() << "seed " << seed << ", message " << id;
            return 0;
        }
    }
    return now;
}

TEST(SoftFaultSeeds, everything_arrives_once_and_in_order_and_a_seed_repeats_itself) {
    std::vector<std::uint64_t> times;
    for (std::uint64_t seed = 1; seed <= 8; ++seed) {
        times.push_back(time_of_exchange(seed));
        EXPECT_EQ(time_of_exchange(seed), times.back()) << "seed " << seed;
    }
    std::sort(times.begin(), times.end());
    EXPECT_NE(times.front(), times.back()) << "seeds that make no difference";
}

TEST_F(SoftFaults, a_post_is_refused_in_the_middle_of_its_chain) {
    device->inject({.kind = Kind::post_send, .nth = 2, .error = EFAULT});
    ibv_sge sge = a.sge(0, 8);
    ibv_send_wr wrs[3]{};
    for (std::uint64_t i = 0; i < 3; ++i) {
        wrs[i].wr_id = i;
        wrs[i].opcode = IBV_WR_RDMA_WRITE;
        wrs[i].send_flags = IBV_SEND_SIGNALED;
        wrs[i].sg_list = &sge;
        wrs[i].num_sge = 1;
        wrs[i].wr.rdma = {b.address(0), b.mr->rkey};
        wrs[i].next = i < 2 ? &wrs[i + 1] : nullptr;
    }
    ibv_send_wr* bad = nullptr;
    EXPECT_EQ(ibv_post_send(a.qp.get(), wrs, &bad), EFAULT);
    EXPECT_EQ(bad, &wrs[1]);
    EXPECT_WC(a.sent(), 0, IBV_WC_SUCCESS);
    EXPECT_FALSE(a.sent().has_value());
    EXPECT_EQ(write(4), 0);
    device->inject({.kind = Kind::post_recv, .qp_num = b.qp->qp_num, .error = ENOMEM});
    EXPECT_EQ(a.post_recv(1, {a.sge(0, 8)}), 0);
    EXPECT_EQ(b.post_recv(1, {b.sge(0, 8)}), ENOMEM);
    EXPECT_EQ(b.post_recv(2, {b.sge(0, 8)}), 0);
}

TEST_F(SoftFaults, a_planned_overrun_is_an_overrun) {
    device->inject({.kind = Kind::overrun, .qp_num = a.qp->qp_num, .nth = 2});
    ASSERT_EQ(write(1), 0);
    ASSERT_EQ(write(2), 0);
    device->advance(1000);
    ibv_wc wc{};
    EXPECT_LT(ibv_poll_cq(a.send_cq.get(), 1, &wc), 0);
    const auto event = device->next_async_event();
    ASSERT_TRUE(event.has_value());
    EXPECT_EQ(event->event_type, IBV_EVENT_CQ_ERR);
    EXPECT_EQ(event->element.cq, a.send_cq.get());
    device->acknowledge(*event);
    EXPECT_EQ(a.state(), IBV_QPS_ERR);
}

TEST_F(SoftFaults, calls_of_the_device_fail_at_their_turn_with_their_errno) {
    device->inject({.kind = Kind::create_pd, .error = ENOMEM});
    testing::expect_planned_error(ENOMEM, [&] { (void)device->create_pd(); });
    device->inject({.kind = Kind::create_cq, .nth = 2, .error = EMFILE});
    { const UniqueCq cq{device->create_cq({.cqe = 4}), {device.get()}}; }
    testing::expect_planned_error(EMFILE, [&] { (void)device->create_cq({.cqe = 4}); });
    device->inject({.kind = Kind::create_qp});
    QpOptions options{.pd = a.pd.get(), .send_cq = a.send_cq.get(), .recv_cq = a.send_cq.get(), .cap = {1, 1, 1, 1, 0}};
    testing::expect_planned_error(EIO, [&] { (void)device->create_qp(options); });
    { const UniqueQp qp{device->create_qp(options), {device.get()}}; }
    device->inject({.kind = Kind::register_memory, .error = ENOSPC});
    testing::expect_planned_error(ENOSPC,
                                  [&] { (void)device->register_memory(a.pd.get(), a.at(0), 8, a.address(0), 0); });
    // Only the planned transition of the planned QP fails.
    device->inject({.kind = Kind::modify, .qp_num = a.qp->qp_num, .state = IBV_QPS_RESET, .error = ETIMEDOUT});
    a.move_to(IBV_QPS_ERR);
    b.move_to(IBV_QPS_RESET);
    testing::expect_planned_error(ETIMEDOUT, [&] { a.move_to(IBV_QPS_RESET); });
    EXPECT_EQ(a.state(), IBV_QPS_ERR);
    a.move_to(IBV_QPS_RESET);
    device->inject({.kind = Kind::destroy_qp, .qp_num = a.qp->qp_num, .error = EBUSY});
    EXPECT_EQ(device->destroy(a.qp.get()), EBUSY);
}

TEST_F(SoftFaults, that_were_cleared_do_not_happen) {
    device->inject({.kind = Kind::send});
    device->inject({.kind = Kind::lose_packet, .count = 1000});
    device->clear_faults();
    ASSERT_EQ(write(1), 0);
    EXPECT_WC(a.sent(), 1, IBV_WC_SUCCESS);
}

TEST_F(SoftFaults, that_make_no_sense_are_refused) {
    EXPECT_THROW(device->inject({.nth = 0}), Error);
    EXPECT_THROW(device->inject({.count = 0}), Error);
    EXPECT_THROW(device->inject({.probability = 0}), Error);
    EXPECT_THROW(device->inject({.probability = 1.5}), Error);
    EXPECT_THROW(device->inject({.kind = Kind::send, .status = IBV_WC_SUCCESS}), Error);
    EXPECT_THROW(device->inject({.kind = Kind::delay_packet}), Error);
}

TEST_F(SoftFaults, rnr_naks_are_counted_on_both_sides) {
    start_over();
    const RnrCounts before = device->rnr_counts().value();
    PathAttributes twice = path;
    twice.rnr_retry = 2;
    twice.min_rnr_timer = 1;
    End c(*device), d(*device);
    connect(c, d, twice);
    ASSERT_EQ(c.post(1, IBV_WR_SEND, {c.sge(0, 8)}), 0);
    device->advance(1'000'000);
    EXPECT_WC(c.sent(), 1, IBV_WC_RNR_RETRY_EXC_ERR);
    EXPECT_EQ(device->rnr_counts(c.qp.get()), (RnrCounts{.received = 3, .sent = 0}));
    EXPECT_EQ(device->rnr_counts(d.qp.get()), (RnrCounts{.received = 0, .sent = 3}));
    EXPECT_EQ(device->rnr_counts(a.qp.get()), (RnrCounts{}));
    EXPECT_EQ(device->rnr_counts(), (RnrCounts{before.received + 3, before.sent + 3}));
}

}  // namespace
}  // namespace pollcore::test
