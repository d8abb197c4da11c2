#include "attach/clients.hpp"

#include <algorithm>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/log.hpp"
#include "base/printable.hpp"
#include "base/probe.hpp"

namespace pollcore {
namespace {

using namespace std::chrono_literals;

// The time to drain a process that has died or was evicted. Work requests that a device has not flushed by then are cut
// short.
constexpr auto kEndWithin = 500ms;
// The longest time that an operator leaves a process that is to end. It keeps the sum within the clock's range.
constexpr std::chrono::milliseconds kGraceMost = 24h;
// stop() waits for this extra time, because an object may have to wait for a worker inside a provider's call.
constexpr auto kStopWithin = 2s;
// The shortest time between two log lines about the refusals of one process.
constexpr auto kLinesEvery = 1s;

// If a job could not be posted, the next attempt is made after this time.
constexpr auto kAgain = 1ms;

}  // namespace

Clients::Clients(RuntimeState& runtime, Connections& connections) : runtime_(runtime), connections_(connections) {
    runtime_.call([this] { runtime_.set_host(this); });
}

Clients::~Clients() {
    closing_.store(true, std::memory_order_release);
    // Waits for the jobs that were posted before. The last of these jobs may post one more job, which runs before the
    // next call().
    runtime_.call([] {});
    runtime_.call([this] {
        runtime_.set_host(nullptr);
        clients_.clear();
    });
    // Waits for another job, which the daemon's thread for a process may have posted meanwhile.
    runtime_.call([] {});
}

// ---- For any thread ----

void Clients::hear(Heard&& heard) {
    inbox_.put(std::move(heard));
    look();
}

// At most one job is posted at a time. This job runs after all jobs that the program's own threads have posted before.
// So attached processes delay the calls of these threads by one such job at most.
void Clients::look() noexcept {
    if (closing_.load(std::memory_order_acquire) || posted_.exchange(true, std::memory_order_acq_rel)) {
        return;
    }
    try {
        runtime_.post([this] { work(); });
    } catch (const std::exception&) {  // there is no memory for the job
        posted_.store(false, std::memory_order_release);
        connections_.call_at(runtime_.platform->now() + kAgain);
    }
}

bool Clients::stop(std::chrono::milliseconds drain) {
    const std::uint64_t cut_short = counts().cut_short;
    runtime_.call([&] { event({.type = EventType::stopping, .text = "the daemon is stopping"}, 0); });
    await_all_gone(drain);
    runtime_.call([&] {
        for (auto& [number, client] : clients_) {
            end(number, kEndWithin, false, "was told to end");
        }
    });
    // A process that began to detach late has the full drain time from that moment on.
    await_all_gone(std::max(kEndWithin, runtime_.config.drain_timeout) + kStopWithin);
    if (const std::uint32_t left = counts().now; left != 0) {
        log_error("attach: {} processes do not end; is a worker stuck inside a provider's call?", left);
        return false;
    }
    return counts().cut_short == cut_short;
}

std::vector<AttachedProcess> Clients::processes() {
    return runtime_.ask([this] {
        std::vector<AttachedProcess> all;
        for (const auto& [number, client] : clients_) {
            all.push_back(client.attached->description());
        }
        return all;
    });
}

bool Clients::disconnect(std::uint32_t number, const std::string& reason, std::chrono::milliseconds grace) {
    return runtime_.ask([&] {
        const auto found = clients_.find(number);
        if (found == clients_.end() || found->second.attached->ending()) {
            return false;
        }
        Client& client = found->second;
        std::string why = reason;  // what needs memory comes first (D29)
        client.attached->tell({.type = EventType::stopping, .text = "this process " + reason}, number);
        client.end_why = std::move(why);
        // With an earlier call, the process has the shorter one of the two times.
        client.end_at = std::min(client.end_at, runtime_.platform->now() + std::min(grace, kGraceMost));
        look();
        return true;
    });
}

void Clients::await_all_gone(std::chrono::milliseconds within) const {
    const auto until = Clock::now() + within;
    while (counts().now != 0 && Clock::now() < until) {
        std::this_thread::sleep_for(1ms);
    }
}

AttachCounts Clients::counts() const {
    const std::lock_guard lock(counts_mutex_);
    AttachCounts counts = counts_;
    counts.refused = connections_.refused();
    return counts;
}

template <class F>
void Clients::count(F&& change) {
    const std::lock_guard lock(counts_mutex_);
    change(counts_);
}

// ---- For the control thread ----

void Clients::event(const Event& event, std::uint32_t client) {
    for (auto& [number, each] : clients_) {
        each.attached->tell(event, client);
    }
}

void Clients::connection_event(std::uint32_t client, Event&& event) noexcept {
    if (client != 0) {
        if (const auto found = clients_.find(client); found != clients_.end()) {
            found->second.attached->tell_of_connection(std::move(event));
            found->second.look_at = {};
        }
        return look();
    }
    for (auto& [number, each] : clients_) {  // the event is a listener's, which has no text and no data to copy
        each.attached->tell_of_connection({.type = event.type, .listener = event.listener});
        each.look_at = {};
    }
    look();
}

bool Clients::session_broken(std::uint32_t session) {
    for (auto& [number, client] : clients_) {
        if (client.attached->has_session(session)) {
            evict(number, "wrote something into its rings that no session writes");
            return true;
        }
    }
    return false;
}

void Clients::each_process(const std::function<void(const ProcessFigures&)>& take) {
    for (const auto& [number, client] : clients_) {
        take(client.attached->figures());
    }
}

std::uint32_t Clients::owner_of_listener(std::uint32_t device, std::uint64_t listener) const noexcept {
    const auto found = std::find_if(clients_.begin(), clients_.end(), [&](const auto& client) {
        return client.second.attached->has_listener(device, listener);
    });
    return found != clients_.end() ? found->first : 0;
}

void Clients::runtime_stops() {
    for (auto& [number, client] : clients_) {
        client.attached->cancel_errands();  // cancels the errands of all processes before waiting for any
    }
    for (auto& [number, client] : clients_) {
        client.attached->runtime_stops();
    }
}

void Clients::work() {
    // The destructor of Next schedules the next look at the inbox, even if a call below throws.
    struct Next {
        Clients& clients;
        Clock::time_point when;
        ~Next() {
            if (!clients.inbox_.empty()) {
                clients.look();
            }
            clients.connections_.call_at(when);
        }
    };
    posted_.store(false, std::memory_order_release);
    Next next{*this, runtime_.platform->now() + kLinesEvery};
    for (Heard& heard : inbox_.take_round()) {
        try {
            take(heard);
        } catch (const std::exception& error) {
            if (const std::optional<std::uint64_t> left_out = evictions_.take(runtime_.platform->now())) {
                log_error("client {}: {}{}", heard.number, printable(error.what()), and_others(*left_out));
            }
            connections_.hang_up(heard.number);
            end(heard.number, kEndWithin, true, "was hung up on");
        }
    }
    next.when = turns(runtime_.platform->now());
}

void Clients::take(Heard& heard) {
    if (heard.what == Heard::What::came) {
        return welcome(heard);
    }
    const auto found = clients_.find(heard.number);
    if (found == clients_.end()) {
        return;
    }
    Client& client = found->second;
    client.look_at = {};
    if (heard.what == Heard::What::gone) {
        client.attached->abandon();
    }
    if (heard.what == Heard::What::carried_out || client.attached->ending()) {
        return;
    }
    if (heard.what == Heard::What::gone) {
        count([](AttachCounts& counts) { ++counts.died; });
        return end(heard.number, kEndWithin, true, heard.text);
    }
    if (heard.what == Heard::What::unwelcome) {
        return evict(heard.number,
                     "may not be attached any more: its user is not in attach.users, nor in attach.groups");
    }
    switch (client.attached->take(heard.packet, std::move(heard.handed))) {
        case AttachedClient::Taken::yes: break;
        case AttachedClient::Taken::not_ours:
            return evict(heard.number, "sent something that is no message of this library");
        case AttachedClient::Taken::other_version: return evict(heard.number, "has this library in another version");
    }
}

void Clients::welcome(Heard& heard) {
    const std::uint32_t number = heard.number;
    const pid_t pid = heard.account->pid();
    if (barred_.contains(heard.account->uid())) {
        heard.rights.own_memory = false;
    }
    auto own_thread = runtime_.platform->start_executor("pollcore-pin");
    const auto elsewhere = [this, number, &own = *own_thread](std::function<void()> job) {
        own.post_always([this, number, job = std::move(job)] {
            job();
            hear({.what = Heard::What::carried_out,
                  .number = number,
                  .text = {},
                  .packet = {},
                  .handed = {},
                  .account = {}});
        });
    };
    auto attached = std::make_unique<AttachedClient>(
        runtime_, number, heard.text, heard.rights, std::move(heard.account),
        AttachedClient::Ways{.send = [this, number](ReplyNode&& node) { connections_.send(number, std::move(node)); },
                             .elsewhere = elsewhere});
    clients_.emplace(number, Client{.own_thread = std::move(own_thread), .attached = std::move(attached)});
    count([](AttachCounts& counts) {
        ++counts.attached;
        ++counts.now;
    });
    POLLCORE_PROBE(client_attached, number, pid);
    tell_coming([&](const std::string& others) { log_info("client {} attached: {}{}", number, heard.text, others); });
}

void Clients::evict(std::uint32_t number, const char* what) {
    const AttachedClient& client = *clients_.at(number).attached;
    if (client.ending()) {
        return;
    }
    if (const std::optional<std::uint64_t> left_out = evictions_.take(runtime_.platform->now())) {
        log_error("client {} ({}) {}: it is ended{}", number, client.who(), what, and_others(*left_out));
    }
    count([](AttachCounts& counts) { ++counts.evicted; });
    end(number, kEndWithin, true, "evicted");
}

void Clients::bar(const Client& client) {
    if (barred_.insert(client.attached->uid()).second) {
        log_error("client {}: user {} gets no more contexts of its own (attach.own_memory) from this daemon",
                  client.attached->who(), client.attached->uid());
    }
}

void Clients::end(std::uint32_t number, std::chrono::milliseconds within, bool abandoned, std::string why) noexcept {
    const auto found = clients_.find(number);
    if (found == clients_.end() || found->second.attached->ending()) {
        return;
    }
    Client& client = found->second;
    client.end_began = runtime_.platform->now();
    client.why = std::move(why);
    client.attached->end(within, abandoned);
    client.look_at = {};
    look();
}

void Clients::look_at_all() {
    for (auto& [number, client] : clients_) {
        client.look_at = {};
    }
    look();
}

Clients::Clock::time_point Clients::turns(Clock::time_point now) {
    const bool tell = now >= next_lines_;
    if (tell) {
        next_lines_ = now + kLinesEvery;
    }
    std::vector<std::uint32_t> order;
    order.reserve(clients_.size());
    for (const auto& [number, client] : clients_) {
        order.push_back(number);
    }
    std::rotate(order.begin(), std::upper_bound(order.begin(), order.end(), ended_most_), order.end());
    int left = AttachedClient::kEndsInTurn;
    auto next = clients_.empty() ? Clock::time_point::max() : next_lines_;
    for (const std::uint32_t number : order) {
        Client& client = clients_.at(number);
        if (now >= client.end_at && !client.attached->ending()) {
            end(number, kEndWithin, true, std::move(client.end_why));
            count([](AttachCounts& counts) { ++counts.disconnected; });
        }
        if (now >= client.look_at) {
            client.look_at = Clock::time_point::max();  // turn() may set an earlier time
            const bool had_some = left > 0;
            client.look_at = std::min(client.attached->turn(left), client.look_at);
            if (had_some && left <= 0) {
                ended_most_ = number;
            }
        }
        if (client.attached->abused()) {
            bar(client);
            evict(number, "destroyed objects of the daemon, or held up their end");
        }
        if (tell) {
            client.attached->log_refusals();
        }
        if (client.attached->ended()) {
            forget_ended(number);
        } else {
            next =
                std::min({next, client.look_at, client.attached->ending() ? Clock::time_point::max() : client.end_at});
        }
    }
    if (left <= 0) {
        look();  // continues after calls of other threads that have come meanwhile
    }
    return next;
}

void Clients::forget_ended(std::uint32_t number) {
    const auto found = clients_.find(number);
    const Client& client = found->second;
    const bool whole = client.attached->whole();
    if (client.why.empty()) {
        tell_coming([&](const std::string& others) {
            log_info("client {} ({}) detached{}", number, client.attached->who(), others);
        });
        count([](AttachCounts& counts) { ++counts.detached; });
    } else {
        const auto took =
            std::chrono::duration_cast<std::chrono::microseconds>(runtime_.platform->now() - client.end_began);
        tell_coming([&](const std::string& others) {
            log_info("client {} ({}) {}: nothing of it is left after {:.1f} ms{}", number, client.attached->who(),
                     client.why, static_cast<double>(took.count()) / 1000, others);
        });
        count([&](AttachCounts& counts) { counts.longest_clean_up = std::max(counts.longest_clean_up, took); });
    }
    POLLCORE_PROBE(client_ended, number);
    clients_.erase(found);
    connections_.hang_up(number);  // the connection ends after its last answer
    count([&](AttachCounts& counts) {
        --counts.now;
        counts.cut_short += !whole;
    });
}

template <class F>
void Clients::tell_coming(F&& line) {
    if (const std::optional<std::uint64_t> left_out = comings_.take(runtime_.platform->now())) {
        line(and_others(*left_out));
    }
}

}  // namespace pollcore
