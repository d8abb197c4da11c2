// The step in which a queue pair fails. The requests behind the error are not posted and end in their order. They take
// nothing from other queue pairs.
#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <vector>

#include <gtest/gtest.h>

#include "credit_fixture.hpp"

namespace pollcore::testing {
namespace {

// The behaviour of the provider's ops in these tests. Only one test at a time uses this, in one thread.
struct Posts {
    int (*post_send)(ibv_qp*, ibv_send_wr*, ibv_send_wr**) = nullptr;
    int (*post_recv)(ibv_qp*, ibv_recv_wr*, ibv_recv_wr**) = nullptr;
    const ibv_qp* watched = nullptr;
    std::uint64_t posted = 0;  // work requests posted to `watched`
    bool refuse_recvs = false;
    std::uint64_t recv_posts = 0;
};
Posts posts;

int watched_post_send(ibv_qp* qp, ibv_send_wr* wr, ibv_send_wr** bad) {
    for (const ibv_send_wr* one = wr; qp == posts.watched && one != nullptr; one = one->next) {
        ++posts.posted;
    }
    return posts.post_send(qp, wr, bad);
}

int refusing_post_recv(ibv_qp* qp, ibv_recv_wr* wr, ibv_recv_wr** bad) {
    ++posts.recv_posts;
    // The limit ends a step that would otherwise go on for ever.
    if (posts.refuse_recvs && posts.recv_posts < 100'000) {
        *bad = wr;
        return ENOMEM;
    }
    return posts.post_recv(qp, wr, bad);
}

class FailingStepTest : public WorkerCreditTest {
protected:
    void watch_posts() {
        ibv_context_ops& ops = world->device->context()->ops;
        posts = Posts{.post_send = ops.post_send, .post_recv = ops.post_recv};
        ops.post_send = &watched_post_send;
        ops.post_recv = &refusing_post_recv;
    }
    [[nodiscard]] QpState state(const Qp& qp, std::uint32_t session = kSender) {
        return world->session(session).state(qp.handle());
    }

