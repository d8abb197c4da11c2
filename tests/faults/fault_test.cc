// A whole runtime on a software device whose fault plan makes things fail, with the habits of each provider.
#include <infiniband/verbs.h>

#include <map>
#include <random>

#include "device/soft/soft_device.hpp"
#include "fixture.hpp"

namespace pollcore::testing {
namespace {

using Kind = SoftFault::Kind;
using Profile = DeviceConfig::Profile;

Config config_of(Profile profile) {
    Config config = test_config();
    config.devices[0].profile = profile;
    config.drain_timeout = std::chrono::milliseconds(300);  // which some of these tests wait for
    return config;
}

class Faults : public Conformance, public ::testing::WithParamInterface<Profile> {
protected:
    Faults() : Conformance(config_of(GetParam())), device(dynamic_cast<SoftDevice&>(runtime.device())) {}

    static WorkRequest on(const QueuePair& qp, WorkRequest request) {
        request.qp = qp.handle();
        return request;
    }
    void reconnect(const QueuePairOptions& options, const PathAttributes& path) {
        a.close();
        b.close();
        connect_pair(options, path);
    }
    void reconnect() { reconnect(shape(), PathAttributes{}); }

    void expect_failed(const Completion& completion, std::uint64_t tag, int status, CompletionOpcode opcode) {
        const auto verbs = static_cast<ibv_wc_status>(status);
        EXPECT_EQ(completion.tag, tag);
        EXPECT_EQ(static_cast<int>(completion.status), status);
        EXPECT_EQ(status_text(completion.status), ibv_wc_status_str(verbs));
        EXPECT_TRUE(status_name(completion.status).starts_with("IBV_WC_"));
        // The device left garbage in all the rest; this is the runtime's own knowledge (I6).
        EXPECT_EQ(completion.opcode, opcode);
        EXPECT_EQ(completion.from_recv_queue(), opcode == CompletionOpcode::recv);
        EXPECT_EQ(completion.byte_len, 0u);
        if (status == IBV_WC_WR_FLUSH_ERR && (completion.flags & kByRuntime) != 0) {
            return;  // the worker knew of the error before it took this request, and no device has seen it
        }
        EXPECT_EQ(completion.flags & ~kFromRecvQueue, 0);
        EXPECT_EQ(completion.vendor_err & 0xffff, static_cast<std::uint32_t>(status));
        EXPECT_NE(completion.vendor_err, static_cast<std::uint32_t>(status));
    }

    MemoryRegion bindable() {
        Access access = Access::all();
        access.window_bind = true;
        return runtime.allocate(4096, access);
    }
    /// On b, of the region's first bytes.
    WorkRequest bind(std::uint64_t tag, const MemoryWindow& window, const MemoryRegion& region) const {
        return {.tag = tag,
                .bind = {window.handle(), region.handle(), 64},
                .remote_addr = region.addr(),
                .bind_access = kWindowWrite,
                .rkey = next_rkey(window.rkey()),
                .qp = b.handle(),
                .opcode = Opcode::bind_mw,
                .flags = kSignaled};
    }

    /// A message each way on a fresh pair.
    void expect_new_pairs_work() {
        QueuePair was_a = std::move(a);
        QueuePair was_b = std::move(b);
        a = QueuePair();
        b = QueuePair();
        connect_pair();
        submit(recv(900, 64));
        submit(send(901, 32));
        for (const Completion& completion : await(2)) {
            EXPECT_EQ(completion.status, Status::success) << completion.tag;
            EXPECT_GE(completion.tag, 900u);
        }
    }

    void expect_error(int errno_value, const std::function<void()>& call) {
        try {
            call();
            FAIL() << "the call went well";
        } catch (const Error& error) {
            EXPECT_EQ(error.code().value(), errno_value) << error.what();
            EXPECT_NE(std::string(error.what()).find("fault plan"), std::string::npos) << error.what();
        }
    }

