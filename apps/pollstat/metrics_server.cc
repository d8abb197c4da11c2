#include "metrics_server.hpp"

#include <microhttpd.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <exception>

#include <fmt/format.h>

#include "pollcore/error.hpp"

namespace pollcore::stat {
namespace {

// A request and its headers. Prometheus sends about 300 bytes.
constexpr std::size_t kRequestMax = 8192;
// libmicrohttpd accepts ten connections before it closes those that were cut. At its own limit it would stop to accept,
// and go on only when something else happens.
constexpr std::size_t kConnectionsAboveMax = 128;
constexpr const char* kMetricsType = "text/plain; version=0.0.4; charset=utf-8";
constexpr const char* kFrontPage =
    "<!DOCTYPE html><title>pollstat</title><h1>pollcore</h1><p><a href=\"/metrics\">Metrics for Prometheus</a></p>\n";

using SharedText = std::shared_ptr<const std::string>;

MHD_Response* response_of(const char* text, const char* type) {
    MHD_Response* const response = MHD_create_response_from_buffer(std::char_traits<char>::length(text),
                                                                   const_cast<char*>(text), MHD_RESPMEM_PERSISTENT);
    if (response != nullptr) {
        MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, type);
    }
    return response;
}

}  // namespace

// libmicrohttpd is in C, so nothing may be thrown through it.
struct MetricsServer::Callbacks {
    static void notify(void* self, MHD_Connection* connection, void**, MHD_ConnectionNotificationCode what) noexcept {
        auto* const server = static_cast<MetricsServer*>(self);
        if (what == MHD_CONNECTION_NOTIFY_CLOSED) {
            return server->closed(connection);
        }
        try {
            server->opened(connection);
        } catch (const std::exception&) {
            // Without memory the connection is not counted. It still ends by libmicrohttpd's own limit.
        }
    }
    static MHD_Result handle(void* self, MHD_Connection* connection, const char* url, const char* method, const char*,
                             const char*, std::size_t*, void**) noexcept {
        try {
            return static_cast<MetricsServer*>(self)->answer(connection, url, method) ? MHD_YES : MHD_NO;
        } catch (const std::exception&) {
            return MHD_NO;  // closes the connection
        }
    }
    /// One of several texts that clients are still reading.
    static MHD_Response* response_of_shared(SharedText text) {
        auto* const keeper = new SharedText(std::move(text));
        MHD_Response* const response = MHD_create_response_from_callback(
            (*keeper)->size(), 65536,
            [](void* its, std::uint64_t at, char* to, std::size_t room) -> ssize_t {
                return static_cast<ssize_t>((*static_cast<SharedText*>(its))->copy(to, room, at));
            },
            keeper, [](void* its) { delete static_cast<SharedText*>(its); });
        if (response == nullptr) {
            delete keeper;
        } else {
            MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, kMetricsType);
        }
        return response;
    }
};

MetricsServer::MetricsServer(UniqueFd socket, Text metrics, ServerLimits limits)
    : metrics_(std::move(metrics)), limits_(limits) {
    const auto seconds = std::chrono::ceil<std::chrono::seconds>(limits_.connection_life).count();
    daemon_ = MHD_start_daemon(
        MHD_USE_EPOLL, 0, nullptr, nullptr, &Callbacks::handle, this, MHD_OPTION_LISTEN_SOCKET, socket.get(),
        MHD_OPTION_NOTIFY_CONNECTION, &Callbacks::notify, this, MHD_OPTION_CONNECTION_LIMIT,
        static_cast<unsigned>(limits_.connections + kConnectionsAboveMax), MHD_OPTION_CONNECTION_MEMORY_LIMIT,
        kRequestMax, MHD_OPTION_CONNECTION_TIMEOUT, static_cast<unsigned>(seconds), MHD_OPTION_END);
    if (daemon_ == nullptr) {
        throw Error(errno != 0 ? errno : EINVAL, "libmicrohttpd does not start");
    }
    (void)socket.release();  // libmicrohttpd closes it
}

