// Write rings: how a reader treats memory into which another process writes.
#include "worker/write_ring.hpp"

#include <algorithm>
#include <cstring>
#include <deque>
#include <numeric>
#include <optional>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "pollcore/own_lines.hpp"

namespace pollcore {
namespace {

constexpr std::uint32_t kLines = 64;
constexpr std::uint32_t kLongest = ring_message_max(kLines);

std::uint64_t sum_of(const std::vector<std::byte>& payload) {
    PayloadSum sum;
    sum.add(payload.data(), payload.size());
    return sum.finish();
}

/// A ring, and a writer that behaves like a worker at the other end of a connection.
struct RingWorld {
    explicit RingWorld(bool order, std::uint32_t held = 16, std::uint32_t position = 0)
        : memory(kLines * kCacheLine), ring(memory.data(), kLines, held, 4711, position), in_order(order) {
        begin();
    }
    void begin() {
        ring.begin({1, 1}, in_order);
        written = ring.next();
    }
    /// The number of lines that the next record needs, including lines that it skips.
    [[nodiscard]] std::uint32_t cost(std::uint32_t length) const { return record_lines(length) + skip(length); }
    [[nodiscard]] std::uint32_t skip(std::uint32_t length) const {
        const std::uint32_t to_end = kLines - written % kLines;
        return record_lines(length) > to_end ? to_end : 0;
    }
    /// The words of the next record, and where they belong.
    struct Words {
        std::uint64_t* at = nullptr;
        std::vector<std::uint64_t> words;
        std::size_t payload_words = 0;
    };
    Words make(const std::vector<std::byte>& payload, std::optional<std::uint32_t> imm = {}) {
        const auto length = static_cast<std::uint32_t>(payload.size());
        const std::uint32_t skipped = skip(length);
        const std::uint32_t position = written + skipped;
        const std::uint32_t lines = record_lines(length);
        const RecordHeader header{
            .length = length, .skipped = skipped, .with_imm = imm.has_value(), .imm_data = imm.value_or(0)};
        const RecordHeader::Words head = header.pack(position, ring.seed());
        const std::uint32_t bytes = record_bytes(length);
        Words out{.at = line(kLines - position % kLines) - bytes / 8,
                  .words = std::vector<std::uint64_t>(bytes / 8),
                  .payload_words = (length + 7) / 8};
        if (length != 0) {
            std::memcpy(out.words.data(), payload.data(), length);
        }
        out.words.end()[-3] = head[0];
        out.words.end()[-2] = head[1];
        out.words.end()[-1] = seal_of(head, ring.seed(), in_order ? 0 : sum_of(payload));
        written = position + lines;
        return out;
    }
    void write(const Words& record) { std::copy(record.words.begin(), record.words.end(), record.at); }
    [[nodiscard]] std::uint64_t* line(std::size_t n) {
        return reinterpret_cast<std::uint64_t*>(memory.data() + n * kCacheLine);
    }
    [[nodiscard]] std::vector<std::byte> payload_of(const WriteRing::Record& record) const {
        const std::byte* first = memory.data() + (record.place + 1) * kCacheLine - record_bytes(record.header.length);
        return {first, first + record.header.length};
    }
    /// Looks so many times that it cannot miss a record.
    [[nodiscard]] WriteRing::Look look(WriteRing::Record& record) {
        for (int i = 0; i < 300; ++i) {
            if (const WriteRing::Look found = ring.look(record); found != WriteRing::Look::nothing) {
                return found;
            }
        }
        return WriteRing::Look::nothing;
    }

