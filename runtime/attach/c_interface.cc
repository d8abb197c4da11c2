// The functions of attach.h. Each function calls its C++ counterpart. An exception becomes an errno value and a
// sentence.
#include <cstddef>
#include <cstring>
#include <exception>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <utility>

#include "pollcore/attach.h"
#include "pollcore/attach.hpp"

using pollcore::Attachment;
using pollcore::Completion;
using pollcore::ConnectionRequest;
using pollcore::Error;
using pollcore::Listener;
using pollcore::MemoryRegion;
using pollcore::QpHandle;
using pollcore::QpInfo;
using pollcore::QueuePair;
using pollcore::Refusal;
using pollcore::Session;
using pollcore::WorkRequest;

struct pollcore_attachment {
    Attachment attachment;
};
struct pollcore_session {
    Session session;
};
struct pollcore_region {
    MemoryRegion region;
};
struct pollcore_qp {
    QueuePair qp;
};
struct pollcore_listener {
    Listener listener;
};
struct pollcore_request {
    ConnectionRequest request;
};

static_assert(sizeof(pollcore_work_request) == sizeof(WorkRequest) &&
              offsetof(pollcore_work_request, swap) == offsetof(WorkRequest, swap) &&
              offsetof(pollcore_work_request, sge) == offsetof(WorkRequest, sge) &&
              offsetof(pollcore_work_request, remote_addr) == offsetof(WorkRequest, remote_addr) &&
              offsetof(pollcore_work_request, compare_add) == offsetof(WorkRequest, compare_add) &&
              offsetof(pollcore_work_request, invalidate_rkey) == offsetof(WorkRequest, invalidate_rkey) &&
              offsetof(pollcore_work_request, rkey) == offsetof(WorkRequest, rkey) &&
              offsetof(pollcore_work_request, qp) == offsetof(WorkRequest, qp) &&
              offsetof(pollcore_work_request, opcode) == offsetof(WorkRequest, opcode) &&
              offsetof(pollcore_work_request, flags) == offsetof(WorkRequest, flags) &&
              offsetof(pollcore_work_request, num_sge) == offsetof(WorkRequest, num_sge));
static_assert(sizeof(pollcore_completion) == sizeof(Completion) &&
              offsetof(pollcore_completion, qp) == offsetof(Completion, qp) &&
              offsetof(pollcore_completion, byte_len) == offsetof(Completion, byte_len) &&
              offsetof(pollcore_completion, imm_data) == offsetof(Completion, imm_data) &&
              offsetof(pollcore_completion, invalidated_rkey) == offsetof(Completion, invalidated_rkey) &&
              offsetof(pollcore_completion, status) == offsetof(Completion, status) &&
              offsetof(pollcore_completion, opcode) == offsetof(Completion, opcode) &&
              offsetof(pollcore_completion, flags) == offsetof(Completion, flags));
static_assert(POLLCORE_RECV == static_cast<int>(pollcore::Opcode::recv) &&
              POLLCORE_ATOMIC_FETCH_AND_ADD == static_cast<int>(pollcore::Opcode::atomic_fetch_and_add) &&
              POLLCORE_SEND_WITH_INV == static_cast<int>(pollcore::Opcode::send_with_inv) &&
              int{POLLCORE_SIGNALED} == int{pollcore::kSignaled} && int{POLLCORE_FENCE} == int{pollcore::kFence} &&
              int{POLLCORE_SOLICITED} == int{pollcore::kSolicited} && int{POLLCORE_INLINE} == int{pollcore::kInline} &&
              int{POLLCORE_WITH_IMM} == int{pollcore::kWithImm} && int{POLLCORE_WITH_INV} == int{pollcore::kWithInv} &&
              int{POLLCORE_BY_RUNTIME} == int{pollcore::kByRuntime} &&
              int{POLLCORE_FROM_RECV_QUEUE} == int{pollcore::kFromRecvQueue} &&
              POLLCORE_QP_INFO_BYTES == sizeof(QpInfo));

