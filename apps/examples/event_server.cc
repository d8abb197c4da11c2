// A server with 1,000 connections on one thread. The thread sleeps in one epoll(7), which has two descriptors: one for
// the events of all connections, and one for their messages. The server answers each message with its own bytes.
//
//   event_server CONFIG [CONNECTIONS [ADDRESS]]        for example: event_server config/loopback.toml 1000
//
// ADDRESS is an address as for Context::listen: 192.0.2.7:0 on a verbs device, or a name on a software device.
//
// The clients are on the same thread, so that the program needs no second one. Each client connects, sends a message
// and checks the answer. When all have their answers, all close their connections at once.
#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "example.hpp"

using namespace pollcore;

namespace {

constexpr std::uint32_t kLongest = 64;  // bytes of a message
// Connections that the clients make at a time. More than kListenerBacklogMax requests would not fit at the listener.
constexpr std::uint32_t kAtOnce = 64;
constexpr std::chrono::seconds kPatience{30};

// The messages of all connections: one session, and one shared receive queue that its worker keeps filled from a pool.
class Messages {
public:
    // A client waits for its answer before it sends again, so one receive for each connection is enough. The pool has
    // twice as many buffers, because this thread holds some of them for a while.
    Messages(Runtime& runtime, std::uint32_t connections)
        : runtime_(runtime),
          session_(runtime.open_session({.pool_buffers = 2 * connections, .events = true})),
          pool_(runtime.create_receive_pool(
              {.session = &session_, .buffers = 2 * connections, .buffer_bytes = kLongest})),
          receives_(runtime.create_shared_receive_queue({.session = &session_, .depth = connections, .pool = &pool_})) {
    }

    [[nodiscard]] QueuePair create_queue_pair() {
        return runtime_.create_queue_pair(
            {.shares = {{.session = &session_, .send_depth = 2}}, .srq = &receives_, .inline_max = kLongest});
    }
    [[nodiscard]] int event_fd() const { return session_.event_fd(); }
    // Whether event_fd() becomes readable when there is something to do. If not, there is something to do now.
    [[nodiscard]] bool arm() { return session_.arm(); }

    // Calls `take` for each message that has come, but for a limited number, so that events get their turn.
    template <class Take>
    void receive(Take take) {
        std::array<Completion, 64> completions;
        const auto taken = std::span(completions).first(session_.poll(completions));
        for (const Completion& completion : taken) {
            // Any other completion is the end of a send. If a send fails, an event tells that its connection has ended.
            if (completion.from_recv_queue() && completion.ok()) {
                const std::span<std::byte> bytes = pool_.message(completion);
                take(completion.qp, std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
            }
        }
        // Gives the buffers back to the pool. If the submission ring is full, a later call gives back the others.
        used_.insert(used_.end(), taken.begin(), taken.end());
        const Submitted released = session_.release(used_);
        used_.erase(used_.begin(), used_.begin() + static_cast<std::ptrdiff_t>(released.accepted));
    }

    // Keeps a copy of the message until send_all() has sent it.
    void send(QpHandle qp, std::string_view message) { unsent_.emplace_back(qp, message); }
    // Sends all messages that there is room for. A connection without room does not hold up the others.
    void send_all() {
        std::erase_if(unsent_, [this](const auto& unsent) {
            const auto& [qp, message] = unsent;
            const Refusal refusal =
                session_.try_submit_inline(WorkRequest::send(qp, {}), std::as_bytes(std::span(message)));
            // After the end of a connection nobody waits for its messages. An event tells of the end.
            if (!retryable(refusal) && refusal != Refusal::qp_in_error && refusal != Refusal::stale_handle) {
                example::accepted(refusal);
            }
            return !retryable(refusal);
        });
    }

private:
    Runtime& runtime_;
    Session session_;
    ReceivePool pool_;
    SharedReceiveQueue receives_;
    std::vector<Completion> used_;  // their buffers are not released yet
    std::vector<std::pair<QpHandle, std::string>> unsent_;
};

class Server {
public:
    Server(Runtime& runtime, Messages& messages, const std::string& address)
        : messages_(messages), listener_(runtime.listen(address)) {}

    [[nodiscard]] const std::string& address() const { return listener_.address(); }
    [[nodiscard]] std::size_t connections() const { return connections_.size(); }
    [[nodiscard]] std::uint32_t accepted() const { return accepted_; }
    [[nodiscard]] std::uint32_t told_of_end() const { return told_of_end_; }

    void take(const Event& event) {
        if (event.type == EventType::connect_request) {
            return accept_all();
        }
        const auto found = connections_.find(event.qp);
        if (found == connections_.end()) {
            return;  // an event of a client
        }
        switch (event.type) {
            case EventType::established: ++accepted_; break;
            case EventType::disconnected: ++told_of_end_; [[fallthrough]];
            case EventType::connect_failed:
            case EventType::qp_error:
                // The destructor of a queue pair would wait for the end of its requests. This call does not wait.
                if (!std::exchange(found->second.closing, true)) {
                    found->second.qp.begin_close();
                }
                break;
            case EventType::closed:
                if (event.error != 0) {
                    fmt::print(stderr, "{}\n", event.text);
                }
                connections_.erase(found);
                break;
            default: break;
        }
    }
    void take(QpHandle qp, std::string_view message) {
        if (connections_.contains(qp)) {
            messages_.send(qp, message);
        }
    }

private:
    struct Connection {
        QueuePair qp;
        bool closing = false;
    };

    void accept_all() {
        while (std::optional<ConnectionRequest> request = listener_.next_request(std::chrono::milliseconds(0))) {
            try {
                QueuePair qp = messages_.create_queue_pair();
                request->begin_accept(qp, {.timeout = kPatience});
                const QpHandle handle = qp.handle();
                connections_.emplace(handle, Connection{std::move(qp)});
            } catch (const Error& error) {  // this client is turned away, and the server goes on
                fmt::print(stderr, "the request of {}: {}\n", request->peer(), error.what());
            }
        }
    }

