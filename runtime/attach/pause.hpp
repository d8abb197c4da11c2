// Lets one thread hold another: the other thread then waits in a system call, and writes to no memory.
//
// Thread safety: one thread calls take_if_asked() and end(). Other threads call hold() and let_go(), one at a time.
#pragma once

#include <poll.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <climits>

#include "base/event_fd.hpp"

namespace pollcore {

class Pause {
public:
    /// `wake` is an eventfd which the other thread polls. The other thread calls take_if_asked() when it is readable.
    explicit Pause(int wake) : wake_(wake) {}

    /// Waits until the other thread waits, or has ended. Throws Error(ETIMEDOUT), and holds nothing, if that takes
    /// longer than `within`.
    void hold(std::chrono::milliseconds within) {
        State runs = State::runs;
        if (!state_.compare_exchange_strong(runs, State::asked)) {
            return;  // it has ended
        }
        signal_event(wake_);
        State asked = State::asked;
        if (!is_readable(held_.get(), within) && state_.compare_exchange_strong(asked, State::runs)) {
            throw Error(ETIMEDOUT, "a thread of this library does not stop for a moment: is its log read?");
        }
        (void)is_readable(held_.get(), kForever);
        (void)drain_event(held_.get());
    }
    void let_go() noexcept {
        State held = State::held;
        if (state_.compare_exchange_strong(held, State::runs)) {
            signal_event(go_on_.get());
        }
    }

    // ---- The other thread ----

    void take_if_asked() noexcept {
        State asked = State::asked;
        if (state_.compare_exchange_strong(asked, State::held)) {
            signal_event(held_.get());
            (void)is_readable(go_on_.get(), kForever);
            (void)drain_event(go_on_.get());
        }
    }
    /// The thread ends.
    void end() noexcept {
        state_.store(State::ended);
        signal_event(held_.get());
    }

private:
    enum class State { runs, asked, held, ended };

    static constexpr std::chrono::milliseconds kForever{-1};

    /// Writes to no memory but the calling thread's stack. A signal begins the time anew.
    static bool is_readable(int fd, std::chrono::milliseconds within) noexcept {
        const auto timeout = static_cast<int>(std::min<std::chrono::milliseconds::rep>(within.count(), INT_MAX));
        pollfd readable{.fd = fd, .events = POLLIN, .revents = 0};
        int found = 0;
        while ((found = ::poll(&readable, 1, timeout)) < 0 && errno == EINTR) {
        }
        return found > 0;
    }

    const int wake_;
    std::atomic<State> state_{State::runs};
    UniqueFd held_ = make_event_fd("a pause");
    UniqueFd go_on_ = make_event_fd("a pause");
};

}  // namespace pollcore
