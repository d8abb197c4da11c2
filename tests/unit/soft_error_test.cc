// Failures on the software device, and their effects at both ends of a connection.
#include "soft_fixture.hpp"

namespace pollcore::test {
namespace {

class SoftError : public SoftPair {
protected:
    void SetUp() override { connect(a, b); }
    /// Expects that both queues complete these work requests as flushed, in the order of posting, and that nothing else
    /// completes.
    void expect_flushes(End& end, std::vector<std::uint64_t> sends, std::vector<std::uint64_t> receives) {
        for (const auto id : sends)
            EXPECT_WC(end.sent(), id, IBV_WC_WR_FLUSH_ERR);
        EXPECT_FALSE(end.sent().has_value());
        for (const auto id : receives)
            EXPECT_WC(end.received(), id, IBV_WC_WR_FLUSH_ERR);
        EXPECT_FALSE(end.received().has_value());
    }
    std::vector<ibv_event_type> events() {
        std::vector<ibv_event_type> types;
        while (const auto event = device->next_async_event()) {
            types.push_back(event->event_type);
            device->acknowledge(*event);
        }
        return types;
    }
    End a{*device};
    End b{*device};
};

using Events = std::vector<ibv_event_type>;

TEST_F(SoftError, writes_posted_before_the_qp_is_set_to_error_flush_and_leave_the_peer_unchanged) {
    for (std::uint64_t i = 0; i < 10; ++i) {
        a.memory[i] = 1;
        const unsigned flags = i % 2 == 0 ? unsigned{IBV_SEND_SIGNALED} : 0u;
        ASSERT_EQ(a.post(i, IBV_WR_RDMA_WRITE, {a.sge(i * 8, 8)}, b.address(i * 8), b.mr->rkey, flags), 0);
    }
    ASSERT_EQ(a.post_recv(50, {a.sge(0, 8)}), 0);
    a.move_to(IBV_QPS_ERR);
    device->advance(1'000'000'000);
    expect_flushes(a, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, {50});
    for (std::uint64_t i = 0; i < 10; ++i)
        EXPECT_EQ(b.memory[i], 0u);
    EXPECT_EQ(b.state(), IBV_QPS_RTS);
}

TEST_F(SoftError, work_posted_to_a_qp_in_error_flushes_too) {
    a.move_to(IBV_QPS_ERR);
    ASSERT_EQ(a.post_recv(1, {a.sge(0, 8)}), 0);
    ASSERT_EQ(a.post(2, IBV_WR_SEND, {a.sge(0, 8)}), 0);
    expect_flushes(a, {2}, {1});
}

TEST_F(SoftError, a_bad_lkey_fails_in_its_turn_and_flushes_what_follows) {
    ASSERT_EQ(a.post(1, IBV_WR_RDMA_WRITE, {a.sge(0, 5000)}, b.address(0), b.mr->rkey), 0);
    ASSERT_EQ(a.post(2, IBV_WR_RDMA_WRITE, {{a.address(0), 8, 0x123456}}, b.address(0), b.mr->rkey), 0);
    ASSERT_EQ(a.post(3, IBV_WR_RDMA_WRITE, {a.sge(0, 8)}, b.address(0), b.mr->rkey, 0), 0);
    ASSERT_EQ(a.post_recv(4, {a.sge(0, 8)}), 0);
    EXPECT_WC(a.sent(), 1, IBV_WC_SUCCESS);
    const auto failed = a.sent();
    EXPECT_WC(failed, 2, IBV_WC_LOC_PROT_ERR);
    EXPECT_EQ(failed->qp_num, a.qp->qp_num);
    expect_flushes(a, {3}, {4});
    EXPECT_EQ(b.state(), IBV_QPS_RTS);
}

TEST_F(SoftError, local_keys_are_checked_for_bounds_pd_and_local_write) {
    UniquePd other_pd{device->create_pd(), {device.get()}};
    UniqueMr other{device->register_memory(other_pd.get(), a.memory.data(), 64, a.address(0), kAllAccess),
                   {device.get()}};
    UniqueMr constant{device->register_memory(a.pd.get(), a.memory.data(), 64, a.address(0), 0), {device.get()}};
    const struct {
        const char* what;
        ibv_wr_opcode opcode;
        ibv_sge sge;
        ibv_wc_status expected;
    } cases[] = {
        {"behind the end", IBV_WR_RDMA_WRITE, {a.address((1u << 20) - 4), 8, a.mr->lkey}, IBV_WC_LOC_PROT_ERR},
        {"before the start", IBV_WR_RDMA_WRITE, {a.address(0) - 1, 8, a.mr->lkey}, IBV_WC_LOC_PROT_ERR},
        {"other PD", IBV_WR_RDMA_WRITE, {a.address(0), 8, other->lkey}, IBV_WC_LOC_PROT_ERR},
        {"read into constant", IBV_WR_RDMA_READ, {a.address(0), 8, constant->lkey}, IBV_WC_LOC_PROT_ERR},
        {"write from constant", IBV_WR_RDMA_WRITE, {a.address(0), 8, constant->lkey}, IBV_WC_SUCCESS},
        {"nothing needs no key", IBV_WR_RDMA_WRITE, {0, 0, 0}, IBV_WC_SUCCESS},
    };
    for (const auto& test : cases) {
        SCOPED_TRACE(test.what);
        End d(*device);
        // The keys in the cases belong to a's PD. So each case uses a's QP, which is reset first.
        a.move_to(IBV_QPS_RESET);
        auto init = to_init(1, kAllAccess);
        device->modify(a.qp.get(), init.attr, init.mask);
        a.ready_to_receive(d.info(), {});
        d.ready_to_receive(a.info(), {});
        a.ready_to_send({});
        ASSERT_EQ(a.post(1, test.opcode, {test.sge}, d.address(0), d.mr->rkey), 0);
        EXPECT_WC(a.sent(), 1, test.expected);
    }
}

TEST_F(SoftError, remote_keys_are_checked_for_existence_bounds_access_and_pd) {
    UniqueMr readable{device->register_memory(b.pd.get(), b.memory.data(), 64, b.address(0), IBV_ACCESS_REMOTE_READ),
                      {device.get()}};
    UniqueMr writable{device->register_memory(b.pd.get(), b.memory.data(), 64, b.address(0),
                                              IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE),
                      {device.get()}};
    const struct {
        const char* what;
        ibv_wr_opcode opcode;
        std::uint64_t address;
        std::uint32_t rkey;
        std::uint32_t length;
        ibv_wc_status expected;
    } cases[] = {
        {"no such key", IBV_WR_RDMA_WRITE, b.address(0), 0xffffff, 8, IBV_WC_REM_ACCESS_ERR},
        {"key 0", IBV_WR_RDMA_WRITE, b.address(0), 0, 8, IBV_WC_REM_ACCESS_ERR},
        {"behind the end", IBV_WR_RDMA_WRITE, b.address(60), writable->rkey, 8, IBV_WC_REM_ACCESS_ERR},
        {"wraps around", IBV_WR_RDMA_WRITE, ~0ull - 3, writable->rkey, 8, IBV_WC_REM_ACCESS_ERR},
        {"write to readable", IBV_WR_RDMA_WRITE, b.address(0), readable->rkey, 8, IBV_WC_REM_ACCESS_ERR},
        {"read of writable", IBV_WR_RDMA_READ, b.address(0), writable->rkey, 8, IBV_WC_REM_ACCESS_ERR},
        {"atomic on writable", IBV_WR_ATOMIC_FETCH_AND_ADD, b.address(0), writable->rkey, 8, IBV_WC_REM_ACCESS_ERR},
        {"other PD", IBV_WR_RDMA_WRITE, a.address(0), a.mr->rkey, 8, IBV_WC_REM_ACCESS_ERR},
        {"zero length needs no key", IBV_WR_RDMA_WRITE, 0, 0, 0, IBV_WC_SUCCESS},
        {"nor does a read", IBV_WR_RDMA_READ, 0, 0, 0, IBV_WC_SUCCESS},
        {"misaligned atomic", IBV_WR_ATOMIC_FETCH_AND_ADD, b.address(4), b.mr->rkey, 8, IBV_WC_REM_INV_REQ_ERR},
    };
    for (const auto& test : cases) {
        SCOPED_TRACE(test.what);
        for (End* end : {&a, &b}) {
            end->move_to(IBV_QPS_RESET);
            auto init = to_init(1, kAllAccess);
            device->modify(end->qp.get(), init.attr, init.mask);
        }
        connect(a, b);
        (void)events();
        b.memory[0] = b.memory[7] = 0;
        a.memory[0] = 99;
        ASSERT_EQ(b.post_recv(8, {b.sge(0, 8)}), 0);
        if (test.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
            ASSERT_EQ(a.post_atomic(1, test.opcode, a.sge(0, 8), test.address, test.rkey, 1), 0);
        } else {
            ASSERT_EQ(a.post(1, test.opcode, {a.sge(0, test.length)}, test.address, test.rkey), 0);
        }
        EXPECT_WC(a.sent(), 1, test.expected);
        EXPECT_EQ(b.memory[0], 0u);
        EXPECT_EQ(b.memory[7], 0u);
        if (test.expected == IBV_WC_SUCCESS)
            continue;
        expect_flushes(b, {}, {8});
        EXPECT_EQ(a.state(), IBV_QPS_ERR);
        EXPECT_EQ(b.state(), IBV_QPS_ERR);
        EXPECT_EQ(events(),
                  (Events{test.expected == IBV_WC_REM_ACCESS_ERR ? IBV_EVENT_QP_ACCESS_ERR : IBV_EVENT_QP_REQ_ERR}));
    }
}

TEST_F(SoftError, a_qp_that_does_not_permit_remote_access_refuses_the_request) {
    for (const ibv_wr_opcode opcode : {IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ, IBV_WR_ATOMIC_CMP_AND_SWP}) {
        End c(*device), d(*device, {.qp_access = 0});
        connect(c, d);
        if (opcode == IBV_WR_ATOMIC_CMP_AND_SWP) {
            ASSERT_EQ(c.post_atomic(1, opcode, c.sge(0, 8), d.address(0), d.mr->rkey, 1), 0);
        } else {
            ASSERT_EQ(c.post(1, opcode, {c.sge(0, 8)}, d.address(0), d.mr->rkey), 0);
        }
        EXPECT_WC(c.sent(), 1, IBV_WC_REM_INV_REQ_ERR);
        EXPECT_EQ(d.state(), IBV_QPS_ERR);
    }
}

TEST_F(SoftError, a_receive_that_is_too_short_fails_both_sides) {
    ASSERT_EQ(b.post_recv(1, {b.sge(0, 1500)}), 0);
    ASSERT_EQ(b.post_recv(2, {b.sge(0, 1500)}), 0);
    ASSERT_EQ(a.post(3, IBV_WR_SEND, {a.sge(0, 1501)}), 0);
    ASSERT_EQ(a.post(4, IBV_WR_SEND, {a.sge(0, 1)}), 0);
    EXPECT_WC(b.received(), 1, IBV_WC_LOC_LEN_ERR);
    EXPECT_WC(a.sent(), 3, IBV_WC_REM_INV_REQ_ERR);
    expect_flushes(a, {4}, {});
    expect_flushes(b, {}, {2});
}

TEST_F(SoftError, a_receive_into_memory_that_is_not_its_own_fails_both_sides) {
    ASSERT_EQ(b.post_recv(1, {{b.address(0), 8, 0x777}}), 0);
    ASSERT_EQ(a.post(2, IBV_WR_SEND, {a.sge(0, 8)}), 0);
    EXPECT_WC(b.received(), 1, IBV_WC_LOC_PROT_ERR);
    EXPECT_WC(a.sent(), 2, IBV_WC_REM_OP_ERR);
}

TEST_F(SoftError, a_send_without_a_receive_waits_for_the_rnr_timer_and_goes_through_when_one_is_posted) {
    a.memory[0] = 6;
    device->advance(1000);
    ASSERT_EQ(a.post(1, IBV_WR_SEND, {a.sge(0, 8)}), 0);
    ASSERT_EQ(a.post(2, IBV_WR_RDMA_WRITE, {a.sge(0, 8)}, b.address(512), b.mr->rkey), 0);
    device->advance(1000);
    ASSERT_EQ(b.post_recv(3, {b.sge(0, 8)}), 0);
    device->advance(1000 + 640'000 - 1);  // the default timer, 12, is 0.64 ms; the NAK came at time 1000
    EXPECT_FALSE(End::poll(b.recv_cq.get()).has_value());
    EXPECT_EQ(b.memory[64], 0u);
    device->advance(1000 + 640'000);
    EXPECT_WC(b.received(), 3, IBV_WC_SUCCESS);
    EXPECT_WC(a.sent(), 1, IBV_WC_SUCCESS);
    EXPECT_WC(a.sent(), 2, IBV_WC_SUCCESS);
    EXPECT_EQ(b.memory[0], 6u);
    EXPECT_EQ(b.memory[64], 6u);
}

TEST_F(SoftError, rnr_retries_are_counted) {
    for (const std::uint8_t retries : {std::uint8_t{0}, std::uint8_t{3}, std::uint8_t{7}}) {
        SCOPED_TRACE(int{retries});
        End c(*device), d(*device);
        PathAttributes path;
        path.rnr_retry = retries;
        path.min_rnr_timer = 1;  // 10 us
        connect(c, d, path);
        const std::uint64_t start = *clock.now + 1'000'000;
        device->advance(start);
        ASSERT_EQ(c.post(1, IBV_WR_SEND, {c.sge(0, 8)}), 0);
        ASSERT_EQ(c.post(2, IBV_WR_SEND, {c.sge(0, 8)}), 0);
        if (retries > 0) {
            device->advance(start + retries * 10'000ull - 1);
            EXPECT_EQ(c.state(), IBV_QPS_RTS);
        }
        *clock.now = start + retries * 10'000ull;
        device->advance(*clock.now);
        if (retries < 7) {
            EXPECT_WC(c.sent(), 1, IBV_WC_RNR_RETRY_EXC_ERR);
            expect_flushes(c, {2}, {});
            EXPECT_EQ(d.state(), IBV_QPS_RTS);
        } else {
            *clock.now += 1'000'000'000;
            device->advance(*clock.now);
            EXPECT_EQ(c.state(), IBV_QPS_RTS);
            ASSERT_EQ(d.post_recv(3, {d.sge(0, 8)}), 0);
            *clock.now += 10'000;
            device->advance(*clock.now);
            EXPECT_WC(c.sent(), 1, IBV_WC_SUCCESS);
        }
        *clock.now += 1'000'000;
    }
}

TEST_F(SoftError, a_write_with_immediate_that_meets_no_receive_goes_on_where_it_stopped) {
    for (std::size_t i = 0; i < 1000; ++i)
        a.memory[i] = i;
    ASSERT_EQ(a.post(1, IBV_WR_RDMA_WRITE_WITH_IMM, {a.sge(0, 8000)}, b.address(0), b.mr->rkey, IBV_SEND_SIGNALED, 5),
              0);
    device->advance(10);
    ASSERT_EQ(b.post_recv(2, {}), 0);
    device->advance(10'000'000);
    const auto received = b.received();
    EXPECT_WC(received, 2, IBV_WC_SUCCESS);
    EXPECT_EQ(received->byte_len, 8000u);
    EXPECT_WC(a.sent(), 1, IBV_WC_SUCCESS);
    for (std::size_t i = 0; i < 1000; ++i)
        ASSERT_EQ(b.memory[i], i);
}

TEST_F(SoftError, a_peer_that_is_gone_exceeds_the_retries_at_their_time) {
    PathAttributes path;
    path.timeout = 10;  // 4.194304 ms
    path.retry_count = 2;
    End c(*device);
    {
        End d(*device);
        connect(c, d, path);
    }
    const std::uint64_t timeout = 4096ull << 10;
    device->advance(100);
    ASSERT_EQ(c.post(1, IBV_WR_RDMA_WRITE, {c.sge(0, 8)}, 0x1000, 1), 0);
    device->advance(100 + 3 * timeout - 1);
    EXPECT_EQ(c.state(), IBV_QPS_RTS);
    device->advance(100 + 3 * timeout);
    EXPECT_WC(c.sent(), 1, IBV_WC_RETRY_EXC_ERR);
}

TEST_F(SoftError, timeout_0_waits_for_ever) {
    PathAttributes path;
    path.timeout = 0;
    End c(*device);
    {
        End d(*device);
        connect(c, d, path);
    }
    ASSERT_EQ(c.post(1, IBV_WR_RDMA_WRITE, {c.sge(0, 8)}, 0x1000, 1), 0);
    device->advance(3'600'000'000'000);
    EXPECT_EQ(c.state(), IBV_QPS_RTS);
    EXPECT_FALSE(c.sent().has_value());
}

TEST_F(SoftError, packets_lost_while_the_port_was_down_are_sent_again) {
    b.memory[0] = 10;
    device->set_port_up(false);
    EXPECT_EQ(device->query_port().state, IBV_PORT_DOWN);
    ASSERT_EQ(a.post(1, IBV_WR_RDMA_WRITE, {a.sge(64, 5000)}, b.address(64), b.mr->rkey), 0);
    ASSERT_EQ(a.post_atomic(2, IBV_WR_ATOMIC_FETCH_AND_ADD, a.sge(0, 8), b.address(0), b.mr->rkey, 1), 0);
    ASSERT_EQ(a.post(3, IBV_WR_RDMA_READ, {a.sge(65536, 5000)}, b.address(64), b.mr->rkey), 0);
    device->advance(1'000'000);
    device->set_port_up(true);
    EXPECT_EQ(events(), (Events{IBV_EVENT_PORT_ERR, IBV_EVENT_PORT_ACTIVE}));
    device->advance(200'000'000);
    for (std::uint64_t i = 1; i <= 3; ++i)
        EXPECT_WC(a.sent(), i, IBV_WC_SUCCESS);
    EXPECT_EQ(a.memory[0], 10u);
    EXPECT_EQ(b.memory[0], 11u);
}

TEST_F(SoftError, an_atomic_whose_answer_was_lost_is_answered_again_and_not_done_twice) {
    // There are two devices. After the responder has executed the request, the requester's port goes down, so that the
    // answer is lost.
    const auto other = open_soft_device({.name = "soft1", .clock_ns = clock.reader()});
    End c(*device), d(*other);
    connect(c, d);
    d.memory[0] = 10;
    ASSERT_EQ(c.post_atomic(1, IBV_WR_ATOMIC_FETCH_AND_ADD, c.sge(0, 8), d.address(0), d.mr->rkey, 1), 0);
    ASSERT_EQ(c.post(2, IBV_WR_RDMA_READ, {c.sge(64, 3000)}, d.address(0), d.mr->rkey), 0);
    EXPECT_FALSE(End::poll(c.send_cq.get()).has_value());
    other->advance(10);
    EXPECT_EQ(d.memory[0], 11u);
    device->set_port_up(false);
    // The device takes the answers off the link, and they are lost.
    EXPECT_FALSE(End::poll(c.send_cq.get()).has_value());
    device->set_port_up(true);
    for (int i = 1; i < 10; ++i) {
        *clock.now += 100'000'000;
        device->advance(*clock.now);
        other->advance(*clock.now);
    }
    EXPECT_WC(c.sent(), 1, IBV_WC_SUCCESS);
    EXPECT_WC(c.sent(), 2, IBV_WC_SUCCESS);
    EXPECT_EQ(c.memory[0], 10u);
    EXPECT_EQ(d.memory[0], 11u);
}

TEST_F(SoftError, a_peer_that_does_not_poll_is_not_a_lost_packet) {
    const auto other = open_soft_device({.name = "soft1", .clock_ns = clock.reader()});
    End c(*device), d(*other);
    connect(c, d);
    ASSERT_EQ(c.post(1, IBV_WR_RDMA_WRITE, {c.sge(0, 8)}, d.address(0), d.mr->rkey), 0);
    device->advance(9'000'000'000);
    EXPECT_EQ(c.state(), IBV_QPS_RTS);
    other->advance(9'000'000'000);
    EXPECT_WC(c.sent(), 1, IBV_WC_SUCCESS);
}

TEST_F(SoftError, a_qp_that_was_reset_forgets_its_work_and_its_memory_is_not_read_later) {
    a.memory[0] = 1;
    ASSERT_EQ(a.post(1, IBV_WR_RDMA_WRITE, {a.sge(0, 8)}, b.address(0), b.mr->rkey), 0);
    ASSERT_EQ(a.post_recv(2, {a.sge(0, 8)}), 0);
    a.move_to(IBV_QPS_RESET);
    device->advance(1'000'000);
    EXPECT_FALSE(a.sent().has_value());
    EXPECT_FALSE(a.received().has_value());
    EXPECT_EQ(b.memory[0], 0u);
}

TEST_F(SoftError, completions_stay_in_the_cq_after_reset_and_destroy) {
    ASSERT_EQ(a.post(1, IBV_WR_RDMA_WRITE, {a.sge(0, 8)}, b.address(0), b.mr->rkey), 0);
    device->advance(10);
    const std::uint32_t qp_num = a.qp->qp_num;
    a.qp.reset();
    const auto wc = a.sent();
    EXPECT_WC(wc, 1, IBV_WC_SUCCESS);
    EXPECT_EQ(wc->qp_num, qp_num);
}

TEST_F(SoftError, deregistered_memory_is_out_of_reach_at_once) {
    const std::uint32_t rkey = b.mr->rkey;
    ASSERT_EQ(a.post(1, IBV_WR_RDMA_WRITE, {a.sge(0, 8)}, b.address(0), rkey), 0);
    a.memory[0] = 1;
    b.mr.reset();
    EXPECT_WC(a.sent(), 1, IBV_WC_REM_ACCESS_ERR);
    EXPECT_EQ(b.memory[0], 0u);
    // The region's slot in the table is used again, with another key.
    b.mr = {device->register_memory(b.pd.get(), b.memory.data(), 64, b.address(0), kAllAccess), {device.get()}};
    EXPECT_NE(b.mr->rkey, rkey);
}

TEST_F(SoftError, an_overrun_kills_the_cq_once_and_its_qps) {
    End c(*device, {.cqe = 4}), d(*device);
    connect(c, d);
    ASSERT_EQ(d.post_recv(1, {d.sge(0, 8)}), 0);
    for (std::uint64_t i = 0; i < 8; ++i)
        ASSERT_EQ(c.post(i, IBV_WR_RDMA_WRITE, {c.sge(0, 8)}, d.address(0), d.mr->rkey), 0);
    device->advance(1000);
    ibv_wc wc{};
    EXPECT_EQ(ibv_poll_cq(c.send_cq.get(), 1, &wc), -1);
    EXPECT_EQ(c.state(), IBV_QPS_ERR);
    EXPECT_EQ(d.state(), IBV_QPS_RTS);
    EXPECT_EQ(events(), (Events{IBV_EVENT_CQ_ERR, IBV_EVENT_QP_FATAL}));
    EXPECT_EQ(ibv_poll_cq(c.send_cq.get(), 1, &wc), -1);
    ASSERT_EQ(c.post(9, IBV_WR_RDMA_WRITE, {c.sge(0, 8)}, d.address(0), d.mr->rkey), 0);
    EXPECT_EQ(ibv_poll_cq(c.send_cq.get(), 1, &wc), -1);
    EXPECT_TRUE(events().empty());
}

TEST_F(SoftError, an_atomic_without_room_for_its_answer_is_a_local_length_error) {
    ASSERT_EQ(a.post_atomic(1, IBV_WR_ATOMIC_FETCH_AND_ADD, a.sge(0, 4), b.address(0), b.mr->rkey, 1), 0);
    EXPECT_WC(a.sent(), 1, IBV_WC_LOC_LEN_ERR);
    EXPECT_EQ(b.memory[0], 0u);
}

TEST_F(SoftError, a_read_where_none_are_allowed_is_a_local_operation_error) {
    End c(*device), d(*device);
    PathAttributes path;
    path.max_rd_atomic = 0;
    connect(c, d, path);
    ASSERT_EQ(c.post(1, IBV_WR_RDMA_READ, {c.sge(0, 8)}, d.address(0), d.mr->rkey), 0);
    EXPECT_WC(c.sent(), 1, IBV_WC_LOC_QP_OP_ERR);
}

TEST_F(SoftError, more_reads_than_the_responder_serves_are_an_invalid_request) {
    const auto other = open_soft_device({.name = "soft1", .clock_ns = clock.reader()});
    End c(*device), d(*other);
    PathAttributes one, many;
    one.max_dest_rd_atomic = 1;
    many.max_rd_atomic = 8;
    c.ready_to_receive(d.info(), many);
    d.ready_to_receive(c.info(), one);
    c.ready_to_send(many);
    for (std::uint64_t i = 0; i < 4; ++i)
        ASSERT_EQ(c.post(i, IBV_WR_RDMA_READ, {c.sge(0, 8)}, d.address(0), d.mr->rkey), 0);
    EXPECT_FALSE(End::poll(c.send_cq.get()).has_value());
    other->advance(10);
    EXPECT_WC(c.sent(), 0, IBV_WC_SUCCESS);
    EXPECT_WC(c.sent(), 1, IBV_WC_REM_INV_REQ_ERR);
    expect_flushes(c, {2, 3}, {});
}

}  // namespace
}  // namespace pollcore::test
