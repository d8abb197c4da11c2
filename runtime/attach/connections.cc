#include "attach/connections.hpp"

#include <pthread.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "attach/packet_socket.hpp"
#include "attach/told_error.hpp"
#include "base/descriptor_reserve.hpp"
#include "base/event_fd.hpp"
#include "base/log.hpp"
#include "base/quiet_thread.hpp"
#include "pollcore/error.hpp"

namespace pollcore {
namespace {

using namespace std::chrono_literals;

// A new connection must send its first message within this time.
constexpr auto kHelloWithin = 2s;
// The largest number of connections without a first message: of all users together, and of one user.
constexpr std::size_t kStrangersMax = 128;
constexpr std::size_t kStrangersOfOneUser = 32;
// The largest number of connections that one turn of the loop accepts, before it does other work.
constexpr int kAcceptedPerTurn = 4;
// Waits for events. The time limit is finer than a millisecond if the kernel can do that (Linux 5.11).
int wait_for_events(int epoll, std::span<epoll_event> events, std::chrono::nanoseconds limit) noexcept {
    const auto s = std::chrono::duration_cast<std::chrono::seconds>(limit);
    const timespec time{.tv_sec = s.count(), .tv_nsec = (limit - s).count()};
    const int n = ::epoll_pwait2(epoll, events.data(), static_cast<int>(events.size()), &time, nullptr);
    if (n >= 0 || errno != ENOSYS) {
        return n;
    }
    const auto ms = std::chrono::ceil<std::chrono::milliseconds>(limit).count();
    return ::epoll_wait(epoll, events.data(), static_cast<int>(events.size()), static_cast<int>(ms));
}

// While more than kUnclosedMax descriptors wait to be closed, each accept waits first, for kCatchUp at most. So a
// descriptor whose close never returns delays processes that attach, but does not stop them.
constexpr std::size_t kUnclosedMax = 256;
constexpr auto kCatchUp = 10ms;

// stop() waits this long, at most, for the threads of connections to end.
constexpr auto kLastAnswersWithin = 1s;

constexpr const char* kStopping = "the daemon is stopping";
constexpr const char* kPaused = "the daemon takes no new processes now, because its operator drains it";

}  // namespace

Connections::Connections(const AttachConfig& config, std::uint32_t queue_pairs, Ways ways)
    : queue_pairs_(queue_pairs),
      ways_(std::move(ways)),
      epoll_(::epoll_create1(EPOLL_CLOEXEC)),
      wake_(make_event_fd("the attach server")),
      listener_(SocketPlace(config), "attach"),
      config_(config),
      allowed_(config),
      own_memory_(config.own_memory) {
    if (!epoll_.valid()) {
        throw Error(errno, "no epoll for the attach server");
    }
    watch(listener_.fd(), kListener);
    watch(wake_.get(), kWake);
}

Connections::~Connections() {
    stop();
}

void Connections::start() {
    thread_ = start_quiet_thread([this] { loop(); });
}

void Connections::stop() noexcept {
    ending_.store(true, std::memory_order_release);
    signal_event(wake_.get());
    if (thread_.joinable()) {
        thread_.join();
    }
    {
        const std::lock_guard lock(mutex_);
        for (const auto& [number, entry] : connections_) {
            (void)entry.connection->leave();
        }
        connections_.clear();
    }
    // Waits for the threads of connections. After finish(), such a thread still sends its last answers. A thread that
    // is held up ends later, and calls no function of Ways any more.
    for (const auto until = Clock::now() + kLastAnswersWithin; living_->load() != 0 && Clock::now() < until;) {
        std::this_thread::sleep_for(1ms);
    }
}

void Connections::configure(const AttachConfig& config) {
    AllowList allowed(config);
    AllowList own_memory(config.own_memory);
    std::vector<std::uint32_t> unwelcome;
    {
        const std::lock_guard lock(mutex_);
        config_ = config;
        allowed_ = std::move(allowed);
        own_memory_ = std::move(own_memory);
        for (const auto& [number, entry] : connections_) {
            entry.account->set_limits(process_limits(config));
            if (!allowed_.allows(entry.peer)) {
                unwelcome.push_back(number);
            }
        }
        for (const auto& [uid, known] : users_) {
            if (const std::shared_ptr<Account> user = known.lock()) {
                user->set_limits(user_limits(config, queue_pairs_));
            }
        }
    }
    for (const std::uint32_t number : unwelcome) {
        ways_.hear(
            {.what = Heard::What::unwelcome, .number = number, .text = {}, .packet = {}, .handed = {}, .account = {}});
    }
}

void Connections::send(std::uint32_t number, ReplyNode&& node) noexcept {
    std::shared_ptr<Connection> to;
    {
        const std::lock_guard lock(mutex_);
        if (const auto found = connections_.find(number); found != connections_.end()) {
            to = found->second.connection;
        }
    }
    if (to != nullptr) {
        to->send(std::move(node));
    }
}

void Connections::hang_up(std::uint32_t number) {
    if (const Entry entry = take_out(number); entry.connection != nullptr) {
        entry.connection->finish();
    }
}

void Connections::call_at(Clock::time_point when) {
    auto planned = due_at_.load(std::memory_order_acquire);
    while (when < planned && !due_at_.compare_exchange_weak(planned, when, std::memory_order_acq_rel)) {
    }
    signal_event(wake_.get());
}

// Logs a line that a process can cause even before it is attached. A process can cause any number of such lines, so
// they have a budget.
void Connections::note(const std::string& what) {
    const std::lock_guard lock(notes_mutex_);
    if (const std::optional<std::uint64_t> left_out = notes_.take(Clock::now())) {
        log_warning("attach: {}{}", what, and_others(*left_out));
    }
}

Connections::Entry Connections::take_out(std::uint32_t number) {
    const std::lock_guard lock(mutex_);
    const auto found = connections_.find(number);
    if (found == connections_.end()) {
        return {};
    }
    Entry entry = std::move(found->second);
    connections_.erase(found);
    return entry;
}

void Connections::watch(int fd, std::uint64_t tag) {
    epoll_event event{.events = EPOLLIN, .data = {.u64 = tag}};
    if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
        throw Error(errno, "the attach server cannot wait for a descriptor");
    }
}

