/* pollcore-client for C: the part of attach.hpp that a data path needs. attach.hpp, session.hpp and logging.hpp
 * describe the calls; the comments here describe only the differences.
 *
 * Objects are opaque and belong to the caller that made them. Each kind of object has a function that ends such an
 * object. With NULL, that function does nothing.
 *
 * Errors: a function that returns int returns 0 or an errno value, unless its comment says otherwise. A function that
 * returns a pointer returns NULL on failure. After a failure, pollcore_error() returns a sentence that describes it.
 * The functions that return a pollcore_refusal set no such sentence.
 *
 * Thread safety, as in C++: one thread at a time may use a session, except for pollcore_poke; any thread may use
 * everything else.
 */
#ifndef POLLCORE_ATTACH_H
#define POLLCORE_ATTACH_H

#include <stddef.h>
#include <stdint.h>

#include "pollcore/export.h"
#include "pollcore/flow_control.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct pollcore_attachment pollcore_attachment;
typedef struct pollcore_session pollcore_session;
typedef struct pollcore_region pollcore_region;
typedef struct pollcore_qp pollcore_qp;
typedef struct pollcore_listener pollcore_listener;
typedef struct pollcore_request pollcore_request;

/** Goes into pollcore_work_request::qp; valid until the queue pair is reset or closed. */
typedef uint32_t pollcore_qp_handle;

/** One work request, in the same 64 bytes as WorkRequest in work_request.hpp. */
typedef struct pollcore_work_request {
    uint64_t tag;
    uint64_t swap; /**< compare-and-swap: the new value */
    struct {
        uint64_t addr;
        uint32_t length;
        uint32_t lkey;
    } sge;
    uint64_t remote_addr;
    union {
        uint64_t compare_add;
        uint32_t imm_data;        /**< in host order */
        uint32_t invalidate_rkey; /**< POLLCORE_SEND_WITH_INV: the key of the peer's window */
    };
    uint32_t rkey;
    uint32_t reserved;
    pollcore_qp_handle qp;
    uint8_t opcode; /**< POLLCORE_SEND, ... */
    uint8_t flags;  /**< POLLCORE_SIGNALED, ... */
    uint8_t num_sge;
    uint8_t reserved2;
} pollcore_work_request;

/** Values of enum ibv_wr_opcode (ibv_post_send(3)), and one for receives. */
enum {
    POLLCORE_RDMA_WRITE = 0,
    POLLCORE_RDMA_WRITE_WITH_IMM = 1,
    POLLCORE_SEND = 2,
    POLLCORE_SEND_WITH_IMM = 3,
    POLLCORE_RDMA_READ = 4,
    POLLCORE_ATOMIC_CMP_AND_SWP = 5,
    POLLCORE_ATOMIC_FETCH_AND_ADD = 6,
    POLLCORE_SEND_WITH_INV = 9,
    POLLCORE_RECV = 128
};
enum {
    POLLCORE_FENCE = 1,
    POLLCORE_SIGNALED = 2,
    POLLCORE_SOLICITED = 4,
    POLLCORE_INLINE = 8 /**< the call copies the bytes at sge.addr, which need not be in registered memory */
};

/** One completion, in the same 32 bytes as Completion in completion.hpp. Values of `status` below 128 are those of enum
 * ibv_wc_status; values from 128 on are the runtime's own. */
typedef struct pollcore_completion {
    uint64_t tag;
    pollcore_qp_handle qp;
    uint32_t byte_len;
    union {
        uint32_t imm_data;
        uint32_t invalidated_rkey; /**< with POLLCORE_WITH_INV */
        uint32_t vendor_err;
    };
    uint32_t srq; /**< used in C++ only; 0 here */
    uint8_t status;
    uint8_t opcode;
    uint8_t flags;
    uint8_t reserved[5];
} pollcore_completion;
enum { POLLCORE_WITH_IMM = 1, POLLCORE_BY_RUNTIME = 4, POLLCORE_FROM_RECV_QUEUE = 8, POLLCORE_WITH_INV = 16 };

