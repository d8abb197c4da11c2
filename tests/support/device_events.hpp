// Events of devices, for tests that do not look at the events of connections.
#pragma once

#include <chrono>
#include <optional>

#include "pollcore/context.hpp"

namespace pollcore::test {

/// Takes events until one comes that is not of a connection. Returns nothing if no event comes within `timeout`.
inline std::optional<Event> next_device_event(Context& context, std::chrono::milliseconds timeout) {
    std::optional<Event> event;
    do {
        event = context.next_event(timeout);
    } while (event && event->type >= EventType::connect_request);
    return event;
}

}  // namespace pollcore::test
