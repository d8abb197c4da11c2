#include "attach/connections.hpp"

#include <pthread.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "attach/packet_socket.hpp"
#include "base/event_fd.hpp"
#include "base/log.hpp"
#include "base/quiet_thread.hpp"
#include "pollcore/error.hpp"

namespace pollcore {
namespace {

using namespace std::chrono_literals;

// Who has connected says within this what it wants.
constexpr auto kHelloWithin = 2s;
// Connections that have not said so yet, beside those that are attached.
constexpr std::size_t kStrangersMax = 32;
// Asked and not answered; more is read when some are. What waits for a peer counts too.
constexpr std::uint32_t kAskedMax = 64;
// Read from one connection before the others have their turn.
constexpr int kReadsPerTurn = 4;
// Descriptors of processes that wait to be closed: with more of them nothing is taken in, for so long each time. Those that never let
// go delay the others by that, and do not stop them.
constexpr std::size_t kUnclosedMax = 256;
constexpr auto kCatchUp = 10ms;
// What the kernel does not send now since this user has too many descriptors on their way.
constexpr auto kSendAgain = 10ms;
// Messages that one does not read. Answers are no more than what it asked; events beyond this are left out.
constexpr std::size_t kUnreadMax = 256;

constexpr const char* kStopping = "the daemon is stopping";

}  // namespace

Connections::Connections(const AttachConfig& config, Ways ways)
    : config_(config),
      allowed_(config),
      ways_(std::move(ways)),
      epoll_(::epoll_create1(EPOLL_CLOEXEC)),
      wake_(make_event_fd("the attach server")),
      listener_(config) {
    if (!epoll_.valid()) {
        throw Error(errno, "no epoll for the attach server");
    }
    watch(listener_.fd(), kListener, EPOLLIN, EPOLL_CTL_ADD);
    watch(wake_.get(), kWake, EPOLLIN, EPOLL_CTL_ADD);
}

Connections::~Connections() { stop(); }

void Connections::start() {
    thread_ = start_quiet_thread([this] { loop(); });
}

void Connections::stop() noexcept {
    ending_.store(true, std::memory_order_release);
    signal_event(wake_.get());
    if (thread_.joinable()) {
        thread_.join();
    }
}

void Connections::put(Outgoing&& outgoing) {
    {
        const std::lock_guard lock(outgoing_mutex_);
        outgoing_.push_back(std::move(outgoing));
    }
    signal_event(wake_.get());
}

void Connections::send(std::uint32_t number, Reply&& reply) { put({.number = number, .reply = std::move(reply), .hang_up = false}); }
void Connections::hang_up(std::uint32_t number) { put({.number = number, .reply = {}, .hang_up = true}); }

void Connections::call_at(Clock::time_point when) {
    auto planned = due_at_.load(std::memory_order_acquire);
    while (when < planned && !due_at_.compare_exchange_weak(planned, when, std::memory_order_acq_rel)) {
    }
    signal_event(wake_.get());
}

void Connections::watch(int fd, std::uint64_t tag, std::uint32_t events, int operation) {
    epoll_event event{.events = events, .data = {.u64 = tag}};
    if (::epoll_ctl(epoll_.get(), operation, fd, &event) != 0) {
        throw Error(errno, "the attach server cannot wait for a descriptor");
    }
}

// ---- The loop's thread ----

void Connections::loop() noexcept {
    pthread_setname_np(pthread_self(), "pollcore-serve");
    while (!ending_.load(std::memory_order_acquire)) {
        try {
            one_turn();
        } catch (const std::exception& error) {
            log_error("attach server: {}", error.what());
            std::this_thread::sleep_for(10ms);
        }
    }
}

void Connections::one_turn() {
    std::array<epoll_event, 64> events;
    const int n = ::epoll_wait(epoll_.get(), events.data(), events.size(), wait_ms());
    for (int i = 0; i < n; ++i) {
        const std::uint64_t tag = events[static_cast<std::size_t>(i)].data.u64;
        if (tag == kListener) {
            accept_some();
        } else if (tag == kWake) {
            (void)drain_event(wake_.get());
        } else {
            const auto number = static_cast<std::uint32_t>(tag >> 1);
            if (const auto found = connections_.find(number); found != connections_.end()) {
                (tag & 1) != 0 ? lose(number, "died") : serve(number, found->second, events[static_cast<std::size_t>(i)].events);
            }
        }
    }
    for (const std::uint32_t number : std::exchange(held_back_, {})) {
        if (const auto found = connections_.find(number); found != connections_.end()) {
            write(number, found->second);
        }
    }
    send_outgoing();
    end_strangers();
    if (Clock::now() >= due_at_.load(std::memory_order_acquire)) {
        due_at_.store(Clock::time_point::max(), std::memory_order_release);
        ways_.due();
    }
}

int Connections::wait_ms() const {
    const auto next = due_at_.load(std::memory_order_acquire);
    const auto now = Clock::now();
    if (next <= now) {
        return 0;
    }
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(std::min<Clock::duration>(next - now, 1s)).count();
    const std::int64_t most = !held_back_.empty() ? std::chrono::milliseconds(kSendAgain).count() : strangers_ != 0 ? 100 : left;
    return static_cast<int>(std::min<std::int64_t>(left, most));
}

void Connections::accept_some() {
    for (int i = 0; i < kReadsPerTurn; ++i) {
        let_closers_catch_up(kUnclosedMax, kCatchUp);
        ForeignFd socket = listener_.accept();
        if (!socket.valid()) {
            if (errno == EMFILE || errno == ENFILE) {
                note("no descriptors left; whoever attaches has to wait");
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

// Of whoever comes unasked, who may come as often as it likes.
void Connections::note(const std::string& what) {
    if (const std::optional<std::uint64_t> left_out = notes_.take(Clock::now())) {
        log_warning("attach: {}{}", what, and_others(*left_out));
    }
}

void Connections::welcome(ForeignFd socket) {
    Peer peer = peer_of(socket.get());
    if (closed_.load(std::memory_order_acquire)) {
        return turn_away(socket.get(), peer, ESHUTDOWN, kStopping);
    }
    if (!allowed_.allows(peer)) {
        return turn_away(socket.get(), peer, EACCES, "this user may not attach: it is not in attach.users, nor in attach.groups");
    }
    if (strangers_ >= kStrangersMax || std::max(connections_.size() - strangers_, ways_.attached()) >= config_.clients_max) {
        return turn_away(socket.get(), peer, ENOSPC,
                         strangers_ >= kStrangersMax ? "too many attach at the same time" : "as many are attached as may be (attach.clients_max)");
    }
    const std::uint32_t number = next_number_++;
    watch(peer.pidfd.get(), tag_of(number, true), EPOLLIN, EPOLL_CTL_ADD);
    // Last: where this fails it is closed later, and must not stand in the epoll until then.
    watch(socket.get(), tag_of(number, false), EPOLLIN, EPOLL_CTL_ADD);
    ++strangers_;
    connections_.emplace(number, Connection{.socket = std::move(socket), .peer = std::move(peer), .since = Clock::now()});
}

// Told in the form of an answer to the first request, which has this number.
void Connections::turn_away(int socket, const Peer& peer, int error, const std::string& why) {
    note(fmt::format("{} refused: {}", peer.describe(), why));
    refused_.fetch_add(1, std::memory_order_relaxed);
    wire::Answer<wire::Attached> answer{{.kind = wire::Kind::attach, .id = 1}, {}, {}};
    answer.outcome.error = error;
    answer.outcome.text = wire::ErrorText(why);
    (void)wire::send_packet(socket, std::as_bytes(std::span(&answer, 1)), {});
}

void Connections::serve(std::uint32_t number, Connection& connection, std::uint32_t events) {
    if ((events & EPOLLOUT) != 0) {
        write(number, connection);
    }
    if ((events & (EPOLLIN | EPOLLHUP | EPOLLERR)) == 0 || !connection.reading) {
        if ((events & (EPOLLHUP | EPOLLERR)) != 0) {
            lose(number, "hung up");
        }
        return;
    }
    for (int i = 0; i < kReadsPerTurn && connection.asked < kAskedMax; ++i) {
        let_closers_catch_up(kUnclosedMax, kCatchUp);
        wire::Packet packet;
        const int error = wire::recv_packet(connection.socket.get(), packet);
        if (error == EAGAIN) {
            break;
        }
        if (error != 0) {
            return lose(number, "hung up");
        }
        if (!connection.heard && closed_.load(std::memory_order_acquire)) {
            turn_away(connection.socket.get(), connection.peer, ESHUTDOWN, kStopping);
            return forget(number);
        }
        if (!std::exchange(connection.heard, true)) {
            --strangers_;
            ways_.hear({.what = Heard::What::came, .number = number, .text = connection.peer.describe(), .packet = {}});
        }
        ++connection.asked;
        ways_.hear({.what = Heard::What::said, .number = number, .text = {}, .packet = std::move(packet)});
    }
    rearm(number, connection);
}

// Reads while little is unanswered, writes while something is unread.
void Connections::rearm(std::uint32_t number, Connection& connection) {
    const bool reading = connection.asked < kAskedMax && connection.unread.size() < kAskedMax;
    const bool writing = !connection.unread.empty() && !held_back_.contains(number);
    if (!reading && connection.unread.size() >= kAskedMax && !std::exchange(connection.told, true)) {
        note(fmt::format("client {} ({}) does not read what it is answered; nothing more is taken from it until it does", number,
                         connection.peer.describe()));
    }
    if (reading != connection.reading || writing != connection.writing) {
        connection.reading = reading;
        connection.writing = writing;
        watch(connection.socket.get(), tag_of(number, false), (reading ? EPOLLIN : 0u) | (writing ? EPOLLOUT : 0u), EPOLL_CTL_MOD);
    }
}

void Connections::write(std::uint32_t number, Connection& connection) {
    while (!connection.unread.empty()) {
        const Reply& reply = connection.unread.front();
        std::array<int, wire::kDescriptorsMax> fds{};
        std::transform(reply.descriptors.begin(), reply.descriptors.end(), fds.begin(), [](const UniqueFd& fd) { return fd.get(); });
        const int error = wire::send_packet(connection.socket.get(), reply.bytes, {fds.data(), reply.descriptors.size()});
        if (error == EAGAIN) {
            break;
        }
        if (error == ETOOMANYREFS) {
            held_back_.insert(number);  // unix(7); others of this user cause it, and it passes
            break;
        }
        if (error != 0) {
            connection.unread.clear();
            (void)::shutdown(connection.socket.get(), SHUT_RDWR);  // which reading tells of
            break;
        }
        connection.unread.pop_front();
    }
    rearm(number, connection);
}

void Connections::send_outgoing() {
    std::deque<Outgoing> outgoing;
    {
        const std::lock_guard lock(outgoing_mutex_);
        outgoing.swap(outgoing_);
    }
    for (Outgoing& out : outgoing) {
        const auto found = connections_.find(out.number);
        if (found == connections_.end()) {
            continue;
        }
        Connection& connection = found->second;
        if (out.hang_up) {
            forget(out.number);
            continue;
        }
        const bool answer = out.reply.is_answer();
        connection.asked -= answer;
        if (answer || connection.unread.size() < kUnreadMax) {
            connection.unread.push_back(std::move(out.reply));
        }
        write(out.number, connection);
    }
}

void Connections::end_strangers() {
    if (strangers_ == 0) {
        return;
    }
    const auto now = Clock::now();
    std::vector<std::uint32_t> late;
    for (const auto& [number, connection] : connections_) {
        if (!connection.heard && now - connection.since > kHelloWithin) {
            late.push_back(number);
        }
    }
    for (const std::uint32_t number : late) {
        note(fmt::format("{} said nothing within {} s and is hung up on", connections_.at(number).peer.describe(),
                         std::chrono::seconds(kHelloWithin).count()));
        refused_.fetch_add(1, std::memory_order_relaxed);
        forget(number);
    }
}

void Connections::lose(std::uint32_t number, const char* how) {
    const bool heard = connections_.at(number).heard;
    forget(number);
    if (heard) {
        ways_.hear({.what = Heard::What::gone, .number = number, .text = how, .packet = {}});
    }
}

void Connections::forget(std::uint32_t number) {
    const auto found = connections_.find(number);
    strangers_ -= found->second.heard ? 0 : 1;
    // Its socket is closed later, on another thread, and must not be heard of until then.
    (void)::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, found->second.socket.get(), nullptr);
    connections_.erase(found);
}

}  // namespace pollcore
