// An RC queue pair of plain libibverbs, with its own context, as a peer of pollcore's queue pairs.
#pragma once

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include <infiniband/verbs.h>

#include "give_way.hpp"
#include "pollcore/queue_pair.hpp"

namespace pollcore::test {

struct VerbsCloser {
    void operator()(ibv_context* context) const { ibv_close_device(context); }
    void operator()(ibv_pd* pd) const { ibv_dealloc_pd(pd); }
    void operator()(ibv_cq* cq) const { ibv_destroy_cq(cq); }
    void operator()(ibv_qp* qp) const { ibv_destroy_qp(qp); }
    void operator()(ibv_mr* mr) const { ibv_dereg_mr(mr); }
};
template <class T>
using OwnedVerbs = std::unique_ptr<T, VerbsCloser>;

/// Throws if `object` is null.
template <class T>
OwnedVerbs<T> owned_verbs(T* object, const char* what) {
    if (object == nullptr) {
        throw std::runtime_error(std::string(what) + ": " + std::strerror(errno));
    }
    return OwnedVerbs<T>(object);
}

inline OwnedVerbs<ibv_context> open_verbs_device(const std::string& name) {
    int count = 0;
    ibv_device** devices = ibv_get_device_list(&count);
    ibv_context* context = nullptr;
    for (int i = 0; i < count; ++i) {
        if (name == ibv_get_device_name(devices[i])) {
            context = ibv_open_device(devices[i]);
        }
    }
    ibv_free_device_list(devices);
    return owned_verbs(context, "ibv_open_device");
}

class NativeQueuePair {
public:
    static constexpr std::uint32_t kPsn = 0xabcdef;

    /// Makes the queue pair in INIT. `qkey` only counts for UD.
    NativeQueuePair(const std::string& device, QpType type, std::uint32_t qkey = 0)
        : context_(open_verbs_device(device)),
          pd_(owned_verbs(ibv_alloc_pd(context_.get()), "ibv_alloc_pd")),
          cq_(owned_verbs(ibv_create_cq(context_.get(), 64, nullptr, nullptr, 0), "ibv_create_cq")),
          mr_(owned_verbs(ibv_reg_mr(pd_.get(), memory.data(), memory.size(),
                                     IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ),
                          "ibv_reg_mr")) {
        ibv_qp_init_attr options{};
        options.send_cq = options.recv_cq = cq_.get();
        options.cap.max_send_wr = options.cap.max_recv_wr = 16;
        options.cap.max_send_sge = options.cap.max_recv_sge = 1;
        options.qp_type = static_cast<ibv_qp_type>(type);
        qp_ = owned_verbs(ibv_create_qp(pd_.get(), &options), "ibv_create_qp");
        ibv_qp_attr to{};
        to.qp_state = IBV_QPS_INIT;
        to.port_num = 1;
        to.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
        to.qkey = qkey;
        modify(to, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
                       (type == QpType::ud ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS));
    }

    [[nodiscard]] std::uint32_t qp_num() const { return qp_->qp_num; }
    [[nodiscard]] std::uint32_t rkey() const { return mr_->rkey; }
    /// What the other end connects to. Both ends are at one port.
    [[nodiscard]] QpInfo info(const QpInfo& other) const {
        QpInfo mine = other;
        mine.qp_num = qp_num();
        mine.psn = kPsn;
        return mine;
    }
    /// RC: connects to `peer`, whose first PSN is peer.psn. `sgid_index` is the index of the GID that both ends have.
    void connect(const QpInfo& peer, std::uint8_t sgid_index) {
        ibv_qp_attr to{};
        to.qp_state = IBV_QPS_RTR;
        to.path_mtu = IBV_MTU_1024;
        to.dest_qp_num = peer.qp_num;
        to.rq_psn = peer.psn;
        to.max_dest_rd_atomic = 4;
        to.min_rnr_timer = 12;
        to.ah_attr.is_global = 1;
        to.ah_attr.port_num = 1;
        std::memcpy(to.ah_attr.grh.dgid.raw, peer.gid.data(), peer.gid.size());
        to.ah_attr.grh.sgid_index = sgid_index;
        to.ah_attr.grh.hop_limit = 64;
        modify(to, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                       IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
        to.qp_state = IBV_QPS_RTS;
        to.sq_psn = kPsn;
        to.timeout = 10;  // 4 ms
        to.retry_cnt = 3;
        to.rnr_retry = 7;
        to.max_rd_atomic = 4;
        modify(to, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                       IBV_QP_MAX_QP_RD_ATOMIC);
    }
    /// UD: from INIT to RTS.
    void activate() {
        ibv_qp_attr to{};
        to.qp_state = IBV_QPS_RTR;
        modify(to, IBV_QP_STATE);
        to.qp_state = IBV_QPS_RTS;
        to.sq_psn = kPsn;
        modify(to, IBV_QP_STATE | IBV_QP_SQ_PSN);
    }
    void post_recv(std::uint32_t length) {
        ibv_sge sge = sge_of(length);
        ibv_recv_wr wr{.wr_id = 1, .next = nullptr, .sg_list = &sge, .num_sge = 1};
        ibv_recv_wr* bad = nullptr;
        require(ibv_post_recv(qp_.get(), &wr, &bad), "ibv_post_recv");
    }
    void post_send(ibv_wr_opcode opcode, std::uint32_t length, std::uint64_t remote_addr = 0, std::uint32_t rkey = 0) {
        ibv_sge sge = sge_of(length);
        ibv_send_wr wr{};
        wr.sg_list = &sge;
        wr.num_sge = 1;
        wr.opcode = opcode;
        wr.send_flags = IBV_SEND_SIGNALED;
        wr.wr.rdma = {.remote_addr = remote_addr, .rkey = rkey};
        ibv_send_wr* bad = nullptr;
        require(ibv_post_send(qp_.get(), &wr, &bad), "ibv_post_send");
    }
    [[nodiscard]] ibv_wc poll() {
        ibv_wc wc{};
        while (ibv_poll_cq(cq_.get(), 1, &wc) == 0) {
            give_way();
        }
        return wc;
    }

    std::vector<std::byte> memory = std::vector<std::byte>(4096);

private:
    static void require(int error, const char* what) {
        if (error != 0) {
            throw std::runtime_error(std::string(what) + ": " + std::strerror(error));
        }
    }
    void modify(ibv_qp_attr& to, int mask) { require(ibv_modify_qp(qp_.get(), &to, mask), "ibv_modify_qp"); }
    [[nodiscard]] ibv_sge sge_of(std::uint32_t length) {
        return {.addr = reinterpret_cast<std::uintptr_t>(memory.data()), .length = length, .lkey = mr_->lkey};
    }

    OwnedVerbs<ibv_context> context_;
    OwnedVerbs<ibv_pd> pd_;
    OwnedVerbs<ibv_cq> cq_;
    OwnedVerbs<ibv_mr> mr_;
    OwnedVerbs<ibv_qp> qp_;
};

}  // namespace pollcore::test
