#include <endian.h>

#include <cstring>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "hca_send_queue.hpp"

namespace mlx5_model {
namespace {

constexpr std::uint32_t kQpn = 0x123;
constexpr std::uint32_t kBlocks = 8;
constexpr std::size_t kBlock = 64;

class Wqe {
public:
    explicit Wqe(std::uint8_t opcode, std::uint16_t index = 0, std::uint8_t flags = 0, std::uint32_t immediate = 0) {
        mlx5_wqe_ctrl_seg control{};
        control.opmod_idx_opcode = htobe32(std::uint32_t{index} << 8 | opcode);
        control.fm_ce_se = flags;
        control.imm = immediate;
        append(control);
    }
    template <class Segment>
    Wqe& append(const Segment& segment) {
        const auto* from = reinterpret_cast<const std::uint8_t*>(&segment);
        bytes_.insert(bytes_.end(), from, from + sizeof segment);
        size();
        return *this;
    }
    Wqe& remote(std::uint64_t address, std::uint32_t rkey, std::uint32_t reserved = 0) {
        return append(mlx5_wqe_raddr_seg{htobe64(address), htobe32(rkey), reserved});
    }
    Wqe& atomic(std::uint64_t swap_add, std::uint64_t compare) {
        return append(mlx5_wqe_atomic_seg{htobe64(swap_add), htobe64(compare)});
    }
    Wqe& data(std::uint32_t length, std::uint32_t lkey = 7, std::uint64_t address = 0x1000) {
        return append(mlx5_wqe_data_seg{htobe32(length), htobe32(lkey), htobe64(address)});
    }
    Wqe& inline_data(std::string_view text, std::uint32_t says) {
        const std::uint32_t word = htobe32(MLX5_INLINE_SEG | says);
        append(word);
        bytes_.insert(bytes_.end(), text.begin(), text.end());
        bytes_.resize((bytes_.size() + 15) / 16 * 16);
        size();
        return *this;
    }
    Wqe& inline_data(std::string_view text) { return inline_data(text, static_cast<std::uint32_t>(text.size())); }
    [[nodiscard]] mlx5_wqe_ctrl_seg& control() { return *reinterpret_cast<mlx5_wqe_ctrl_seg*>(bytes_.data()); }
    [[nodiscard]] const std::vector<std::uint8_t>& bytes() const { return bytes_; }
    [[nodiscard]] std::uint32_t blocks() const {
        return static_cast<std::uint32_t>((bytes_.size() + kBlock - 1) / kBlock);
    }

private:
    void size() { control().qpn_ds = htobe32(kQpn << 8 | static_cast<std::uint32_t>(bytes_.size() / 16)); }

    std::vector<std::uint8_t> bytes_;
};

struct Bind {
    mlx5_wqe_umr_ctrl_seg control{};
    mlx5_wqe_mkey_context_seg context{};
    mlx5_wqe_umr_klm_seg klm{};
    bool with_klm = true;

    /// Binds 64 bytes, by libmlx5's rules.
    Bind() {
        control.flags = MLX5_WQE_UMR_CTRL_FLAG_INLINE | MLX5_WQE_UMR_CTRL_FLAG_CHECK_FREE;
        control.klm_octowords = htobe16(4);
        control.mkey_mask = htobe64(MLX5_WQE_UMR_CTRL_MKEY_MASK_LEN | MLX5_WQE_UMR_CTRL_MKEY_MASK_START_ADDR |
                                    MLX5_WQE_UMR_CTRL_MKEY_MASK_FREE);
        context.access_flags =
            MLX5_WQE_MKEY_CONTEXT_ACCESS_FLAGS_REMOTE_WRITE | MLX5_WQE_MKEY_CONTEXT_ACCESS_FLAGS_REMOTE_READ |
            MLX5_WQE_MKEY_CONTEXT_ACCESS_FLAGS_ATOMIC | MLX5_WQE_MKEY_CONTEXT_ACCESS_FLAGS_LOCAL_WRITE;
        context.qpn_mkey = htobe32(kQpn << 8 | 0x55);
        context.start_addr = htobe64(0x2000);
        context.len = htobe64(64);
        klm.byte_count = htobe32(64);
        klm.mkey = htobe32(0x777);
        klm.address = htobe64(0x3000);
    }
    [[nodiscard]] Wqe wqe() const {
        Wqe wqe(MLX5_OPCODE_UMR, 0, 0, htobe32(0xab00));
        wqe.append(control).append(context);
        if (with_klm) {
            wqe.append(klm)
                .append(mlx5_wqe_umr_klm_seg{})
                .append(mlx5_wqe_umr_klm_seg{})
                .append(mlx5_wqe_umr_klm_seg{});
        }
        return wqe;
    }
};

class SendQueueTest : public testing::Test {
protected:
    /// Appends `wqe` to the ring and updates the doorbell record.
    void put(const Wqe& wqe) {
        for (std::size_t i = 0; i < wqe.bytes().size(); ++i) {
            bytes[(posted * kBlock + i) % sizeof bytes] = wqe.bytes()[i];
        }
        posted += wqe.blocks();
        tell(posted & 0xffff);
    }
    void tell(std::uint32_t count) { record = htobe32(count); }
    SendQueue make(ibv_qp_type type = IBV_QPT_RC) { return {kQpn, type, {bytes, kBlocks, &record, uar}}; }
    /// Lets the NIC read `wqe` as the first WQE of a new queue pair.
    void read_one(const Wqe& wqe, ibv_qp_type type = IBV_QPT_RC) {
        SendQueue queue = make(type);
        put(wqe);
        (void)queue.next();
    }

