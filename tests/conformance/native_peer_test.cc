// Queue pairs that are driven by hand, with a peer that is a plain program of libibverbs: the queue pair number, the
// GID and the PSNs that the program tells its peer are those that the device has.
#include <cstring>
#include <memory>

#include "by_hand.hpp"
#include "native_queue_pair.hpp"

namespace pollcore::testing {
namespace {

class NativePeer : public ByHandFixture {
protected:
    using Peer = test::NativeQueuePair;

    [[nodiscard]] static std::unique_ptr<Peer> make_peer(QpType type) {
        return std::make_unique<Peer>(TestDevice::get().verbs_name, type, kKey);
    }
    /// Connects `a` and the peer, which expects this PSN.
    void connect(std::uint32_t rq_psn_of_peer) {
        a = runtime.create_queue_pair(by_hand(session));
        peer = make_peer(QpType::rc);
        a.modify(init());
        a.modify(rtr(peer->qp_num(), Peer::kPsn));
        QpAttributes last = rts(kPsnOfA);
        last.timeout = std::uint8_t{10};  // 4 ms
        last.retry_cnt = std::uint8_t{2};
        a.modify(last);
        QpInfo info = a.info();
        EXPECT_EQ(info.psn, kPsnOfA);
        info.psn = rq_psn_of_peer;
        peer->connect(info, static_cast<std::uint8_t>(own_gid().gid_index));
    }

    std::unique_ptr<Peer> peer;
};

TEST_F(NativePeer, ExchangesMessagesAndReachesMemory) {
    connect(kPsnOfA);
    peer->post_recv(64);
    submit(send(1, 64));
    EXPECT_EQ(await_one().status, Status::success);
    EXPECT_EQ(peer->poll().status, IBV_WC_SUCCESS);
    EXPECT_EQ(std::memcmp(peer->memory.data(), local.data(), 64), 0);

    WorkRequest receive = recv(2, 64);
    receive.qp = a.handle();
    submit(receive);
    peer->post_send(IBV_WR_SEND, 64);
    EXPECT_EQ(await_one().status, Status::success);
    EXPECT_EQ(peer->poll().status, IBV_WC_SUCCESS);
    EXPECT_EQ(std::memcmp(peer->memory.data(), remote.data(), 64), 0);

    std::memset(peer->memory.data(), 0x5a, peer->memory.size());
    peer->post_send(IBV_WR_RDMA_WRITE, 4096, remote.addr(), remote.rkey());
    EXPECT_EQ(peer->poll().status, IBV_WC_SUCCESS);
    EXPECT_EQ(std::memcmp(peer->memory.data(), remote.data(), 4096), 0);

    WorkRequest read = rdma(Opcode::rdma_read, 3, 4096);
    read.remote_addr = reinterpret_cast<std::uintptr_t>(peer->memory.data());
    read.rkey = peer->rkey();
    submit(read);
    EXPECT_EQ(await_one().status, Status::success);
    EXPECT_EQ(std::memcmp(peer->memory.data(), local.data(), 4096), 0);
}

TEST_F(NativePeer, ThatExpectsAnotherPsnTakesNothing) {
    connect(kPsnOfA + 100);
    peer->post_recv(64);
    submit(send(1, 64));
    EXPECT_EQ(await_one().status, Status::retry_exc_err);
}

TEST_F(NativePeer, SeesTheSenderOfADatagram) {
    a = runtime.create_queue_pair(by_hand(session, QpType::ud));
    peer = make_peer(QpType::ud);
    a.modify(
        {.qp_state = VerbsQpState::init, .pkey_index = std::uint16_t{0}, .port_num = std::uint8_t{1}, .qkey = kKey});
    a.modify({.qp_state = VerbsQpState::rtr});
    a.modify({.qp_state = VerbsQpState::rts, .sq_psn = kPsnOfA});
    peer->activate();
    peer->post_recv(512);

    const AddressHandle there = runtime.create_address_handle(peer->info(a.info()));
    WorkRequest datagram = send(1, 64);
    datagram.ud = {there.handle(), peer->qp_num()};
    datagram.remote_qkey = kKey;
    submit(datagram);
    EXPECT_EQ(await_one().status, Status::success);
    const ibv_wc wc = peer->poll();
    EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
    EXPECT_EQ(wc.src_qp, a.qp_num());
    EXPECT_EQ(std::memcmp(peer->memory.data() + kGrhBytes, local.data(), 64), 0);
}

}  // namespace
}  // namespace pollcore::testing
