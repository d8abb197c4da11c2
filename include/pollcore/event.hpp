// Asynchronous events: those of the verbs (ibv_get_async_event(3)), and those of connections.
//
// The runtime takes and acknowledges each event, and reacts to it: it moves a failed queue pair to error, and completes
// the requests of a lost device. After that, Context::next_event returns the event. The runtime adds events of its own,
// for connections.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "pollcore/export.h"
#include "pollcore/handle.hpp"

namespace pollcore {

/// The kind of an event. Values below 128 are those of `enum ibv_event_type`, by the same names. Values from 128 on are
/// the runtime's own.
enum class EventType : std::uint8_t {
    // Events of completion queues; Event::worker names the worker that polls the queue.
    cq_err = 0,  ///< the CQ overran, or polling it failed; queue pairs that use this CQ are closed (D46)
    // Events of queue pairs; Event::qp names the queue pair.
    qp_fatal = 1,
    qp_req_err = 2,
    qp_access_err = 3,
    comm_est = 4,  ///< the peer's first message came before the connection was known to be established
    sq_drained = 5,
    path_mig = 6,
    path_mig_err = 7,
    // Events of devices.
    device_fatal = 8,  ///< the device is unusable; its requests have ended with Status::device_removed
    // Events of ports; Event::port is the port's number.
    port_active = 9,
    port_err = 10,  ///< the link is down; requests in flight end by their own time-outs
    lid_change = 11,
    pkey_change = 12,
    sm_change = 13,
    // Events of shared receive queues; Event::srq names the queue.
    srq_err = 14,
    srq_limit_reached = 15,
    // An event of queue pairs.
    qp_last_wqe_reached = 16,
    // Events of ports.
    client_reregister = 17,
    gid_change = 18,
    // An event of work queues outside queue pairs (ibv_create_wq(3)). The runtime makes none.
    wq_fatal = 19,

    /// The device is gone. The kernel or the connection manager has reported this, not the device. The device's
    /// requests have been completed as for device_fatal; if both events come, the requests complete only once.
    device_removed = 128,
    /// In an attached process: the daemon is going to end this attachment. Event::text says why: the daemon is
    /// stopping, and no process can attach; or its operator has disconnected this process. The process has the daemon's
    /// drain_timeout to detach, or the time that the operator has given. Then the daemon ends the attachment, and each
    /// request in flight gets a completion.
    stopping = 129,

    // Events of connections. Each queue pair and each listener keeps its own events until they are taken, so they are
    // never lost, however many come at once. Events of an object that is destroyed are dropped. A reset drops the
    // events
    // of the queue pair's life before it.

    /// Event::listener names the listener. A request may have come: call Listener::next_request without waiting, until
    /// it returns nothing. A new listener has this event at once.
    connect_request = 130,
    /// QueuePair::begin_connect or ConnectionRequest::begin_accept has ended: the queue pair is connected.
    /// Event::private_data is what the peer's answer brought; it is empty after begin_accept.
    established = 131,
    /// QueuePair::begin_connect or ConnectionRequest::begin_accept has ended: there is no connection. Event::error and
    /// Event::text say why. Event::private_data is that of the peer's rejection.
    connect_failed = 132,
    /// The peer has disconnected. Or QueuePair::disconnect was called on an established connection, and the peer knows,
    /// or does not answer.
    disconnected = 133,
    /// The queue pair is in error, and Session::cause says why. The event may come up to a tenth of a second later. The
    /// session's completions say it at once. No such event comes for an error that another event or the program's own
    /// call has caused: a disconnect, a failed connection, a close or a reset.
    qp_error = 134,
    /// QueuePair::begin_reset has ended. Event::renewed and Event::drained say how; see QueuePair::renew.
    reset_done = 135,
    /// QueuePair::begin_close has ended. With Event::error the queue pair is in error and can be closed again.
    closed = 136,
};
inline constexpr std::size_t kVerbsEventTypes = 20;

/// The verbs' name of an event type, such as "IBV_EVENT_PORT_ERR". Names of the runtime's own types begin with
/// "POLLCORE_".
[[nodiscard]] POLLCORE_API std::string_view event_type_name(EventType type) noexcept;

/// Identifies a listener of a Context.
struct ListenerHandle {
    std::uint64_t number = 0;
    std::uint32_t device = 0;

    [[nodiscard]] friend constexpr auto operator<=>(const ListenerHandle&, const ListenerHandle&) noexcept = default;
};

/// One asynchronous event.
struct Event {
    EventType type{};
    std::string device{};   ///< name from the configuration
    std::string worker{};   ///< cq_err: name of the worker that polls the CQ. An application sees no CQs
    QpHandle qp{};          ///< events of a queue pair: its handle at the time of the event
    SrqHandle srq{};        ///< events of a shared receive queue: its handle
    std::uint8_t port = 0;  ///< events of a port: its number, from 1 as in verbs
    /// Number of events that were dropped directly after this event, because kEventsMax events were waiting, or for
    /// lack of memory. An application that finds such a gap should ask for the state of the objects that it relies on.
    std::uint64_t lost_after = 0;
    ListenerHandle listener{};              ///< connect_request: Listener::handle()
    int error = 0;                          ///< connect_failed, reset_done, closed: an errno value; 0 means success
    std::string text{};                     ///< the reason of `error`, or of `stopping`, as a sentence
    std::vector<std::byte> private_data{};  ///< established, connect_failed: see there
    QpHandle renewed{};                     ///< reset_done: the queue pair's handle from now on
    /// reset_done, closed: false if requests were still in flight at the time limit. The runtime then completed them.
    bool drained = true;
};

}  // namespace pollcore
