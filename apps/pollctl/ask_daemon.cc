#include "ask_daemon.hpp"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <thread>
#include <vector>

#include <fmt/format.h>

#include "base/unique_fd.hpp"
#include "common/control_wire.hpp"

namespace pollcore::ctl {
namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

std::string text_of(int error) {
    return std::generic_category().message(error);
}

constexpr int kDepthMax = 8;

NoDaemon no_control_socket(const std::string& path) {
    return NoDaemon(fmt::format("what listens at {} is no control socket of a pollcored of this version", path));
}

UniqueFd connect_to(const std::string& path, Clock::time_point deadline) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    if (path.empty() || path.size() >= sizeof(address.sun_path)) {
        throw NoDaemon(
            fmt::format("\"{}\": a socket's path has 1 to {} characters", path, sizeof(address.sun_path) - 1));
    }
    std::memcpy(address.sun_path, path.c_str(), path.size());
    UniqueFd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!socket.valid()) {
        throw NoDaemon(fmt::format("no socket: {}", text_of(errno)));
    }
    while (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
        const int error = errno;
        if (error == EINTR || (error == EAGAIN && Clock::now() < deadline)) {
            std::this_thread::sleep_for(10ms);  // EAGAIN: too many connect at the same time
            continue;
        }
        if (error == EPROTOTYPE) {
            throw no_control_socket(path);
        }
        const char* const hint = error == ENOENT || error == ECONNREFUSED
                                     ? "; is pollcored running, and is this `path` in [control] of its configuration?"
                                 : error == EACCES ? "; only root, the daemon's user and the group of [control] may"
                                                   : "";
        throw NoDaemon(fmt::format("cannot connect to {}: {}{}", path, text_of(error), hint));
    }
    return socket;
}

void await(int socket, short events, Clock::time_point deadline, const std::string& path) {
    pollfd ready{.fd = socket, .events = events, .revents = 0};
    for (;;) {
        const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
        if (left <= 0) {
            throw NoDaemon(
                fmt::format("the daemon at {} gives no answer in time (--answer-within); it may carry the "
                            "command out all the same",
                            path));
        }
        if (::poll(&ready, 1, static_cast<int>(std::min<std::int64_t>(left, 60'000))) > 0) {
            return;
        }
    }
}

}  // namespace

Json result_of(const std::string& text, const std::string& socket) {
    Json answer;
    try {
        // Deeper than any answer of the daemon: printing it would take much stack.
        answer = Json::parse(text, [&](int depth, Json::parse_event_t, const Json&) {
            if (depth > kDepthMax) {
                throw no_control_socket(socket);
            }
            return true;
        });
        if (answer.at("protocol") != control_wire::kProtocol) {
            throw no_control_socket(socket);
        }
        if (answer.contains("result")) {
            return answer.at("result");
        }
        const Json& error = answer.at("error");
        const auto why = error.at("text").get<std::string>();
        if (error.at("code") == control_wire::kNotPermitted) {
            throw NoDaemon(why);
        }
        throw Refused(why);
    } catch (const Json::exception&) {
        throw no_control_socket(socket);
    }
}

Json ask(const std::string& path, const Json& command, std::chrono::milliseconds within) {
    const auto deadline = Clock::now() + within;
    const UniqueFd socket = connect_to(path, deadline);
    const std::string sent = command.dump(-1, ' ', true, Json::error_handler_t::replace);
    // If the daemon has hung up already (EPIPE), it has said why.
    while (::send(socket.get(), sent.data(), sent.size(), MSG_NOSIGNAL) < 0 && errno != EPIPE) {
        if (errno == EAGAIN) {
            await(socket.get(), POLLOUT, deadline, path);
        } else if (errno != EINTR) {
            throw NoDaemon(fmt::format("cannot give {} a command: {}", path, text_of(errno)));
        }
    }
    std::string text;
    std::vector<char> packet(control_wire::kPacketMax);
    for (;;) {
        await(socket.get(), POLLIN, deadline, path);
        const ssize_t got = ::recv(socket.get(), packet.data(), packet.size(), 0);
        if (got == 0) {
            break;
        }
        if (got > 0) {
            text.append(packet.data(), static_cast<std::size_t>(got));
            if (text.size() > kAnswerMax) {
                throw no_control_socket(path);
            }
        } else if (errno != EINTR && errno != EAGAIN && errno != ECONNRESET) {
            // ECONNRESET: the daemon closed the socket before it had read everything. The kernel reports this once,
            // before the packets that the daemon has sent.
            throw NoDaemon(fmt::format("no answer from {}: {}", path, text_of(errno)));
        }
    }
    if (text.empty()) {
        throw NoDaemon(
            fmt::format("what listens at {} hangs up: it is no control socket, or the daemon has just ended", path));
    }
    return result_of(text, path);
}

}  // namespace pollcore::ctl
