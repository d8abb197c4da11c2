// Datagrams at the worker: address handles are added, used and removed. Wide completions, which take two slots, always
// have room in the completion ring.
#include <gtest/gtest.h>

#include "worker_fixture.hpp"

namespace pollcore::testing {
namespace {

class WorkerDatagrams : public WorkerFixture {
protected:
    WorkerDatagrams() {
        make_world();
        world->add_session();
        world->add_cq();
        a = &world->add_qp({.type = QpType::ud});
        b = &world->add_qp({.type = QpType::ud});
        ah = world->make_ah({7, 3});
        world->proxy.add_ah(ah);
    }
    /// A datagram from a to b.
    [[nodiscard]] WorkRequest datagram(std::uint64_t tag, std::uint8_t flags = kSignaled) const {
        WorkRequest request = send(tag, {.flags = flags});
        request.ud = {ah.handle, b->qp->qp_num};
        request.remote_qkey = SteppedWorld::kQkey;
        return request;
    }

    WorkerAh ah;
};

TEST_F(WorkerDatagrams, AHandleIsInUseInTheRingAndUntilItsSendIsKnownToHaveEnded) {
    EXPECT_FALSE(world->uses_ah(ah));
    submit(datagram(1, 0));
    EXPECT_TRUE(world->uses_ah(ah));  // uses_ah() steps the worker, which takes the datagram from the ring
    world->step(10);
    EXPECT_TRUE(world->uses_ah(ah));  // the datagram is unsignaled, and nothing has proved yet that it was sent
    submit(datagram(2));
    ASSERT_EQ(world->await(1).size(), 1u);
    EXPECT_FALSE(world->uses_ah(ah));
    EXPECT_FALSE(world->uses_key(0, 0, source->lkey()));
}

TEST_F(WorkerDatagrams, AReceiveIsNoUseOfAHandle) {
    WorkRequest receive = recv(1);
    receive.ud = {ah.handle, 1};  // the worker ignores this field of a receive
    submit(receive);
    EXPECT_FALSE(world->uses_ah(ah));
    world->step(10);
    EXPECT_FALSE(world->uses_ah(ah));
}

TEST_F(WorkerDatagrams, ARemovedHandleIsRefusedAndOneThatIsStillInFlightCanBeAddedAgain) {
    submit(datagram(1, 0));
    world->step(10);
    EXPECT_TRUE(world->remove_ah(ah));
    submit(datagram(2));
    const auto refused = world->await(1);
    ASSERT_EQ(refused.size(), 1u);
    EXPECT_EQ(refused[0].tag, 2u);
    EXPECT_EQ(refused[0].status, Status::request_refused);
    EXPECT_TRUE(refused[0].flags & kByRuntime);
    world->proxy.add_ah(ah);
    submit(datagram(3));
    const auto sent = world->await(1);
    ASSERT_EQ(sent.size(), 1u);
    EXPECT_EQ(sent[0].tag, 3u);
    EXPECT_EQ(sent[0].status, Status::success);
    EXPECT_FALSE(world->remove_ah(ah));
    EXPECT_EQ(world->session().figures().in_flight(), 0u);
}

TEST_F(WorkerDatagrams, HandlesOfAnotherDomainGenerationOrPlaceAreRefused) {
    WorkerAh foreign = ah;
    foreign.handle = {9, 1};
    foreign.pd = 1;
    world->proxy.add_ah(foreign);
    for (const AhHandle handle : {foreign.handle, AhHandle{7, 2}, AhHandle{8, 3}, AhHandle{60000, 3}, AhHandle{}}) {
        WorkRequest request = datagram(1);
        request.ud = {handle, b->qp->qp_num};
        submit(request);
        const auto completions = world->await(1);
        ASSERT_EQ(completions.size(), 1u);
        EXPECT_EQ(completions[0].status, Status::request_refused);
    }
    EXPECT_EQ(world->worker.counters().sends.value(), 0u);
    (void)world->remove_ah(foreign);
}

TEST_F(WorkerDatagrams, AnErrorEndsUnsignaledOnesToo) {
    submit(recv(1));
    submit(datagram(2, 0));
    submit(datagram(3, 0));
    world->step(10);
    ASSERT_EQ(world->poll().size(), 1u);  // this is the receive's completion
    world->to_error(*a);
    world->step(10);
    EXPECT_EQ(world->session().figures().retired, 2u);
    EXPECT_EQ(world->worker.counters().markers.value(), 1u);
    EXPECT_TRUE(world->close(*a));
    EXPECT_TRUE(world->close(*b));
    EXPECT_EQ(world->session().figures().in_flight(), 0u);
}

TEST_F(WorkerDatagrams, AFailedSendFlushesWhatFollowsAndReceivesGoOn) {
    WorkRequest bad = datagram(1);
    bad.sge.lkey ^= 0x4400;
    submit(bad);
    submit(datagram(2));
    const auto completions = world->await(2);
    ASSERT_EQ(completions.size(), 2u);
    EXPECT_EQ(completions[0].status, Status::loc_prot_err);
    EXPECT_EQ(completions[1].status, Status::wr_flush_err);
    EXPECT_EQ(try_submit(datagram(3)), Refusal::qp_in_error);
    EXPECT_EQ(world->session().cause(a->handle()), Status::loc_prot_err);
    EXPECT_TRUE(world->close(*a));
}

// ---- Completions that take two slots ----

class WideCompletions : public WorkerFixture, public ::testing::WithParamInterface<std::uint32_t> {
protected:
    WideCompletions() {
        SteppedWorld::Options options;
        options.completion_slots = GetParam();
        options.wide_completions = true;
        make({}, options);
    }
};

TEST_P(WideCompletions, HaveRoomForEveryRequestThatIsAccepted) {
    std::uint64_t accepted = 0;
    std::uint64_t completed = 0;
    std::uint64_t full = 0;
    for (std::uint64_t turn = 0; turn < 2000; ++turn) {
        const Refusal refusal = try_submit(write(turn, {.flags = signaled_if(turn % 3 != 0)}));
        accepted += refusal == Refusal::none;
        full += refusal == Refusal::completion_ring_full;
        ASSERT_TRUE(refusal == Refusal::none || refusal == Refusal::completion_ring_full ||
                    refusal == Refusal::send_queue_full);
        if (refusal != Refusal::none || turn % 7 == 0) {
            world->step(4);
            world->now += 1000;
            WideCompletion some[3];
            const std::size_t n = world->session().poll(some);
            for (std::size_t i = 0; i < n; ++i) {
                ASSERT_EQ(some[i].status, Status::success);
                ASSERT_EQ(some[i].opcode, CompletionOpcode::rdma_write);
                ASSERT_EQ(some[i].src_qp, 0u);
            }
            completed += n;
        }
    }
    completed += world->await(GetParam(), 0, 100).size();
    const SessionFigures figures = world->session().figures();
    EXPECT_EQ(figures.accepted, accepted);
    EXPECT_EQ(figures.completed, completed);
    EXPECT_EQ(figures.in_flight(), 0u);
    EXPECT_GT(full, 0u);
    EXPECT_GT(completed, 600u);
    EXPECT_EQ(world->worker.counters().broken_sessions.value(), 0u);
}

TEST_P(WideCompletions, OfRequestsThatNoWorkerTookAreMadeBySessionItself) {
    world->proxy.remove_session(0);
    submit(write(5));
    WideCompletion only;
    only.src_qp = 99;
    ASSERT_EQ(world->session().poll({&only, 1}), 1u);
    EXPECT_EQ(only.tag, 5u);
    EXPECT_EQ(only.status, Status::session_closed);
    EXPECT_EQ(only.src_qp, 0u);
    EXPECT_EQ(world->session().figures().in_flight(), 0u);
}

INSTANTIATE_TEST_SUITE_P(Slots, WideCompletions, ::testing::Values(1u, 2u, 8u));

}  // namespace
}  // namespace pollcore::testing