    alignas(64) std::uint8_t bytes[kBlocks * kBlock] = {};
    alignas(64) std::uint8_t uar[4096] = {};
    std::uint32_t posted = 0;
    volatile std::uint32_t record = 0;
};
using SendQueueDeathTest = SendQueueTest;

TEST_F(SendQueueTest, ASendIsTakenApart) {
    SendQueue queue = make();
    EXPECT_TRUE(queue.empty());
    EXPECT_EQ(queue.next(), nullptr);
    put(Wqe(MLX5_OPCODE_SEND_IMM, 0, MLX5_WQE_CTRL_CQ_UPDATE | MLX5_WQE_CTRL_SOLICITED, 0x12345678)
            .data(5, 6, 7)
            .data(8, 9, 10));
    EXPECT_FALSE(queue.empty());
    const SendWqe* wqe = queue.next();
    ASSERT_NE(wqe, nullptr);
    EXPECT_EQ(wqe->opcode, MLX5_OPCODE_SEND_IMM);
    EXPECT_EQ(wqe->immediate, 0x12345678u);
    EXPECT_TRUE(wqe->signaled);
    EXPECT_TRUE(wqe->solicited);
    EXPECT_FALSE(wqe->fenced);
    EXPECT_EQ(wqe->length(), 13u);
    ASSERT_EQ(wqe->segment_count, 2);
    EXPECT_EQ(wqe->segments[1].lkey, 9u);
    EXPECT_EQ(wqe->segments[1].address, 10u);
    EXPECT_TRUE(wqe->takes_receive());
    EXPECT_FALSE(wqe->answers_with_data());
    EXPECT_EQ(queue.next(), wqe) << "until it is done";
    queue.done();
    EXPECT_EQ(queue.next(), nullptr);
    EXPECT_TRUE(queue.empty());
}

TEST_F(SendQueueTest, AWriteHasItsTarget) {
    SendQueue queue = make();
    put(Wqe(MLX5_OPCODE_RDMA_WRITE, 0, MLX5_WQE_CTRL_FENCE).remote(0xabcd, 0x99).data(3));
    const SendWqe* wqe = queue.next();
    ASSERT_NE(wqe, nullptr);
    EXPECT_EQ(wqe->remote_address, 0xabcdu);
    EXPECT_EQ(wqe->rkey, 0x99u);
    EXPECT_TRUE(wqe->fenced);
    EXPECT_FALSE(wqe->signaled);
    EXPECT_FALSE(wqe->takes_receive());
}

TEST_F(SendQueueTest, AnAtomicHasItsOperands) {
    SendQueue queue = make();
    put(Wqe(MLX5_OPCODE_ATOMIC_CS).remote(8, 9).atomic(10, 11).data(8));
    const SendWqe* wqe = queue.next();
    ASSERT_NE(wqe, nullptr);
    EXPECT_EQ(wqe->swap_add, 10u);
    EXPECT_EQ(wqe->compare, 11u);
    EXPECT_TRUE(wqe->answers_with_data());
}

TEST_F(SendQueueTest, InlineDataIsTakenAlong) {
    for (const std::size_t length : {0u, 1u, 12u, 13u, 28u, 29u, 200u}) {
        SendQueue queue = make();
        posted = 0;
        tell(0);
        const std::string text(length, 'x');
        put(Wqe(MLX5_OPCODE_SEND).inline_data(text));
        const SendWqe* wqe = queue.next();
        ASSERT_NE(wqe, nullptr);
        EXPECT_TRUE(wqe->is_inline);
        ASSERT_EQ(wqe->length(), length);
        EXPECT_EQ(std::memcmp(wqe->inline_data, text.data(), length), 0);
    }
}

TEST_F(SendQueueTest, ADatagramHasItsAddress) {
    SendQueue queue = make(IBV_QPT_UD);
    mlx5_wqe_datagram_seg datagram{};
    datagram.av.key.qkey.qkey = htobe32(0x11111111);
    datagram.av.dqp_dct = htobe32(MLX5_EXTENDED_UD_AV | 0x234);
    datagram.av.rgid[15] = 9;
    put(Wqe(MLX5_OPCODE_SEND).append(datagram).data(3));
    const SendWqe* wqe = queue.next();
    ASSERT_NE(wqe, nullptr);
    EXPECT_EQ(wqe->dest_qpn, 0x234u);
    EXPECT_EQ(wqe->qkey, 0x11111111u);
    EXPECT_EQ(wqe->dest_gid.raw[15], 9);
    EXPECT_EQ(wqe->segment_count, 1);
}

TEST_F(SendQueueTest, ABindIsTakenApart) {
    SendQueue queue = make();
    put(Bind().wqe());
    const SendWqe* wqe = queue.next();
    ASSERT_NE(wqe, nullptr);
    const BindRequest& bind = wqe->bind;
    EXPECT_EQ(wqe->blocks, 3);
    EXPECT_EQ(bind.key, 0xab00u);
    EXPECT_EQ(bind.new_key, 0x55u);
    EXPECT_EQ(bind.qpn, kQpn);
    EXPECT_EQ(bind.access,
              IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC);
    EXPECT_EQ(bind.start, 0x2000u);
    EXPECT_EQ(bind.length, 64u);
    EXPECT_EQ(bind.region_key, 0x777u);
    EXPECT_EQ(bind.region_address, 0x3000u);
    EXPECT_TRUE(bind.only_if_free);
    EXPECT_FALSE(bind.unbind);
    EXPECT_FALSE(bind.only_of_qp);
}

TEST_F(SendQueueTest, AnUnbindSetsNoRange) {
    SendQueue queue = make();
    Bind unbind;
    unbind.with_klm = false;
    unbind.control.klm_octowords = 0;
    unbind.control.flags = MLX5_WQE_UMR_CTRL_FLAG_INLINE | MLX5_WQE_UMR_CTRL_FLAG_CHECK_QPN;
    unbind.control.mkey_mask = htobe64(MLX5_WQE_UMR_CTRL_MKEY_MASK_FREE);
    unbind.context.free = MLX5_WQE_MKEY_CONTEXT_FREE;
    put(unbind.wqe());
    const SendWqe* wqe = queue.next();
    ASSERT_NE(wqe, nullptr);
    EXPECT_TRUE(wqe->bind.unbind);
    EXPECT_TRUE(wqe->bind.only_of_qp);
    EXPECT_EQ(wqe->bind.length, 0u);
}

TEST_F(SendQueueTest, LongWqesGoOnAtTheRingsBeginning) {
    SendQueue queue = make();
    std::uint16_t index = 0;
    for (int i = 0; i < 30000; ++i) {
        const std::string text(150, static_cast<char>('a' + i % 26));  // 3 of the ring's 8 blocks
        put(Wqe(MLX5_OPCODE_SEND, index).inline_data(text));
        const SendWqe* wqe = queue.next();
        ASSERT_NE(wqe, nullptr);
        ASSERT_EQ(wqe->index, index);
        ASSERT_EQ(std::memcmp(wqe->inline_data, text.data(), text.size()), 0) << i;
        queue.done();
        index = static_cast<std::uint16_t>(index + 3);
    }
}

TEST_F(SendQueueTest, BeginsAnewAfterReset) {
    SendQueue queue = make();
    put(Wqe(MLX5_OPCODE_SEND).data(1));
    (void)queue.next();
    queue.reset();
    posted = 0;
    tell(0);
    EXPECT_EQ(queue.next(), nullptr);
    put(Wqe(MLX5_OPCODE_NOP));
    ASSERT_NE(queue.next(), nullptr);
    EXPECT_EQ(queue.next()->opcode, MLX5_OPCODE_NOP);
}

TEST_F(SendQueueTest, AQueuePairMayHaveNone) {
    SendQueue queue(kQpn, IBV_QPT_RC, {});
    EXPECT_TRUE(queue.empty());
    EXPECT_EQ(queue.next(), nullptr);
}

TEST_F(SendQueueTest, DoorbellsAreLookedFor) {
    SendQueue queue = make();
    Wqe first = Wqe(MLX5_OPCODE_SEND, 0).data(1);
    Wqe second = Wqe(MLX5_OPCODE_SEND, 1).data(2);
    Wqe third = Wqe(MLX5_OPCODE_SEND, 2).data(3);
    put(first);
    std::memcpy(uar + 0x800, first.bytes().data(), first.bytes().size());
    (void)queue.next();
    queue.done();
    put(second);
    std::memcpy(uar + 0x900, second.bytes().data(), 8);
    (void)queue.next();
    queue.done();
    put(third);
    (void)queue.next();
    EXPECT_EQ(queue.doorbells().records, 3u);
    EXPECT_EQ(queue.doorbells().rung, 2u);
    EXPECT_EQ(queue.doorbells().blueflame, 1u);
}

// ---- What hardware would not accept ----

TEST_F(SendQueueDeathTest, ARingOfStrangeSizeIsRefused) {
    EXPECT_DEATH(SendQueue(kQpn, IBV_QPT_RC, {bytes, 3, &record, nullptr}),
                 "QP 0x123 has 3 send blocks, which is no power of two");
}

TEST_F(SendQueueDeathTest, AStrangeRecordIsRefused) {
    SendQueue queue = make();
    tell(0x10000);
    EXPECT_DEATH((void)queue.next(), "0x10000, of more than 16 bits");
    tell(kBlocks + 1);
    EXPECT_DEATH((void)queue.next(), "goes from 0 to 9 while 0 was carried out last, in 8 blocks");
    tell(0xffff);
    EXPECT_DEATH((void)queue.next(), "goes from 0 to 65535");
    tell(0);
    put(Wqe(MLX5_OPCODE_NOP, 0));
    put(Wqe(MLX5_OPCODE_NOP, 1));
    (void)queue.next();
    tell(1);
    EXPECT_DEATH((void)queue.next(), "goes from 2 to 1");
}

TEST_F(SendQueueDeathTest, AWqeOfAnotherPlaceOrQueuePairIsRefused) {
    EXPECT_DEATH(read_one(Wqe(MLX5_OPCODE_SEND, 1).data(1)), "WQE 0 says that it is 1");
    Wqe other = Wqe(MLX5_OPCODE_SEND).data(1);
    other.control().qpn_ds = htobe32(0x124 << 8 | 2);
    EXPECT_DEATH(read_one(other), "says that it is of QP 0x124");
}

TEST_F(SendQueueDeathTest, AWqeOfStrangeSizeIsRefused) {
    Wqe wqe = Wqe(MLX5_OPCODE_SEND).data(1);
    wqe.control().qpn_ds = htobe32(kQpn << 8);
    EXPECT_DEATH(read_one(wqe), "WQE 0 has a size of 0x0 segments");
    wqe.control().qpn_ds = htobe32(kQpn << 8 | 0x42);
    EXPECT_DEATH(read_one(wqe), "has a size of 0x42 segments");
    wqe.control().qpn_ds = htobe32(kQpn << 8 | 5);
    EXPECT_DEATH(read_one(wqe), "WQE 0 has 2 blocks, and the doorbell tells of 1");
}

TEST_F(SendQueueDeathTest, ReservedBitsAreRefused) {
    Wqe wqe = Wqe(MLX5_OPCODE_SEND).data(1);
    wqe.control().opmod_idx_opcode |= htobe32(1u << 24);
    EXPECT_DEATH(read_one(wqe), "WQE 0 has the modifier 0x1");
    wqe = Wqe(MLX5_OPCODE_SEND, 0, 0x10).data(1);
    EXPECT_DEATH(read_one(wqe), "WQE 0 has the flags 0x10");
    wqe = Wqe(MLX5_OPCODE_SEND).data(1);
    wqe.control().signature = 1;
    EXPECT_DEATH(read_one(wqe), "WQE 0 has reserved bytes");
    wqe.control().signature = 0;
    wqe.control().dci_stream_channel_id = 1;
    EXPECT_DEATH(read_one(wqe), "WQE 0 has reserved bytes");
    EXPECT_DEATH(read_one(Wqe(MLX5_OPCODE_RDMA_WRITE).remote(1, 2, 3).data(1)),
                 "reserved bytes behind its remote address");
}

TEST_F(SendQueueDeathTest, AnOpcodeThatTheTypeHasNotIsRefused) {
    const auto refused = [&](ibv_qp_type type, std::uint8_t opcode) {
        EXPECT_DEATH(read_one(Wqe(opcode), type), "which its type has not");
    };
    refused(IBV_QPT_UD, MLX5_OPCODE_RDMA_WRITE);
    refused(IBV_QPT_UD, MLX5_OPCODE_SEND_INVAL);
    refused(IBV_QPT_UD, MLX5_OPCODE_UMR);
    refused(IBV_QPT_UC, MLX5_OPCODE_RDMA_READ);
    refused(IBV_QPT_UC, MLX5_OPCODE_ATOMIC_FA);
    refused(IBV_QPT_RC, MLX5_OPCODE_TSO);
}

TEST_F(SendQueueDeathTest, AWqeThatEndsTooEarlyIsRefused) {
    EXPECT_DEATH(read_one(Wqe(MLX5_OPCODE_RDMA_WRITE)), "ends within its remote address segment");
    EXPECT_DEATH(read_one(Wqe(MLX5_OPCODE_ATOMIC_CS).remote(1, 2)), "ends within its atomic segment");
    EXPECT_DEATH(read_one(Wqe(MLX5_OPCODE_SEND).data(1), IBV_QPT_UD), "ends within its datagram segment");
    EXPECT_DEATH(read_one(Wqe(MLX5_OPCODE_UMR)), "ends within its UMR control segment");
}

TEST_F(SendQueueDeathTest, AShortAddressVectorIsRefused) {
    mlx5_wqe_datagram_seg datagram{};
    datagram.av.dqp_dct = htobe32(0x234);
    EXPECT_DEATH(read_one(Wqe(MLX5_OPCODE_SEND).append(datagram).data(1), IBV_QPT_UD),
                 "an address vector of the short form");
}

TEST_F(SendQueueDeathTest, DataThatHardwareReadsOtherwiseIsRefused) {
    EXPECT_DEATH(read_one(Wqe(MLX5_OPCODE_SEND).data(0)), "a data segment without length, which is 2 GiB");
    EXPECT_DEATH(read_one(Wqe(MLX5_OPCODE_SEND).data(1).inline_data("x")), "inline data behind other data");
    EXPECT_DEATH(read_one(Wqe(MLX5_OPCODE_SEND).inline_data("x", 13)), "WQE 0 has 13 inline bytes in 16");
    EXPECT_DEATH(read_one(Wqe(MLX5_OPCODE_SEND).inline_data("twenty bytes of text", 12)),
                 "WQE 0 has 12 inline bytes in 32");
    EXPECT_DEATH(read_one(Wqe(MLX5_OPCODE_RDMA_READ).remote(1, 2).inline_data("x")), "would read into inline data");
}

TEST_F(SendQueueDeathTest, AnAtomicOfOtherSizesIsRefused) {
    EXPECT_DEATH(read_one(Wqe(MLX5_OPCODE_ATOMIC_FA).remote(1, 2).atomic(3, 4).data(4)),
                 "an atomic with 1 data segments, of 4 bytes");
    EXPECT_DEATH(read_one(Wqe(MLX5_OPCODE_ATOMIC_FA).remote(1, 2).atomic(3, 4).data(4).data(4)),
                 "an atomic with 2 data segments");
    EXPECT_DEATH(read_one(Wqe(MLX5_OPCODE_ATOMIC_FA).remote(1, 2).atomic(3, 4)), "an atomic with 0 data segments");
}

TEST_F(SendQueueDeathTest, AStrangeBindIsRefused) {
    Bind bind;
    bind.control.flags = 0;
    EXPECT_DEATH(read_one(bind.wqe()), "the UMR of WQE 0 is not inline");
    bind = {};
    bind.control.mkey_mask = htobe64(MLX5_WQE_UMR_CTRL_MKEY_MASK_LEN | MLX5_WQE_UMR_CTRL_MKEY_MASK_START_ADDR);
    EXPECT_DEATH(read_one(bind.wqe()), "does not say whether the key is free");
    bind = {};
    bind.control.klm_octowords = htobe16(1);
    EXPECT_DEATH(read_one(bind.wqe()), "has 1 octowords of translations");
    bind = {};
    bind.control.mkey_mask = htobe64(MLX5_WQE_UMR_CTRL_MKEY_MASK_FREE | MLX5_WQE_UMR_CTRL_MKEY_MASK_LEN);
    EXPECT_DEATH(read_one(bind.wqe()), "sets no range");
    bind = {};
    bind.klm.byte_count = htobe32(63);
    EXPECT_DEATH(read_one(bind.wqe()), "translates 63 bytes of 64");
    bind = {};
    bind.with_klm = false;
    EXPECT_DEATH(read_one(bind.wqe()), "ends within its translation segment");
    bind = {};
    EXPECT_DEATH(read_one(bind.wqe().data(1)), "is followed by 16 bytes");
}

}  // namespace
}  // namespace mlx5_model
