/* The C interface as a C program uses it: c-client PATH. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pollcore/attach.h"

#define REQUIRE(holds)                                                                        \
    do {                                                                                      \
        if (!(holds)) {                                                                       \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #holds, pollcore_error()); \
            exit(1);                                                                          \
        }                                                                                     \
    } while (0)

static pollcore_completion await_one(pollcore_session* session) {
    pollcore_completion completion;
    while (pollcore_poll(session, &completion, 1) == 0) {
        (void)pollcore_wait(session, 1000 * 1000);
    }
    return completion;
}

/* Two sends to a peer that has posted one receive. The second send waits for another receive. */
static void send_with_credits(pollcore_attachment* daemon, pollcore_session* session, pollcore_region* region) {
    pollcore_qp_options options = {
        .send_depth = 4, .recv_depth = 4, .flow = POLLCORE_FLOW_CREDITS, .coalesce_signals = 1};
    pollcore_qp* from = pollcore_create_qp(daemon, session, &options);
    pollcore_qp* to = pollcore_create_qp(daemon, session, &options);
    REQUIRE(from != NULL && to != NULL);
    options.flow = 256;
    REQUIRE(pollcore_create_qp(daemon, session, &options) == NULL && strstr(pollcore_error(), "flow control") != NULL);
    options.flow = POLLCORE_FLOW_OFF;
    options.remote_access = POLLCORE_ACCESS_LOCAL_WRITE;
    REQUIRE(pollcore_create_qp(daemon, session, &options) == NULL && strstr(pollcore_error(), "access") != NULL);

    char info_from[POLLCORE_QP_INFO_BYTES];
    char info_to[POLLCORE_QP_INFO_BYTES];
    REQUIRE(pollcore_qp_info(from, info_from) == 0 && pollcore_qp_info(to, info_to) == 0);
    REQUIRE(pollcore_connect_to(from, info_to) == 0 && pollcore_connect_to(to, info_from) == 0);
    const pollcore_work_request receive = {.tag = 1,
                                           .sge = {pollcore_addr(region), 64, pollcore_lkey(region)},
                                           .qp = pollcore_handle(to),
                                           .opcode = POLLCORE_RECV,
                                           .num_sge = 1};
    pollcore_work_request send = {.tag = 2,
                                  .sge = {pollcore_addr(region) + 4096, 8, pollcore_lkey(region)},
                                  .qp = pollcore_handle(from),
                                  .opcode = POLLCORE_SEND,
                                  .num_sge = 1};
    REQUIRE(pollcore_submit(session, &receive) == 0);
    REQUIRE(pollcore_submit(session, &send) == 0);
    send.flags = POLLCORE_SIGNALED;
    REQUIRE(pollcore_submit(session, &send) == 0);
    REQUIRE(await_one(session).tag == 1);
    /* Meanwhile a write in the other direction completes. */
    send.qp = pollcore_handle(to);
    send.opcode = POLLCORE_RDMA_WRITE;
    send.remote_addr = pollcore_addr(region);
    send.rkey = pollcore_rkey(region);
    send.tag = 3;
    REQUIRE(pollcore_submit(session, &send) == 0 && await_one(session).tag == 3);
    REQUIRE(pollcore_submit(session, &receive) == 0);
    uint64_t tags = 0;
    for (int i = 0; i < 2; ++i) {
        const pollcore_completion done = await_one(session);
        REQUIRE(done.status == 0);
        tags += done.tag;
    }
    REQUIRE(tags == 1 + 2);
    pollcore_close_qp(from);
    pollcore_close_qp(to);
}

