// Carries out the commands of pollctl. Most belong to the control thread or to the main thread: then they are posted
// there, and the answer comes later. Each action is in the log, with who asked for it.
//
// Thread safety: the control socket's thread makes all calls.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "control/runtime_state.hpp"
#include "control_answer.hpp"
#include "control_command.hpp"
#include "control_listing.hpp"
#include "control_socket.hpp"
#include "main_inbox.hpp"
#include "pollcore/attach_server.hpp"

namespace pollcore::daemon {

class ControlCommands {
public:
    /// The control thread has this time for a command.
    static constexpr std::chrono::seconds kControlWithin{5};
    /// The main thread has this time for an order, besides the time that a reload takes.
    static constexpr std::chrono::seconds kMainWithin{20};
    /// The most commands that may wait for the control thread, also when nobody waits for their answers any more.
    static constexpr int kPostedMax = 64;

    /// What the commands need of the daemon. None of these functions waits for another thread for long.
    struct Ways {
        std::function<Health()> health;
        std::function<void(Order&&)> order;
        std::function<std::vector<ServiceFigures>()> services;
        std::function<std::string_view()> state;  ///< "serving", "draining" or "stopping"
    };

    /// `attach` is null if no process may attach. Both must outlive this object. A command that has begun on the
    /// control thread may use them later, but not after a further job of the control thread.
    ControlCommands(RuntimeState& runtime, AttachServer* attach, Ways ways);

    /// As ControlSocket::Ways.
    [[nodiscard]] std::chrono::milliseconds carry_out(const ControlCommand& command, const ControlCaller& caller,
                                                      const std::shared_ptr<ControlAnswer>& answer);
    [[nodiscard]] std::string why_late(const ControlCommand& command, ControlAnswer::Given given) const;

private:
    using Job = std::function<void(ControlAnswer& answer)>;

    /// Runs `job` on the control thread.
    void post(const std::shared_ptr<ControlAnswer>& answer, Job job);
    void order(Order::What what, const ControlCaller& caller, const std::shared_ptr<ControlAnswer>& answer);
    [[nodiscard]] ControlJson status() const;
    void list(const std::string& kind, const std::shared_ptr<ControlAnswer>& answer);
    void show(std::uint32_t process, ControlAnswer& answer);
    void disconnect_process(const ControlCommand& command, const std::string& who, ControlAnswer& answer);
    void disconnect_queue_pair(const ControlCommand& command, const std::string& who, ControlAnswer& answer);

    RuntimeState& runtime_;
    AttachServer* const attach_;
    const Ways ways_;
    const std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
    const std::shared_ptr<std::atomic<int>> posted_ = std::make_shared<std::atomic<int>>(0);
};

}  // namespace pollcore::daemon
