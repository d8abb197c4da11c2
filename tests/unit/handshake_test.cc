// The framing of private data. The functions are pure, and the input may be hostile.
#include "connect/handshake.hpp"

#include <algorithm>
#include <random>
#include <string>

#include <gtest/gtest.h>

#include "pollcore/error.hpp"

namespace pollcore {
namespace {

std::vector<std::byte> bytes(const std::string& text) {
    const auto* first = reinterpret_cast<const std::byte*>(text.data());
    return {first, first + text.size()};
}

std::vector<std::byte> counting(std::size_t size) {
    std::vector<std::byte> out(size);
    for (std::size_t i = 0; i < size; ++i) {
        out[i] = static_cast<std::byte>(i + 1);
    }
    return out;
}

bool same(std::span<const std::byte> a, std::span<const std::byte> b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end());
}

TEST(Handshake, EveryLengthComesBackAsItWasSent) {
    for (std::size_t size = 0; size <= kReplyPrivateDataMax; ++size) {
        const auto sent = counting(size);
        const auto frame = encode_private_data(sent, kReplyPrivateDataMax);
        ASSERT_EQ(frame.size(), size + kPrivateDataHeader);
        const auto got = decode_private_data(frame);
        ASSERT_EQ(got.fault, PrivateDataFault::none) << size;
        ASSERT_TRUE(got.framed);
        ASSERT_TRUE(same(got.payload, sent)) << size;
    }
}

TEST(Handshake, ZerosThatACarrierAppendsAreTakenOff) {
    for (std::size_t size = 0; size <= kRequestPrivateDataMax; ++size) {
        auto sent = counting(size);
        if (size > 0) {
            sent.back() = std::byte{0};  // the user's own trailing zero must be kept
        }
        auto frame = encode_private_data(sent, kRequestPrivateDataMax);
        frame.resize(kRequestPrivateDataMax + kPrivateDataHeader);
        const auto got = decode_private_data(frame);
        ASSERT_EQ(got.fault, PrivateDataFault::none) << size;
        ASSERT_TRUE(same(got.payload, sent)) << size;
    }
}

TEST(Handshake, TheLargestFitsItsCarrierExactlyAndOneByteMoreIsRefused) {
    for (const auto& [payload_max, carrier] :
         {std::pair{kRequestPrivateDataMax, std::size_t{56}}, std::pair{kReplyPrivateDataMax, std::size_t{196}},
          std::pair{kRejectPrivateDataMax, std::size_t{148}}}) {
        EXPECT_EQ(encode_private_data(counting(payload_max), payload_max).size(), carrier);
        try {
            (void)encode_private_data(counting(payload_max + 1), payload_max);
            FAIL() << "one byte too many was accepted";
        } catch (const Error& error) {
            EXPECT_EQ(error.code(), std::errc::message_size);
            const std::string what = error.what();
            EXPECT_NE(what.find(std::to_string(payload_max + 1)), std::string::npos) << what;
            EXPECT_NE(what.find(std::to_string(payload_max)), std::string::npos) << what;
        }
    }
}

TEST(Handshake, BytesOfAProgramWithoutTheHeaderAreGivenAsTheyCame) {
    for (const auto& plain : {bytes(""), bytes("h"), bytes("hello"), std::vector<std::byte>(56)}) {
        const auto got = decode_private_data(plain);
        EXPECT_EQ(got.fault, PrivateDataFault::none);
        EXPECT_FALSE(got.framed);
        EXPECT_TRUE(same(got.payload, plain));
    }
    // Half of the magic bytes are not the magic.
    const std::vector<std::byte> half{kPrivateDataMagic[0]};
    EXPECT_FALSE(decode_private_data(half).framed);
    const std::vector<std::byte> other{kPrivateDataMagic[0], std::byte{0}, std::byte{1}, std::byte{0}};
    EXPECT_FALSE(decode_private_data(other).framed);
}

TEST(Handshake, AHeaderThatIsCutOffIsRefused) {
    const auto frame = encode_private_data(counting(3), kRequestPrivateDataMax);
    for (const std::size_t size : {2, 3}) {
        const auto got = decode_private_data(std::span(frame).first(size));
        EXPECT_EQ(got.fault, PrivateDataFault::cut_off);
        EXPECT_TRUE(got.payload.empty());
    }
}

TEST(Handshake, ALengthBeyondWhatArrivedIsRefused) {
    auto frame = encode_private_data(counting(10), kRequestPrivateDataMax);
    for (int claimed = 11; claimed <= 255; ++claimed) {
        frame[3] = static_cast<std::byte>(claimed);
        const auto got = decode_private_data(frame);
        ASSERT_EQ(got.fault, PrivateDataFault::too_long) << claimed;
        ASSERT_TRUE(got.payload.empty());
    }
}

TEST(Handshake, EveryOtherVersionIsRefused) {
    auto frame = encode_private_data(counting(10), kRequestPrivateDataMax);
    for (int version = 0; version <= 255; ++version) {
        frame[2] = static_cast<std::byte>(version);
        const bool with_flow = version > private_data_version(FlowControl::off) && version <= kPrivateDataVersionLast;
        const auto expected = version == private_data_version(FlowControl::off) ? PrivateDataFault::none
                              // A frame with flow control would need more bytes than this frame has.
                              : with_flow ? PrivateDataFault::cut_off
                                          : PrivateDataFault::other_version;
        ASSERT_EQ(decode_private_data(frame).fault, expected) << version;
    }
}

TEST(Handshake, AControlBlockTravelsBeforeThePayload) {
    FlowBlock block{.addr = 0x1122334455667788, .rkey = 0x99aabbcc, .kind = FlowControl::ring};
    for (const std::size_t size : {std::size_t{0}, std::size_t{1}, kRequestPrivateDataMax - kPrivateDataFlow}) {
        block.kind = block.kind == FlowControl::ring ? FlowControl::credits : FlowControl::ring;
        auto frame = encode_private_data(counting(size), kRequestPrivateDataMax, block);
        EXPECT_EQ(frame.size(), 16 + size);
        frame.resize(56);  // the carrier pads the frame with zeros
        const auto got = decode_private_data(frame);
        ASSERT_EQ(got.fault, PrivateDataFault::none);
        EXPECT_EQ(got.flow.addr, block.addr);
        EXPECT_EQ(got.flow.rkey, block.rkey);
        EXPECT_EQ(got.flow.kind, block.kind);
        EXPECT_TRUE(same(got.payload, counting(size)));
    }
    EXPECT_EQ(decode_private_data(encode_private_data(counting(3), kRequestPrivateDataMax)).flow.kind,
              FlowControl::off);
    try {
        (void)encode_private_data(counting(41), kRequestPrivateDataMax, block);
        FAIL() << "one byte too many was accepted";
    } catch (const Error& error) {
        EXPECT_EQ(error.code(), std::errc::message_size);
        EXPECT_NE(std::string(error.what()).find("at most 40 beside what flow control needs"), std::string::npos)
            << error.what();
    }
    const auto whole = encode_private_data({}, kRequestPrivateDataMax, block);
    for (std::size_t size = 4; size < whole.size(); ++size) {
        EXPECT_EQ(decode_private_data(std::span(whole).first(size)).fault, PrivateDataFault::cut_off) << size;
    }
}

TEST(Handshake, BytesBehindThePayloadThatAreNoPaddingAreRefused) {
    auto frame = encode_private_data(counting(10), kRequestPrivateDataMax);
    frame.resize(56);
    frame.back() = std::byte{1};
    EXPECT_EQ(decode_private_data(frame).fault, PrivateDataFault::dirty_padding);
}

TEST(Handshake, WhateverComesThePayloadLiesWithinIt) {
    std::mt19937 random(7);
    for (int round = 0; round < 100000; ++round) {
        std::vector<std::byte> noise(random() % 200);
        for (auto& b : noise) {
            b = static_cast<std::byte>(random() % 4 == 0 ? random() : 0);
        }
        if (noise.size() >= 3 && round % 2 == 0) {  // lets half of the rounds pass the first checks
            std::copy(kPrivateDataMagic.begin(), kPrivateDataMagic.end(), noise.begin());
            noise[2] = static_cast<std::byte>(1 + round / 2 % kPrivateDataVersionLast);
        }
        const auto got = decode_private_data(noise);
        if (got.fault != PrivateDataFault::none) {
            ASSERT_TRUE(got.payload.empty());
            ASSERT_FALSE(private_data_fault_text(got.fault).empty());
        } else if (!got.payload.empty()) {
            ASSERT_GE(got.payload.data(), noise.data());
            ASSERT_LE(got.payload.data() + got.payload.size(), noise.data() + noise.size());
        }
    }
}

}  // namespace
}  // namespace pollcore