namespace {

thread_local std::string last_error;

int failed(const std::exception& why) noexcept {
    try {
        last_error = why.what();
    } catch (...) {
        last_error.clear();
    }
    const auto* error = dynamic_cast<const Error*>(&why);
    return error != nullptr                                       ? error->code().value()
           : dynamic_cast<const std::bad_alloc*>(&why) != nullptr ? ENOMEM
                                                                  : EIO;
}

template <class F>
int attempt(F&& call) noexcept {
    try {
        call();
        return 0;
    } catch (const std::exception& error) {
        return failed(error);
    }
}

template <class T, class F>
T* make(F&& call) noexcept {
    T* made = nullptr;
    (void)attempt([&] { made = new T{call()}; });
    return made;
}

constexpr std::uint32_t kRemoteAccess =
    POLLCORE_ACCESS_REMOTE_WRITE | POLLCORE_ACCESS_REMOTE_READ | POLLCORE_ACCESS_REMOTE_ATOMIC;

void require_access(std::uint32_t asked, std::uint32_t known) {
    if ((asked & ~known) != 0) {
        throw Error(EINVAL, "access " + std::to_string(asked) + " has flags that mean nothing here");
    }
}

pollcore::FlowControl flow_control_of(std::uint32_t number) {
    if (number >= std::size(pollcore::kFlowControls)) {
        throw Error(EINVAL, "there is no flow control " + std::to_string(number));
    }
    return pollcore::kFlowControls[number];
}

std::string text(const char* from) {
    return from != nullptr ? from : "";
}

// Both types are plain data of the same layout, as asserted above. The bytes are copied, because an object of one type
// must not be read as the other type.
WorkRequest request_of(const pollcore_work_request& from) noexcept {
    WorkRequest request;
    std::memcpy(static_cast<void*>(&request), &from, sizeof(request));
    request.ring_lap = 0;
    request.submitted_at = 0;
    return request;
}

}  // namespace