/** A value of Refusal in session.hpp. 0 means that the request was taken. pollcore_refusal_name() returns its name. */
typedef int pollcore_refusal;

/** Returns a sentence about this thread's last failure, or "". It is valid until this thread's next failure or next
 * call of pollcore_next_request or pollcore_next_event. */
POLLCORE_API const char* pollcore_error(void);
POLLCORE_API const char* pollcore_refusal_name(pollcore_refusal refusal);
POLLCORE_API const char* pollcore_status_name(uint8_t status);

/** Levels of log lines, from the most important one. */
enum { POLLCORE_LOG_ERROR = 0, POLLCORE_LOG_WARNING = 1, POLLCORE_LOG_INFO = 2, POLLCORE_LOG_DEBUG = 3 };
/** Takes a line of the log. `text` is valid until the function returns. */
typedef void pollcore_log_function(void* context, int level, const char* text);
/** From now on `function` gets the lines, with `context`. If it is NULL, they go to stderr. */
POLLCORE_API int pollcore_set_log_function(pollcore_log_function* function, void* context);
POLLCORE_API int pollcore_set_log_level(int level);

/** If `path` is NULL, the socket is /run/pollcore/pollcored.sock. If `name` is NULL, the kernel's name of this process
 * is used. Keeps trying the socket for `timeout_ms`. */
POLLCORE_API pollcore_attachment* pollcore_attach(const char* path, const char* name, uint32_t timeout_ms);
/** Completes every request in flight. Objects that still exist can be ended afterwards. */
POLLCORE_API void pollcore_detach(pollcore_attachment* attachment);
/** Returns 1 if the daemon has died or has ended the attachment, else 0. */
POLLCORE_API int pollcore_lost(const pollcore_attachment* attachment);
POLLCORE_API int pollcore_reattach(pollcore_attachment* attachment, uint32_t timeout_ms);

/** If `worker` is NULL, takes the worker with the fewest sessions. If `events` is not 0, pollcore_wait may sleep.
 * `name` is SessionOptions::name; NULL means no name. */
POLLCORE_API pollcore_session* pollcore_open_session(pollcore_attachment* attachment, const char* worker,
                                                     uint32_t submission_slots, uint32_t completion_slots, int events,
                                                     const char* name);
POLLCORE_API void pollcore_close_session(pollcore_session* session);
POLLCORE_API pollcore_refusal pollcore_submit(pollcore_session* session, const pollcore_work_request* request);
/** Returns how many requests were taken, from the first on. If `refusal` is not NULL, `*refusal` becomes the reason why
 * the next request was not taken. */
POLLCORE_API size_t pollcore_submit_many(pollcore_session* session, const pollcore_work_request* requests, size_t count,
                                         pollcore_refusal* refusal);
POLLCORE_API pollcore_refusal pollcore_submit_inline(pollcore_session* session, const pollcore_work_request* request,
                                                     const void* payload, size_t length);
POLLCORE_API size_t pollcore_poll(pollcore_session* session, pollcore_completion* completions, size_t count);
/** Works as Session::wait. Returns 1 if there may be a completion to poll, else 0. */
POLLCORE_API int pollcore_wait(pollcore_session* session, uint64_t timeout_ns);
/** Returns -1 for a session without events. */
POLLCORE_API int pollcore_event_fd(const pollcore_session* session);
/** Returns 1 if the descriptor becomes readable with the next completion. Returns 0 if nothing was armed: either poll
 * first, or the session has no events. */
POLLCORE_API int pollcore_arm(pollcore_session* session);
/** Ends a pollcore_wait of the thread that uses the session: it returns 1. Any thread may call this, until the session
 * is closed. */
POLLCORE_API void pollcore_poke(pollcore_session* session);
/** Returns the number of requests in flight. */
POLLCORE_API uint64_t pollcore_in_flight(pollcore_session* session);

