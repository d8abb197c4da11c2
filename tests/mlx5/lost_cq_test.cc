// Tests completion queues that overrun: the device raises CQ_ERR, ends the queue pairs that use the CQ, and writes no
// more CQEs to the CQ.
#include <map>

#include "give_way.hpp"
#include "mlx5_fixture.hpp"

namespace pollcore::testing {
namespace {

class OverrunCq : public OnMlx5 {
protected:
    void overrun(const QueuePair& qp, bool of_sends) { Model::overrun_cq(Model::cq_of(qp.qp_num(), of_sends)); }
    [[nodiscard]] std::uint64_t losses() { return runtime.control_counters().failed_cqs.value(); }

    /// Posts receives to which nobody sends, on all four queue pairs.
    void start(bool separate_cqs) {
        QueuePairOptions options = shape();
        options.separate_cqs = separate_cqs;
        connect_two_pairs(options);
        for (QueuePair* qp : {&a, &b, &c, &d}) {
            for (int i = 0; i < 10; ++i) {
                take(on(*qp, recv(next_tag, 64)));
            }
        }
    }
    void take(const WorkRequest& request) {
        if (session.try_submit(request) == Refusal::none) {
            outstanding[next_tag++] = request;
        }
    }
    void work() {
        for (QueuePair* qp : {&a, &c}) {
            take(on(*qp, rdma(Opcode::rdma_write, next_tag, 8,
                              next_tag % 3 == 0 ? std::uint8_t{0} : std::uint8_t{kSignaled})));
        }
        take_completions();
        test::give_way();
    }
    void take_completions() {
        Completion some[32];
        while (const std::size_t n = session.poll(some)) {
            for (std::size_t i = 0; i < n; ++i) {
                ASSERT_EQ(outstanding.erase(some[i].tag), 1u) << some[i].tag << " completed twice";
            }
        }
    }
    /// Submits requests until the runtime has counted `count` lost CQs. Then expects that each request has completed,
    /// or is unsignaled and has succeeded.
    void work_until_lost(std::uint64_t count) {
        const auto deadline = std::chrono::steady_clock::now() + kPatience;
        while (losses() < count) {
            ASSERT_LT(std::chrono::steady_clock::now(), deadline) << "nobody noticed";
            work();
        }
        expect_all_ended();
    }
    void expect_all_ended() {
        until([&] {
            take_completions();
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
    void expect_told_and_closed(std::initializer_list<QueuePair*> gone) {
        const std::optional<Event> event = await_event(EventType::cq_err);
        ASSERT_TRUE(event.has_value());
        EXPECT_EQ(event->device, "net0");
        EXPECT_EQ(event->worker, "w0");
        for (QueuePair* qp : gone) {
            until([&] { return session.state(qp->handle()) == QpState::closed; });
            EXPECT_NE(session.cause(qp->handle()), Status::success);
            EXPECT_EQ(session.try_submit(on(*qp, send(0, 8))), Refusal::stale_handle);
            EXPECT_TRUE(qp->close());
        }
        expect_acknowledged();
    }

    std::map<std::uint64_t, WorkRequest> outstanding;
    std::uint64_t next_tag = 1;
};

TEST_F(OverrunCq, UnderTrafficIsReplacedAndItsQueuePairsAreClosed) {
    start(false);
    for (int i = 0; i < 100; ++i) {
        work();
    }
    overrun(a, true);
    work_until_lost(1);
    EXPECT_EQ(losses(), 1u);
    EXPECT_EQ(told(EventType::cq_err), 1u);
    expect_told_and_closed({&a, &b, &c, &d});
    expect_new_pairs_work();
    EXPECT_TRUE(runtime.stop());
}

// The runtime still polls the CQ of the receives.
TEST_F(OverrunCq, OfSendsAloneEndsItsQueuePairs) {
    start(true);
    overrun(a, true);
    work_until_lost(1);
    expect_told_and_closed({&a, &b, &c, &d});
    expect_new_pairs_work();
}

TEST_F(OverrunCq, OfReceivesAloneEndsItsQueuePairs) {
    start(true);
    ASSERT_NE(Model::cq_of(a.qp_num(), true), Model::cq_of(a.qp_num(), false));
    overrun(a, false);
    work_until_lost(1);
    expect_told_and_closed({&a, &b, &c, &d});
    expect_new_pairs_work();
}

TEST_F(OverrunCq, ThatIsIdleIsReplaced) {
    connect_two_pairs(shape());
    submit(recv(1, 64));
    overrun(b, false);
    expect_told_and_closed({&a, &b, &c, &d});
    const Completion ended = await_one();
    EXPECT_EQ(ended.tag, 1u);
    EXPECT_NE(ended.status, Status::success);
    expect_new_pairs_work();
    expect_everything_accounted();
}

TEST_F(OverrunCq, ManyTimesInARowIsStillOneLoss) {
    connect_two_pairs(shape());
    Model::overrun_cq(Model::cq_of(a.qp_num(), true), 40);
    expect_told_and_closed({&a, &b, &c, &d});
    EXPECT_EQ(losses(), 1u);
    expect_new_pairs_work();
}

TEST_F(OverrunCq, TimeAfterTimeCostsNothingThatDoesNotComeBack) {
    for (std::uint64_t life = 1; life <= 20; ++life) {
        connect_pair();
        submit(recv(1, 64));
        overrun(life % 2 == 0 ? a : b, true);
        (void)session.try_submit(rdma(Opcode::rdma_write, 2, 8));
        until([&] { return losses() == life; });
        const std::uint64_t left = session.figures().in_flight();
        EXPECT_EQ(await(left).size(), left);
        EXPECT_TRUE(a.close());
        EXPECT_TRUE(b.close());
        expect_everything_accounted();
    }
    expect_new_pairs_work();
    expect_acknowledged();
}

TEST_F(OverrunCq, LeavesASharedReceiveQueueItsReceives) {
    SharedReceiveQueue srq = runtime.create_shared_receive_queue({.session = &session, .depth = 16});
    const auto connect = [&] {
        QueuePairOptions taker = shape();
        taker.srq = &srq;
        a = runtime.create_queue_pair(shape());
        b = runtime.create_queue_pair(taker);
        const QpInfo info = a.info();
        a.connect(b.info());
        b.connect(info);
    };
    connect();
    for (std::uint64_t tag = 0; tag < 4; ++tag) {
        WorkRequest receive = recv(tag, 64);
        receive.qp = {};
        receive.srq = srq.handle();
        receive.opcode = Opcode::srq_recv;
        submit(receive);
    }
    submit(send(100, 8));
    EXPECT_EQ(await(2).size(), 2u);
    overrun(b, false);
    expect_told_and_closed({&a, &b});
    EXPECT_EQ(session.figures().in_flight(), 3u);
    connect();
    for (std::uint64_t tag = 1; tag < 4; ++tag) {
        submit(send(100, 8));
        for (const Completion& completion : await(2)) {
            EXPECT_EQ(completion.status, Status::success);
            EXPECT_EQ(completion.tag, completion.from_recv_queue() ? tag : 100);
        }
    }
    expect_everything_accounted();
}

TEST_F(OverrunCq, LeavesWindowsThatCanBeBoundAgain) {
    Access access = Access::all();
    access.window_bind = true;
    MemoryRegion region = runtime.allocate(4096, access);
    MemoryWindow window = runtime.create_memory_window(session, WindowType::type_2);
    const auto bind = [&](std::uint64_t tag) {
        return WorkRequest{.tag = tag,
                           .bind = {window.handle(), region.handle(), 64},
                           .remote_addr = region.addr(),
                           .bind_access = kWindowWrite,
                           .rkey = next_rkey(window.rkey()),
                           .qp = b.handle(),
                           .opcode = Opcode::bind_mw,
                           .flags = kSignaled};
    };
    connect_pair();
    submit(bind(1));
    EXPECT_EQ(await_one().status, Status::success);
    overrun(b, true);
    expect_told_and_closed({&a, &b});
    connect_pair();
    submit(bind(2));
    const Completion bound = await_one();
    ASSERT_EQ(bound.status, Status::success);
    WorkRequest write = rdma(Opcode::rdma_write, 3, 8);
    write.remote_addr = region.addr();
    write.rkey = bound.window_rkey;
    submit(write);
    EXPECT_EQ(await_one().status, Status::success);
    EXPECT_NO_THROW(window.deallocate());
    EXPECT_TRUE(a.close());
    EXPECT_TRUE(b.close());
    EXPECT_NO_THROW(region.deregister());
}

}  // namespace
}  // namespace pollcore::testing
