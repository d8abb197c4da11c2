// The channel between two pollperfs. A peer may be hostile.
#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "pollperf/measure/workload.hpp"
#include "pollperf/peer/control_channel.hpp"
#include "pollperf/peer/letters.hpp"

namespace pollcore::perf {
namespace {

using Letter = nlohmann::json;
using Milliseconds = std::chrono::milliseconds;

// A channel, and the other end as a plain socket.
struct RawPeer {
    Socket raw;
    std::optional<ControlChannel> channel;

    RawPeer() {
        std::array<int, 2> fds{};
        EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds.data()), 0);
        raw = Socket(fds[0]);
        channel.emplace(Socket(fds[1]));
    }
    void write(std::string_view bytes) {
        EXPECT_EQ(::send(raw.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL), static_cast<ssize_t>(bytes.size()));
    }
    void leave() { raw = Socket(); }
    // What the channel throws when it has received these bytes.
    std::string failure(std::string_view bytes) {
        write(bytes);
        try {
            const Letter message = channel->receive(Milliseconds(1000));
            return "it took " + message.dump();
        } catch (const MeasurementError& error) {
            return error.what();
        }
    }
    [[nodiscard]] std::optional<Letter> next(int ms = 0) { return channel->try_receive(Milliseconds(ms)); }
};

bool contains(const std::string& text, std::string_view part) {
    return text.find(part) != std::string::npos;
}

TEST(PollperfChannel, MessagesGoBothWaysOverTcp) {
    ControlListener listener(0);
    ASSERT_NE(listener.port(), 0u);
    ControlChannel client("127.0.0.1", listener.port(), Milliseconds(5000));
    auto accepted = listener.accept(-1, Milliseconds(5000));
    ASSERT_TRUE(accepted.has_value());
    ControlChannel server(std::move(*accepted));
    EXPECT_EQ(client.own_address(), "127.0.0.1");
    EXPECT_EQ(client.peer_address(), "127.0.0.1");
    EXPECT_EQ(server.own_address(), "127.0.0.1") << "no mapped address";
    EXPECT_EQ(server.peer_address(), "127.0.0.1");
    std::jthread answers([&] {
        for (int i = 0; i < 3; ++i) {
            const Letter request = server.receive(Milliseconds(5000));
            server.send({{"answer", request["n"]}});
        }
    });
    for (int i = 0; i < 3; ++i) {
        EXPECT_EQ(client.ask({{"n", i}}, Milliseconds(5000)), Letter({{"answer", i}}));
    }
}

