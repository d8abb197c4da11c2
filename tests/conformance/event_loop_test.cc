// Operations that begin with a call and end with an event, so that one thread can serve many connections.
#include <poll.h>

#include "fixture.hpp"

namespace pollcore::testing {
namespace {

class EventLoops : public Conformance {
protected:
    EventLoops() {
        a = runtime.create_queue_pair(shape());
        b = runtime.create_queue_pair(shape());
    }

    /// Takes events until one of this type comes for the queue pair. Keeps all other events for later calls.
    [[nodiscard]] Event await_event_of(const QueuePair& qp, EventType type) {
        return await_event_of(qp.handle(), type);
    }
    [[nodiscard]] Event await_event_of(QpHandle qp, EventType type) {
        Exercised::get().note("events", std::string(event_type_name(type)));
        for (std::size_t i = 0;; ++i) {
            if (i == taken_.size()) {
                std::optional<Event> event = runtime.next_event(kPatience);
                if (!event) {
                    ADD_FAILURE() << event_type_name(type) << " does not come";
                    return {};
                }
                taken_.push_back(std::move(*event));
            }
            if (taken_[i].qp == qp && taken_[i].type == type) {
                Event event = std::move(taken_[i]);
                taken_.erase(taken_.begin() + static_cast<std::ptrdiff_t>(i));
                return event;
            }
        }
    }
    /// Waits until the listener has a request, by its event.
    [[nodiscard]] ConnectionRequest await_request(Listener& listener) {
        for (;;) {
            if (std::optional<ConnectionRequest> request = listener.next_request(std::chrono::milliseconds(0))) {
                return std::move(*request);
            }
            std::optional<Event> event = runtime.next_event(kPatience);
            if (!event) {
                ADD_FAILURE() << "no request comes";
                return {};
            }
            EXPECT_TRUE(event->type != EventType::connect_request || event->listener == listener.handle());
            taken_.push_back(std::move(*event));
        }
    }
    void connect_by_events(Listener& listener) {
        a.begin_connect(listener.address(), patient());
        await_request(listener).begin_accept(b, patient());
        (void)await_event_of(a, EventType::established);
        EXPECT_EQ(session.state(a.handle()), QpState::ready);
    }
    void expect_messages() {
        submit(recv(1, 64));
        submit(send(2, 32));
        for (const Completion& completion : await(2)) {
            EXPECT_EQ(completion.status, Status::success);
        }
    }

private:
    std::vector<Event> taken_;  // events that no call has asked for yet
};

TEST_F(EventLoops, OneThreadConnectsAndAccepts) {
    Listener listener = runtime.listen(listen_address());
    submit(recv(1, 64));
    a.begin_connect(listener.address(), patient({.private_data = bytes("from the caller")}));
    EXPECT_THROW(a.begin_connect(listener.address()), Error) << "one operation at a time";
    ConnectionRequest request = await_request(listener);
    EXPECT_EQ(request.private_data(), bytes("from the caller"));
    request.begin_accept(b, patient({.private_data = bytes("from the listener")}));

    EXPECT_EQ(await_event_of(a, EventType::established).private_data, bytes("from the listener"));
    EXPECT_EQ(await_event_of(b, EventType::established).private_data, bytes(""));
    submit(send(2, 32));
    for (const Completion& completion : await(2)) {
        EXPECT_EQ(completion.status, Status::success);
    }
    Exercised::get().note("connections", "by events");
}

TEST_F(EventLoops, ADisconnectIsToldToBothSides) {
    Listener listener = runtime.listen(listen_address());
    connect_by_events(listener);
    a.disconnect();
    (void)await_event_of(a, EventType::disconnected);
    (void)await_event_of(b, EventType::disconnected);
    while (const std::optional<Event> event = runtime.next_event(std::chrono::milliseconds(200))) {
        EXPECT_NE(event->type, EventType::qp_error) << "a disconnect is no error";
    }
    EXPECT_TRUE(b.disconnected());
}

TEST_F(EventLoops, ARejectionIsToldAndTheNextAttemptSucceeds) {
    Listener listener = runtime.listen(listen_address());
    a.begin_connect(listener.address(), patient());
    await_request(listener).reject(bytes("no"));
    const Event event = await_event_of(a, EventType::connect_failed);
    EXPECT_EQ(event.error, ECONNREFUSED) << event.text;
    EXPECT_NE(event.text.find(listener.address()), std::string::npos) << event.text;
    connect_by_events(listener);
    expect_messages();
}

TEST_F(EventLoops, NobodyWhoAnswersEndsInATimeout) {
    Listener listener = runtime.listen(listen_address());
    a.begin_connect(listener.address(), {.timeout = std::chrono::milliseconds(100)});
    const Event event = await_event_of(a, EventType::connect_failed);
    EXPECT_EQ(event.error, ETIMEDOUT) << event.text;
}

TEST_F(EventLoops, AConnectionIsCancelled) {
    Listener listener = runtime.listen(listen_address());
    a.begin_connect(listener.address(), {.timeout = std::chrono::hours(1)});
    a.cancel();
    EXPECT_EQ(await_event_of(a, EventType::connect_failed).error, ECANCELED);
    a.cancel();  // nothing is under way
    while (const std::optional<Event> event = runtime.next_event(std::chrono::milliseconds(20))) {
        EXPECT_EQ(event->type, EventType::connect_request) << event_type_name(event->type);
    }
}

TEST_F(EventLoops, DestroyingWhatIsBeingConnectedDoesNotWait) {
    Listener listener = runtime.listen(listen_address());
    a.begin_connect(listener.address(), {.timeout = std::chrono::hours(1)});
    const QpHandle gone = a.handle();
    a = QueuePair();
    until([&] { return session.state(gone) == QpState::closed; });
    while (const std::optional<Event> event = runtime.next_event(std::chrono::milliseconds(20))) {
        EXPECT_NE(event->qp, gone) << "events of what is destroyed are dropped";
    }
}

TEST_F(EventLoops, ACloseIsBegunAndEndsWithAllCompletions) {
    Listener listener = runtime.listen(listen_address());
    connect_by_events(listener);
    for (std::uint64_t tag = 0; tag < 8; ++tag) {
        submit(recv(tag, 64));
    }
    const QpHandle closed = b.handle();
    b.begin_close();
    const Event event = await_event_of(closed, EventType::closed);
    EXPECT_EQ(event.error, 0) << event.text;
    EXPECT_TRUE(event.drained);
    for (const Completion& completion : await(8)) {
        EXPECT_NE(completion.status, Status::success);
    }
    EXPECT_EQ(session.state(closed), QpState::closed);
    EXPECT_TRUE(b.close()) << "it is gone already";
    (void)await_event_of(a, EventType::disconnected);
}

TEST_F(EventLoops, DestroyingWhatIsBeingClosedLeavesItToTheRuntime) {
    connect_pair();
    for (std::uint64_t tag = 0; tag < 8; ++tag) {
        submit(recv(tag, 64));
    }
    const QpHandle closed = b.handle();
    b.begin_close();
    b = QueuePair();
    EXPECT_EQ(await(8).size(), 8u);
    until([&] { return session.state(closed) == QpState::closed; });
}

TEST_F(EventLoops, AResetIsBegunAndTheQueuePairConnectsAgain) {
    Listener listener = runtime.listen(listen_address());
    connect_by_events(listener);
    const QpHandle before = a.handle();
    a.begin_reset();
    b.begin_reset();
    const Event renewed = await_event_of(before, EventType::reset_done);
    EXPECT_EQ(renewed.error, 0) << renewed.text;
    EXPECT_TRUE(a.renew(renewed));
    EXPECT_NE(a.handle(), before);
    EXPECT_EQ(a.handle(), renewed.renewed);
    EXPECT_THROW(a.renew(renewed), Error) << "an event counts once";
    EXPECT_TRUE(b.renew(await_event_of(b, EventType::reset_done)));
    connect_by_events(listener);
    expect_messages();
}

TEST_F(EventLoops, DestroyingWhatWasResetClosesItEvenBeforeTheEventIsTaken) {
    connect_pair();
    const QpHandle before = a.handle();
    a.begin_reset();
    const Event renewed = await_event_of(before, EventType::reset_done);
    ASSERT_EQ(renewed.error, 0) << renewed.text;
    EXPECT_NE(session.state(renewed.renewed), QpState::closed);
    a = QueuePair();  // renew() was not called
    until([&] { return session.state(renewed.renewed) == QpState::closed; });

    b.begin_reset();
    b = QueuePair();  // the reset may be under way
    until([&] { return runtime.control_counters().queue_pairs.value() == 0; });
    while (const std::optional<Event> event = runtime.next_event(std::chrono::milliseconds(20))) {
        EXPECT_NE(event->type, EventType::reset_done) << "nobody has the queue pair any more";
    }
}

TEST_F(EventLoops, AfterAResetTheEventIsTakenBeforeAnotherOperation) {
    connect_pair();
    a.begin_reset();
    const Event renewed = await_event_of(a, EventType::reset_done);
    ASSERT_EQ(renewed.error, 0) << renewed.text;
    EXPECT_THROW(a.begin_close(), Error);
    EXPECT_THROW(a.begin_reset(), Error);
    EXPECT_THROW(a.reset(), Error);
    EXPECT_TRUE(a.renew(renewed));
    const QpHandle closed = a.handle();
    a.begin_close();
    EXPECT_EQ(await_event_of(closed, EventType::closed).error, 0);
}

TEST_F(EventLoops, AResetWaitsForNoAttemptToConnect) {
    Listener listener = runtime.listen(listen_address());
    a.begin_connect(listener.address(), {.timeout = std::chrono::hours(1)});
    EXPECT_THROW(a.begin_reset(), Error);
    EXPECT_THROW(a.reset(), Error);
    EXPECT_TRUE(a.close()) << "a close ends the attempt";
}

TEST_F(EventLoops, AnErrorIsToldAfterAnAttemptThatFailed) {
    Listener listener = runtime.listen(listen_address());
    a.begin_connect(listener.address(), patient());
    await_request(listener).reject();
    (void)await_event_of(a, EventType::connect_failed);
    connect_by_events(listener);
    (void)await_event_of(b, EventType::established);
    WorkRequest bad = rdma(Opcode::rdma_write, 2, 8);
    bad.rkey ^= 0xabcd00;
    submit(bad);
    EXPECT_EQ(await_one().status, Status::rem_access_err);
    (void)await_event_of(a, EventType::qp_error);
}

TEST_F(EventLoops, NoErrorIsToldOfACloseOrReset) {
    connect_pair();
    submit(recv(1, 64));
    EXPECT_TRUE(a.reset());
    EXPECT_TRUE(b.close());
    (void)await_one();
    while (const std::optional<Event> event = runtime.next_event(std::chrono::milliseconds(200))) {
        EXPECT_NE(event->type, EventType::qp_error);
    }
}

TEST_F(EventLoops, AnErrorIsTold) {
    connect_pair();
    WorkRequest bad = rdma(Opcode::rdma_write, 2, 8);
    bad.rkey ^= 0xabcd00;
    submit(bad);
    EXPECT_EQ(await_one().status, Status::rem_access_err);
    (void)await_event_of(a, EventType::qp_error);
    EXPECT_EQ(session.cause(a.handle()), Status::rem_access_err);
}

TEST_F(EventLoops, TheDescriptorTellsOfEachEvent) {
    Listener listener = runtime.listen(listen_address());
    while (runtime.next_event(std::chrono::milliseconds(20))) {
    }
    pollfd waiting{.fd = runtime.event_fd(), .events = POLLIN, .revents = 0};
    EXPECT_EQ(poll(&waiting, 1, 0), 0);
    a.begin_connect(listener.address(), {.timeout = std::chrono::hours(1)});
    constexpr auto kMs = static_cast<int>(std::chrono::milliseconds(kPatience).count());
    ASSERT_EQ(poll(&waiting, 1, kMs), 1);
    const std::optional<Event> event = runtime.poll_event();
    ASSERT_TRUE(event.has_value());
    EXPECT_EQ(event->type, EventType::connect_request);
    EXPECT_EQ(event->listener, listener.handle());
    EXPECT_EQ(poll(&waiting, 1, 0), 0);
    a.cancel();
    EXPECT_EQ(poll(&waiting, 1, kMs), 1);
}

}  // namespace
}  // namespace pollcore::testing
