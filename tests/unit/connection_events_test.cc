// Events of connections wait in places of their objects, so none is lost.
#include "session/connection_events.hpp"

#include <poll.h>

#include <map>
#include <vector>

#include <gtest/gtest.h>

#include "session/application_events.hpp"
#include "worker/failed_qps.hpp"

namespace pollcore {
namespace {

constexpr QpHandle kQp{3, 1};
constexpr ListenerHandle kListener{.number = 7, .device = 1};

Event event_of(EventType type, QpHandle qp = kQp) {
    return {.type = type, .qp = qp};
}

TEST(ConnectionEvents, OfOneQueuePairComeInTheOrderOfItsLife) {
    ConnectionEvents events;
    events.add(kQp);
    EXPECT_TRUE(events.empty());
    Event failed = event_of(EventType::connect_failed);
    failed.error = ECONNREFUSED;
    failed.text = "no";
    for (const EventType type : {EventType::closed, EventType::qp_error, EventType::disconnected}) {
        events.keep(event_of(type));
    }
    events.keep(std::move(failed));
    const Event first = events.take();
    EXPECT_EQ(first.type, EventType::connect_failed);
    EXPECT_EQ(first.error, ECONNREFUSED);
    EXPECT_EQ(first.text, "no");
    for (const EventType type : {EventType::disconnected, EventType::qp_error, EventType::closed}) {
        ASSERT_FALSE(events.empty());
        const Event event = events.take();
        EXPECT_EQ(event.type, type);
        EXPECT_EQ(event.qp, kQp);
    }
    EXPECT_TRUE(events.empty());
}

TEST(ConnectionEvents, OfOneTypeAreToldOnce) {
    ConnectionEvents events;
    events.add(kQp);
    events.keep(event_of(EventType::disconnected));
    events.keep(event_of(EventType::disconnected));
    EXPECT_EQ(events.take().type, EventType::disconnected);
    EXPECT_TRUE(events.empty());
}

TEST(ConnectionEvents, OfManyObjectsTakeTurns) {
    constexpr std::uint16_t kMany = 10'000;
    ConnectionEvents events;
    for (std::uint16_t i = 0; i < kMany; ++i) {
        events.add(QpHandle{i, 1});
    }
    for (std::uint16_t i = 0; i < kMany; ++i) {
        events.keep(event_of(EventType::disconnected, {i, 1}));
        events.keep(event_of(EventType::qp_error, {i, 1}));
    }
    for (const EventType type : {EventType::disconnected, EventType::qp_error}) {
        for (std::uint16_t i = 0; i < kMany; ++i) {
            ASSERT_FALSE(events.empty());
            const Event event = events.take();
            ASSERT_EQ(event.type, type);
            ASSERT_EQ(event.qp, (QpHandle{i, 1}));
        }
    }
    EXPECT_TRUE(events.empty());
}

TEST(ConnectionEvents, OfUnknownOrRemovedObjectsAreDropped) {
    ConnectionEvents events;
    events.keep(event_of(EventType::disconnected));
    events.keep({.type = EventType::connect_request, .listener = kListener});
    EXPECT_TRUE(events.empty());
    events.add(kQp);
    events.keep(event_of(EventType::disconnected));
    events.remove(kQp);
    events.remove(kQp);
    EXPECT_TRUE(events.empty());
    events.add(kQp);
    events.remove(kQp);
    EXPECT_TRUE(events.empty());
}

TEST(ConnectionEvents, OfAnEarlierLifeAreDroppedByAReset) {
    ConnectionEvents events;
    events.add(kQp);
    events.keep(event_of(EventType::disconnected));
    Event reset = event_of(EventType::reset_done);
    reset.renewed = {kQp.index, 2};
    events.keep(std::move(reset));
    events.keep(event_of(EventType::qp_error));  // names the old handle
    const Event event = events.take();
    EXPECT_EQ(event.type, EventType::reset_done);
    EXPECT_EQ(event.qp, kQp);
    EXPECT_EQ(event.renewed, (QpHandle{kQp.index, 2}));
    EXPECT_TRUE(events.empty());
    events.keep(event_of(EventType::disconnected, {kQp.index, 2}));
    EXPECT_EQ(events.take().qp, (QpHandle{kQp.index, 2}));
}

TEST(ConnectionEvents, OfANewListenerAreThereAtOnce) {
    ConnectionEvents events;
    events.add(kListener);
    ASSERT_FALSE(events.empty());
    EXPECT_EQ(events.take().listener, kListener);
    EXPECT_TRUE(events.empty());
    events.keep({.type = EventType::connect_request, .listener = kListener});
    EXPECT_EQ(events.take().type, EventType::connect_request);
}

TEST(ConnectionEvents, MakeTheDescriptorReadable) {
    ApplicationEvents events;
    const auto readable = [&] {
        pollfd wanted{.fd = events.fd(), .events = POLLIN, .revents = 0};
        return poll(&wanted, 1, 0) == 1;
    };
    events.add(kQp);
    EXPECT_FALSE(readable());
    events.keep(event_of(EventType::disconnected));
    EXPECT_TRUE(readable());
    events.push({.type = EventType::port_err, .port = 1});
    EXPECT_EQ(events.next(std::chrono::milliseconds(0))->type, EventType::port_err) << "events of devices come first";
    EXPECT_TRUE(readable());
    EXPECT_EQ(events.next(std::chrono::milliseconds(0))->type, EventType::disconnected);
    EXPECT_FALSE(readable());
    events.keep(event_of(EventType::qp_error));
    events.remove(kQp);
    EXPECT_FALSE(readable());
    events.add(kListener);
    EXPECT_TRUE(readable());
    events.rename(kQp, {kQp.index, 2});
    EXPECT_TRUE(readable());
}

TEST(FailedQps, AreTakenOnce) {
    FailedQps failed(1000);
    const auto take = [&] {
        std::vector<std::uint16_t> taken;
        failed.take([&](std::uint16_t index) { taken.push_back(index); });
        return taken;
    };
    EXPECT_EQ(take(), std::vector<std::uint16_t>{});
    for (const std::uint16_t index : {999, 0, 63, 64, 64}) {
        failed.add(index);
    }
    failed.forget(63);
    EXPECT_EQ(take(), (std::vector<std::uint16_t>{0, 64, 999}));
    EXPECT_EQ(take(), std::vector<std::uint16_t>{});
}

}  // namespace
}  // namespace pollcore
