// Failures on a device that otherwise continues to work. Requests, calls and packets fail, each kind alone and all
// together.
#include <poll.h>

#include <map>
#include <random>

#include "faults_fixture.hpp"
#include "give_way.hpp"

namespace pollcore::testing {
namespace {

// ---- Statuses ----

TEST_P(Faults, EveryStatusOfASendReachesItsSession) {
    for (int status = 1; status <= IBV_WC_TM_RNDV_INCOMPLETE; ++status) {
        SCOPED_TRACE(ibv_wc_status_str(static_cast<ibv_wc_status>(status)));
        reconnect();
        device.inject(
            {.kind = Kind::send, .qp_num = a.qp_num(), .nth = 2, .status = static_cast<ibv_wc_status>(status)});
        submit({rdma(Opcode::rdma_write, 1, 8),
                rdma(Opcode::rdma_read, 2, 8, 0),  // unsignaled, but a failed request always completes
                rdma(Opcode::atomic_fetch_and_add, 3, 8, 0), rdma(Opcode::rdma_write, 4, 8)});
        const auto completions = await(4);
        ASSERT_EQ(completions.size(), 4u);
        EXPECT_EQ(completions[0].status, Status::success);
        expect_failed(completions[1], 2, status, CompletionOpcode::rdma_read);
        expect_failed(completions[2], 3, IBV_WC_WR_FLUSH_ERR, CompletionOpcode::fetch_add);
        expect_failed(completions[3], 4, IBV_WC_WR_FLUSH_ERR, CompletionOpcode::rdma_write);
        EXPECT_EQ(static_cast<int>(session.cause(a.handle())), status);
        EXPECT_EQ(session.try_submit(send(5, 8)), Refusal::qp_in_error);
        EXPECT_EQ(session.figures().in_flight(), 0u);
    }
}

TEST_P(Faults, EveryStatusOfAReceiveReachesItsSession) {
    for (int status = 1; status <= IBV_WC_TM_RNDV_INCOMPLETE; ++status) {
        SCOPED_TRACE(ibv_wc_status_str(static_cast<ibv_wc_status>(status)));
        reconnect();
        device.inject(
            {.kind = Kind::receive, .qp_num = b.qp_num(), .nth = 2, .status = static_cast<ibv_wc_status>(status)});
        for (std::uint64_t tag = 1; tag <= 3; ++tag) {
            submit(recv(tag, 64));
        }
        submit(send(11, 8));
        submit(rdma(Opcode::rdma_write_with_imm, 12, 8));
        const auto completions = await(5);
        const auto sent = of(completions, a.handle(), false);
        const auto received = of(completions, b.handle(), true);
        ASSERT_EQ(sent.size(), 2u);
        ASSERT_EQ(received.size(), 3u);
        EXPECT_EQ(received[0].status, Status::success);
        expect_failed(received[1], 2, status, CompletionOpcode::recv);
        expect_failed(received[2], 3, IBV_WC_WR_FLUSH_ERR, CompletionOpcode::recv);
        expect_failed(sent[1], 12, IBV_WC_REM_OP_ERR, CompletionOpcode::rdma_write);
        EXPECT_EQ(static_cast<int>(session.cause(b.handle())), status);
        EXPECT_EQ(session.figures().in_flight(), 0u);
    }
}

TEST_P(Faults, AReadWhereNoneAreAllowedIsALocalOperationError) {
    reconnect(shape(), {.max_rd_atomic = 0});
    submit(rdma(Opcode::rdma_read, 1, 8));
    expect_failed(await_one(), 1, IBV_WC_LOC_QP_OP_ERR, CompletionOpcode::rdma_read);
}

TEST_P(Faults, ABindThatFailsTakesItsKeyBack) {
    MemoryRegion region = bindable();
    for (const WindowType type : {WindowType::type_1, WindowType::type_2}) {
        reconnect();
        MemoryWindow window = runtime.create_memory_window(session, type);
        const std::uint32_t key = window.rkey();
        device.inject({.kind = Kind::post_send, .qp_num = b.qp_num(), .error = ENOMEM});
        submit(bind(1, window, region));
        EXPECT_EQ(await_one().status, Status::post_refused);
        EXPECT_EQ(window.rkey(), key);
        submit(bind(2, window, region));
        EXPECT_EQ(await_one().window_rkey, next_rkey(key));
        window.deallocate();

        window = runtime.create_memory_window(session, type);
        const std::uint32_t second = window.rkey();
        device.inject({.kind = Kind::send, .qp_num = b.qp_num(), .status = IBV_WC_FATAL_ERR});
        submit(bind(3, window, region));
        expect_failed(await_one(), 3, IBV_WC_FATAL_ERR, CompletionOpcode::bind_mw);
        EXPECT_EQ(window.rkey(), second);
        window.deallocate();
    }
    EXPECT_NO_THROW(region.deregister());
}

// ---- Calls that fail ----

TEST_P(Faults, AQueuePairThatCannotBeMadeLeavesNothingBehind) {
    const QueuePairOptions options = shape();
    // There are more attempts than the runtime has places for queue pairs.
    for (int time = 0; time < 300; ++time) {
        const Kind kind = time % 2 == 0 ? Kind::modify : Kind::create_qp;
        device.inject({.kind = kind,
                       .state = kind == Kind::modify ? std::optional(IBV_QPS_INIT) : std::nullopt,
                       .error = ENOMEM});
        expect_planned_error(ENOMEM, [&] { (void)runtime.create_queue_pair(options); });
    }
    device.clear_faults();
    expect_new_pairs_work();
}

TEST_P(Faults, AResetThatTheDeviceRefusesLeavesTheQueuePairInError) {
    connect_pair();
    for (const ibv_qp_state state : {IBV_QPS_RESET, IBV_QPS_INIT}) {
        const QpHandle before = b.handle();
        submit(recv(1, 64));
        device.inject({.kind = Kind::modify, .qp_num = b.qp_num(), .state = state, .error = ENOMEM});
        expect_planned_error(ENOMEM, [&] { b.reset(); });
        const Completion ended = await_one();
        EXPECT_EQ(ended.tag, 1u);
        EXPECT_EQ(ended.status, Status::wr_flush_err);
        EXPECT_EQ(b.handle(), before);
        EXPECT_EQ(session.state(b.handle()), QpState::error);
        EXPECT_EQ(session.try_submit(recv(2, 64)), Refusal::qp_in_error);
        EXPECT_TRUE(b.reset()) << "the next time it does";
        EXPECT_EQ(session.state(b.handle()), QpState::init);
        EXPECT_NE(b.handle(), before);
    }
    EXPECT_TRUE(a.reset());
    const QpInfo info_a = a.info();
    const QpInfo info_b = b.info();
    a.connect(info_b);
    b.connect(info_a);
    submit(rdma(Opcode::rdma_write, 3, 8));
    EXPECT_EQ(await_one().status, Status::success);
}

// The injected call fails with EIO, as calls on a lost device do. But this device is not lost.
TEST_P(Faults, AQueuePairThatDoesNotGoToErrorIsResetAsItIs) {
    connect_pair();
    submit(recv(1, 64));
    device.inject({.kind = Kind::modify, .qp_num = b.qp_num(), .state = IBV_QPS_ERR});
    EXPECT_FALSE(b.reset()) << "nothing was flushed";
    const Completion ended = await_one();
    EXPECT_EQ(ended.tag, 1u);
    EXPECT_EQ(ended.status, Status::qp_closed);
    EXPECT_EQ(runtime.control_counters().devices_lost.value(), 0u) << "the device is asked, and still answers";
    EXPECT_EQ(session.state(b.handle()), QpState::init);
    expect_new_pairs_work();
}

// Bug found by the simulation: a peer got RNR NAKs for ever, because the runtime had the queue pair in error but the
// device had it in RTS.
TEST_P(Faults, AResetThatFailsInBothItsStepsLeavesNobodyAnswering) {
    PathAttributes path;
    path.rnr_retry = 7;
    path.timeout = 8;
    reconnect(shape(), path);
    submit(on(a, send(1, 8)));
    device.inject({.kind = Kind::modify, .qp_num = b.qp_num(), .state = IBV_QPS_ERR, .error = ENOMEM});
    device.inject({.kind = Kind::modify, .qp_num = b.qp_num(), .state = IBV_QPS_RESET, .error = ENOMEM});
    expect_planned_error(ENOMEM, [&] { (void)b.reset(); });
    EXPECT_EQ(session.state(b.handle()), QpState::error);
    const Completion ended = await_one();
    EXPECT_EQ(ended.tag, 1u);
    EXPECT_EQ(ended.status, Status::retry_exc_err);
}

TEST_P(Faults, AQueuePairThatIsRefusedErrorAndThenItsEndIsFlushedAllTheSame) {
    connect_pair();
    submit(on(a, recv(1, 64)));
    device.inject({.kind = Kind::modify, .qp_num = a.qp_num(), .state = IBV_QPS_ERR, .error = ENOMEM});
    device.inject({.kind = Kind::destroy_qp, .qp_num = a.qp_num(), .error = EBUSY});
    EXPECT_THROW((void)a.close(), Error);
    const Completion ended = await_one();
    EXPECT_EQ(ended.status, Status::wr_flush_err);
    EXPECT_EQ(ended.flags & kByRuntime, 0) << "its device gave it back";
    EXPECT_EQ(session.cause(a.handle()), Status::qp_closed);
    EXPECT_EQ(session.state(a.handle()), QpState::error);
    EXPECT_TRUE(a.close());
    EXPECT_EQ(session.state(a.handle()), QpState::closed);
}

TEST_P(Faults, AQueuePairWhoseCloseFailedCanBeResetInstead) {
    connect_pair();
    device.inject({.kind = Kind::destroy_qp, .qp_num = a.qp_num(), .error = EBUSY});
    EXPECT_THROW((void)a.close(), Error);
    (void)a.reset();
    EXPECT_EQ(session.state(a.handle()), QpState::init);
    (void)b.reset();
    a.connect(b.info());
    b.connect(a.info());
    submit(recv(1, 64));
    submit(send(2, 8));
    for (const Completion& completion : await(2)) {
        EXPECT_EQ(completion.status, Status::success);
    }
}

TEST_P(Faults, WhatCannotBeMadeSaysTheDevicesErrorAndWorksTheNextTime) {
    device.inject({.kind = Kind::create_cq, .error = EMFILE});
    expect_planned_error(EMFILE, [&] { (void)runtime.create_queue_pair(shape()); });
    device.inject({.kind = Kind::register_memory, .error = ENOMEM});
    expect_planned_error(ENOMEM, [&] { (void)runtime.allocate(4096, Access::all()); });
    device.inject({.kind = Kind::create_pd, .error = EAGAIN});
    expect_planned_error(EAGAIN, [&] { (void)runtime.create_protection_domain(); });
    EXPECT_TRUE(runtime.allocate(4096, Access::all()).valid());
    expect_new_pairs_work();
}

TEST_P(Faults, AConnectThatTheDeviceRefusesAtRtrMayBeTriedAgain) {
    a = runtime.create_queue_pair(shape());
    b = runtime.create_queue_pair(shape());
    submit(recv(1, 64));
    device.inject({.kind = Kind::modify, .qp_num = a.qp_num(), .state = IBV_QPS_RTR, .error = ETIMEDOUT});
    expect_planned_error(ETIMEDOUT, [&] { a.connect(b.info()); });
    EXPECT_EQ(session.state(a.handle()), QpState::init);
    a.connect(b.info());
    b.connect(a.info());
    submit(send(2, 8));
    for (const Completion& completion : await(2)) {
        EXPECT_EQ(completion.status, Status::success);
    }
}

TEST_P(Faults, AConnectThatTheDeviceRefusesAtRtsFlushesItsReceives) {
    a = runtime.create_queue_pair(shape());
    b = runtime.create_queue_pair(shape());
    submit(on(a, recv(1, 64)));
    device.inject({.kind = Kind::modify, .qp_num = a.qp_num(), .state = IBV_QPS_RTS, .error = EIO});
    expect_planned_error(EIO, [&] { a.connect(b.info()); });
    EXPECT_EQ(await_one().status, Status::wr_flush_err);
    EXPECT_EQ(session.state(a.handle()), QpState::error);
    EXPECT_THROW(a.connect(b.info()), Error);
    EXPECT_TRUE(a.close());
}

TEST_P(Faults, AQueuePairThatCannotBeTakenToErrorIsClosedWithAllItHad) {
    connect_pair();
    for (std::uint64_t tag = 0; tag < 5; ++tag) {
        submit(on(a, recv(tag, 64)));
    }
    WorkRequest unsignaled = rdma(Opcode::rdma_write, 9, 8);
    unsignaled.flags = 0;
    submit(unsignaled);
    device.inject({.kind = Kind::modify, .qp_num = a.qp_num(), .state = IBV_QPS_ERR});
    EXPECT_FALSE(a.close()) << "it had to be cut short";
    const auto completions = await(6);
    for (const Completion& completion : completions) {
        EXPECT_EQ(completion.status, Status::qp_closed);
        EXPECT_TRUE(completion.flags & kByRuntime);
    }
    EXPECT_EQ(runtime.worker_counters(0).markers.value(), 0u) << "on its device it was in RTS";
    EXPECT_EQ(session.figures().in_flight(), 0u);
}

TEST_P(Faults, AQueuePairThatCannotBeTakenToErrorIsClosedAgainWithoutAnythingPostedToIt) {
    connect_pair();
    WorkRequest unsignaled = rdma(Opcode::rdma_write, 9, 8);
    unsignaled.flags = 0;
    submit(unsignaled);
    device.inject({.kind = Kind::modify, .qp_num = a.qp_num(), .state = IBV_QPS_ERR, .count = 1000});
    device.inject({.kind = Kind::destroy_qp, .qp_num = a.qp_num(), .error = EBUSY});
    EXPECT_THROW((void)a.close(), Error);
    EXPECT_FALSE(a.close()) << "it had to be cut short";
    EXPECT_EQ(await_one().status, Status::qp_closed);
    EXPECT_EQ(runtime.worker_counters(0).markers.value(), 0u) << "on its device it was in RTS";
}

TEST_P(Faults, AQueuePairThatTheDeviceDoesNotDestroyGivesNoBufferBackUntilItDoes) {
    connect_pair();
    device.inject({.kind = Kind::post_recv, .qp_num = a.qp_num(), .nth = 2});
    submit(on(a, recv(1, 64)));
    submit(on(a, recv(2, 64)));
    EXPECT_EQ(await_one().status, Status::post_refused);
    // Every attempt to move the QP to ERR fails, before the failed destruction and after it.
    device.inject({.kind = Kind::modify, .qp_num = a.qp_num(), .state = IBV_QPS_ERR, .count = 3, .error = ENOMEM});
    device.inject({.kind = Kind::destroy_qp, .qp_num = a.qp_num(), .error = EBUSY});
    try {
        (void)a.close();
        FAIL() << "was closed";
    } catch (const Error& error) {
        EXPECT_EQ(error.code(), std::errc::device_or_resource_busy) << error.what();
    }
    Completion none;
    EXPECT_EQ(session.poll({&none, 1}), 0u) << "the device may still write its buffer (H2)";
    EXPECT_EQ(session.figures().in_flight(), 1u);
    (void)runtime.stop();
    EXPECT_EQ(await(1).size(), 1u);
}

// Bug found by the simulation: after a session was closed, its other queue pairs stayed open and answered their peers.
TEST_P(Faults, AQueuePairThatTheProviderKeepsDoesNotKeepTheOthersOfItsSession) {
    reconnect();
    Session other = runtime.open_session();
    QueuePairOptions options = shape();
    options.shares = {{.session = &other}};
    QueuePair first = runtime.create_queue_pair(options);
    QueuePair second = runtime.create_queue_pair(options);
    device.inject({.kind = Kind::destroy_qp, .qp_num = first.qp_num()});
    other.close();
    EXPECT_NE(other.state(second.handle()), QpState::init);
    EXPECT_THROW((void)second.info(), Error) << "it is closed";
    device.clear_faults();
    EXPECT_TRUE(first.close());
    other.close();
}

// Bug found by the simulation: the receives of the shared receive queue stayed in flight for ever.
TEST_P(Faults, AQueuePairThatTheProviderKeepsDoesNotKeepASharedReceiveQueueThatItHasNoPartIn) {
    reconnect();
    Session other = runtime.open_session();
    SharedReceiveQueue srq = runtime.create_shared_receive_queue({.session = &other, .depth = 4});
    QueuePairOptions options = shape();
    options.shares = {{.session = &other}};
    QueuePair kept = runtime.create_queue_pair(options);
    WorkRequest receive = recv(1, 64);
    receive.opcode = Opcode::srq_recv;
    receive.srq = srq.handle();
    ASSERT_EQ(other.try_submit(receive), Refusal::none);
    device.inject({.kind = Kind::destroy_qp, .qp_num = kept.qp_num()});
    other.close();
    Completion completion;
    ASSERT_EQ(other.poll({&completion, 1}), 1u);
    EXPECT_EQ(completion.tag, 1u);
    EXPECT_EQ(completion.status, Status::srq_closed);
    device.clear_faults();
    EXPECT_TRUE(kept.close());
    other.close();
}

TEST_P(Faults, AnApplicationThatSleepsIsToldOfTheEndOfItsSessionAllTheSame) {
    Session other = runtime.open_session({.events = true});
    QueuePairOptions options = shape();
    options.shares = {{.session = &other}};
    QueuePair kept = runtime.create_queue_pair(options);
    device.inject({.kind = Kind::destroy_qp,
                   .qp_num = kept.qp_num(),
                   .count = 2});  // fails once for the queue pair and once for its session; then it succeeds
    ASSERT_TRUE(other.arm());
    EXPECT_FALSE(runtime.stop()) << "a queue pair is kept";
    pollfd fd{.fd = other.event_fd(), .events = POLLIN, .revents = 0};
    EXPECT_EQ(::poll(&fd, 1, 0), 1);
    EXPECT_FALSE(other.arm()) << "something has come: the end";
    EXPECT_FALSE(other.wait(std::chrono::seconds(1))) << "at once, since nothing can come";
    EXPECT_TRUE(other.arm()) << "and it is told once";
}

// ---- Everything at once ----

// The request is accepted, and completes once, when the provider returns at last.
TEST_P(Faults, AProviderThatHangsIsSeenAndLosesNothing) {
    connect_pair();
    device.inject({.kind = Kind::hang, .qp_num = a.qp_num(), .delay_ns = std::uint64_t{3600} * 1'000'000'000});
    submit(on(a, rdma(Opcode::rdma_write, 1, 8)));
    submit(on(a, rdma(Opcode::rdma_write, 2, 8)));
    eventually("the worker is busy with the post", [&] {
        const Health health = runtime.health();
        return device.faults_met(Kind::hang) == 1 &&
               std::any_of(health.threads.begin(), health.threads.end(), [](const ThreadHealth& thread) {
                   return thread.kind == ThreadHealth::Kind::worker && thread.busy >= std::chrono::milliseconds(100);
               });
    });
    Completion early;
    EXPECT_EQ(session.poll({&early, 1}), 0u);
    device.clear_faults();
    const auto completions = await(2);
    for (std::size_t n = 0; n < completions.size(); ++n) {
        EXPECT_EQ(completions[n].tag, n + 1);
        EXPECT_EQ(completions[n].status, Status::success);
    }
    EXPECT_EQ(session.figures().in_flight(), 0u);
}

TEST_P(Faults, OfTheNetworkAreMadeGoodByTheTransport) {
    device.inject({.kind = Kind::lose_packet, .count = 1'000'000, .probability = 0.05});
    device.inject({.kind = Kind::delay_packet, .count = 1'000'000, .probability = 0.01, .delay_ns = 200'000});
    reconnect(shape(), {.timeout = 8, .retry_count = 7});
    std::uint64_t sent = 0;
    std::uint64_t arrived = 0;
    for (std::uint64_t tag = 0; tag < 500; ++tag) {
        submit(recv(tag, 8, tag * 8));
        std::memcpy(local.data(), &tag, 8);
        submit(send(1000 + tag, 8));
        for (const Completion& completion : await(2)) {
            ASSERT_EQ(completion.status, Status::success) << tag;
            ASSERT_EQ(completion.tag, completion.from_recv_queue() ? tag : 1000 + tag);
            ++(completion.from_recv_queue() ? arrived : sent);
        }
        ASSERT_EQ(std::memcmp(remote.data() + tag * 8, &tag, 8), 0);
    }
    EXPECT_EQ(sent, 500u);
    EXPECT_EQ(arrived, 500u);
}

TEST_P(Faults, OfAllKindsLoseNoWork) {
    for (unsigned seed = 1; seed <= 10; ++seed) {
        SCOPED_TRACE(seed);
        std::mt19937 random(seed);
        device.clear_faults();
        device.inject(
            {.kind = Kind::send, .nth = 50, .count = 100, .probability = 0.02, .status = IBV_WC_BAD_RESP_ERR});
        device.inject(
            {.kind = Kind::receive, .nth = 50, .count = 100, .probability = 0.02, .status = IBV_WC_REM_ABORT_ERR});
        device.inject({.kind = Kind::post_send, .count = 1'000'000, .probability = 0.02, .error = ENOMEM});
        device.inject({.kind = Kind::post_recv, .count = 1'000'000, .probability = 0.02, .error = ENOMEM});
        device.inject({.kind = Kind::lose_packet, .count = 1'000'000, .probability = 0.02});
        if (seed % 3 == 0) {
            device.inject({.kind = Kind::overrun, .nth = 200});
        }
        reconnect(shape(), {.timeout = 8, .retry_count = 2, .rnr_retry = 2, .min_rnr_timer = 1});
        const SessionFigures before = session.figures();
        std::map<std::uint64_t, bool> outstanding;  // by tag: true if the request must complete
        const auto take = [&] {
            Completion some[16];
            while (const std::size_t n = session.poll(some)) {
                for (std::size_t i = 0; i < n; ++i) {
                    ASSERT_EQ(outstanding.erase(some[i].tag), 1u) << some[i].tag;
                }
            }
        };
        for (std::uint64_t tag = 0; tag < 600; ++tag) {
            const QueuePair& qp = random() % 2 == 0 ? a : b;
            WorkRequest request =
                random() % 3 == 0 ? recv(tag, 256)
                                  : rdma(random() % 2 == 0 ? Opcode::send : Opcode::rdma_write, tag, random() % 200);
            request.qp = qp.handle();
            if (!is_recv(request.opcode) && random() % 2 == 0) {
                request.flags = 0;
            }
            if (session.try_submit(request) == Refusal::none) {
                outstanding[tag] = is_recv(request.opcode) || (request.flags & kSignaled) != 0;
            }
            take();
            test::give_way();
        }
        (void)a.close();
        (void)b.close();
        take();
        eventually("nothing is in flight", [&] {
            take();
            return session.figures().in_flight() == 0;
        });
        const SessionFigures after = session.figures();
        EXPECT_EQ(after.retired - before.retired, outstanding.size());
        for (const auto& [tag, must_complete] : outstanding) {
            EXPECT_FALSE(must_complete) << tag;
        }
    }
    device.clear_faults();
    expect_new_pairs_work();
}

INSTANTIATE_TEST_SUITE_P(Habits, Faults, ::testing::ValuesIn(kProfiles), name_of);

}  // namespace
}  // namespace pollcore::testing
