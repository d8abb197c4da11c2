#include "signals.hpp"

#include <pthread.h>
#include <signal.h>

#include <cerrno>

#include "pollcore/error.hpp"

namespace pollcore::daemon {

sigset_t our_signals() noexcept {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGHUP);
    return set;
}

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

}  // namespace pollcore::daemon
