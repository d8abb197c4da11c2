#include "control_socket.hpp"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/descriptor_reserve.hpp"
#include "base/disposal.hpp"
#include "base/event_fd.hpp"
#include "base/log.hpp"
#include "base/passed_descriptors.hpp"
#include "base/printable.hpp"
#include "base/quiet_thread.hpp"
#include "base/thread_health.hpp"
#include "common/control_wire.hpp"
#include "pollcore/error.hpp"

namespace pollcore::daemon {
namespace {

using namespace std::chrono_literals;

constexpr int kAcceptedPerTurn = 16;
// While more descriptors than this wait to be closed, each accept waits first, for kCatchUp at most.
constexpr std::size_t kUnclosedMax = 256;
constexpr auto kCatchUp = 10ms;
// The thread wakes this often to look at the socket's file.
constexpr std::chrono::nanoseconds kTurnEvery = 500ms;

struct Received {
    int error = 0;  // an errno value: EAGAIN if there is no packet, EPIPE if the client is gone
    bool too_long = false;
    std::string bytes;
};

// Takes a packet. Descriptors in it are closed by another thread, because their close may wait.
Received receive_packet(const ForeignFd& socket, uid_t uid) {
    Received packet;
    packet.bytes.resize(control_wire::kCommandMax);
    iovec part{packet.bytes.data(), packet.bytes.size()};
    alignas(cmsghdr) std::array<char, CMSG_SPACE(kDescriptorsPerMessage * sizeof(int))> beside;
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = beside.data();
    message.msg_controllen = beside.size();
    ssize_t got = 0;
    while ((got = ::recvmsg(socket.get(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC)) < 0) {
        if (errno != EINTR) {
            packet.error = errno == EWOULDBLOCK ? EAGAIN : errno;
            return packet;
        }
    }
    for_each_descriptor(message, [uid](int descriptor) { ForeignFd(descriptor, Unread::left, uid).reset(); });
    packet.error = got == 0 ? EPIPE : 0;
    packet.too_long = (message.msg_flags & MSG_TRUNC) != 0;
    packet.bytes.resize(static_cast<std::size_t>(got));
    return packet;
}

// Returns 0 or an errno value: EAGAIN if the socket has no room.
int send_packet(const ForeignFd& socket, std::string_view bytes) noexcept {
    while (::send(socket.get(), bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL) < 0) {
        if (errno != EINTR) {
            return errno == EWOULDBLOCK ? EAGAIN : errno;
        }
    }
    return 0;
}

}  // namespace

std::string ControlCaller::text() const {
    return fmt::format("uid {} (pid {})", uid, pid);
}

ControlSocket::ControlSocket(const ControlConfig& config, Ways ways)
    : allowed_(config),
      ways_(std::move(ways)),
      wake_(std::make_shared<UniqueFd>(make_event_fd("the control socket"))),
      listener_(SocketPlace(config), "control") {}

ControlSocket::~ControlSocket() {
    stop();
}

void ControlSocket::start() {
    thread_ = start_quiet_thread([this] { loop(); });
}

void ControlSocket::stop() noexcept {
    ending_.store(true, std::memory_order_release);
    signal_event(wake_->get());
    if (thread_.joinable()) {
        thread_.join();
    }
}

ThreadHealth ControlSocket::health() const {
    return thread_health(kThreadName, ThreadHealth::Kind::serve, heartbeat_, steady_ns(Clock::now()));
}

void ControlSocket::loop() noexcept {
    ways_.begin_thread();
    heartbeat_.start(::gettid(), steady_ns(Clock::now()));
    while (!ending_.load(std::memory_order_acquire)) {
        try {
            one_turn();
        } catch (const std::exception& error) {
            note(error.what());
            std::this_thread::sleep_for(10ms);
        }
    }
    for (Connection& connection : connections_) {
        try {
            say_the_end(connection);
        } catch (const std::exception&) {
            continue;  // there is no memory for its answer
        }
    }
    connections_.clear();
    heartbeat_.stop();
}

void ControlSocket::say_the_end(Connection& connection) {
    if (connection.text.empty()) {
        const bool answered =
            connection.answer != nullptr && connection.answer->give_up() == ControlAnswer::Given::late;
        std::optional<std::string> text = answered ? connection.answer->take() : std::nullopt;
        connection.text = text ? std::move(*text) : error_text(control_wire::kRefused, "the daemon is stopping");
    }
    (void)send_some(connection, Clock::now());  // as much as there is room for
}

void ControlSocket::one_turn() {
    std::vector<pollfd> ready{{.fd = wake_->get(), .events = POLLIN, .revents = 0},
                              {.fd = listener_.fd(), .events = POLLIN, .revents = 0}};
    auto now = Clock::now();
    Clock::time_point next = now + kTurnEvery;
    for (const Connection& connection : connections_) {
        const bool reading = !connection.command && connection.text.empty();
        ready.push_back({.fd = connection.socket.get(),
                         .events = static_cast<short>((reading ? POLLIN : 0) | (connection.blocked ? POLLOUT : 0)),
                         .revents = 0});
        next = std::min(next, connection.deadline);
    }
    heartbeat_.wait(steady_ns(next + 100ms));
    const auto limit = std::chrono::ceil<std::chrono::milliseconds>(std::max(next - now, Clock::duration(0)));
    if (::poll(ready.data(), ready.size(), static_cast<int>(limit.count())) < 0 && errno != EINTR) {
        throw Error(errno, "the control socket cannot wait for its connections");
    }
    now = Clock::now();
    heartbeat_.begin(steady_ns(now));
    if (ready[0].revents != 0) {
        (void)drain_event(wake_->get());
    }
    std::size_t at = 2;
    for (auto connection = connections_.begin(); connection != connections_.end(); ++at) {
        if ((ready[at].revents & POLLOUT) != 0) {
            connection->blocked = false;
        }
        // A client that hangs up after its command gets no answer, but the command is carried out.
        const bool readable = (ready[at].revents & (POLLIN | POLLHUP | POLLERR)) != 0;
        const bool gone = connection->command && (ready[at].revents & (POLLHUP | POLLERR)) != 0;
        connection =
            !gone && go_on(*connection, readable, now) ? std::next(connection) : connections_.erase(connection);
    }
    accept_some();
    listener_.look(
        now, [this] { accept_some(); }, [](int) {});
}

void ControlSocket::accept_some() {
    for (int i = 0; i < kAcceptedPerTurn; ++i) {
        let_disposal_catch_up(kUnclosedMax, kCatchUp);
        ForeignFd socket = listener_.accept();
        if (!socket.valid()) {
            if (errno == EMFILE || errno == ENFILE) {
                note("no descriptors left; commands have to wait");
                std::this_thread::sleep_for(10ms);
            }
            return;
        }
        try {
            welcome(std::move(socket));
        } catch (const std::exception& error) {
            note(error.what());
        }
    }
}

void ControlSocket::welcome(ForeignFd socket) {
    const Peer peer = peer_of(socket.get());
    const std::string who = peer.describe();
    if (!allowed_.allows(peer)) {
        return refuse(
            socket, who, control_wire::kNotPermitted,
            fmt::format("user {} may not give commands: it is neither root nor the daemon's user, nor in the group of "
                        "control.group",
                        peer.uid));
    }
    const std::size_t most = peer.uid == 0 ? kConnectionsMax : kConnectionsMax - kConnectionsOfRoot;
    if (connections_.size() >= most || is_reserved(socket.get()) || is_reserved(peer.pidfd.get())) {
        return refuse(socket, who, control_wire::kBusy, "too many commands at the same time, or too few descriptors");
    }
    connections_.push_back({.socket = std::move(socket),
                            .caller = {.uid = peer.uid, .pid = peer.pid},
                            .deadline = Clock::now() + kCommandWithin,
                            .command = std::nullopt,
                            .answer = nullptr,
                            .text = {}});
}

void ControlSocket::refuse(const ForeignFd& socket, const std::string& who, std::string_view code,
                           const std::string& why) {
    note(fmt::format("{} refused: {}", who, why));
    (void)send_packet(socket, error_text(code, why));
}

// A client can cause any number of such lines, so they have a budget.
void ControlSocket::note(const std::string& what) {
    if (const std::optional<std::uint64_t> left_out = notes_.take(Clock::now())) {
        log_warning("control: {}{}", what, and_others(*left_out));
    }
}

bool ControlSocket::go_on(Connection& connection, bool readable, Clock::time_point now) {
    if (!connection.text.empty()) {
        if (!connection.blocked) {
            return send_some(connection, now);
        }
        if (now < connection.deadline) {
            return true;
        }
        note(fmt::format("{} does not read its answer and is hung up on", connection.caller.text()));
        return false;
    }
    if (!connection.command) {
        if (readable) {
            return receive(connection, now);
        }
        if (now < connection.deadline) {
            return true;
        }
        note(fmt::format("{} sent no command within {} s and is hung up on", connection.caller.text(),
                         kCommandWithin.count()));
        return false;
    }
    std::optional<std::string> text = connection.answer->take();
    if (!text && now >= connection.deadline) {
        const ControlAnswer::Given given = connection.answer->give_up();
        text = given == ControlAnswer::Given::late
                   ? connection.answer->take()
                   : error_text(control_wire::kRefused, ways_.why_late(*connection.command, given));
    }
    if (text) {
        answer(connection, std::move(*text), now);
        return send_some(connection, now);
    }
    return true;
}

bool ControlSocket::receive(Connection& connection, Clock::time_point now) {
    const Received packet = receive_packet(connection.socket, connection.caller.uid);
    if (packet.error != 0) {
        return packet.error == EAGAIN;
    }
    try {
        if (packet.too_long) {
            throw BadCommand(fmt::format("a command has at most {} bytes", control_wire::kCommandMax));
        }
        connection.command = parse_command(packet.bytes);
        connection.answer = std::make_shared<ControlAnswer>([wake = wake_] { signal_event(wake->get()); });
        connection.deadline = now + ways_.carry_out(*connection.command, connection.caller, connection.answer);
        return go_on(connection, false, now);
    } catch (const BadCommand& bad) {
        note(fmt::format("{} refused: {}", connection.caller.text(), bad.what()));
        answer(connection, error_text(control_wire::kBadCommand, bad.what()), now);
        return send_some(connection, now);
    }
}

void ControlSocket::answer(Connection& connection, std::string text, Clock::time_point now) {
    connection.text = std::move(text);
    connection.deadline = now + kTakenWithin;
}

bool ControlSocket::send_some(Connection& connection, Clock::time_point now) {
    while (connection.sent < connection.text.size()) {
        const std::string_view piece =
            std::string_view(connection.text).substr(connection.sent, control_wire::kPacketMax);
        const int error = send_packet(connection.socket, piece);
        if (error == EAGAIN) {
            connection.blocked = true;
            return true;
        }
        if (error != 0) {
            return false;
        }
        connection.sent += piece.size();
        connection.deadline = now + kTakenWithin;
    }
    return false;  // the answer is complete
}

}  // namespace pollcore::daemon
