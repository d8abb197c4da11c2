// The daemon's side of attaching: a thread that accepts, reads and writes, and never waits for anything else. What is asked is
// carried out on the control thread by each AttachedClient; answers come back over a queue.
#include "pollcore/attach_server.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <thread>

#include <fmt/format.h>

#include "attach/attached_client.hpp"
#include "attach/credentials.hpp"
#include "attach/line_budget.hpp"
#include "attach/packet_socket.hpp"
#include "base/event_fd.hpp"
#include "base/log.hpp"
#include "control/runtime_state.hpp"

namespace pollcore {
namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

// Who has connected says within this what it wants.
constexpr auto kHelloWithin = 2s;
// Connections that have not said so yet, beside those that are attached.
constexpr std::size_t kStrangersMax = 32;
// Asked and not answered; more is read when some are. What waits for a peer counts too.
constexpr std::uint32_t kAskedMax = 64;
// Read from one connection before the others have their turn.
constexpr int kReadsPerTurn = 4;
// Messages that one does not read. Answers are no more than what it asked; events beyond this are left out.
constexpr std::size_t kUnreadMax = 256;
// Until a process that has died, or broke the rules, has nothing left here. What its devices have not flushed by then is cut short.
constexpr auto kEndWithin = 500ms;
// What one process is refused stands in the log this often at most.
constexpr auto kLinesEvery = 1s;

sockaddr_un address_of(const std::filesystem::path& path) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    const std::string text = path.string();
    if (text.empty() || text.size() >= sizeof(address.sun_path)) {
        throw Error(ENAMETOOLONG, fmt::format("attach.path = \"{}\": a socket's path has 1 to {} characters", text,
                                              sizeof(address.sun_path) - 1));
    }
    std::memcpy(address.sun_path, text.c_str(), text.size());
    return address;
}

// Whether somebody listens there now; if not, what a daemon that was killed has left.
bool is_served(const sockaddr_un& address) {
    const UniqueFd probe(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    return ::connect(probe.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0 || errno == EAGAIN;
}

UniqueFd listen_at(const AttachConfig& config) {
    const sockaddr_un address = address_of(config.path);
    const auto fail = [&](int error, const char* what) {
        return Error(error, fmt::format("attach.path = \"{}\": {}", config.path.string(), what));
    };
    struct stat status {};
    if (::lstat(address.sun_path, &status) == 0) {
        if (!S_ISSOCK(status.st_mode)) {
            throw fail(EEXIST, "there is something else than a socket");
        }
        if (is_served(address)) {
            throw fail(EADDRINUSE, "another daemon listens there");
        }
        (void)::unlink(address.sun_path);
    }
    UniqueFd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!socket.valid()) {
        throw fail(errno, "no socket");
    }
    // Nobody connects before owner and mode are what they shall be.
    if (::fchmod(socket.get(), 0) != 0 ||
        ::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
        throw fail(errno, "cannot be made; does its directory exist?");
    }
    if ((!config.owner.empty() || !config.group.empty()) &&
        ::chown(address.sun_path, user_id(config.owner), group_id(config.group)) != 0) {
        throw fail(errno, "cannot be given to its owner and group");
    }
    if (::chmod(address.sun_path, static_cast<mode_t>(config.mode)) != 0 || ::listen(socket.get(), SOMAXCONN) != 0) {
        throw fail(errno, "cannot be opened");
    }
    return socket;
}

}  // namespace

