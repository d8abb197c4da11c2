// Two threads use one ring, with single items and with batches. The tests check the order of the items and their
// payload. Each thread yields when it cannot go on, because both may have to share one core.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <new>
#include <random>
#include <thread>

#include <gtest/gtest.h>

#include "pollcore/completion.hpp"
#include "pollcore/spsc_ring.hpp"
#include "pollcore/work_request.hpp"

namespace pollcore {
namespace {

#if defined(__SANITIZE_THREAD__)
constexpr std::uint64_t kItems = 300'000;
#else
constexpr std::uint64_t kItems = 5'000'000;
#endif

// A word of test data that depends on the item's sequence number and on the word's place in the item.
std::uint64_t word(std::uint64_t sequence, std::uint64_t place) {
    return (sequence * 0x9e3779b97f4a7c15 + place) * 0xbf58476d1ce4e5b9;
}

WorkRequest make(std::uint64_t sequence, WorkRequest*) {
    WorkRequest request;
    request.tag = sequence;
    request.sge = {word(sequence, 1), static_cast<std::uint32_t>(word(sequence, 2)),
                   static_cast<std::uint32_t>(word(sequence, 3))};
    request.remote_addr = word(sequence, 4);
    request.compare_add = word(sequence, 5);
    request.swap = word(sequence, 6);
    request.rkey = static_cast<std::uint32_t>(word(sequence, 7));
    request.submitted_at = static_cast<std::uint32_t>(word(sequence, 8));
    request.qp = {static_cast<std::uint16_t>(word(sequence, 9)), static_cast<std::uint16_t>(word(sequence, 10))};
    request.flags = static_cast<std::uint8_t>(word(sequence, 11));
    request.num_sge = static_cast<std::uint8_t>(word(sequence, 12));
    return request;
}

Completion make(std::uint64_t sequence, Completion*) {
    Completion completion;
    completion.tag = sequence;
    completion.qp = {static_cast<std::uint16_t>(word(sequence, 1)), static_cast<std::uint16_t>(word(sequence, 2))};
    completion.byte_len = static_cast<std::uint32_t>(word(sequence, 3));
    completion.imm_data = static_cast<std::uint32_t>(word(sequence, 4));
    completion.flags = static_cast<std::uint8_t>(word(sequence, 5));
    return completion;
}

/// Writes the contents of a slot, as the fill function of RingProducer::write() must do it: all but the last word,
/// which is returned.
template <class T>
std::uint64_t fill(T& slot, std::uint64_t sequence) {
    const T value = make(sequence, static_cast<T*>(nullptr));
    constexpr std::size_t kBytes = sizeof(T) - sizeof(std::uint64_t);
    std::memcpy(static_cast<void*>(&slot), &value, kBytes);
    std::uint64_t last;
    std::memcpy(&last, reinterpret_cast<const std::byte*>(&value) + kBytes, sizeof(last));
    return last;
}

/// Runs the producer and the consumer in two threads. At random, the producer pushes one item or a batch, and the
/// consumer copies an item or looks at its slot.
template <class T>
void run(std::uint32_t capacity, std::uint64_t start, std::uint32_t seed) {
    const std::size_t bytes = ring_bytes<T>(capacity);
    void* memory = ::operator new (bytes, std::align_val_t{kCacheLine});
    format_ring<T>(memory, capacity, start);

    std::thread producer_thread([&] {
        RingProducer<T> producer(memory, capacity);
        std::mt19937 random(seed);
        for (std::uint64_t next = 0; next < kItems;) {
            const std::size_t wanted = std::min<std::uint64_t>(1 + random() % 48, kItems - next);
            if (wanted == 1) {
                if (producer.try_push(make(next, static_cast<T*>(nullptr)))) {
                    ++next;
                    continue;
                }
            } else if (const std::size_t n = producer.reserve(wanted); n > 0) {
                for (std::size_t i = 0; i < n; ++i) {
                    if (wanted % 3 == 0) {
                        producer.write(i, [&](T& slot) { return fill(slot, next + i); });
                    } else {
                        producer.write(i, make(next + i, static_cast<T*>(nullptr)));
                    }
                }
                producer.commit(n);
                next += n;
                continue;
            }
            std::this_thread::yield();
        }
        EXPECT_FALSE(producer.broken());
    });

    RingConsumer<T> consumer(memory, capacity);
    std::mt19937 random(seed + 1);
    std::uint64_t next = 0;
    std::uint64_t wrong = 0;
    const auto look = [&wrong](const T& got, std::uint64_t sequence) {
        const T expected = make(sequence, static_cast<T*>(nullptr));
        // The last byte of a slot belongs to the ring.
        wrong += std::memcmp(&got, &expected, sizeof(T) - 1) != 0;
    };
    while (next < kItems) {
        const std::size_t most = 1 + random() % 48;
        const std::size_t n = consumer.peek(most);
        for (std::size_t i = 0; i < n; ++i) {
            look(random() % 2 == 0 ? consumer.copy(i) : consumer.slot(i), next + i);
        }
        consumer.release(n);
        next += n;
        if (n == 0) {
            consumer.publish();
            std::this_thread::yield();
        }
    }
    producer_thread.join();
    EXPECT_EQ(wrong, 0u);
    EXPECT_EQ(next, kItems);
    EXPECT_FALSE(consumer.ready());
    ::operator delete (memory, std::align_val_t{kCacheLine});
}

// The consumer answers some requests in their slots, before or after the producer writes the following requests.
TEST(RingStress, AnswersArriveWhole) {
    constexpr std::uint32_t kCapacity = 64;
    constexpr std::uint64_t kTrips = kItems / 10;
    constexpr std::uint64_t kAnswered = std::uint64_t{1} << 47;
    void* memory = ::operator new (ring_bytes<WorkRequest>(kCapacity), std::align_val_t{kCacheLine});
    format_ring<WorkRequest>(memory, kCapacity);
    std::thread consumer_thread([&] {
        RingConsumer<WorkRequest> consumer(memory, kCapacity);
        for (std::uint64_t next = 0; next < kTrips;) {
            if (!consumer.ready()) {
                std::this_thread::yield();
                continue;
            }
            const WorkRequest request = consumer.copy(0);
            consumer.release_later(1);
            if (request.num_sge == 1) {  // the producer waits for an answer to this request
                ASSERT_TRUE(consumer.holds(next) || consumer.published() == next + 1);
                if (consumer.holds(next)) {
                    consumer.answer(next, 1, request.tag * 3, kAnswered);
                } else {
                    consumer.publish();
                }
            }
            ++next;
            consumer.release(0);
        }
        consumer.publish();
    });
    RingProducer<WorkRequest> producer(memory, kCapacity);
    std::mt19937 random(5);
    std::uint64_t answered = 0;
    for (std::uint64_t next = 0; next < kTrips;) {
        WorkRequest request;
        request.tag = next;
        request.num_sge = random() % 4 == 0;
        if (!producer.try_push(request)) {
            std::this_thread::yield();
            continue;
        }
        const std::uint64_t index = next++;
        if (request.num_sge == 0) {
            continue;
        }
        std::uint64_t last = 0;
        // The producer cannot read every answer here, because the slot may already be free.
        for (int looks = 0; looks < 20; ++looks) {
            const WorkRequest& slot = producer.answered(index, last);
            if ((last & kAnswered) != 0) {
                ASSERT_EQ(slot.tag, index);
                ASSERT_EQ(SharedWords(words_of(const_cast<WorkRequest&>(slot)))[1], index * 3);
                ++answered;
                break;
            }
            std::this_thread::yield();
        }
    }
    consumer_thread.join();
    EXPECT_GT(answered, 100u);
    EXPECT_FALSE(producer.broken());
    ::operator delete (memory, std::align_val_t{kCacheLine});
}

TEST(RingStress, WorkRequestsArriveWholeAndInOrderInALargeRing) {
    run<WorkRequest>(1024, 0, 1);
}
TEST(RingStress, CompletionsArriveWholeAndInOrderInALargeRing) {
    run<Completion>(1024, 0, 2);
}
TEST(RingStress, ASmallRingThatWrapsAllTheTime) {
    run<WorkRequest>(8, 3, 3);
}
TEST(RingStress, AcrossTheEndOfTheIntegers) {
    run<Completion>(64, std::numeric_limits<std::uint64_t>::max() - kItems / 2, 4);
}

}  // namespace
}  // namespace pollcore
