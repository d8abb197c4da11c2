// The verbs' asynchronous events (ibv_get_async_event(3)), which a device reports without being asked.
//
// The runtime takes and acknowledges each event, reacts to it (it moves a failed queue pair to error, and completes the
// work of a lost device), and then hands it on by Context::next_event.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "pollcore/export.h"
#include "pollcore/handle.hpp"

namespace pollcore {

/// Values below 128 are those of `enum ibv_event_type`, by the same names; from 128 on the runtime's own.
enum class EventType : std::uint8_t {
    // Completion queues: Event::worker.
    cq_err = 0,  ///< it overran, or cannot be polled any more; the runtime has closed its queue pairs (D46)
    // Queue pairs: Event::qp.
    qp_fatal = 1,
    qp_req_err = 2,
    qp_access_err = 3,
    comm_est = 4,  ///< the peer's first message came before the connection was known to be established
    sq_drained = 5,
    path_mig = 6,
    path_mig_err = 7,
    // Devices.
    device_fatal = 8,  ///< the device is unusable: its work has been completed with device_removed
    // Ports: Event::port.
    port_active = 9,
    port_err = 10,  ///< the link is down; work in flight ends by its own time-outs
    lid_change = 11,
    pkey_change = 12,
    sm_change = 13,
    // Shared receive queues: Event::srq.
    srq_err = 14,
    srq_limit_reached = 15,
    // Queue pairs.
    qp_last_wqe_reached = 16,
    // Ports.
    client_reregister = 17,
    gid_change = 18,
    // Work queues; the runtime makes none.
    wq_fatal = 19,

    /// The device is gone; the kernel or the connection manager said so, not the device. Its work has been completed as
    /// for device_fatal, once if both events come.
    device_removed = 128,
    /// In an attached process: the daemon was told to stop. Nobody can attach any more. A process that has not detached
    /// when the daemon's drain_timeout is over is ended, with a completion for each request in flight.
    stopping = 129,
};
inline constexpr std::size_t kVerbsEventTypes = 20;

/// The verbs' name, such as "IBV_EVENT_PORT_ERR"; the runtime's own begin with "POLLCORE_".
[[nodiscard]] POLLCORE_API std::string_view event_type_name(EventType type) noexcept;

/// One asynchronous event.
struct Event {
    EventType type{};
    std::string device{};   ///< name from the configuration
    std::string worker{};   ///< cq_err: name of the worker whose CQ it is. An application sees no CQs
    QpHandle qp{};          ///< events of a queue pair: its handle at that time
    SrqHandle srq{};        ///< events of a shared receive queue
    std::uint8_t port = 0;  ///< events of a port, counted from 1 as verbs do
    /// Events after this one that found the queue full (kEventsMax waiting) and were only counted. An application that
    /// meets such a gap should ask for the state of the objects that it relies on.
    std::uint64_t lost_after = 0;
};

}  // namespace pollcore
