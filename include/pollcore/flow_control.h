/* The flow controls. A flow control keeps the sender of a connection from sending to a receiver that is not ready
 * (RNR). Both ends of a connection must have the same flow control. For C and C++. */
#ifndef POLLCORE_FLOW_CONTROL_H
#define POLLCORE_FLOW_CONTROL_H

/* A row has the name, the name for C, the place where messages arrive (receives or write_ring), and the name in
 * sentences. Rows must keep their order, because their numbers go over the wire. runtime/README.md explains how to add
 * a row. */
/* clang-format off */
#define POLLCORE_FLOW_CONTROLS(row)               \
    row(off, OFF, receives, "no flow control")    \
    row(credits, CREDITS, receives, "credits")    \
    row(ring, RING, write_ring, "write rings")
/* clang-format on */

/** The method that holds senders back until the receiver is ready.
 *
 * off: only the program's own bytes are on the wire. On RC a send that finds no receive is repeated (rnr_retry).
 *
 * credits: RC only. Each end writes into the other end's memory how many receives it has posted, and the length of the
 * longest message that these receives take. A send or a write with immediate waits at the worker until the peer has a
 * receive for it. Later requests to the same queue pair wait behind it, in order. Requests to other queue pairs do not
 * wait. Payload and immediate data are not changed.
 *
 * ring: RC only. A send goes by RDMA write into a ring in the peer's memory (Context::create_write_ring). The peer's
 * worker finds the message by polling that memory, without a receive or a CQ. An end without a ring takes no messages.
 * A send for which the ring has no room waits, as with credits. Session::try_submit reads the bytes of a send to
 * compute their checksum, unless the peer's device promises the order in which the bytes of a write arrive
 * (ibv_query_qp_data_in_order(3)). For the checksum, the program must be able to read these bytes at the addresses in
 * the request. There are no receives, so writes with immediate and sends that invalidate are not allowed. */
typedef enum pollcore_flow_control {
#define POLLCORE_ROW(name, NAME, arrival, text) POLLCORE_FLOW_##NAME,
    POLLCORE_FLOW_CONTROLS(POLLCORE_ROW)
#undef POLLCORE_ROW
} pollcore_flow_control;

#endif
