// The queue that carries asynchronous events from the control thread to an application. The application takes them
// whenever it likes.
#include "session/application_events.hpp"

#include <poll.h>

#include <thread>

#include <gtest/gtest.h>

#include "pollcore/error.hpp"
#include "pollcore/limits.hpp"

namespace pollcore {
namespace {

using std::chrono::milliseconds;

bool readable(int fd) {
    pollfd wanted{.fd = fd, .events = POLLIN, .revents = 0};
    return poll(&wanted, 1, 0) == 1;
}

Event on_port(std::uint8_t port) {
    return {.type = EventType::port_err, .device = "net0", .port = port};
}

TEST(ApplicationEvents, ComeInOrderAndTheDescriptorSaysWhetherThereAreAny) {
    ApplicationEvents events;
    EXPECT_FALSE(readable(events.fd()));
    EXPECT_FALSE(events.next(milliseconds(0)).has_value());
    EXPECT_TRUE(events.push(on_port(1)));
    EXPECT_TRUE(events.push(on_port(2)));
    EXPECT_TRUE(readable(events.fd()));
    EXPECT_EQ(events.next(milliseconds(0))->port, 1);
    EXPECT_TRUE(readable(events.fd()));
    EXPECT_EQ(events.next(milliseconds(0))->port, 2);
    EXPECT_FALSE(readable(events.fd()));
    EXPECT_TRUE(events.push(on_port(3)));
    EXPECT_TRUE(readable(events.fd()));
}

TEST(ApplicationEvents, WhenTheyAreTooManyTheOldestStayAndTheGapIsTold) {
    ApplicationEvents events;
    for (std::size_t i = 0; i < kEventsMax; ++i) {
        ASSERT_TRUE(events.push(on_port(static_cast<std::uint8_t>(i))));
    }
    EXPECT_FALSE(events.push(on_port(0)));
    EXPECT_FALSE(events.push(on_port(0)));
    const std::optional<Event> first = events.next(milliseconds(0));
    EXPECT_EQ(first->port, 0);
    EXPECT_EQ(first->lost_after, 0u);
    EXPECT_TRUE(events.push(on_port(77)));  // the queue has room again
    for (std::size_t i = 1; i < kEventsMax; ++i) {
        const std::optional<Event> event = events.next(milliseconds(0));
        ASSERT_EQ(event->port, static_cast<std::uint8_t>(i));
        ASSERT_EQ(event->lost_after, i + 1 == kEventsMax ? 2u : 0u) << "event " << i;
    }
    EXPECT_EQ(events.next(milliseconds(0))->port, 77);
    EXPECT_FALSE(events.next(milliseconds(0)).has_value());
}

TEST(ApplicationEvents, AWaitEndsWithTheEventOrWithItsTime) {
    ApplicationEvents events;
    EXPECT_FALSE(events.next(milliseconds(5)).has_value());
    std::thread later([&] {
        std::this_thread::sleep_for(milliseconds(20));
        events.push(on_port(9));
    });
    EXPECT_EQ(events.next(milliseconds::max())->port, 9) << "a time beyond the clock's end waits";
    later.join();
}

TEST(ApplicationEvents, ClosingWakesWhoWaitsAndLeavesWhatThereIs) {
    ApplicationEvents events;
    std::thread waiting([&] { EXPECT_THROW((void)events.next(milliseconds(60'000)), Error); });
    std::this_thread::sleep_for(milliseconds(20));
    events.close();
    waiting.join();
    EXPECT_TRUE(readable(events.fd()));
    EXPECT_THROW((void)events.next(milliseconds(0)), Error);

    ApplicationEvents others;
    others.push(on_port(4));
    others.close();
    EXPECT_EQ(others.next(milliseconds(0))->port, 4);
    EXPECT_TRUE(readable(others.fd())) << "like the end of a file";
    EXPECT_THROW((void)others.next(milliseconds(0)), Error);
}

TEST(ApplicationEvents, HaveTheVerbsNames) {
    EXPECT_EQ(event_type_name(EventType::cq_err), "IBV_EVENT_CQ_ERR");
    EXPECT_EQ(event_type_name(EventType::srq_limit_reached), "IBV_EVENT_SRQ_LIMIT_REACHED");
    EXPECT_EQ(event_type_name(EventType::wq_fatal), "IBV_EVENT_WQ_FATAL");
    EXPECT_EQ(event_type_name(EventType::device_removed), "POLLCORE_EVENT_DEVICE_REMOVED");
    EXPECT_EQ(event_type_name(static_cast<EventType>(kVerbsEventTypes)), "unknown event");
}

}  // namespace
}  // namespace pollcore
