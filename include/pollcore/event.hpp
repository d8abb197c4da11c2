// What a device says without being asked: the verbs' asynchronous events (ibv_get_async_event(3)).
//
// The runtime takes and acknowledges them, does what has to be done (a queue pair that failed is in error, a device
// that is lost has its work completed), and then hands each on by Context::next_event.
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
    // Of a completion queue: Event::worker.
    cq_err = 0,  ///< it overran, or cannot be polled any more; the runtime has closed its queue pairs
    // Of a queue pair: Event::qp.
    qp_fatal = 1,
    qp_req_err = 2,
    qp_access_err = 3,
    comm_est = 4,  ///< the peer's first message came before the connection was known to be there
    sq_drained = 5,
    path_mig = 6,
    path_mig_err = 7,
    // Of a device.
    device_fatal = 8,  ///< the device is of no more use: its work has been completed with device_removed
    // Of a port: Event::port.
    port_active = 9,
    port_err = 10,  ///< the link is down; work in flight ends by its own time-outs
    lid_change = 11,
    pkey_change = 12,
    sm_change = 13,
    // Of a shared receive queue: Event::srq.
    srq_err = 14,
    srq_limit_reached = 15,
    // Of a queue pair.
    qp_last_wqe_reached = 16,
    // Of a port.
    client_reregister = 17,
    gid_change = 18,
    // Of a work queue, of which the runtime makes none.
    wq_fatal = 19,

    /// The device has gone away: the kernel or the connection manager said so, not the device. What device_fatal
    /// says holds here too, and was done once if both come.
    device_removed = 128,
    /// Of an attachment: its daemon was told to stop. Nobody attaches any more; who has not detached when its
    /// drain_timeout is
    /// over is ended, with a completion for each request in flight.
    stopping = 129,
};
inline constexpr std::size_t kVerbsEventTypes = 20;

/// The verbs' name, such as "IBV_EVENT_PORT_ERR"; the runtime's own begin with "POLLCORE_".
[[nodiscard]] POLLCORE_API std::string_view event_type_name(EventType type) noexcept;

struct Event {
    EventType type{};
    std::string device{};   ///< name from the configuration
    std::string worker{};   ///< cq_err: name of the worker whose CQ it is. An application sees no CQs
    QpHandle qp{};          ///< events of a queue pair; of the generation that it had then
    SrqHandle srq{};        ///< events of a shared receive queue
    std::uint8_t port = 0;  ///< events of a port, counted from 1 as verbs do
    /// Events after this one that found the queue full (kEventsMax waiting) and were only counted. Who meets such a
    /// gap asks for the state of what it relies on.
    std::uint64_t lost_after = 0;
};

}  // namespace pollcore
