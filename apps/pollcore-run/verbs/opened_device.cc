#include "opened_device.hpp"

#include <cerrno>

#include "served_cq.hpp"
#include "served_device.hpp"
#include "served_memory.hpp"
#include "served_posts.hpp"
#include "served_qp.hpp"
#include "unserved.hpp"

namespace pollcore::served {
namespace {

// Inline verbs of a context that belongs to this process's parent.
int no_post_send(ibv_qp*, ibv_send_wr* wr, ibv_send_wr** bad) noexcept {
    return *bad = wr, EPERM;
}
int no_post_recv(ibv_qp*, ibv_recv_wr* wr, ibv_recv_wr** bad) noexcept {
    return *bad = wr, EPERM;
}
int no_post_srq_recv(ibv_srq*, ibv_recv_wr* wr, ibv_recv_wr** bad) noexcept {
    return *bad = wr, EPERM;
}
int no_poll_cq(ibv_cq*, int, ibv_wc*) noexcept {
    return -EPERM;
}
int no_req_notify_cq(ibv_cq*, int) noexcept {
    return EPERM;
}

}  // namespace

bool is_ours(const ibv_context* context) noexcept {
    return context->ops.poll_cq == poll_cq || context->ops.poll_cq == no_poll_cq;
}

Opened& of(ibv_context* context) noexcept {
    return *reinterpret_cast<Opened*>(reinterpret_cast<char*>(context) - offsetof(verbs_context, context));
}

void require_own_process(const ibv_context* context) {
    if (context->ops.poll_cq == no_poll_cq) {
        throw Error(EPERM, "the context belongs to the process that has forked this one");
    }
}

std::mutex& objects_mutex() noexcept {
    static std::mutex& mutex = *new std::mutex;
    return mutex;
}
std::vector<Cq*>& all_cqs() noexcept {
    static auto& all = *new std::vector<Cq*>;
    return all;
}
std::vector<Srq*>& all_srqs() noexcept {
    static auto& all = *new std::vector<Srq*>;
    return all;
}
QueuePairTable& queue_pairs() noexcept {
    static QueuePairTable table;  // zeros, which take no memory until they are written
    return table;
}

void install(verbs_context& verbs) noexcept {
    verbs.sz = sizeof verbs;
    verbs.query_port = query_port;
    verbs.query_device_ex = query_device_ex;
    verbs.query_rt_values = query_rt_values;
    verbs.alloc_td = alloc_td;
    verbs.dealloc_td = dealloc_td;
    verbs.alloc_parent_domain = alloc_parent_domain;
    verbs.create_cq_ex = create_cq_ex;
    verbs.modify_cq = modify_cq;
    verbs.create_qp_ex = create_qp_ex;
    verbs.create_srq_ex = create_srq_ex;
    ibv_context_ops& ops = verbs.context.ops;
    ops.poll_cq = poll_cq;
    ops.req_notify_cq = req_notify_cq;
    ops.post_srq_recv = post_srq_recv;
    ops.post_send = post_send;
    ops.post_recv = post_recv;
    install_unserved(verbs);
    // Tells the inline verbs that the structure is an extended one.
    verbs.context.abi_compat = __VERBS_ABI_IS_EXTENDED;
}

void uninstall(verbs_context& verbs) noexcept {
    ibv_context_ops& ops = verbs.context.ops;
    ops.poll_cq = no_poll_cq;
    ops.req_notify_cq = no_req_notify_cq;
    ops.post_srq_recv = no_post_srq_recv;
    ops.post_send = no_post_send;
    ops.post_recv = no_post_recv;
}

}  // namespace pollcore::served
