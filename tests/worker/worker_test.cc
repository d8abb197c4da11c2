// The worker, stepped by hand on the software device: no thread, and nothing happens that was not asked for.
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <string>

#include "stepped_world.hpp"

namespace pollcore::testing {
namespace {

struct Buffers {
    alignas(64) std::array<std::byte, 4096> from{};
    alignas(64) std::array<std::byte, 4096> to{};
};

class WorkerTest : public ::testing::Test {
protected:
    void make() { make(SteppedWorld::Options{}, SteppedWorld::QpShape{}); }
    void make(const SteppedWorld::Options& options) { make(options, SteppedWorld::QpShape{}); }
    void make(const SteppedWorld::Options& options, const SteppedWorld::QpShape& shape) {
        world = std::make_unique<SteppedWorld>(options);
        std::tie(a, b) = world->pair(shape);
        from = &world->register_memory(buffers.from.data(), buffers.from.size());
        to = &world->register_memory(buffers.to.data(), buffers.to.size());
        for (std::size_t i = 0; i < buffers.from.size(); ++i) {
            buffers.from[i] = static_cast<std::byte>(i * 7 + 1);
        }
    }
    [[nodiscard]] Sge source(std::uint32_t length, std::size_t at = 0) const {
        return {reinterpret_cast<std::uintptr_t>(buffers.from.data() + at), length, from->lkey};
    }
    [[nodiscard]] Sge target(std::uint32_t length, std::size_t at = 0) const {
        return {reinterpret_cast<std::uintptr_t>(buffers.to.data() + at), length, to->lkey};
    }
    [[nodiscard]] WorkRequest write(std::uint64_t tag, std::uint8_t flags = kSignaled, std::uint32_t length = 8) const {
        return {.tag = tag,
                .sge = source(length),
                .remote_addr = reinterpret_cast<std::uintptr_t>(buffers.to.data()),
                .rkey = to->rkey,
                .qp = a->handle(),
                .opcode = Opcode::rdma_write,
                .flags = flags,
                .num_sge = 1};
    }
    [[nodiscard]] WorkRequest send(std::uint64_t tag, std::uint8_t flags = kSignaled, std::uint32_t length = 8) const {
        return {.tag = tag,
                .sge = source(length),
                .qp = a->handle(),
                .opcode = Opcode::send,
                .flags = flags,
                .num_sge = 1};
    }
    [[nodiscard]] WorkRequest recv(std::uint64_t tag, std::uint32_t length = 64) const {
        return {.tag = tag, .sge = target(length), .qp = b->handle(), .opcode = Opcode::recv, .num_sge = 1};
    }
    void expect_conserved() {
        const SessionFigures figures = world->session().figures();
        EXPECT_EQ(figures.accepted, figures.completed + figures.retired + figures.in_flight());
    }

