/* A peer that uses librdmacm and libibverbs as their manual pages show, and knows nothing of pollcore. It sends the
 * private data that its command line gives in hexadecimal, and prints all that comes, so that a test can compare every
 * byte.
 *
 *   raw_peer call FROM TO PORT HEX stay|leave      connects from address FROM to address TO
 *   raw_peer serve ADDRESS PORT HEX stay|leave     accepts the next request, and answers with HEX
 *   raw_peer refuse ADDRESS PORT HEX               rejects the next request with HEX
 *
 * When it is connected, it sends one message and takes one. Then it disconnects (leave), or waits for that (stay). It
 * prints a line for each step: "listening", "request HEX", "established HEX", "rejected STATUS HEX", "message TEXT" and
 * "disconnected".
 *
 * Exit codes: 0 all went so; 1 not so, with the reason on stderr; 2 usage. */
#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>

/* The kernel may notice only at the end of RESOLVE_MS that the other end's address is known, so this is short. */
enum { PATIENCE_MS = 60000, RESOLVE_MS = 2000, MESSAGE = 64 };

static const char hello[MESSAGE] = "from a program that knows only verbs";

static void fail(const char* what) {
    fprintf(stderr, "raw_peer: %s: %s\n", what, errno != 0 ? strerror(errno) : "not as expected");
    exit(1);
}
static void require(int holds, const char* what) {
    if (!holds) {
        fail(what);
    }
}

static void say(const char* what, const void* data, size_t length) {
    const unsigned char* bytes = data;
    printf("%s ", what);
    for (size_t i = 0; i < length; ++i) {
        printf("%02x", bytes[i]);
    }
    printf("\n");
    fflush(stdout);
}

struct private_data {
    unsigned char bytes[256];
    uint8_t length;
};
static struct private_data from_hex(const char* text) {
    struct private_data data = {.length = 0};
    for (; text[0] != '\0' && text[1] != '\0'; text += 2) {
        unsigned byte = 0;
        require(data.length < 255 && sscanf(text, "%2x", &byte) == 1, "the private data on the command line");
        data.bytes[data.length++] = (unsigned char)byte;
    }
    return data;
}

/* The caller acknowledges the event. */
static struct rdma_cm_event* next_event(struct rdma_event_channel* channel) {
    struct pollfd ready = {.fd = channel->fd, .events = POLLIN};
    struct rdma_cm_event* event = NULL;
    errno = 0;
    require(poll(&ready, 1, PATIENCE_MS) == 1, "no event came");
    require(rdma_get_cm_event(channel, &event) == 0, "rdma_get_cm_event");
    return event;
}
static void expect(struct rdma_event_channel* channel, enum rdma_cm_event_type type) {
    struct rdma_cm_event* event = next_event(channel);
    if (event->event != type) {
        fprintf(stderr, "raw_peer: %s (status %d) instead of %s\n", rdma_event_str(event->event), event->status,
                rdma_event_str(type));
        exit(1);
    }
    rdma_ack_cm_event(event);
}

static struct sockaddr_storage address_of(const char* address, const char* port) {
    struct addrinfo hints = {.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV};
    struct addrinfo* found = NULL;
    struct sockaddr_storage result = {0};
    require(getaddrinfo(address, port, &hints, &found) == 0, address);
    memcpy(&result, found->ai_addr, found->ai_addrlen);
    freeaddrinfo(found);
    return result;
}

static struct rdma_conn_param parameters_with(const struct private_data* data) {
    struct rdma_conn_param parameters = {.private_data = data->bytes,
                                         .private_data_len = data->length,
                                         .responder_resources = 1,
                                         .initiator_depth = 1,
                                         .retry_count = 7,
                                         .rnr_retry_count = 7};
    return parameters;
}

struct memory {
    char in[MESSAGE];
    char out[MESSAGE];
    struct ibv_mr* region;
};
/* Makes a queue pair, and posts the receive of the peer's first message. */
static void prepare(struct rdma_cm_id* id, struct memory* memory) {
    struct ibv_qp_init_attr attributes = {
        .qp_type = IBV_QPT_RC,
        .sq_sig_all = 1,
        .cap = {.max_send_wr = 2, .max_recv_wr = 2, .max_send_sge = 1, .max_recv_sge = 1}};
    require(rdma_create_qp(id, NULL, &attributes) == 0, "rdma_create_qp");
    memory->region = rdma_reg_msgs(id, memory, sizeof(*memory));
    require(memory->region != NULL, "rdma_reg_msgs");
    require(rdma_post_recv(id, NULL, memory->in, MESSAGE, memory->region) == 0, "rdma_post_recv");
}

static void talk(struct rdma_cm_id* id, struct memory* memory) {
    struct ibv_wc wc;
    memcpy(memory->out, hello, MESSAGE);
    require(rdma_post_send(id, NULL, memory->out, MESSAGE, memory->region, 0) == 0, "rdma_post_send");
    require(rdma_get_send_comp(id, &wc) == 1 && wc.status == IBV_WC_SUCCESS, "the send");
    require(rdma_get_recv_comp(id, &wc) == 1 && wc.status == IBV_WC_SUCCESS, "the receive");
    memory->in[MESSAGE - 1] = '\0';
    printf("message %s\n", memory->in);
    fflush(stdout);
}

