// Shared receive queues at a worker that is stepped by hand: which receives a queue accepts, which queue pair completes
// each receive, and what happens to the receives when queue pairs or the queue itself end.
#include <array>
#include <map>
#include <random>

#include <gtest/gtest.h>

#include "post_each.hpp"
#include "worker_fixture.hpp"

namespace pollcore::testing {
namespace {

class WorkerSrqTest : public SenderReceiverFixture {
protected:
    void make(std::uint32_t depth, std::size_t pairs, SteppedWorld::Options options = {}) {
        make_world(std::move(options));
        srq = &world->add_srq({.session = kReceiver, .depth = depth});
        for (std::size_t i = 0; i < pairs; ++i) {
            add_sharing_pair();
        }
    }
    void add_sharing_pair() {
        add_pair({.shares = {{kSender, 8, 0}}}, {.shares = {{kReceiver, 8, 0}}, .srq = srq},
                 {.rnr_retry = 7, .min_rnr_timer = 1});
    }
    void close(std::vector<SteppedWorld::Qp*>& side, std::size_t i) {
        EXPECT_TRUE(world->close(*side[i]));
        side.erase(side.begin() + static_cast<std::ptrdiff_t>(i));
    }
    [[nodiscard]] WorkRequest srq_recv(std::uint64_t tag, std::uint32_t length = 64) const {
        return recv(tag, {.srq = srq, .length = length});
    }
    std::uint64_t receives_in_flight() { return world->session(kReceiver).figures().in_flight(); }

