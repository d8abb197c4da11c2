#include "hostile_objects.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

namespace pollcore::test::hostile {

void fail(const char* what) {
    std::printf("failed: %s (%s)\n", what, std::strerror(errno));
    std::fflush(stdout);
    ::_exit(kFailed);
}

ibv_context* open_device() {
    int count = 0;
    ibv_device** const list = ibv_get_device_list(&count);
    ibv_context* const context = list == nullptr || count == 0 ? nullptr : ibv_open_device(list[0]);
    if (list != nullptr) {
        ibv_free_device_list(list);
    }
    return context;
}

ibv_qp* make_qp(const Objects& all, ibv_qp_type type, ibv_srq* srq) {
    ibv_qp_init_attr init{};
    init.send_cq = init.recv_cq = all.cq;
    init.srq = srq;
    init.cap = {
        .max_send_wr = kDepth, .max_recv_wr = kDepth, .max_send_sge = 2, .max_recv_sge = 2, .max_inline_data = 64};
    init.qp_type = type;
    return ibv_create_qp(all.pd, &init);
}

int advance(const Objects& all, ibv_qp* qp, std::uint32_t peer) {
    const bool is_ud = qp->qp_type == IBV_QPT_UD;
    ibv_qp_attr attr{};
    attr.qp_state = IBV_QPS_INIT;
    attr.port_num = 1;
    attr.qkey = 1;
    attr.qp_access_flags = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;
    attr.path_mtu = IBV_MTU_1024;
    attr.dest_qp_num = peer;
    attr.max_dest_rd_atomic = attr.max_rd_atomic = 4;
    attr.min_rnr_timer = 1;
    attr.timeout = 14;
    attr.retry_cnt = attr.rnr_retry = 7;
    attr.ah_attr.is_global = 1;
    attr.ah_attr.port_num = 1;
    attr.ah_attr.grh.dgid = all.gid;
    attr.ah_attr.grh.hop_limit = 64;
    int error = ibv_modify_qp(
        qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | (is_ud ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS));
    attr.qp_state = IBV_QPS_RTR;
    error |= ibv_modify_qp(qp, &attr,
                           is_ud ? int{IBV_QP_STATE}
                                 : IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                       IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
    attr.qp_state = IBV_QPS_RTS;
    error |= ibv_modify_qp(qp, &attr,
                           is_ud ? IBV_QP_STATE | IBV_QP_SQ_PSN
                                 : IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                                       IBV_QP_MAX_QP_RD_ATOMIC);
    return error;
}

ibv_mr* register_all(const Objects& all) {
    return ibv_reg_mr(
        all.pd, all.memory, kBytes,
        IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC);
}

char* pages(std::size_t bytes) {
    void* const all = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return all == MAP_FAILED ? nullptr : static_cast<char*>(all);
}

namespace {

/// The previous program's objects count towards the user's limit until the daemon has ended them. So this repeats the
/// call for two seconds while the limit is reached.
template <class Create>
auto once_there_is_room(Create create) {
    auto* made = create();
    for (int turn = 0; turn < 2000 && made == nullptr && errno == EDQUOT; ++turn) {
        (void)::usleep(1000);
        made = create();
    }
    return made;
}

}  // namespace

Objects make() {
    Objects all;
    all.context = open_device();
    if (all.context == nullptr) {
        fail("there is no device");
    }
    all.pd = once_there_is_room([&] { return ibv_alloc_pd(all.context); });
    all.cq = once_there_is_room([&] { return ibv_create_cq(all.context, 4 * kDepth, nullptr, nullptr, 0); });
    all.memory = pages(kBytes);
    if (all.pd == nullptr || all.cq == nullptr || ibv_query_gid(all.context, 1, 0, &all.gid) != 0 ||
        (all.mr = once_there_is_room([&] { return register_all(all); })) == nullptr) {
        fail("the first objects cannot be made");
    }
    ibv_srq_init_attr srq{};
    srq.attr = {.max_wr = kDepth, .max_sge = 1, .srq_limit = 0};
    all.srq = once_there_is_room([&] { return ibv_create_srq(all.pd, &srq); });
    all.a = once_there_is_room([&] { return make_qp(all, IBV_QPT_RC); });
    all.b = once_there_is_room([&] { return make_qp(all, IBV_QPT_RC); });
    all.datagrams = once_there_is_room([&] { return make_qp(all, IBV_QPT_UD, all.srq); });
    ibv_ah_attr way{};
    way.is_global = 1;
    way.grh.dgid = all.gid;
    way.port_num = 1;
    all.ah = once_there_is_room([&] { return ibv_create_ah(all.pd, &way); });
    if (all.srq == nullptr || all.a == nullptr || all.b == nullptr || all.datagrams == nullptr || all.ah == nullptr ||
        advance(all, all.a, all.b->qp_num) != 0 || advance(all, all.b, all.a->qp_num) != 0 ||
        advance(all, all.datagrams, 0) != 0) {
        fail("the objects cannot be made");
    }
    return all;
}

void end(Objects& all) {
    (void)ibv_destroy_qp(all.a);
    (void)ibv_destroy_qp(all.b);
    (void)ibv_destroy_qp(all.datagrams);
    (void)ibv_destroy_srq(all.srq);
    (void)ibv_destroy_ah(all.ah);
    (void)ibv_dereg_mr(all.mr);
    (void)ibv_destroy_cq(all.cq);
    (void)ibv_dealloc_pd(all.pd);
}

int send(const Objects& all, ibv_qp* qp, std::size_t offset, std::uint32_t bytes, ibv_wr_opcode opcode) {
    ibv_sge list{reinterpret_cast<std::uintptr_t>(all.memory + offset), bytes, all.mr->lkey};
    ibv_send_wr wr{};
    wr.wr_id = g_random();
    wr.sg_list = &list;
    wr.num_sge = 1;
    wr.opcode = opcode;
    wr.send_flags = IBV_SEND_SIGNALED;
    if (qp == all.datagrams) {
        wr.wr.ud = {.ah = all.ah, .remote_qpn = all.datagrams->qp_num, .remote_qkey = 1};
    } else {
        wr.wr.rdma = {.remote_addr = reinterpret_cast<std::uintptr_t>(all.memory + kBytes / 2), .rkey = all.mr->rkey};
    }
    ibv_send_wr* bad = nullptr;
    return ibv_post_send(qp, &wr, &bad);
}

int receive(const Objects& all, ibv_qp* qp, std::size_t offset, std::uint32_t bytes) {
    ibv_sge list{reinterpret_cast<std::uintptr_t>(all.memory + offset), bytes, all.mr->lkey};
    ibv_recv_wr wr{.wr_id = g_random(), .next = nullptr, .sg_list = &list, .num_sge = 1};
    ibv_recv_wr* bad = nullptr;
    return ibv_post_recv(qp, &wr, &bad);
}

int receive_shared(const Objects& all) {
    ibv_sge list{reinterpret_cast<std::uintptr_t>(all.memory), 256, all.mr->lkey};
    ibv_recv_wr wr{.wr_id = g_random(), .next = nullptr, .sg_list = &list, .num_sge = 1};
    ibv_recv_wr* bad = nullptr;
    return ibv_post_srq_recv(all.srq, &wr, &bad);
}

int poll(ibv_cq* cq) {
    ibv_wc wc[16];
    return ibv_poll_cq(cq, 16, wc);
}

void traffic(const Objects& all, int turns) {
    for (int i = 0; i < turns; ++i) {
        (void)receive(all, all.b, 1024, 64);
        (void)send(all, all.a, 0, 64, pick(2) == 0 ? IBV_WR_SEND : IBV_WR_RDMA_WRITE);
        (void)receive_shared(all);
        (void)send(all, all.datagrams, 0, 64);
        (void)poll(all.cq);
    }
}

}  // namespace pollcore::test::hostile
