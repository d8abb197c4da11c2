// Tests the operations through libibverbs: the bytes that arrive, and the fields of the completions.
#include <endian.h>

#include <array>
#include <cstdlib>

#include "verbs_ends.hpp"

namespace mlx5_model {
namespace {

TEST(Transfer, ASendArrives) {
    Pair pair;
    pair.here.write(0, "hello, model");
    ASSERT_EQ(pair.there.post_receive(21, {pair.there.part(100, 50)}), 0);
    ASSERT_EQ(pair.here.post(IBV_WR_SEND, 11, {pair.here.part(0, 12)}), 0);
    EXPECT_FALSE(End::poll(pair.here.send_cq)) << "nothing moves by itself";
    EXPECT_EQ(mlx5_model_serve(pair.there.number(), 10), 0) << "it has nothing to send";
    EXPECT_EQ(mlx5_model_serve(pair.here.number(), 10), 1);
    const ibv_wc sent = pair.here.sent();
    EXPECT_EQ(sent.status, IBV_WC_SUCCESS);
    EXPECT_EQ(sent.opcode, IBV_WC_SEND);
    EXPECT_EQ(sent.wr_id, 11u);
    EXPECT_EQ(sent.qp_num, pair.here.number());
    const ibv_wc received = pair.there.received();
    EXPECT_EQ(received.status, IBV_WC_SUCCESS);
    EXPECT_EQ(received.opcode, IBV_WC_RECV);
    EXPECT_EQ(received.wr_id, 21u);
    EXPECT_EQ(received.byte_len, 12u);
    EXPECT_EQ(received.qp_num, pair.there.number());
    EXPECT_EQ(received.src_qp, pair.here.number());
    EXPECT_EQ(received.wc_flags, 0u);
    EXPECT_EQ(pair.there.text(100, 13), std::string("hello, model\0", 13));
}

TEST(Transfer, ASendBringsItsImmediate) {
    Pair pair;
    ASSERT_EQ(pair.there.post_receive(1, {pair.there.part(0, 16)}), 0);
    ibv_send_wr request{};
    request.imm_data = htobe32(0x12345678);
    ASSERT_EQ(pair.here.post(IBV_WR_SEND_WITH_IMM, 2, {pair.here.part(0, 4)}, request), 0);
    EXPECT_EQ(pair.here.sent().opcode, IBV_WC_SEND);
    const ibv_wc received = pair.there.received();
    EXPECT_EQ(received.opcode, IBV_WC_RECV);
    EXPECT_EQ(received.wc_flags, static_cast<unsigned>(IBV_WC_WITH_IMM));
    EXPECT_EQ(received.imm_data, htobe32(0x12345678));
}

TEST(Transfer, AWriteIsSeenByNobody) {
    Pair pair;
    pair.here.write(0, "written");
    ASSERT_EQ(pair.here.post(IBV_WR_RDMA_WRITE, 3, {pair.here.part(0, 7)}, to_memory(pair.there, 200)), 0);
    const ibv_wc sent = pair.here.sent();
    EXPECT_EQ(sent.status, IBV_WC_SUCCESS);
    EXPECT_EQ(sent.opcode, IBV_WC_RDMA_WRITE);
    EXPECT_EQ(pair.there.text(200, 7), "written");
    EXPECT_FALSE(End::poll(pair.there.recv_cq));
}

TEST(Transfer, AWriteWithImmediateTakesAReceive) {
    Pair pair;
    pair.here.write(0, "written");
    ASSERT_EQ(pair.there.post_receive(5, {}), 0);
    ibv_send_wr request = to_memory(pair.there, 300);
    request.imm_data = htobe32(9);
    ASSERT_EQ(pair.here.post(IBV_WR_RDMA_WRITE_WITH_IMM, 4, {pair.here.part(0, 7)}, request), 0);
    EXPECT_EQ(pair.here.sent().opcode, IBV_WC_RDMA_WRITE);
    const ibv_wc received = pair.there.received();
    EXPECT_EQ(received.opcode, IBV_WC_RECV_RDMA_WITH_IMM);
    EXPECT_EQ(received.wr_id, 5u);
    EXPECT_EQ(received.byte_len, 7u);
    EXPECT_EQ(received.imm_data, htobe32(9));
    EXPECT_EQ(pair.there.text(300, 7), "written");
}

TEST(Transfer, AReadFetches) {
    for (const std::uint32_t length : {1u, 32u, 33u, 5000u}) {
        Pair pair;
        const std::string text(length, 'r');
        pair.there.write(8, text);
        ASSERT_EQ(pair.here.post(IBV_WR_RDMA_READ, 6, {pair.here.part(100, length)}, to_memory(pair.there, 8)), 0);
        const ibv_wc sent = pair.here.sent();
        EXPECT_EQ(sent.status, IBV_WC_SUCCESS);
        EXPECT_EQ(sent.opcode, IBV_WC_RDMA_READ);
        EXPECT_EQ(sent.byte_len, length);
        EXPECT_EQ(pair.here.text(100, length + 1), text + '\0');
    }
}

TEST(Transfer, AtomicsSayWhatWasThere) {
    Pair pair;
    std::uint64_t& target = pair.there.memory[10];
    std::uint64_t& found = pair.here.memory[3];
    target = 40;
    ASSERT_EQ(pair.here.post(IBV_WR_ATOMIC_FETCH_AND_ADD, 1, {pair.here.part(24, 8)}, atomic_on(pair.there, 80, 2)), 0);
    ibv_wc sent = pair.here.sent();
    EXPECT_EQ(sent.opcode, IBV_WC_FETCH_ADD);
    EXPECT_EQ(sent.byte_len, 8u);
    EXPECT_EQ(found, 40u);
    EXPECT_EQ(target, 42u);
    ASSERT_EQ(pair.here.post(IBV_WR_ATOMIC_CMP_AND_SWP, 2, {pair.here.part(24, 8)}, atomic_on(pair.there, 80, 41, 7)),
              0);
    sent = pair.here.sent();
    EXPECT_EQ(sent.opcode, IBV_WC_COMP_SWAP);
    EXPECT_EQ(found, 42u);
    EXPECT_EQ(target, 42u) << "it is not 41";
    ASSERT_EQ(pair.here.post(IBV_WR_ATOMIC_CMP_AND_SWP, 3, {pair.here.part(24, 8)}, atomic_on(pair.there, 80, 42, 7)),
              0);
    (void)pair.here.sent();
    EXPECT_EQ(found, 42u);
    EXPECT_EQ(target, 7u);
}

TEST(Transfer, ManyPartsAreOne) {
    for (const bool in_cqe : {true, false}) {
        Options options;
        options.payload_in_cqe = in_cqe;
        Pair pair(options);
        pair.here.write(0, "one, two, three");
        ASSERT_EQ(pair.there.post_receive(1, {pair.there.part(0, 2), pair.there.part(10, 3), pair.there.part(20, 30)}),
                  0);
        ASSERT_EQ(pair.here.post(IBV_WR_SEND, 1, {pair.here.part(0, 5), pair.here.part(5, 5), pair.here.part(10, 5)}),
                  0);
        EXPECT_EQ(pair.here.sent().status, IBV_WC_SUCCESS);
        EXPECT_EQ(pair.there.received().byte_len, 15u);
        EXPECT_EQ(pair.there.text(0, 3), std::string("on\0", 3));
        EXPECT_EQ(pair.there.text(10, 4), std::string("e, \0", 4));
        EXPECT_EQ(pair.there.text(20, 11), std::string("two, three\0", 11));
    }
}

TEST(Transfer, NothingIsAMessageToo) {
    Pair pair;
    ASSERT_EQ(pair.there.post_receive(1, {}), 0);
    ASSERT_EQ(pair.here.post(IBV_WR_SEND, 1, {}), 0);
    EXPECT_EQ(pair.here.sent().status, IBV_WC_SUCCESS);
    EXPECT_EQ(pair.there.received().byte_len, 0u);
    ASSERT_EQ(pair.here.post(IBV_WR_RDMA_WRITE, 2, {}, ibv_send_wr{}), 0);
    EXPECT_EQ(pair.here.sent().status, IBV_WC_SUCCESS) << "a key is not looked at for no bytes";
}

// The CQE holds small payload. libmlx5 copies the payload to memory when the CQE is polled.
TEST(Transfer, SmallPayloadComesByTheCqeWhereTheQueuePairHasThat) {
    for (const bool in_cqe : {true, false}) {
        for (const std::uint32_t length : {1u, 32u, 33u}) {
            Options options;
            options.payload_in_cqe = in_cqe;
            Pair pair(options);
            const std::string text(length, 'p');
            pair.here.write(0, text);
            ASSERT_EQ(pair.there.post_receive(1, {pair.there.part(0, 64)}), 0);
            ASSERT_EQ(pair.here.post(IBV_WR_SEND, 1, {pair.here.part(0, length)}), 0);
            mlx5_model_step(1);
            EXPECT_EQ(pair.there.text(0, 1)[0] == 'p', !in_cqe || length > 32) << length;
            EXPECT_EQ(pair.there.received().status, IBV_WC_SUCCESS);
            EXPECT_EQ(pair.there.text(0, length + 1), text + '\0');
            EXPECT_EQ(pair.here.sent().status, IBV_WC_SUCCESS);
        }
    }
}

TEST(Transfer, ALongCqeBringsTwiceAsMuch) {
    for (const std::uint32_t length : {1u, 32u, 33u, 64u, 65u}) {
        Options options;
        options.cqe_bytes = 128;
        options.cqes = 3;
        Pair pair(options);
        for (int lap = 0; lap < 10; ++lap) {
            const std::string text(length, static_cast<char>('a' + lap));
            pair.here.write(0, text);
            ASSERT_EQ(pair.there.post_receive(1, {pair.there.part(0, 40), pair.there.part(40, 40)}), 0);
            ASSERT_EQ(pair.here.post(IBV_WR_SEND, 1, {pair.here.part(0, length)}), 0);
            mlx5_model_step(1);
            EXPECT_EQ(pair.there.text(0, 1) == text.substr(0, 1), length > 64) << length;
            EXPECT_EQ(pair.there.received().byte_len, length);
            EXPECT_EQ(pair.there.text(0, length), text);
            EXPECT_EQ(pair.here.sent().status, IBV_WC_SUCCESS);
        }
    }
}

TEST(Transfer, SmallAnswersComeByTheCqeWhereEachSendHasOne) {
    for (const bool signal_all : {true, false}) {
        Options options;
        options.signal_all = signal_all;
        Pair pair(options);
        pair.there.write(0, "answer");
        ASSERT_EQ(pair.here.post(IBV_WR_RDMA_READ, 1, {pair.here.part(0, 6)}, to_memory(pair.there, 0)), 0);
        mlx5_model_step(1);
        EXPECT_EQ(pair.here.text(0, 1)[0] == 'a', !signal_all);
        EXPECT_EQ(pair.here.sent().status, IBV_WC_SUCCESS);
        EXPECT_EQ(pair.here.text(0, 6), "answer");
        pair.there.memory[8] = 5;
        ASSERT_EQ(
            pair.here.post(IBV_WR_ATOMIC_FETCH_AND_ADD, 1, {pair.here.part(128, 8)}, atomic_on(pair.there, 64, 1)), 0);
        EXPECT_EQ(pair.here.sent().status, IBV_WC_SUCCESS);
        EXPECT_EQ(pair.here.memory[16], 5u);
    }
}

TEST(Transfer, InlineDataIsTakenWhenItIsPosted) {
    Options options;
    options.inline_bytes = 200;
    Pair pair(options);
    ibv_send_wr request{};
    request.send_flags = IBV_SEND_INLINE;
    for (const std::uint32_t length : {1u, 12u, 13u, 28u, 60u, 150u, 200u}) {
        const std::string text(length, static_cast<char>('a' + length % 20));
        pair.here.write(0, text);
        ASSERT_EQ(pair.there.post_receive(1, {pair.there.part(0, 256)}), 0);
        ASSERT_EQ(
            pair.here.post(IBV_WR_SEND, 1,
                           {pair.here.part(0, length / 2), pair.here.part(length / 2, length - length / 2)}, request),
            0);
        pair.here.write(0, std::string(length, '-'));
        EXPECT_EQ(pair.here.sent().status, IBV_WC_SUCCESS);
        EXPECT_EQ(pair.there.received().byte_len, length);
        EXPECT_EQ(pair.there.text(0, length), text);
    }
    EXPECT_EQ(pair.here.post(IBV_WR_SEND, 1, {pair.here.part(0, 1000)}, request), ENOMEM)
        << "libmlx5 knows how much may be inline";
}

TEST(Transfer, RingsGoRoundManyTimes) {
    Options options;
    options.depth = 8;
    options.cqes = 15;
    options.inline_bytes = 150;
    Pair pair(options);
    for (std::uint32_t i = 0; i < 20000; ++i) {
        // Each WQE has one to three blocks, so that some wrap around the end of the ring.
        const std::uint32_t length = 1 + i * 37 % 150;
        ibv_send_wr request{};
        request.send_flags = i % 2 == 0 ? IBV_SEND_INLINE : 0;
        std::memset(pair.here.bytes(), static_cast<int>(i), length);
        ASSERT_EQ(pair.there.post_receive(i, {pair.there.part(0, 100), pair.there.part(100, 100)}), 0);
        ASSERT_EQ(pair.here.post(IBV_WR_SEND, i, {pair.here.part(0, length)}, request), 0);
        const ibv_wc sent = pair.here.sent();
        const ibv_wc received = pair.there.received();
        ASSERT_EQ(sent.status, IBV_WC_SUCCESS);
        ASSERT_EQ(sent.wr_id, i);
        ASSERT_EQ(received.wr_id, i);
        ASSERT_EQ(received.byte_len, length);
        ASSERT_EQ(std::memcmp(pair.here.bytes(), pair.there.bytes(), length), 0) << i;
    }
}

TEST(Transfer, OneCqeTellsOfManySends) {
    Pair pair;
    for (std::uint64_t round = 0; round < 100; ++round) {
        std::array<ibv_send_wr, 8> chain{};
        for (std::size_t i = 0; i < chain.size(); ++i) {
            chain[i] = to_memory(pair.there, 0);
            chain[i].opcode = IBV_WR_RDMA_WRITE;
            chain[i].wr_id = i;
            chain[i].next = i + 1 < chain.size() ? &chain[i + 1] : nullptr;
        }
        chain.back().send_flags = IBV_SEND_SIGNALED;
        ibv_send_wr* bad = nullptr;
        ASSERT_EQ(ibv_post_send(pair.here.qp.get(), chain.data(), &bad), 0);
        EXPECT_EQ(mlx5_model_step(3), 3) << "as many as it is told";
        EXPECT_EQ(pair.here.sent().wr_id, chain.size() - 1);
        EXPECT_FALSE(End::poll(pair.here.send_cq));
    }
}

TEST(Transfer, AFullQueueIsSeenByLibmlx5) {
    Pair pair;
    int posted = 0;
    while (pair.here.post(IBV_WR_RDMA_WRITE, 1, {}, ibv_send_wr{}) == 0) {
        ASSERT_LT(++posted, 10000);
    }
    EXPECT_GE(posted, 16);
    for (int i = 0; i < posted; ++i) {
        EXPECT_EQ(pair.here.sent().status, IBV_WC_SUCCESS);
    }
    int receives = 0;
    while (pair.here.post_receive(1, {}) == 0) {
        ASSERT_LT(++receives, 10000);
    }
    EXPECT_GE(receives, 16);
}

TEST(Transfer, ASharedReceiveQueueServesItsQueuePair) {
    Options options;
    options.srq = true;
    options.depth = 4;
    Pair pair(options);
    for (std::uint64_t i = 0; i < 1000; ++i) {
        ASSERT_EQ(pair.there.post_receive(2 * i, {pair.there.part(0, 8)}), 0);
        ASSERT_EQ(pair.there.post_receive(2 * i + 1, {pair.there.part(8, 8), pair.there.part(100, 50)}), 0);
        pair.here.write(0, "01234567890123456789");
        ASSERT_EQ(pair.here.post(IBV_WR_SEND, 1, {pair.here.part(0, 8)}), 0);
        ASSERT_EQ(pair.here.post(IBV_WR_SEND, 2, {pair.here.part(0, 20)}), 0);
        EXPECT_EQ(pair.here.sent().status, IBV_WC_SUCCESS);
        EXPECT_EQ(pair.here.sent().status, IBV_WC_SUCCESS);
        ASSERT_EQ(pair.there.received().wr_id, 2 * i);
        ASSERT_EQ(pair.there.received().wr_id, 2 * i + 1);
        ASSERT_EQ(pair.there.text(0, 16), "0123456701234567");
        ASSERT_EQ(pair.there.text(100, 12), "890123456789");
    }
}

TEST(Transfer, TwoDevicesTalk) {
    Options options;
    End here(options);
    options.device = "mlx5_1";
    End there(options);
    connect(here, there);
    EXPECT_NE(std::memcmp(here.gid().raw, there.gid().raw, 16), 0);
    here.write(0, "to another device, and more than a CQE can bring");
    ASSERT_EQ(there.post_receive(1, {there.part(0, 64)}), 0);
    ASSERT_EQ(here.post(IBV_WR_SEND, 1, {here.part(0, 48)}), 0);
    EXPECT_EQ(here.sent().status, IBV_WC_SUCCESS);
    EXPECT_EQ(there.received().byte_len, 48u);
    EXPECT_EQ(there.text(0, 48), here.text(0, 48));
    ASSERT_EQ(there.post(IBV_WR_RDMA_READ, 2, {there.part(100, 2)}, to_memory(here, 0)), 0);
    EXPECT_EQ(there.sent().status, IBV_WC_SUCCESS);
    EXPECT_EQ(there.text(100, 2), "to");
    // A key is only valid on its own device.
    ASSERT_EQ(there.post(IBV_WR_RDMA_READ, 2, {there.part(100, 2)}, to_memory(there, 0)), 0);
    EXPECT_EQ(there.sent().status, IBV_WC_REM_ACCESS_ERR);
}

TEST(Transfer, AnExtendedPollReadsEachField) {
    Pair pair;
    ibv_cq_ex* const cq = reinterpret_cast<ibv_cq_ex*>(pair.there.recv_cq.get());
    ibv_poll_cq_attr none{};
    EXPECT_EQ(ibv_start_poll(cq, &none), ENOENT);
    for (std::uint64_t i = 0; i < 2; ++i) {
        ASSERT_EQ(pair.there.post_receive(i, {pair.there.part(0, 8)}), 0);
        ibv_send_wr request{};
        request.imm_data = htobe32(77);
        ASSERT_EQ(pair.here.post(i == 0 ? IBV_WR_SEND_WITH_IMM : IBV_WR_SEND, i, {pair.here.part(0, 5 + i)}, request),
                  0);
        EXPECT_EQ(pair.here.sent().status, IBV_WC_SUCCESS);
    }
    ASSERT_EQ(ibv_start_poll(cq, &none), 0);
    EXPECT_EQ(cq->status, IBV_WC_SUCCESS);
    EXPECT_EQ(cq->wr_id, 0u);
    EXPECT_EQ(ibv_wc_read_opcode(cq), IBV_WC_RECV);
    EXPECT_EQ(ibv_wc_read_wc_flags(cq), static_cast<unsigned>(IBV_WC_WITH_IMM));
    EXPECT_EQ(ibv_wc_read_imm_data(cq), htobe32(77));
    EXPECT_EQ(ibv_wc_read_byte_len(cq), 5u);
    EXPECT_EQ(ibv_wc_read_qp_num(cq), pair.there.number());
    EXPECT_EQ(ibv_wc_read_src_qp(cq), pair.here.number());
    const std::uint64_t first = ibv_wc_read_completion_ts(cq);
    EXPECT_GT(first, 0u);
    ASSERT_EQ(ibv_next_poll(cq), 0);
    EXPECT_EQ(cq->wr_id, 1u);
    EXPECT_EQ(ibv_wc_read_wc_flags(cq), 0u);
    EXPECT_EQ(ibv_wc_read_byte_len(cq), 6u);
    EXPECT_GE(ibv_wc_read_completion_ts(cq), first);
    EXPECT_EQ(ibv_next_poll(cq), ENOENT);
    ibv_end_poll(cq);
}

// ---- Unreliable connections and datagrams ----

TEST(Transfer, UnreliableConnectionsSendAndWrite) {
    Options options;
    options.type = IBV_QPT_UC;
    Pair pair(options);
    pair.here.write(0, "unreliable");
    ASSERT_EQ(pair.there.post_receive(1, {pair.there.part(0, 64)}), 0);
    ASSERT_EQ(pair.here.post(IBV_WR_SEND, 1, {pair.here.part(0, 10)}), 0);
    ASSERT_EQ(pair.here.post(IBV_WR_RDMA_WRITE, 2, {pair.here.part(0, 10)}, to_memory(pair.there, 100)), 0);
    EXPECT_EQ(pair.here.sent().status, IBV_WC_SUCCESS);
    EXPECT_EQ(pair.here.sent().status, IBV_WC_SUCCESS);
    EXPECT_EQ(pair.there.received().byte_len, 10u);
    EXPECT_EQ(pair.there.text(0, 10), "unreliable");
    EXPECT_EQ(pair.there.text(100, 10), "unreliable");
    ASSERT_EQ(pair.here.post(IBV_WR_SEND, 1, {pair.here.part(0, 10)}), 0);
    EXPECT_EQ(pair.here.sent().status, IBV_WC_SUCCESS) << "nobody receives it, and nobody says so";
    EXPECT_FALSE(End::poll(pair.there.recv_cq));
}

TEST(Transfer, DatagramsComeWithTheirHeader) {
    Options options;
    options.type = IBV_QPT_UD;
    End here(options);
    options.device = "mlx5_1";
    End there(options);
    connect(here, there);
    ibv_ah_attr to{};
    to.is_global = 1;
    to.port_num = 1;
    to.grh.dgid = there.gid();
    to.grh.sgid_index = 1;
    const Ah ah(ibv_create_ah(here.pd.get(), &to));
    ASSERT_NE(ah, nullptr);
    ibv_send_wr request{};
    request.wr.ud.ah = ah.get();
    request.wr.ud.remote_qpn = there.number();
    request.wr.ud.remote_qkey = kQkey;
    here.write(0, "datagram");
    ASSERT_EQ(there.post_receive(1, {there.part(0, 200)}), 0);
    ASSERT_EQ(here.post(IBV_WR_SEND, 1, {here.part(0, 8)}, request), 0);
    EXPECT_EQ(here.sent().status, IBV_WC_SUCCESS);
    const ibv_wc received = there.received();
    EXPECT_EQ(received.byte_len, 48u);
    EXPECT_EQ(received.src_qp, here.number());
    EXPECT_EQ(received.wc_flags, static_cast<unsigned>(IBV_WC_GRH));
    EXPECT_EQ(there.text(40, 8), "datagram");
    EXPECT_EQ(there.bytes()[20], 0x45) << "IPv4 in the header's second half";
    EXPECT_EQ(there.text(32, 4), std::string(reinterpret_cast<const char*>(here.gid().raw) + 12, 4));
    EXPECT_EQ(there.text(36, 4), std::string(reinterpret_cast<const char*>(there.gid().raw) + 12, 4));

    request.wr.ud.remote_qkey = kQkey + 1;
    ASSERT_EQ(here.post(IBV_WR_SEND, 1, {here.part(0, 8)}, request), 0);
    EXPECT_EQ(here.sent().status, IBV_WC_SUCCESS);
    EXPECT_FALSE(End::poll(there.recv_cq)) << "of another key";
    request.wr.ud.remote_qkey = kQkey;
    ASSERT_EQ(here.post(IBV_WR_SEND, 1, {here.part(0, 5000)}, request), 0);
    EXPECT_EQ(here.sent().status, IBV_WC_LOC_LEN_ERR) << "longer than the MTU";
    EXPECT_EQ(here.state(), IBV_QPS_SQE);
}

// ---- Memory windows ----

class Windows : public testing::TestWithParam<ibv_mw_type> {};

TEST_P(Windows, OpenAndCloseAPartOfARegion) {
    Pair pair;
    End& owner = pair.there;
    End& user = pair.here;
    Mw window(ibv_alloc_mw(owner.pd.get(), GetParam()));
    ASSERT_NE(window, nullptr);
    const ibv_mw_bind_info info{owner.mr.get(), owner.at(64), 64, IBV_ACCESS_REMOTE_WRITE};
    std::uint32_t rkey = 0;
    if (GetParam() == IBV_MW_TYPE_1) {
        ibv_mw_bind bind{7, IBV_SEND_SIGNALED, info};
        ASSERT_EQ(ibv_bind_mw(owner.qp.get(), window.get(), &bind), 0);
        rkey = window->rkey;
    } else {
        ibv_send_wr bind{};
        bind.bind_mw = {window.get(), ibv_inc_rkey(window->rkey), info};
        ASSERT_EQ(owner.post(IBV_WR_BIND_MW, 7, {}, bind), 0);
        rkey = bind.bind_mw.rkey;
    }
    const ibv_wc bound = owner.sent();
    EXPECT_EQ(bound.status, IBV_WC_SUCCESS);
    EXPECT_EQ(bound.opcode, IBV_WC_BIND_MW);
    EXPECT_EQ(bound.wr_id, 7u);

    user.write(0, "by window");
    ibv_send_wr request{};
    request.wr.rdma.remote_addr = owner.at(64);
    request.wr.rdma.rkey = rkey;
    ASSERT_EQ(user.post(IBV_WR_RDMA_WRITE, 1, {user.part(0, 9)}, request), 0);
    EXPECT_EQ(user.sent().status, IBV_WC_SUCCESS);
    EXPECT_EQ(owner.text(64, 9), "by window");
    EXPECT_EQ(ibv_dereg_mr(owner.mr.get()), EBUSY) << "a window is bound to it";

    if (GetParam() == IBV_MW_TYPE_2) {
        ibv_send_wr invalidate{};
        invalidate.invalidate_rkey = rkey;
        ASSERT_EQ(owner.post(IBV_WR_LOCAL_INV, 8, {}, invalidate), 0);
        const ibv_wc closed = owner.sent();
        EXPECT_EQ(closed.status, IBV_WC_SUCCESS);
        EXPECT_EQ(closed.opcode, IBV_WC_LOCAL_INV);
    } else {
        ibv_mw_bind unbind{8, IBV_SEND_SIGNALED, {owner.mr.get(), 0, 0, 0}};
        ASSERT_EQ(ibv_bind_mw(owner.qp.get(), window.get(), &unbind), 0);
        EXPECT_EQ(owner.sent().status, IBV_WC_SUCCESS);
    }
    ASSERT_EQ(user.post(IBV_WR_RDMA_WRITE, 1, {user.part(0, 9)}, request), 0);
    EXPECT_EQ(user.sent().status, IBV_WC_REM_ACCESS_ERR);
    EXPECT_EQ(owner.state(), IBV_QPS_ERR);
}

INSTANTIATE_TEST_SUITE_P(OfType, Windows, testing::Values(IBV_MW_TYPE_1, IBV_MW_TYPE_2),
                         [](const auto& test) { return test.param == IBV_MW_TYPE_1 ? "One" : "Two"; });

TEST(Transfer, ASendInvalidatesAWindow) {
    Pair pair;
    const Mw window(ibv_alloc_mw(pair.there.pd.get(), IBV_MW_TYPE_2));
    ASSERT_NE(window, nullptr);
    ibv_send_wr bind{};
    bind.bind_mw = {
        window.get(), ibv_inc_rkey(window->rkey), {pair.there.mr.get(), pair.there.at(0), 64, IBV_ACCESS_REMOTE_READ}};
    ASSERT_EQ(pair.there.post(IBV_WR_BIND_MW, 1, {}, bind), 0);
    ASSERT_EQ(pair.there.sent().status, IBV_WC_SUCCESS);
    ASSERT_EQ(pair.there.post_receive(2, {pair.there.part(100, 8)}), 0);
    ibv_send_wr request{};
    request.invalidate_rkey = bind.bind_mw.rkey;
    ASSERT_EQ(pair.here.post(IBV_WR_SEND_WITH_INV, 3, {pair.here.part(0, 8)}, request), 0);
    EXPECT_EQ(pair.here.sent().status, IBV_WC_SUCCESS);
    const ibv_wc received = pair.there.received();
    EXPECT_EQ(received.status, IBV_WC_SUCCESS);
    EXPECT_EQ(received.wc_flags, static_cast<unsigned>(IBV_WC_WITH_INV));
    EXPECT_EQ(received.invalidated_rkey, bind.bind_mw.rkey);
    ibv_send_wr read{};
    read.wr.rdma.remote_addr = pair.there.at(0);
    read.wr.rdma.rkey = bind.bind_mw.rkey;
    ASSERT_EQ(pair.here.post(IBV_WR_RDMA_READ, 4, {pair.here.part(0, 8)}, read), 0);
    EXPECT_EQ(pair.here.sent().status, IBV_WC_REM_ACCESS_ERR);
}

// ---- Doorbells ----

struct Rung {
    std::uint64_t records = 0;
    std::uint64_t rung = 0;
    std::uint64_t blueflame = 0;
};
Rung rung(const End& end) {
    Rung out;
    mlx5_model_doorbells(end.number(), &out.records, &out.rung, &out.blueflame);
    return out;
}

TEST(Doorbells, EachChainRingsOnceAndASingleSendBringsItself) {
    Pair pair;
    for (int i = 0; i < 10; ++i) {
        ASSERT_EQ(pair.here.post(IBV_WR_RDMA_WRITE, 1, {}, ibv_send_wr{}), 0);
        (void)pair.here.sent();
    }
    EXPECT_EQ(rung(pair.here).records, 10u);
    EXPECT_EQ(rung(pair.here).rung, 10u);
    EXPECT_EQ(rung(pair.here).blueflame, 10u);
    EXPECT_EQ(rung(pair.there).records, 0u);
    ibv_send_wr second{};
    second.opcode = IBV_WR_RDMA_WRITE;
    second.send_flags = IBV_SEND_SIGNALED;
    ibv_send_wr first = second;
    first.next = &second;
    ibv_send_wr* bad = nullptr;
    ASSERT_EQ(ibv_post_send(pair.here.qp.get(), &first, &bad), 0);
    (void)pair.here.sent();
    (void)pair.here.sent();
    EXPECT_EQ(rung(pair.here).records, 11u);
    EXPECT_EQ(rung(pair.here).rung, 11u);
}

// libmlx5 reads the environment variable when a device is opened.
TEST(Doorbells, WithoutBlueFlameTheyAreEightBytes) {
    ::setenv("MLX5_SHUT_UP_BF", "1", 1);
    {
        Pair pair;
        for (int i = 0; i < 4; ++i) {
            ASSERT_EQ(pair.here.post(IBV_WR_RDMA_WRITE, 1, {pair.here.part(0, 8)}, to_memory(pair.there, 0)), 0);
            EXPECT_EQ(pair.here.sent().status, IBV_WC_SUCCESS);
        }
        EXPECT_EQ(rung(pair.here).rung, 4u);
        EXPECT_EQ(rung(pair.here).blueflame, 0u);
    }
    ::unsetenv("MLX5_SHUT_UP_BF");
}

}  // namespace
}  // namespace mlx5_model
