// Completion queues that are lost by an overrun or by a failed poll. The runtime gives a lost CQ up.
#include <map>
#include <optional>

#include "device_events.hpp"
#include "faults_fixture.hpp"
#include "give_way.hpp"

namespace pollcore::testing {
namespace {

class LostCq : public Faults {
protected:
    /// Puts work in flight on two pairs of queue pairs. No message uses the receives that it posts.
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
    /// Submits mixed work until the queue pairs are lost, and checks that all of the work is accounted for.
    void work_until_lost() {
        const auto deadline = std::chrono::steady_clock::now() + kPatience;
        while (runtime.control_counters().failed_cqs.value() == 0) {
            ASSERT_LT(std::chrono::steady_clock::now(), deadline) << "nobody noticed";
            for (QueuePair* qp : {&a, &c}) {
                take(on(*qp, rdma(Opcode::rdma_write, next_tag, 8,
                                  next_tag % 3 == 0 ? std::uint8_t{0} : std::uint8_t{kSignaled})));
            }
            poll();
            test::give_way();
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
    // The device reports the overrun by an event and by a poll that fails. The application is told of the loss even if
    // the runtime destroys the CQ before it takes the device's event.
    std::optional<Event> event;
    eventually("the loss is told", [&] {
        event = test::next_device_event(runtime, std::chrono::milliseconds(0));
        return event && event->type == EventType::cq_err;
    });
    EXPECT_EQ(event->worker, "w0");
    EXPECT_EQ(runtime.control_counters().failed_cqs.value(), 1u);
    expect_gone_and_replaced();
}

// Bug found by the simulation: a peer got RNR NAKs for ever.
TEST_P(LostCq, WhoseQueuePairsTheProviderKeepsAnswersNobody) {
    QueuePairOptions options = shape();
    options.separate_cqs = true;  // the CQ that is not lost is still polled
    PathAttributes path;
    path.rnr_retry = 7;
    path.timeout = 8;
    connect_pair(options, path);
    device.inject({.kind = Kind::overrun, .qp_num = b.qp_num()});
    device.inject({.kind = Kind::destroy_qp, .qp_num = b.qp_num(), .count = 1000});
    // The message finds no receive, and the queue pair that could post one is lost.
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
    eventually("it is in error", [&] { return session.state(b.handle()) == QpState::error; });
    EXPECT_EQ(session.cause(b.handle()), Status::fatal_err);
    device.clear_faults();
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
    std::optional<Event> event;
    eventually("an event",
               [&] { return (event = test::next_device_event(runtime, std::chrono::milliseconds(0))).has_value(); });
    EXPECT_EQ(event->type, EventType::cq_err);
    EXPECT_EQ(event->device, "net0");
    EXPECT_EQ(event->worker, "w0");
    EXPECT_FALSE(test::next_device_event(runtime, std::chrono::milliseconds(0)).has_value());
    expect_gone_and_replaced();
}

// Bug found by the simulation: a queue pair still answered after its windows had ended. Its peer was told that a
// window's key was wrong, and one of the queue pair's receives failed.
TEST_P(LostCq, HasItsQueuePairsInErrorBeforeTheyAreDestroyed) {
    connect_pair();
    const std::uint64_t before = device.faults_met(Kind::modify);
    device.inject({.kind = Kind::modify, .qp_num = b.qp_num(), .state = IBV_QPS_ERR, .error = ENOMEM});
    device.inject({.kind = Kind::poll_cq, .qp_num = b.qp_num()});
    submit(recv(1, 64));
    submit(send(2, 8));
    eventually("the loss is counted", [&] { return runtime.control_counters().failed_cqs.value() == 1; });
    EXPECT_EQ(await(2).size(), 2u);
    eventually("it is closed", [&] { return session.state(b.handle()) == QpState::closed; });
    EXPECT_EQ(device.faults_met(Kind::modify), before + 1) << "and where that is refused it ends all the same";
    EXPECT_TRUE(a.close());
    EXPECT_TRUE(b.close());
    expect_new_pairs_work();
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

// If the completion of a bind is lost, nobody knows whether the device has carried the bind out. So the window gets a
// new key.
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
        // The window has kept its type: only a window of type 1 may be bound again while it is bound.
        submit(bind(4, window, region));
        EXPECT_EQ(await_one().status, type == WindowType::type_1 ? Status::success : Status::mw_bind_err);
        EXPECT_NO_THROW(window.deallocate());
        EXPECT_TRUE(a.close());
        EXPECT_TRUE(b.close());
    }
    EXPECT_NO_THROW(region.deregister());
}

TEST_P(LostCq, WithTimeStampsIsReplacedByAnotherWithThem) {
    if (GetParam() == Profile::rxe) {
        EXPECT_EQ(device.limits().completion_timestamp_mask, 0u);
        return;
    }
    TestSession timed = runtime.open_session({.wide_completions = true, .device_time = true});
    QueuePairOptions with = shape();
    with.shares[0].session = &timed;
    connect_pair();  // this CQ has no time stamps, and is not lost
    c = std::move(a);
    d = std::move(b);
    std::uint64_t last = 0;
    for (const Kind kind : {Kind::overrun, Kind::poll_cq, Kind::overrun}) {
        connect_pair(with, PathAttributes{});
        const std::uint64_t losses = runtime.control_counters().failed_cqs.value();
        device.inject({.kind = kind, .qp_num = a.qp_num(), .nth = 20});
        std::uint64_t submitted = 0;
        std::uint64_t completed = 0;
        bool failed = false;
        eventually("it is lost, and all has completed", [&] {
            if (!failed && timed.try_submit(rdma(Opcode::rdma_write, submitted, 8)) == Refusal::none) {
                ++submitted;
            }
            WideCompletion one;
            while (timed.poll({&one, 1}) == 1) {
                ++completed;
                failed = failed || !one.ok();
                if (one.ok()) {
                    EXPECT_GE(one.device_time, last);
                    EXPECT_NE(one.device_time, 0u);
                    last = one.device_time;
                } else {
                    EXPECT_EQ(one.device_time, 0u);
                }
            }
            return failed && completed == submitted && runtime.control_counters().failed_cqs.value() == losses + 1;
        });
        EXPECT_TRUE(a.close());
        EXPECT_TRUE(b.close());
        submit(on(c, rdma(Opcode::rdma_write, 1, 8)));
        EXPECT_EQ(await_one().status, Status::success);
    }
    connect_pair(with, PathAttributes{});
    submit(timed, rdma(Opcode::rdma_write, 2, 8));
    const auto after = await_wide(timed, 1);
    ASSERT_EQ(after.size(), 1u);
    EXPECT_EQ(after[0].status, Status::success);
    EXPECT_GE(after[0].device_time, last);
    eventually("the CQs that are left", [&] { return runtime.control_counters().completion_queues.value() == 2; });
}

INSTANTIATE_TEST_SUITE_P(Habits, LostCq, ::testing::ValuesIn(kProfiles), name_of);

}  // namespace
}  // namespace pollcore::testing
