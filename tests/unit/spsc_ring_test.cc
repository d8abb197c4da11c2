// The ring: every operation, with indices at zero, at the end of the slots and at the end of the integer range.
#include "pollcore/spsc_ring.hpp"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <new>
#include <string>
#include <type_traits>
#include <utility>

#include <gtest/gtest.h>

#include "pollcore/completion.hpp"
#include "pollcore/work_request.hpp"

namespace pollcore {
namespace {

static_assert(!std::is_copy_constructible_v<RingProducer<WorkRequest>>);
static_assert(!std::is_copy_constructible_v<RingConsumer<WorkRequest>>);
static_assert(std::is_nothrow_move_constructible_v<RingProducer<WorkRequest>>);
static_assert(ring_bytes<WorkRequest>(8) == 3 * kCacheLine + 8 * 64);
static_assert(ring_bytes<Completion>(8) == 3 * kCacheLine + 8 * 32);

struct Memory {
    explicit Memory(std::size_t bytes) : data(::operator new (bytes, std::align_val_t{kCacheLine})) {}
    ~Memory() { ::operator delete (data, std::align_val_t{kCacheLine}); }
    Memory(const Memory&) = delete;
    Memory& operator=(const Memory&) = delete;
    void* data;
};

template <class T>
T item(std::uint64_t tag) {
    T value;
    value.tag = tag;
    return value;
}

struct Start {
    std::uint32_t capacity;
    std::uint64_t index;
};

class RingAt : public ::testing::TestWithParam<Start> {
protected:
    RingAt() : memory(ring_bytes<Completion>(capacity())) {
        format_ring<Completion>(memory.data, capacity(), GetParam().index);
        producer = RingProducer<Completion>(memory.data, capacity());
        consumer = RingConsumer<Completion>(memory.data, capacity());
    }
    [[nodiscard]] static std::uint32_t capacity() { return GetParam().capacity; }