class AttachServer::Server final : public ClientHost {
public:
    Server(RuntimeState& runtime, const AttachConfig& config)
        : runtime_(runtime),
          config_(config),
          allowed_(config),
          quota_(config.quota()),
          epoll_(::epoll_create1(EPOLL_CLOEXEC)),
          wake_(make_event_fd("the attach server")),
          listener_(listen_at(config)) {
        if (!epoll_.valid()) {
            throw Error(errno, "no epoll for the attach server");
        }
        watch(listener_.get(), kListener);
        watch(wake_.get(), kWake);
        on_control([this] { runtime_.set_host(this); });
        sigset_t all;
        sigset_t before;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before);
        thread_ = std::thread([this] { loop(); });
        pthread_sigmask(SIG_SETMASK, &before, nullptr);
    }

    ~Server() override {
        ending_.store(true, std::memory_order_release);
        signal_event(wake_.get());
        thread_.join();
        on_control([this] {
            runtime_.set_host(nullptr);
            clients_.clear();
        });
        (void)::unlink(config_.path.c_str());
    }

    bool stop(std::chrono::milliseconds drain) {
        closed_.store(true, std::memory_order_release);
        std::mutex mutex;
        std::condition_variable changed;
        std::size_t left = 0;
        bool whole = true;
        on_control([&] {
            for (auto& [number, client] : clients_) {
                if (client->ending()) {
                    continue;
                }
                ++left;
                client->end(drain, false, [&](bool drained) {
                    const std::lock_guard lock(mutex);
                    whole = whole && drained;
                    --left;
                    changed.notify_all();
                });
            }
        });
        turn_soon();
        {
            std::unique_lock lock(mutex);
            changed.wait(lock, [&] { return left == 0; });
        }
        // Those that were being taken down already, and the last answers.
        const auto until = Clock::now() + kEndWithin + drain;
        while (counts().now != 0 && Clock::now() < until) {
            std::this_thread::sleep_for(1ms);
        }
        return whole;
    }

    void set_quota(const QuotaConfig& quota) {
        on_control([&] {
            quota_ = quota;
            for (auto& [number, client] : clients_) {
                client->set_quota(quota);
            }
        });
    }

    AttachCounts counts() const {
        const std::lock_guard lock(counts_mutex_);
        return counts_;
    }

    // ---- On the control thread ----

    void connections_changed() override { turn_soon(); }
    void event(const Event& event) override {
        for (auto& [number, client] : clients_) {
            client->tell(event);
        }
    }
    bool session_broken(std::uint32_t session) override {
        for (auto& [number, client] : clients_) {
            if (client->has_session(session)) {
                evict(number, "wrote into its rings what no session writes");
                return true;
            }
        }
        return false;
    }

