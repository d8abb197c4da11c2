// Credits at the worker: which requests wait and for how long, in what order they are posted, and how they end.
#include <array>
#include <cstring>

#include "credit_fixture.hpp"

namespace pollcore::testing {
namespace {

TEST_F(WorkerCreditTest, ASendWaitsForItsReceive) {
    make();
    submit(send(1));
    turn();
    EXPECT_TRUE(world->poll(kSender).empty());
    EXPECT_EQ(world->worker.counters().sends.value(), 0u);
    EXPECT_EQ(world->worker.counters().waits_for_credit.value(), 1u);
    submit(recv(7));
    const auto received = world->await(1, kReceiver);
    ASSERT_EQ(received.size(), 1u);
    EXPECT_EQ(received[0].tag, 7u);
    const auto sent = world->await(1, kSender);
    ASSERT_EQ(sent.size(), 1u);
    EXPECT_TRUE(sent[0].ok());
}

// The device's own post_recv, kept while a test has replaced it.
int (*post_recv_of_device)(ibv_qp*, ibv_recv_wr*, ibv_recv_wr**) = nullptr;

TEST_F(WorkerCreditTest, AReceiveThatTheProviderRefusesIsGrantedToNobody) {
    make();
    agree();
    ibv_context_ops& ops = world->device->context()->ops;
    post_recv_of_device = ops.post_recv;
    ops.post_recv = [](ibv_qp*, ibv_recv_wr* wr, ibv_recv_wr** bad) {
        *bad = wr;
        return EINVAL;
    };
    submit(recv(2));
    turn();
    const auto refused = world->poll(kReceiver);
    ASSERT_EQ(refused.size(), 1u);
    EXPECT_EQ(refused[0].status, Status::post_refused);
    // The connection allows no retries, so a send that found no receive would end the connection.
    submit(send(2));
    turn();
    EXPECT_TRUE(world->poll(kSender).empty());
    EXPECT_EQ(world->session(kSender).state(from[0]->handle()), QpState::ready);
    ops.post_recv = post_recv_of_device;
    submit(recv(3));
    const auto sent = world->await(1, kSender);
    ASSERT_EQ(sent.size(), 1u);
    EXPECT_EQ(sent[0].status, Status::success);
    ASSERT_EQ(world->await(1, kReceiver).size(), 1u);
}

TEST_F(WorkerCreditTest, NoneOfManyMeetsAReceiverThatIsNotReady) {
    make();
    std::uint64_t sent = 0;
    std::uint64_t received = 0;
    std::uint64_t ended = 0;
    std::uint64_t posted = 0;
    for (int i = 0; i < 20'000 && received < 3000; ++i) {
        if (sent < 3000 && try_submit(send(sent, {.flags = signaled_if(sent % 3 == 0)})) == Refusal::none) {
            ++sent;
        }
        if (i % 7 == 0 && try_submit(recv(posted)) == Refusal::none) {
            ++posted;
        }
        world->step();
        world->now += 1000;
        for (const Completion& completion : world->poll(kReceiver)) {
            ASSERT_TRUE(completion.ok());
            ASSERT_EQ(completion.tag, received++);
        }
        for (const Completion& completion : world->poll(kSender)) {
            ASSERT_TRUE(completion.ok());
            ++ended;
        }
    }
    EXPECT_GT(received, 2000u);
    EXPECT_GT(ended, 600u);
    EXPECT_GT(world->worker.counters().waits_for_credit.value(), 1000u);
    EXPECT_EQ(world->device->rnr_counts(), RnrCounts{});
}

TEST_F(WorkerCreditTest, WhatComesBehindOneThatWaitsWaitsToo) {
    make();
    agree();
    const std::uint64_t mark = 0x1122334455667788;
    std::memcpy(source->data(), &mark, sizeof(mark));
    submit(send(10));
    submit(write(11));
    submit(send(12));
    turn();
    std::uint64_t there = 0;
    std::memcpy(&there, target->data(), sizeof(there));
    EXPECT_EQ(there, 0u);
    submit(recv(1));
    const auto ended = world->await(2, kSender);
    ASSERT_EQ(ended.size(), 2u);
    EXPECT_EQ(ended[0].tag, 10u);
    EXPECT_EQ(ended[1].tag, 11u);
    std::memcpy(&there, target->data(), sizeof(there));
    EXPECT_EQ(there, mark);
    turn();
    EXPECT_TRUE(world->poll(kSender).empty());
    submit(recv(2));
    EXPECT_EQ(world->await(1, kSender).at(0).tag, 12u);
}

TEST_F(WorkerCreditTest, WritesWithImmediateTakeAReceiveAndWritesDoNot) {
    make();
    agree();
    for (std::uint64_t i = 0; i < 50; ++i) {
        submit(write(i));
        EXPECT_EQ(world->await(1, kSender).at(0).tag, i);
    }
    WorkRequest with_imm = request(Opcode::rdma_write_with_imm, 90);
    with_imm.imm_data = 0xabcd;
    submit(with_imm);
    turn();
    EXPECT_TRUE(world->poll(kSender).empty());
    submit(recv(3));
    const auto received = world->await(1, kReceiver);
    ASSERT_EQ(received.size(), 1u);
    EXPECT_EQ(received[0].opcode, CompletionOpcode::recv_rdma_with_imm);
    EXPECT_EQ(received[0].imm_data, 0xabcdu);
}

// The session reads the limits once for a burst of messages to one queue pair.
TEST_F(WorkerCreditTest, OfABurstTheSessionTakesWhatItsShareHasRoomForAndNoneThatIsTooLong) {
    make_world();
    add_pair({.shares = {{kSender, 16, 4}}, .flow = FlowControl::credits},
             {.shares = {{kReceiver, 16, 16}},
              .flow = FlowControl::credits,
              .terms = FlowTerms{.depth = 16, .message_max = 8}},
             kNoRetries, kNoRetries);
    agree();
    std::array<WorkRequest, 20> burst;
    for (std::uint64_t i = 0; i < burst.size(); ++i) {
        burst[i] = send(i);
    }
    burst[3].sge.length = 9;
    Submitted taken = world->session(kSender).try_submit(burst);
    EXPECT_EQ(taken.accepted, 3u);
    EXPECT_EQ(taken.refusal, Refusal::message_too_long);
    taken = world->session(kSender).try_submit(std::span(burst).subspan(4));
    EXPECT_EQ(taken.accepted, 13u);
    EXPECT_EQ(taken.refusal, Refusal::send_queue_full);
    EXPECT_EQ(world->session(kSender).figures().in_flight(), 16u);
}

TEST_F(WorkerCreditTest, OfABurstAsManyGoTogetherAsThePeerHasReceivesAndOneTooLongIsLeftOut) {
    make_world();
    add_pair({.shares = {{kSender, 16, 4}}, .flow = FlowControl::credits},
             {.shares = {{kReceiver, 16, 16}},
              .flow = FlowControl::credits,
              .terms = FlowTerms{.depth = 16, .message_max = 8}},
             kNoRetries, kNoRetries);
    agree();
    for (std::uint64_t i = 0; i < 6; ++i) {
        submit(recv(i));
    }
    turn();  // now the peer has granted these receives
    const SteppedWorld::End& end = *world->ends[kSender];
    auto* const records = at_offset<QpRecord>(end.block, end.layout.records());
    records[from[0]->handle().index].longest.store(MessageLimitsWord{.message_max = 0xffffffff}.pack());
    std::array<WorkRequest, 10> burst;
    for (std::uint64_t i = 0; i < burst.size(); ++i) {
        burst[i] = send(i);
    }
    burst[2].sge.length = 9;  // a library that ignores the limit could submit this
    submit(burst);
    const std::uint64_t doorbells = world->worker.counters().send_doorbells.value();
    const std::uint64_t sends = world->worker.counters().sends.value();
    world->step();
    EXPECT_EQ(world->worker.counters().sends.value() - sends, 6u);
    EXPECT_EQ(world->worker.counters().send_doorbells.value() - doorbells, 1u);
    // 3 of this burst; 1 message waited before the terms had come
    EXPECT_EQ(world->worker.counters().waits_for_credit.value(), 3u + 1);
    EXPECT_EQ(sender().consumed(), sender().granted());
    const auto received = world->await(6, kReceiver);
    ASSERT_EQ(received.size(), 6u);
    auto ended = world->await(7, kSender);
    ASSERT_EQ(ended.size(), 7u);
    EXPECT_EQ(ended[0].tag, 2u);
    EXPECT_EQ(ended[0].status, Status::message_too_long);
    for (std::size_t i = 0; const std::uint64_t tag : {0u, 1u, 3u, 4u, 5u, 6u}) {
        EXPECT_TRUE(ended[++i].ok());
        EXPECT_EQ(ended[i].tag, tag);
    }
    EXPECT_EQ(world->device->rnr_counts(), RnrCounts{});
}

// A client that bypasses the library could submit this request.
TEST_F(WorkerCreditTest, ASendWithoutSgesHasNoLengthToBeTooLong) {
    make();
    agree();
    submit(recv(1));
    turn();
    WorkRequest empty = send(3);
    empty.num_sge = 0;
    empty.sge.length = 1u << 30;
    ASSERT_TRUE(world->raw(kSender).try_push(empty));
    const auto received = world->await(1, kReceiver);
    ASSERT_EQ(received.size(), 1u);
    EXPECT_TRUE(received[0].ok());
    EXPECT_EQ(received[0].byte_len, 0u);
}

TEST_F(WorkerCreditTest, AnotherQueuePairOfTheSessionGoesOn) {
    make(2);
    for (std::uint64_t i = 0; i < 16; ++i) {
        submit(send(i));
    }
    EXPECT_EQ(try_submit(send(16)), Refusal::send_queue_full);
    for (std::uint64_t i = 0; i < 100; ++i) {
        submit(recv(i, {.qp = to[1]}));
        submit(send(100 + i, {.qp = from[1]}));
        EXPECT_EQ(world->await(1, kSender).at(0).tag, 100 + i);
        EXPECT_EQ(world->await(1, kReceiver).at(0).tag, i);
    }
    for (std::uint64_t i = 0; i < 16; ++i) {
        submit(recv(i));
    }
    EXPECT_EQ(world->await(16, kSender).size(), 16u);
}

TEST_F(WorkerCreditTest, WhatWaitsForAPeerThatHasVanishedEnds) {
    constexpr std::uint64_t kProbe = 1'000'000;
    SteppedWorld::Options options;
    options.worker.probe_cycles = kProbe;
    make(1, std::move(options));
    agree();
    submit(send(7));  // the peer has granted no receive for this message
    turn();
    const std::uint64_t before = world->worker.counters().grants.value();
    for (int i = 0; i < 10; ++i) {
        world->now += kProbe;
        turn(5);
    }
    EXPECT_EQ(world->worker.counters().grants.value(), before + 10) << "so often, and no oftener";
    EXPECT_EQ(world->session(kSender).state(from[0]->handle()), QpState::ready) << "it is slow, and there";

    world->soft().inject({.kind = SoftFault::Kind::lose_packet, .qp_num = to[0]->qp->qp_num, .count = 1'000'000});
    std::array<Completion, 2> ended;
    for (int i = 0; i < 1000 && world->session(kSender).poll(ended) == 0; ++i) {
        world->now += kProbe * 10;
        turn(1);
    }
    EXPECT_EQ(ended[0].tag, 7u);
    EXPECT_EQ(ended[0].status, Status::wr_flush_err);
    EXPECT_EQ(world->session(kSender).cause(from[0]->handle()), Status::retry_exc_err);
}

TEST_F(WorkerCreditTest, WhatWaitsKeepsItsBytesAndItsPieces) {
    make();
    agree();
    std::array<std::byte, 60> text;
    for (std::size_t i = 0; i < text.size(); ++i) {
        text[i] = static_cast<std::byte>(i + 3);
        *source->data(200 + i) = static_cast<std::byte>(i + 90);
    }
    ASSERT_EQ(world->session(kSender).try_submit_inline(send(1), text), Refusal::none);
    const std::array pieces{source->sge(5, 200), source->sge(7, 220), source->sge(1, 230), source->sge(9, 210)};
    ASSERT_EQ(world->session(kSender).try_submit(send(2), pieces), Refusal::none);
    ASSERT_EQ(world->session(kSender).try_submit_inline(send(3), std::span(text).first(3)), Refusal::none);
    turn();
    text.fill(std::byte{0});  // has no effect, because the payload was copied at submission
    EXPECT_TRUE(world->uses_key(0, 0, source->lkey(), {}));
    for (std::uint64_t i = 0; i < 3; ++i) {
        submit(recv(i, {.to = kReceived + 64 * i}));
    }
    const auto received = world->await(3, kReceiver);
    ASSERT_EQ(received.size(), 3u);
    EXPECT_EQ(received[0].byte_len, 60u);
    EXPECT_EQ(received[1].byte_len, 22u);
    EXPECT_EQ(received[2].byte_len, 3u);
    for (std::size_t i = 0; i < text.size(); ++i) {
        EXPECT_EQ(*target->data(kReceived + i), static_cast<std::byte>(i + 3));
    }
    std::size_t at = kReceived + 64;
    for (const Sge& piece : pieces) {
        const std::size_t begin = piece.addr - source->addr();
        EXPECT_EQ(std::memcmp(target->data(at), source->data(begin), piece.length), 0);
        at += piece.length;
    }
    EXPECT_EQ(world->await(3, kSender).size(), 3u);
    turn();
    EXPECT_FALSE(world->uses_key(0, 0, source->lkey(), {}));
}

// A session may change the contents of its submission ring at any time (I7).
TEST(WaitingRequests, KeepARequestAsItWasChecked) {
    struct Changed {
        [[nodiscard]] static WorkRequest copy(std::size_t) {
            return {.sge = {.length = 0xffffffff}, .opcode = Opcode{200}, .flags = kInline, .num_sge = 255};
        }
    };
    WaitingRequests waiting(4, 3);
    WorkRequest checked{.tag = 7, .opcode = Opcode::send, .num_sge = 4};
    for (int i = 0; i < 10; ++i) {
        waiting.push(*reinterpret_cast<WorkerSession*>(64), checked, Changed{}, 0);
        EXPECT_EQ(waiting.copy(0).tag, 7u);
        EXPECT_EQ(waiting.copy(0).opcode, Opcode::send);
        EXPECT_EQ(waiting.copy(1).opcode, Opcode{200}) << "a continuation, of which only the keys of SGEs are used";
        waiting.pop(slots_of(waiting.copy(0)));
        EXPECT_TRUE(waiting.empty());
    }
}

TEST_F(WorkerCreditTest, OfWhatWaitsTheKeysAreKnown) {
    make();
    submit(send(1));
    turn();
    EXPECT_TRUE(world->uses_key(0, 0, source->lkey(), {}));
    EXPECT_FALSE(world->uses_key(0, 0, source->lkey() + 1000, {}));
}

TEST_F(WorkerCreditTest, AnErrorFlushesWhatWaitsBehindWhatWasPosted) {
    make();
    agree();
    submit(recv(1));
    turn();
    for (std::uint64_t i = 0; i < 10; ++i) {
        submit(send(i, {.flags = signaled_if(i % 2 == 0)}));
    }
    world->step();
    world->to_error(*from[0]);
    const auto ended = world->await(10, kSender);
    ASSERT_EQ(ended.size(), 10u);
    for (std::uint64_t i = 0; i < 10; ++i) {
        EXPECT_EQ(ended[i].tag, i);
        EXPECT_EQ(ended[i].status, i == 0 ? Status::success : Status::wr_flush_err);  // only tag 0 had a receive
    }
    EXPECT_EQ(world->session(kSender).figures().in_flight(), 0u);
    EXPECT_TRUE(world->close(*from[0]));
}

TEST_F(WorkerCreditTest, WhatIsTakenInTheStepOfTheErrorEndsBehindWhatWaits) {
    make();
    agree();
    submit(send(2));
    submit(send(3));
    turn();
    // In one step the worker learns of the error and takes the write from the ring.
    world->proxy.while_parked(from[0]->handle(), QpState::ready, QpState::error, Status::wr_flush_err, [&] {
        Transition error = to_state(IBV_QPS_ERR);
        world->device->modify(from[0]->qp.get(), error.attr, error.mask);
        submit(write(4));
    });
    const auto ended = world->await(3, kSender);
    ASSERT_EQ(ended.size(), 3u);
    for (std::size_t i = 0; i < ended.size(); ++i) {
        EXPECT_EQ(ended[i].tag, 2 + i);
        EXPECT_EQ(ended[i].status, Status::wr_flush_err);
    }
}

TEST_F(WorkerCreditTest, AMessageThatIsTooLongIsRefusedWithTheLimitNamed) {
    make_world({.pool_buffers = 32});
    SteppedWorld::Pool& pool = world->add_pool(32, 100, kReceiver);
    add_pairs(1, {.shares = {{kReceiver, 16, 0}}, .pool = {.pool = &pool}});
    EXPECT_EQ(world->session(kSender).message_max(from[0]->handle()), 0u);
    const WorkRequest longer = send(1, {.length = 101});
    // Both messages are accepted, because the session does not know the peer's limit yet.
    submit(longer);
    submit(send(2));
    const auto ended = world->await(2, kSender);
    ASSERT_EQ(ended.size(), 2u);
    EXPECT_EQ(ended[0].tag, 1u);
    EXPECT_EQ(ended[0].status, Status::message_too_long);
    EXPECT_EQ(ended[1].tag, 2u);
    EXPECT_TRUE(ended[1].ok());
    EXPECT_EQ(world->session(kSender).message_max(from[0]->handle()), 100u);
    EXPECT_EQ(try_submit(longer), Refusal::message_too_long);
    const std::array pieces{source->sge(60), source->sge(41)};
    EXPECT_EQ(world->session(kSender).try_submit(send(3), pieces), Refusal::message_too_long);
    ASSERT_EQ(world->session(kReceiver).release(world->await(1, kReceiver).at(0)), Refusal::none);
    ASSERT_EQ(try_submit(write(1, {.length = 101})), Refusal::none) << "a write takes no receive";
    EXPECT_TRUE(world->await(1, kSender).at(0).ok());
    EXPECT_EQ(world->session(kSender).state(from[0]->handle()), QpState::ready);
    EXPECT_EQ(world->session(kSender).figures().in_flight(), 0u);
}

TEST_F(WorkerCreditTest, TheRuntimesOwnWritesReachNoSessionAndKeepToTheirSlots) {
    make();
    agree();
    const std::uint64_t grants = world->worker.counters().grants.value();
    for (std::uint64_t i = 0; i < 500; ++i) {
        submit(recv(i));
        world->step();
        EXPECT_LE(receiver().writes(), BlockFlow::kWritesMax);
        submit(send(i));
        EXPECT_EQ(world->await(1, kReceiver).at(0).tag, i);
        EXPECT_EQ(world->await(1, kSender).at(0).tag, i);
    }
    turn();
    EXPECT_GT(world->worker.counters().grants.value(), grants + 200);
    EXPECT_LT(receiver().writes(), BlockFlow::kWritesMax);
    EXPECT_EQ(world->session(kReceiver).figures().accepted, 501u);
    EXPECT_EQ(world->session(kReceiver).figures().completed, 501u);
    EXPECT_EQ(world->worker.counters().stale_completions.value(), 0u);
}

TEST_F(WorkerCreditTest, GrantsThatFindNoSlotGoTogetherLater) {
    make();
    agree();
    world->soft().inject(
        {.kind = SoftFault::Kind::post_send, .qp_num = to[0]->qp->qp_num, .count = 5, .error = ENOMEM});
    for (std::uint64_t i = 0; i < 10; ++i) {
        submit(recv(i));
        world->step();
    }
    for (std::uint64_t i = 0; i < 10; ++i) {
        submit(send(i));
    }
    EXPECT_EQ(world->await(10, kSender).size(), 10u);
    EXPECT_EQ(world->worker.counters().post_failures.value(), 5u);
}

TEST_F(WorkerCreditTest, AResetBeginsTheCountsAgain) {
    make();
    agree();
    for (int life = 0; life < 3; ++life) {
        submit(send(1));
        turn(5);
        ASSERT_TRUE(world->reset(*from[0]));
        ASSERT_TRUE(world->reset(*to[0]));
        (void)world->poll(kSender);
        (void)world->poll(kReceiver);
        EXPECT_FALSE(sender().agreed());
        connect(*from[0], *to[0], kNoRetries, kNoRetries);
        for (std::uint64_t i = 0; i < 30; ++i) {
            submit(send(i));
            submit(recv(i));
            ASSERT_EQ(world->await(1, kSender).at(0).tag, i);
            ASSERT_EQ(world->await(1, kReceiver).at(0).tag, i);
        }
    }
    EXPECT_EQ(world->device->rnr_counts(), RnrCounts{});
}

TEST_F(WorkerCreditTest, AWindowWhoseBindWaitsIsInUse) {
    make();
    Buffer& bindable = buffer(64, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND);
    SteppedWorld::Window& window = world->add_window();
    const MrHandle handle = world->make_bindable(*bindable.mr);
    submit(send(1));
    submit(bind(2, *from[0], window, bindable, handle));
    turn();
    EXPECT_TRUE(world->uses_window(window.handle()));
    EXPECT_FALSE(world->proxy.remove_window(window.handle()));
    EXPECT_FALSE(world->proxy.remove_region(handle));
    submit(recv(1));
    const auto ended = world->await(2, kSender);
    ASSERT_EQ(ended.size(), 2u);
    EXPECT_EQ(ended[1].tag, 2u);
    EXPECT_TRUE(ended[1].ok());
    EXPECT_TRUE(world->proxy.remove_region(handle));
    // The window and the region are also released if the queue pair fails while the bind waits.
    SteppedWorld::Window& other = world->add_window();
    const MrHandle again = world->make_bindable(*bindable.mr);
    submit(send(3));
    submit(bind(4, *from[0], other, bindable, again));
    turn();
    world->to_error(*from[0]);
    EXPECT_EQ(world->await(2, kSender).size(), 2u);
    EXPECT_TRUE(world->proxy.remove_window(other.handle()));
    EXPECT_TRUE(world->proxy.remove_region(again));
}

// A peer's write to memory raises no event, so a sleeping worker looks for credit from time to time.
TEST_F(WorkerCreditTest, AWorkerThatSleepsLooksForCredit) {
    SteppedWorld::Options sleeping;
    sleeping.sleeps = true;
    make(1, std::move(sleeping));
    const auto sleep = [&] {
        for (int i = 0; i < 100; ++i) {
            if (world->worker.fall_asleep(world->now)) {
                return true;
            }
            world->step();
        }
        return false;
    };
    agree();
    ASSERT_TRUE(sleep());
    EXPECT_EQ(world->worker.look_every_ns(), CompletionChannel::kNever);
    world->worker.wake_up(world->now);
    submit(send(5));
    world->step();
    ASSERT_TRUE(sleep());
    EXPECT_EQ(world->worker.look_every_ns(), 50'000u);
    EXPECT_FALSE(world->worker.woken(false, world->now));
    grant(GrantWord::pack(sender().granted() + 1));
    EXPECT_TRUE(world->worker.woken(false, world->now));
    world->worker.wake_up(world->now);
}

}  // namespace
}  // namespace pollcore::testing