// The buffers of the sockets are smaller than the message.
TEST(PollperfChannel, ALongMessageIsSentInParts) {
    const Letter message = {{"text", std::string(3'000'000, 'x')}};
    std::array<int, 2> fds{};
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds.data()), 0);
    ControlChannel near{Socket(fds[0])};
    ControlChannel far{Socket(fds[1])};
    const std::jthread sends([&] { near.send(message); });
    EXPECT_EQ(far.receive(Milliseconds(10'000)), message);
}

TEST(PollperfChannel, AMessageMayComeInParts) {
    RawPeer peer;
    peer.write("{\"a\":");
    EXPECT_FALSE(peer.next().has_value());
    EXPECT_FALSE(peer.next(10).has_value());
    peer.write("1}\n{\"b\"");
    EXPECT_EQ(peer.next(), Letter({{"a", 1}}));
    EXPECT_FALSE(peer.next().has_value());
    for (const char byte : std::string_view(":2}\n")) {
        EXPECT_FALSE(peer.next().has_value());
        peer.write({&byte, 1});
    }
    EXPECT_EQ(peer.next(), Letter({{"b", 2}}));
    EXPECT_FALSE(peer.next().has_value());
    // A short message behind the rest of a long one.
    peer.write("{\"a\":\"a long text");
    EXPECT_FALSE(peer.next().has_value());
    peer.write("\"}\n{}\n");
    EXPECT_EQ(peer.next(), Letter({{"a", "a long text"}}));
    EXPECT_EQ(peer.next(), Letter::object());
}

TEST(PollperfChannel, SeveralMessagesMayComeInOnePart) {
    RawPeer peer;
    std::string lines;
    for (int i = 0; i < 1000; ++i) {
        lines += "{\"i\":" + std::to_string(i) + "}\n";
    }
    peer.write(lines);
    for (int i = 0; i < 1000; ++i) {
        EXPECT_EQ(peer.next(), Letter({{"i", i}}));
    }
    EXPECT_FALSE(peer.next().has_value());
}

TEST(PollperfChannel, ALineWithoutAnEndIsRefused) {
    RawPeer peer;
    const std::string part(65536, 'x');
    std::size_t sent = 0;
    try {
        for (; sent < (16u << 20); sent += part.size()) {
            peer.write(part);
            EXPECT_FALSE(peer.next().has_value());
        }
        ADD_FAILURE() << "it has taken " << sent << " bytes";
    } catch (const MeasurementError& error) {
        EXPECT_TRUE(contains(error.what(), "sends a line without an end")) << error.what();
        EXPECT_GE(sent, 3u << 20);
        EXPECT_LE(sent, 5u << 20);
    }
}

TEST(PollperfChannel, WhatIsNoObjectIsRefused) {
    using namespace std::string_view_literals;
    for (const std::string_view line :
         {"hello\n"sv, "\n"sv, "42\n"sv, "null\n"sv, "[1]\n"sv, "\"text\"\n"sv, "{\"a\":1\n"sv, "{\"a\":1}}\n"sv,
          "{a:1}\n"sv, "{\"a\":\xff}\n"sv, "{\"a\":\"\xff\"}\n"sv, "\0\0\0\0\n"sv, "GET / HTTP/1.1\r\n\r\n"sv,
          "{\"a\":1e999}\n"sv}) {
        RawPeer peer;
        EXPECT_TRUE(contains(peer.failure(line), "does not speak as pollperf does")) << line;
    }
}

TEST(PollperfChannel, ADeepMessageNeedsNoDeepStack) {
    for (const std::string_view opening : {"[", "{\"a\":"}) {
        ControlListener listener(0);
        ControlChannel client("127.0.0.1", listener.port(), Milliseconds(5000));
        auto accepted = listener.accept(-1, Milliseconds(5000));
        ASSERT_TRUE(accepted.has_value());
        constexpr int kDepth = 200'000;
        std::string line = "{\"deep\":";
        for (int i = 0; i < kDepth; ++i) {
            line += opening;
        }
        line += "1" + std::string(kDepth, opening == "[" ? ']' : '}') + "}\n";
        const std::jthread writes([&] {
            for (std::size_t at = 0; at < line.size();) {
                const ssize_t n = ::send(accepted->get(), line.data() + at, line.size() - at, MSG_NOSIGNAL);
                at += n > 0 ? static_cast<std::size_t>(n) : 0;
            }
        });
        EXPECT_TRUE(client.receive(Milliseconds(20'000)).contains("deep"));
    }
}

TEST(PollperfChannel, APeerThatHasLeftIsNoticed) {
    {
        RawPeer peer;
        peer.write("{\"a\":1}\n{\"b\":");
        peer.leave();
        EXPECT_EQ(peer.channel->receive(Milliseconds(1000)), Letter({{"a", 1}})) << "what it said before counts";
        EXPECT_THROW((void)peer.next(1000), MeasurementError) << "half a message is none";
    }
    {
        RawPeer peer;
        EXPECT_NO_THROW(peer.channel->look());
        peer.leave();
        EXPECT_THROW(peer.channel->look(), MeasurementError);
        EXPECT_THROW((void)peer.channel->receive(Milliseconds(1000)), MeasurementError);
        EXPECT_THROW(peer.channel->send({{"a", 1}}), MeasurementError);
    }
}

TEST(PollperfChannel, ATimeOutIsAsLongAsItShouldBe) {
    RawPeer peer;
    const auto began = std::chrono::steady_clock::now();
    EXPECT_FALSE(peer.next(50).has_value());
    EXPECT_GE(std::chrono::steady_clock::now() - began, Milliseconds(50));
    EXPECT_TRUE(contains(peer.failure(""), "has not answered within 1000 ms"));
    EXPECT_THROW((void)peer.channel->ask({{"a", 1}}, Milliseconds(20)), MeasurementError);
}

TEST(PollperfChannel, AnErrorOfThePeerIsThrownWithItsText) {
    RawPeer peer;
    EXPECT_TRUE(contains(peer.failure("{\"error\":\"no device\"}\n"), "says: no device"));
    EXPECT_TRUE(contains(peer.failure("{\"error\":7}\n"), "says: "));
    EXPECT_TRUE(contains(peer.failure("{\"ok\":true,\"error\":null}\n"), "says: "));
    peer.write("{\"error\":\"gone\"}\n");
    EXPECT_THROW(peer.channel->look(), MeasurementError);
    peer.write("{\"ok\":true}\n");
    EXPECT_THROW(peer.channel->look(), MeasurementError) << "nobody has asked";
}

// An error's text may have bytes of another program.
TEST(PollperfChannel, ATextThatIsNoUtf8IsSentAllTheSame) {
    std::array<int, 2> fds{};
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds.data()), 0);
    ControlChannel near{Socket(fds[0])};
    ControlChannel far{Socket(fds[1])};
    ASSERT_NO_THROW(near.send({{"text", "before\xff after"}}));
    EXPECT_TRUE(contains(far.receive(Milliseconds(1000))["text"].get<std::string>(), "before"));
}

TEST(PollperfChannel, RandomBytesAreReadOrRefusedAndNothingElse) {
    std::mt19937 random(20'261'129);
    for (int i = 0; i < 2000; ++i) {
        RawPeer peer;
        std::string line = to_json(Workload{.size = 4097, .tx_depth = 100, .post_list = 7}).dump();
        for (std::uint32_t changes = random() % 6; changes > 0; --changes) {
            line[random() % line.size()] = static_cast<char>(random() % 256);
        }
        peer.write(line + "\n");
        try {
            while (peer.next().has_value()) {
            }
        } catch (const MeasurementError&) {
            continue;
        } catch (const std::exception& error) {
            FAIL() << error.what() << ": " << line;
        }
    }
}

TEST(PollperfChannel, AServerThatIsNotThereIsNamed) {
    std::uint16_t port = 0;
    {
        const ControlListener listener(0);
        port = listener.port();
    }
    try {
        const ControlChannel channel("127.0.0.1", port, Milliseconds(5000));
        ADD_FAILURE() << "another program listens there";
    } catch (const MeasurementError& error) {
        EXPECT_TRUE(contains(error.what(), "127.0.0.1, TCP port " + std::to_string(port))) << error.what();
    }
    EXPECT_THROW(ControlChannel("localhost", port, Milliseconds(1000)), MeasurementError);
    EXPECT_THROW(ControlChannel("", port, Milliseconds(1000)), MeasurementError);
}

TEST(PollperfChannel, AListenerWaitsForAClientOrUntilItIsStopped) {
    ControlListener listener(0);
    EXPECT_THROW(ControlListener{listener.port()}, Error) << "the port is in use";
    const auto began = std::chrono::steady_clock::now();
    EXPECT_FALSE(listener.accept(-1, Milliseconds(30)).has_value());
    EXPECT_GE(std::chrono::steady_clock::now() - began, Milliseconds(30));
    const Socket stop(::eventfd(1, EFD_CLOEXEC));
    EXPECT_FALSE(listener.accept(stop.get(), std::chrono::hours(24 * 365)).has_value());
    // A client that has left before it was accepted is a client; its connection is not.
    { const ControlChannel client("127.0.0.1", listener.port(), Milliseconds(5000)); }
    auto accepted = listener.accept(-1, Milliseconds(5000));
    ASSERT_TRUE(accepted.has_value());
    EXPECT_THROW((void)ControlChannel(std::move(*accepted)).receive(Milliseconds(5000)), MeasurementError);
}

TEST(PollperfChannel, ASocketIsClosedOnceAndByItsLastOwner) {
    const auto is_open = [](int fd) { return ::fcntl(fd, F_GETFD) != -1; };
    int fd = -1;
    {
        Socket first(::eventfd(0, EFD_CLOEXEC));
        fd = first.get();
        Socket second(std::move(first));
        EXPECT_EQ(second.get(), fd);
        Socket third;
        third = std::move(second);
        EXPECT_EQ(third.get(), fd);
        EXPECT_TRUE(is_open(fd));
    }
    EXPECT_FALSE(is_open(fd));
}

}  // namespace
}  // namespace pollcore::perf
