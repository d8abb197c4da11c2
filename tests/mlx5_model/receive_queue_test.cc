#include "receive_queue.hpp"

#include <endian.h>

#include <vector>

#include <gtest/gtest.h>
#include <infiniband/mlx5dv.h>

namespace mlx5_model {
namespace {

constexpr std::uint32_t kNumber = 0x123;
constexpr std::uint32_t kCount = 4;
constexpr std::uint32_t kShift = 5;  // two segments in each WQE

void put_segment(std::uint8_t* wqe, int place, std::uint32_t length, std::uint32_t lkey, std::uint64_t address) {
    auto* segment = reinterpret_cast<mlx5_wqe_data_seg*>(wqe) + place;
    segment->byte_count = htobe32(length);
    segment->lkey = htobe32(lkey);
    segment->addr = htobe64(address);
}
void end_list(std::uint8_t* wqe, int place) {
    put_segment(wqe, place, 0, MLX5_INVALID_LKEY, 0);
}

class RingReceives : public testing::Test {
protected:
    std::uint8_t* slot(std::uint32_t index) { return bytes + (std::size_t{index % kCount} << kShift); }
    void tell(std::uint32_t count) { record = htobe32(count); }
    RingReceiveQueue make() { return {kNumber, bytes, kCount, kShift, &record}; }
    /// Posts and takes one receive.
    void take_one() {
        RingReceiveQueue queue = make();
        tell(1);
        (void)queue.take();
    }

    alignas(64) std::uint8_t bytes[kCount << kShift] = {};
    volatile std::uint32_t record = 0;
};
using RingReceivesDeathTest = RingReceives;

TEST_F(RingReceives, AreTakenInOrderOverManyLapsOfRingAndRecord) {
    RingReceiveQueue queue = make();
    EXPECT_EQ(queue.left(), 0u);
    EXPECT_FALSE(queue.take());
    for (std::uint32_t i = 0; i < 70000; ++i) {
        put_segment(slot(i), 0, i + 1, 0x1000 + i, 0x10000 + i);
        end_list(slot(i), 1);
        tell((i + 1) & 0xffff);
        ASSERT_EQ(queue.left(), 1u);
        const auto receive = queue.take();
        ASSERT_TRUE(receive);
        ASSERT_EQ(receive->counter, static_cast<std::uint16_t>(i));
        ASSERT_EQ(receive->segment_count, 1);
        ASSERT_EQ(receive->segments[0].length, i + 1);
        ASSERT_EQ(receive->segments[0].lkey, 0x1000 + i);
        ASSERT_EQ(receive->segments[0].address, 0x10000 + i);
    }
}

TEST_F(RingReceives, AWholeRingMayBeTold) {
    RingReceiveQueue queue = make();
    for (std::uint32_t i = 0; i < kCount; ++i) {
        put_segment(slot(i), 0, 8, 1, 0);
        put_segment(slot(i), 1, i + 1, 2, 0);
    }
    tell(kCount);
    EXPECT_EQ(queue.left(), kCount);
    for (std::uint32_t i = 0; i < kCount; ++i) {
        const auto receive = queue.take();
        ASSERT_TRUE(receive);
        ASSERT_EQ(receive->data().size(), 2u);
        EXPECT_EQ(receive->data()[1].length, i + 1);
    }
    EXPECT_EQ(queue.left(), 0u);
}

TEST_F(RingReceives, AReceiveMayBeOfNothing) {
    RingReceiveQueue queue = make();
    end_list(slot(0), 0);
    tell(1);
    const auto receive = queue.take();
    ASSERT_TRUE(receive);
    EXPECT_TRUE(receive->data().empty());
}

TEST_F(RingReceives, BeginAnewAfterReset) {
    RingReceiveQueue queue = make();
    end_list(slot(0), 0);
    end_list(slot(1), 0);
    tell(2);
    (void)queue.take();
    tell(0);
    queue.reset();
    EXPECT_EQ(queue.left(), 0u);
    tell(1);
    EXPECT_EQ(queue.take()->counter, 0);
}

TEST_F(RingReceives, AQueuePairMayHaveNone) {
    const RingReceiveQueue queue(kNumber, nullptr, 0, 0, nullptr);
    EXPECT_EQ(queue.left(), 0u);
}

TEST_F(RingReceivesDeathTest, OfStrangeSizesAreRefused) {
    EXPECT_DEATH(RingReceiveQueue(kNumber, bytes, 3, kShift, &record),
                 "QP 0x123 has 3 receives, which is no power of two");
    EXPECT_DEATH(RingReceiveQueue(kNumber, bytes, kCount, 3, &record), "receives of 2\\^3 bytes");
    EXPECT_DEATH(RingReceiveQueue(kNumber, bytes, kCount, 10, &record), "receives of 2\\^10 bytes");
}

TEST_F(RingReceivesDeathTest, MoreThanTheRingHoldsAreRefused) {
    const RingReceiveQueue queue = make();
    tell(kCount + 1);
    EXPECT_DEATH((void)queue.left(), "5 receives were posted to a ring of 4");
    tell(0x10000);
    EXPECT_DEATH((void)queue.left(), "0x10000, of more than 16 bits");
}

TEST_F(RingReceivesDeathTest, ARecordThatGoesBackIsRefused) {
    RingReceiveQueue queue = make();
    end_list(slot(0), 0);
    end_list(slot(1), 0);
    tell(2);
    (void)queue.take();
    (void)queue.take();
    tell(1);
    EXPECT_DEATH((void)queue.left(), "65535 receives were posted to a ring of 4");
}

TEST_F(RingReceivesDeathTest, SegmentsOfNoUseAreRefused) {
    put_segment(slot(0), 0, 0, 7, 0);
    EXPECT_DEATH(take_one(), "receive 0 has a segment without length");
    put_segment(slot(0), 0, 0x80000001, 7, 0);
    EXPECT_DEATH(take_one(), "receive 0 has a segment of 0x80000001 bytes");
    put_segment(slot(0), 0, 5, MLX5_INVALID_LKEY, 0);
    EXPECT_DEATH(take_one(), "receive 0 ends with a segment of 5 bytes");
}

// ---- Shared receive queues ----

constexpr std::uint32_t kShared = 3;  // libmlx5 leaves one of the 4 places free
constexpr std::uint32_t kSges = 2;
constexpr std::uint32_t kStride = 64;

class SharedReceives : public testing::Test {
protected:
    SharedReceives() {
        for (std::uint16_t i = 0; i <= kShared; ++i) {
            follow(i, static_cast<std::uint16_t>((i + 1) % (kShared + 1)));
            end_list(wqe(i) + 16, 0);
        }
    }
    std::uint8_t* wqe(std::uint16_t index) { return bytes + std::size_t{index} * kStride; }
    void follow(std::uint16_t index, std::uint16_t next) {
        reinterpret_cast<mlx5_wqe_srq_next_seg*>(wqe(index))->next_wqe_index = htobe16(next);
    }
    void tell(std::uint32_t count) { record = htobe32(count); }

