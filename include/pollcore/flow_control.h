/* The flow controls: how a connection keeps its senders from meeting a receiver that is not ready. Both ends have the
 * same. For C and C++. */
#ifndef POLLCORE_FLOW_CONTROL_H
#define POLLCORE_FLOW_CONTROL_H

/*
 * A row has the name, the name for C, where messages arrive (receives, or write_ring), and what it is called in
 * sentences. Rows keep their places, which stand on the wire. runtime/README.md says how one is added.
 *
 * off      Nothing but the program's own bytes is on the wire; a send that finds no receive is repeated (rnr_retry).
 *
 * credits  RC only. Each end says in the other's memory how many receives it has posted, and how long a message they
 * take. Sends, and writes with immediate, that the peer has no receive for wait at the worker, in order, with all that
 * the queue pair's sessions submit to it after them; nobody else waits. Neither the program's bytes nor the immediate
 * are touched.
 *
 * ring     RC only. Sends go by RDMA write into a ring in the peer's memory (Context::create_write_ring), whose worker
 * finds them there by looking, without a receive or a CQ. No ring means that the end takes no messages. What the ring
 * has no room for waits as with credits. Unless the peer's device promises the order in which a write arrives
 * (ibv_query_qp_data_in_order(3)), Session::try_submit reads the bytes of a send to sum them up, so they must be the
 * program's own, by the address that it knows them by. There are no receives, hence no writes with immediate and no
 * sends that invalidate.
 */
#define POLLCORE_FLOW_CONTROLS(row)                                                       \
    row(off, OFF, receives, "no flow control") row(credits, CREDITS, receives, "credits") \
        row(ring, RING, write_ring, "write rings")

typedef enum pollcore_flow_control {
#define POLLCORE_ROW(name, NAME, arrival, text) POLLCORE_FLOW_##NAME,
    POLLCORE_FLOW_CONTROLS(POLLCORE_ROW)
#undef POLLCORE_ROW
} pollcore_flow_control;

#endif
