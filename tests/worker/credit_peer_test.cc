// Credits at the worker. A peer writes its terms (its limits) once, and then its grants (how many messages this end may
// send). Some peers here are malicious. Other tests check this end's grants, also when many peers share the receives.
#include <array>
#include <random>

#include "credit_fixture.hpp"

namespace pollcore::testing {
namespace {

TEST_F(WorkerCreditTest, CountsGoOnBeyondTheirEnd) {
    const std::uint32_t nearly = 0xfffffff7;
    make_world();
    add_pair({.shares = {{kSender, 16, 4}}, .flow = FlowControl::credits, .counts_from = nearly},
             {.shares = {{kReceiver, 16, 16}}, .flow = FlowControl::credits, .counts_from = nearly}, kNoRetries,
             kNoRetries);
    agree();
    for (std::uint64_t i = 0; i < 40; ++i) {
        submit(send(i));
        turn(3);
        submit(recv(i));
        ASSERT_EQ(world->await(1, kReceiver).size(), 1u);
        ASSERT_EQ(world->await(1, kSender).size(), 1u);
    }
    EXPECT_EQ(sender().consumed(), nearly + 41);
    EXPECT_EQ(receiver().posted(), nearly + 41);
    EXPECT_EQ(world->worker.counters().flow_faults.value(), 0u);
}

TEST_F(WorkerCreditTest, ATornGrantIsReadAgainAndABackwardOneIgnored) {
    make();
    agree();
    const std::uint32_t now = sender().granted();
    submit(send(5));
    grant((GrantWord::pack(now + 3) & 0xffffffff00000000) | now);
    turn();
    EXPECT_EQ(sender().granted(), now);
    grant(GrantWord::pack(now - 1));
    turn();
    EXPECT_EQ(sender().granted(), now);
    grant(0);
    turn();
    EXPECT_EQ(sender().granted(), now);
    EXPECT_TRUE(world->poll(kSender).empty());
    EXPECT_EQ(world->worker.counters().flow_faults.value(), 0u);
    submit(recv(1));
    EXPECT_EQ(world->await(1, kSender).size(), 1u);
}

TEST_F(WorkerCreditTest, MoreGrantsThanAgreedEndTheConnection) {
    make();
    agree();
    grant(GrantWord::pack(sender().consumed() + 16));
    submit(send(5));
    turn();
    EXPECT_EQ(world->worker.counters().flow_faults.value(), 0u) << "as many as it has receives is well";
    make();
    agree();
    grant(GrantWord::pack(sender().consumed() + 17));
    submit(send(5));
    submit(send(6));
    expect_violation(FlowFault::too_many_grants);
    world->to_error(*from[0], QpState::error);  // the control thread does this after a flow fault
    const auto ended = world->await(2, kSender);
    ASSERT_EQ(ended.size(), 2u);
    EXPECT_EQ(ended[0].tag, 5u);
    EXPECT_EQ(ended[0].status, Status::wr_flush_err);
    EXPECT_EQ(ended[1].tag, 6u);
}

TEST_F(WorkerCreditTest, TermsThatCannotBeAreRefused) {
    struct Case {
        FlowTerms terms;
        FlowFault fault;
    };
    const Case cases[] = {{{.magic = 1, .depth = 4}, FlowFault::not_terms},
                          {{.version = 2, .depth = 4}, FlowFault::other_version},
                          {{.features = 1, .depth = 4}, FlowFault::other_features},
                          {{.depth = 0}, FlowFault::no_depth},
                          {{.depth = kQueueDepthMax + 1}, FlowFault::no_depth}};
    for (const Case& bad : cases) {
        SCOPED_TRACE(static_cast<int>(bad.fault));
        make_world();
        add_pair({.shares = {{kSender, 16, 4}}, .flow = FlowControl::credits},
                 {.shares = {{kReceiver, 16, 16}}, .flow = FlowControl::credits, .terms = bad.terms}, kNoRetries,
                 kNoRetries);
        submit(send(1, {.qp = to[0], .flags = 0}), kReceiver);
        expect_violation(bad.fault);
    }
}

TEST_F(WorkerCreditTest, TermsThatAreNotWholeAreReadAgain) {
    make();
    FlowTerms terms{.depth = 16, .message_max = 64};
    const FlowTerms::Words words = terms.sealed();
    for (std::size_t i = 0; i < words.size(); ++i) {
        from[0]->block->terms[i].store(words[i] ^ (i == 1));
    }
    turn();
    EXPECT_FALSE(sender().agreed());
    EXPECT_EQ(world->worker.counters().flow_faults.value(), 0u);
    from[0]->block->terms[1].store(words[1]);
    world->step();
    EXPECT_TRUE(sender().agreed());
    EXPECT_EQ(sender().depth(), 16u);
    EXPECT_EQ(sender().limits().message_max, 64u);
}

// Each connection is granted a part of the shared receives. The unused grants of all connections together never exceed
// the posted receives.
TEST_F(WorkerCreditTest, GrantsOverASharedReceiveQueueAddUpToWhatIsPosted) {
    make_world();
    SteppedWorld::Srq& srq = world->add_srq({.session = kReceiver, .depth = 13, .credit_connections = 4});
    add_pairs(4, {.shares = {{kReceiver, 16, 0}}, .srq = &srq});
    std::mt19937 random(5);
    std::array<std::uint64_t, 4> sent{};
    std::array<std::uint64_t, 4> received{};
    std::uint64_t posted = 0;
    std::uint64_t taken = 0;
    const auto expect_bounded = [&] {
        std::uint32_t unused = 0;
        for (SteppedWorld::Qp* qp : to) {
            unused += credits(*qp).unused_grants();
            ASSERT_LE(credits(*qp).unused_grants(), 3u);
        }
        ASSERT_EQ(unused, srq.grants->granted());
        ASSERT_LE(unused, srq.end->recvs().size());
    };
    for (int i = 0; i < 60'000; ++i) {
        const std::size_t pair = random() % 4;
        // The fourth pair is idle most of the time. Its grants must not keep the other pairs from receiving.
        if ((pair != 3 || random() % 50 == 0) && try_submit(send(sent[pair], {.qp = from[pair]})) == Refusal::none) {
            ++sent[pair];
        }
        if (posted - taken < 13 && random() % 3 == 0) {
            posted += try_submit(recv(posted, {.srq = &srq})) == Refusal::none;
        }
        world->step();
        world->now += 1000;
        for (const Completion& completion : world->poll(kReceiver)) {
            ASSERT_TRUE(completion.ok());
            ++taken;
            for (std::size_t to_pair = 0; to_pair < 4; ++to_pair) {
                received[to_pair] += completion.qp == to[to_pair]->handle();
            }
        }
        for (const Completion& completion : world->poll(kSender)) {
            ASSERT_TRUE(completion.ok());
        }
        expect_bounded();
    }
    for (std::size_t pair = 0; pair < 3; ++pair) {
        EXPECT_GT(received[pair], 1000u) << pair;
    }
    EXPECT_GT(received[3], 50u);
    EXPECT_EQ(world->device->rnr_counts(), RnrCounts{});
    // The senders stop, so some grants stay unused.
    for (int i = 0; i < 1000 && receiver(1).unused_grants() == 0; ++i) {
        posted += try_submit(recv(posted, {.srq = &srq})) == Refusal::none;
        turn(3);
        (void)world->poll(kReceiver);
        (void)world->poll(kSender);
    }
    ASSERT_NE(receiver(1).unused_grants(), 0u);
    // Resetting the receiving queue pair loses no grant.
    for (int i = 0; i < 20; ++i) {
        ASSERT_TRUE(world->reset(*to[1]));
        turn(3);
        (void)world->poll(kReceiver);
        expect_bounded();
    }
    // After a connection has closed, the other connections get its part.
    ASSERT_TRUE(world->close(*to[0]));
    to.erase(to.begin());
    turn();
    expect_bounded();
}

// With many connections each connection's part is small. One connection must be able to go on alone, without waiting
// until the other connections use their parts.
TEST_F(WorkerCreditTest, OfManyOnAPooledSharedReceiveQueueOneGoesOnAlone) {
    make_world({.pool_buffers = 32});
    SteppedWorld::Pool& pool = world->add_pool(32, 64, kReceiver);
    SteppedWorld::Srq& srq =
        world->add_srq({.session = kReceiver, .depth = 8, .pool = &pool, .pool_share = 16, .credit_connections = 8});
    add_pairs(8, {.shares = {{kReceiver, 16, 0}}, .srq = &srq});
    for (std::uint64_t i = 0; i < 100; ++i) {
        submit(send(i, {.qp = from[3]}));
        const auto received = world->await(1, kReceiver);
        ASSERT_EQ(received.size(), 1u) << i;
        ASSERT_EQ(world->session(kReceiver).release(received[0]), Refusal::none);
        ASSERT_EQ(world->await(1, kSender).size(), 1u);
    }
    // A message that is too long for its receive ends the connection. The receive that the message took is posted
    // again.
    for (const std::size_t bad : {0u, 1u, 2u}) {
        post_past_the_worker(*from[bad], 200);
        turn();
    }
    (void)world->poll(kSender);
    EXPECT_EQ(srq.end->recvs().taker().posted(), 8u);
    for (std::uint64_t i = 0; i < 30; ++i) {
        submit(send(i, {.qp = from[4]}));
        const auto received = world->await(1, kReceiver);
        ASSERT_EQ(received.size(), 1u) << i;
        ASSERT_EQ(world->session(kReceiver).release(received[0]), Refusal::none);
        ASSERT_EQ(world->await(1, kSender).at(0).tag, i);
    }
}

// A peer may write into this end's control block at any time.
TEST_F(WorkerCreditTest, APeerCannotChangeWhatIsSaidOfUs) {
    make();
    for (auto& word : from[0]->block->own) {
        word.store(0x5555);
    }
    agree();
    EXPECT_EQ(receiver().depth(), 4u);
    ASSERT_TRUE(world->reset(*from[0]));
    EXPECT_EQ(sender().limits().message_max, 0u);
    EXPECT_EQ(sender().depth(), 0u);
    EXPECT_EQ(world->session(kSender).message_max(from[0]->handle()), 0u);
}

TEST_F(WorkerCreditTest, AMessageBeyondTheGrantsOfASharedReceiveQueueEndsTheConnection) {
    make_world();
    SteppedWorld::Srq& srq = world->add_srq({.session = kReceiver, .depth = 8, .credit_connections = 2});
    add_pairs(1, {.shares = {{kReceiver, 16, 0}}, .srq = &srq, .terms = FlowTerms{.depth = 16, .message_max = 64}});
    for (std::uint64_t i = 0; i < 8; ++i) {
        submit(recv(i, {.srq = &srq}));
    }
    submit(send(0));
    ASSERT_EQ(world->await(1, kSender).size(), 1u);
    // The test makes the sender's worker believe that it has more grants than it was given.
    grant(GrantWord::pack(sender().consumed() + 6));
    for (std::uint64_t i = 1; i < 7; ++i) {
        submit(send(i));
    }
    turn();
    EXPECT_EQ(world->worker.counters().flow_faults.value(), 1u);
    EXPECT_EQ(world->session(kReceiver).cause(to[0]->handle()), Status::flow_violation);
}

}  // namespace
}  // namespace pollcore::testing