    alignas(64) std::uint8_t bytes[kStride * (kShared + 1)] = {};
    volatile std::uint32_t record = 0;
    SharedReceiveQueue queue{{kNumber, 1, kShared, kSges}, bytes, &record};
};
using SharedReceivesDeathTest = SharedReceives;

TEST_F(SharedReceives, AreTakenAlongTheList) {
    follow(0, 2);
    follow(2, 1);
    follow(1, 3);
    put_segment(wqe(2) + 16, 0, 5, 6, 7);
    put_segment(wqe(2) + 16, 1, 8, 9, 10);
    end_list(wqe(2) + 16, 2);
    tell(3);
    EXPECT_EQ(queue.left(), 3u);
    EXPECT_EQ(queue.take()->counter, 0);
    const auto second = queue.take();
    ASSERT_TRUE(second);
    EXPECT_EQ(second->counter, 2);
    ASSERT_EQ(second->segment_count, 2);
    EXPECT_EQ(second->segments[1].address, 10u);
    EXPECT_EQ(queue.take()->counter, 1);
    EXPECT_FALSE(queue.take());
    tell(4);
    EXPECT_EQ(queue.take()->counter, 3);
}

TEST_F(SharedReceives, TheLimitIsToldOnce) {
    EXPECT_FALSE(queue.falls_below_limit());
    tell(3);
    queue.set_limit(2);
    EXPECT_FALSE(queue.falls_below_limit());
    (void)queue.take();
    EXPECT_FALSE(queue.falls_below_limit()) << "2 are left";
    (void)queue.take();
    EXPECT_TRUE(queue.falls_below_limit());
    EXPECT_EQ(queue.limit(), 0u);
    EXPECT_FALSE(queue.falls_below_limit());
}

TEST_F(SharedReceivesDeathTest, MoreThanItHoldsAreRefused) {
    tell(kShared + 1);
    EXPECT_DEATH((void)queue.left(), "SRQ 0x123: 4 receives were posted to a queue of 3");
    tell(0x10000);
    EXPECT_DEATH((void)queue.left(), "of more than 16 bits");
}

TEST_F(SharedReceivesDeathTest, AListThatLeadsAwayIsRefused) {
    follow(0, kShared + 1);
    tell(1);
    EXPECT_DEATH((void)queue.take(), "receive 0 is followed by 4, of 3");
}

}  // namespace
}  // namespace mlx5_model