// ---- The loop's thread ----

void Connections::loop() noexcept {
    pthread_setname_np(pthread_self(), "pollcore-serve");
    heartbeat_.start(::gettid(), steady_ns(Clock::now()));
    while (!ending_.load(std::memory_order_acquire)) {
        try {
            one_turn();
        } catch (const std::exception& error) {
            log_error("attach server: {}", error.what());
            std::this_thread::sleep_for(10ms);
        }
    }
    heartbeat_.stop();
}

void Connections::one_turn() {
    std::array<epoll_event, 64> events;
    const std::chrono::nanoseconds limit = wait_limit();
    heartbeat_.wait(steady_ns(Clock::now() + limit));
    const int n = wait_for_events(epoll_.get(), events, limit);
    heartbeat_.begin(steady_ns(Clock::now()));
    for (int i = 0; i < n; ++i) {
        const std::uint64_t tag = events[static_cast<std::size_t>(i)].data.u64;
        if (tag == kListener) {
            (void)accept_some();
        } else if (tag == kWake) {
            (void)drain_event(wake_.get());
        } else {
            lose(static_cast<std::uint32_t>(tag), "died");
        }
    }
    lose_those_that_hung_up();
    end_strangers();
    if (!closed_.load(std::memory_order_acquire)) {
        listener_.look(
            Clock::now(),
            [this] {
                for (int i = 0; i < SOMAXCONN && accept_some(); ++i) {
                }
            },
            [this](int fd) { watch(fd, kListener); });
    }
    if (Clock::now() >= due_at_.load(std::memory_order_acquire)) {
        due_at_.store(Clock::time_point::max(), std::memory_order_release);
        ways_.due();
    }
}

std::chrono::nanoseconds Connections::wait_limit() {
    const auto next = due_at_.load(std::memory_order_acquire);
    const auto now = Clock::now();
    return next <= now ? 0ns : std::min<std::chrono::nanoseconds>(next - now, any_strangers_ ? 100ms : 1000ms);
}

bool Connections::accept_some() {
    for (int i = 0; i < kAcceptedPerTurn; ++i) {
        let_disposal_catch_up(kUnclosedMax, kCatchUp);
        ForeignFd socket = listener_.accept();
        if (!socket.valid()) {
            if (errno == EMFILE || errno == ENFILE) {
                note("no descriptors left; processes that attach have to wait");
                std::this_thread::sleep_for(10ms);
            }
            return false;
        }
        if (is_reserved(socket.get())) {
            turn_away(socket.get(), "somebody", EMFILE,
                      "the daemon has no descriptors left; raise its limit (LimitNOFILE)");
            continue;
        }
        try {
            welcome(std::move(socket));
        } catch (const std::exception& error) {
            note(error.what());
        }
    }
    return true;
}

const char* Connections::why_shut() const noexcept {
    return closed_.load(std::memory_order_acquire) ? kStopping : paused() ? kPaused : nullptr;
}

