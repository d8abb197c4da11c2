// Memory windows of the software device: binds between other requests, the effects of failures and retransmissions, and
// windows that two threads use.
#include <array>
#include <atomic>
#include <thread>

#include "soft_window_fixture.hpp"

namespace pollcore::test {
namespace {

TEST_F(SoftWindow, binds_complete_in_post_order_and_a_send_behind_one_arrives_when_it_is_done) {
    WindowPair pair(*device);
    End& b = pair.b;
    ASSERT_EQ(pair.a.post_recv(50, {pair.a.sge(0, 64)}), 0);
    ASSERT_EQ(b.post(1, IBV_WR_RDMA_WRITE, {b.sge(0, 50'000)}, pair.a.address(0), pair.a.mr->rkey), 0);
    ASSERT_EQ(b.post(2, IBV_WR_RDMA_READ, {b.sge(0, 50'000)}, pair.a.address(0), pair.a.mr->rkey), 0);
    ASSERT_EQ(post_bind(b, 3, pair.window.get(), pair.key, {}, b.mr.get()), 0);
    ASSERT_EQ(b.post(4, IBV_WR_SEND, {b.sge(0, 8)}), 0);
    pair.window->rkey = pair.key;
    ASSERT_EQ(post_key(b, 5, IBV_WR_LOCAL_INV, pair.key), 0);
    ASSERT_EQ(post_bind(b, 6, pair.window.get(), ibv_inc_rkey(pair.key), {}, b.mr.get(), IBV_SEND_FENCE), 0);
    ASSERT_EQ(b.post(7, IBV_WR_RDMA_WRITE, {b.sge(0, 8)}, pair.a.address(0), pair.a.mr->rkey), 0);
    for (const std::uint64_t id : {1, 2, 3, 4, 5, 7})  // 6 has no completion, because it is unsignaled
        EXPECT_WC(b.sent(), id, IBV_WC_SUCCESS);
    EXPECT_FALSE(b.sent().has_value());
    EXPECT_WC(pair.a.received(), 50, IBV_WC_SUCCESS);
    EXPECT_EQ(pair.use(IBV_WR_RDMA_WRITE, pair.at(kBegin), ibv_inc_rkey(pair.key)), IBV_WC_SUCCESS);
}

TEST_F(SoftWindow, packets_that_are_sent_again_do_not_bind_again) {
    WindowPair pair(*device);
    End& b = pair.b;
    ASSERT_EQ(pair.a.post_recv(50, {pair.a.sge(0, 64)}), 0);
    device->set_port_up(false);
    ASSERT_EQ(b.post(1, IBV_WR_RDMA_WRITE, {b.sge(0, 5000)}, pair.a.address(0), pair.a.mr->rkey), 0);
    ASSERT_EQ(post_bind(b, 2, pair.window.get(), pair.key, {}, b.mr.get()), 0);
    ASSERT_EQ(b.post(3, IBV_WR_SEND, {b.sge(0, 8)}), 0);
    device->advance(1'000'000);
    EXPECT_FALSE(b.sent().has_value()) << "the write before it has not ended";
    device->set_port_up(true);
    device->advance(200'000'000);
    for (const std::uint64_t id : {1, 2, 3})
        EXPECT_WC(b.sent(), id, IBV_WC_SUCCESS);
    EXPECT_EQ(pair.use(IBV_WR_RDMA_WRITE, pair.at(kBegin), pair.key), IBV_WC_SUCCESS);
}

TEST_F(SoftWindow, a_bind_behind_what_nobody_answers_is_flushed) {
    WindowPair pair(*device);
    End& b = pair.b;
    device->set_port_up(false);
    ASSERT_EQ(b.post(1, IBV_WR_RDMA_WRITE, {b.sge(0, 8)}, pair.a.address(0), pair.a.mr->rkey), 0);
    ASSERT_EQ(post_bind(b, 2, pair.window.get(), pair.key, {}, b.mr.get()), 0);
    device->advance(1'000'000);
    EXPECT_FALSE(b.sent().has_value());
    device->advance(60'000'000'000);
    EXPECT_WC(b.sent(), 1, IBV_WC_RETRY_EXC_ERR);
    EXPECT_WC(b.sent(), 2, IBV_WC_WR_FLUSH_ERR);
    EXPECT_EQ(b.state(), IBV_QPS_ERR);
}

TEST_F(SoftWindow, a_failed_bind_waits_for_its_turn_and_flushes_what_follows) {
    WindowPair pair(*device);
    End& b = pair.b;
    ASSERT_EQ(b.post(1, IBV_WR_RDMA_WRITE, {b.sge(0, 50'000)}, pair.a.address(0), pair.a.mr->rkey), 0);
    ASSERT_EQ(post_bind(b, 2, pair.window.get(), pair.key, {.length = 0}, b.mr.get(), 0), 0);
    ASSERT_EQ(post_key(b, 3, IBV_WR_LOCAL_INV, pair.key), 0);
    EXPECT_WC(b.sent(), 1, IBV_WC_SUCCESS);
    EXPECT_WC(b.sent(), 2, IBV_WC_MW_BIND_ERR);
    EXPECT_WC(b.sent(), 3, IBV_WC_WR_FLUSH_ERR);
    EXPECT_FALSE(b.sent().has_value());
}

TEST_F(SoftWindow, what_cannot_be_posted_is_refused_by_the_call) {
    WindowPair pair(*device);
    UniqueMw type_1{device->create_mw(pair.b.pd.get(), IBV_MW_TYPE_1), {device.get()}};
    EXPECT_EQ(post_bind(pair.b, 1, type_1.get(), 0, {}, pair.b.mr.get()), EINVAL);
    EXPECT_EQ(post_bind(pair.b, 1, nullptr, 0, {}, pair.b.mr.get()), EINVAL);
    EXPECT_EQ(post_bind(pair.b, 1, pair.window.get(), 0, {}, pair.b.mr.get(), IBV_SEND_INLINE), EINVAL);
    EXPECT_EQ(bind_type_1(pair.b, 1, pair.window.get(), {}, pair.b.mr.get()), EINVAL);
    EXPECT_EQ(bind_type_1(pair.b, 1, type_1.get(), {}, nullptr), EINVAL);
    UniqueMw foreign{device->create_mw(pair.a.pd.get(), IBV_MW_TYPE_1), {device.get()}};
    EXPECT_EQ(bind_type_1(pair.b, 1, foreign.get(), {}, pair.b.mr.get()), EPERM);
    EXPECT_FALSE(pair.b.sent().has_value());
    EXPECT_EQ(pair.b.state(), IBV_QPS_RTS);
}

TEST_F(SoftWindow, the_verbs_make_and_free_windows_too) {
    WindowPair pair(*device);
    ibv_mw* window = ibv_alloc_mw(pair.b.pd.get(), IBV_MW_TYPE_2);
    ASSERT_NE(window, nullptr);
    EXPECT_EQ(window->pd, pair.b.pd.get());
    EXPECT_EQ(window->type, IBV_MW_TYPE_2);
    EXPECT_EQ(ibv_dealloc_mw(window), 0);

    const auto none = open_soft_device({.name = "soft1", .limits = [] {
                                            DeviceLimits limits = default_soft_limits();
                                            limits.memory_windows_max = 1;
                                            limits.memory_windows_1 = false;
                                            return limits;
                                        }()});
    UniquePd pd{none->create_pd(), {none.get()}};
    EXPECT_EQ(ibv_alloc_mw(pd.get(), IBV_MW_TYPE_1), nullptr);
    EXPECT_EQ(errno, EOPNOTSUPP);
    UniqueMw only{none->create_mw(pd.get(), IBV_MW_TYPE_2), {none.get()}};
    EXPECT_EQ(ibv_alloc_mw(pd.get(), IBV_MW_TYPE_2), nullptr);
    EXPECT_EQ(none->destroy(pd.get()), EBUSY) << "a window is in it";
    EXPECT_THROW((void)none->create_mw(pd.get(), IBV_MW_TYPE_2), Error);
}

// A bind completes without a packet. If the WQE behind it fails in the same move of the device, that WQE may be the
// oldest one, and no timer runs for it.
TEST_F(SoftWindow, what_fails_in_the_move_of_a_bind_fails_once) {
    WindowPair pair(*device);
    ibv_sge bad_lkey = pair.b.sge(0, 16);
    bad_lkey.lkey ^= 0x5a5a00;
    ASSERT_EQ(post_bind(pair.b, 1, pair.window.get(), pair.key, {}, pair.b.mr.get()), 0);
    ASSERT_EQ(pair.b.post(2, IBV_WR_RDMA_WRITE, {bad_lkey}, pair.a.address(0), pair.a.mr->rkey), 0);
    ASSERT_EQ(pair.b.post(3, IBV_WR_RDMA_WRITE, {pair.b.sge(0, 16)}, pair.a.address(0), pair.a.mr->rkey), 0);
    ASSERT_EQ(pair.b.post(4, IBV_WR_RDMA_WRITE, {pair.b.sge(0, 16)}, pair.a.address(0), pair.a.mr->rkey), 0);
    EXPECT_WC(pair.b.sent(), 1, IBV_WC_SUCCESS);
    EXPECT_WC(pair.b.sent(), 2, IBV_WC_LOC_PROT_ERR);
    EXPECT_WC(pair.b.sent(), 3, IBV_WC_WR_FLUSH_ERR);
    EXPECT_WC(pair.b.sent(), 4, IBV_WC_WR_FLUSH_ERR);
    for (int look = 0; look < 10; ++look) {
        *clock.now += 10'000'000'000;  // longer than any acknowledgement timeout
        EXPECT_FALSE(pair.b.sent().has_value());
    }
}

// When the new bind has completed, nothing uses the old binding any more. This holds even if another thread moves the
// part of the device that serves the window's user.
TEST(SoftWindowThreads, memory_is_the_owners_again_when_a_type_1_window_has_moved) {
    const auto device = open_soft_device({});
    const auto left = device->create_thread_domain();
    const auto right = device->create_thread_domain();
    constexpr std::uint32_t kSize = 64 * 1024;
    std::uint64_t cut_off = 0;
    for (std::uint64_t round = 0; round < 30 || (cut_off == 0 && round < 3000); ++round) {
        End owner(*device, {.mr_access = kAllAccess | IBV_ACCESS_MW_BIND, .domain = left.get()});
        owner.ready_to_receive(owner.info(), {});
        owner.ready_to_send({});
        // `served` gets a QP in the owner's PD, but the other thread serves it.
        End served(*device, {.memory = 4096, .domain = right.get()}),
            user(*device, {.memory = kSize, .domain = right.get()});
        served.qp.reset();
        QpOptions options;
        options.pd = owner.pd.get();
        options.domain = right.get();
        options.send_cq = served.send_cq.get();
        options.recv_cq = served.recv_cq.get();
        options.cap = {4, 4, 1, 1, 0};
        served.qp = {device->create_qp(options), {device.get()}};
        auto init = to_init(1, kAllAccess);
        device->modify(served.qp.get(), init.attr, init.mask);
        connect(served, user, {}, IBV_MTU_4096);
        std::fill(user.memory.begin(), user.memory.end(), round + 1);

        const UniqueMw window{device->create_mw(owner.pd.get(), IBV_MW_TYPE_1), {device.get()}};
        ASSERT_EQ(bind_type_1(owner, 1, window.get(), {.offset = 0, .length = kSize}, owner.mr.get()), 0);
        EXPECT_WC(owner.sent(), 1, IBV_WC_SUCCESS);
        const std::uint32_t key = window->rkey;
        std::atomic<bool> done{false};
        std::thread writer([&] {
            std::uint64_t posted = 0;
            ibv_wc wc{};
            while (!done.load(std::memory_order_relaxed)) {
                posted += user.post(posted, IBV_WR_RDMA_WRITE, {user.sge(0, kSize)}, owner.address(0), key) == 0;
                if (ibv_poll_cq(user.send_cq.get(), 1, &wc) == 1 && wc.status != IBV_WC_SUCCESS) {
                    cut_off += wc.status == IBV_WC_REM_ACCESS_ERR;
                    return;
                }
            }
        });
        const std::atomic_ref<std::uint64_t> first_packet(owner.memory[4096 / 8 - 1]);
        while (first_packet.load(std::memory_order_relaxed) == 0)
            std::this_thread::yield();
        ASSERT_EQ(bind_type_1(owner, 2, window.get(), {.offset = kSize, .length = 64}, owner.mr.get()), 0);
        EXPECT_WC(owner.sent(), 2, IBV_WC_SUCCESS);
        // If the other thread's engine still wrote here, this write would be a race.
        std::memset(owner.at(0), 0xff, kSize);
        done.store(true, std::memory_order_relaxed);
        writer.join();
        for (std::uint64_t i = 0; i < kSize / 8; ++i)
            ASSERT_EQ(owner.memory[i], ~std::uint64_t{0}) << i;
    }
    EXPECT_GT(cut_off, 0u);
}

}  // namespace
}  // namespace pollcore::test
