#include "main_inbox.hpp"

#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/event_fd.hpp"
#include "common/control_wire.hpp"
#include "pollcore/error.hpp"
#include "signals.hpp"

namespace pollcore::daemon {
namespace {

UniqueFd make_signal_fd() {
    const sigset_t set = our_signals();
    UniqueFd fd(::signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC));
    if (!fd.valid()) {
        throw Error(errno, "cannot wait for signals (signalfd)");
    }
    return fd;
}

}  // namespace

MainInbox::MainInbox() : signals_(make_signal_fd()), wake_(make_event_fd("the main thread")) {}

void MainInbox::put(Order&& order) {
    {
        const std::lock_guard lock(mutex_);
        if (orders_.size() == kOrdersMax) {
            if (order.answer != nullptr) {
                order.answer->fail("too many commands wait for the main thread", control_wire::kBusy);
            }
            return;
        }
        orders_.push_back(std::move(order));
    }
    signal_event(wake_.get());
}

// Signals come first: the service manager sends them.
std::optional<Order> MainInbox::take() {
    signalfd_siginfo came{};
    if (::read(signals_.get(), &came, sizeof(came)) == sizeof(came)) {
        switch (came.ssi_signo) {
            case SIGHUP: return Order{.what = Order::What::reload, .by = "SIGHUP"};
            case SIGINT: return Order{.what = Order::What::stop, .by = "SIGINT"};
            default: return Order{.what = Order::What::stop, .by = "SIGTERM"};
        }
    }
    const std::lock_guard lock(mutex_);
    if (orders_.empty()) {
        return std::nullopt;
    }
    Order order = std::move(orders_.front());
    orders_.pop_front();
    return order;
}

std::optional<Order> MainInbox::next(std::chrono::nanoseconds timeout) {
    if (std::optional<Order> order = take()) {
        return order;
    }
    pollfd ready[] = {{.fd = signals_.get(), .events = POLLIN, .revents = 0},
                      {.fd = wake_.get(), .events = POLLIN, .revents = 0}};
    const auto limit = std::chrono::ceil<std::chrono::milliseconds>(std::max(timeout, std::chrono::nanoseconds(0)));
    // EINTR (SIGCONT after a stop, a debugger) counts as nothing, because callers wait in a loop.
    (void)::poll(ready, 2, static_cast<int>(limit.count()));
    (void)drain_event(wake_.get());
    return take();
}

}  // namespace pollcore::daemon