/** Access rights of a region, and of a peer through a queue pair; the values of IBV_ACCESS_* (ibv_reg_mr(3)). */
typedef enum pollcore_access {
    POLLCORE_ACCESS_LOCAL_WRITE = 1,
    POLLCORE_ACCESS_REMOTE_WRITE = 2, /**< a region with this right needs POLLCORE_ACCESS_LOCAL_WRITE, too */
    POLLCORE_ACCESS_REMOTE_READ = 4,
    POLLCORE_ACCESS_REMOTE_ATOMIC = 8 /**< a region with this right needs POLLCORE_ACCESS_LOCAL_WRITE, too */
} pollcore_access;

/** Allocates memory for devices. This process's work requests may always read the memory. `access` holds the further
 * rights of these requests and of peers. If `device` is NULL, uses the only device. */
POLLCORE_API pollcore_region* pollcore_allocate(pollcore_attachment* attachment, size_t bytes, uint32_t access,
                                                const char* device);
POLLCORE_API void pollcore_free(pollcore_region* region);
POLLCORE_API void* pollcore_data(const pollcore_region* region);
POLLCORE_API uint64_t pollcore_addr(const pollcore_region* region);
POLLCORE_API uint32_t pollcore_lkey(const pollcore_region* region);
POLLCORE_API uint32_t pollcore_rkey(const pollcore_region* region);

/** The options of a queue pair: see QueuePairOptions in queue_pair.hpp. */
typedef struct pollcore_qp_options {
    const char* device; /**< NULL: the only device */
    uint32_t send_depth;
    uint32_t recv_depth;
    uint32_t sges_max; /**< 0 means 1 */
    uint32_t inline_max;
    uint32_t remote_access; /**< POLLCORE_ACCESS_REMOTE_*: rights of the peer; flow control adds what it needs */
    uint32_t flow; /**< a pollcore_flow_control, equal at both ends. With POLLCORE_FLOW_RING this end only sends */
    uint32_t coalesce_signals; /**< not 0 sets QueuePairOptions::coalesce_signals */
    const char* name;          /**< QueuePairOptions::name; NULL: no name */
} pollcore_qp_options;
/** Makes an RC queue pair. */
POLLCORE_API pollcore_qp* pollcore_create_qp(pollcore_attachment* attachment, pollcore_session* session,
                                             const pollcore_qp_options* options);
POLLCORE_API void pollcore_close_qp(pollcore_qp* qp);
POLLCORE_API pollcore_qp_handle pollcore_handle(const pollcore_qp* qp);
/** `address` is "ADDRESS:PORT" on a verbs device, and a name on a software device. Does not return before the
 * connection is established or has failed. */
POLLCORE_API int pollcore_connect(pollcore_qp* qp, const char* address, uint32_t timeout_ms);
POLLCORE_API int pollcore_disconnect(pollcore_qp* qp);
/** The queue pair has a new handle afterwards. */
POLLCORE_API int pollcore_reset(pollcore_qp* qp);
/** For programs that exchange connection data over a channel of their own: pollcore_qp_info writes 48 bytes that the
 * peer needs, and pollcore_connect_to takes the 48 bytes that the peer has sent. */
enum { POLLCORE_QP_INFO_BYTES = 48 };
POLLCORE_API int pollcore_qp_info(pollcore_qp* qp, void* info);
POLLCORE_API int pollcore_connect_to(pollcore_qp* qp, const void* peer_info);

POLLCORE_API pollcore_listener* pollcore_listen(pollcore_attachment* attachment, const char* address,
                                                const char* device);
POLLCORE_API void pollcore_close_listener(pollcore_listener* listener);
POLLCORE_API const char* pollcore_listener_address(const pollcore_listener* listener);
/** If no request came within the time, returns NULL, and pollcore_error() returns "". */
POLLCORE_API pollcore_request* pollcore_next_request(pollcore_listener* listener, uint32_t timeout_ms);
/** pollcore_accept, pollcore_begin_accept and pollcore_reject end the request, even if they fail. Without a request or
 * a queue pair, the first two return EINVAL. */
