// Attached processes, as the control thread knows them: their messages in turn, what takes time, their ends, and the
// log of it.
//
// Thread safety: as each function says.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>

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
    /// Those that are there end at once, and nobody hears of it.
    ~Clients() override;
    Clients(const Clients&) = delete;
    Clients& operator=(const Clients&) = delete;

    // Any thread.
    void hear(Heard&& heard);
    void look() noexcept;
    /// Tells all, waits for so long until they have detached, and takes down those that have not. False when that was
    /// cut short.
    bool stop(std::chrono::milliseconds drain);
    [[nodiscard]] AttachCounts counts() const;

    // ClientHost: the control thread.
    void connections_changed() override { look_at_all(); }
    void event(const Event& event) override;
    bool session_broken(std::uint32_t session) override;
    void runtime_stops() override;

private:
    struct Client {
        std::unique_ptr<Executor> own_thread;  // for what may take long; ends after the next
        std::unique_ptr<AttachedClient> attached;
        Clock::time_point look_at{};  // at the latest
        bool detaches = false;
    };

    void await_all_gone(std::chrono::milliseconds within) const;

    // All on the control thread.
    void work();
    void take(Heard& heard);
    void welcome(Heard& heard);
    void evict(std::uint32_t number, const char* what);
    void end(std::uint32_t number, std::chrono::milliseconds within, bool abandoned, const std::string& how);
    void look_at_all();
    /// When to look again.
    [[nodiscard]] Clock::time_point turns(Clock::time_point now);
    void forget_ended(std::uint32_t number);

    template <class F>
    void tell_coming(F&& line);
    template <class F>
    void count(F&& change);

    RuntimeState& runtime_;
    Connections& connections_;
    ClientInbox inbox_;
    std::atomic<bool> posted_{false};  // that there is work
    std::atomic<bool> closing_{false};
    mutable std::mutex counts_mutex_;
    AttachCounts counts_;

    // The control thread.
    std::map<std::uint32_t, Client> clients_;
    std::uint32_t ended_most_ = 0;  // the process after which others have the first turn
    Clock::time_point next_lines_{};
    // Who attaches may do so often. What ends one for its misdeeds has lines of its own.
    LineBudget comings_{50};
    LineBudget evictions_{10};
};

}  // namespace pollcore