    static constexpr std::uint64_t kLie = 5000;  // a false count of grants: the peer has no such receives
};

TEST_F(FailingStepTest, AReceiveBehindARefusedOneEnds) {
    make();
    agree();
    watch_posts();
    grant(GrantWord::pack(kLie));
    posts.refuse_recvs = true;
    const std::array burst{recv(100, {.qp = from[0]}), send(101), recv(102, {.qp = from[0]})};
    ASSERT_EQ(world->session(kSender).try_submit(burst).accepted, burst.size());
    turn();
    posts.refuse_recvs = false;
    EXPECT_EQ(state(*from[0]), QpState::error);
    world->to_error(*from[0]);
    turn();
    std::vector<std::uint64_t> ended;
    for (const Completion& completion : world->poll(kSender)) {
        EXPECT_FALSE(completion.ok());
        ended.push_back(completion.tag);
    }
    std::sort(ended.begin(), ended.end());
    EXPECT_EQ(ended, (std::vector<std::uint64_t>{100, 101, 102}));
    EXPECT_TRUE(world->close(*from[0])) << "nothing of it is at the device";
}

TEST_F(FailingStepTest, AReceiveKeepsTheStatusThatItWasTakenWith) {
    make_world();
    add_pair({}, {.shares = {{kReceiver, 16, 16}}});
    submit(recv(1));
    world->step();
    world->soft().fail();
    world->proxy.park(to[0]->handle());
    submit(recv(2));  // this receive stays in the ring while the queue pair is parked
    world->proxy.unpark(to[0]->handle(), QpState::error, Status::general_err, true);
    world->step();
    EXPECT_TRUE(world->poll(kReceiver).empty());
    world->proxy.park(to[0]->handle());
    world->proxy.unpark(to[0]->handle(), QpState::error, Status::device_removed);
    world->proxy.park(to[0]->handle());
    ASSERT_EQ(world->device->destroy(to[0]->qp.release()), 0);
    world->proxy.lose(to[0]->handle());
    const auto ended = world->poll(kReceiver);
    ASSERT_EQ(ended.size(), 2u);
    EXPECT_EQ(ended[0].status, Status::device_removed);
    EXPECT_EQ(ended[1].status, Status::wr_flush_err);
}

TEST_F(FailingStepTest, ItsPeerIsNotWrittenTo) {
    SteppedWorld::Options options;
    options.worker.probe_cycles = 1'000'000;
    make(1, std::move(options));
    agree();
    watch_posts();
    posts.watched = from[0]->qp.get();
    submit(send(7));
    turn(5);
    world->now += 10'000'000;  // lets enough time pass for a probe
    grant(GrantWord::pack(kLie));
    world->step();
    EXPECT_EQ(state(*from[0]), QpState::error);
    EXPECT_EQ(posts.posted, 0u);
}

TEST_F(FailingStepTest, AMessageThatIsAnnouncedWithTermsThatCannotBeIsNotRead) {
    make_world({.pool_buffers = 64});
    SteppedWorld::Pool& receives = world->add_pool(32, 64, kReceiver);
    SteppedWorld::Pool& longs = world->add_pool(2, 2048, kReceiver);
    add_pairs(1, {.shares = {{kReceiver, 16, 0}}, .pool = {.pool = &receives}, .rendezvous = {.pool = &longs}});
    turn(5);
    watch_posts();
    posts.watched = to[0]->qp.get();
    // The test posts both writes directly to the device, so that the terms and the announcement arrive together.
    const FlowTerms::Words terms = FlowTerms{.depth = 0, .message_max = 64}.sealed();
    const Announcement::Words what =
        Announcement{.addr = source->addr(), .rkey = source->rkey(), .length = 500, .number = 1}.pack();
    std::memcpy(source->data(4096), terms.data(), sizeof(terms));
    std::memcpy(source->data(5120), what.data(), sizeof(what));
    std::array<ibv_sge, 2> sges{{{.addr = source->addr(4096), .length = sizeof(terms), .lkey = source->lkey()},
                                 {.addr = source->addr(5120), .length = sizeof(what), .lkey = source->lkey()}}};
    std::array<ibv_send_wr, 2> wrs{};
    for (std::size_t i = 0; i < wrs.size(); ++i) {
        wrs[i].wr_id = ~std::uint64_t{0};
        wrs[i].sg_list = &sges[i];
        wrs[i].num_sge = 1;
        wrs[i].opcode = i == 0 ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_WRITE_WITH_IMM;
        wrs[i].wr.rdma.remote_addr = reinterpret_cast<std::uintptr_t>(to[0]->block) +
                                     (i == 0 ? ControlBlock::kTerms : ControlBlock::kAnnouncement);
        wrs[i].wr.rdma.rkey = to[0]->block_rkey;
    }
    wrs[0].next = &wrs[1];
    ibv_send_wr* bad = nullptr;
    ASSERT_EQ(ibv_post_send(from[0]->qp.get(), wrs.data(), &bad), 0);
    turn(30);
    EXPECT_EQ(state(*to[0], kReceiver), QpState::error);
    EXPECT_EQ(posts.posted, 0u);
    EXPECT_EQ(longs.counters().posted.value(), 0u);
}

TEST_F(FailingStepTest, WhatItsPeerWasPromisedIsOthersBeforeItIsClosed) {
    make_world();
    SteppedWorld::Srq& srq = world->add_srq({.session = kReceiver, .depth = 8, .credit_connections = 2});
    add_pairs(2, {.shares = {{kReceiver, 16, 0}}, .srq = &srq});
    for (std::uint64_t i = 0; i < 8; ++i) {
        submit(recv(i, {.srq = &srq}));
    }
    turn();
    ASSERT_EQ(receiver(0).unused_grants(), 4u);
    ASSERT_EQ(receiver(1).unused_grants(), 4u);
    world->to_error(*to[0]);
    turn();
    EXPECT_EQ(receiver(0).unused_grants(), 0u);
    EXPECT_EQ(srq.grants->granted(), receiver(1).unused_grants());
}

// A provider that is out of memory may refuse the same receives many times.
TEST_F(FailingStepTest, ReceivesThatAreRefusedAreTriedAgainAndTheStepEnds) {
    constexpr std::size_t kQueuePairs = 8;
    make_world({.pool_buffers = 1024});
    SteppedWorld::Pool& pool = world->add_pool(1024, 64, kReceiver);
    watch_posts();
    posts.refuse_recvs = true;
    for (std::size_t i = 0; i < kQueuePairs; ++i) {
        add_pair({.shares = {{kSender, 16, 0}}},
                 {.shares = {{kReceiver, 16, 0}}, .pool = {.pool = &pool, .depth = 63, .share = 100}});
    }
    turn(3);
    EXPECT_LT(posts.recv_posts, 100'000u);
    EXPECT_EQ(pool.counters().posted.value(), 0);
    posts.refuse_recvs = false;
    turn(3);
    EXPECT_EQ(pool.counters().posted.value(), std::int64_t{63 * kQueuePairs});
    for (std::size_t i = 0; i < kQueuePairs; ++i) {
        submit(send(i, {.qp = from[i]}));
    }
    EXPECT_EQ(world->await(kQueuePairs, kReceiver).size(), kQueuePairs);
}

}  // namespace
}  // namespace pollcore::testing
