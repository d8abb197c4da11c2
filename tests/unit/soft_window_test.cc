// Memory windows of the software device: which access a bind gives, to whom and until when, and which requests are
// refused.
#include "soft_window_fixture.hpp"

namespace pollcore::test {
namespace {

TEST_F(SoftWindow, a_bound_window_opens_its_range_and_nothing_else) {
    const struct {
        const char* what;
        ibv_wr_opcode opcode;
        std::uint64_t offset;
        std::uint32_t length;
        int access;
        ibv_wc_status expected;
    } cases[] = {
        {"its first bytes", IBV_WR_RDMA_WRITE, kBegin, 8, kWrite, IBV_WC_SUCCESS},
        {"its last bytes", IBV_WR_RDMA_WRITE, kBegin + kLength - 8, 8, kWrite, IBV_WC_SUCCESS},
        {"all of it", IBV_WR_RDMA_READ, kBegin, kLength, kRead, IBV_WC_SUCCESS},
        {"an atomic", IBV_WR_ATOMIC_FETCH_AND_ADD, kBegin + 8, 8, kAtomic, IBV_WC_SUCCESS},
        {"before it", IBV_WR_RDMA_WRITE, kBegin - 1, 8, kWrite, IBV_WC_REM_ACCESS_ERR},
        {"behind it", IBV_WR_RDMA_WRITE, kBegin + kLength - 7, 8, kWrite, IBV_WC_REM_ACCESS_ERR},
        {"more than it", IBV_WR_RDMA_READ, kBegin, kLength + 1, kRead, IBV_WC_REM_ACCESS_ERR},
        {"a read of what may be written", IBV_WR_RDMA_READ, kBegin, 8, kWrite | kAtomic, IBV_WC_REM_ACCESS_ERR},
        {"a write of what may be read", IBV_WR_RDMA_WRITE, kBegin, 8, kRead | kAtomic, IBV_WC_REM_ACCESS_ERR},
        {"an atomic without the right", IBV_WR_ATOMIC_FETCH_AND_ADD, kBegin, 8, kRead | kWrite, IBV_WC_REM_ACCESS_ERR},
    };
    for (const ibv_mw_type type : {IBV_MW_TYPE_1, IBV_MW_TYPE_2}) {
        for (const auto& test : cases) {
            SCOPED_TRACE(test.what);
            WindowPair pair(*device, type);
            ASSERT_EQ(pair.bind({.access = test.access}), IBV_WC_SUCCESS);
            EXPECT_EQ(pair.use(test.opcode, pair.at(test.offset), pair.key, test.length), test.expected);
        }
    }
}

TEST_F(SoftWindow, what_is_written_through_a_window_is_in_its_region) {
    WindowPair pair(*device);
    ASSERT_EQ(pair.bind(), IBV_WC_SUCCESS);
    pair.a.memory[0] = 0x1234;
    EXPECT_EQ(pair.use(IBV_WR_RDMA_WRITE, pair.at(kBegin + 16), pair.key), IBV_WC_SUCCESS);
    EXPECT_EQ(pair.b.memory[(kBegin + 16) / 8], 0x1234u);
    EXPECT_EQ(pair.use(IBV_WR_ATOMIC_FETCH_AND_ADD, pair.at(kBegin + 16), pair.key), IBV_WC_SUCCESS);
    EXPECT_EQ(pair.b.memory[(kBegin + 16) / 8], 0x1235u);
}

TEST_F(SoftWindow, a_write_of_several_packets_goes_through_it) {
    WindowPair pair(*device);
    ASSERT_EQ(pair.bind({.length = 100'000}), IBV_WC_SUCCESS);
    std::fill(pair.a.memory.begin(), pair.a.memory.end(), 7);
    EXPECT_EQ(pair.use(IBV_WR_RDMA_WRITE, pair.at(kBegin), pair.key, 100'000), IBV_WC_SUCCESS);
    EXPECT_EQ(pair.b.memory[kBegin / 8 + 12'499], 7u);
    EXPECT_EQ(pair.use(IBV_WR_RDMA_READ, pair.at(kBegin), pair.key, 100'000), IBV_WC_SUCCESS);
}

TEST_F(SoftWindow, a_key_from_before_the_bind_or_of_a_window_that_was_never_bound_opens_nothing) {
    for (const ibv_mw_type type : {IBV_MW_TYPE_1, IBV_MW_TYPE_2}) {
        WindowPair bound(*device, type);
        ASSERT_EQ(bound.bind(), IBV_WC_SUCCESS);
        EXPECT_EQ(bound.use(IBV_WR_RDMA_WRITE, bound.at(kBegin), bound.first_key), IBV_WC_REM_ACCESS_ERR);
        WindowPair unbound(*device, type);
        EXPECT_EQ(unbound.use(IBV_WR_RDMA_WRITE, unbound.at(kBegin), unbound.first_key), IBV_WC_REM_ACCESS_ERR);
    }
}

TEST_F(SoftWindow, the_key_of_a_window_is_no_lkey) {
    WindowPair pair(*device);
    ASSERT_EQ(pair.bind(), IBV_WC_SUCCESS);
    ASSERT_EQ(pair.b.post(1, IBV_WR_RDMA_WRITE, {{pair.at(kBegin), 8, pair.key}}, pair.a.address(0), pair.a.mr->rkey),
              0);
    EXPECT_WC(pair.b.sent(), 1, IBV_WC_LOC_PROT_ERR);
}

TEST_F(SoftWindow, a_zero_based_window_is_addressed_from_its_beginning) {
    const struct {
        std::uint64_t address;
        ibv_wc_status expected;
    } cases[] = {{0, IBV_WC_SUCCESS}, {kLength - 8, IBV_WC_SUCCESS}, {kLength - 7, IBV_WC_REM_ACCESS_ERR}};
    for (const auto& test : cases) {
        WindowPair pair(*device);
        ASSERT_EQ(pair.bind({.access = kWrite | IBV_ACCESS_ZERO_BASED}), IBV_WC_SUCCESS);
        pair.a.memory[0] = 5;
        EXPECT_EQ(pair.use(IBV_WR_RDMA_WRITE, test.address, pair.key), test.expected);
        if (test.expected == IBV_WC_SUCCESS) {
            EXPECT_EQ(pair.b.memory[(kBegin + test.address) / 8], 5u);
        }
    }
}

TEST_F(SoftWindow, type_2_is_for_the_qp_that_it_was_bound_on_and_type_1_for_all_of_its_pd) {
    for (const ibv_mw_type type : {IBV_MW_TYPE_1, IBV_MW_TYPE_2}) {
        WindowPair pair(*device, type);
        End other_qp(*device), its_user(*device);
        enter_pd(other_qp, pair.b);
        connect(other_qp, its_user);
        ASSERT_EQ(pair.bind(), IBV_WC_SUCCESS);
        EXPECT_EQ(WindowPair::use(its_user, IBV_WR_RDMA_WRITE, pair.at(kBegin), pair.key),
                  type == IBV_MW_TYPE_1 ? IBV_WC_SUCCESS : IBV_WC_REM_ACCESS_ERR);
        End other_pd(*device), stranger(*device);
        connect(other_pd, stranger);
        EXPECT_EQ(WindowPair::use(stranger, IBV_WR_RDMA_WRITE, pair.at(kBegin), pair.key), IBV_WC_REM_ACCESS_ERR);
        EXPECT_EQ(pair.use(IBV_WR_RDMA_WRITE, pair.at(kBegin), pair.key), IBV_WC_SUCCESS);
    }
}

TEST_F(SoftWindow, a_bind_that_the_specification_forbids_fails_and_breaks_its_qp) {
    const int kBindable = kAllAccess | IBV_ACCESS_MW_BIND;
    const struct {
        const char* what;
        ibv_mw_type type;
        int mr_access;
        Range range;
    } cases[] = {
        {"a region without the right to bind", IBV_MW_TYPE_2, kAllAccess, {}},
        {"a region without the right to bind, type 1", IBV_MW_TYPE_1, kAllAccess, {}},
        {"beyond the region", IBV_MW_TYPE_2, kBindable, {.offset = (1u << 20) - kLength + 1}},
        {"before the region", IBV_MW_TYPE_2, kBindable, {.offset = ~std::uint64_t{0}}},
        {"longer than the region", IBV_MW_TYPE_2, kBindable, {.offset = 0, .length = (1u << 20) + 1}},
        {"a length that wraps", IBV_MW_TYPE_2, kBindable, {.length = ~std::uint64_t{0} - 100}},
        {"of no length", IBV_MW_TYPE_2, kBindable, {.length = 0}},
        {"remote write without local write", IBV_MW_TYPE_2, IBV_ACCESS_MW_BIND | kRead, {.access = kWrite}},
        {"remote atomic without local write", IBV_MW_TYPE_1, IBV_ACCESS_MW_BIND | kRead, {.access = kAtomic}},
        {"local write for a window", IBV_MW_TYPE_2, kBindable, {.access = IBV_ACCESS_LOCAL_WRITE | kRead}},
        {"a zero-based window of type 1", IBV_MW_TYPE_1, kBindable, {.access = kRead | IBV_ACCESS_ZERO_BASED}},
    };
    for (const auto& test : cases) {
        SCOPED_TRACE(test.what);
        WindowPair pair(*device, test.type, test.mr_access);
        EXPECT_EQ(pair.bind(test.range), IBV_WC_MW_BIND_ERR);
        EXPECT_EQ(pair.b.state(), IBV_QPS_ERR);
        pair.b.mr.reset();  // succeeds, because no window is bound to the region
    }
    WindowPair plain(*device, IBV_MW_TYPE_2, IBV_ACCESS_MW_BIND);
    EXPECT_EQ(plain.bind({.access = kRead}), IBV_WC_SUCCESS) << "reading needs no right of the region's own";
}

TEST_F(SoftWindow, a_bind_with_what_is_of_another_pd_fails) {
    {
        WindowPair pair(*device);
        UniqueMr foreign{device->register_memory(pair.a.pd.get(), pair.b.at(0), 1 << 20, pair.at(0),
                                                 kAllAccess | IBV_ACCESS_MW_BIND),
                         {device.get()}};
        ASSERT_EQ(post_bind(pair.b, 1, pair.window.get(), pair.key, {}, foreign.get()), 0);
        EXPECT_WC(pair.b.sent(), 1, IBV_WC_MW_BIND_ERR);
    }
    WindowPair pair(*device);
    UniqueMw foreign{device->create_mw(pair.a.pd.get(), IBV_MW_TYPE_2), {device.get()}};
    ASSERT_EQ(post_bind(pair.b, 1, foreign.get(), ibv_inc_rkey(foreign->rkey), {}, pair.b.mr.get()), 0);
    EXPECT_WC(pair.b.sent(), 1, IBV_WC_MW_BIND_ERR);
}

TEST_F(SoftWindow, a_type_2_window_is_bound_once_and_again_after_its_invalidation) {
    WindowPair pair(*device);
    std::uint32_t key = pair.key;
    for (int round = 0; round < 600; ++round) {  // more rounds than a window has different keys
        ASSERT_EQ(post_bind(pair.b, 1, pair.window.get(), key, {}, pair.b.mr.get()), 0);
        EXPECT_WC(pair.b.sent(), 1, IBV_WC_SUCCESS);
        pair.window->rkey = key;
        ASSERT_EQ(pair.use(IBV_WR_RDMA_WRITE, pair.at(kBegin), key), IBV_WC_SUCCESS);
        ASSERT_EQ(post_key(pair.b, 2, IBV_WR_LOCAL_INV, key), 0);
        const auto ended = pair.b.sent();
        EXPECT_WC(ended, 2, IBV_WC_SUCCESS);
        EXPECT_EQ(ended->opcode, IBV_WC_LOCAL_INV);
        key = ibv_inc_rkey(key);
    }
    EXPECT_EQ(pair.use(IBV_WR_RDMA_WRITE, pair.at(kBegin), pair.window->rkey), IBV_WC_REM_ACCESS_ERR);

    WindowPair twice(*device);
    ASSERT_EQ(twice.bind(), IBV_WC_SUCCESS);
    ASSERT_EQ(post_bind(twice.b, 3, twice.window.get(), ibv_inc_rkey(twice.key), {}, twice.b.mr.get()), 0);
    EXPECT_WC(twice.b.sent(), 3, IBV_WC_MW_BIND_ERR);
}

TEST_F(SoftWindow, a_bind_keeps_the_upper_bits_of_the_key) {
    WindowPair pair(*device);
    ASSERT_EQ(post_bind(pair.b, 1, pair.window.get(), pair.key + 256, {}, pair.b.mr.get()), 0);
    EXPECT_WC(pair.b.sent(), 1, IBV_WC_MW_BIND_ERR);
}

TEST_F(SoftWindow, type_1_moves_from_bind_to_bind_and_an_empty_one_closes_it) {
    WindowPair pair(*device, IBV_MW_TYPE_1);
    ASSERT_EQ(pair.bind({.offset = 0, .length = 64}), IBV_WC_SUCCESS);
    pair.key = ibv_inc_rkey(pair.key);
    ASSERT_EQ(pair.bind({.offset = 64, .length = 64}), IBV_WC_SUCCESS);
    EXPECT_EQ(pair.use(IBV_WR_RDMA_WRITE, pair.at(64), pair.key), IBV_WC_SUCCESS);
    pair.key = ibv_inc_rkey(pair.key);
    ASSERT_EQ(bind_type_1(pair.b, 1, pair.window.get(), {.offset = 0, .length = 0}, nullptr), 0);
    EXPECT_WC(pair.b.sent(), 1, IBV_WC_SUCCESS);
    EXPECT_EQ(pair.use(IBV_WR_RDMA_WRITE, pair.at(64), pair.key), IBV_WC_REM_ACCESS_ERR);
    pair.b.mr.reset();
}

TEST_F(SoftWindow, only_a_bound_type_2_window_of_the_same_qp_can_be_invalidated) {
    const auto expect_refused = [&](WindowPair& pair, std::uint32_t key) {
        ASSERT_EQ(post_key(pair.b, 1, IBV_WR_LOCAL_INV, key), 0);
        EXPECT_WC(pair.b.sent(), 1, IBV_WC_MW_BIND_ERR);
        EXPECT_EQ(pair.b.state(), IBV_QPS_ERR);
    };
    {
        SCOPED_TRACE("not bound");
        WindowPair pair(*device);
        expect_refused(pair, pair.first_key);
    }
    {
        SCOPED_TRACE("another key");
        WindowPair pair(*device);
        ASSERT_EQ(pair.bind(), IBV_WC_SUCCESS);
        expect_refused(pair, pair.first_key);
    }
    {
        SCOPED_TRACE("type 1");
        WindowPair pair(*device, IBV_MW_TYPE_1);
        ASSERT_EQ(pair.bind(), IBV_WC_SUCCESS);
        expect_refused(pair, pair.key);
    }
    {
        SCOPED_TRACE("a region");
        WindowPair pair(*device);
        expect_refused(pair, pair.b.mr->rkey);
    }
    {
        SCOPED_TRACE("bound on another QP");
        WindowPair pair(*device), other(*device);
        ASSERT_EQ(pair.bind(), IBV_WC_SUCCESS);
        expect_refused(other, pair.key);
        EXPECT_EQ(pair.use(IBV_WR_RDMA_WRITE, pair.at(kBegin), pair.key), IBV_WC_SUCCESS);
    }
    {
        SCOPED_TRACE("of nobody");
        WindowPair pair(*device);
        expect_refused(pair, 0xffffffff);
    }
}

TEST_F(SoftWindow, a_send_with_invalidate_ends_the_binding_and_tells_the_receiver) {
    WindowPair pair(*device);
    ASSERT_EQ(pair.bind(), IBV_WC_SUCCESS);
    ASSERT_EQ(pair.use(IBV_WR_RDMA_WRITE, pair.at(kBegin), pair.key), IBV_WC_SUCCESS);
    ASSERT_EQ(pair.b.post_recv(1, {pair.b.sge(0, 64)}), 0);
    ASSERT_EQ(post_key(pair.a, 2, IBV_WR_SEND_WITH_INV, pair.key), 0);
    const auto sent = pair.a.sent();
    EXPECT_WC(sent, 2, IBV_WC_SUCCESS);
    EXPECT_EQ(sent->opcode, IBV_WC_SEND);
    const auto received = pair.b.received();
    EXPECT_WC(received, 1, IBV_WC_SUCCESS);
    EXPECT_EQ(received->wc_flags, unsigned{IBV_WC_WITH_INV});
    EXPECT_EQ(received->invalidated_rkey, pair.key);
    EXPECT_EQ(received->byte_len, 16u);
    EXPECT_EQ(received->opcode, IBV_WC_RECV);
    pair.b.mr.reset();  // succeeds, because no window is bound to the region any more
    EXPECT_EQ(pair.use(IBV_WR_RDMA_WRITE, pair.at(kBegin), pair.key), IBV_WC_REM_ACCESS_ERR);
}

TEST_F(SoftWindow, a_send_that_invalidates_what_is_not_bound_fails_at_its_receiver) {
    WindowPair pair(*device);
    ASSERT_EQ(pair.b.post_recv(1, {pair.b.sge(0, 64)}), 0);
    ASSERT_EQ(pair.b.post_recv(2, {pair.b.sge(0, 64)}), 0);
    ASSERT_EQ(post_key(pair.a, 3, IBV_WR_SEND_WITH_INV, pair.key), 0);
    EXPECT_WC(pair.a.sent(), 3, IBV_WC_SUCCESS);
    EXPECT_WC(pair.b.received(), 1, IBV_WC_REM_INV_REQ_ERR);
    EXPECT_WC(pair.b.received(), 2, IBV_WC_WR_FLUSH_ERR);
    EXPECT_EQ(pair.b.state(), IBV_QPS_ERR);
}

TEST_F(SoftWindow, on_an_unreliable_connection_it_opens_its_range_too) {
    for (const ibv_mw_type type : {IBV_MW_TYPE_1, IBV_MW_TYPE_2}) {
        WindowPair pair(*device, type, kAllAccess | IBV_ACCESS_MW_BIND, QpType::uc);
        std::uint64_t& first = pair.b.memory[kBegin / 8];
        // On UC the writer does not learn whether its write was allowed.
        const auto write = [&](std::uint64_t value, std::uint64_t offset, std::uint32_t length = 8) {
            pair.a.memory[0] = value;
            EXPECT_EQ(pair.use(IBV_WR_RDMA_WRITE, pair.at(offset), pair.key, length), IBV_WC_SUCCESS);
        };
        write(1, kBegin);
        EXPECT_EQ(first, 0u) << "not bound yet";
        ASSERT_EQ(pair.bind(), IBV_WC_SUCCESS);
        write(2, kBegin);
        EXPECT_EQ(first, 2u);
        write(3, kBegin, kLength + 1);
        EXPECT_EQ(first, 2u);
        if (type == IBV_MW_TYPE_2) {
            ASSERT_EQ(post_key(pair.b, 1, IBV_WR_LOCAL_INV, pair.key), 0);
            EXPECT_WC(pair.b.sent(), 1, IBV_WC_SUCCESS);
            write(4, kBegin);
            EXPECT_EQ(first, 2u);
        }
        EXPECT_EQ(pair.b.state(), IBV_QPS_RTS);
        EXPECT_EQ(post_key(pair.a, 2, IBV_WR_SEND_WITH_INV, pair.key), EINVAL);
    }
}

TEST_F(SoftWindow, a_forbidden_bind_on_an_unreliable_connection_ends_its_send_queue) {
    WindowPair pair(*device, IBV_MW_TYPE_2, kAllAccess, QpType::uc);
    EXPECT_EQ(pair.bind(), IBV_WC_MW_BIND_ERR);
    EXPECT_EQ(pair.b.state(), IBV_QPS_SQE);
    EXPECT_EQ(bind_type_1(pair.b, 1, pair.window.get(), {}, pair.b.mr.get()), EINVAL) << "a window of the other type";
    UniqueMw other{device->create_mw(pair.b.pd.get(), IBV_MW_TYPE_1), {device.get()}};
    ASSERT_EQ(bind_type_1(pair.b, 2, other.get(), {}, pair.b.mr.get()), 0);
    EXPECT_WC(pair.b.sent(), 2, IBV_WC_WR_FLUSH_ERR);
}

TEST_F(SoftWindow, datagrams_have_no_keys_so_there_is_nothing_to_bind_or_invalidate) {
    End end(*device, {.type = QpType::ud, .mr_access = kAllAccess | IBV_ACCESS_MW_BIND});
    UniqueMw type_1{device->create_mw(end.pd.get(), IBV_MW_TYPE_1), {device.get()}};
    UniqueMw type_2{device->create_mw(end.pd.get(), IBV_MW_TYPE_2), {device.get()}};
    const std::uint32_t key = type_1->rkey;
    EXPECT_EQ(bind_type_1(end, 1, type_1.get(), {}, end.mr.get()), EINVAL);
    EXPECT_EQ(type_1->rkey, key);
    EXPECT_EQ(post_bind(end, 2, type_2.get(), ibv_inc_rkey(type_2->rkey), {}, end.mr.get()), EINVAL);
    EXPECT_EQ(post_key(end, 3, IBV_WR_LOCAL_INV, type_2->rkey), EINVAL);
    EXPECT_EQ(post_key(end, 4, IBV_WR_SEND_WITH_INV, type_2->rkey), EINVAL);
}

TEST_F(SoftWindow, a_region_is_busy_while_a_window_is_bound_to_it) {
    WindowPair pair(*device);
    ASSERT_EQ(pair.bind(), IBV_WC_SUCCESS);
    EXPECT_EQ(device->destroy(pair.b.mr.get()), EBUSY);
    EXPECT_EQ(pair.use(IBV_WR_RDMA_WRITE, pair.at(kBegin), pair.key), IBV_WC_SUCCESS);
    EXPECT_EQ(pair.use(IBV_WR_RDMA_WRITE, pair.at(0), pair.b.mr->rkey), IBV_WC_SUCCESS);
    pair.window.reset();
    EXPECT_EQ(pair.use(IBV_WR_RDMA_WRITE, pair.at(kBegin), pair.key), IBV_WC_REM_ACCESS_ERR);
    EXPECT_EQ(device->destroy(pair.b.mr.release()), 0);
}

TEST_F(SoftWindow, destroying_the_qp_ends_the_binding_and_a_new_qp_may_have_it) {
    WindowPair pair(*device);
    ASSERT_EQ(pair.bind(), IBV_WC_SUCCESS);
    pair.b.qp.reset();
    enter_pd(pair.b, pair.b);
    End c(*device);
    connect(pair.b, c);
    pair.key = ibv_inc_rkey(pair.key);
    ASSERT_EQ(pair.bind(), IBV_WC_SUCCESS);
    EXPECT_EQ(WindowPair::use(c, IBV_WR_RDMA_WRITE, pair.at(kBegin), pair.key), IBV_WC_SUCCESS);
}

}  // namespace
}  // namespace pollcore::test