/* A queue pair and a region each have their own access rights. */
static void reach_with_access(pollcore_attachment* daemon, pollcore_session* session, pollcore_region* writable) {
    pollcore_region* readable =
        pollcore_allocate(daemon, 4096, POLLCORE_ACCESS_LOCAL_WRITE | POLLCORE_ACCESS_REMOTE_READ, NULL);
    pollcore_qp_options options = {.send_depth = 4};
    pollcore_qp* from = pollcore_create_qp(daemon, session, &options);
    options.remote_access = POLLCORE_ACCESS_REMOTE_READ;
    pollcore_qp* to = pollcore_create_qp(daemon, session, &options);
    REQUIRE(readable != NULL && from != NULL && to != NULL);
    const struct {
        uint8_t opcode;
        pollcore_region* region;
        uint32_t remote_access;
        int succeeds;
    } tried[] = {{POLLCORE_RDMA_READ, readable, POLLCORE_ACCESS_REMOTE_READ, 1},
                 {POLLCORE_RDMA_WRITE, writable, POLLCORE_ACCESS_REMOTE_READ, 0},
                 {POLLCORE_RDMA_WRITE, writable, POLLCORE_ACCESS_REMOTE_WRITE, 1},
                 {POLLCORE_RDMA_READ, readable, POLLCORE_ACCESS_REMOTE_WRITE, 0},
                 {POLLCORE_ATOMIC_FETCH_AND_ADD, writable, POLLCORE_ACCESS_REMOTE_ATOMIC, 0},
                 {POLLCORE_ATOMIC_FETCH_AND_ADD, readable, POLLCORE_ACCESS_REMOTE_ATOMIC, 0}};
    for (size_t i = 0; i < sizeof(tried) / sizeof(tried[0]); ++i) {
        pollcore_close_qp(to);
        REQUIRE(pollcore_reset(from) == 0);
        options.remote_access = tried[i].remote_access;
        to = pollcore_create_qp(daemon, session, &options);
        char info_from[POLLCORE_QP_INFO_BYTES];
        char info_to[POLLCORE_QP_INFO_BYTES];
        REQUIRE(to != NULL && pollcore_qp_info(from, info_from) == 0 && pollcore_qp_info(to, info_to) == 0);
        REQUIRE(pollcore_connect_to(from, info_to) == 0 && pollcore_connect_to(to, info_from) == 0);
        const pollcore_work_request request = {.tag = i,
                                               .sge = {pollcore_addr(readable), 8, pollcore_lkey(readable)},
                                               .remote_addr = pollcore_addr(tried[i].region),
                                               .rkey = pollcore_rkey(tried[i].region),
                                               .qp = pollcore_handle(from),
                                               .opcode = tried[i].opcode,
                                               .flags = POLLCORE_SIGNALED,
                                               .num_sge = 1};
        REQUIRE(pollcore_submit(session, &request) == 0);
        const pollcore_completion done = await_one(session);
        REQUIRE(done.tag == i && (done.status == 0) == tried[i].succeeds);
    }
    pollcore_close_qp(from);
    pollcore_close_qp(to);
    pollcore_free(readable);
}

