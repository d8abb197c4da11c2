// What the main thread is asked to do: by a signal, or by an operator's command. Both take the same way.
//
// Thread safety: any thread may call put(); only the main thread calls next().
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "base/unique_fd.hpp"
#include "control_answer.hpp"

namespace pollcore::daemon {

/// One thing that the main thread is asked to do.
struct Order {
    enum class What : std::uint8_t { stop, reload, drain, resume };
    What what = What::stop;
    std::string by;                                  ///< for the log: "SIGTERM", "control: uid 0 (pid 4711)"
    std::shared_ptr<ControlAnswer> answer{nullptr};  ///< null if a signal has asked
};

class MainInbox {
public:
    /// Takes the signals that block_signals() has blocked. Throws Error.
    MainInbox();

    /// At most kOrdersMax orders wait, also when nobody waits for their answers any more. The answer of a further one
    /// is an error.
    void put(Order&& order);
    static constexpr std::size_t kOrdersMax = 64;
    /// Returns nothing if nobody asked for anything within `timeout`.
    [[nodiscard]] std::optional<Order> next(std::chrono::nanoseconds timeout);

private:
    [[nodiscard]] std::optional<Order> take();

    const UniqueFd signals_;
    const UniqueFd wake_;
    std::mutex mutex_;
    std::deque<Order> orders_;
};

}  // namespace pollcore::daemon