MetricsServer::~MetricsServer() {
    MHD_stop_daemon(daemon_);
}

void MetricsServer::run(const UniqueFd& stop) {
    const MHD_DaemonInfo* const info = MHD_get_daemon_info(daemon_, MHD_DAEMON_INFO_EPOLL_FD);
    if (info == nullptr) {
        throw Error(ENOSYS, "libmicrohttpd was built without epoll");
    }
    pollfd waits[] = {{.fd = info->epoll_fd, .events = POLLIN, .revents = 0},
                      {.fd = stop.get(), .events = POLLIN, .revents = 0}};
    for (;;) {
        int timeout = cut_old();
        MHD_UNSIGNED_LONG_LONG wanted = 0;
        if (MHD_get_timeout(daemon_, &wanted) == MHD_YES) {
            constexpr MHD_UNSIGNED_LONG_LONG kLongest = 60'000;
            const int its = static_cast<int>(std::min(wanted, kLongest));
            timeout = timeout < 0 ? its : std::min(timeout, its);
        }
        if (::poll(waits, std::size(waits), timeout) < 0 && errno != EINTR) {
            throw Error(errno, "poll");
        }
        if ((waits[1].revents & POLLIN) != 0) {
            return;
        }
        if (MHD_run(daemon_) != MHD_YES) {
            throw Error(EIO, "libmicrohttpd does not go on");
        }
    }
}

void MetricsServer::opened(MHD_Connection* connection) {
    if (clients_.size() >= limits_.connections) {
        cut(clients_.front());
        clients_.pop_front();
    }
    clients_.push_back({.connection = connection, .began = Clock::now()});
}

void MetricsServer::closed(MHD_Connection* connection) noexcept {
    const auto its = std::find_if(clients_.begin(), clients_.end(),
                                  [&](const Client& client) { return client.connection == connection; });
    if (its != clients_.end()) {
        clients_.erase(its);
    }
}

void MetricsServer::cut(const Client& client) noexcept {
    // libmicrohttpd has no call that closes a connection. It closes one whose socket has ended.
    const MHD_ConnectionInfo* const info =
        MHD_get_connection_info(client.connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    if (info != nullptr) {
        (void)::shutdown(info->connect_fd, SHUT_RDWR);
    }
}

int MetricsServer::cut_old() noexcept {
    const Clock::time_point now = Clock::now();
    while (!clients_.empty() && now - clients_.front().began >= limits_.connection_life) {
        cut(clients_.front());
        clients_.pop_front();
    }
    if (clients_.empty()) {
        return -1;
    }
    const auto left = clients_.front().began + limits_.connection_life - now;
    return static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(left).count());
}

bool MetricsServer::answer(MHD_Connection* connection, const std::string& url, const std::string& method) {
    if (method != MHD_HTTP_METHOD_GET && method != MHD_HTTP_METHOD_HEAD) {
        MHD_Response* const response = response_of("Only GET and HEAD are served.\n", "text/plain");
        if (response != nullptr) {
            MHD_add_response_header(response, MHD_HTTP_HEADER_ALLOW, "GET, HEAD");
        }
        return reply(connection, MHD_HTTP_METHOD_NOT_ALLOWED, response);
    }
    if (url == "/") {
        return reply(connection, MHD_HTTP_OK, response_of(kFrontPage, "text/html; charset=utf-8"));
    }
    if (url != "/metrics") {
        return reply(connection, MHD_HTTP_NOT_FOUND, response_of("The metrics are at /metrics.\n", "text/plain"));
    }
    return reply(connection, MHD_HTTP_OK, Callbacks::response_of_shared(metrics_()));
}

bool MetricsServer::reply(MHD_Connection* connection, unsigned status, MHD_Response* response) noexcept {
    if (response == nullptr) {
        return false;
    }
    MHD_add_response_header(response, MHD_HTTP_HEADER_CONNECTION, "close");
    const bool queued = MHD_queue_response(connection, status, response) == MHD_YES;
    MHD_destroy_response(response);
    return queued;
}

}  // namespace pollcore::stat