int main(int argc, char** argv) {
    REQUIRE(argc == 2);
    REQUIRE(pollcore_attach("/nowhere/at-all.sock", NULL, 0) == NULL);
    REQUIRE(strstr(pollcore_error(), "/nowhere/at-all.sock") != NULL);

    pollcore_attachment* daemon = pollcore_attach(argv[1], "c-client", 5000);
    REQUIRE(daemon != NULL);
    pollcore_session* session = pollcore_open_session(daemon, NULL, 64, 64, 1);
    REQUIRE(session != NULL && pollcore_event_fd(session) >= 0);
    REQUIRE(pollcore_open_session(daemon, "no such worker", 64, 64, 0) == NULL && pollcore_error()[0] != '\0');
    pollcore_region* region =
        pollcore_allocate(daemon, 8192, POLLCORE_ACCESS_LOCAL_WRITE | POLLCORE_ACCESS_REMOTE_WRITE, NULL);
    REQUIRE(region != NULL);
    REQUIRE(pollcore_allocate(daemon, 8192, 1u << 30, NULL) == NULL && strstr(pollcore_error(), "access") != NULL);
    char* data = pollcore_data(region);

    const pollcore_qp_options options = {
        .send_depth = 16, .recv_depth = 16, .inline_max = 64, .remote_access = POLLCORE_ACCESS_REMOTE_WRITE};
    pollcore_qp* a = pollcore_create_qp(daemon, session, &options);
    pollcore_qp* b = pollcore_create_qp(daemon, session, &options);
    REQUIRE(a != NULL && b != NULL);
    char info_a[POLLCORE_QP_INFO_BYTES];
    char info_b[POLLCORE_QP_INFO_BYTES];
    REQUIRE(pollcore_qp_info(a, info_a) == 0 && pollcore_qp_info(b, info_b) == 0);
    REQUIRE(pollcore_connect_to(a, info_b) == 0 && pollcore_connect_to(b, info_a) == 0);

    /* A write into the other half of the memory. */
    strcpy(data, "from a C program");
    pollcore_work_request write = {.tag = 7,
                                   .sge = {pollcore_addr(region), 64, pollcore_lkey(region)},
                                   .remote_addr = pollcore_addr(region) + 4096,
                                   .rkey = pollcore_rkey(region),
                                   .qp = pollcore_handle(a),
                                   .opcode = POLLCORE_RDMA_WRITE,
                                   .flags = POLLCORE_SIGNALED,
                                   .num_sge = 1};
    REQUIRE(pollcore_submit(session, &write) == 0);
    pollcore_completion done = await_one(session);
    REQUIRE(done.status == 0 && done.tag == 7 && done.qp == pollcore_handle(a));
    REQUIRE(strcmp(data + 4096, "from a C program") == 0);

    /* A batch of receives, an inline send, and a request that is refused. */
    pollcore_work_request receives[4];
    memset(receives, 0, sizeof(receives));
    for (int i = 0; i < 4; ++i) {
        receives[i].tag = 100 + (uint64_t)i;
        receives[i].sge.addr = pollcore_addr(region) + 1024 * (uint64_t)i;
        receives[i].sge.length = 1024;
        receives[i].sge.lkey = pollcore_lkey(region);
        receives[i].qp = pollcore_handle(b);
        receives[i].opcode = POLLCORE_RECV;
        receives[i].num_sge = 1;
    }
    REQUIRE(strcmp(pollcore_refusal_name(256), "none") != 0);
    pollcore_refusal refusal = -1;
    REQUIRE(pollcore_submit_many(session, receives, 4, &refusal) == 4 && refusal == 0);
    pollcore_work_request send = {.tag = 8,
                                  .qp = pollcore_handle(a),
                                  .opcode = POLLCORE_SEND_WITH_IMM,
                                  .flags = POLLCORE_SIGNALED,
                                  .imm_data = 42};
    REQUIRE(pollcore_submit_inline(session, &send, "inline", 7) == 0);
    int sent = 0;
    int received = 0;
    while (sent + received < 2) {
        done = await_one(session);
        REQUIRE(done.status == 0);
        if (done.flags & POLLCORE_FROM_RECV_QUEUE) {
            REQUIRE(done.tag == 100 && done.byte_len == 7 && (done.flags & POLLCORE_WITH_IMM) && done.imm_data == 42);
            ++received;
        } else {
            REQUIRE(done.tag == 8);
            ++sent;
        }
    }
    REQUIRE(sent == 1 && received == 1 && strcmp(data, "inline") == 0);

    /* A write and an inline write in one batch. */
    const char text[] = "in a batch";
    pollcore_work_request writes[2] = {write, write};
    writes[1].remote_addr += 64;
    writes[1].sge.addr = (uintptr_t)text;
    writes[1].sge.length = sizeof(text);
    writes[1].sge.lkey = 0;
    writes[1].flags |= POLLCORE_INLINE;
    REQUIRE(pollcore_submit_many(session, writes, 2, &refusal) == 2 && refusal == 0);
    REQUIRE(await_one(session).status == 0 && await_one(session).status == 0);
    REQUIRE(strcmp(data + 4096 + 64, text) == 0);
    send.opcode = 99;
    REQUIRE(strcmp(pollcore_refusal_name(pollcore_submit(session, &send)), "bad_opcode") == 0);

    send_with_credits(daemon, session, region);

    reach_with_access(daemon, session, region);

    /* A listener by name. Nobody connects to it. */
    pollcore_listener* listener = pollcore_listen(daemon, "c-client", NULL);
    REQUIRE(listener != NULL && strcmp(pollcore_listener_address(listener), "c-client") == 0);
    REQUIRE(pollcore_next_request(listener, 1) == NULL && pollcore_error()[0] == '\0');

    /* The receive of a message that is to end a window which is not there fails. Closing completes the other two. */
    REQUIRE(pollcore_in_flight(session) == 3);
    send.opcode = POLLCORE_SEND_WITH_INV;
    send.invalidate_rkey = 0xfffffe01; /* no window has this key */
    REQUIRE(pollcore_submit(session, &send) == 0);
    int refused = 0;
    int flushed = 0;
    for (int ended = 0; ended < 4; ++ended) {
        done = await_one(session);
        const char* status = pollcore_status_name(done.status);
        flushed += strcmp(status, "IBV_WC_WR_FLUSH_ERR") == 0;
        if (strcmp(status, "IBV_WC_REM_INV_REQ_ERR") == 0) {
            REQUIRE(done.tag == 101);
            ++refused;
            pollcore_close_qp(b);
        }
    }
    REQUIRE(refused == 1 && flushed == 2);
    REQUIRE(pollcore_reset(a) == 0 && pollcore_lost(daemon) == 0);
    REQUIRE(strcmp(pollcore_refusal_name(pollcore_submit(session, &write)), "stale_handle") == 0);

    pollcore_close_listener(listener);
    pollcore_close_qp(a);
    pollcore_free(region);
    pollcore_close_session(session);
    pollcore_detach(daemon);
    puts("ok");
    return 0;
}