    /// Waits for what the control thread does by itself.
    template <class Condition>
    void eventually(const char* what, Condition condition) {
        const auto deadline = std::chrono::steady_clock::now() + kPatience;
        while (!condition()) {
            ASSERT_LT(std::chrono::steady_clock::now(), deadline) << what;
            sched_yield();
        }
    }

    SoftDevice& device;
};

// ---- Statuses ----

TEST_P(Faults, EveryStatusOfASendReachesItsSession) {
    for (int status = 1; status <= IBV_WC_TM_RNDV_INCOMPLETE; ++status) {
        SCOPED_TRACE(ibv_wc_status_str(static_cast<ibv_wc_status>(status)));
        reconnect();
        device.inject({.kind = Kind::send, .qp_num = a.qp_num(), .nth = 2, .status = static_cast<ibv_wc_status>(status)});
        submit({rdma(Opcode::rdma_write, 1, 8),
                rdma(Opcode::rdma_read, 2, 8, 0),  // unsignaled: a failure completes all the same
                rdma(Opcode::atomic_fetch_and_add, 3, 8, 0),
                rdma(Opcode::rdma_write, 4, 8)});
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
        device.inject({.kind = Kind::receive, .qp_num = b.qp_num(), .nth = 2, .status = static_cast<ibv_wc_status>(status)});
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

// ---- Completion queues that are lost ----

class LostCq : public Faults {
protected:
    /// Work in flight on two pairs, of which the receives wait for nothing.
    void start(bool separate_cqs) {
        QueuePairOptions options = shape();
        options.separate_cqs = separate_cqs;
        connect_pair(options, PathAttributes{});
        c = std::move(a);
        d = std::move(b);
        a = QueuePair();
        b = QueuePair();
        connect_pair(options, PathAttributes{});
        for (QueuePair* qp : {&a, &b, &c, &d}) {
            for (std::uint64_t i = 0; i < 10; ++i) {
                take(on(*qp, recv(next_tag, 64)));
            }
        }
    }
    void take(const WorkRequest& request) {
        const Refusal refusal = session.try_submit(request);
        if (refusal == Refusal::none) {
            outstanding[next_tag++] = request;
        } else {
            last_refusal = refusal;
        }
    }
    /// Mixed work until the queue pairs are no more, then all of it is accounted for.
    void work_until_lost() {
        const auto deadline = std::chrono::steady_clock::now() + kPatience;
        while (runtime.control_counters().failed_cqs.value() == 0) {
            ASSERT_LT(std::chrono::steady_clock::now(), deadline) << "nobody noticed";
            for (QueuePair* qp : {&a, &c}) {
                take(on(*qp, rdma(Opcode::rdma_write, next_tag, 8, next_tag % 3 == 0 ? std::uint8_t{0} : std::uint8_t{kSignaled})));
            }
            poll();
            sched_yield();
        }
        eventually("everything has completed or was retired", [&] {
            poll();
            return session.figures().in_flight() == 0;
        });
        for (const auto& [tag, request] : outstanding) {
            EXPECT_FALSE(request.flags & kSignaled) << tag << " never completed";
            EXPECT_FALSE(is_recv(request.opcode)) << tag << " never completed";
        }
        const SessionFigures figures = session.figures();
        EXPECT_EQ(figures.retired, outstanding.size());
        EXPECT_EQ(figures.accepted, figures.completed + figures.retired);
    }
    void poll() {
        Completion some[32];
        while (const std::size_t n = session.poll(some)) {
            for (std::size_t i = 0; i < n; ++i) {
                ASSERT_EQ(outstanding.erase(some[i].tag), 1u) << some[i].tag << " completed twice";
                lost += some[i].status == Status::fatal_err;
            }
        }
    }
    void expect_gone_and_replaced() {
        for (QueuePair* qp : {&a, &b, &c, &d}) {
            EXPECT_EQ(session.state(qp->handle()), QpState::closed);
            EXPECT_NE(session.cause(qp->handle()), Status::success);
            EXPECT_EQ(session.try_submit(on(*qp, send(0, 8))), Refusal::stale_handle);
            EXPECT_TRUE(qp->close());
        }
        expect_new_pairs_work();
        EXPECT_TRUE(runtime.stop());
    }

    QueuePair c;
    QueuePair d;
    std::map<std::uint64_t, WorkRequest> outstanding;
    std::uint64_t next_tag = 1;
    std::uint64_t lost = 0;
    Refusal last_refusal = Refusal::none;
};

TEST_P(LostCq, ByAnOverrunFailsItsQueuePairsAndTheWorkerLivesOnWithAnother) {
    start(false);
    device.inject({.kind = Kind::overrun, .qp_num = a.qp_num(), .nth = 100});
    work_until_lost();
    EXPECT_GT(lost, 0u);
    EXPECT_GE(runtime.control_counters().async_events.value(), 1u);
    EXPECT_EQ(runtime.control_counters().failed_cqs.value(), 1u);
    expect_gone_and_replaced();
}

// The simulation found a peer that was told for ever that there is no receive.
TEST_P(LostCq, WhoseQueuePairsTheProviderKeepsAnswersNobody) {
    QueuePairOptions options = shape();
    options.separate_cqs = true;  // the other one is polled on
    PathAttributes path;
    path.rnr_retry = 7;
    path.timeout = 8;
    connect_pair(options, path);
    device.inject({.kind = Kind::overrun, .qp_num = b.qp_num()});
    device.inject({.kind = Kind::destroy_qp, .qp_num = b.qp_num(), .count = 1000});
    // No receive is there for the message, and the queue pair that could take one is lost.
    ASSERT_EQ(session.try_submit(on(a, send(1, 8))), Refusal::none);
    ASSERT_EQ(session.try_submit(on(b, rdma(Opcode::rdma_write, 2, 8))), Refusal::none);
    bool ended = false;
    eventually("the message has failed", [&] {
        Completion some[8];
        for (std::size_t i = 0, n = session.poll(some); i < n; ++i) {
            ended = ended || some[i].tag == 1;
        }
        return ended;
    });
    device.clear_faults();
}

// The simulation found the others open, and answering their peers, after their session was closed.
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

TEST_P(LostCq, ForSendsOnlyFailsTheQueuePairsThatSendThere) {
    start(true);
    device.inject({.kind = Kind::overrun, .qp_num = a.qp_num(), .nth = 50});
    work_until_lost();
    EXPECT_EQ(runtime.control_counters().failed_cqs.value(), 1u);
    expect_gone_and_replaced();
}

TEST_P(LostCq, ManyTimesInARowIsStillOneLoss) {
    start(false);
    device.inject({.kind = Kind::overrun, .nth = 20, .count = 40});
    work_until_lost();
    device.clear_faults();
    EXPECT_EQ(runtime.control_counters().failed_cqs.value(), 1u);
    expect_gone_and_replaced();
}

TEST_P(LostCq, ByAPollThatFailsInTheMiddleOfABatchLosesNoCompletion) {
    start(false);
    device.inject({.kind = Kind::poll_cq, .nth = 40});
    work_until_lost();
    EXPECT_GT(lost, 0u);
    EXPECT_EQ(runtime.worker_counters(0).failed_polls.value(), 1u);
    EXPECT_EQ(runtime.control_counters().failed_cqs.value(), 1u);
    expect_gone_and_replaced();
}

TEST_P(LostCq, TimeAfterTimeCostsNothingThatDoesNotComeBack) {
    for (int life = 0; life < 20; ++life) {
        connect_pair();
        submit(recv(1, 64));
        device.inject({.kind = life % 2 == 0 ? Kind::overrun : Kind::poll_cq});
        submit(rdma(Opcode::rdma_write, 2, 8));
        const auto completions = await(2);
        ASSERT_EQ(completions.size(), 2u);
        const auto losses = static_cast<std::uint64_t>(life) + 1;
        eventually("the loss is counted", [&] { return runtime.control_counters().failed_cqs.value() == losses; });
        EXPECT_TRUE(a.close());
        EXPECT_TRUE(b.close());
    }
    expect_new_pairs_work();
}

// Whether the device carried out a bind whose completion is lost nobody knows, so its window gets a new key.
TEST_P(LostCq, LeavesWindowsThatCanBeBoundAgain) {
    MemoryRegion region = bindable();
    std::uint64_t losses = 0;
    for (const WindowType type : {WindowType::type_1, WindowType::type_2}) {
        connect_pair();
        MemoryWindow window = runtime.create_memory_window(session, type);
        device.inject({.kind = Kind::poll_cq, .qp_num = b.qp_num()});
        submit(bind(1, window, region));
        const Completion lost_bind = await_one();
        EXPECT_EQ(lost_bind.status, Status::fatal_err);
        EXPECT_EQ(lost_bind.opcode, CompletionOpcode::bind_mw);
        ++losses;
        eventually("the loss is counted", [&] { return runtime.control_counters().failed_cqs.value() == losses; });
        EXPECT_TRUE(a.close());
        EXPECT_TRUE(b.close());

        connect_pair();
        submit(bind(2, window, region));
        const Completion bound = await_one();
        ASSERT_EQ(bound.status, Status::success);
        WorkRequest write = rdma(Opcode::rdma_write, 3, 8);
        write.remote_addr = region.addr();
        write.rkey = bound.window_rkey;
        submit(write);
        EXPECT_EQ(await_one().status, Status::success);
        // It is still of its type: only the first may be bound again while it is bound.
        submit(bind(4, window, region));
        EXPECT_EQ(await_one().status, type == WindowType::type_1 ? Status::success : Status::mw_bind_err);
        EXPECT_NO_THROW(window.deallocate());
        EXPECT_TRUE(a.close());
        EXPECT_TRUE(b.close());
    }
    EXPECT_NO_THROW(region.deregister());
}

// ---- Calls that fail ----

TEST_P(Faults, AQueuePairThatCannotBeMadeLeavesNothingBehind) {
    const QueuePairOptions options = shape();
    // More often than there are places for queue pairs.
    for (int time = 0; time < 300; ++time) {
        const Kind kind = time % 2 == 0 ? Kind::modify : Kind::create_qp;
        device.inject({.kind = kind, .state = kind == Kind::modify ? std::optional(IBV_QPS_INIT) : std::nullopt, .error = ENOMEM});
        expect_error(ENOMEM, [&] { (void)runtime.create_queue_pair(options); });
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
        expect_error(ENOMEM, [&] { b.reset(); });
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

// EIO, which a device that is lost says to everything.
TEST_P(Faults, AQueuePairThatDoesNotGoToErrorIsResetAsItIs) {
    connect_pair();
    submit(recv(1, 64));
    device.inject({.kind = Kind::modify, .qp_num = b.qp_num(), .state = IBV_QPS_ERR});
    EXPECT_FALSE(b.reset()) << "nothing was flushed";
    const Completion ended = await_one();
    EXPECT_EQ(ended.tag, 1u);
    EXPECT_EQ(ended.status, Status::qp_closed);
    EXPECT_EQ(runtime.control_counters().devices_lost.value(), 0u) << "it is asked, and is there";
    EXPECT_EQ(session.state(b.handle()), QpState::init);
    expect_new_pairs_work();
}

TEST_P(Faults, WhatCannotBeMadeSaysTheDevicesErrorAndWorksTheNextTime) {
    device.inject({.kind = Kind::create_cq, .error = EMFILE});
    expect_error(EMFILE, [&] { (void)runtime.create_queue_pair(shape()); });
    device.inject({.kind = Kind::register_memory, .error = ENOMEM});
    expect_error(ENOMEM, [&] { (void)runtime.allocate(4096); });
    device.inject({.kind = Kind::create_pd, .error = EAGAIN});
    expect_error(EAGAIN, [&] { (void)runtime.create_protection_domain(); });
    EXPECT_TRUE(runtime.allocate(4096).valid());
    expect_new_pairs_work();
}

TEST_P(Faults, AConnectThatTheDeviceRefusesAtRtrMayBeTriedAgain) {
    a = runtime.create_queue_pair(shape());
    b = runtime.create_queue_pair(shape());
    submit(recv(1, 64));
    device.inject({.kind = Kind::modify, .qp_num = a.qp_num(), .state = IBV_QPS_RTR, .error = ETIMEDOUT});
    expect_error(ETIMEDOUT, [&] { a.connect(b.info()); });
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
    expect_error(EIO, [&] { a.connect(b.info()); });
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
    device.inject({.kind = Kind::modify, .qp_num = a.qp_num(), .state = IBV_QPS_ERR});
    EXPECT_FALSE(a.close()) << "it had to be cut short";
    const auto completions = await(5);
    for (const Completion& completion : completions) {
        EXPECT_EQ(completion.status, Status::qp_closed);
        EXPECT_TRUE(completion.flags & kByRuntime);
    }
    EXPECT_EQ(session.figures().in_flight(), 0u);
}

TEST_P(Faults, AQueuePairThatTheDeviceDoesNotDestroyGivesNoBufferBackUntilItDoes) {
    connect_pair();
    device.inject({.kind = Kind::post_recv, .qp_num = a.qp_num(), .nth = 2});
    submit(on(a, recv(1, 64)));
    submit(on(a, recv(2, 64)));
    EXPECT_EQ(await_one().status, Status::post_refused);
    device.inject({.kind = Kind::modify, .qp_num = a.qp_num(), .state = IBV_QPS_ERR});
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

// ---- Everything at once ----

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
        device.inject({.kind = Kind::send, .nth = 50, .count = 100, .probability = 0.02, .status = IBV_WC_BAD_RESP_ERR});
        device.inject({.kind = Kind::receive, .nth = 50, .count = 100, .probability = 0.02, .status = IBV_WC_REM_ABORT_ERR});
        device.inject({.kind = Kind::post_send, .count = 1'000'000, .probability = 0.02, .error = ENOMEM});
        device.inject({.kind = Kind::post_recv, .count = 1'000'000, .probability = 0.02, .error = ENOMEM});
        device.inject({.kind = Kind::lose_packet, .count = 1'000'000, .probability = 0.02});
        if (seed % 3 == 0) {
            device.inject({.kind = Kind::overrun, .nth = 200});
        }
        reconnect(shape(), {.timeout = 8, .retry_count = 2, .rnr_retry = 2, .min_rnr_timer = 1});
        const SessionFigures before = session.figures();
        std::map<std::uint64_t, bool> outstanding;  // whether it must complete
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
            WorkRequest request = random() % 3 == 0 ? recv(tag, 256) : rdma(random() % 2 == 0 ? Opcode::send : Opcode::rdma_write, tag, random() % 200);
            request.qp = qp.handle();
            if (!is_recv(request.opcode) && random() % 2 == 0) {
                request.flags = 0;
            }
            if (session.try_submit(request) == Refusal::none) {
                outstanding[tag] = is_recv(request.opcode) || (request.flags & kSignaled) != 0;
            }
            take();
            sched_yield();
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

constexpr Profile kProfiles[] = {Profile::standard, Profile::rxe, Profile::mlx5};
std::string name_of(const ::testing::TestParamInfo<Profile>& info) {
    static constexpr const char* kNames[] = {"standard", "rxe", "mlx5"};
    return kNames[static_cast<int>(info.param)];
}
INSTANTIATE_TEST_SUITE_P(Habits, Faults, ::testing::ValuesIn(kProfiles), name_of);
INSTANTIATE_TEST_SUITE_P(Habits, LostCq, ::testing::ValuesIn(kProfiles), name_of);

}  // namespace
}  // namespace pollcore::testing