static void part(struct rdma_event_channel* channel, struct rdma_cm_id* id, struct memory* memory, int leaves) {
    if (leaves) {
        require(rdma_disconnect(id) == 0, "rdma_disconnect");
    }
    expect(channel, RDMA_CM_EVENT_DISCONNECTED);
    printf("disconnected\n");
    fflush(stdout);
    rdma_destroy_qp(id);
    rdma_dereg_mr(memory->region);
    rdma_destroy_id(id);
}

static void call(const char* from, const char* to, const char* port, const struct private_data* data, int leaves) {
    struct rdma_event_channel* channel = rdma_create_event_channel();
    struct rdma_cm_id* id = NULL;
    struct memory memory = {.region = NULL};
    struct sockaddr_storage here = address_of(from, NULL);
    struct sockaddr_storage there = address_of(to, port);
    struct rdma_conn_param parameters = parameters_with(data);
    require(channel != NULL && rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == 0, "rdma_create_id");
    require(rdma_resolve_addr(id, (struct sockaddr*)&here, (struct sockaddr*)&there, RESOLVE_MS) == 0,
            "rdma_resolve_addr");
    expect(channel, RDMA_CM_EVENT_ADDR_RESOLVED);
    require(rdma_resolve_route(id, RESOLVE_MS) == 0, "rdma_resolve_route");
    expect(channel, RDMA_CM_EVENT_ROUTE_RESOLVED);
    prepare(id, &memory);
    require(rdma_connect(id, &parameters) == 0, "rdma_connect");
    struct rdma_cm_event* event = next_event(channel);
    if (event->event == RDMA_CM_EVENT_REJECTED) {
        char text[64];
        snprintf(text, sizeof(text), "rejected %d", event->status);
        say(text, event->param.conn.private_data, event->param.conn.private_data_len);
        rdma_ack_cm_event(event);
        rdma_destroy_qp(id);
        rdma_dereg_mr(memory.region);
        rdma_destroy_id(id);
    } else {
        require(event->event == RDMA_CM_EVENT_ESTABLISHED, rdma_event_str(event->event));
        say("established", event->param.conn.private_data, event->param.conn.private_data_len);
        rdma_ack_cm_event(event);
        talk(id, &memory);
        part(channel, id, &memory, leaves);
    }
    rdma_destroy_event_channel(channel);
}

static void serve(const char* address, const char* port, const struct private_data* data, int accepts, int leaves) {
    struct rdma_event_channel* channel = rdma_create_event_channel();
    struct rdma_cm_id* listener = NULL;
    struct memory memory = {.region = NULL};
    struct sockaddr_storage here = address_of(address, port);
    require(channel != NULL && rdma_create_id(channel, &listener, NULL, RDMA_PS_TCP) == 0, "rdma_create_id");
    require(rdma_bind_addr(listener, (struct sockaddr*)&here) == 0, "rdma_bind_addr");
    require(rdma_listen(listener, 1) == 0, "rdma_listen");
    printf("listening\n");
    fflush(stdout);
    struct rdma_cm_event* event = next_event(channel);
    require(event->event == RDMA_CM_EVENT_CONNECT_REQUEST, rdma_event_str(event->event));
    struct rdma_cm_id* id = event->id;
    say("request", event->param.conn.private_data, event->param.conn.private_data_len);
    rdma_ack_cm_event(event);
    if (accepts) {
        struct rdma_conn_param parameters = parameters_with(data);
        prepare(id, &memory);
        require(rdma_accept(id, &parameters) == 0, "rdma_accept");
        expect(channel, RDMA_CM_EVENT_ESTABLISHED);
        talk(id, &memory);
        part(channel, id, &memory, leaves);
    } else {
        require(rdma_reject(id, data->bytes, data->length) == 0, "rdma_reject");
        rdma_destroy_id(id);
    }
    rdma_destroy_id(listener);
    rdma_destroy_event_channel(channel);
}

int main(int argc, char** argv) {
    const char* role = argc > 1 ? argv[1] : "";
    const char* last = argv[argc - 1];
    const int leaves = strcmp(last, "leave") == 0;
    const int ends = leaves || strcmp(last, "stay") == 0;
    if (strcmp(role, "call") == 0 && argc == 7 && ends) {
        const struct private_data data = from_hex(argv[5]);
        call(argv[2], argv[3], argv[4], &data, leaves);
    } else if (strcmp(role, "serve") == 0 && argc == 6 && ends) {
        const struct private_data data = from_hex(argv[4]);
        serve(argv[2], argv[3], &data, 1, leaves);
    } else if (strcmp(role, "refuse") == 0 && argc == 5) {
        const struct private_data data = from_hex(argv[4]);
        serve(argv[2], argv[3], &data, 0, 0);
    } else {
        fprintf(stderr,
                "usage: raw_peer call FROM TO PORT HEX stay|leave | serve ADDRESS PORT HEX stay|leave | "
                "refuse ADDRESS PORT HEX\n");
        return 2;
    }
    return 0;
}
