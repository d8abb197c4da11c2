/* The flow controls: how a connection keeps its senders from meeting a receiver that is not ready (RNR). Both ends must
 * have the same one. For C and C++. */
#ifndef POLLCORE_FLOW_CONTROL_H
#define POLLCORE_FLOW_CONTROL_H

/* A row has the name, the name for C, where messages arrive (receives, or write_ring), and the name in sentences. Rows
 * keep their order, since their numbers go over the wire. runtime/README.md says how to add one. */
/* clang-format off */
#define POLLCORE_FLOW_CONTROLS(row)               \
    row(off, OFF, receives, "no flow control")    \
    row(credits, CREDITS, receives, "credits")    \
    row(ring, RING, write_ring, "write rings")
/* clang-format on */

/** What keeps senders back until the receiver is ready.
 *
 * off: only the program's own bytes are on the wire. A send that finds no receive is repeated (rnr_retry).
 *
 * credits: RC only. Each end writes into the other's memory how many receives it has posted, and how long a message
 * they take. A send or a write with immediate waits at the worker until the peer has a receive for it. Everything that
 * the queue pair's sessions submit to it later waits behind it, in order; nobody else waits. Payload and immediate are
 * not touched.
 *
 * ring: RC only. Sends go by RDMA write into a ring in the peer's memory (Context::create_write_ring). The peer's
 * worker finds them by polling that memory, without a receive or a CQ. An end without a ring takes no messages. Sends
 * that the ring has no room for wait as with credits. Unless the peer's device promises the order in which the bytes of
 * a write arrive (ibv_query_qp_data_in_order(3)), Session::try_submit reads the bytes of a send to compute their
 * checksum: the program must be able to read them at the addresses in the request. There are no receives, hence no
 * writes with immediate and no sends that invalidate. */
typedef enum pollcore_flow_control {
#define POLLCORE_ROW(name, NAME, arrival, text) POLLCORE_FLOW_##NAME,
    POLLCORE_FLOW_CONTROLS(POLLCORE_ROW)
#undef POLLCORE_ROW
} pollcore_flow_control;

#endif
