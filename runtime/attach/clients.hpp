// All attached processes, as the control thread knows them. Clients handles the processes' messages in turn, continues
// their requests that take time, and logs which processes attach and detach. It also ends processes: that is, it ends
// their objects and their attachment.
//
// Thread safety: see each section.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "attach/attached_client.hpp"
#include "attach/client_inbox.hpp"
#include "attach/connections.hpp"
#include "base/line_budget.hpp"
#include "control/runtime_state.hpp"
#include "pollcore/attach_server.hpp"
#include "pollcore/config.hpp"

namespace pollcore {

class Clients final : public ClientHost {
public:
    using Clock = std::chrono::steady_clock;

    Clients(RuntimeState& runtime, Connections& connections);
    /// Ends all remaining processes at once, without notifying them.
    ~Clients() override;
    Clients(const Clients&) = delete;
    Clients& operator=(const Clients&) = delete;

    // For any thread.
    void hear(Heard&& heard);
    void look() noexcept;
    /// As the functions of AttachServer.
    [[nodiscard]] std::vector<AttachedProcess> processes();
    bool disconnect(std::uint32_t number, const std::string& reason, std::chrono::milliseconds grace);
    /// Tells all processes to end, and waits until they have detached, for `drain` at most. Then ends the remaining
    /// processes. Returns false if work of a process was cut short, or if a process does not end.
    bool stop(std::chrono::milliseconds drain);
    [[nodiscard]] AttachCounts counts() const;

    // The functions of ClientHost, for the control thread.
    void connections_changed() override { look_at_all(); }
    void event(const Event& event, std::uint32_t client) override;
    void connection_event(std::uint32_t client, Event&& event) noexcept override;
    bool session_broken(std::uint32_t session) override;
    void each_process(const std::function<void(const ProcessFigures&)>& take) override;
    [[nodiscard]] std::uint32_t owner_of_listener(std::uint32_t device, std::uint64_t listener) const noexcept override;
    void runtime_stops() override;

private:
    struct Client {
        std::unique_ptr<Executor> own_thread;  // for errands; declared first, so that it ends after `attached`
        std::unique_ptr<AttachedClient> attached;
        Clock::time_point look_at{};  // the time by which this process's next turn is due
        Clock::time_point end_began{};
        std::string why;                                      // why the process ends; empty if it detaches
        Clock::time_point end_at = Clock::time_point::max();  // when disconnect() ends it
        std::string end_why;
    };

    void await_all_gone(std::chrono::milliseconds within) const;

    // For the control thread.
    void work();
    void take(Heard& heard);
    void welcome(Heard& heard);
    void evict(std::uint32_t number, const char* what);
    /// The client's user gets no more contexts of its own. This bounds what its processes can leave behind at the
    /// daemon.
    void bar(const Client& client);
    void end(std::uint32_t number, std::chrono::milliseconds within, bool abandoned, std::string why) noexcept;
    void look_at_all();
    /// Gives each process its turn. Returns the time by which the next call is due.
    [[nodiscard]] Clock::time_point turns(Clock::time_point now);
    void forget_ended(std::uint32_t number);

    template <class F>
    void tell_coming(F&& line);
    template <class F>
    void count(F&& change);

    RuntimeState& runtime_;
    Connections& connections_;
    ClientInbox inbox_;
    std::atomic<bool> posted_{false};  // a job that calls work() is posted
    std::atomic<bool> closing_{false};
    mutable std::mutex counts_mutex_;
    AttachCounts counts_;

    // Used by the control thread only.
    std::map<std::uint32_t, Client> clients_;
    std::uint32_t ended_most_ = 0;  // the next round of turns begins after the process with this number
    Clock::time_point next_lines_{};
    // A process may attach and detach often, so lines about this have a budget. Lines about evictions have their own
    // budget.
    LineBudget comings_{50};
    LineBudget evictions_{10};
    std::set<std::uint32_t> barred_;  // users, by number
};

}  // namespace pollcore
