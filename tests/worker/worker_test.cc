// The worker, stepped by hand on the software device. There is no second thread, so everything happens in the test's
// own calls.
#include <array>
#include <cstring>

#include <gtest/gtest.h>

#include "worker_fixture.hpp"

namespace pollcore::testing {
namespace {

class WorkerTest : public WorkerFixture {};

TEST_F(WorkerTest, AnIdleStepDoesNothing) {
    make();
    EXPECT_EQ(world->step(10), 0u);
    EXPECT_EQ(world->worker.counters().send_doorbells.value(), 0u);
    EXPECT_TRUE(world->poll().empty());
}

TEST_F(WorkerTest, AWriteCompletesOnlyAfterAStep) {
    make();
    submit(write(42));
    EXPECT_TRUE(world->poll().empty());
    const Completion completion = one();
    EXPECT_EQ(completion.tag, 42u);
    EXPECT_EQ(completion.status, Status::success);
    EXPECT_EQ(completion.opcode, CompletionOpcode::rdma_write);
    EXPECT_EQ(completion.qp, a->handle());
    EXPECT_EQ(std::memcmp(source->data(), target->data(), 8), 0);
}

TEST_F(WorkerTest, ABurstToOneQpTakesOneDoorbell) {
    make();
    for (std::uint64_t tag = 0; tag < 8; ++tag) {
        submit(write(tag));
    }
    world->step();
    EXPECT_EQ(world->worker.counters().send_doorbells.value(), 1u);
    const auto completions = world->await(8);
    ASSERT_EQ(completions.size(), 8u);
    for (std::uint64_t tag = 0; tag < 8; ++tag) {
        EXPECT_EQ(completions[tag].tag, tag);
    }
}

TEST_F(WorkerTest, TwoQpsInOneBurstTakeOneDoorbellEach) {
    make();
    for (std::uint64_t tag = 0; tag < 8; ++tag) {
        submit(write(tag, {.qp = tag % 2 == 0 ? a : b}));
    }
    world->step();
    EXPECT_EQ(world->worker.counters().send_doorbells.value(), 2u);
    EXPECT_EQ(world->await(8).size(), 8u);
}

TEST_F(WorkerTest, AMessageReachesItsReceiveWithLengthAndImmediate) {
    make();
    submit(recv(1));
    WorkRequest message = send(2, {.length = 24});
    message.opcode = Opcode::send_with_imm;
    message.imm_data = 0x12345678;
    submit(message);
    const auto completions = world->await(2);
    ASSERT_EQ(completions.size(), 2u);
    const Completion& received = completions[0].from_recv_queue() ? completions[0] : completions[1];
    EXPECT_EQ(received.tag, 1u);
    EXPECT_EQ(received.byte_len, 24u);
    EXPECT_EQ(received.flags, kFromRecvQueue | kWithImm);
    EXPECT_EQ(received.imm_data, 0x12345678u);
    EXPECT_EQ(received.opcode, CompletionOpcode::recv);
    EXPECT_EQ(std::memcmp(source->data(), target->data(kReceived), 24), 0);
}

TEST_F(WorkerTest, UnsignaledWorkIsRetiredAndCountedWithoutACompletion) {
    make();
    for (std::uint64_t tag = 0; tag < 3; ++tag) {
        submit(write(tag, {.flags = 0}));
    }
    submit(write(3));
    EXPECT_EQ(one().tag, 3u);
    EXPECT_EQ(world->session().retired(a->handle()), 3u);
    EXPECT_EQ(world->session().figures().in_flight(), 0u);
    // After a quarter of the queue, the worker itself signals one request.
    for (std::uint64_t tag = 4; tag < 8; ++tag) {
        submit(write(tag, {.flags = 0}));
    }
    world->step(20);
    EXPECT_TRUE(world->poll().empty());
    EXPECT_EQ(world->session().retired(a->handle()), 7u);
}

TEST_F(WorkerTest, UnsignaledWorkAloneNeverWedgesTheSendQueue) {
    for (const std::uint32_t depth : {1u, 2u, 3u, 16u}) {
        make({.shares = {{0, depth, 1}}});
        std::uint64_t accepted = 0;
        for (int i = 0; i < 5000 && accepted < 200; ++i) {
            accepted += try_submit(write(accepted, {.flags = 0})) == Refusal::none;
            world->step();
            ASSERT_TRUE(world->poll().empty());
        }
        EXPECT_EQ(accepted, 200u) << "depth " << depth;
    }
}

TEST_F(WorkerTest, UnsignaledWorkAloneNeverWedgesTheCompletionRing) {
    SteppedWorld::Options options;
    for (const std::uint32_t slots : {1u, 2u, 4u}) {
        options.completion_slots = slots;
        make({}, options);
        std::uint64_t accepted = 0;
        for (int i = 0; i < 5000 && accepted < 200; ++i) {
            accepted += try_submit(write(accepted, {.qp = accepted % 2 == 0 ? a : b, .flags = 0})) == Refusal::none;
            world->step();
        }
        EXPECT_EQ(accepted, 200u) << slots << " slots";
    }
}

TEST_F(WorkerTest, ARefusalNamesTheLimitThatWasReached) {
    SteppedWorld::Options options;
    options.submission_slots = 4;
    options.completion_slots = 16;
    make({.shares = {{0, 6, 2}}}, options);
    Session& session = world->session();
    for (int i = 0; i < 4; ++i) {
        submit(write(1));
    }
    EXPECT_EQ(session.try_submit(write(1)), Refusal::submission_ring_full);
    world->step();
    submit(write(1));
    submit(write(1));
    EXPECT_EQ(session.try_submit(write(1)), Refusal::send_queue_full);
    submit(recv(1));
    submit(recv(1));
    EXPECT_EQ(session.try_submit(recv(1)), Refusal::receive_queue_full);
    world->step(4);
    const WorkRequest other = write(1, {.qp = b});
    int accepted = 0;
    Refusal refusal = Refusal::none;
    while ((refusal = session.try_submit(other)) == Refusal::none) {
        ++accepted;
        world->step(2);
    }
    EXPECT_EQ(refusal, Refusal::send_queue_full);
    EXPECT_EQ(accepted, 6);
    const WorkRequest more = recv(9, {.qp = a});
    ASSERT_EQ(session.try_submit(more), Refusal::none);
    ASSERT_EQ(session.try_submit(more), Refusal::none);
    world->step();
    EXPECT_EQ(session.try_submit(more), Refusal::receive_queue_full);
    EXPECT_EQ(session.figures().in_flight(), 16u);
    EXPECT_EQ(world->poll().size(), 12u);
    EXPECT_EQ(session.try_submit(other), Refusal::none);
}

TEST_F(WorkerTest, RequestsThatCanNeverWorkAreRefusedWithTheirReason) {
    make();
    Session& session = world->session();
    WorkRequest request = write(1);
    request.qp.generation ^= 0x5555;
    EXPECT_EQ(session.try_submit(request), Refusal::stale_handle);
    request = write(1);
    request.qp.index = 900;
    EXPECT_EQ(session.try_submit(request), Refusal::stale_handle);
    request = write(1);
    request.opcode = static_cast<Opcode>(77);
    EXPECT_EQ(session.try_submit(request), Refusal::bad_opcode);
    EXPECT_EQ(session.try_submit(write(1, {.flags = kSignaled | 1 << 5})), Refusal::bad_flags);
    EXPECT_EQ(session.try_submit(this->request(Opcode::rdma_read, 1).with_flags(kInline)), Refusal::bad_flags);
    EXPECT_EQ(session.try_submit(write(1).with_flags(kInline), std::array{source->sge(8)}), Refusal::bad_flags);
    request = write(1);
    request.num_sge = 2;
    EXPECT_EQ(session.try_submit(request), Refusal::too_many_sges);
    EXPECT_EQ(session.try_submit(request.with_flags(kInline)), Refusal::too_many_sges);
    const std::array<Sge, 5> five{};
    EXPECT_EQ(session.try_submit(write(1), five), Refusal::too_many_sges);
    const std::array<std::byte, 65> long_payload{};
    EXPECT_EQ(session.try_submit_inline(write(1), long_payload), Refusal::inline_too_long);
    EXPECT_EQ(session.try_submit(write(1).with_inline(long_payload)), Refusal::inline_too_long);
    EXPECT_EQ(session.try_submit(this->request(Opcode::atomic_fetch_and_add, 1, {.to = 4})),
              Refusal::misaligned_atomic);
    EXPECT_EQ(session.try_submit(this->request(Opcode::atomic_fetch_and_add, 1, {.length = 4})),
              Refusal::misaligned_atomic);
    EXPECT_EQ(
        session.try_submit(this->request(Opcode::atomic_fetch_and_add, 1), std::array{source->sge(4), source->sge(4)}),
        Refusal::misaligned_atomic);
    EXPECT_EQ(session.try_submit(write(1, {.qp = &world->add_qp()})), Refusal::not_connected);
    EXPECT_EQ(session.figures().accepted, 0u);
    EXPECT_EQ(session.figures().refused, 15u);
}

TEST_F(WorkerTest, AHandleThatNamesNoQueuePairIsThatOfAClosedOne) {
    make();
    const QpHandle here = a->handle();
    for (const QpHandle& qp : {QpHandle{}, QpHandle{900, 0}, QpHandle{900, 1}, QpHandle{65535, 1},
                               QpHandle{here.index, static_cast<std::uint16_t>(here.generation + 1)}}) {
        EXPECT_EQ(world->session().state(qp), QpState::closed) << qp.index;
        EXPECT_EQ(world->session().cause(qp), Status::qp_closed) << qp.index;
    }
    EXPECT_EQ(world->session().cause(here), Status::success);
    EXPECT_EQ(Session().state(here), QpState::closed);
    EXPECT_EQ(Session().cause(here), Status::qp_closed);
}

TEST_F(WorkerTest, AnSgeThatIsNotCountedIsRefused) {
    make();
    Session& session = world->session();
    submit(write(1));  // after this the session knows the form of an ordinary request of this queue pair
    std::vector<WorkRequest> forgotten{write(2), send(2), recv(2), this->request(Opcode::rdma_read, 2)};
    for (WorkRequest& request : forgotten) {
        request.num_sge = 0;
        EXPECT_EQ(session.try_submit(request), Refusal::no_sge);
        const std::array several{write(3), request};
        const Submitted submitted = session.try_submit(several);
        EXPECT_EQ(submitted.accepted, 1u);
        EXPECT_EQ(submitted.refusal, Refusal::no_sge);
    }
    EXPECT_EQ(world->await(1 + forgotten.size()).size(), 1 + forgotten.size());
    WorkRequest empty = write(4, {.length = 0});
    empty.num_sge = 0;
    submit(empty);
    EXPECT_EQ(one().status, Status::success);
}

// The worker does not trust a client's library and checks again.
TEST_F(WorkerTest, AnAtomicThatIsNotOf8BytesIsRefusedByTheWorker) {
    make();
    ASSERT_TRUE(world->raw().try_push(this->request(Opcode::atomic_fetch_and_add, 1, {.length = 4})));
    EXPECT_EQ(one().status, Status::request_refused);
}

// Bug found by the simulation: a reset made the retired count of the old handle begin again.
TEST_F(WorkerTest, WhatWasRetiredOfAHandleStaysAfterAReset) {
    make();
    Session& session = world->session();
    for (std::uint64_t tag = 0; tag < 3; ++tag) {
        submit(write(tag, {.flags = 0}));
    }
    submit(write(3));
    ASSERT_EQ(world->await(1).size(), 1u);
    const QpHandle old = a->handle();
    EXPECT_EQ(session.retired(old), 3u);
    WorkRequest bad = write(9);
    bad.rkey ^= 0xff00ff;
    submit(bad);
    EXPECT_EQ(one().status, Status::rem_access_err);
    world->reset(*a);
    EXPECT_EQ(session.retired(old), 3u);
    EXPECT_EQ(session.retired(a->handle()), 0u);
    world->reset(*b);
    connect(*a, *b);
    submit(write(4, {.flags = 0}));
    submit(write(5));
    EXPECT_EQ(one().tag, 5u) << "a failure before the reset does not count in the new life";
    EXPECT_EQ(session.retired(a->handle()), 1u);
}

TEST_F(WorkerTest, SeveralSgesAndInlinePayloadsArriveWhole) {
    make();
    const std::array<Sge, 4> sges{source->sge(5, 100), source->sge(1, 0), source->sge(0, 0), source->sge(20, 200)};
    ASSERT_EQ(world->session().try_submit(write(1), sges), Refusal::none);
    ASSERT_EQ(world->await(1).size(), 1u);
    EXPECT_EQ(std::memcmp(target->data(), source->data(100), 5), 0);
    EXPECT_EQ(std::memcmp(target->data(5), source->data(), 1), 0);
    EXPECT_EQ(std::memcmp(target->data(6), source->data(200), 20), 0);

    for (const std::size_t length : {0u, 1u, 7u, 8u, 9u, 15u, 16u, 17u, 55u, 56u, 57u, 64u}) {
        std::array<std::byte, 64> payload;
        for (std::size_t i = 0; i < payload.size(); ++i) {
            payload[i] = static_cast<std::byte>(length + i);
        }
        ASSERT_EQ(world->session().try_submit_inline(write(2), {payload.data(), length}), Refusal::none);
        const std::array<std::byte, 64> sent = payload;
        payload.fill(std::byte{0xee});  // the session has copied the payload, so the buffer is free again at once
        const auto completions = world->await(1);
        ASSERT_EQ(completions.size(), 1u);
        EXPECT_EQ(completions[0].status, Status::success);
        EXPECT_EQ(std::memcmp(target->data(), sent.data(), length), 0);
    }
}

TEST_F(WorkerTest, InlinePayloadsOfOneBurstStayApart) {
    make();
    constexpr std::array<std::size_t, 6> kLengths{3, 16, 17, 1, 56, 8};
    for (std::size_t i = 0; i < kLengths.size(); ++i) {
        std::array<std::byte, 64> payload;
        payload.fill(static_cast<std::byte>(i + 1));
        ASSERT_EQ(world->session().try_submit_inline(write(i, {.to = 64 * i}), {payload.data(), kLengths[i]}),
                  Refusal::none);
    }
    ASSERT_EQ(world->await(kLengths.size()).size(), kLengths.size());
    for (std::size_t i = 0; i < kLengths.size(); ++i) {
        for (std::size_t at = 0; at < 64; ++at) {
            EXPECT_EQ(*target->data(64 * i + at), static_cast<std::byte>(at < kLengths[i] ? i + 1 : 0))
                << i << ", " << at;
        }
    }
}

TEST_F(WorkerTest, WorkInFlightWhenAQpFailsIsFlushedAndTheRemoteMemoryStaysAsItWas) {
    make();
    for (std::uint64_t tag = 0; tag < 10; ++tag) {
        submit(write(tag, {.flags = signaled_if(tag % 3 == 0)}));
    }
    // The queue pair fails before the worker takes any request from the ring.
    world->to_error(*a);
    const auto completions = world->await(10);
    ASSERT_EQ(completions.size(), 10u);
    for (std::uint64_t tag = 0; tag < 10; ++tag) {
        EXPECT_EQ(completions[tag].tag, tag);
        EXPECT_EQ(completions[tag].status, Status::wr_flush_err);
    }
    EXPECT_EQ(*target->data(), std::byte{0});
    EXPECT_EQ(world->session().try_submit(write(1)), Refusal::qp_in_error);
    EXPECT_EQ(world->session().cause(a->handle()), Status::wr_flush_err);
    EXPECT_EQ(world->session().figures().in_flight(), 0u);
}

TEST_F(WorkerTest, AnErrorFlushesEverythingBehindItInOrder) {
    make();
    WorkRequest bad = write(100);
    bad.rkey ^= 0xff00ff;
    submit(write(0, {.flags = 0}));
    submit(write(1));
    submit(bad);
    submit(write(2, {.flags = 0}));
    submit(write(3));
    const auto completions = world->await(4);
    ASSERT_EQ(completions.size(), 4u);
    EXPECT_EQ(completions[0].tag, 1u);
    EXPECT_EQ(completions[0].status, Status::success);
    EXPECT_EQ(completions[1].tag, 100u);
    EXPECT_EQ(completions[1].status, Status::rem_access_err);
    EXPECT_EQ(completions[1].opcode, CompletionOpcode::rdma_write);
    EXPECT_EQ(completions[2].tag, 2u);
    EXPECT_EQ(completions[2].status, Status::wr_flush_err);
    EXPECT_EQ(completions[3].tag, 3u);
    EXPECT_EQ(world->session().cause(a->handle()), Status::rem_access_err);
    EXPECT_EQ(world->session().figures().in_flight(), 0u);
}

TEST_F(WorkerTest, UnsignaledWorkThatSucceededBeforeAnErrorIsRetiredAllTheSame) {
    make();
    submit(write(1, {.flags = 0}));
    world->step(20);  // the write is done, but no CQE has shown it
    ASSERT_EQ(world->session().retired(a->handle()), 0u);
    world->to_error(*a);
    world->step(20);
    EXPECT_EQ(world->session().retired(a->handle()), 1u);
    EXPECT_TRUE(world->poll().empty());
    EXPECT_EQ(world->session().figures().in_flight(), 0u);
}

TEST_F(WorkerTest, ReceivesSubmittedToAQpInErrorComeBackInOrder) {
    make();
    for (std::uint64_t tag = 0; tag < 3; ++tag) {
        submit(recv(tag));
    }
    world->step();
    for (std::uint64_t tag = 3; tag < 6; ++tag) {
        submit(recv(tag));  // still in the ring when the error comes
    }
    world->to_error(*b);
    const auto completions = world->await(6);
    ASSERT_EQ(completions.size(), 6u);
    for (std::uint64_t tag = 0; tag < 6; ++tag) {
        EXPECT_EQ(completions[tag].tag, tag);
        EXPECT_EQ(completions[tag].status, Status::wr_flush_err);
        EXPECT_TRUE(completions[tag].from_recv_queue());
    }
}

TEST_F(WorkerTest, ClosingAQpCompletesEverythingInFlight) {
    make();
    for (std::uint64_t tag = 0; tag < 4; ++tag) {
        submit(recv(tag));
        submit(write(10 + tag, {.flags = 0}));
    }
    const QpHandle old = b->handle();
    const WorkRequest late = recv(99);
    EXPECT_TRUE(world->close(*b));
    EXPECT_EQ(world->session().state(old), QpState::closed);
    EXPECT_EQ(world->session().try_submit(late), Refusal::stale_handle);
    const auto completions = world->await(4);
    EXPECT_EQ(completions.size(), 4u);
    const SessionFigures figures = world->session().figures();
    EXPECT_EQ(figures.accepted, figures.completed + figures.retired + figures.in_flight());
    EXPECT_TRUE(world->close(*a));
    world->poll();
    EXPECT_EQ(world->session().figures().in_flight(), 0u);
}

TEST_F(WorkerTest, SeveralSessionsOfOneQpGetTheirOwnCompletionsBack) {
    make_world();
    for (int i = 0; i < 3; ++i) {
        world->add_session();
    }
    world->add_cq();
    pair({.shares = {{0, 8, 8}, {1, 8, 0}, {2, 8, 0}}});
    for (std::uint64_t tag = 0; tag < 8; ++tag) {
        for (std::uint32_t s = 0; s < 3; ++s) {
            submit(write(100 * s + tag, {.flags = signaled_if(tag % 2 == 0)}), s);
        }
    }
    EXPECT_EQ(try_submit(write(1), 1), Refusal::send_queue_full);
    EXPECT_EQ(try_submit(recv(1), 1), Refusal::not_receiver);
    world->step(50);
    for (std::uint32_t s = 0; s < 3; ++s) {
        const auto completions = world->poll(s);
        ASSERT_EQ(completions.size(), 4u) << "session " << s;
        for (std::uint64_t i = 0; i < 4; ++i) {
            EXPECT_EQ(completions[i].tag, 100 * s + 2 * i);
        }
    }
    // The remaining requests are unsignaled, and no later completion covers them. close() completes or retires them.
    world->close(*a);
    for (std::uint32_t s = 0; s < 3; ++s) {
        world->poll(s);
        EXPECT_EQ(world->session(s).figures().in_flight(), 0u);
    }
}

TEST_F(WorkerTest, AFloodOfOneSessionDoesNotHoldUpAnother) {
    SteppedWorld::Options options;
    options.worker.submit_burst = 4;
    options.worker.qp_burst = 4;
    make_world(options);
    world->add_session();
    world->add_session();
    world->add_cq();
    const SteppedWorld::QpShape of_the_other{.shares = {{1, 4, 4}}};
    Qp* const bulk = pair({.shares = {{0, 64, 0}}}, of_the_other).first;
    Qp* const quiet = pair(of_the_other).first;
    for (int i = 0; i < 60; ++i) {
        submit(write(1, {.qp = bulk}), 0);
    }
    submit(write(2, {.qp = quiet}), 1);
    world->step();
    EXPECT_EQ(world->worker.counters().sends.value(), 4u + 1u) << "the flood's budget and the other's one";
    EXPECT_EQ(world->worker.counters().send_doorbells.value(), 2u);
    EXPECT_EQ(world->poll(1).size() + world->await(1, 1, 3).size(), 1u);
}

TEST_F(WorkerTest, WhatIsSubmittedAfterTheWorkerLetGoCompletesAsSessionClosed) {
    make();
    submit(write(1));
    world->proxy.remove_session(0);
    // With two threads, this could happen between the worker's last look at the ring and the moment in which the
    // session learns that it is closed.
    const std::array<Sge, 4> sges{};
    ASSERT_EQ(world->session().try_submit(write(2), sges), Refusal::none);
    submit(recv(3));
    const auto completions = world->poll();
    ASSERT_EQ(completions.size(), 3u);
    EXPECT_EQ(completions[0].tag, 1u);
    EXPECT_EQ(completions[1].tag, 2u);
    EXPECT_EQ(completions[1].status, Status::session_closed);
    EXPECT_EQ(completions[2].tag, 3u);
    EXPECT_TRUE(completions[2].from_recv_queue());
    EXPECT_EQ(world->session().figures().in_flight(), 0u);
    EXPECT_EQ(world->session().try_submit(write(4)), Refusal::session_closed);
}

// If the CQ still referred to the removed session, the address sanitizer would report the access.
TEST_F(WorkerTest, ACqThatServedASessionForgetsIt) {
    make();
    const std::uint32_t second = world->add_session();
    Qp* const qp = pair({.shares = {{second, 16, 0}}}).first;
    submit(write(1, {.qp = qp}), second);
    ASSERT_EQ(world->await(1, second).size(), 1u);
    world->close(*qp);
    world->proxy.remove_session(second);
    world->ends.pop_back();
    submit(write(2));
    EXPECT_EQ(world->await(1).size(), 1u);
}

// Bug found by the simulation: requests that no device had seen all completed with the opcode of a send.
TEST_F(WorkerTest, WhatNoDeviceSawCompletesAsWhatItWas) {
    make();
    constexpr std::array<std::pair<Opcode, CompletionOpcode>, 6> kCases{{
        {Opcode::rdma_write_with_imm, CompletionOpcode::rdma_write},
        {Opcode::rdma_read, CompletionOpcode::rdma_read},
        {Opcode::atomic_fetch_and_add, CompletionOpcode::fetch_add},
        {Opcode::atomic_cmp_and_swp, CompletionOpcode::comp_swap},
        {Opcode::send_with_imm, CompletionOpcode::send},
        {Opcode::recv, CompletionOpcode::recv},
    }};
    for (const auto& [opcode, completes_as] : kCases) {
        submit(opcode == Opcode::recv ? recv(0) : request(opcode, 0));
    }
    world->proxy.remove_session(0);
    const auto completions = world->poll();
    ASSERT_EQ(completions.size(), kCases.size());
    for (std::size_t i = 0; i < kCases.size(); ++i) {
        EXPECT_EQ(completions[i].status, Status::session_closed);
        EXPECT_EQ(completions[i].opcode, kCases[i].second) << i;
    }
}

TEST_F(WorkerTest, AKeyIsFoundWhileWorkThatNamesItIsInFlight) {
    make();
    EXPECT_FALSE(world->uses_key(0, 0, target->lkey()));
    submit(recv(1));
    EXPECT_TRUE(world->uses_key(0, 0, target->lkey()));
    world->step(3);
    EXPECT_TRUE(world->uses_key(0, 0, target->lkey()));
    EXPECT_FALSE(world->uses_key(0, 0, source->lkey()));
    const std::array<Sge, 3> sges{source->sge(1), source->sge(1), target->sge(1)};
    ASSERT_EQ(world->session().try_submit(send(2), sges), Refusal::none);
    EXPECT_TRUE(world->uses_key(0, 0, source->lkey()));
    EXPECT_EQ(world->await(2).size(), 2u);
    EXPECT_FALSE(world->uses_key(0, 0, target->lkey()));
    EXPECT_FALSE(world->uses_key(0, 0, source->lkey()));
}

TEST_F(WorkerTest, AFullRingIsSearchedForAKeyInPartsAndToItsEnd) {
    SteppedWorld::Options options;
    options.worker.submit_burst = 4;
    options.submission_slots = options.completion_slots = 1024;
    int steps = 0;
    options.wait = [&] {
        ++steps;
        world->step();
    };
    ClientShare share(7);
    options.client = &share;
    make({.shares = {{0, 700, 16}}}, options);
    for (int i = 0; i < 600; ++i) {
        submit(write(1));
    }
    WorkRequest last = write(2);
    last.sge = target->sge(8);
    submit(last);
    steps = 0;
    EXPECT_TRUE(world->uses_key(0, 0, target->lkey(), {}, 7)) << "it stands at the ring's end";
    EXPECT_GE(steps, 600 / 64) << "so much at a time";
    EXPECT_LE(steps, 2 * 600 / 64);
    // A search for another process's object skips this session, because the requests of this session cannot name that
    // object.
    steps = 0;
    EXPECT_FALSE(world->uses_key(0, 1, target->lkey(), {}, 8));
    EXPECT_LT(steps, 600 / 64);
    // The worker may take a request from the ring during the search. The search then finds the request in the queue
    // pair's table, because it looks at the tables after the rings.
    EXPECT_TRUE(world->uses_key(0, 0, source->lkey(), {}, 7));
    EXPECT_FALSE(world->uses_key(0, 0, target->lkey() + 1000, {}, 7));
}

TEST_F(WorkerTest, ASessionThatPublishesNonsenseIsEndedAndTheWorkerLivesOn) {
    make();
    // A hostile process writes straight into the shared ring and bypasses all checks.
    RingProducer<WorkRequest> raw = world->raw();
    for (int i = 0; i < 64; ++i) {
        WorkRequest request;
        std::memset(static_cast<void*>(&request), 0xa0 + i, sizeof(request));
        request.flags = 0;
        request.num_sge = 1;
        (void)raw.try_push(request);
    }
    world->step(100);
    const auto completions = world->poll();
    for (const Completion& completion : completions) {
        EXPECT_EQ(completion.status, Status::request_refused);
    }
    EXPECT_EQ(world->worker.counters().refused_requests.value(), 64u);
    const std::uint32_t other = world->add_session();
    const auto [c, d] = pair({.shares = {{other, 4, 4}}});
    submit(write(5, {.qp = c}), other);
    EXPECT_EQ(world->await(1, other).size(), 1u);
}

}  // namespace
}  // namespace pollcore::testing