void Connections::welcome(ForeignFd socket) {
    Peer peer = peer_of(socket.get());
    const std::string who = peer.describe();
    const std::uint32_t number = next_number_++;
    const auto refuse = [&](int error, const std::string& why) { turn_away(socket.get(), who, error, why); };
    if (const char* const why = why_shut()) {
        return refuse(ESHUTDOWN, why);
    }
    if (is_reserved(peer.pidfd.get())) {
        return refuse(EMFILE, "the daemon has no descriptors left; raise its limit (LimitNOFILE)");
    }
    const std::size_t attached = ways_.attached();
    std::unique_lock lock(mutex_);
    if (!allowed_.allows(peer)) {
        return refuse(EACCES, "this user may not attach: it is not in attach.users, nor in attach.groups");
    }
    const auto [unheard, its] = strangers(peer.uid);
    if (unheard >= kStrangersMax || its >= kStrangersOfOneUser) {
        return refuse(ENOSPC, "too many attach at the same time");
    }
    if (std::max(connections_.size() - unheard, attached) >= config_.clients_max) {
        return refuse(ENOSPC, "as many are attached as may be (attach.clients_max)");
    }
    std::shared_ptr<Account> account;
    try {
        account = std::make_shared<Account>(account_of_user(peer.uid), static_cast<std::uint32_t>(peer.pid),
                                            process_limits(config_));
    } catch (const Error& error) {
        return refuse(ENOSPC, told_error(error).text);
    }
    watch(peer.pidfd.get(), number);
    auto connection = std::make_shared<Connection>(
        number, std::move(socket), who,
        Rights{.net_raw = peer.net_raw, .own_memory = own_memory_.allows(peer), .trusted = own_memory_.names(peer)},
        account,
        Connection::Ways{.may_come =
                             [this, who](int its_socket) {
                                 if (const char* const why = why_shut()) {
                                     turn_away(its_socket, who, ESHUTDOWN, why);
                                     return false;
                                 }
                                 return true;
                             },
                         .hear = ways_.hear,
                         .note = [this](const std::string& what) { note(what); },
                         .over =
                             [this](std::uint32_t its_number, const char* how) {
                                 {
                                     const std::lock_guard over_lock(over_mutex_);
                                     over_.emplace_back(its_number, how);
                                 }
                                 signal_event(wake_.get());
                             }},
        living_);
    // Enters the connection before its thread runs, because the thread may use this object until leave() is called.
    const auto entry = connections_
                           .emplace(number, Entry{.connection = connection,
                                                  .account = std::move(account),
                                                  .peer = std::move(peer),
                                                  .since = Clock::now()})
                           .first;
    try {
        connection->start();
    } catch (...) {
        connections_.erase(entry);
        throw;
    }
    any_strangers_ = true;
}

std::shared_ptr<Account> Connections::account_of_user(std::uint32_t uid) {
    std::erase_if(users_, [](const auto& user) { return user.second.expired(); });
    std::weak_ptr<Account>& known = users_[uid];
    std::shared_ptr<Account> user = known.lock();
    if (user == nullptr) {
        user = std::make_shared<Account>(uid, user_limits(config_, queue_pairs_));
        known = user;
    }
    return user;
}

std::pair<std::size_t, std::size_t> Connections::strangers(std::uint32_t uid) const {
    std::pair<std::size_t, std::size_t> count;
    for (const auto& [number, entry] : connections_) {
        if (!entry.connection->heard()) {
            ++count.first;
            count.second += entry.peer.uid == uid;
        }
    }
    return count;
}

// Sends the refusal as the answer to the first request, whose id is 1.
void Connections::turn_away(int socket, const std::string& who, int error, const std::string& why) {
    note(fmt::format("{} refused: {}", who, why));
    refused_.fetch_add(1, std::memory_order_relaxed);
    wire::Answer<wire::Attached> answer{{.kind = wire::Kind::attach, .id = 1}, {}, {}};
    answer.outcome.error = error;
    answer.outcome.text = wire::ErrorText(why);
    (void)wire::send_packet(socket, std::as_bytes(std::span(&answer, 1)), {});
}

void Connections::lose_those_that_hung_up() {
    std::deque<std::pair<std::uint32_t, const char*>> over;
    {
        const std::lock_guard lock(over_mutex_);
        over.swap(over_);
    }
    for (const auto& [number, how] : over) {
        lose(number, how);
    }
}

void Connections::end_strangers() {
    if (!any_strangers_) {
        return;
    }
    any_strangers_ = false;
    const auto now = Clock::now();
    std::vector<std::pair<std::uint32_t, std::string>> late;
    {
        const std::lock_guard lock(mutex_);
        for (const auto& [number, entry] : connections_) {
            if (!entry.connection->heard()) {
                any_strangers_ = true;
                if (now - entry.since > kHelloWithin) {
                    late.emplace_back(number, entry.connection->who());
                }
            }
        }
    }
    for (const auto& [number, who] : late) {
        note(fmt::format("{} said nothing within {} s and is hung up on", who,
                         std::chrono::seconds(kHelloWithin).count()));
        refused_.fetch_add(1, std::memory_order_relaxed);
        lose(number, "said nothing");
    }
}

void Connections::lose(std::uint32_t number, const char* how) {
    const Entry entry = take_out(number);
    if (entry.connection != nullptr && entry.connection->leave()) {
        ways_.hear(
            {.what = Heard::What::gone, .number = number, .text = how, .packet = {}, .handed = {}, .account = {}});
    }
}

}  // namespace pollcore