private:
    static constexpr std::uint64_t kListener = 0;
    static constexpr std::uint64_t kWake = 1;
    // A client's socket and its pidfd.
    static constexpr std::uint64_t tag_of(std::uint32_t number, bool pidfd) noexcept { return std::uint64_t{number} << 1 | pidfd; }
    static constexpr std::uint32_t kFirstNumber = 1;
    static_assert(std::uint64_t{kFirstNumber} << 1 > kWake);

    struct Connection {
        UniqueFd socket;
        Peer peer;
        Clock::time_point since;
        bool attached = false;  // has said something that was taken
        bool reading = true;    // of the epoll
        std::uint32_t asked = 0;
        std::deque<Reply> unread;
        bool writing = false;
        bool told = false;  // that it does not read
    };
    struct Outgoing {
        std::uint32_t number = 0;
        Reply reply;
        bool answer = false;
        bool close = false;
    };

    void on_control(std::function<void()> job) {
        std::mutex mutex;
        std::condition_variable changed;
        bool done = false;
        runtime_.post([&] {
            job();
            const std::lock_guard lock(mutex);
            done = true;
            changed.notify_all();
        });
        std::unique_lock lock(mutex);
        changed.wait(lock, [&] { return done; });
    }

    void watch(int fd, std::uint64_t tag, std::uint32_t events = EPOLLIN, int operation = EPOLL_CTL_ADD) {
        epoll_event event{.events = events, .data = {.u64 = tag}};
        if (::epoll_ctl(epoll_.get(), operation, fd, &event) != 0) {
            throw Error(errno, "the attach server cannot wait for a descriptor");
        }
    }

    // ---- The loop's thread ----

    void loop() noexcept {
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

    void one_turn() {
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
                    (tag & 1) != 0 ? hang_up(number, "died", true) : serve(number, found->second, events[static_cast<std::size_t>(i)].events);
                }
            }
        }
        send_outgoing();
        end_strangers();
        if (Clock::now() >= next_turn_.load(std::memory_order_acquire) && !turn_posted_.exchange(true, std::memory_order_acq_rel)) {
            next_turn_.store(Clock::time_point::max(), std::memory_order_release);
            runtime_.post([this] { turn(); });
        }
    }

    int wait_ms() const {
        if (turn_posted_.load(std::memory_order_acquire)) {
            return strangers_ != 0 ? 100 : 1000;
        }
        const auto next = next_turn_.load(std::memory_order_acquire);
        const auto now = Clock::now();
        if (next <= now) {
            return 0;
        }
        const auto left = std::chrono::ceil<std::chrono::milliseconds>(std::min<Clock::duration>(next - now, 1s)).count();
        return static_cast<int>(strangers_ != 0 ? std::min<std::int64_t>(left, 100) : left);
    }

    void accept_some() {
        for (int i = 0; i < kReadsPerTurn; ++i) {
            UniqueFd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
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
    void note(const std::string& what) {
        if (const std::optional<std::uint64_t> left_out = notes_.take(Clock::now())) {
            log_warning("attach: {}{}", what, and_others(*left_out));
        }
    }

    void welcome(UniqueFd socket) {
        Peer peer = peer_of(socket.get());
        if (closed_.load(std::memory_order_acquire)) {
            return turn_away(socket.get(), peer, ESHUTDOWN, "the daemon is stopping");
        }
        if (!allowed_.allows(peer)) {
            return turn_away(socket.get(), peer, EACCES, "this user may not attach: it is not in attach.users, nor in attach.groups");
        }
        if (strangers_ >= kStrangersMax || connections_.size() - strangers_ >= config_.clients_max) {
            return turn_away(socket.get(), peer, ENOSPC,
                             strangers_ >= kStrangersMax ? "too many attach at the same time" : "as many are attached as may be (attach.clients_max)");
        }
        const std::uint32_t number = next_number_++;
        watch(socket.get(), tag_of(number, false));
        watch(peer.pidfd.get(), tag_of(number, true));
        ++strangers_;
        connections_.emplace(number, Connection{.socket = std::move(socket), .peer = std::move(peer), .since = Clock::now()});
    }

    // Told in the form of an answer to the first request, which has this number.
    void turn_away(int socket, const Peer& peer, int error, const std::string& why) {
        note(fmt::format("{} refused: {}", peer.describe(), why));
        count([](AttachCounts& counts) { ++counts.refused; });
        wire::Answer<wire::Attached> answer{{.kind = wire::Kind::attach, .id = 1}, {}, {}};
        answer.outcome.error = error;
        answer.outcome.text = wire::ErrorText(why);
        (void)wire::send_packet(socket, std::as_bytes(std::span(&answer, 1)), {});
    }

    void serve(std::uint32_t number, Connection& connection, std::uint32_t events) {
        if ((events & EPOLLOUT) != 0) {
            write(number, connection);
        }
        if ((events & (EPOLLIN | EPOLLHUP | EPOLLERR)) == 0 || !connection.reading) {
            if ((events & (EPOLLHUP | EPOLLERR)) != 0) {
                hang_up(number, "hung up", true);
            }
            return;
        }
        for (int i = 0; i < kReadsPerTurn && connection.asked < kAskedMax; ++i) {
            wire::Packet packet;
            const int error = wire::recv_packet(connection.socket.get(), packet);
            if (error == EAGAIN) {
                break;
            }
            if (error != 0) {
                return hang_up(number, "hung up", true);
            }
            if (!std::exchange(connection.attached, true)) {
                --strangers_;
                introduce(number, connection.peer);
            }
            ++connection.asked;
            runtime_.post([this, number, packet = std::make_shared<wire::Packet>(std::move(packet))] { take(number, *packet); });
        }
        rearm(number, connection);
    }

    // Reads while little is unanswered, writes while something is unread.
    void rearm(std::uint32_t number, Connection& connection) {
        const bool reading = connection.asked < kAskedMax && connection.unread.size() < kAskedMax;
        const bool writing = !connection.unread.empty();
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

    void write(std::uint32_t number, Connection& connection) {
        while (!connection.unread.empty()) {
            const Reply& reply = connection.unread.front();
            std::array<int, wire::kDescriptorsMax> fds{};
            std::transform(reply.descriptors.begin(), reply.descriptors.end(), fds.begin(), [](const UniqueFd& fd) { return fd.get(); });
            const int error = wire::send_packet(connection.socket.get(), reply.bytes, {fds.data(), reply.descriptors.size()});
            if (error == EAGAIN) {
                break;
            }
            if (error != 0) {
                connection.unread.clear();  // its end is told by reading
                break;
            }
            connection.unread.pop_front();
        }
        rearm(number, connection);
    }

    void send_outgoing() {
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
            if (out.answer) {
                --connection.asked;
            }
            if (!out.reply.bytes.empty() && (out.answer || connection.unread.size() < kUnreadMax)) {
                connection.unread.push_back(std::move(out.reply));
            }
            write(out.number, connection);
            if (out.close) {
                forget(out.number);
            }
        }
    }

    void end_strangers() {
        if (strangers_ == 0) {
            return;
        }
        const auto now = Clock::now();
        std::vector<std::uint32_t> late;
        for (const auto& [number, connection] : connections_) {
            if (!connection.attached && now - connection.since > kHelloWithin) {
                late.push_back(number);
            }
        }
        for (const std::uint32_t number : late) {
            note(fmt::format("{} said nothing within {} s and is hung up on", connections_.at(number).peer.describe(),
                             std::chrono::seconds(kHelloWithin).count()));
            count([](AttachCounts& counts) { ++counts.refused; });
            forget(number);
        }
    }

    void hang_up(std::uint32_t number, const char* how, bool dead) {
        const bool known = connections_.at(number).attached;
        forget(number);
        if (known) {
            runtime_.post([this, number, how, dead] { end(number, how, dead); });
        }
    }

    void forget(std::uint32_t number) {
        const auto found = connections_.find(number);
        strangers_ -= found->second.attached ? 0 : 1;
        connections_.erase(found);  // closing takes its descriptors out of the epoll
    }

    // ---- The control thread ----

    void introduce(std::uint32_t number, const Peer& peer) {
        runtime_.post([this, number, who = peer.describe()] {
            count([](AttachCounts& counts) {
                ++counts.attached;
                ++counts.now;
            });
            clients_.emplace(number, std::make_unique<AttachedClient>(runtime_, number, who, quota_, [this, number](Reply&& reply) {
                const bool answer = is_answer(reply);
                send(number, std::move(reply), answer, false);
            }));
            tell_coming([&](const std::string& others) { log_info("client {} attached: {}{}", number, who, others); });
        });
    }

    static bool is_answer(const Reply& reply) noexcept {
        wire::Header header;
        std::memcpy(&header, reply.bytes.data(), sizeof(header));
        return header.id != 0;
    }

    void send(std::uint32_t number, Reply&& reply, bool answer, bool close) {
        {
            const std::lock_guard lock(outgoing_mutex_);
            outgoing_.push_back({number, std::move(reply), answer, close});
        }
        signal_event(wake_.get());
    }

    void take(std::uint32_t number, wire::Packet& packet) {
        const auto found = clients_.find(number);
        if (found == clients_.end()) {
            return;
        }
        AttachedClient& client = *found->second;
        if (client.ending()) {
            return;
        }
        if (!client.take(packet)) {
            return evict(number, "sent what is no message of this library");
        }
        if (client.ending()) {  // by its own wish
            detaching_.insert(number);
        }
        turn_soon();
    }

    void evict(std::uint32_t number, const char* what) {
        AttachedClient& client = *clients_.at(number);
        if (client.ending()) {
            return;
        }
        if (const std::optional<std::uint64_t> left_out = evictions_.take(runtime_.platform->now())) {
            log_error("client {} ({}) {}: it is ended{}", number, client.who(), what, and_others(*left_out));
        }
        count([](AttachCounts& counts) { ++counts.evicted; });
        const auto since = runtime_.platform->now();
        client.end(kEndWithin, true, [this, number, since](bool) { ended(number, since, "evicted"); });
        turn_soon();
    }

    void end(std::uint32_t number, const char* how, bool dead) {
        const auto found = clients_.find(number);
        if (found == clients_.end() || found->second->ending()) {
            return;
        }
        count([](AttachCounts& counts) { ++counts.died; });
        const auto since = runtime_.platform->now();
        found->second->end(kEndWithin, dead, [this, number, since, how](bool) { ended(number, since, how); });
        turn_soon();
    }

    void ended(std::uint32_t number, Clock::time_point since, const char* how) {
        const auto took = std::chrono::duration_cast<std::chrono::microseconds>(runtime_.platform->now() - since);
        tell_coming([&](const std::string& others) {
            log_info("client {} ({}) {}: nothing of it is left after {:.1f} ms{}", number, clients_.at(number)->who(), how,
                     static_cast<double>(took.count()) / 1000, others);
        });
        count([&](AttachCounts& counts) { counts.longest_clean_up = std::max(counts.longest_clean_up, took); });
    }

    void turn_soon() {
        next_turn_.store(Clock::time_point::min(), std::memory_order_release);
        signal_event(wake_.get());
    }

    void turn() {
        turn_posted_.store(false, std::memory_order_release);
        auto next = Clock::time_point::max();
        const auto now = runtime_.platform->now();
        const bool tell = now >= next_lines_;
        if (tell) {
            next_lines_ = now + kLinesEvery;
        }
        for (auto client = clients_.begin(); client != clients_.end();) {
            next = std::min(next, client->second->turn());
            if (tell) {
                client->second->log_refusals();
            }
            if (!client->second->ended()) {
                ++client;
                continue;
            }
            const std::uint32_t number = client->first;
            if (detaching_.erase(number) != 0) {
                tell_coming([&](const std::string& others) {
                    log_info("client {} ({}) detached{}", number, client->second->who(), others);
                });
                count([](AttachCounts& counts) { ++counts.detached; });
            }
            client = clients_.erase(client);
            count([](AttachCounts& counts) { --counts.now; });
            send(number, {}, false, true);  // behind its last answer
        }
        // An earlier one may have been asked for meanwhile.
        auto planned = next_turn_.load(std::memory_order_acquire);
        while (next < planned && !next_turn_.compare_exchange_weak(planned, next, std::memory_order_acq_rel)) {
        }
        signal_event(wake_.get());
    }

    template <class F>
    void tell_coming(F&& line) {
        if (const std::optional<std::uint64_t> left_out = comings_.take(runtime_.platform->now())) {
            line(and_others(*left_out));
        }
    }

    template <class F>
    void count(F&& change) {
        const std::lock_guard lock(counts_mutex_);
        change(counts_);
    }

    RuntimeState& runtime_;
    const AttachConfig config_;
    const AllowList allowed_;
    QuotaConfig quota_;  // the control thread's
    UniqueFd epoll_;
    UniqueFd wake_;
    UniqueFd listener_;
    std::atomic<bool> ending_{false};
    std::atomic<bool> closed_{false};
    std::atomic<bool> turn_posted_{false};
    std::atomic<Clock::time_point> next_turn_{Clock::time_point::max()};

    std::mutex outgoing_mutex_;
    std::deque<Outgoing> outgoing_;
    mutable std::mutex counts_mutex_;
    AttachCounts counts_;

    // The loop's thread.
    std::map<std::uint32_t, Connection> connections_;
    std::size_t strangers_ = 0;
    std::uint32_t next_number_ = kFirstNumber;
    LineBudget notes_{2};
    // The control thread.
    std::map<std::uint32_t, std::unique_ptr<AttachedClient>> clients_;
    std::set<std::uint32_t> detaching_;
    Clock::time_point next_lines_{};
    // Who attaches may do so often. What ends one for its misdeeds has lines of its own.
    LineBudget comings_{50};
    LineBudget evictions_{10};

    std::thread thread_;
};

AttachServer::AttachServer(Runtime& runtime, const AttachConfig& config)
    : server_(std::make_unique<Server>(runtime.state(), config)) {}

AttachServer::~AttachServer() {
    try {
        (void)stop(std::chrono::milliseconds(0));
    } catch (const std::exception& error) {
        log_error("attach server: {}", error.what());
    }
}

bool AttachServer::stop(std::chrono::milliseconds drain) { return server_->stop(drain); }
void AttachServer::set_quota(const QuotaConfig& quota) { server_->set_quota(quota); }
AttachCounts AttachServer::counts() const { return server_->counts(); }

}  // namespace pollcore
