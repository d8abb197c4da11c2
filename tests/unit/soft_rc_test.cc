// Reliable connections of the software device: sends, writes, reads and atomics without errors.
#include <algorithm>
#include <numeric>

#include "soft_fixture.hpp"

namespace pollcore::test {
namespace {

class SoftRc : public SoftPair {
protected:
    void SetUp() override { connect(a, b); }
    void fill(End& end, std::size_t offset, std::size_t size, unsigned seed) {
        for (std::size_t i = 0; i < size; ++i)
            end.at(offset)[i] = static_cast<std::byte>(i * 7 + seed);
    }
    bool same(std::size_t offset_a, std::size_t offset_b, std::size_t size) {
        return std::memcmp(a.at(offset_a), b.at(offset_b), size) == 0;
    }
    End a{*device};
    End b{*device};
};

TEST_F(SoftRc, nothing_moves_until_a_cq_is_polled) {
    fill(a, 0, 64, 1);
    ASSERT_EQ(a.post(1, IBV_WR_RDMA_WRITE, {a.sge(0, 64)}, b.address(0), b.mr->rkey), 0);
    EXPECT_FALSE(same(0, 0, 64));
    EXPECT_WC(a.sent(), 1, IBV_WC_SUCCESS);
    EXPECT_TRUE(same(0, 0, 64));
}

TEST_F(SoftRc, a_send_lands_in_the_posted_receive) {
    fill(a, 0, 100, 3);
    ASSERT_EQ(b.post_recv(7, {b.sge(512, 200)}), 0);
    ASSERT_EQ(a.post(8, IBV_WR_SEND, {a.sge(0, 100)}), 0);
    const auto sent = a.sent();
    EXPECT_WC(sent, 8, IBV_WC_SUCCESS);
    EXPECT_EQ(sent->opcode, IBV_WC_SEND);
    EXPECT_EQ(sent->qp_num, a.qp->qp_num);
    const auto received = b.received();
    EXPECT_WC(received, 7, IBV_WC_SUCCESS);
    EXPECT_EQ(received->opcode, IBV_WC_RECV);
    EXPECT_EQ(received->byte_len, 100u);
    EXPECT_EQ(received->qp_num, b.qp->qp_num);
    EXPECT_EQ(received->src_qp, a.qp->qp_num);
    EXPECT_EQ(received->wc_flags, 0u);
    EXPECT_TRUE(same(0, 512, 100));
}

TEST_F(SoftRc, an_immediate_arrives_as_it_was_posted) {
    ASSERT_EQ(b.post_recv(1, {b.sge(0, 8)}), 0);
    ASSERT_EQ(a.post(2, IBV_WR_SEND_WITH_IMM, {a.sge(0, 8)}, 0, 0, IBV_SEND_SIGNALED, 0xdeadbeef), 0);
    EXPECT_WC(a.sent(), 2, IBV_WC_SUCCESS);
    const auto received = b.received();
    EXPECT_WC(received, 1, IBV_WC_SUCCESS);
    EXPECT_EQ(received->wc_flags, static_cast<unsigned>(IBV_WC_WITH_IMM));
    EXPECT_EQ(received->imm_data, 0xdeadbeefu);
}

TEST_F(SoftRc, a_write_with_immediate_takes_a_receive_but_none_of_its_buffer) {
    fill(a, 0, 5000, 5);
    std::memset(b.at(8192), 0x55, 64);
    ASSERT_EQ(b.post_recv(1, {b.sge(8192, 64)}), 0);
    ASSERT_EQ(a.post(2, IBV_WR_RDMA_WRITE_WITH_IMM, {a.sge(0, 5000)}, b.address(0), b.mr->rkey, IBV_SEND_SIGNALED, 42),
              0);
    EXPECT_WC(a.sent(), 2, IBV_WC_SUCCESS);
    const auto received = b.received();
    EXPECT_WC(received, 1, IBV_WC_SUCCESS);
    EXPECT_EQ(received->opcode, IBV_WC_RECV_RDMA_WITH_IMM);
    EXPECT_EQ(received->byte_len, 5000u);
    EXPECT_EQ(received->imm_data, 42u);
    EXPECT_TRUE(same(0, 0, 5000));
    EXPECT_TRUE(std::all_of(b.at(8192), b.at(8256), [](std::byte byte) { return byte == std::byte{0x55}; }));
}

TEST_F(SoftRc, messages_of_every_size_around_the_mtu_arrive_whole) {
    for (const std::uint32_t size : {0u, 1u, 7u, 8u, 1023u, 1024u, 1025u, 2048u, 3000u, 100'000u, 400'001u}) {
        SCOPED_TRACE(size);
        fill(a, 0, size, size);
        std::memset(b.at(0), 0, 1u << 20);
        ASSERT_EQ(a.post(1, IBV_WR_RDMA_WRITE, {a.sge(0, size)}, b.address(3), b.mr->rkey), 0);
        EXPECT_WC(a.sent(), 1, IBV_WC_SUCCESS);
        EXPECT_TRUE(same(0, 3, size));
        EXPECT_EQ(b.at(0)[2], std::byte{0});
        EXPECT_EQ(b.at(0)[size + 3], std::byte{0});

        ASSERT_EQ(b.post_recv(2, {b.sge(500'000, size)}), 0);
        ASSERT_EQ(a.post(3, IBV_WR_SEND, {a.sge(0, size)}), 0);
        const auto received = b.received();
        EXPECT_WC(received, 2, IBV_WC_SUCCESS);
        EXPECT_EQ(received->byte_len, size);
        EXPECT_TRUE(same(0, 500'000, size));
        EXPECT_WC(a.sent(), 3, IBV_WC_SUCCESS);

        ASSERT_EQ(a.post(4, IBV_WR_RDMA_READ, {a.sge(500'001, size)}, b.address(3), b.mr->rkey), 0);
        const auto read = a.sent();
        EXPECT_WC(read, 4, IBV_WC_SUCCESS);
        EXPECT_EQ(read->opcode, IBV_WC_RDMA_READ);
        EXPECT_EQ(read->byte_len, size);
        EXPECT_TRUE(same(500'001, 3, size));
    }
}

TEST_F(SoftRc, several_sges_are_gathered_and_scattered) {
    fill(a, 0, 4096, 9);
    ASSERT_EQ(b.post_recv(1, {b.sge(0, 10), b.sge(100, 0), b.sge(200, 1500), b.sge(4000, 3000)}), 0);
    ASSERT_EQ(a.post(2, IBV_WR_SEND, {a.sge(0, 1000), a.sge(1000, 1), a.sge(1001, 0), a.sge(1001, 1999)}), 0);
    EXPECT_WC(b.received(), 1, IBV_WC_SUCCESS);
    EXPECT_WC(a.sent(), 2, IBV_WC_SUCCESS);
    EXPECT_TRUE(same(0, 0, 10));
    EXPECT_TRUE(same(10, 200, 1500));
    EXPECT_TRUE(same(1510, 4000, 1490));
}

TEST_F(SoftRc, inline_data_is_taken_at_post_and_needs_no_key) {
    std::uint64_t value = 0x1122334455667788;
    const ibv_sge sge{reinterpret_cast<std::uint64_t>(&value), sizeof(value), 0xffffffff};
    ASSERT_EQ(a.post(1, IBV_WR_RDMA_WRITE, {sge}, b.address(16), b.mr->rkey, IBV_SEND_SIGNALED | IBV_SEND_INLINE), 0);
    value = 0;
    EXPECT_WC(a.sent(), 1, IBV_WC_SUCCESS);
    EXPECT_EQ(b.memory[2], 0x1122334455667788u);
}

TEST_F(SoftRc, atomics_change_the_word_once_and_return_what_was_there) {
    b.memory[4] = 100;
    ASSERT_EQ(a.post_atomic(1, IBV_WR_ATOMIC_FETCH_AND_ADD, a.sge(0, 8), b.address(32), b.mr->rkey, 5), 0);
    auto wc = a.sent();
    EXPECT_WC(wc, 1, IBV_WC_SUCCESS);
    EXPECT_EQ(wc->opcode, IBV_WC_FETCH_ADD);
    EXPECT_EQ(wc->byte_len, 8u);
    EXPECT_EQ(a.memory[0], 100u);
    EXPECT_EQ(b.memory[4], 105u);
    ASSERT_EQ(a.post_atomic(2, IBV_WR_ATOMIC_CMP_AND_SWP, a.sge(0, 8), b.address(32), b.mr->rkey, 105, 7), 0);
    wc = a.sent();
    EXPECT_WC(wc, 2, IBV_WC_SUCCESS);
    EXPECT_EQ(wc->opcode, IBV_WC_COMP_SWAP);
    EXPECT_EQ(a.memory[0], 105u);
    EXPECT_EQ(b.memory[4], 7u);
    ASSERT_EQ(a.post_atomic(3, IBV_WR_ATOMIC_CMP_AND_SWP, a.sge(0, 8), b.address(32), b.mr->rkey, 105, 9), 0);
    EXPECT_WC(a.sent(), 3, IBV_WC_SUCCESS);
    EXPECT_EQ(a.memory[0], 7u);
    EXPECT_EQ(b.memory[4], 7u);
}

TEST_F(SoftRc, unsignaled_sends_complete_in_silence_and_give_their_slots_back_with_the_next_signaled) {
    for (int i = 0; i < 31; ++i) {
        ASSERT_EQ(a.post(1, IBV_WR_RDMA_WRITE, {a.sge(0, 8)}, b.address(0), b.mr->rkey, 0), 0);
    }
    EXPECT_FALSE(a.sent().has_value());
    ASSERT_EQ(a.post(2, IBV_WR_RDMA_WRITE, {a.sge(0, 8)}, b.address(0), b.mr->rkey), 0);
    EXPECT_EQ(a.post(3, IBV_WR_RDMA_WRITE, {a.sge(0, 8)}, b.address(0), b.mr->rkey), ENOMEM);
    EXPECT_WC(a.sent(), 2, IBV_WC_SUCCESS);
    for (int i = 0; i < 32; ++i)
        ASSERT_EQ(a.post(4, IBV_WR_RDMA_WRITE, {a.sge(0, 8)}, b.address(0), b.mr->rkey), 0);
}

TEST_F(SoftRc, a_send_queue_full_of_unsignaled_work_stays_full) {
    for (int i = 0; i < 32; ++i) {
        ASSERT_EQ(a.post(1, IBV_WR_RDMA_WRITE, {a.sge(0, 8)}, b.address(0), b.mr->rkey, 0), 0);
    }
    EXPECT_FALSE(a.sent().has_value());
    EXPECT_EQ(a.post(2, IBV_WR_RDMA_WRITE, {a.sge(0, 8)}, b.address(0), b.mr->rkey), ENOMEM);
}

TEST_F(SoftRc, sq_sig_all_signals_everything) {
    End c(*device, {.signal_all = true});
    End d(*device);
    connect(c, d);
    ASSERT_EQ(c.post(5, IBV_WR_RDMA_WRITE, {c.sge(0, 8)}, d.address(0), d.mr->rkey, 0), 0);
    EXPECT_WC(c.sent(), 5, IBV_WC_SUCCESS);
}

TEST_F(SoftRc, completions_come_in_post_order_whatever_the_mix) {
    for (std::uint64_t i = 0; i < 8; ++i)
        ASSERT_EQ(b.post_recv(100 + i, {b.sge(i * 64, 64)}), 0);
    for (std::uint64_t i = 0; i < 32; i += 4) {
        ASSERT_EQ(a.post(i, IBV_WR_RDMA_READ, {a.sge(65536, 3000)}, b.address(0), b.mr->rkey), 0);
        ASSERT_EQ(a.post(i + 1, IBV_WR_SEND, {a.sge(i, 8)}), 0);
        ASSERT_EQ(a.post_atomic(i + 2, IBV_WR_ATOMIC_FETCH_AND_ADD, a.sge(8192, 8), b.address(8192), b.mr->rkey, 1), 0);
        ASSERT_EQ(a.post(i + 3, IBV_WR_RDMA_WRITE, {a.sge(0, 3000)}, b.address(16384), b.mr->rkey), 0);
    }
    for (std::uint64_t i = 0; i < 32; ++i)
        EXPECT_WC(a.sent(), i, IBV_WC_SUCCESS);
    for (std::uint64_t i = 0; i < 8; ++i)
        EXPECT_WC(b.received(), 100 + i, IBV_WC_SUCCESS);
    EXPECT_EQ(b.memory[1024], 8u);
}

TEST_F(SoftRc, a_fenced_send_waits_for_the_reads_before_it) {
    b.memory[0] = 1;
    ASSERT_EQ(a.post(1, IBV_WR_RDMA_READ, {a.sge(0, 8)}, b.address(0), b.mr->rkey), 0);
    // The write sends the data that the read before it brings. Only the fence guarantees this.
    ASSERT_EQ(
        a.post(2, IBV_WR_RDMA_WRITE, {a.sge(0, 8)}, b.address(64), b.mr->rkey, IBV_SEND_SIGNALED | IBV_SEND_FENCE), 0);
    EXPECT_WC(a.sent(), 1, IBV_WC_SUCCESS);
    EXPECT_WC(a.sent(), 2, IBV_WC_SUCCESS);
    EXPECT_EQ(b.memory[8], 1u);
}

TEST_F(SoftRc, more_reads_than_max_rd_atomic_wait_their_turn) {
    End c(*device), d(*device);
    PathAttributes path;
    path.max_rd_atomic = path.max_dest_rd_atomic = 1;
    connect(c, d, path);
    for (std::uint64_t i = 0; i < 20; ++i) {
        d.memory[i * 100] = i + 1;
        ASSERT_EQ(c.post(i, IBV_WR_RDMA_READ, {c.sge(i * 8, 8)}, d.address(i * 800), d.mr->rkey), 0);
    }
    for (std::uint64_t i = 0; i < 20; ++i) {
        EXPECT_WC(c.sent(), i, IBV_WC_SUCCESS);
        EXPECT_EQ(c.memory[i], i + 1);
    }
}

TEST_F(SoftRc, a_qp_connected_to_itself_works) {
    End c(*device);
    c.ready_to_receive(c.info(), {});
    c.ready_to_send({});
    c.memory[0] = 9;
    ASSERT_EQ(c.post_recv(1, {c.sge(64, 8)}), 0);
    ASSERT_EQ(c.post(2, IBV_WR_SEND, {c.sge(0, 8)}), 0);
    EXPECT_WC(c.sent(), 2, IBV_WC_SUCCESS);
    EXPECT_WC(c.received(), 1, IBV_WC_SUCCESS);
    EXPECT_EQ(c.memory[8], 9u);
}

TEST_F(SoftRc, two_devices_of_one_fabric_reach_each_other_and_those_of_another_do_not) {
    const auto other = open_soft_device({.name = "soft1"});
    const auto stranger = open_soft_device({.name = "soft2", .fabric = "elsewhere"});
    End c(*device), d(*other), e(*stranger);
    connect(c, d);
    ASSERT_EQ(c.post(1, IBV_WR_RDMA_WRITE, {c.sge(0, 8)}, d.address(0), d.mr->rkey), 0);
    for (int i = 0; i < 10; ++i) {
        EXPECT_FALSE(End::poll(c.send_cq.get()).has_value());  // the other device has not been moved yet
    }
    EXPECT_FALSE(End::poll(d.send_cq.get()).has_value());
    EXPECT_WC(End::poll(c.send_cq.get()), 1, IBV_WC_SUCCESS);

    End f(*device);
    PathAttributes path;
    path.retry_count = 1;
    connect(f, e, path);
    ASSERT_EQ(f.post(1, IBV_WR_RDMA_WRITE, {f.sge(0, 8)}, e.address(0), e.mr->rkey), 0);
    device->advance(1'000'000'000);
    EXPECT_WC(f.sent(), 1, IBV_WC_RETRY_EXC_ERR);
}

TEST_F(SoftRc, memory_registered_with_an_iova_is_addressed_by_it) {
    std::vector<std::uint64_t> words(16);
    UniqueMr mr{device->register_memory(b.pd.get(), words.data(), 128, 0x1000, kAllAccess), {device.get()}};
    a.memory[0] = 77;
    ASSERT_EQ(a.post(1, IBV_WR_RDMA_WRITE, {a.sge(0, 8)}, 0x1000 + 120, mr->rkey), 0);
    EXPECT_WC(a.sent(), 1, IBV_WC_SUCCESS);
    EXPECT_EQ(words[15], 77u);
    EXPECT_EQ(mr->addr, words.data());
    EXPECT_EQ(mr->length, 128u);
    ASSERT_EQ(a.post(2, IBV_WR_RDMA_WRITE, {a.sge(0, 8)}, 0x1000 + 121, mr->rkey), 0);
    EXPECT_WC(a.sent(), 2, IBV_WC_REM_ACCESS_ERR);
}

}  // namespace
}  // namespace pollcore::test
