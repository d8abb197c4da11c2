// Queue pairs that are driven by hand, with a peer that is a plain program of libibverbs: the queue pair number, the
// GID and the PSNs that the program tells its peer are those that the device has.
#include <cstring>
#include <memory>
#include <stdexcept>

#include "by_hand.hpp"

namespace pollcore::testing {
namespace {

struct Closed {
    void operator()(ibv_context* context) const { ibv_close_device(context); }
    void operator()(ibv_pd* pd) const { ibv_dealloc_pd(pd); }
    void operator()(ibv_cq* cq) const { ibv_destroy_cq(cq); }
    void operator()(ibv_qp* qp) const { ibv_destroy_qp(qp); }
    void operator()(ibv_mr* mr) const { ibv_dereg_mr(mr); }
};
template <class T>
using Owned = std::unique_ptr<T, Closed>;

/// Throws if `object` is null.
template <class T>
Owned<T> owned(T* object, const char* what) {
    if (object == nullptr) {
        throw std::runtime_error(std::string(what) + ": " + std::strerror(errno));
    }
    return Owned<T>(object);
}

Owned<ibv_context> open_device(const std::string& name) {
    int count = 0;
    ibv_device** devices = ibv_get_device_list(&count);
    ibv_context* context = nullptr;
    for (int i = 0; i < count; ++i) {
        if (name == ibv_get_device_name(devices[i])) {
            context = ibv_open_device(devices[i]);
        }
    }
    ibv_free_device_list(devices);
    return owned(context, "ibv_open_device");
}

class NativePeer : public ByHandFixture {
protected:
    static constexpr std::uint32_t kPsnOfPeer = 0xabcdef;

