// What verbs promise to programs of their objects, threads and children, asked of libibverbs alone.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "verbs_fixture.hpp"

namespace pollcore::test {
namespace {

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