    SteppedWorld::Srq* srq = nullptr;
};

TEST_F(WorkerSrqTest, AReceiveSaysWhichQueuePairTookItAndWhereItsBufferCameFrom) {
    make(8, 3);
    for (std::uint64_t tag = 0; tag < 3; ++tag) {
        submit(srq_recv(tag));
    }
    for (const std::size_t pair : {2u, 0u, 1u}) {
        const std::uint64_t tag = 3 - receives_in_flight();
        submit(send(100 + pair, {.qp = from[pair], .length = 24}));
        const auto received = world->await(1, kReceiver);
        ASSERT_EQ(received.size(), 1u);
        EXPECT_EQ(received[0].tag, tag);
        EXPECT_EQ(received[0].qp, to[pair]->handle());
        EXPECT_EQ(received[0].srq, srq->handle());
        EXPECT_EQ(received[0].status, Status::success);
        EXPECT_EQ(received[0].opcode, CompletionOpcode::recv);
        EXPECT_TRUE(received[0].from_recv_queue());
        EXPECT_EQ(received[0].byte_len, 24u);
        const auto sent = world->await(1, kSender);
        ASSERT_EQ(sent.size(), 1u);
        EXPECT_FALSE(sent[0].srq.valid());
    }
    EXPECT_EQ(receives_in_flight(), 0u);
}

TEST_F(WorkerSrqTest, ABurstOfReceivesTakesOneDoorbell) {
    make(16, 1);
    for (std::uint64_t tag = 0; tag < 16; ++tag) {
        submit(srq_recv(tag));
    }
    world->step();
    EXPECT_EQ(world->worker.counters().receives.value(), 16u);
    EXPECT_EQ(world->worker.counters().receive_doorbells.value(), 1u);
    EXPECT_EQ(try_submit(srq_recv(16)), Refusal::srq_full);
}

TEST_F(WorkerSrqTest, ASlotIsFreeAgainWhicheverReceiveCompleted) {
    make(2, 2);
    submit(srq_recv(0));
    submit(srq_recv(1));
    for (std::uint64_t tag = 2; tag < 200; ++tag) {
        EXPECT_EQ(try_submit(srq_recv(tag)), Refusal::srq_full);
        submit(send(1000 + tag, {.qp = from[tag % 2]}));
        ASSERT_EQ(world->await(1, kReceiver).size(), 1u);
        submit(srq_recv(tag));
        ASSERT_EQ(world->await(1, kSender).size(), 1u);
    }
    EXPECT_EQ(world->worker.counters().refused_requests.value(), 0u);
    EXPECT_EQ(world->worker.counters().post_failures.value(), 0u);
}

TEST_F(WorkerSrqTest, ReceivesWithSeveralSgesGoThroughAndTheirKeysAreKnown) {
    make(4, 1);
    Buffer& other = buffer(64);
    const std::array<Sge, 3> sges{target->sge(4), target->sge(4, 256), other.sge(64)};
    ASSERT_EQ(world->session(kReceiver).try_submit(srq_recv(7), sges), Refusal::none);
    EXPECT_TRUE(world->uses_key(0, 0, other.lkey()));
    EXPECT_TRUE(world->uses_key(0, 0, target->lkey()));
    *source->data(9) = std::byte{42};
    submit(send(1, {.length = 16}));
    ASSERT_EQ(world->await(1, kReceiver).size(), 1u);
    EXPECT_EQ(*other.data(1), std::byte{42});
    EXPECT_FALSE(world->uses_key(0, 0, other.lkey()));
    const std::array<Sge, 5> too_many{};
    EXPECT_EQ(world->session(kReceiver).try_submit(srq_recv(8), too_many), Refusal::too_many_sges);
}

TEST_F(WorkerSrqTest, WhatDoesNotFitIsRefused) {
    make(2, 1);
    Session& session = world->session(kReceiver);
    WorkRequest request = srq_recv(1);
    request.srq.generation ^= 1;
    EXPECT_EQ(session.try_submit(request), Refusal::stale_handle);
    request = srq_recv(1);
    request.srq.index = kSrqsMax;
    EXPECT_EQ(session.try_submit(request), Refusal::stale_handle);
    request = srq_recv(1);
    request.flags = kSignaled;
    EXPECT_EQ(session.try_submit(request), Refusal::bad_flags);
    EXPECT_EQ(session.try_submit_inline(srq_recv(1), std::array<std::byte, 8>{}), Refusal::bad_opcode);
    EXPECT_EQ(try_submit(srq_recv(1), kSender), Refusal::stale_handle) << "it belongs to another session";
    EXPECT_EQ(try_submit(recv(1)), Refusal::not_receiver) << "this queue pair has no receive queue";
    EXPECT_EQ(session.figures().in_flight(), 0u);
}

// A session could bypass its own checks and write these requests into its ring.
TEST_F(WorkerSrqTest, TheWorkerRefusesWhatASessionShouldHave) {
    make(2, 1);
    const auto submit_raw = [&](std::uint32_t session, const WorkRequest& request) {
        RingProducer<WorkRequest> raw = world->raw(session);
        const std::uint32_t slots = slots_of(request);
        ASSERT_EQ(raw.reserve(slots), slots);
        for (std::uint32_t slot = 0; slot < slots; ++slot) {
            raw.write(slot, slot == 0 ? request : WorkRequest{});
        }
        raw.commit(slots);
        world->step(2);
    };
    // Each case needs a new world, because the session's own producer does not know of the slot that the test has
    // written.
    struct Case {
        std::uint32_t session;
        std::uint16_t index;
        std::uint8_t num_sge;
    };
    for (const Case& bad :
         {Case{kSender, 0, 1}, Case{kReceiver, 0xffff, 1}, Case{kReceiver, 1, 1}, Case{kReceiver, 0, 5}}) {
        make(2, 1);
        WorkRequest request = srq_recv(9);
        request.srq.index = bad.index;
        request.num_sge = bad.num_sge;
        submit_raw(bad.session, request);
        const auto refused = world->poll(bad.session);
        ASSERT_EQ(refused.size(), 1u);
        EXPECT_EQ(refused[0].status, Status::request_refused);
        EXPECT_EQ(world->worker.counters().refused_requests.value(), 1u);
        EXPECT_EQ(world->worker.counters().receives.value(), 0u);
    }
}

TEST_F(WorkerSrqTest, AClosedQueuePairLeavesTheReceivesToTheOthers) {
    make(8, 3);
    for (std::uint64_t tag = 0; tag < 4; ++tag) {
        submit(srq_recv(tag));
    }
    world->step(4);
    close(to, 1);
    EXPECT_TRUE(world->poll(kReceiver).empty());
    EXPECT_EQ(receives_in_flight(), 4u);
    for (const std::size_t pair : {0u, 2u}) {
        submit(send(10, {.qp = from[pair]}));
        const auto received = world->await(1, kReceiver);
        ASSERT_EQ(received.size(), 1u);
        EXPECT_EQ(received[0].qp, to[pair == 0 ? 0 : 1]->handle());
    }
    EXPECT_EQ(receives_in_flight(), 2u);
}

TEST_F(WorkerSrqTest, AMessageThatIsTooLongEndsItsQueuePairOnly) {
    make(8, 2);
    submit(srq_recv(1, 16));
    submit(srq_recv(2));
    submit(send(10, {.length = 100}));
    const auto failed = world->await(1, kReceiver);
    ASSERT_EQ(failed.size(), 1u);
    EXPECT_EQ(failed[0].tag, 1u);
    EXPECT_EQ(failed[0].status, Status::loc_len_err);
    EXPECT_EQ(failed[0].qp, to[0]->handle());
    EXPECT_EQ(failed[0].srq, srq->handle());
    EXPECT_EQ(world->session(kReceiver).state(to[0]->handle()), QpState::error);
    EXPECT_EQ(world->session(kReceiver).cause(to[0]->handle()), Status::loc_len_err);
    EXPECT_EQ(world->session(kReceiver).state(to[1]->handle()), QpState::ready);
    submit(send(11, {.qp = from[1]}));
    const auto received = world->await(1, kReceiver);
    ASSERT_EQ(received.size(), 1u);
    EXPECT_EQ(received[0].tag, 2u);
}

TEST_F(WorkerSrqTest, AClosedQueueGivesItsReceivesBackAndTakesNoMore) {
    make(8, 1);
    for (std::uint64_t tag = 0; tag < 3; ++tag) {
        submit(srq_recv(tag));
    }
    world->step();
    const WorkRequest late = srq_recv(5);
    close(to, 0);
    world->proxy.retire(srq->handle());
    EXPECT_EQ(world->session(kReceiver).try_submit(late), Refusal::stale_handle);
    EXPECT_TRUE(world->poll(kReceiver).empty()) << "the device still has them";
    world->close(*srq);
    const auto given_back = world->poll(kReceiver);
    ASSERT_EQ(given_back.size(), 3u);
    for (const Completion& completion : given_back) {
        EXPECT_EQ(completion.status, Status::srq_closed);
        EXPECT_TRUE(completion.flags & kByRuntime);
        EXPECT_TRUE(completion.from_recv_queue());
        EXPECT_FALSE(completion.qp.valid());
    }
    EXPECT_EQ(receives_in_flight(), 0u);
}

TEST_F(WorkerSrqTest, WhatWasSubmittedAsTheQueueClosedCompletesToo) {
    make(8, 0);
    submit(srq_recv(1));  // no step follows, so the receive stays in the ring
    // A step handles commands before submissions.
    world->proxy.retire(srq->handle());
    world->step();
    const auto refused = world->poll(kReceiver);
    ASSERT_EQ(refused.size(), 1u);
    EXPECT_EQ(refused[0].status, Status::srq_closed);
    EXPECT_EQ(refused[0].srq, srq->handle());
    EXPECT_EQ(receives_in_flight(), 0u);
}

TEST_F(WorkerSrqTest, AnIndexThatIsUsedAgainStartsAnew) {
    make(2, 0);
    for (int life = 0; life < 5; ++life) {
        submit(srq_recv(1));
        submit(srq_recv(2));
        EXPECT_EQ(try_submit(srq_recv(3)), Refusal::srq_full);
        if (life % 2 == 0) {
            world->step();
        }
        const WorkRequest stale = srq_recv(9);
        world->close(*srq);
        EXPECT_EQ(world->poll(kReceiver).size(), 2u);
        srq = &world->add_srq({.session = kReceiver, .depth = 2});
        EXPECT_EQ(world->session(kReceiver).try_submit(stale), Refusal::stale_handle);
    }
    add_sharing_pair();
    submit(srq_recv(1));
    submit(send(5));
    EXPECT_EQ(world->await(1, kReceiver).size(), 1u);
}

TEST_F(WorkerSrqTest, ACompletionThatNamesNothingInFlightIsCountedAndHarmsNobody) {
    static int (*poll_cq)(ibv_cq*, int, ibv_wc*) = nullptr;
    static std::vector<ibv_wc> injected;
    make(2, 1);
    injected.clear();
    ibv_context_ops& ops = world->device->context()->ops;
    poll_cq = ops.poll_cq;
    ops.poll_cq = [](ibv_cq* cq, int n, ibv_wc* wc) {
        if (injected.empty()) {
            return poll_cq(cq, n, wc);
        }
        *wc = injected.back();
        injected.pop_back();
        return 1;
    };
    submit(srq_recv(1));
    world->step();
    for (const SrqWrId id : {SrqWrId{srq->handle(), 1}, SrqWrId{srq->handle(), 0xffffff}, SrqWrId{SrqHandle{5, 1}, 0},
                             SrqWrId{SrqHandle{srq->handle().index, 77}, 0}, SrqWrId{SrqHandle{0xffff, 1}, 0}}) {
        ibv_wc wc{};
        wc.wr_id = id.pack();
        wc.qp_num = to[0]->qp->qp_num;
        injected.push_back(wc);
    }
    world->step(10);
    EXPECT_EQ(world->worker.counters().stale_completions.value(), 5u);
    EXPECT_TRUE(world->poll(kReceiver).empty());
    // The completion names an unknown queue pair, but the receive has ended all the same.
    ibv_wc unknown{};
    unknown.wr_id = SrqWrId{srq->handle(), 0}.pack();
    unknown.qp_num = 0xabcdef;
    injected.push_back(unknown);
    world->step();
    const auto completed = world->poll(kReceiver);
    ASSERT_EQ(completed.size(), 1u);
    EXPECT_EQ(completed[0].tag, 1u);
    EXPECT_FALSE(completed[0].qp.valid());
    ops.poll_cq = poll_cq;
}

TEST_F(WorkerSrqTest, EveryRefusedReceiveOfAChainGetsItsCompletionAndTheOthersAreThere) {
    static int (*post)(ibv_srq*, ibv_recv_wr*, ibv_recv_wr**) = nullptr;
    static std::uint64_t count = 0;
    make(16, 1);
    ibv_context_ops& ops = world->device->context()->ops;
    post = ops.post_srq_recv;
    count = 0;
    ops.post_srq_recv = [](ibv_srq* queue, ibv_recv_wr* wr, ibv_recv_wr** bad) {
        return post_each(post, queue, wr, bad, [](const ibv_recv_wr&) { return ++count % 3 == 0; });
    };
    for (std::uint64_t tag = 0; tag < 9; ++tag) {
        submit(srq_recv(tag));
    }
    world->step();
    const auto refused = world->poll(kReceiver);
    ASSERT_EQ(refused.size(), 3u);
    for (std::size_t i = 0; i < refused.size(); ++i) {
        EXPECT_EQ(refused[i].tag, 2 + 3 * i);
        EXPECT_EQ(refused[i].status, Status::post_refused);
        EXPECT_EQ(refused[i].srq, srq->handle());
    }
    EXPECT_EQ(world->worker.counters().post_failures.value(), 3u);
    EXPECT_EQ(receives_in_flight(), 6u);
    ops.post_srq_recv = post;
    for (const std::uint64_t tag : {0, 1, 3, 4, 6, 7}) {
        submit(send(100 + tag));
        const auto received = world->await(1, kReceiver);
        ASSERT_EQ(received.size(), 1u);
        EXPECT_EQ(received[0].tag, tag);
        ASSERT_EQ(world->await(1, kSender).size(), 1u);
    }
}

TEST_F(WorkerSrqTest, AReceiveWhoseCompletionWasLostWithItsCqEndsWithTheQueue) {
    make(4, 1);
    for (std::uint64_t tag = 0; tag < 3; ++tag) {
        submit(srq_recv(tag));
    }
    world->step();
    world->device->context()->ops.poll_cq = [](ibv_cq*, int, ibv_wc*) { return -1; };
    world->step();
    EXPECT_EQ(world->session(kReceiver).state(to[0]->handle()), QpState::error);
    close(to, 0);
    close(from, 0);
    EXPECT_EQ(receives_in_flight(), 3u);
    world->close(*srq);
    for (const Completion& completion : world->poll(kReceiver)) {
        EXPECT_EQ(completion.status, Status::srq_closed);
    }
    EXPECT_EQ(receives_in_flight(), 0u);
}

TEST_F(WorkerSrqTest, ExtendedPollingNamesTheQueuePairToo) {
    make(4, 2, {.extended_cqs = true});
    submit(srq_recv(1));
    submit(srq_recv(2, 4));
    submit(send(10, {.qp = from[1]}));
    auto received = world->await(1, kReceiver);
    ASSERT_EQ(received.size(), 1u);
    EXPECT_EQ(received[0].qp, to[1]->handle());
    EXPECT_EQ(received[0].byte_len, 8u);
    submit(send(11));
    received = world->await(1, kReceiver);
    ASSERT_EQ(received.size(), 1u);
    EXPECT_EQ(received[0].status, Status::loc_len_err);
    EXPECT_EQ(received[0].qp, to[0]->handle());
}

// I3 with every capacity at its smallest values: nothing overflows, no request is refused for ever, and the queue's own
// limit is reached.
TEST_F(WorkerSrqTest, RandomTrafficOverflowsNothingAndMeetsTheLimit) {
    std::map<Refusal, std::uint64_t> causes;
    std::uint64_t seed = 1;
    for (const std::uint32_t depth : {1u, 2u, 3u}) {
        for (const std::uint32_t completion_slots : {1u, 2u, 4u}) {
            for (const std::uint32_t submission_slots : {1u, 2u, 4u}) {
                SCOPED_TRACE(::testing::Message() << "depth " << depth << ", " << completion_slots
                                                  << " completion slots, " << submission_slots << " submission slots");
                make(depth, 3, {.submission_slots = submission_slots, .completion_slots = completion_slots});
                std::mt19937_64 random(seed++);
                std::uint64_t sent = 0;
                std::uint64_t posted = 0;
                std::uint64_t received = 0;
                std::uint64_t acknowledged = 0;
                const auto turn_once = [&] {
                    world->step();
                    world->now += 20'000;
                    for (const Completion& completion : world->poll(kReceiver)) {
                        EXPECT_TRUE(completion.ok()) << status_name(completion.status);
                        ++received;
                    }
                    acknowledged += world->poll(kSender).size();
                };
                const auto try_send = [&] { sent += try_submit(send(0, {.qp = from[random() % 3]})) == Refusal::none; };
                const auto try_recv = [&] {
                    const Refusal refusal = try_submit(srq_recv(posted));
                    ++causes[refusal];
                    posted += refusal == Refusal::none;
                };
                for (int i = 0; i < 600; ++i) {
                    switch (random() % 3) {
                        case 0: try_send(); break;
                        case 1: try_recv(); break;
                        default: turn_once(); break;
                    }
                }
                for (int i = 0; i < 20'000 && (received < std::max(sent, posted) || acknowledged < sent); ++i) {
                    if (sent < posted) {
                        try_send();
                    } else if (posted < sent) {
                        try_recv();
                    }
                    turn_once();
                }
                EXPECT_EQ(received, posted);
                EXPECT_EQ(acknowledged, sent);
                EXPECT_EQ(receives_in_flight(), 0u);
                const WorkerCounters& counters = world->worker.counters();
                EXPECT_EQ(counters.refused_requests.value(), 0u);
                EXPECT_EQ(counters.post_failures.value(), 0u);
                EXPECT_EQ(counters.broken_sessions.value(), 0u);
                EXPECT_EQ(counters.failed_polls.value(), 0u);
            }
        }
    }
    for (const Refusal limit : {Refusal::srq_full, Refusal::completion_ring_full, Refusal::submission_ring_full}) {
        EXPECT_GT(causes[limit], 50u) << refusal_name(limit);
    }
}

TEST(QpNumberTable, FindsWhatWasAddedAndNothingThatWasRemoved) {
    std::mt19937 random(7);
    std::map<std::uint32_t, WorkerQp*> expected;
    std::vector<std::unique_ptr<WorkerQp>> qps;
    QpNumberTable table;
    for (int i = 0; i < 20'000; ++i) {
        // There are few different numbers, and some are far apart. Runs of entries therefore form in the table, wrap
        // around and break.
        const std::uint32_t number = (random() % 300) << (random() % 2 * 16);
        if (const auto found = expected.find(number); found != expected.end()) {
            table.remove(number);
            expected.erase(found);
        } else {
            qps.push_back(std::make_unique<WorkerQp>(WorkerQp::Options{.send = {.depth = 1}}));
            table.add(number, qps.back().get());
            expected[number] = qps.back().get();
        }
        if (i % 50 == 0) {
            for (std::uint32_t n = 0; n < 300; ++n) {
                for (const std::uint32_t key : {n, n << 16}) {
                    const auto found = expected.find(key);
                    ASSERT_EQ(table.find(key), found == expected.end() ? nullptr : found->second) << key;
                }
            }
        }
    }
    ASSERT_EQ(table.size(), expected.size());
}

}  // namespace
}  // namespace pollcore::testing