    OwnLines<std::byte> memory;
    WriteRing ring;
    bool in_order;
    std::uint32_t written = 0;
};

std::vector<std::byte> bytes(std::mt19937& random, std::size_t length) {
    std::vector<std::byte> all(length);
    for (std::byte& b : all) {
        b = static_cast<std::byte>(random());
    }
    return all;
}

class WriteRingOrder : public ::testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Devices, WriteRingOrder, ::testing::Values(true, false),
                         [](const auto& p) { return p.param ? "in_order" : "by_sums"; });

TEST_P(WriteRingOrder, gives_every_record_once_and_in_order_whatever_is_given_back_when) {
    for (const std::uint32_t start : {0u, 0xffffffffu - 100, 0x7fffff00u}) {
        RingWorld world(GetParam(), 16, start);
        std::mt19937 random(start + 5);
        std::deque<std::vector<std::byte>> on_its_way;
        struct Held {
            WriteRing::Record record;
            std::vector<std::byte> payload;
        };
        std::vector<Held> held;
        std::uint32_t heard = 0;
        for (int step = 0; step < 8000; ++step) {
            const auto length =
                static_cast<std::uint32_t>(random() % 3 == 0 ? random() % (kLongest + 1) : random() % 100);
            if (world.ring.granted() - world.written >= world.cost(length) && random() % 2 == 0) {
                const auto payload = bytes(random, length);
                world.write(world.make(payload, length % 2 == 0 ? std::optional(length) : std::nullopt));
                on_its_way.push_back(payload);
            }
            WriteRing::Record record;
            if (!world.ring.full() && random() % 2 == 0) {
                const WriteRing::Look found = world.look(record);
                ASSERT_EQ(found == WriteRing::Look::record, !on_its_way.empty()) << step;
                if (found == WriteRing::Look::record) {
                    ASSERT_EQ(world.payload_of(record), on_its_way.front());
                    ASSERT_EQ(record.header.with_imm, record.header.length % 2 == 0);
                    ASSERT_EQ(record.header.imm_data, record.header.with_imm ? record.header.length : 0u);
                    on_its_way.pop_front();
                    world.ring.hand_out(record);
                    held.push_back({record, world.payload_of(record)});
                    ++heard;
                }
            }
            ASSERT_EQ(world.ring.held().size(), held.size());
            if (!held.empty() && random() % 2 == 0) {
                const std::size_t i = random() % held.size();
                ASSERT_EQ(world.payload_of(held[i].record), held[i].payload) << "it was the application's";
                ASSERT_TRUE(world.ring.release(held[i].record.place));
                ASSERT_FALSE(world.ring.release(held[i].record.place)) << "twice";
                held.erase(held.begin() + static_cast<std::ptrdiff_t>(i));
            }
        }
        EXPECT_GT(heard, 600u);
    }
}

// Wherever the last record ended, the longest record has room as soon as three quarters of the ring are free.
TEST_P(WriteRingOrder, has_room_for_the_longest_record_before_the_last_quarter_is_known_to_be_free) {
    for (std::uint32_t lines = 1; lines <= kLines; ++lines) {
        RingWorld world(GetParam(), 16, lines);
        EXPECT_LE(world.cost(kLongest), kLines - kLines / 4 + 1) << lines;
    }
}

TEST(WriteRing, shows_no_record_before_its_last_word_whatever_the_order_of_the_words) {
    RingWorld world(false);
    std::mt19937 random(3);
    for (int round = 0; round < 1000; ++round) {
        const RingWorld::Words record = world.make(bytes(random, random() % 200));
        // Collects the words that differ from the memory's contents. The zeros behind the payload may arrive at any
        // time, so they are written at once.
        std::vector<std::size_t> order;
        for (std::size_t i = 0; i < record.words.size(); ++i) {
            if (i >= record.payload_words && i + 3 < record.words.size()) {
                record.at[i] = record.words[i];
            } else if (record.at[i] != record.words[i]) {
                order.push_back(i);
            }
        }
        std::shuffle(order.begin(), order.end(), random);
        WriteRing::Record found;
        for (const std::size_t i : order) {
            ASSERT_EQ(world.look(found), WriteRing::Look::nothing) << "round " << round;
            record.at[i] = record.words[i];
        }
        ASSERT_EQ(world.look(found), WriteRing::Look::record);
        world.ring.hand_out(found);
        ASSERT_TRUE(world.ring.release(found.place));
    }
    EXPECT_GT(world.ring.torn(), 300u);
}

TEST(WriteRing, shows_no_record_before_its_last_word_where_words_come_in_order) {
    RingWorld world(true);
    std::mt19937 random(4);
    for (int round = 0; round < 1000; ++round) {
        const RingWorld::Words record = world.make(bytes(random, random() % 200));
        WriteRing::Record found;
        for (std::size_t i = 0; i < record.words.size(); ++i) {
            ASSERT_EQ(world.look(found), WriteRing::Look::nothing) << "round " << round;
            record.at[i] = record.words[i];
        }
        ASSERT_EQ(world.look(found), WriteRing::Look::record);
        world.ring.hand_out(found);
        ASSERT_TRUE(world.ring.release(found.place));
    }
}

// With rxe, a reader can see an 8-byte word of which only half has arrived.
TEST(WriteRing, shows_no_record_with_a_torn_word) {
    RingWorld world(false);
    std::mt19937 random(5);
    for (int round = 0; round < 1000; ++round) {
        RingWorld::Words record = world.make(bytes(random, random() % 100));
        const std::vector<std::uint64_t> whole = record.words;
        const std::size_t which = random() % (record.payload_words + 3);
        const std::size_t i = which < record.payload_words ? which : whole.size() - 3 + which - record.payload_words;
        const std::uint64_t half = 0xffffffffull << (random() % 2 * 32);
        record.words[i] = (whole[i] & half) | (record.at[i] & ~half);
        world.write(record);
        WriteRing::Record found;
        if (record.words[i] != whole[i]) {
            ASSERT_EQ(world.look(found), WriteRing::Look::nothing) << "word " << i << " of " << whole.size();
        }
        record.at[i] = whole[i];
        ASSERT_EQ(world.look(found), WriteRing::Look::record);
        world.ring.hand_out(found);
        ASSERT_TRUE(world.ring.release(found.place));
    }
}

TEST_P(WriteRingOrder, takes_nothing_of_an_earlier_life) {
    RingWorld world(GetParam());
    std::mt19937 random(6);
    WriteRing::Record record;
    for (int life = 0; life < 200; ++life) {
        const std::uint32_t many = random() % 6;
        for (std::uint32_t i = 0; i < many; ++i) {
            world.write(world.make(bytes(random, random() % 300)));
        }
        std::vector<std::uint32_t> places;
        for (std::uint32_t i = 0; i < many / 2; ++i) {
            ASSERT_EQ(world.look(record), WriteRing::Look::record);
            world.ring.hand_out(record);
            places.push_back(record.place);
        }
        world.begin();
        ASSERT_EQ(world.look(record), WriteRing::Look::nothing);
        for (const std::uint32_t place : places) {
            ASSERT_TRUE(world.ring.release(place));
        }
    }
}

TEST_P(WriteRingOrder, calls_a_record_beyond_what_was_granted_a_lie) {
    RingWorld world(GetParam());
    WriteRing::Record record;
    // Sixteen records, all held by the application, fill the whole ring.
    for (int i = 0; i < 16; ++i) {
        world.write(world.make(std::vector<std::byte>(200)));
        ASSERT_EQ(world.look(record), WriteRing::Look::record);
        world.ring.hand_out(record);
    }
    EXPECT_TRUE(world.ring.full());
    EXPECT_EQ(world.ring.granted(), world.written);
    world.write(world.make(std::vector<std::byte>(1)));
    EXPECT_EQ(world.look(record), WriteRing::Look::lie);
}

// A hostile writer knows the seed, so it can seal any header.
TEST_P(WriteRingOrder, gives_nothing_that_is_not_within_the_ring_whatever_is_sealed) {
    std::mt19937 random(8);
    for (int round = 0; round < 4000; ++round) {
        RingWorld world(GetParam(), 16, static_cast<std::uint32_t>(random() % kLines));
        const std::uint32_t position = world.ring.next();
        const auto any = [&](std::uint32_t usual) {
            return static_cast<std::uint32_t>(random() % 3 == 0 ? random() : random() % (usual + 1));
        };
        const RecordHeader header{.length = any(2 * kLongest), .skipped = any(kLines) & 0x7fffffff, .imm_data = any(0)};
        const std::uint32_t at = random() % 4 == 0 ? position + (kLines - position % kLines) : position;
        const RecordHeader::Words words = header.pack(at, world.ring.seed());
        std::uint64_t* last = world.line(kLines - 1 - at % kLines);
        last[5] = words[0];
        last[6] = words[1];
        PayloadSum sum;
        const std::uint32_t lines = record_lines(std::min(header.length, kLongest));
        if (lines <= kLines - at % kLines) {
            const auto* payload =
                reinterpret_cast<const std::byte*>(last + 8) - record_bytes(std::min(header.length, kLongest));
            for (std::uint32_t i = 0; i < std::min(header.length, kLongest); i += 8) {
                std::uint64_t word;
                std::memcpy(&word, payload + i, 8);
                sum.add(word);
            }
        }
        last[7] = seal_of(words, world.ring.seed(), GetParam() ? 0 : sum.finish());
        WriteRing::Record record;
        if (world.look(record) == WriteRing::Look::record) {
            ASSERT_LE(record.header.length, kLongest);
            ASSERT_LT(record.place, kLines);
            ASSERT_LE(record_lines(record.header.length), record.place + 1);
            ASSERT_EQ(record.header.skipped, at - position);
            world.ring.hand_out(record);
            ASSERT_TRUE(world.ring.release(record.place));
        }
    }
}

TEST(WriteRing, refuses_places_that_nobody_has) {
    RingWorld world(true);
    world.write(world.make(std::vector<std::byte>(300)));
    WriteRing::Record record;
    ASSERT_EQ(world.look(record), WriteRing::Look::record);
    world.ring.hand_out(record);
    for (std::uint32_t place = 0; place < kLines + 10; ++place) {
        EXPECT_EQ(world.ring.release(place), place == record.place) << place;
    }
    EXPECT_FALSE(world.ring.release(WriteRing::kEnd));
    EXPECT_TRUE(world.ring.hold_end());
    EXPECT_FALSE(world.ring.hold_end());
    EXPECT_TRUE(world.ring.release(WriteRing::kEnd));
    EXPECT_FALSE(world.ring.release(WriteRing::kEnd));
}

TEST(PayloadSum, is_of_the_bytes_however_they_are_cut) {
    std::mt19937 random(9);
    for (int round = 0; round < 2000; ++round) {
        const auto payload = bytes(random, random() % 300);
        PayloadSum cut;
        for (std::size_t at = 0; at < payload.size();) {
            const std::size_t n = std::min<std::size_t>(random() % 20, payload.size() - at);
            cut.add(payload.data() + at, n);
            at += n;
        }
        ASSERT_EQ(cut.finish(), sum_of(payload));
        // The receiver adds up whole words, with zeros behind the last byte of the payload.
        std::vector<std::uint64_t> words((payload.size() + 7) / 8);
        if (!payload.empty()) {
            std::memcpy(words.data(), payload.data(), payload.size());
        }
        PayloadSum by_words;
        for (const std::uint64_t word : words) {
            by_words.add(word);
        }
        ASSERT_EQ(by_words.finish(), sum_of(payload));
    }
}

TEST(PayloadSum, notices_every_change) {
    std::mt19937 random(10);
    for (int round = 0; round < 4000; ++round) {
        const auto payload = bytes(random, 1 + random() % 100);
        auto other = payload;
        switch (random() % 3) {
            case 0: other[random() % other.size()] ^= static_cast<std::byte>(1u << random() % 8); break;
            case 1:
                std::fill(other.begin() + static_cast<std::ptrdiff_t>(random() % other.size()), other.end(),
                          std::byte{0});
                break;
            default:
                std::rotate(other.begin(), other.begin() + static_cast<std::ptrdiff_t>(random() % other.size()),
                            other.end());
                break;
        }
        if (other != payload) {
            ASSERT_NE(sum_of(other), sum_of(payload));
        }
    }
}

}  // namespace
}  // namespace pollcore
