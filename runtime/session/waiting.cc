// Waits for completions, on the application's thread.
#include <poll.h>

#include <algorithm>
#include <array>
#include <ctime>
#include <utility>

#include "base/event_fd.hpp"
#include "base/look.hpp"
#include "base/planted.hpp"
#include "session/session_core.hpp"

namespace pollcore {

namespace {

// While wait() spins, it reads the clock once in this many looks.
constexpr int kLooksPerClock = 16;

}  // namespace

// Whether there is a completion or a newly retired request, or the session has ended. An ended session may have
// completions that no worker makes.
bool SessionCore::need_not_wait() const noexcept {
    // Acquire, pairs with the worker's release when the worker detaches the session or retires unsignaled requests.
    return inbox_.ready() || header_.retired.load(std::memory_order_acquire) != retired_told_ ||
           header_.closed.load(std::memory_order_acquire) != 0;
}

/// Whether there is news for the caller of wait() or arm(): a completion, newly retired requests, or room in a ring
/// that was full. Newly retired requests and room are reported only once.
bool SessionCore::tell_news() noexcept {
    const std::uint64_t retired = header_.retired.load(std::memory_order_acquire);
    const bool more_retired = std::exchange(retired_told_, retired) != retired;
    const bool more_slots = wants_slots_ && submissions_.unreleased() < submissions_.capacity();
    wants_slots_ = wants_slots_ && !more_slots;
    return inbox_.ready() || more_retired || more_slots ||
           (header_.closed.load(std::memory_order_acquire) != 0 && left_to_complete());
}

/// Asks the worker to wake this thread (D23). Returns false if this thread need not wait.
bool SessionCore::expect_news() noexcept {
    if (waking_.application_socket) {
        drain_socket(waking_.application_fd);
    } else {
        (void)drain_event(waking_.application_fd);
    }
    header_.application_sleep.expect();
    schedule_point(SchedulePoint::look);
    if (!planted(Bug::careless_sleeper) && need_not_wait()) {
        (void)header_.application_sleep.rest();
        return false;
    }
    return true;
}

bool SessionCore::arm() noexcept {
    if (waking_.application_fd < 0 || std::exchange(wants_slots_, false)) {
        return false;
    }
    if (expect_news()) {
        return true;
    }
    // If there is no news, the session has ended. Return false only once for this reason, or the program would never
    // sleep again.
    return !tell_news() && std::exchange(end_told_, true);
}

bool SessionCore::wait(std::chrono::nanoseconds timeout) noexcept {
    begin_to_look();
    return look_on(timeout);
}

bool SessionCore::look_on(std::chrono::nanoseconds timeout) noexcept {
    using Clock = std::chrono::steady_clock;
    const bool sleeps = waking_.application_fd >= 0;
    // The first reading of the clock. It comes after the first looks, so that early news does not wait for the reading.
    Clock::time_point began{};
    for (;;) {
        for (int looks = 0; looks < kLooksPerClock; ++looks) {
            const bool news = need_not_wait();
            looked(news);
            if (news || wants_slots_) {
                if (tell_news()) {
                    return true;
                }
                if (header_.closed.load(std::memory_order_acquire) != 0) {
                    return false;  // no more news will come
                }
            }
            delay_look(kBetweenLooks);
        }
        if (poked_.load(std::memory_order_relaxed) && poked_.exchange(false, std::memory_order_acquire)) {
            return true;
        }
        const Clock::time_point now = Clock::now();
        if (began == Clock::time_point{}) {
            began = now;
        }
        const std::chrono::nanoseconds waited = now - began;
        if (waited >= timeout) {
            return tell_news();
        }
        if (sleeps && waited >= waking_.spin && !wants_slots_ && expect_news()) {
            sleep(timeout == std::chrono::nanoseconds::max() ? timeout : timeout - waited);
        }
    }
}

// Sleeps until event_fd() is readable, at most for `most`. A signal or a needless wake-up ends the sleep, too. With
// max() there is no timer: in a virtual machine, a timer costs more time than all other parts of the sleep.
void SessionCore::sleep(std::chrono::nanoseconds most) noexcept {
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(most);
    const timespec limit{.tv_sec = seconds.count(), .tv_nsec = (most - seconds).count()};
    std::array<pollfd, 2> readable{{{.fd = waking_.application_fd, .events = POLLIN, .revents = 0},
                                    {.fd = poke_.get(), .events = POLLIN, .revents = 0}}};
    (void)::ppoll(readable.data(), readable.size(), most == std::chrono::nanoseconds::max() ? nullptr : &limit,
                  nullptr);
    (void)header_.application_sleep.rest();
    if (readable[1].revents != 0) {
        (void)drain_event(poke_.get());
    }
}

void SessionCore::poke() noexcept {
    poked_.store(true, std::memory_order_release);
    if (poke_.valid()) {
        signal_event(poke_.get());
    }
}

// ---- The calls of Session ----

void Session::poke() noexcept {
    if (core_ != nullptr) {
        core_->poke();
    }
}

bool Session::arm() noexcept {
    if (core_ == nullptr) {
        return false;
    }
    core_->check_thread(user_.thread);
    return core_->arm();
}

namespace {

// Most completions come soon, so the first looks are polls: a poll that finds a completion also takes it.
template <class Record>
std::size_t poll_and_wait(Session& session, SessionCore* core, std::span<Record> out,
                          std::chrono::nanoseconds timeout) noexcept {
    constexpr int kLooks = 16;
    if (const std::size_t n = session.poll(out); n != 0 || out.empty() || core == nullptr) {
        return n;
    }
    core->begin_to_look();
    for (int looks = 0; looks < kLooks; ++looks) {
        const std::size_t n = session.poll(out);
        core->looked(n != 0);
        if (n != 0) {
            return n;
        }
        delay_look(kBetweenLooks);
    }
    return core->look_on(timeout) ? session.poll(out) : 0;
}

}  // namespace

std::size_t Session::poll(std::span<Completion> out, std::chrono::nanoseconds timeout) noexcept {
    return poll_and_wait(*this, core_.get(), out, timeout);
}
std::size_t Session::poll(std::span<WideCompletion> out, std::chrono::nanoseconds timeout) noexcept {
    return poll_and_wait(*this, core_.get(), out, timeout);
}

bool Session::wait(std::chrono::nanoseconds timeout) noexcept {
    if (core_ == nullptr) {
        return false;
    }
    core_->check_thread(user_.thread);
    return core_->wait(timeout);
}

}  // namespace pollcore
