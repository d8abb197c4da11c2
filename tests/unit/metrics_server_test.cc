// The exporter's HTTP server, and clients that mean harm.
#include "pollstat/metrics_server.hpp"

#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <iterator>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/unique_fd.hpp"
#include "pollstat/listening_address.hpp"

namespace pollcore::stat {
namespace {

using namespace std::chrono_literals;

constexpr int kPatience = 60'000;  // ms; ends a test that hangs
const std::string kAsk = "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n";

class MetricsServerTest : public ::testing::Test {
protected:
    ~MetricsServerTest() override {
        if (thread_.joinable()) {
            const std::uint64_t one = 1;
            EXPECT_EQ(::write(stop_.get(), &one, sizeof(one)), static_cast<ssize_t>(sizeof(one)));
            thread_.join();
        }
    }
    void start(ServerLimits limits, std::string text = "the text\n") {
        UniqueFd socket = listen_at(parse_listening_address("127.0.0.1:0"), 128);
        socklen_t bytes = sizeof(address_);
        ASSERT_EQ(::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address_), &bytes), 0);
        server_ = std::make_unique<MetricsServer>(
            std::move(socket),
            [this, shared = std::make_shared<const std::string>(std::move(text))] {
                ++asked_;
                return shared;
            },
            limits);
        thread_ = std::thread([this] { server_->run(stop_); });
    }
    [[nodiscard]] UniqueFd connect() const {
        UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
        EXPECT_EQ(::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address_), sizeof(address_)), 0);
        return fd;
    }
    static void say(const UniqueFd& fd, const std::string& what) {
        // The server may have closed the connection already.
        (void)::send(fd.get(), what.data(), what.size(), MSG_NOSIGNAL);
    }
    /// What the server sends until it closes the connection. "hangs" if it does not.
    static std::string hear(const UniqueFd& fd) {
        std::string all;
        char some[65536];
        for (;;) {
            pollfd wait{.fd = fd.get(), .events = POLLIN, .revents = 0};
            if (::poll(&wait, 1, kPatience) != 1) {
                return "hangs";
            }
            const ssize_t n = ::recv(fd.get(), some, sizeof(some), 0);
            if (n <= 0) {
                return all;
            }
            all.append(some, static_cast<std::size_t>(n));
        }
    }
    [[nodiscard]] std::string ask(const std::string& request = kAsk) const {
        const UniqueFd fd = connect();
        say(fd, request);
        return hear(fd);
    }

    std::atomic<int> asked_{0};

private:
    UniqueFd stop_{::eventfd(0, EFD_CLOEXEC)};
    sockaddr_in address_{};
    std::unique_ptr<MetricsServer> server_;
    std::thread thread_;
};