POLLCORE_API int pollcore_accept(pollcore_request* request, pollcore_qp* qp, uint32_t timeout_ms);
POLLCORE_API void pollcore_reject(pollcore_request* request);

/** These functions serve a thread with many connections. Each begins an operation, and returns at once. The
 * operation ends with one event, within its time limit; pollcore_cancel ends it early. A limit of 0 for a reset or a
 * close is the daemon's drain_timeout. pollcore_close_qp does not wait for a queue pair with an operation under way, or
 * with the event POLLCORE_EVENT_CLOSED. */
POLLCORE_API int pollcore_begin_connect(pollcore_qp* qp, const char* address, uint32_t timeout_ms);
POLLCORE_API int pollcore_begin_accept(pollcore_request* request, pollcore_qp* qp, uint32_t timeout_ms);
POLLCORE_API int pollcore_begin_reset(pollcore_qp* qp, uint32_t timeout_ms);
POLLCORE_API int pollcore_begin_close(pollcore_qp* qp, uint32_t timeout_ms);
POLLCORE_API int pollcore_cancel(pollcore_qp* qp);

/** Values of EventType in event.hpp, which describes them. Values below 128 are those of enum ibv_event_type. */
enum {
    POLLCORE_EVENT_DEVICE_REMOVED = 128,
    POLLCORE_EVENT_STOPPING = 129,
    POLLCORE_EVENT_CONNECT_REQUEST = 130, /**< see pollcore_is_of_listener */
    POLLCORE_EVENT_ESTABLISHED = 131,
    POLLCORE_EVENT_CONNECT_FAILED = 132,
    POLLCORE_EVENT_DISCONNECTED = 133,
    POLLCORE_EVENT_QP_ERROR = 134,
    POLLCORE_EVENT_RESET_DONE = 135, /**< give the event to pollcore_renew */
    POLLCORE_EVENT_CLOSED = 136
};
/** One event: see Event in event.hpp. */
typedef struct pollcore_event {
    uint8_t type;               /**< POLLCORE_EVENT_... */
    uint8_t drained;            /**< RESET_DONE, CLOSED: 0 if requests were still in flight at the time limit */
    int error;                  /**< CONNECT_FAILED, RESET_DONE, CLOSED: an errno value; 0 means success */
    pollcore_qp_handle qp;      /**< events of a queue pair: its handle at the time of the event; else 0 */
    pollcore_qp_handle renewed; /**< RESET_DONE: the queue pair's handle from now on */
    uint32_t listener_device;   /**< for pollcore_is_of_listener, as listener_number */
    uint64_t listener_number;
    uint64_t lost_after; /**< see Event::lost_after */
} pollcore_event;
/** Waits for an event, as Context::next_event. Returns EAGAIN if no event came within the time. If the event has an
 * error, or is POLLCORE_EVENT_STOPPING, pollcore_error() returns the reason, else "". */
POLLCORE_API int pollcore_next_event(pollcore_attachment* attachment, pollcore_event* event, uint32_t timeout_ms);
/** A descriptor that is readable while there is an event to take: see Context::event_fd. It belongs to the attachment.
 * Returns -1 on failure. */
POLLCORE_API int pollcore_attachment_event_fd(const pollcore_attachment* attachment);
/** The verbs' name of an event's type. */
POLLCORE_API const char* pollcore_event_type_name(uint8_t type);
/** Returns 1 if the event is of this listener, else 0. */
POLLCORE_API int pollcore_is_of_listener(const pollcore_event* event, const pollcore_listener* listener);
/** Takes the result of pollcore_begin_reset from its event. The queue pair then has its new handle. Returns the event's
 * error, or EINVAL for an event that is not POLLCORE_EVENT_RESET_DONE of this queue pair. */
POLLCORE_API int pollcore_renew(pollcore_qp* qp, const pollcore_event* event);

#ifdef __cplusplus
}
#endif

#endif
