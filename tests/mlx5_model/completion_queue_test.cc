#include "completion_queue.hpp"

#include <endian.h>
#include <fcntl.h>
#include <unistd.h>

#include <cstring>
#include <vector>

#include <gtest/gtest.h>

#include "hca_fabric.hpp"
#include "uverbs_file.hpp"

namespace mlx5_model {
namespace {

constexpr std::uint32_t kCqn = 0x42;
constexpr std::uint32_t kEntries = 4;
constexpr std::uint64_t kUser = 0x1234;
constexpr std::uint32_t kSolicited = 1u << 24;

class CompletionQueueTest : public testing::Test {
protected:
    explicit CompletionQueueTest(std::uint32_t size = 64) : entry_size(size) {
        descriptor = UverbsFile::open(*Fabric::get().hcas().front());
        file = std::dynamic_pointer_cast<UverbsFile>(attached(descriptor));
        attach(channel->descriptor(), channel);
        EXPECT_EQ(::fcntl(channel->descriptor(), F_SETFL, O_NONBLOCK), 0);
        for (std::uint32_t i = 0; i < kEntries; ++i) {
            entry(i).op_own = MLX5_CQE_INVALID << 4;
        }
    }
    ~CompletionQueueTest() override {
        ::close(channel->descriptor());
        file.reset();
        ::close(descriptor);
    }

    mlx5_cqe64& entry(std::uint32_t index) {
        return *reinterpret_cast<mlx5_cqe64*>(bytes + std::size_t{index % kEntries + 1} * entry_size -
                                              sizeof(mlx5_cqe64));
    }
    [[nodiscard]] CompletionQueueMemory memory() { return {bytes, doorbells, entry_size, kEntries}; }
    CompletionQueue make() { return {file.get(), kCqn, kUser, memory(), channel}; }
    void consume_up_to(std::uint32_t index) { doorbells[0] = htobe32(index); }
    void arm(std::uint32_t sequence, std::uint32_t index, std::uint32_t solicited = 0) {
        doorbells[1] = htobe32(sequence << 28 | solicited | index);
    }
    static void put(CompletionQueue& cq, bool solicited = false, std::uint64_t now = 1) {
        mlx5_cqe64 cqe{};
        cqe.op_own = MLX5_CQE_RESP_SEND << 4;
        cq.write(cqe, nullptr, 0, solicited, now);
    }
    /// Reads all events of the channel, and returns their number.
    int events() {
        int count = 0;
        std::uint64_t handle = 0;
        while (channel->read(&handle, sizeof handle) == sizeof handle) {
            EXPECT_EQ(handle, kUser);
            ++count;
        }
        return count;
    }