    Buffers buffers;
    std::unique_ptr<SteppedWorld> world;
    SteppedWorld::Qp* a = nullptr;
    SteppedWorld::Qp* b = nullptr;
    ibv_mr* from = nullptr;
    ibv_mr* to = nullptr;
};

TEST_F(WorkerTest, AnIdleStepDoesNothing) {
    make();
    EXPECT_EQ(world->step(10), 0u);
    EXPECT_EQ(world->worker.counters().send_doorbells.value(), 0u);
    EXPECT_TRUE(world->poll().empty());
}

TEST_F(WorkerTest, AWriteCompletesOnlyAfterAStep) {
    make();
    ASSERT_EQ(world->session().try_submit(write(42)), Refusal::none);
    EXPECT_TRUE(world->poll().empty());
    const auto completions = world->await(1);
    ASSERT_EQ(completions.size(), 1u);
    EXPECT_EQ(completions[0].tag, 42u);
    EXPECT_EQ(completions[0].status, Status::success);
    EXPECT_EQ(completions[0].opcode, CompletionOpcode::rdma_write);
    EXPECT_EQ(completions[0].qp, a->handle());
    EXPECT_EQ(std::memcmp(buffers.from.data(), buffers.to.data(), 8), 0);
}

TEST_F(WorkerTest, ABurstToOneQpTakesOneDoorbell) {
    make();
    for (std::uint64_t tag = 0; tag < 8; ++tag) {
        ASSERT_EQ(world->session().try_submit(write(tag)), Refusal::none);
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
        WorkRequest request = write(tag);
        request.qp = tag % 2 == 0 ? a->handle() : b->handle();
        ASSERT_EQ(world->session().try_submit(request), Refusal::none);
    }
    world->step();
    EXPECT_EQ(world->worker.counters().send_doorbells.value(), 2u);
    EXPECT_EQ(world->await(8).size(), 8u);
}

TEST_F(WorkerTest, AMessageReachesItsReceiveWithLengthAndImmediate) {
    make();
    ASSERT_EQ(world->session().try_submit(recv(1)), Refusal::none);
    WorkRequest message = send(2, kSignaled, 24);
    message.opcode = Opcode::send_with_imm;
    message.imm_data = 0x12345678;
    ASSERT_EQ(world->session().try_submit(message), Refusal::none);
    const auto completions = world->await(2);
    ASSERT_EQ(completions.size(), 2u);
    const Completion& received = completions[0].from_recv_queue() ? completions[0] : completions[1];
    EXPECT_EQ(received.tag, 1u);
    EXPECT_EQ(received.byte_len, 24u);
    EXPECT_EQ(received.flags, kFromRecvQueue | kWithImm);
    EXPECT_EQ(received.imm_data, 0x12345678u);
    EXPECT_EQ(received.opcode, CompletionOpcode::recv);
    EXPECT_EQ(std::memcmp(buffers.from.data(), buffers.to.data(), 24), 0);
}

TEST_F(WorkerTest, UnsignaledWorkIsRetiredAndCountedWithoutACompletion) {
    make();
    for (std::uint64_t tag = 0; tag < 3; ++tag) {
        ASSERT_EQ(world->session().try_submit(write(tag, 0)), Refusal::none);
    }
    ASSERT_EQ(world->session().try_submit(write(3)), Refusal::none);
    const auto completions = world->await(1);
    ASSERT_EQ(completions.size(), 1u);
    EXPECT_EQ(completions[0].tag, 3u);
    EXPECT_EQ(world->session().retired(a->handle()), 3u);
    EXPECT_EQ(world->session().figures().in_flight(), 0u);
}

TEST_F(WorkerTest, UnsignaledWorkAloneNeverWedgesTheSendQueue) {
    SteppedWorld::QpShape shape;
    for (const std::uint32_t depth : {1u, 2u, 3u, 16u}) {
        shape.shares = {{0, depth, 1}};
        make(SteppedWorld::Options{}, shape);
        std::uint64_t accepted = 0;
        for (int i = 0; i < 5000 && accepted < 200; ++i) {
            accepted += world->session().try_submit(write(accepted, 0)) == Refusal::none;
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
        make(options);
        std::uint64_t accepted = 0;
        for (int i = 0; i < 5000 && accepted < 200; ++i) {
            WorkRequest request = write(accepted, 0);
            request.qp = accepted % 2 == 0 ? a->handle() : b->handle();
            accepted += world->session().try_submit(request) == Refusal::none;
            world->step();
        }
        EXPECT_EQ(accepted, 200u) << slots << " slots";
    }
}

TEST_F(WorkerTest, ARefusalNamesTheLimitThatWasReached) {
    SteppedWorld::Options options;
    options.submission_slots = 4;
    options.completion_slots = 16;
    SteppedWorld::QpShape shape;
    shape.shares = {{0, 6, 2}};
    make(options, shape);
    Session& session = world->session();
    for (int i = 0; i < 4; ++i) {
        ASSERT_EQ(session.try_submit(write(1)), Refusal::none);
    }
    EXPECT_EQ(session.try_submit(write(1)), Refusal::submission_ring_full);
    world->step();
    ASSERT_EQ(session.try_submit(write(1)), Refusal::none);
    ASSERT_EQ(session.try_submit(write(1)), Refusal::none);
    EXPECT_EQ(session.try_submit(write(1)), Refusal::send_queue_full);
    ASSERT_EQ(session.try_submit(recv(1)), Refusal::none);
    ASSERT_EQ(session.try_submit(recv(1)), Refusal::none);
    EXPECT_EQ(session.try_submit(recv(1)), Refusal::receive_queue_full);
    world->step(4);
    WorkRequest other = write(1);
    other.qp = b->handle();
    int accepted = 0;
    Refusal refusal = Refusal::none;
    while ((refusal = session.try_submit(other)) == Refusal::none) {
        ++accepted;
        world->step(2);
    }
    EXPECT_EQ(refusal, Refusal::send_queue_full);
    EXPECT_EQ(accepted, 6);
    WorkRequest more = recv(9);
    more.qp = a->handle();
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
    request = write(1, kSignaled | kInline);
    EXPECT_EQ(session.try_submit(request), Refusal::bad_flags);
    request = write(1);
    request.num_sge = 2;
    EXPECT_EQ(session.try_submit(request), Refusal::too_many_sges);
    const std::array<Sge, 5> five{};
    EXPECT_EQ(session.try_submit(write(1), five), Refusal::too_many_sges);
    const std::array<std::byte, 65> long_payload{};
    EXPECT_EQ(session.try_submit_inline(write(1), long_payload), Refusal::inline_too_long);
    request = write(1);
    request.opcode = Opcode::atomic_fetch_and_add;
    request.remote_addr += 4;
    EXPECT_EQ(session.try_submit(request), Refusal::misaligned_atomic);
    SteppedWorld::Qp& unconnected = world->add_qp();
    request = write(1);
    request.qp = unconnected.handle();
    EXPECT_EQ(session.try_submit(request), Refusal::not_connected);
    EXPECT_EQ(session.figures().accepted, 0u);
    EXPECT_EQ(session.figures().refused, 9u);
}

// The simulation found the count beginning again under the handle that it belonged to.
TEST_F(WorkerTest, WhatWasRetiredOfAHandleStaysAfterAReset) {
    make();
    Session& session = world->session();
    for (std::uint64_t tag = 0; tag < 3; ++tag) {
        ASSERT_EQ(session.try_submit(write(tag, 0)), Refusal::none);
    }
    ASSERT_EQ(session.try_submit(write(3)), Refusal::none);
    ASSERT_EQ(world->await(1).size(), 1u);
    const QpHandle old = a->handle();
    EXPECT_EQ(session.retired(old), 3u);
    world->reset(*a);
    EXPECT_EQ(session.retired(old), 3u);
    EXPECT_EQ(session.retired(a->handle()), 0u);
    world->reset(*b);
    world->connect(*a, *b);
    world->connect(*b, *a);
    WorkRequest again = write(4, 0);
    again.qp = a->handle();
    ASSERT_EQ(session.try_submit(again), Refusal::none);
    again.flags = kSignaled;
    ASSERT_EQ(session.try_submit(again), Refusal::none);
    ASSERT_EQ(world->await(1).size(), 1u);
    EXPECT_EQ(session.retired(a->handle()), 1u);
}

TEST_F(WorkerTest, SeveralSgesAndInlinePayloadsArriveWhole) {
    make();
    const std::array<Sge, 4> sges{source(5, 100), source(1, 0), source(0, 0), source(20, 200)};
    ASSERT_EQ(world->session().try_submit(write(1), sges), Refusal::none);
    ASSERT_EQ(world->await(1).size(), 1u);
    EXPECT_EQ(std::memcmp(buffers.to.data(), buffers.from.data() + 100, 5), 0);
    EXPECT_EQ(std::memcmp(buffers.to.data() + 5, buffers.from.data(), 1), 0);
    EXPECT_EQ(std::memcmp(buffers.to.data() + 6, buffers.from.data() + 200, 20), 0);

    for (const std::size_t length : {0u, 1u, 7u, 8u, 9u, 15u, 16u, 17u, 55u, 56u, 57u, 64u}) {
        std::array<std::byte, 64> payload;
        for (std::size_t i = 0; i < payload.size(); ++i) {
            payload[i] = static_cast<std::byte>(length + i);
        }
        ASSERT_EQ(world->session().try_submit_inline(write(2), {payload.data(), length}), Refusal::none);
        const std::array<std::byte, 64> sent = payload;
        payload.fill(std::byte{0xee});  // ours again at once
        const auto completions = world->await(1);
        ASSERT_EQ(completions.size(), 1u);
        EXPECT_EQ(completions[0].status, Status::success);
        EXPECT_EQ(std::memcmp(buffers.to.data(), sent.data(), length), 0);
    }
}

TEST_F(WorkerTest, InlinePayloadsOfOneBurstStayApart) {
    make();
    constexpr std::array<std::size_t, 6> kLengths{3, 16, 17, 1, 56, 8};
    for (std::size_t i = 0; i < kLengths.size(); ++i) {
        std::array<std::byte, 64> payload;
        payload.fill(static_cast<std::byte>(i + 1));
        WorkRequest request = write(i);
        request.remote_addr += 64 * i;
        ASSERT_EQ(world->session().try_submit_inline(request, {payload.data(), kLengths[i]}), Refusal::none);
    }
    ASSERT_EQ(world->await(kLengths.size()).size(), kLengths.size());
    for (std::size_t i = 0; i < kLengths.size(); ++i) {
        for (std::size_t at = 0; at < 64; ++at) {
            EXPECT_EQ(buffers.to[64 * i + at], static_cast<std::byte>(at < kLengths[i] ? i + 1 : 0)) << i << ", " << at;
        }
    }
}

TEST_F(WorkerTest, WorkInFlightWhenAQpFailsIsFlushedAndTheRemoteMemoryStaysAsItWas) {
    make();
    for (std::uint64_t tag = 0; tag < 10; ++tag) {
        ASSERT_EQ(world->session().try_submit(write(tag, tag % 3 == 0 ? kSignaled : 0)), Refusal::none);
    }
    // Errored before the worker takes any of it from the ring.
    world->to_error(*a);
    const auto completions = world->await(10);
    ASSERT_EQ(completions.size(), 10u);
    for (std::uint64_t tag = 0; tag < 10; ++tag) {
        EXPECT_EQ(completions[tag].tag, tag);
        EXPECT_EQ(completions[tag].status, Status::wr_flush_err);
    }
    EXPECT_EQ(buffers.to[0], std::byte{0});
    EXPECT_EQ(world->session().try_submit(write(1)), Refusal::qp_in_error);
    EXPECT_EQ(world->session().cause(a->handle()), Status::wr_flush_err);
    EXPECT_EQ(world->session().figures().in_flight(), 0u);
}

TEST_F(WorkerTest, AnErrorFlushesEverythingBehindItInOrder) {
    make();
    WorkRequest bad = write(100);
    bad.rkey ^= 0xff00ff;
    ASSERT_EQ(world->session().try_submit(write(0, 0)), Refusal::none);
    ASSERT_EQ(world->session().try_submit(write(1)), Refusal::none);
    ASSERT_EQ(world->session().try_submit(bad), Refusal::none);
    ASSERT_EQ(world->session().try_submit(write(2, 0)), Refusal::none);
    ASSERT_EQ(world->session().try_submit(write(3)), Refusal::none);
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
    ASSERT_EQ(world->session().try_submit(write(1, 0)), Refusal::none);
    world->step(20);  // done, and leaves no CQE
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
        ASSERT_EQ(world->session().try_submit(recv(tag)), Refusal::none);
    }
    world->step();
    for (std::uint64_t tag = 3; tag < 6; ++tag) {
        ASSERT_EQ(world->session().try_submit(recv(tag)), Refusal::none);  // in the ring when the error comes
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
        ASSERT_EQ(world->session().try_submit(recv(tag)), Refusal::none);
        ASSERT_EQ(world->session().try_submit(write(10 + tag, 0)), Refusal::none);
    }
    const QpHandle old = b->handle();
    const WorkRequest late = recv(99);
    EXPECT_TRUE(world->close(*b));
    EXPECT_EQ(world->session().state(old), QpState::closed);
    EXPECT_EQ(world->session().try_submit(late), Refusal::stale_handle);
    const auto completions = world->await(4);
    EXPECT_EQ(completions.size(), 4u);
    expect_conserved();
    EXPECT_TRUE(world->close(*a));
    world->poll();
    EXPECT_EQ(world->session().figures().in_flight(), 0u);
}

TEST_F(WorkerTest, SeveralSessionsOfOneQpGetTheirOwnCompletionsBack) {
    world = std::make_unique<SteppedWorld>();
    for (int i = 0; i < 3; ++i) {
        world->add_session();
    }
    SteppedWorld::QpShape shape;
    shape.shares = {{0, 8, 8}, {1, 8, 0}, {2, 8, 0}};
    std::tie(a, b) = world->pair(shape);
    from = &world->register_memory(buffers.from.data(), buffers.from.size());
    to = &world->register_memory(buffers.to.data(), buffers.to.size());
    for (std::uint64_t tag = 0; tag < 8; ++tag) {
        for (std::uint32_t s = 0; s < 3; ++s) {
            ASSERT_EQ(world->session(s).try_submit(write(100 * s + tag, tag % 2 == 0 ? kSignaled : 0)), Refusal::none);
        }
    }
    EXPECT_EQ(world->session(1).try_submit(write(1)), Refusal::send_queue_full);
    EXPECT_EQ(world->session(1).try_submit(recv(1)), Refusal::not_receiver);
    world->step(50);
    for (std::uint32_t s = 0; s < 3; ++s) {
        const auto completions = world->poll(s);
        ASSERT_EQ(completions.size(), 4u) << "session " << s;
        for (std::uint64_t i = 0; i < 4; ++i) {
            EXPECT_EQ(completions[i].tag, 100 * s + 2 * i);
        }
    }
    // What is left is unsignaled and uncovered; closing accounts for it.
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
    world = std::make_unique<SteppedWorld>(options);
    world->add_session();
    world->add_session();
    world->add_cq();
    SteppedWorld::QpShape shape;
    shape.shares = {{0, 64, 0}};
    SteppedWorld::Qp& bulk = world->add_qp(shape);
    shape.shares = {{1, 4, 4}};
    a = &world->add_qp(shape);
    b = &world->add_qp(shape);
    world->connect(*a, *b);
    world->connect(*b, *a);
    SteppedWorld::Qp& bulk_peer = world->add_qp(shape);
    world->connect(bulk, bulk_peer);
    world->connect(bulk_peer, bulk);
    from = &world->register_memory(buffers.from.data(), buffers.from.size());
    to = &world->register_memory(buffers.to.data(), buffers.to.size());
    for (int i = 0; i < 60; ++i) {
        WorkRequest request = write(1);
        request.qp = bulk.handle();
        ASSERT_EQ(world->session(0).try_submit(request), Refusal::none);
    }
    ASSERT_EQ(world->session(1).try_submit(write(2)), Refusal::none);
    world->step();
    EXPECT_EQ(world->worker.counters().sends.value(), 4u + 1u) << "the flood's budget and the other's one";
    EXPECT_EQ(world->worker.counters().send_doorbells.value(), 2u);
    EXPECT_EQ(world->poll(1).size() + world->await(1, 1, 3).size(), 1u);
}

TEST_F(WorkerTest, WhatIsSubmittedAfterTheWorkerLetGoCompletesAsSessionClosed) {
    make();
    ASSERT_EQ(world->session().try_submit(write(1)), Refusal::none);
    world->proxy.remove_session(0);
    // As on another thread, between the worker's last look at the ring and the word that it is closed.
    const std::array<Sge, 4> sges{};
    ASSERT_EQ(world->session().try_submit(write(2), sges), Refusal::none);
    ASSERT_EQ(world->session().try_submit(recv(3)), Refusal::none);
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

// The simulation found all of them completing as sends.
TEST_F(WorkerTest, WhatNoDeviceSawCompletesAsWhatItWas) {
    make();
    WorkRequest request = write(0);
    constexpr std::array<std::pair<Opcode, CompletionOpcode>, 6> kCases{{
        {Opcode::rdma_write_with_imm, CompletionOpcode::rdma_write},
        {Opcode::rdma_read, CompletionOpcode::rdma_read},
        {Opcode::atomic_fetch_and_add, CompletionOpcode::fetch_add},
        {Opcode::atomic_cmp_and_swp, CompletionOpcode::comp_swap},
        {Opcode::send_with_imm, CompletionOpcode::send},
        {Opcode::recv, CompletionOpcode::recv},
    }};
    for (const auto& [opcode, completes_as] : kCases) {
        request.opcode = opcode;
        request.flags = opcode == Opcode::recv ? 0 : kSignaled;
        ASSERT_EQ(world->session().try_submit(request), Refusal::none);
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
    EXPECT_FALSE(world->uses_key(0, 0, to->lkey));
    ASSERT_EQ(world->session().try_submit(recv(1)), Refusal::none);
    EXPECT_TRUE(world->uses_key(0, 0, to->lkey));
    world->step(3);
    EXPECT_TRUE(world->uses_key(0, 0, to->lkey));
    EXPECT_FALSE(world->uses_key(0, 0, from->lkey));
    const std::array<Sge, 3> sges{source(1), source(1), target(1)};
    ASSERT_EQ(world->session().try_submit(send(2), sges), Refusal::none);
    EXPECT_TRUE(world->uses_key(0, 0, from->lkey));
    EXPECT_EQ(world->await(2).size(), 2u);
    EXPECT_FALSE(world->uses_key(0, 0, to->lkey));
    EXPECT_FALSE(world->uses_key(0, 0, from->lkey));
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
    SteppedWorld::QpShape shape;
    shape.shares = {{0, 700, 16}};
    make(options, shape);
    for (int i = 0; i < 600; ++i) {
        ASSERT_EQ(world->session().try_submit(write(1)), Refusal::none);
    }
    WorkRequest last = write(2);
    last.sge = target(8, 64);
    ASSERT_EQ(world->session().try_submit(last), Refusal::none);
    steps = 0;
    EXPECT_TRUE(world->uses_key(0, 0, to->lkey)) << "it stands at the ring's end";
    EXPECT_GE(steps, 600 / 64) << "so much at a time";
    EXPECT_LE(steps, 2 * 600 / 64);
    // Not for what is another process's: no request of this session can name it.
    ClientShare share{.id = 7};
    world->ends[0]->worker_end->client = &share;
    steps = 0;
    EXPECT_FALSE(world->uses_key(0, 1, to->lkey, {}, 8));
    EXPECT_LT(steps, 600 / 64);
    EXPECT_TRUE(world->uses_key(0, 0, to->lkey, {}, 7));
    world->ends[0]->worker_end->client = nullptr;
    // What is taken between two looks stands in the queue pair's table, which is looked at after the rings.
    EXPECT_TRUE(world->uses_key(0, 0, from->lkey));
    EXPECT_FALSE(world->uses_key(0, 0, to->lkey + 1000));
}

TEST_F(WorkerTest, ASessionThatPublishesNonsenseIsEndedAndTheWorkerLivesOn) {
    make();
    // As a hostile process would: straight into the shared ring, past all checks.
    SteppedWorld::End& end = *world->ends[0];
    RingProducer<WorkRequest> raw(at_offset<void>(end.block, end.layout.submissions()), end.layout.submission_slots);
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
    SteppedWorld::QpShape shape;
    shape.shares = {{other, 4, 4}};
    SteppedWorld::Qp& c = world->add_qp(shape);
    SteppedWorld::Qp& d = world->add_qp(shape);
    world->connect(c, d);
    world->connect(d, c);
    WorkRequest request = write(5);
    request.qp = c.handle();
    ASSERT_EQ(world->session(other).try_submit(request), Refusal::none);
    EXPECT_EQ(world->await(1, other).size(), 1u);
}

}  // namespace
}  // namespace pollcore::testing
