// Serves one text by HTTP, by libmicrohttpd (D56).
//
// Clients are not trusted. Each connection has one request, which must be answered within some seconds. If there are
// too many connections, the oldest one is closed, so clients that are slow on purpose shut out each other and not a
// client that asks at once.
//
// Thread safety: one thread; the server makes no others.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <string>

#include "base/unique_fd.hpp"

struct MHD_Connection;
struct MHD_Daemon;
struct MHD_Response;

namespace pollcore::stat {

struct ServerLimits {
    std::size_t connections = 64;
    std::chrono::milliseconds connection_life{10'000};
};

class MetricsServer {
public:
    using Text = std::function<std::shared_ptr<const std::string>()>;

    /// Answers GET and HEAD of /metrics with what `metrics` returns, and of / with a short page. `socket` listens.
    /// Throws Error.
    MetricsServer(UniqueFd socket, Text metrics, ServerLimits limits);
    ~MetricsServer();
    MetricsServer(const MetricsServer&) = delete;
    MetricsServer& operator=(const MetricsServer&) = delete;

    /// Serves until `stop` is readable. Throws Error.
    void run(const UniqueFd& stop);

private:
    using Clock = std::chrono::steady_clock;
    struct Client {
        MHD_Connection* connection = nullptr;
        Clock::time_point began;
    };
    struct Callbacks;  // what libmicrohttpd calls

    void opened(MHD_Connection* connection);
    void closed(MHD_Connection* connection) noexcept;
    [[nodiscard]] bool answer(MHD_Connection* connection, const std::string& url, const std::string& method);
    /// Queues the answer. Takes the response.
    [[nodiscard]] bool reply(MHD_Connection* connection, unsigned status, MHD_Response* response) noexcept;
    /// Makes libmicrohttpd close the connection.
    static void cut(const Client& client) noexcept;
    /// Closes what is too old. Returns how long the next one has, or -1.
    [[nodiscard]] int cut_old() noexcept;

    const Text metrics_;
    const ServerLimits limits_;
    std::list<Client> clients_;  // the oldest first
    MHD_Daemon* daemon_ = nullptr;
};

}  // namespace pollcore::stat