extern "C" {

const char* pollcore_error(void) {
    return last_error.c_str();
}
const char* pollcore_refusal_name(pollcore_refusal refusal) {
    constexpr Refusal kUnknown{0xff};
    return pollcore::refusal_name(refusal >= 0 && refusal < 0xff ? static_cast<Refusal>(refusal) : kUnknown).data();
}
const char* pollcore_status_name(uint8_t status) {
    return pollcore::status_name(static_cast<pollcore::Status>(status)).data();
}

pollcore_attachment* pollcore_attach(const char* path, const char* name, uint32_t timeout_ms) {
    return make<pollcore_attachment>([&] {
        pollcore::AttachOptions options{.name = text(name), .timeout = std::chrono::milliseconds(timeout_ms)};
        if (path != nullptr) {
            options.path = path;
        }
        return Attachment(options);
    });
}
void pollcore_detach(pollcore_attachment* attachment) {
    delete attachment;
}
int pollcore_lost(const pollcore_attachment* attachment) {
    return attachment->attachment.lost();
}
int pollcore_reattach(pollcore_attachment* attachment, uint32_t timeout_ms) {
    return attempt([&] { attachment->attachment.reattach(std::chrono::milliseconds(timeout_ms)); });
}

pollcore_session* pollcore_open_session(pollcore_attachment* attachment, const char* worker, uint32_t submission_slots,
                                        uint32_t completion_slots, int events) {
    return make<pollcore_session>([&] {
        return attachment->attachment.open_session({.worker = text(worker),
                                                    .submission_slots = submission_slots,
                                                    .completion_slots = completion_slots,
                                                    .events = events != 0});
    });
}
void pollcore_close_session(pollcore_session* session) {
    delete session;
}
pollcore_refusal pollcore_submit(pollcore_session* session, const pollcore_work_request* request) {
    return static_cast<pollcore_refusal>(session->session.try_submit(request_of(*request)));
}
size_t pollcore_submit_many(pollcore_session* session, const pollcore_work_request* requests, size_t count,
                            pollcore_refusal* refusal) {
    constexpr std::size_t kBatch = 16;
    WorkRequest batch[kBatch];
    std::size_t accepted = 0;
    Refusal why = Refusal::none;
    while (accepted < count && why == Refusal::none) {
        const std::size_t n = std::min(kBatch, count - accepted);
        for (std::size_t i = 0; i < n; ++i) {
            batch[i] = request_of(requests[accepted + i]);
        }
        const pollcore::Submitted submitted = session->session.try_submit({batch, n});
        accepted += submitted.accepted;
        why = submitted.refusal;
    }
    if (refusal != nullptr) {
        *refusal = static_cast<pollcore_refusal>(why);
    }
    return accepted;
}
pollcore_refusal pollcore_submit_inline(pollcore_session* session, const pollcore_work_request* request,
                                        const void* payload, size_t length) {
    return static_cast<pollcore_refusal>(
        session->session.try_submit_inline(request_of(*request), {static_cast<const std::byte*>(payload), length}));
}
size_t pollcore_poll(pollcore_session* session, pollcore_completion* completions, size_t count) {
    constexpr std::size_t kBatch = 16;
    Completion batch[kBatch];
    std::size_t taken = 0;
    while (taken < count) {
        const std::size_t n = session->session.poll({batch, std::min(kBatch, count - taken)});
        std::memcpy(completions + taken, batch, n * sizeof(Completion));
        taken += n;
        if (n < kBatch) {
            break;
        }
    }
    return taken;
}
int pollcore_wait(pollcore_session* session, uint64_t timeout_ns) {
    constexpr auto kMost = static_cast<std::uint64_t>(std::chrono::nanoseconds::max().count());
    return session->session.wait(std::chrono::nanoseconds(timeout_ns > kMost ? kMost : timeout_ns));
}
int pollcore_event_fd(const pollcore_session* session) {
    return session->session.event_fd();
}
int pollcore_arm(pollcore_session* session) {
    return session->session.arm();
}
uint64_t pollcore_in_flight(pollcore_session* session) {
    return session->session.figures().in_flight();
}

pollcore_region* pollcore_allocate(pollcore_attachment* attachment, size_t bytes, uint32_t access, const char* device) {
    return make<pollcore_region>([&] {
        require_access(access, POLLCORE_ACCESS_LOCAL_WRITE | kRemoteAccess);
        return attachment->attachment.allocate(bytes,
                                               {.local_write = (access & POLLCORE_ACCESS_LOCAL_WRITE) != 0,
                                                .remote_read = (access & POLLCORE_ACCESS_REMOTE_READ) != 0,
                                                .remote_write = (access & POLLCORE_ACCESS_REMOTE_WRITE) != 0,
                                                .remote_atomic = (access & POLLCORE_ACCESS_REMOTE_ATOMIC) != 0},
                                               text(device));
    });
}
void pollcore_free(pollcore_region* region) {
    delete region;
}
void* pollcore_data(const pollcore_region* region) {
    return region->region.data();
}
uint64_t pollcore_addr(const pollcore_region* region) {
    return region->region.addr();
}
uint32_t pollcore_lkey(const pollcore_region* region) {
    return region->region.lkey();
}
uint32_t pollcore_rkey(const pollcore_region* region) {
    return region->region.rkey();
}

pollcore_qp* pollcore_create_qp(pollcore_attachment* attachment, pollcore_session* session,
                                const pollcore_qp_options* options) {
    return make<pollcore_qp>([&] {
        require_access(options->remote_access, kRemoteAccess);
        return attachment->attachment.create_queue_pair(
            {.device = text(options->device),
             .shares = {{.session = &session->session, .send_depth = options->send_depth}},
             .recv_depth = options->recv_depth,
             .sges_max = options->sges_max != 0 ? options->sges_max : 1,
             .inline_max = options->inline_max,
             .remote_access = {.read = (options->remote_access & POLLCORE_ACCESS_REMOTE_READ) != 0,
                               .write = (options->remote_access & POLLCORE_ACCESS_REMOTE_WRITE) != 0,
                               .atomic = (options->remote_access & POLLCORE_ACCESS_REMOTE_ATOMIC) != 0},
             .flow = flow_control_of(options->flow),
             .coalesce_signals = options->coalesce_signals != 0});
    });
}
void pollcore_close_qp(pollcore_qp* qp) {
    delete qp;
}
pollcore_qp_handle pollcore_handle(const pollcore_qp* qp) {
    const QpHandle handle = qp->qp.handle();
    pollcore_qp_handle value = 0;
    static_assert(sizeof(value) == sizeof(handle));
    std::memcpy(&value, &handle, sizeof(value));
    return value;
}
int pollcore_connect(pollcore_qp* qp, const char* address, uint32_t timeout_ms) {
    return attempt([&] { (void)qp->qp.connect(text(address), {.timeout = std::chrono::milliseconds(timeout_ms)}); });
}
int pollcore_disconnect(pollcore_qp* qp) {
    return attempt([&] { qp->qp.disconnect(); });
}
int pollcore_reset(pollcore_qp* qp) {
    return attempt([&] { (void)qp->qp.reset(); });
}
int pollcore_qp_info(pollcore_qp* qp, void* info) {
    return attempt([&] {
        const QpInfo own = qp->qp.info();
        std::memcpy(info, &own, sizeof(own));
    });
}
int pollcore_connect_to(pollcore_qp* qp, const void* peer_info) {
    return attempt([&] {
        QpInfo peer;
        std::memcpy(static_cast<void*>(&peer), peer_info, sizeof(peer));
        qp->qp.connect(peer);
    });
}

pollcore_listener* pollcore_listen(pollcore_attachment* attachment, const char* address, const char* device) {
    return make<pollcore_listener>([&] { return attachment->attachment.listen(text(address), text(device)); });
}
void pollcore_close_listener(pollcore_listener* listener) {
    delete listener;
}
const char* pollcore_listener_address(const pollcore_listener* listener) {
    return listener->listener.address().c_str();
}
pollcore_request* pollcore_next_request(pollcore_listener* listener, uint32_t timeout_ms) {
    last_error.clear();
    pollcore_request* made = nullptr;
    (void)attempt([&] {
        if (auto request = listener->listener.next_request(std::chrono::milliseconds(timeout_ms))) {
            made = new pollcore_request{std::move(*request)};
        }
    });
    return made;
}
int pollcore_accept(pollcore_request* request, pollcore_qp* qp, uint32_t timeout_ms) {
    const std::unique_ptr<pollcore_request> owned(request);
    return attempt([&] { owned->request.accept(qp->qp, {.timeout = std::chrono::milliseconds(timeout_ms)}); });
}
void pollcore_reject(pollcore_request* request) {
    delete request;
}

}  // extern "C"
