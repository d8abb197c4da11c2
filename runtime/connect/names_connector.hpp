// Connections between software devices of this process: a name stands for a listener.
//
// Connectors of one fabric share a table of names. They exchange the messages of a three-way handshake, as
// rdma_cm does (request, reply, ready), through inboxes, so they may live in different threads, runtimes and
// devices. A connector that is destroyed disconnects what it has.
//
// Thread safety: each connector belongs to one thread at a time; connectors of different threads meet only in
// the table and the inboxes, which have their own locks.
// Invariants: every connect() and accept() ends in one `established` or `failed`; an established connection
// in at most one `disconnected`. The QP of the passive side is in RTS before the active side hears of it.
#pragma once

#include <memory>

#include "connect/connector.hpp"

namespace pollcore {

class SoftDevice;

/// The device must outlive the connector.
[[nodiscard]] std::unique_ptr<Connector> make_names_connector(SoftDevice& device);

}  // namespace pollcore
