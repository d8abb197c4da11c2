#include "pollperf/peer/control_channel.hpp"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>

#include <fmt/format.h>

#include "pollcore/error.hpp"
#include "pollperf/measure/workload.hpp"
#include "pollperf/peer/letters.hpp"

namespace pollcore::perf {
namespace {

using Clock = std::chrono::steady_clock;

// Waits until the descriptor is ready for `events`. Returns false at the deadline.
bool ready(int fd, short events, Clock::time_point deadline) {
    for (;;) {
        const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
        pollfd one{.fd = fd, .events = events, .revents = 0};
        const int n = ::poll(&one, 1, static_cast<int>(std::clamp<std::int64_t>(left, 0, 60'000)));
        if (n > 0) {
            return true;
        }
        if ((n == 0 && left <= 60'000 && Clock::now() >= deadline) || (n < 0 && errno != EINTR)) {
            return false;
        }
    }
}

void set(int fd, int level, int option, int value) {
    (void)::setsockopt(fd, level, option, &value, sizeof value);  // only makes it faster, or notices a dead peer
}

std::string address_text(const sockaddr_storage& address) {
    std::array<char, NI_MAXHOST> text{};
    if (::getnameinfo(reinterpret_cast<const sockaddr*>(&address), sizeof address, text.data(), text.size(), nullptr, 0,
                      NI_NUMERICHOST) != 0) {
        return "an unknown address";
    }
    std::string name = text.data();
    constexpr std::string_view kMapped = "::ffff:";
    return name.starts_with(kMapped) && name.find('.') != std::string::npos ? name.substr(kMapped.size()) : name;
}

}  // namespace

Socket::~Socket() {
    if (fd_ >= 0) {
        ::close(fd_);
    }
}
Socket::Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
Socket& Socket::operator=(Socket&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
}

ControlChannel::ControlChannel(Socket socket) : socket_(std::move(socket)) {
    set(socket_.get(), IPPROTO_TCP, TCP_NODELAY, 1);
    set(socket_.get(), SOL_SOCKET, SO_KEEPALIVE, 1);
    set(socket_.get(), IPPROTO_TCP, TCP_KEEPIDLE, 10);
    set(socket_.get(), IPPROTO_TCP, TCP_KEEPINTVL, 5);
}

ControlChannel::ControlChannel(const std::string& address, std::uint16_t port, std::chrono::milliseconds timeout)
    : ControlChannel([&] {
          addrinfo hints{};
          hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
          hints.ai_socktype = SOCK_STREAM;
          addrinfo* found = nullptr;
          if (const int error = ::getaddrinfo(address.c_str(), std::to_string(port).c_str(), &hints, &found);
              error != 0) {
              throw MeasurementError(fmt::format("{} is no numeric address: {}", address, ::gai_strerror(error)));
          }
          const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> entry(found, &::freeaddrinfo);
          Socket socket(::socket(entry->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
          if (socket.get() < 0) {
              throw Error(errno, "making a TCP socket");
          }
          const auto fail = [&](int error) {
              return MeasurementError(fmt::format("connecting to a pollperf server at {}, TCP port {}: {}", address,
                                                  port, std::strerror(error)));
          };
          if (::connect(socket.get(), entry->ai_addr, entry->ai_addrlen) != 0 && errno != EINPROGRESS) {
              throw fail(errno);
          }
          if (!ready(socket.get(), POLLOUT, Clock::now() + timeout)) {
              throw fail(ETIMEDOUT);
          }
          int error = 0;
          socklen_t length = sizeof error;
          (void)::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &length);
          if (error != 0) {
              throw fail(error);
          }
          return socket;
      }()) {}

void ControlChannel::send(const nlohmann::json& message) {
    constexpr std::chrono::seconds kPatience{10};
    const std::string line = message.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
    const auto deadline = Clock::now() + kPatience;
    for (std::size_t at = 0; at < line.size();) {
        const ssize_t n = ::send(socket_.get(), line.data() + at, line.size() - at, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n > 0) {
            at += static_cast<std::size_t>(n);
        } else if (errno != EINTR &&
                   ((errno != EAGAIN && errno != EWOULDBLOCK) || !ready(socket_.get(), POLLOUT, deadline))) {
            throw MeasurementError(
                fmt::format("the peer at {} does not take messages: {}", peer_address(), std::strerror(errno)));
        }
    }
}

nlohmann::json ControlChannel::receive(std::chrono::milliseconds timeout) {
    auto message = try_receive(timeout);
    if (!message) {
        throw MeasurementError(
            fmt::format("the peer at {} has not answered within {} ms", peer_address(), timeout.count()));
    }
    return std::move(*message);
}

std::optional<nlohmann::json> ControlChannel::try_receive(std::chrono::milliseconds timeout) {
    const auto deadline = Clock::now() + timeout;
    for (;;) {
        if (auto message = take_line()) {
            if (message->contains("error")) {
                const std::string said = read_text(*message, "error");
                throw MeasurementError(fmt::format("the peer at {} says: {}", peer_address(),
                                                   said.empty() ? "an error without a text" : said));
            }
            return message;
        }
        if (!read_some(deadline)) {
            return std::nullopt;
        }
    }
}

nlohmann::json ControlChannel::ask(const nlohmann::json& request, std::chrono::milliseconds timeout) {
    send(request);
    return receive(timeout);
}

void ControlChannel::look() {
    if (const auto message = try_receive(std::chrono::milliseconds(0))) {
        throw MeasurementError(
            fmt::format("the peer at {} has sent a message that nobody has asked for", peer_address()));
    }
}

bool ControlChannel::read_some(Clock::time_point deadline) {
    if (!ready(socket_.get(), POLLIN, deadline)) {
        return false;
    }
    std::array<char, 65536> bytes;
    const ssize_t n = ::recv(socket_.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (n < 0 && (errno == EINTR || errno == EAGAIN || errno == EWOULDBLOCK)) {
        return true;
    }
    if (n <= 0) {
        throw MeasurementError(fmt::format("the peer at {} has ended its connection{}", peer_address(),
                                           n < 0 ? fmt::format(": {}", std::strerror(errno)) : ""));
    }
    received_.append(bytes.data(), static_cast<std::size_t>(n));
    return true;
}

std::optional<nlohmann::json> ControlChannel::take_line() {
    const std::size_t end = received_.find('\n', searched_);
    if (end == std::string::npos) {
        searched_ = received_.size();
        if (received_.size() > kLineMost) {
            throw MeasurementError(
                fmt::format("the peer at {} sends a line without an end; it is no pollperf", peer_address()));
        }
        return std::nullopt;
    }
    auto message =
        nlohmann::json::parse(received_.begin(), received_.begin() + static_cast<std::ptrdiff_t>(end), nullptr, false);
    received_.erase(0, end + 1);
    searched_ = 0;
    if (!message.is_object()) {
        throw MeasurementError(fmt::format("the peer at {} does not speak as pollperf does", peer_address()));
    }
    return message;
}

std::string ControlChannel::own_address() const {
    sockaddr_storage address{};
    socklen_t length = sizeof address;
    return ::getsockname(socket_.get(), reinterpret_cast<sockaddr*>(&address), &length) == 0 ? address_text(address)
                                                                                             : "";
}

std::string ControlChannel::peer_address() const {
    sockaddr_storage address{};
    socklen_t length = sizeof address;
    return ::getpeername(socket_.get(), reinterpret_cast<sockaddr*>(&address), &length) == 0 ? address_text(address)
                                                                                             : "the other end";
}

ControlListener::ControlListener(std::uint16_t port) {
    const auto fail = [&] { return Error(errno, fmt::format("listening on TCP port {} (--port)", port)); };
    // A socket of IPv6 takes IPv4, too, but some kernels have no IPv6.
    bool v6 = true;
    socket_ = Socket(::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (socket_.get() < 0) {
        v6 = false;
        socket_ = Socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    }
    if (socket_.get() < 0) {
        throw fail();
    }
    set(socket_.get(), SOL_SOCKET, SO_REUSEADDR, 1);
    sockaddr_storage address{};
    socklen_t length = 0;
    if (v6) {
        set(socket_.get(), IPPROTO_IPV6, IPV6_V6ONLY, 0);
        sockaddr_in6 any{};
        any.sin6_family = AF_INET6;
        any.sin6_addr = in6addr_any;
        any.sin6_port = htons(port);
        std::memcpy(&address, &any, sizeof any);
        length = sizeof any;
    } else {
        sockaddr_in any{};
        any.sin_family = AF_INET;
        any.sin_port = htons(port);
        std::memcpy(&address, &any, sizeof any);
        length = sizeof any;
    }
    constexpr int kBacklog = 64;
    if (::bind(socket_.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0 ||
        ::listen(socket_.get(), kBacklog) != 0) {
        throw fail();
    }
    sockaddr_in6 bound{};
    length = sizeof bound;
    (void)::getsockname(socket_.get(), reinterpret_cast<sockaddr*>(&bound), &length);
    port_ = ntohs(bound.sin6_port);  // at the same place in both families
}

std::optional<Socket> ControlListener::accept(int stop, std::chrono::milliseconds timeout) {
    const auto deadline = Clock::now() + timeout;
    for (;;) {
        const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
        std::array<pollfd, 2> fds{pollfd{.fd = socket_.get(), .events = POLLIN, .revents = 0},
                                  pollfd{.fd = stop, .events = POLLIN, .revents = 0}};
        (void)::poll(fds.data(), fds.size(), static_cast<int>(std::clamp<std::int64_t>(left, 0, 60'000)));
        if ((fds[1].revents & POLLIN) != 0) {
            return std::nullopt;
        }
        Socket accepted(::accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
        if (accepted.get() >= 0) {
            return accepted;
        }
        if (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR && errno != ECONNABORTED) {
            throw Error(errno, fmt::format("accepting a client at TCP port {}", port_));
        }
        if (Clock::now() >= deadline) {
            return std::nullopt;
        }
    }
}

}  // namespace pollcore::perf
