#include "attach/connection.hpp"

#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <thread>
#include <tuple>
#include <utility>

#include <fmt/format.h>

#include "attach/packet_socket.hpp"
#include "attach/shared_memory.hpp"
#include "base/descriptor_reserve.hpp"
#include "base/event_fd.hpp"
#include "base/quiet_thread.hpp"
#include "pollcore/error.hpp"

#ifndef SO_PASSRIGHTS
#define SO_PASSRIGHTS 83  // Linux 6.16
#endif

namespace pollcore {
namespace {

using namespace std::chrono_literals;

// The largest number of unanswered requests, including requests that wait for a peer. At this limit, the thread reads
// no more requests.
constexpr std::uint32_t kAskedMax = 64;
// While this many messages are unsent, events are left out. Answers are not left out, because kAskedMax bounds their
// number.
constexpr std::size_t kUnreadMax = 256;
// When to send again, if the kernel refused to send because this user has too many descriptors in flight.
constexpr auto kSendAgain = 10ms;

// The number of bytes of memory that come with this message; 0: no memory comes.
std::uint64_t memory_coming(const wire::Packet& packet) noexcept {
    if (wire::Request<wire::OpenSession> session;
        packet.header().kind == wire::Kind::open_session && packet.read(session)) {
        return session.body.bytes;
    }
    if (wire::Request<wire::RegisterMemory> region;
        packet.header().kind == wire::Kind::register_memory && packet.read(region)) {
        const auto [parent, offset, bytes] = std::tuple(region.body.parent, region.body.offset, region.body.bytes);
        // A sum beyond the range is more than any memfd has.
        return parent != 0 || bytes == 0 ? 0 : bytes + std::min(offset, UINT64_MAX - bytes);
    }
    return 0;
}

}  // namespace

Connection::Connection(std::uint32_t number, ForeignFd socket, std::string who, Rights rights,
                       std::shared_ptr<Account> account, Ways ways, std::shared_ptr<std::atomic<int>> living)
    : number_(number),
      who_(std::move(who)),
      rights_(rights),
      account_(std::move(account)),
      ways_(std::move(ways)),
      living_(std::move(living)),
      wake_(make_event_fd("a connection")),
      socket_(std::move(socket)) {
    living_->fetch_add(1);
}

Connection::~Connection() {
    living_->fetch_sub(1);
}

void Connection::start() {
    start_quiet_thread([self = shared_from_this()] { self->run(); }).detach();
}

void Connection::send(ReplyNode&& node) noexcept {
    {
        const std::lock_guard lock(mutex_);
        const bool answer = node.front().is_answer();
        asked_ -= answer;
        if (left_ || (!answer && unread_.size() >= kUnreadMax)) {
            return;
        }
        unread_.splice(unread_.end(), node);
    }
    signal_event(wake_.get());
}

void Connection::finish() noexcept {
    {
        const std::lock_guard lock(mutex_);
        finishing_ = true;
    }
    signal_event(wake_.get());
}

bool Connection::leave() noexcept {
    const std::lock_guard lock(mutex_);
    left_ = true;
    if (socket_.valid()) {
        (void)::shutdown(socket_.get(), SHUT_RDWR);
    }
    signal_event(wake_.get());
    return heard_;
}

bool Connection::heard() const {
    const std::lock_guard lock(mutex_);
    return heard_;
}

// ---- The connection's thread ----

void Connection::run() noexcept {
    pthread_setname_np(pthread_self(), "pollcore-conn");
    const char* how = nullptr;
    try {
        while (turn()) {
        }
        how = "hung up";
    } catch (const std::exception&) {
        how = "was hung up on: it could not be served any longer";
    }
    int socket = -1;
    {
        const std::lock_guard lock(mutex_);
        if (!left_ && !finishing_) {
            try {
                ways_.over(number_, how);
            } catch (...) {
                // The thread of Connections watches the process, too, so it will notice the process's end.
            }
        }
        socket = socket_.release();
    }
    close_here(socket, Unread::taken);
}

bool Connection::turn() {
    bool reading = false;
    bool writing = false;
    bool finishing = false;
    {
        const std::lock_guard lock(mutex_);
        if (left_) {
            return false;
        }
        reading = !finishing_ && asked_ < kAskedMax && unread_.size() < kAskedMax;
        writing = !unread_.empty();
        finishing = finishing_;
        if (!reading && !finishing && unread_.size() >= kAskedMax && !std::exchange(told_, true)) {
            ways_.note(fmt::format(
                "client {} ({}) does not read what it is answered; nothing more is taken from it until it does",
                number_, who_));
        }
    }
    if (writing && !blocked_ && !held_back_) {
        return write_one();
    }
    if (finishing) {
        return false;  // all messages are written, or cannot be written now
    }
    pollfd ready[] = {{.fd = wake_.get(), .events = POLLIN, .revents = 0},
                      {.fd = socket_.get(),
                       .events = static_cast<short>((reading ? POLLIN : 0) | (blocked_ ? POLLOUT : 0)),
                       .revents = 0}};
    const int timeout = held_back_ ? static_cast<int>(std::chrono::milliseconds(kSendAgain).count()) : -1;
    if (::poll(ready, 2, timeout) < 0 && errno != EINTR) {
        throw Error(errno, "a connection cannot be waited for");
    }
    held_back_ = false;
    if (ready[0].revents != 0) {
        (void)drain_event(wake_.get());
    }
    if ((ready[1].revents & POLLOUT) != 0) {
        blocked_ = false;
    }
    if (reading && (ready[1].revents & (POLLIN | POLLHUP | POLLERR)) != 0) {
        return read_one();
    }
    return (ready[1].revents & (POLLHUP | POLLERR)) == 0;
}

bool Connection::read_one() {
    wire::Packet packet;
    const int error = wire::recv_packet(socket_.get(), packet);
    if (error != 0) {
        return error == EAGAIN;
    }
    packet.descriptors_lost |= std::any_of(packet.descriptors.begin(), packet.descriptors.end(),
                                           [](const UniqueFd& fd) { return is_reserved(fd.get()); });
    Handed handed = packet.descriptors_lost ? Handed{} : map_what_came(packet);
    for (UniqueFd& fd : packet.descriptors) {
        close_here(fd.release());
    }
    const std::lock_guard lock(mutex_);
    if (left_ || finishing_) {
        return false;
    }
    if (!heard_) {
        if (!ways_.may_come(socket_.get())) {
            return false;
        }
        heard_ = true;
        const int yes = 1;  // until now the kernel has refused descriptors, if it can; see ListeningSocket
        (void)::setsockopt(socket_.get(), SOL_SOCKET, SO_PASSRIGHTS, &yes, sizeof(yes));
        ways_.hear({.what = Heard::What::came,
                    .number = number_,
                    .text = who_,
                    .packet = {},
                    .handed = {},
                    .account = account_,
                    .rights = rights_});
    }
    ++asked_;
    ways_.hear({.what = Heard::What::said,
                .number = number_,
                .text = {},
                .packet = std::move(packet),
                .handed = std::move(handed),
                .account = {}});
    return true;
}

// Maps and seals the memory before other threads learn of the message, so that none of them waits: sealing may wait for
// a process that holds the file's lock.
Handed Connection::map_what_came(wire::Packet& packet) const {
    const std::uint64_t bytes = memory_coming(packet);
    if (bytes == 0 || packet.descriptors.size() != 1) {
        return {};
    }
    // Waits while too much memory of the process is still being unmapped: more than the process may have registered.
    while (account_->has(Thing::leaving_byte) > account_->may_have(Thing::byte)) {
        std::this_thread::sleep_for(1ms);
    }
    try {
        Account::Held held = account_->take(Thing::byte, bytes);
        return {.memory = make_received_memory(std::move(held), map_and_seal(packet.descriptors.front(), bytes)),
                .failure = nullptr};
    } catch (...) {
        return {.memory = nullptr, .failure = std::current_exception()};
    }
}

bool Connection::write_one() {
    ReplyNode node;
    {
        const std::lock_guard lock(mutex_);
        node.splice(node.begin(), unread_, unread_.begin());
    }
    const Reply& reply = node.front();
    std::array<int, wire::kDescriptorsMax> fds{};
    std::transform(reply.descriptors.begin(), reply.descriptors.end(), fds.begin(),
                   [](const UniqueFd& fd) { return fd.get(); });
    const int error = wire::send_packet(socket_.get(), reply.bytes, {fds.data(), reply.descriptors.size()});
    if (error != EAGAIN && error != ETOOMANYREFS) {
        return error == 0;
    }
    blocked_ = error == EAGAIN;
    held_back_ = error == ETOOMANYREFS;  // unix(7): too many descriptors of this user are in flight for now
    const std::lock_guard lock(mutex_);
    unread_.splice(unread_.begin(), node);
    return true;
}

}  // namespace pollcore
