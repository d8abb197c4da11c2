// What pollperf understands of a peer that is a service of pollcored.
#include <cstddef>
#include <span>
#include <string>

#include <gtest/gtest.h>

#include "common/service_wire.hpp"
#include "pollperf/peer/service_peer.hpp"

namespace pollcore::perf {
namespace {

TEST(PollperfServicePeer, PeersAreKnownByTheirAnswers) {
    const auto memory = MemoryOffer{.addr = 4096, .rkey = 7, .size = 64}.encode();
    for (const Op op : {Op::write, Op::read, Op::fetch_add, Op::compare_swap}) {
        const PeerKind peer = recognize_peer(memory, op, 64);
        EXPECT_FALSE(peer.answers);
        EXPECT_EQ(peer.memory.addr, 4096u);
        EXPECT_EQ(peer.memory.rkey, 7u);
        EXPECT_NE(peer.description.find("memory service of 64 bytes"), std::string::npos);
    }
    EXPECT_THROW((void)recognize_peer(memory, Op::send, 64), MeasurementError);
    EXPECT_THROW((void)recognize_peer(memory, Op::read, 65), MeasurementError);
    const auto echo = EchoOffer{.message_size_max = 64, .depth = 8}.encode();
    EXPECT_TRUE(recognize_peer(echo, Op::send, 64).answers);
    EXPECT_THROW((void)recognize_peer(echo, Op::send, 65), MeasurementError);
    EXPECT_THROW((void)recognize_peer(echo, Op::write, 64), MeasurementError);
    EXPECT_TRUE(recognize_peer({}, Op::send, 64).answers);
    EXPECT_THROW((void)recognize_peer({}, Op::write, 64), MeasurementError);
}

TEST(PollperfServicePeer, AnAnswerMayBePaddedAndMustBeWhole) {
    const auto offer = MemoryOffer{.addr = 4096, .rkey = 7, .size = 64}.encode();
    auto padded = offer;
    padded.resize(196);
    EXPECT_EQ(recognize_peer(padded, Op::read, 64).memory.addr, 4096u);
    for (std::size_t length = 0; length < offer.size(); ++length) {
        EXPECT_THROW((void)recognize_peer(std::span(offer).first(length), Op::read, 64), MeasurementError) << length;
    }
    for (std::size_t byte = 0; byte < kServiceWireHeader; ++byte) {
        auto wrong = padded;
        wrong[byte] ^= std::byte{0x10};
        EXPECT_THROW((void)recognize_peer(wrong, Op::read, 64), MeasurementError) << byte;
    }
}

}  // namespace
}  // namespace pollcore::perf
