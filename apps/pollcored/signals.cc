#include "signals.hpp"

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <cerrno>

#include "base/check.hpp"
#include "pollcore/error.hpp"

namespace pollcore::daemon {
namespace {

sigset_t our_signals() noexcept {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGHUP);
    return set;
}

}  // namespace

void block_signals() {
    const sigset_t set = our_signals();
    if (const int error = pthread_sigmask(SIG_BLOCK, &set, nullptr); error != 0) {
        throw Error(error, "cannot block SIGTERM, SIGINT and SIGHUP to wait for them (pthread_sigmask)");
    }
    struct sigaction ignore {};
    ignore.sa_handler = SIG_IGN;
    if (sigaction(SIGPIPE, &ignore, nullptr) != 0) {
        throw Error(errno, "cannot ignore SIGPIPE (sigaction)");
    }
}

std::optional<int> wait_signal(std::chrono::nanoseconds timeout) noexcept {
    const sigset_t set = our_signals();
    const auto nanoseconds = std::max<std::chrono::nanoseconds::rep>(timeout.count(), 0);
    const timespec limit{.tv_sec = static_cast<time_t>(nanoseconds / 1'000'000'000),
                         .tv_nsec = static_cast<long>(nanoseconds % 1'000'000'000)};
    const int signal = sigtimedwait(&set, nullptr, &limit);
    if (signal > 0) {
        return signal;
    }
    // EINTR (SIGCONT after a stop, a debugger) counts as no signal, because callers wait in a loop.
    POLLCORE_CHECK(errno == EAGAIN || errno == EINTR, "sigtimedwait takes a valid set and time");
    return std::nullopt;
}

}  // namespace pollcore::daemon