TEST_F(MetricsServerTest, AnswersGetAndHeadOfMetrics) {
    start({});
    const std::string got = ask();
    EXPECT_TRUE(got.starts_with("HTTP/1.1 200 OK\r\n")) << got;
    EXPECT_NE(got.find("Content-Type: text/plain; version=0.0.4; charset=utf-8\r\n"), std::string::npos) << got;
    EXPECT_TRUE(got.ends_with("\r\n\r\nthe text\n")) << got;
    const std::string head = ask("HEAD /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
    EXPECT_NE(head.find("Content-Length: 9\r\n"), std::string::npos) << head;
    EXPECT_TRUE(head.ends_with("\r\n\r\n")) << head;
    EXPECT_TRUE(ask("GET /metrics?a=b HTTP/1.0\r\n\r\n").ends_with("the text\n"));
    EXPECT_EQ(asked_, 3);
}

TEST_F(MetricsServerTest, ServesNothingElse) {
    start({});
    EXPECT_NE(ask("GET / HTTP/1.1\r\nHost: x\r\n\r\n").find("href=\"/metrics\""), std::string::npos);
    for (const char* const path : {"/metrics/", "/../etc/passwd", "/%2e%2e/etc/passwd", "/favicon.ico", "//metrics"}) {
        const std::string got = ask("GET " + std::string(path) + " HTTP/1.1\r\nHost: x\r\n\r\n");
        EXPECT_TRUE(got.starts_with("HTTP/1.1 404")) << path << ": " << got;
    }
    for (const char* const method : {"POST", "PUT", "DELETE", "OPTIONS", "TRACE", "CONNECT", "METRICS"}) {
        const std::string got =
            ask(std::string(method) + " /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc");
        EXPECT_TRUE(got.starts_with("HTTP/1.1 405")) << method << ": " << got;
    }
    EXPECT_EQ(asked_, 0);
}

TEST_F(MetricsServerTest, GarbageIsRefusedAndHarmsNobody) {
    start({});
    std::string binary;
    for (int i = 0; i < 4096; ++i) {
        binary += static_cast<char>(i * 37);
    }
    std::string headers = "GET /metrics HTTP/1.1\r\n";
    for (int i = 0; i < 20'000; ++i) {
        headers += "X-" + std::to_string(i) + ": y\r\n";
    }
    for (const std::string& garbage :
         {std::string("\r\n\r\n"), binary + "\r\n\r\n", std::string("GET\r\n\r\n"),
          std::string("GET /metrics HTTP/9.9\r\n\r\n"), "GET /" + std::string(100'000, 'a') + " HTTP/1.1\r\n\r\n",
          "GET /metrics HTTP/1.1\r\nX: " + std::string(1'000'000, 'b') + "\r\n\r\n", headers + "\r\n",
          std::string("GET /metrics HTTP/1.1\r\nContent-Length: 99999999999999999999\r\n\r\n"),
          std::string("POST /metrics HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\n")}) {
        const UniqueFd fd = connect();
        say(fd, garbage);
        ::shutdown(fd.get(), SHUT_WR);
        EXPECT_NE(hear(fd), "hangs");
        EXPECT_TRUE(ask().ends_with("the text\n"));
    }
}

TEST_F(MetricsServerTest, ASlowClientBlocksNobodyAndIsCutOff) {
    start({.connections = 64, .connection_life = 1s});
    const UniqueFd slow = connect();
    say(slow, "GET /metrics HTTP/1.1\r\nX: ");
    const auto began = std::chrono::steady_clock::now();
    // Each byte would start the limit of an idle connection anew.
    bool ended = false;
    while (!ended && std::chrono::steady_clock::now() - began < std::chrono::milliseconds(kPatience)) {
        say(slow, "y");
        EXPECT_TRUE(ask().ends_with("the text\n"));
        pollfd wait{.fd = slow.get(), .events = POLLIN, .revents = 0};
        char byte = 0;
        ended = ::poll(&wait, 1, 40) == 1 && ::recv(slow.get(), &byte, 1, 0) <= 0;
    }
    EXPECT_TRUE(ended) << "a client may be slow for ever";
}

std::ptrdiff_t open_descriptors() {
    return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {});
}

TEST_F(MetricsServerTest, WhoDoesNotReadTheAnswerIsCutOff) {
    start({.connections = 64, .connection_life = 300ms}, std::string(64u << 20, 'x'));
    const std::ptrdiff_t before = open_descriptors();
    const UniqueFd deaf = connect();
    say(deaf, kAsk);
    const auto began = std::chrono::steady_clock::now();
    const auto waits = [&] { return std::chrono::steady_clock::now() - began < std::chrono::milliseconds(kPatience); };
    while (asked_ == 0 && waits()) {
        std::this_thread::sleep_for(1ms);
    }
    // The server is in this process. It has closed the connection when only this end is left.
    while (open_descriptors() > before + 1 && waits()) {
        std::this_thread::sleep_for(10ms);
    }
    EXPECT_LT(hear(deaf).size(), std::size_t{64} << 20) << "a client may keep its answer for ever";
}

TEST_F(MetricsServerTest, ManyIdleConnectionsDoNotShutOutAClientThatAsks) {
    start({.connections = 8, .connection_life = std::chrono::milliseconds(10 * kPatience)});
    std::vector<UniqueFd> idle;
    for (int i = 0; i < 100; ++i) {
        idle.push_back(connect());
        if (i % 10 == 9) {
            EXPECT_TRUE(ask().ends_with("the text\n")) << "after " << i;
        }
    }
    // The oldest ones were closed.
    EXPECT_EQ(hear(idle.front()), "");
}

TEST_F(MetricsServerTest, ManyClientsThatDoNotReadDoNotShutOutAClientThatHasJustConnected) {
    start({.connections = 8, .connection_life = std::chrono::milliseconds(10 * kPatience)},
          std::string(16u << 20, 'x'));  // more than fits into the buffers of the sockets
    std::vector<UniqueFd> deaf;
    const auto add_one = [&] {
        deaf.push_back(connect());
        say(deaf.back(), kAsk);
        const int wanted = static_cast<int>(deaf.size());
        const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(kPatience);
        while (asked_ < wanted && std::chrono::steady_clock::now() < until) {
            std::this_thread::sleep_for(1ms);
        }
        ASSERT_EQ(asked_.load(), wanted);
    };
    for (int i = 0; i < 8; ++i) {
        add_one();
    }
    const UniqueFd late = connect();
    add_one();
    add_one();
    say(late, kAsk);
    EXPECT_GT(hear(late).size(), std::size_t{16} << 20);
}

TEST_F(MetricsServerTest, ConnectionsThatAreResetAreForgotten) {
    start({.connections = 4, .connection_life = std::chrono::milliseconds(10 * kPatience)});
    for (int i = 0; i < 50; ++i) {
        const UniqueFd fd = connect();
        const linger now{.l_onoff = 1, .l_linger = 0};
        EXPECT_EQ(::setsockopt(fd.get(), SOL_SOCKET, SO_LINGER, &now, sizeof(now)), 0);
        say(fd, i % 2 == 0 ? kAsk : "GET /met");
    }
    EXPECT_TRUE(ask().ends_with("the text\n"));
}

TEST_F(MetricsServerTest, ATextThatCannotBeMadeClosesTheConnection) {
    UniqueFd socket = listen_at(parse_listening_address("127.0.0.1:0"), 1);
    sockaddr_in address{};
    socklen_t bytes = sizeof(address);
    ASSERT_EQ(::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &bytes), 0);
    MetricsServer server(std::move(socket), []() -> std::shared_ptr<const std::string> { throw std::bad_alloc(); }, {});
    const UniqueFd stop(::eventfd(0, EFD_CLOEXEC));
    std::thread thread([&] { server.run(stop); });
    for (int i = 0; i < 2; ++i) {
        const UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
        EXPECT_EQ(::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
        say(fd, kAsk);
        EXPECT_EQ(hear(fd), "");
    }
    const std::uint64_t one = 1;
    EXPECT_EQ(::write(stop.get(), &one, sizeof(one)), static_cast<ssize_t>(sizeof(one)));
    thread.join();
}

}  // namespace
}  // namespace pollcore::stat