    Messages& messages_;
    Listener listener_;
    std::map<QpHandle, Connection> connections_;
    std::uint32_t accepted_ = 0;
    std::uint32_t told_of_end_ = 0;
};

// Anything unexpected ends the program.
class Clients {
public:
    Clients(Messages& messages, std::string address, std::uint32_t count)
        : messages_(messages), address_(std::move(address)), count_(count) {
        connect();
    }

    [[nodiscard]] bool done() const { return answered_ == count_ && clients_.empty(); }

    void take(const Event& event) {
        const auto found = clients_.find(event.qp);
        if (found == clients_.end()) {
            return;  // an event of the server
        }
        switch (event.type) {
            case EventType::established:
                ++established_;
                messages_.send(event.qp, found->second.message);
                connect();
                break;
            case EventType::closed:
                if (event.error == 0) {
                    clients_.erase(found);
                    break;
                }
                [[fallthrough]];
            case EventType::connect_failed:
            case EventType::disconnected:
            case EventType::qp_error:
                throw std::runtime_error(fmt::format("{}: {}", found->second.message,
                                                     event.text.empty() ? event_type_name(event.type) : event.text));
            default: break;
        }
    }
    void take(QpHandle qp, std::string_view answer) {
        const auto found = clients_.find(qp);
        if (found == clients_.end()) {
            return;  // a message to the server
        }
        if (answer != found->second.message || std::exchange(found->second.answered, true)) {
            throw std::runtime_error(fmt::format("{}: the answer is \"{}\"", found->second.message, answer));
        }
        if (++answered_ == count_) {
            for (auto& [handle, client] : clients_) {
                client.qp.begin_close();
            }
        }
    }

private:
    struct Client {
        QueuePair qp;
        std::string message;
        bool answered = false;
    };

    void connect() {
        for (; begun_ < count_ && begun_ - established_ < kAtOnce; ++begun_) {
            QueuePair qp = messages_.create_queue_pair();
            qp.begin_connect(address_, {.timeout = kPatience});
            const QpHandle handle = qp.handle();
            clients_.emplace(handle, Client{std::move(qp), fmt::format("client {}", begun_)});
        }
    }

    Messages& messages_;
    std::string address_;
    std::uint32_t count_;
    std::uint32_t begun_ = 0;
    std::uint32_t established_ = 0;
    std::uint32_t answered_ = 0;
    std::map<QpHandle, Client> clients_;
};

// A program with sockets and timers has their descriptors here, too.
class Epoll {
public:
    explicit Epoll(std::initializer_list<int> descriptors) : epoll_(epoll_create1(EPOLL_CLOEXEC)) {
        for (const int descriptor : descriptors) {
            epoll_event readable{.events = EPOLLIN, .data = {.fd = descriptor}};
            check(epoll_ctl(epoll_, EPOLL_CTL_ADD, descriptor, &readable));
        }
    }
    ~Epoll() { ::close(epoll_); }
    Epoll(const Epoll&) = delete;
    Epoll& operator=(const Epoll&) = delete;

    // Returns false when no descriptor became readable within the time.
    [[nodiscard]] bool wait(std::chrono::milliseconds timeout) {
        epoll_event readable{};
        const int ready = epoll_wait(epoll_, &readable, 1, static_cast<int>(timeout.count()));
        check(ready < 0 && errno == EINTR ? 0 : ready);  // a signal only begins another turn
        return ready != 0;
    }

private:
    static void check(int result) {
        if (result < 0) {
            throw std::system_error(errno, std::generic_category(), "epoll");
        }
    }

    int epoll_;
};

void serve(const char* file, std::uint32_t connections, const std::string& address) {
    Config config = load_config(file);
    config.qps_max = std::max(config.qps_max, std::bit_ceil(2 * connections));  // both ends are in this program
    Runtime runtime(config);
    Messages messages(runtime, connections);
    Server server(runtime, messages, address);
    Clients clients(messages, server.address(), connections);
    Epoll epoll({runtime.event_fd(), messages.event_fd()});

    // A turn looks at events and messages, whichever of the two descriptors was readable.
    while (!clients.done() || server.connections() != 0) {
        const bool may_sleep = messages.arm();
        if (!epoll.wait(may_sleep ? kPatience : std::chrono::seconds(0)) && may_sleep) {
            throw std::runtime_error(
                fmt::format("nothing comes any more: {} connections were accepted, and {} are left", server.accepted(),
                            server.connections()));
        }
        while (const std::optional<Event> event = runtime.poll_event()) {
            server.take(*event);
            clients.take(*event);
        }
        messages.receive([&](QpHandle qp, std::string_view message) {
            server.take(qp, message);
            clients.take(qp, message);
        });
        messages.send_all();
    }
    if (server.accepted() != connections || server.told_of_end() != connections) {
        throw std::runtime_error(fmt::format("of {} connections, {} were accepted, and {} were told of the end",
                                             connections, server.accepted(), server.told_of_end()));
    }
    fmt::print("{} connections: each was accepted, echoed its message, and was told of the end\n", connections);
}

}  // namespace

int main(int argc, char** argv) {
    if (argc < 2 || argc > 4) {
        fmt::print(stderr, "usage: event_server CONFIG [CONNECTIONS [ADDRESS]]\n");
        return 2;
    }
    return example::run([&] {
        const auto connections = argc > 2 ? example::number(argv[2], 1, kQpsMax / 2) : 1000;
        serve(argv[1], static_cast<std::uint32_t>(connections), argc > 3 ? argv[3] : "event_server");
    });
}