    std::uint32_t entry_size;
    int descriptor = -1;
    std::shared_ptr<UverbsFile> file;
    std::shared_ptr<EventQueue> channel = std::make_shared<EventQueue>();
    alignas(64) std::uint8_t bytes[128 * kEntries] = {};
    volatile std::uint32_t doorbells[2] = {};
};
class WideCompletionQueueTest : public CompletionQueueTest {
protected:
    WideCompletionQueueTest() : CompletionQueueTest(128) {}
};
using CompletionQueueDeathTest = CompletionQueueTest;

TEST_F(CompletionQueueTest, TheOwnerTurnsWithEachLap) {
    CompletionQueue cq = make();
    for (std::uint32_t i = 0; i < 10 * kEntries; ++i) {
        put(cq);
        EXPECT_EQ(entry(i).op_own, MLX5_CQE_RESP_SEND << 4 | ((i / kEntries) & 1)) << i;
        consume_up_to(i + 1);
    }
    EXPECT_FALSE(cq.lost());
}

TEST_F(CompletionQueueTest, TheIndexHas24Bits) {
    CompletionQueue cq = make();
    for (std::uint32_t i = 0; i < (1u << 24) + 3 * kEntries; ++i) {
        put(cq);
        if (entry(i).op_own != (MLX5_CQE_RESP_SEND << 4 | ((i / kEntries) & 1))) {
            FAIL() << i;
        }
        consume_up_to((i + 1) & 0xffffff);
    }
    EXPECT_FALSE(cq.lost());
}

TEST_F(CompletionQueueTest, AnEntryIsWrittenAsItIs) {
    CompletionQueue cq = make();
    mlx5_cqe64 cqe{};
    cqe.byte_cnt = htobe32(17);
    cqe.wqe_counter = htobe16(3);
    cqe.op_own = MLX5_CQE_REQ << 4;
    cq.write(cqe, nullptr, 0, true, 99);
    EXPECT_EQ(be32toh(entry(0).byte_cnt), 17u);
    EXPECT_EQ(be16toh(entry(0).wqe_counter), 3);
    EXPECT_EQ(be64toh(entry(0).timestamp), 99u);
    EXPECT_EQ(entry(0).op_own, MLX5_CQE_REQ << 4 | 2) << "solicited";
}

TEST_F(CompletionQueueTest, AnErrorsSyndromeIsNoTime) {
    CompletionQueue cq = make();
    mlx5_cqe64 cqe{};
    auto& error = reinterpret_cast<mlx5_err_cqe&>(cqe);
    error.syndrome = 0x22;
    error.vendor_err_synd = 0x81;
    error.op_own = MLX5_CQE_REQ_ERR << 4;
    cq.write(cqe, nullptr, 0, true, ~0ull);
    const auto& written = reinterpret_cast<const mlx5_err_cqe&>(entry(0));
    EXPECT_EQ(written.syndrome, 0x22);
    EXPECT_EQ(written.vendor_err_synd, 0x81);
}

TEST_F(CompletionQueueTest, SmallPayloadStandsInTheEntry) {
    CompletionQueue cq = make();
    EXPECT_EQ(cq.scatter_max(), 32u);
    mlx5_cqe64 cqe{};
    cqe.op_own = MLX5_CQE_RESP_SEND << 4;
    cqe.byte_cnt = htobe32(5);
    cq.write(cqe, "12345", 5, false, 1);
    EXPECT_EQ(std::memcmp(&entry(0), "12345", 5), 0);
    EXPECT_EQ(entry(0).op_own, MLX5_CQE_RESP_SEND << 4 | MLX5_INLINE_SCATTER_32);
    EXPECT_EQ(be32toh(entry(0).byte_cnt), 5u);
}

TEST_F(WideCompletionQueueTest, HasRoomForTwiceAsMuchBeforeTheEntry) {
    CompletionQueue cq = make();
    EXPECT_EQ(cq.scatter_max(), 64u);
    std::uint8_t payload[64];
    for (std::uint8_t i = 0; i < 64; ++i) {
        payload[i] = static_cast<std::uint8_t>(i + 1);
    }
    mlx5_cqe64 cqe{};
    cqe.op_own = MLX5_CQE_RESP_SEND << 4;
    cq.write(cqe, payload, 64, false, 1);
    EXPECT_EQ(std::memcmp(bytes, payload, 64), 0);
    EXPECT_EQ(entry(0).op_own, MLX5_CQE_RESP_SEND << 4 | MLX5_INLINE_SCATTER_64);
    cq.write(cqe, payload, 32, false, 1);
    EXPECT_EQ(std::memcmp(&entry(1), payload, 32), 0);
    EXPECT_EQ(entry(1).op_own, MLX5_CQE_RESP_SEND << 4 | MLX5_INLINE_SCATTER_32);
}

TEST_F(CompletionQueueTest, WithoutRoomItIsLostAndWritesNoMore) {
    CompletionQueue cq = make();
    for (std::uint32_t i = 0; i < kEntries; ++i) {
        put(cq);
    }
    EXPECT_FALSE(cq.lost());
    const mlx5_cqe64 oldest = entry(0);
    put(cq);
    EXPECT_TRUE(cq.lost());
    EXPECT_EQ(std::memcmp(&entry(0), &oldest, sizeof oldest), 0) << "nothing is written over";
    consume_up_to(kEntries);
    put(cq);
    EXPECT_EQ(std::memcmp(&entry(0), &oldest, sizeof oldest), 0);
    arm(0, 0);
    cq.fire(1);
    EXPECT_EQ(events(), 0);
}

// ---- Arming ----

TEST_F(CompletionQueueTest, WhatLibmlx5LeavesThereArmsNothing) {
    CompletionQueue cq = make();
    put(cq);
    cq.fire(1);
    EXPECT_EQ(events(), 0);
}

TEST_F(CompletionQueueTest, FiresOnceForAnArming) {
    CompletionQueue cq = make();
    arm(0, 0);
    cq.fire(1);
    EXPECT_EQ(events(), 0) << "nothing has come";
    put(cq);
    cq.fire(1);
    put(cq);
    cq.fire(1);
    EXPECT_EQ(events(), 1);
    // A new sequence number makes this another arming.
    consume_up_to(2);
    arm(1, 2);
    cq.fire(1);
    EXPECT_EQ(events(), 0) << "only what comes after the index counts";
    put(cq);
    cq.fire(1);
    EXPECT_EQ(events(), 1);
}

TEST_F(CompletionQueueTest, WhatCameBeforeTheArmingIsToldAtOnce) {
    CompletionQueue cq = make();
    put(cq);
    put(cq);
    consume_up_to(1);
    arm(0, 1);
    cq.fire(1);
    EXPECT_EQ(events(), 1);
}

TEST_F(CompletionQueueTest, AnArmingForTheSolicitedWaitsForOne) {
    CompletionQueue cq = make();
    arm(0, 0, kSolicited);
    put(cq);
    cq.fire(1);
    EXPECT_EQ(events(), 0);
    put(cq, true);
    cq.fire(1);
    EXPECT_EQ(events(), 1);
    consume_up_to(2);
    arm(1, 2, kSolicited);
    put(cq);
    cq.fire(1);
    EXPECT_EQ(events(), 0) << "the solicited one lies before the index";
}

TEST_F(CompletionQueueTest, ModerationWaitsForSoManyOrSoLong) {
    CompletionQueue cq = make();
    cq.moderate(3, 10);
    arm(0, 0);
    put(cq, false, 1000);
    put(cq, false, 2000);
    cq.fire(10999);
    EXPECT_EQ(events(), 0);
    put(cq, false, 3000);
    cq.fire(3000);
    EXPECT_EQ(events(), 1) << "so many";
    consume_up_to(3);
    arm(1, 3);
    put(cq, false, 20000);
    cq.fire(29999);
    EXPECT_EQ(events(), 0);
    cq.fire(30000);
    EXPECT_EQ(events(), 1) << "so long";
}

TEST_F(CompletionQueueTest, UnreadEventsAreTakenBackAndReadOnesCounted) {
    CompletionQueue cq = make();
    arm(0, 0);
    put(cq);
    cq.fire(1);
    EXPECT_EQ(events(), 1);
    arm(1, 0);
    cq.fire(1);
    const CompletionQueue::Read read = cq.forget_events();
    EXPECT_EQ(read.completion_events, 1u);
    EXPECT_EQ(read.async_events, 0u);
    EXPECT_EQ(events(), 0);
}

// ---- What hardware would not accept ----

TEST_F(CompletionQueueDeathTest, OfStrangeSizesIsRefused) {
    entry_size = 32;
    EXPECT_DEATH(make(), "CQ 0x42 has entries of 32 bytes");
    entry_size = 64;
    CompletionQueueMemory three = memory();
    three.entry_count = 3;
    EXPECT_DEATH(CompletionQueue(file.get(), kCqn, kUser, three, nullptr), "has 3 entries, which is no power of two");
}

TEST_F(CompletionQueueDeathTest, EntriesThatSoftwareKeepsAreRefused) {
    entry(2).op_own = 0;
    EXPECT_DEATH(make(), "CQ 0x42: entry 2 was not given to the hardware");
}

TEST_F(CompletionQueueDeathTest, AConsumerIndexBeyondWhatCameIsRefused) {
    CompletionQueue cq = make();
    consume_up_to(1);
    EXPECT_DEATH(put(cq), "CQ 0x42: 1 of 0 CQEs were consumed");
    consume_up_to(0x1000000);
    EXPECT_DEATH(put(cq), "of more than 24 bits");
}

TEST_F(CompletionQueueDeathTest, AStrangeArmingIsRefused) {
    CompletionQueue cq = make();
    doorbells[1] = htobe32(0x40000000);
    EXPECT_DEATH(cq.fire(1), "CQ 0x42: it was armed with 0x40000000");
    arm(0, 1);
    EXPECT_DEATH(cq.fire(1), "it was armed for what follows CQE 1, and the next is 0");
}

}  // namespace
}  // namespace mlx5_model