    /// Makes `a`, and the peer's queue pair of this type in INIT.
    void make(QpType type) {
        a = runtime.create_queue_pair(by_hand(session, type));
        ibv_qp_init_attr options{};
        options.send_cq = options.recv_cq = cq.get();
        options.cap = {
            .max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 1, .max_recv_sge = 1, .max_inline_data = 0};
        options.qp_type = static_cast<ibv_qp_type>(type);
        qp = owned(ibv_create_qp(pd.get(), &options), "ibv_create_qp");
        ibv_qp_attr to{};
        to.qp_state = IBV_QPS_INIT;
        to.port_num = 1;
        to.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
        to.qkey = kKey;
        move(to,
             IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | (type == QpType::ud ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS));
    }
    void move(ibv_qp_attr& to, int mask) { ASSERT_EQ(ibv_modify_qp(qp.get(), &to, mask), 0); }
    void connect(std::uint32_t rq_psn_of_peer) {
        a.modify(init());
        a.modify(rtr(qp->qp_num, kPsnOfPeer));
        QpAttributes last = rts(kPsnOfA);
        last.timeout = std::uint8_t{10};  // 4 ms
        last.retry_cnt = std::uint8_t{2};
        a.modify(last);
        const QpInfo info = a.info();
        ibv_qp_attr to{};
        to.qp_state = IBV_QPS_RTR;
        to.path_mtu = IBV_MTU_1024;
        to.dest_qp_num = info.qp_num;
        to.rq_psn = rq_psn_of_peer;
        to.max_dest_rd_atomic = 4;
        to.min_rnr_timer = 12;
        to.ah_attr.is_global = 1;
        to.ah_attr.port_num = 1;
        std::memcpy(to.ah_attr.grh.dgid.raw, info.gid.data(), info.gid.size());
        to.ah_attr.grh.sgid_index = static_cast<std::uint8_t>(own_gid().gid_index);
        to.ah_attr.grh.hop_limit = 64;
        move(to, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                     IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
        to.qp_state = IBV_QPS_RTS;
        to.sq_psn = kPsnOfPeer;
        to.timeout = 14;
        to.retry_cnt = to.rnr_retry = 7;
        to.max_rd_atomic = 4;
        move(to, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                     IBV_QP_MAX_QP_RD_ATOMIC);
    }
    [[nodiscard]] ibv_sge native_sge(std::uint32_t length, std::size_t at = 0) {
        return {.addr = reinterpret_cast<std::uintptr_t>(memory.data() + at), .length = length, .lkey = mr->lkey};
    }
    void post_recv(std::uint32_t length) {
        ibv_sge sge = native_sge(length);
        ibv_recv_wr wr{.wr_id = 1, .next = nullptr, .sg_list = &sge, .num_sge = 1};
        ibv_recv_wr* bad = nullptr;
        ASSERT_EQ(ibv_post_recv(qp.get(), &wr, &bad), 0);
    }
    void post_send(ibv_wr_opcode opcode, std::uint32_t length) {
        ibv_sge sge = native_sge(length);
        ibv_send_wr wr{};
        wr.sg_list = &sge;
        wr.num_sge = 1;
        wr.opcode = opcode;
        wr.send_flags = IBV_SEND_SIGNALED;
        wr.wr.rdma = {.remote_addr = remote.addr(), .rkey = remote.rkey()};
        ibv_send_wr* bad = nullptr;
        ASSERT_EQ(ibv_post_send(qp.get(), &wr, &bad), 0);
    }
    [[nodiscard]] ibv_wc poll() {
        ibv_wc wc{};
        until([&] { return ibv_poll_cq(cq.get(), 1, &wc) != 0; });
        return wc;
    }

    Owned<ibv_context> context = open_device(TestDevice::get().verbs_name);
    Owned<ibv_pd> pd = owned(ibv_alloc_pd(context.get()), "ibv_alloc_pd");
    Owned<ibv_cq> cq = owned(ibv_create_cq(context.get(), 64, nullptr, nullptr, 0), "ibv_create_cq");
    std::vector<std::byte> memory = std::vector<std::byte>(4096);
    Owned<ibv_mr> mr = owned(ibv_reg_mr(pd.get(), memory.data(), memory.size(),
                                        IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ),
                             "ibv_reg_mr");
    Owned<ibv_qp> qp;
};

TEST_F(NativePeer, ExchangesMessagesAndReachesMemory) {
    make(QpType::rc);
    connect(kPsnOfA);
    post_recv(64);
    submit(send(1, 64));
    EXPECT_EQ(await_one().status, Status::success);
    EXPECT_EQ(poll().status, IBV_WC_SUCCESS);
    EXPECT_EQ(std::memcmp(memory.data(), local.data(), 64), 0);

    WorkRequest receive = recv(2, 64);
    receive.qp = a.handle();
    submit(receive);
    post_send(IBV_WR_SEND, 64);
    EXPECT_EQ(await_one().status, Status::success);
    EXPECT_EQ(poll().status, IBV_WC_SUCCESS);
    EXPECT_EQ(std::memcmp(memory.data(), remote.data(), 64), 0);

    std::memset(memory.data(), 0x5a, memory.size());
    post_send(IBV_WR_RDMA_WRITE, 4096);
    EXPECT_EQ(poll().status, IBV_WC_SUCCESS);
    EXPECT_EQ(std::memcmp(memory.data(), remote.data(), 4096), 0);

    WorkRequest read = rdma(Opcode::rdma_read, 3, 4096);
    read.remote_addr = reinterpret_cast<std::uintptr_t>(memory.data());
    read.rkey = mr->rkey;
    submit(read);
    EXPECT_EQ(await_one().status, Status::success);
    EXPECT_EQ(std::memcmp(memory.data(), local.data(), 4096), 0);
}

TEST_F(NativePeer, ThatExpectsAnotherPsnTakesNothing) {
    make(QpType::rc);
    connect(kPsnOfA + 100);
    post_recv(64);
    submit(send(1, 64));
    EXPECT_EQ(await_one().status, Status::retry_exc_err);
}

TEST_F(NativePeer, SeesTheSenderOfADatagram) {
    make(QpType::ud);
    a.modify(
        {.qp_state = VerbsQpState::init, .pkey_index = std::uint16_t{0}, .port_num = std::uint8_t{1}, .qkey = kKey});
    a.modify({.qp_state = VerbsQpState::rtr});
    a.modify({.qp_state = VerbsQpState::rts, .sq_psn = kPsnOfA});
    ibv_qp_attr to{};
    to.qp_state = IBV_QPS_RTR;
    move(to, IBV_QP_STATE);
    to.qp_state = IBV_QPS_RTS;
    to.sq_psn = kPsnOfPeer;
    move(to, IBV_QP_STATE | IBV_QP_SQ_PSN);
    post_recv(512);

    QpInfo peer = a.info();  // the peer is at the same port
    peer.qp_num = qp->qp_num;
    const AddressHandle there = runtime.create_address_handle(peer);
    WorkRequest datagram = send(1, 64);
    datagram.ud = {there.handle(), qp->qp_num};
    datagram.remote_qkey = kKey;
    submit(datagram);
    EXPECT_EQ(await_one().status, Status::success);
    const ibv_wc wc = poll();
    EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
    EXPECT_EQ(wc.src_qp, a.qp_num());
    EXPECT_EQ(std::memcmp(memory.data() + kGrhBytes, local.data(), 64), 0);
}

}  // namespace
}  // namespace pollcore::testing