    Memory memory;
    RingProducer<Completion> producer;
    RingConsumer<Completion> consumer;
};

TEST_P(RingAt, IsEmptyWhenFormatted) {
    EXPECT_FALSE(consumer.ready());
    EXPECT_EQ(consumer.peek(capacity()), 0u);
    EXPECT_EQ(producer.reserve(2 * capacity()), capacity());
    EXPECT_EQ(producer.produced(), GetParam().index);
}

TEST_P(RingAt, GivesBackWhatWasPushedInOrderOverManyLaps) {
    std::uint64_t pushed = 0;
    std::uint64_t taken = 0;
    for (int round = 0; round < 1000; ++round) {
        while (producer.try_push(item<Completion>(pushed))) {
            ++pushed;
        }
        ASSERT_EQ(pushed - taken, capacity());
        ASSERT_EQ(consumer.peek(2 * capacity()), capacity());
        while (consumer.ready()) {
            ASSERT_EQ(consumer.slot(0).tag, taken);
            ASSERT_EQ(consumer.copy(0).tag, taken);
            consumer.release(1);
            ++taken;
        }
        consumer.publish();
    }
    EXPECT_EQ(taken, pushed);
    EXPECT_FALSE(producer.broken());
}

TEST_P(RingAt, RefusesWhenFullAndTakesAgainAfterARelease) {
    for (std::uint32_t i = 0; i < capacity(); ++i) {
        ASSERT_TRUE(producer.try_push(item<Completion>(i)));
    }
    EXPECT_FALSE(producer.try_push(item<Completion>(99)));
    EXPECT_EQ(producer.reserve(1), 0u);
    consumer.release(1);
    consumer.publish();
    EXPECT_TRUE(producer.try_push(item<Completion>(capacity())));
    EXPECT_FALSE(producer.try_push(item<Completion>(99)));
    EXPECT_EQ(consumer.slot(0).tag, 1u);
}

TEST_P(RingAt, ShowsNothingOfABatchBeforeItsCommit) {
    const std::size_t n = producer.reserve(capacity());
    ASSERT_EQ(n, capacity());
    for (std::size_t i = 0; i < n; ++i) {
        producer.write(i, item<Completion>(i + 1));
        EXPECT_EQ(consumer.peek(capacity()), 0u);
    }
    producer.commit(n);
    EXPECT_EQ(consumer.peek(capacity()), n);
    for (std::size_t i = 0; i < n; ++i) {
        EXPECT_EQ(consumer.slot(i).tag, i + 1);
    }
}

TEST_P(RingAt, ASlotMayBeWrittenAgainBeforeItsCommit) {
    producer.write(0, item<Completion>(1));
    ASSERT_EQ(producer.reserve(1), 1u);
    producer.write(0, item<Completion>(2));
    producer.commit(1);
    EXPECT_EQ(consumer.peek(capacity()), 1u);
    EXPECT_EQ(consumer.slot(0).tag, 2u);
}

TEST_P(RingAt, KeepsItsStateWhenItsEndsMove) {
    ASSERT_TRUE(producer.try_push(item<Completion>(7)));
    RingProducer<Completion> producer2 = std::move(producer);
    RingConsumer<Completion> consumer2 = std::move(consumer);
    EXPECT_EQ(consumer2.slot(0).tag, 7u);
    consumer2.release(1);
    consumer2.publish();
    EXPECT_TRUE(producer2.try_push(item<Completion>(8)));
    EXPECT_TRUE(consumer2.ready());
    EXPECT_EQ(consumer2.slot(0).tag, 8u);
}

TEST_P(RingAt, WorksWhereTheOtherSideHasMappedItElsewhere) {
    Memory copy(ring_bytes<Completion>(capacity()));
    ASSERT_TRUE(producer.try_push(item<Completion>(5)));
    std::memcpy(copy.data, memory.data, ring_bytes<Completion>(capacity()));
    RingConsumer<Completion> elsewhere(copy.data, capacity());
    ASSERT_TRUE(elsewhere.ready());
    EXPECT_EQ(elsewhere.slot(0).tag, 5u);
}

TEST_P(RingAt, AProducerBeginsWhereTheOneBeforeItLeftOff) {
    ASSERT_TRUE(producer.try_push(item<Completion>(1)));
    ASSERT_EQ(consumer.peek(1), 1u);
    consumer.release(1);
    // After the release is published, the ring will have room for one more item than this.
    for (std::uint64_t tag = 2; tag <= capacity(); ++tag) {
        ASSERT_TRUE(producer.try_push(item<Completion>(tag)));
    }
    RingProducer<Completion> next(memory.data, capacity());
    EXPECT_EQ(next.produced(), producer.produced());
    consumer.publish();
    EXPECT_TRUE(next.try_push(item<Completion>(capacity() + 1)));
    EXPECT_FALSE(next.try_push(item<Completion>(0)));
    for (std::uint64_t tag = 2; tag <= capacity() + 1; ++tag) {
        ASSERT_EQ(consumer.peek(1), 1u);
        EXPECT_EQ(consumer.slot(0).tag, tag);
        consumer.release(1);
    }
    EXPECT_FALSE(next.broken());
}

TEST_P(RingAt, BatchesAndSingleItemsMixInAnyWay) {
    std::uint64_t pushed = 0;
    std::uint64_t taken = 0;
    for (std::uint32_t round = 0; round < 2000; ++round) {
        const std::size_t n = producer.reserve(round * 7 % 5);
        for (std::size_t i = 0; i < n; ++i) {
            producer.write(i, item<Completion>(pushed + i));
            ASSERT_EQ(consumer.peek(capacity()), pushed - taken) << "a batch is seen when it is whole";
        }
        if (n > 0) {
            producer.commit(n);
            pushed += n;
        }
        const std::size_t wanted = round * 3 % 4;
        const std::size_t got = consumer.peek(wanted);
        ASSERT_EQ(got, std::min<std::size_t>(wanted, pushed - taken));
        for (std::size_t i = 0; i < got; ++i) {
            ASSERT_EQ(consumer.slot(i).tag, taken + i);
        }
        // In some rounds the last item that was seen is not released yet.
        const std::size_t released = got - (got > 1 ? round % 2 : 0);
        consumer.release(released);
        consumer.publish();
        taken += released;
    }
    EXPECT_GT(pushed, 1000u);
    EXPECT_FALSE(producer.broken());
}

TEST_P(RingAt, TheHighWaterIsTheMostThatTheProducerFoundOccupied) {
    const auto high_water = [&] { return static_cast<RingHeader*>(memory.data)->high_water.load(); };
    EXPECT_EQ(high_water(), 0u);
    ASSERT_TRUE(producer.try_push(item<Completion>(1)));
    EXPECT_EQ(producer.unreleased(), 1u);  // the producer looks
    EXPECT_EQ(high_water(), 1u);
    while (producer.try_push(item<Completion>(2))) {
    }
    EXPECT_EQ(high_water(), capacity());  // it looked again, because the ring seemed full
    consumer.release(capacity());
    consumer.publish();
    ASSERT_TRUE(producer.try_push(item<Completion>(3)));
    EXPECT_EQ(high_water(), capacity());
}

TEST_P(RingAt, ReportsAConsumerThatReleasesWhatItNeverGot) {
    ASSERT_TRUE(producer.try_push(item<Completion>(1)));
    auto* header = static_cast<RingHeader*>(memory.data);
    header->released.store(GetParam().index + 2);
    EXPECT_EQ(producer.unreleased(), 1u);
    EXPECT_TRUE(producer.broken());
}

TEST_P(RingAt, ReportsAConsumerThatGoesBackwards) {
    ASSERT_TRUE(producer.try_push(item<Completion>(1)));
    auto* header = static_cast<RingHeader*>(memory.data);
    header->released.store(GetParam().index - 1);
    (void)producer.unreleased();
    EXPECT_TRUE(producer.broken());
}

constexpr std::uint64_t kEnd = std::numeric_limits<std::uint64_t>::max();
std::string start_name(const ::testing::TestParamInfo<Start>& start) {
    return "capacity" + std::to_string(start.param.capacity) + "_from" + std::to_string(start.param.index);
}
INSTANTIATE_TEST_SUITE_P(Starts, RingAt,
                         ::testing::Values(Start{1, 0}, Start{2, 0}, Start{4, 0}, Start{64, 0}, Start{1024, 0},
                                           Start{1, kEnd}, Start{2, kEnd - 1}, Start{4, 3}, Start{4, kEnd - 1},
                                           Start{64, 63}, Start{64, kEnd - 100}, Start{1024, kEnd},
                                           // In these cases the lap byte wraps around.
                                           Start{4, 4 * 255 - 2}, Start{4, 4 * 256 - 2}, Start{64, 64ull * 256 - 1}),
                         start_name);

TEST(Ring, TellsTheProducerLazilyButNeverStarvesIt) {
    constexpr std::uint32_t kCapacity = 64;
    Memory memory(ring_bytes<Completion>(kCapacity));
    format_ring<Completion>(memory.data, kCapacity);
    RingProducer<Completion> producer(memory.data, kCapacity);
    RingConsumer<Completion> consumer(memory.data, kCapacity);
    for (std::uint32_t i = 0; i < kCapacity; ++i) {
        ASSERT_TRUE(producer.try_push(item<Completion>(i)));
    }
    consumer.release(7);
    EXPECT_EQ(consumer.published(), 0u);
    EXPECT_EQ(consumer.released(), 7u);
    consumer.release(1);
    EXPECT_EQ(consumer.published(), 8u);
    EXPECT_EQ(producer.reserve(100), 8u);
}

TEST_P(RingAt, ASlotThatTheProducerHasNotBackCanBeAnsweredIn) {
    std::uint64_t last = 0;
    for (std::uint64_t i = 0; i < 600; ++i) {
        ASSERT_TRUE(producer.try_push(item<Completion>(i)));
        const std::uint64_t index = producer.produced() - 1;
        ASSERT_TRUE(consumer.ready());
        EXPECT_FALSE(consumer.holds(index));
        consumer.release_later(1);
        EXPECT_LE(4 * (consumer.released() - consumer.published()), capacity());
        EXPECT_EQ(consumer.holds(index), consumer.unpublished());
        if (consumer.holds(index)) {
            (void)producer.answered(index, last);
            EXPECT_EQ(last >> 40 & 0x80, 0u);
            consumer.answer(index, 1, 1000 + i, std::uint64_t{0x80} << 40);
            const Completion& slot = producer.answered(index, last);
            EXPECT_EQ(last >> 40 & 0x80, 0x80u);
            EXPECT_EQ(slot.tag, i);
            EXPECT_EQ(words_of(const_cast<Completion&>(slot))[1], 1000 + i);
            EXPECT_FALSE(consumer.ready()) << "its lap is what it was";
        }
        if (i % 5 == 4) {
            consumer.publish();
            EXPECT_FALSE(consumer.holds(index));
        }
    }
    EXPECT_FALSE(producer.broken());
}

TEST(Ring, ASlotOfOneLineCarriesAllItsBytes) {
    Memory memory(ring_bytes<WorkRequest>(2));
    format_ring<WorkRequest>(memory.data, 2);
    RingProducer<WorkRequest> producer(memory.data, 2);
    RingConsumer<WorkRequest> consumer(memory.data, 2);
    const WorkRequest sent{.tag = 0x1122334455667788,
                           .swap = 0xf1f2f3f4f5f6f7f8,
                           .sge = {0xa1a2a3a4a5a6a7a8, 0xb1b2b3b4, 0xc1c2c3c4},
                           .remote_addr = 0xd1d2d3d4d5d6d7d8,
                           .compare_add = 0xe1e2e3e4e5e6e7e8,
                           .rkey = 0x01020304,
                           .submitted_at = 0x05060708,
                           .qp = {0x1234, 0x5678},
                           .opcode = Opcode::rdma_read,
                           .flags = 0xab,
                           .num_sge = 0xcd,
                           .ring_lap = 0xff};
    for (int lap = 0; lap < 3; ++lap) {
        ASSERT_TRUE(producer.try_push(sent));
        for (const WorkRequest& got : {consumer.slot(0), consumer.copy(0)}) {
            EXPECT_EQ(std::memcmp(&got, &sent, sizeof(sent) - 1), 0);
        }
        consumer.release(1);
    }
}

}  // namespace
}  // namespace pollcore
