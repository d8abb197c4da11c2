// A provider that fails: it refuses posts, and its polls return errors. The faults are inserted into the context's ops,
// where real faults occur too. A marker is an empty request of the worker: when the marker completes, all requests
// before it have ended.
#include <array>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "post_each.hpp"
#include "worker_fixture.hpp"

namespace pollcore::testing {
namespace {

// The scripted ops follow this script. Only one test at a time uses it, in one thread.
struct Script {
    int (*post_send)(ibv_qp*, ibv_send_wr*, ibv_send_wr**) = nullptr;
    int (*post_recv)(ibv_qp*, ibv_recv_wr*, ibv_recv_wr**) = nullptr;
    int (*poll_cq)(ibv_cq*, int, ibv_wc*) = nullptr;
    std::uint64_t posted = 0;
    std::uint64_t refuse_every = 0;  // refuses every n-th send work request; markers have no SGE and are not counted
    std::uint64_t refuse_markers = 0;
    bool refuse_recvs = false;
    ibv_cq* broken = nullptr;
    bool hold_back = false;  // polls put completions into `held` and return none
    std::vector<ibv_wc> held;
    std::function<void()> before_poll{};
};
Script script;

int scripted_post_send(ibv_qp* qp, ibv_send_wr* wr, ibv_send_wr** bad) {
    return post_each(script.post_send, qp, wr, bad, [](const ibv_send_wr& one) {
        if (one.num_sge == 0 && script.refuse_markers != 0) {
            --script.refuse_markers;
            return true;
        }
        return one.num_sge != 0 && script.refuse_every != 0 && ++script.posted % script.refuse_every == 0;
    });
}

int scripted_post_recv(ibv_qp* qp, ibv_recv_wr* wr, ibv_recv_wr** bad) {
    if (script.refuse_recvs) {
        *bad = wr;
        return EINVAL;
    }
    return script.post_recv(qp, wr, bad);
}

int scripted_poll(ibv_cq* cq, int n, ibv_wc* wc) {
    if (script.before_poll) {
        script.before_poll();
    }
    if (cq == script.broken) {
        return -1;
    }
    if (!script.hold_back && !script.held.empty()) {
        *wc = script.held.front();
        script.held.erase(script.held.begin());
        return 1;
    }
    const int taken = script.poll_cq(cq, n, wc);
    if (script.hold_back && taken > 0) {
        script.held.insert(script.held.end(), wc, wc + taken);
        return 0;
    }
    return taken;
}

class ProviderFailure : public WorkerFixture {
protected:
    ProviderFailure() { begin(); }
    void begin(SteppedWorld::Options options = {}) {
        make({}, std::move(options));
        ibv_context_ops& ops = world->device->context()->ops;
        script = Script{.post_send = ops.post_send, .post_recv = ops.post_recv, .poll_cq = ops.poll_cq};
        ops.post_send = &scripted_post_send;
        ops.post_recv = &scripted_post_recv;
        ops.poll_cq = &scripted_poll;
    }
    /// Two completions are held back. The first is dropped, and the next poll returns the second.
    void lose_the_first_of_two() {
        world->step(20);
        ASSERT_EQ(script.held.size(), 2u);
        script.held.erase(script.held.begin());
        script.hold_back = false;
    }
};

TEST_F(ProviderFailure, ARefusedPostCompletesAtOnceAndTheOthersInOrder) {
    script.refuse_every = 3;
    for (std::uint64_t tag = 0; tag < 12; ++tag) {
        submit(write(tag));
    }
    const auto completions = world->await(12);
    ASSERT_EQ(completions.size(), 12u);
    std::vector<std::uint64_t> refused;
    std::vector<std::uint64_t> done;
    for (const Completion& completion : completions) {
        (completion.ok() ? done : refused).push_back(completion.tag);
        EXPECT_EQ(completion.status, completion.ok() ? Status::success : Status::post_refused);
        EXPECT_EQ((completion.flags & kByRuntime) != 0, !completion.ok());
    }
    EXPECT_EQ(refused, (std::vector<std::uint64_t>{2, 5, 8, 11}));
    EXPECT_EQ(done, (std::vector<std::uint64_t>{0, 1, 3, 4, 6, 7, 9, 10}));
    EXPECT_EQ(world->worker.counters().post_failures.value(), 4u);
    EXPECT_EQ(world->session().figures().in_flight(), 0u);
}

TEST_F(ProviderFailure, ARefusedPostBehindUnsignaledWorkCompletesAllTheSame) {
    script.refuse_every = 4;
    for (std::uint64_t tag = 0; tag < 4; ++tag) {
        submit(write(tag, {.flags = 0}));
    }
    const auto completions = world->await(1);
    ASSERT_EQ(completions.size(), 1u);
    EXPECT_EQ(completions[0].tag, 3u);
    EXPECT_EQ(completions[0].status, Status::post_refused);
    EXPECT_EQ(world->worker.counters().markers.value(), 0u)
        << "nothing of the runtime's own goes over a QP that is well";
    script.refuse_every = 0;
    submit(write(4));
    ASSERT_EQ(world->await(1).size(), 1u);
    EXPECT_EQ(world->session().retired(a->handle()), 3u);
    EXPECT_EQ(world->session().figures().in_flight(), 0u);
}

TEST_F(ProviderFailure, ASignalThatARefusedPostCarriedIsTheNextOnes) {
    script.refuse_every = 1;
    submit(write(0, {.flags = 0}));
    ASSERT_EQ(world->await(1).size(), 1u);
    script.refuse_every = 0;
    submit(write(1, {.flags = 0}));
    turn();
    EXPECT_EQ(world->session().retired(a->handle()), 1u);
    EXPECT_EQ(world->session().figures().in_flight(), 0u);
}

TEST_F(ProviderFailure, AMarkerThatIsRefusedIsTriedAgain) {
    script.hold_back = true;
    submit(write(1));
    submit(write(2, {.flags = 0}));
    world->step(20);
    ASSERT_EQ(script.held.size(), 1u);
    script.refuse_markers = 1;
    world->to_error(*a);
    EXPECT_EQ(script.refuse_markers, 0u);
    EXPECT_EQ(world->worker.counters().markers.value(), 0u);
    script.hold_back = false;
    EXPECT_EQ(world->await(1).size(), 1u);
    turn();
    EXPECT_EQ(world->worker.counters().markers.value(), 1u);
    EXPECT_EQ(world->session().retired(a->handle()), 1u);
    EXPECT_EQ(world->session().figures().in_flight(), 0u);
}

TEST_F(ProviderFailure, AMarkerThatIsRefusedIsTriedAgainThoughNothingElseHappens) {
    script.hold_back = true;
    submit(write(1, {.flags = 0}));
    world->step(20);
    script.refuse_markers = 3;
    world->to_error(*a);
    script.hold_back = false;
    turn();
    EXPECT_EQ(script.refuse_markers, 0u);
    EXPECT_EQ(world->worker.counters().markers.value(), 1u);
    EXPECT_EQ(world->session().retired(a->handle()), 1u);
}

TEST_F(ProviderFailure, AProviderThatTakesNoMarkerKeepsNoWorkerAwake) {
    SteppedWorld::Options options;
    options.sleeps = true;
    begin(std::move(options));
    submit(write(1, {.flags = 0}));
    turn();
    script.refuse_markers = 1'000'000;
    world->to_error(*a);
    EXPECT_FALSE(world->worker.fall_asleep(world->now));
    turn(2000);
    EXPECT_TRUE(world->worker.fall_asleep(world->now));
    world->worker.wake_up(world->now);
}

TEST_F(ProviderFailure, ACqThatFailsInTheLastLookBeforeSleepKeepsTheWorkerAwake) {
    SteppedWorld::Options options;
    options.sleeps = true;
    begin(std::move(options));
    submit(recv(1));
    world->step();
    script.broken = b->qp->recv_cq;
    EXPECT_FALSE(world->worker.fall_asleep(world->now));
    EXPECT_EQ(world->worker.counters().failed_polls.value(), 1u);
    EXPECT_EQ(world->session().state(b->handle()), QpState::error);
}

// Bug found by the simulation: the session accepted requests for which the worker had no room. Requests that the
// provider had refused kept their places until the requests ahead of them completed.
TEST_F(ProviderFailure, RefusedPostsBetweenOthersTakeNobodysRoom) {
    script.hold_back = true;
    std::uint64_t tag = 0;
    std::uint64_t refused = 0;
    const auto submit_next = [&] { submit(write(tag++)); };
    submit_next();
    world->step();
    for (int turn = 0; turn < 50; ++turn) {
        script.refuse_every = 1;
        submit_next();
        if (turn % 5 == 0) {
            submit_next();
        }
        world->step();
        for (const Completion& completion : world->poll()) {
            EXPECT_EQ(completion.status, Status::post_refused);
            ++refused;
        }
        script.refuse_every = 0;
    }
    EXPECT_EQ(refused, tag - 1);
    script.posted = 0;
    script.refuse_every = 2;  // the refused requests are in the middle of a chain
    for (int i = 0; i < 14; ++i) {
        submit_next();
    }
    world->step(10);
    EXPECT_EQ(world->poll().size(), 7u);
    script.refuse_every = 0;
    for (int i = 0; i < 8; ++i) {
        submit_next();
    }
    world->step(10);
    EXPECT_EQ(world->session().try_submit(write(tag)), Refusal::send_queue_full);
    EXPECT_EQ(world->worker.counters().refused_requests.value(), 0u);
    script.hold_back = false;
    const auto completions = world->await(16);
    ASSERT_EQ(completions.size(), 16u);
    for (std::size_t i = 0; i < completions.size(); ++i) {
        EXPECT_EQ(completions[i].status, Status::success);
        EXPECT_TRUE(i == 0 || completions[i].tag > completions[i - 1].tag);
    }
    EXPECT_EQ(world->session().figures().in_flight(), 0u);
}

// Bug found by the simulation: unsignaled requests counted as successes although they had been flushed. The completions
// of their flushes were lost.
TEST_F(ProviderFailure, WhatStandsBehindALostCompletionIsNoSuccess) {
    script.hold_back = true;
    submit(write(0));
    submit(write(1, {.flags = 0}));
    submit(write(2));
    lose_the_first_of_two();
    const auto completions = world->await(3);
    ASSERT_EQ(completions.size(), 3u);
    for (std::uint64_t tag = 0; tag < 2; ++tag) {
        EXPECT_EQ(completions[tag].tag, tag);
        EXPECT_EQ(completions[tag].status, Status::general_err);
        EXPECT_TRUE(completions[tag].flags & kByRuntime);
    }
    EXPECT_EQ(completions[2].status, Status::success);
    EXPECT_EQ(world->session().retired(a->handle()), 0u);
}

// A request behind the bind succeeds, which proves that the device has given the window its new key.
TEST_F(ProviderFailure, AWindowGoesOnFromABindWhoseCompletionIsLost) {
    Buffer& memory = buffer(8192, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_MW_BIND);
    SteppedWorld::Window& window = world->add_window(IBV_MW_TYPE_1);
    const std::uint32_t first = window.mw->rkey;
    const MrHandle region = world->make_bindable(*memory.mr);
    script.hold_back = true;
    submit(bind(1, *a, window, memory, region));
    submit(write(2));
    lose_the_first_of_two();
    const auto lost = world->await(2);
    ASSERT_EQ(lost.size(), 2u);
    EXPECT_EQ(lost[0].status, Status::general_err);
    EXPECT_FALSE(window.end->lost());
    EXPECT_EQ(window.end->rkey(), next_rkey(first));
    submit(bind(3, *a, window, memory, region));
    const auto again = world->await(1);
    ASSERT_EQ(again.size(), 1u);
    EXPECT_EQ(again[0].status, Status::success);
    EXPECT_EQ(again[0].window_rkey, next_rkey(next_rkey(first)));
}

TEST_F(ProviderFailure, AProviderThatRefusesEverythingLeavesNothingInFlight) {
    script.refuse_every = 1;
    std::uint64_t accepted = 0;
    std::uint64_t completed = 0;
    for (int turn = 0; turn < 300; ++turn) {
        accepted += try_submit(write(accepted, {.flags = signaled_if(turn % 2 == 0)})) == Refusal::none;
        world->step();
        for (const Completion& completion : world->poll()) {
            EXPECT_EQ(completion.tag, completed++);
            EXPECT_EQ(completion.status, Status::post_refused);
        }
    }
    EXPECT_EQ(accepted, 300u);
    EXPECT_EQ(completed, 300u);
}

TEST_F(ProviderFailure, ConservationHoldsWhateverIsRefused) {
    for (const std::uint64_t every : {2u, 5u, 7u, 13u}) {
        script.refuse_every = every;
        std::uint64_t tag = 0;
        for (int turn = 0; turn < 2000; ++turn) {
            if (try_submit(write(tag, {.flags = signaled_if((turn * 7 + turn / 13) % 3 == 0)})) == Refusal::none) {
                ++tag;
            }
            if (turn % 5 == 0) {
                world->step();
            }
            (void)world->poll();
            const SessionFigures figures = world->session().figures();
            ASSERT_GE(figures.accepted, figures.completed + figures.retired);
            ASSERT_LE(figures.in_flight(), 16u);
        }
        script.refuse_every = 0;
        submit(write(tag));
        world->step(50);
        (void)world->poll();
        EXPECT_EQ(world->session().figures().in_flight(), 0u) << "every " << every;
    }
}

TEST_F(ProviderFailure, ARefusedReceiveCompletesAtOnce) {
    script.refuse_recvs = true;
    submit(recv(9));
    const Completion refused = one();
    EXPECT_EQ(refused.status, Status::post_refused);
    EXPECT_TRUE(refused.from_recv_queue());
}

TEST_F(ProviderFailure, ACqThatCannotBePolledFailsItsQpsLoudlyAndTheWorkerLivesOn) {
    const std::uint32_t other_cq = world->add_cq();
    const auto [c, d] = pair({.send_cq = other_cq, .recv_cq = other_cq});

    submit(write(1));
    script.broken = a->qp->send_cq;
    world->step(3);
    EXPECT_EQ(world->session().state(a->handle()), QpState::error);
    EXPECT_EQ(world->session().cause(a->handle()), Status::fatal_err);
    EXPECT_EQ(world->session().try_submit(write(2)), Refusal::qp_in_error);
    const auto said = world->proxy.take_unasked();
    ASSERT_EQ(said.size(), 1u);
    EXPECT_EQ(said[0].kind, AnswerKind::cq_failed);

    // Other queue pairs go on.
    submit(write(3, {.qp = c}));
    ASSERT_EQ(world->await(1).size(), 1u);

    // In-flight requests complete after the QP is destroyed, not before (H2).
    EXPECT_TRUE(world->poll().empty());
    const QpHandle handle = a->handle();
    world->proxy.park(handle);
    ASSERT_EQ(world->device->destroy(a->qp.get()), 0);
    (void)a->qp.release();
    world->proxy.forget(handle);
    const auto completions = world->poll();
    ASSERT_EQ(completions.size(), 1u);
    EXPECT_EQ(completions[0].tag, 1u);
    EXPECT_EQ(completions[0].status, Status::fatal_err);
    EXPECT_TRUE(completions[0].flags & kByRuntime);
}

// While the device has the QP in RTS, a marker would be sent to the peer as a message.
TEST_F(ProviderFailure, NothingIsPostedToAQpThatItsDeviceMayHaveInRts) {
    submit(write(1, {.flags = 0}));
    world->step(20);
    script.broken = a->qp->send_cq;
    world->step(3);
    EXPECT_EQ(world->session().state(a->handle()), QpState::error);
    EXPECT_EQ(world->worker.counters().markers.value(), 0u);
    script.broken = nullptr;
    // No marker is posted either if the control thread asks the device again to take the QP to ERR and the device
    // refuses.
    EXPECT_THROW(world->proxy.while_parked(a->handle(), QpState::error, QpState::error, Status::qp_closed,
                                           [] { throw Error(ENOMEM, "the device does not take it to ERR"); }),
                 Error);
    const std::uint64_t retiring = world->proxy.begin_retiring(a->handle(), world->now + 1'000'000, 0, true);
    world->step(20);
    EXPECT_EQ(world->worker.counters().markers.value(), 0u);
    world->proxy.ignore(retiring);
    world->to_error(*a);
    EXPECT_EQ(world->worker.counters().markers.value(), 1u);
}

TEST_F(ProviderFailure, AQpThatCannotBeTakenToErrorIsClosedAllTheSame) {
    // This is the state after a failed ibv_modify_qp: the worker learns of no error, and the QP is destroyed in RTS.
    submit(write(1));
    const QpHandle handle = a->handle();
    (void)world->proxy.retire(handle, world->now, std::chrono::milliseconds(1000));
    EXPECT_EQ(world->session().try_submit(write(2)), Refusal::qp_in_error);
    world->proxy.park(handle);
    ASSERT_EQ(world->device->destroy(a->qp.get()), 0);
    (void)a->qp.release();
    world->proxy.forget(handle);
    EXPECT_EQ(world->poll().size(), 1u);
    EXPECT_EQ(world->session().figures().in_flight(), 0u);
}

class LateReceives : public WorkerFixture {};

TEST_F(LateReceives, AreGivenUpOnceAllElseHasComeBack) {
    for (const std::uint32_t quiet : {0u, 5000u}) {
        SCOPED_TRACE(quiet);
        SteppedWorld::Options options;
        options.device.profile = kRxeLike;
        make({}, options);
        submit(recv(1, {.qp = a}));
        world->step();
        // The device has the QP in ERR, but the worker posts one more receive before it learns of the error.
        Transition error = to_state(IBV_QPS_ERR);
        world->device->modify(a->qp.get(), error.attr, error.mask);
        submit(recv(2, {.qp = a}));
        const auto flushed = world->await(1);
        ASSERT_EQ(flushed.size(), 1u);
        EXPECT_EQ(flushed[0].tag, 1u);

        ControlCounters own;
        WorkerProxy proxy(world->worker, "late", own,
                          [this](std::uint32_t) {  // from here on only this proxy may talk to the worker
                              world->now += 100;
                              world->step();
                          });
        const std::uint64_t began = world->now;
        const QpHandle handle = a->handle();
        EXPECT_EQ(proxy.retire(handle, began + 100'000, std::chrono::milliseconds(1000), quiet), quiet != 0);
        EXPECT_GE(world->now - began, quiet != 0 ? 5'000u : 100'000u);
        EXPECT_LE(world->now - began, quiet != 0 ? 6'000u : 101'000u);
        EXPECT_TRUE(world->poll().empty()) << "the device may still write its buffer (H2)";
        proxy.park(handle);
        ASSERT_EQ(world->device->destroy(a->qp.get()), 0);
        (void)a->qp.release();
        proxy.forget(handle);
        const auto late = world->poll();
        ASSERT_EQ(late.size(), 1u);
        EXPECT_EQ(late[0].tag, 2u);
        EXPECT_EQ(late[0].status, quiet != 0 ? Status::wr_flush_err : Status::qp_closed);
        EXPECT_TRUE(late[0].flags & kByRuntime);
    }
}

TEST_F(ProviderFailure, AQpIsClosedWhileOthersKeepItsCqBusy) {
    SteppedWorld::Options options;
    options.worker.complete_burst = 1;
    make_world(options);
    world->add_session();
    world->add_cq(64);
    pair();
    Qp& victim = world->add_qp();
    // Each step of the worker finds at least as many completions in the CQ as the worker may take in one step.
    const auto keep_busy = [&](std::uint32_t = 0) {
        (void)try_submit(write(1));
        (void)try_submit(write(1, {.qp = b}));
        (void)world->poll();
        world->step();
    };
    for (int i = 0; i < 50; ++i) {
        keep_busy();
    }
    world->to_error(victim, QpState::init);
    ControlCounters own;
    WorkerProxy proxy(world->worker, "busy", own, keep_busy);  // from here on only this proxy may talk to the worker
    EXPECT_TRUE(proxy.retire(victim.handle(), world->now + 1'000'000, std::chrono::milliseconds(1000)));
}

// A message has arrived for the closing QP. Its completion is in the CQ, behind the completions of other QPs.
TEST_F(ProviderFailure, AQpIsNotClosedBeforeItsReceiveCqWasSeenEmpty) {
    constexpr std::uint64_t kAhead = 24;
    SteppedWorld::Options options;
    options.worker.complete_burst = 1;
    make_world(options);
    world->add_session();
    const std::uint32_t sends = world->add_cq(64);
    const std::uint32_t receives = world->add_cq(64);
    const SteppedWorld::QpShape shape{.shares = {{0, 64, 64}}, .send_cq = sends, .recv_cq = receives};
    const auto others = pair(shape);
    const auto closing = pair(shape);
    constexpr std::uint64_t kLast = 1000;
    for (std::uint64_t i = 0; i < kAhead; ++i) {
        submit(recv(i, {.qp = others.second}));
    }
    submit(recv(kLast, {.qp = closing.second}));
    world->step(2);
    // These sends are unsignaled, so the send CQ is soon empty.
    for (std::uint64_t i = 0; i < kAhead; ++i) {
        submit(send(i, {.qp = others.first, .flags = 0}));
    }
    submit(send(kLast, {.qp = closing.first, .flags = 0}));
    world->step(2);

    world->to_error(*closing.second, QpState::ready);
    const std::uint64_t command = world->proxy.begin_retiring(closing.second->handle(), world->now, 0);
    bool came = false;
    for (std::optional<bool> retired; !retired; retired = world->proxy.retired(command)) {
        world->step();
        for (const Completion& completion : world->poll()) {
            if (completion.tag == kLast && completion.from_recv_queue()) {
                EXPECT_EQ(completion.status, Status::success);
                came = true;
            }
        }
    }
    EXPECT_TRUE(came);
    EXPECT_EQ(world->worker.counters().cut_short.value(), 0u);
}

TEST_F(ProviderFailure, ARequestLargerThanTheRingIsRefusedForGood) {
    SteppedWorld::Options options;
    options.submission_slots = 2;
    make({.sges_max = 16, .inline_max = 512}, options);
    const std::array<Sge, 16> many{};
    const std::array<std::byte, 200> payload{};
    EXPECT_EQ(world->session().try_submit(write(1), many), Refusal::too_many_sges);
    EXPECT_EQ(world->session().try_submit_inline(write(1), payload), Refusal::inline_too_long);
}

TEST_F(ProviderFailure, ACompletionThatComesAfterTheResetIsNotTakenForNewWork) {
    const QpHandle old = a->handle();
    script.hold_back = true;
    for (std::uint64_t tag = 0; tag < 4; ++tag) {
        submit(write(tag));
    }
    world->step(20);
    EXPECT_EQ(script.held.size(), 4u);
    EXPECT_FALSE(world->reset(*a, 0));
    const auto ended = world->poll();
    ASSERT_EQ(ended.size(), 4u);
    for (std::uint64_t tag = 0; tag < 4; ++tag) {
        EXPECT_EQ(ended[tag].tag, tag);
        EXPECT_EQ(ended[tag].qp, old);
        EXPECT_EQ(ended[tag].status, Status::qp_closed) << "not before the QP was RESET (H2)";
    }
    EXPECT_NE(a->handle(), old);
    world->reset(*b, 0);
    world->poll();
    connect(*a, *b);
    const std::size_t late = script.held.size();
    EXPECT_GE(late, 4u);
    const std::uint64_t stale = world->worker.counters().stale_completions.value();
    for (std::uint64_t tag = 10; tag < 14; ++tag) {
        submit(write(tag));
    }
    script.hold_back = false;
    const auto completions = world->await(4);
    ASSERT_EQ(completions.size(), 4u);
    for (std::uint64_t i = 0; i < 4; ++i) {
        EXPECT_EQ(completions[i].tag, 10 + i);
        EXPECT_EQ(completions[i].qp, a->handle());
        EXPECT_EQ(completions[i].status, Status::success);
    }
    EXPECT_EQ(world->worker.counters().stale_completions.value(), stale + late);
    EXPECT_EQ(world->session().figures().in_flight(), 0u);
}

TEST_F(ProviderFailure, AQueuePairThatIsLostWithItsDeviceCompletesWhatItHad) {
    submit(write(1));
    ASSERT_EQ(world->await(1).size(), 1u);
    for (std::uint64_t tag = 2; tag < 8; ++tag) {
        submit(write(tag, {.flags = signaled_if(tag % 2 != 0)}));
    }
    world->soft().fail();
    world->step(5);
    EXPECT_TRUE(world->poll().empty()) << "nothing is given back while the device may write to it (H2)";
    world->proxy.park(a->handle());
    world->proxy.unpark(a->handle(), QpState::error, Status::device_removed);
    ASSERT_EQ(world->session().try_submit(write(9)), Refusal::qp_in_error);
    EXPECT_EQ(world->session().cause(a->handle()), Status::device_removed);
    world->proxy.park(a->handle());
    ASSERT_EQ(world->device->destroy(a->qp.release()), 0);
    world->proxy.lose(a->handle());
    const auto completions = world->poll();
    ASSERT_EQ(completions.size(), 6u);
    for (std::uint64_t i = 0; i < 6; ++i) {
        EXPECT_EQ(completions[i].tag, 2 + i);
        EXPECT_EQ(completions[i].status, Status::device_removed);
    }
    EXPECT_EQ(world->session().cause(a->handle()), Status::device_removed);
    world->proxy.park(a->handle());
    world->proxy.forget(a->handle());
    EXPECT_EQ(world->session().state(a->handle()), QpState::closed);
    EXPECT_EQ(world->session().figures().in_flight(), 0u);
}

// The application polls in the middle of the worker's step.
TEST_F(ProviderFailure, WhoSeesTheFailedRequestSeesTheErrorToo) {
    world->add_cq();  // makes the step poll another CQ after the failed completion
    WorkRequest bad = write(1);
    bad.rkey ^= 0xabcd00;
    submit(bad);
    std::optional<Completion> seen;
    std::optional<QpState> state;
    script.before_poll = [&] {
        for (const Completion& completion : world->poll()) {
            seen = completion;
            state = world->session().state(a->handle());
        }
    };
    world->step(20);
    ASSERT_TRUE(seen);
    EXPECT_EQ(seen->status, Status::rem_access_err);
    EXPECT_EQ(state, QpState::error);
    EXPECT_EQ(world->session().cause(a->handle()), Status::rem_access_err);
}

}  // namespace
}  // namespace pollcore::testing
