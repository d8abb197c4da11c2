// The TCP connection by which a client tells a server what to do, and by which the two exchange what they need to
// connect their queue pairs. Messages are JSON objects, one on a line.
//
// Thread safety: one thread uses an object. A peer may be hostile: its lines are limited, and what is no JSON object
// ends the connection with an error.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include <nlohmann/json.hpp>

namespace pollcore::perf {

/// A descriptor that is closed with the object. Move-only.
class Socket {
public:
    explicit Socket(int fd = -1) noexcept : fd_(fd) {}
    ~Socket();
    Socket(Socket&& other) noexcept;
    Socket& operator=(Socket&& other) noexcept;
    [[nodiscard]] int get() const noexcept { return fd_; }

private:
    int fd_;
};

class ControlChannel {
public:
    /// Takes an accepted connection.
    explicit ControlChannel(Socket socket);
    /// Connects to a server at a numeric address. Throws MeasurementError.
    ControlChannel(const std::string& address, std::uint16_t port, std::chrono::milliseconds timeout);

    void send(const nlohmann::json& message);
    /// The next message. Throws MeasurementError if it does not come in time, if the peer has closed the connection, or
    /// if the peer sends an error: an object with the text `error`.
    [[nodiscard]] nlohmann::json receive(std::chrono::milliseconds timeout);
    /// The next message if one comes in time. Throws as receive() for all other reasons.
    [[nodiscard]] std::optional<nlohmann::json> try_receive(std::chrono::milliseconds timeout);
    /// Sends a request and returns the answer.
    nlohmann::json ask(const nlohmann::json& request, std::chrono::milliseconds timeout);
    /// Throws if the peer has closed the connection, or has sent an error. Returns at once.
    void look();

    /// The address of this end, and of the peer, without the port.
    [[nodiscard]] std::string own_address() const;
    [[nodiscard]] std::string peer_address() const;

private:
    /// Lines of thousands of queue pairs are shorter.
    static constexpr std::size_t kLineMost = 4u << 20;

    /// Reads what has come. Returns false if nothing came until the deadline.
    bool read_some(std::chrono::steady_clock::time_point deadline);
    [[nodiscard]] std::optional<nlohmann::json> take_line();

    Socket socket_;
    std::string received_;
    std::size_t searched_ = 0;  ///< so many bytes of received_ have no end of a line
};

/// Listens on a TCP port of all addresses.
class ControlListener {
public:
    explicit ControlListener(std::uint16_t port);
    /// Waits for a client, or until `stop` is readable: then returns nothing.
    [[nodiscard]] std::optional<Socket> accept(int stop, std::chrono::milliseconds timeout);
    [[nodiscard]] std::uint16_t port() const noexcept { return port_; }

private:
    Socket socket_;
    std::uint16_t port_ = 0;
};

}  // namespace pollcore::perf
