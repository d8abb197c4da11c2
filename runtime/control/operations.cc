// Operations on queue pairs that take time: connecting, accepting, closing and resetting. A call begins an operation,
// and the control thread continues it between its other jobs. So no operation delays other calls while it waits for a
// device or a peer. The end is told to the thread that waits for it, or to the application by an event.
#include <algorithm>
#include <array>
#include <new>
#include <utility>

#include <fmt/format.h>

#include "base/log.hpp"
#include "control/runtime_state.hpp"

namespace pollcore {
namespace {

// One job begins and ends at most this many closes and resets. Each of them takes tens of microseconds.
constexpr int kEndingsInJob = 16;
// At most this many queue pairs are retired at once, and of one process only a part of them, so that the others have
// their turn.
constexpr int kUnderWayMax = 256;
constexpr int kUnderWayOfOneMax = 64;

constexpr std::chrono::hours kSomeTime{1};

/// The reason for an error, or nothing if there is no memory for it.
std::string reason(const std::exception& error) noexcept {
    try {
        return error.what();
    } catch (const std::bad_alloc&) {
        return {};
    }
}

}  // namespace

void RuntimeState::require_not_ending(const QpSlot& qp) {
    if (qp.ending) {
        throw Error(EBUSY, fmt::format("queue pair {} is being closed or reset", qp.qp_num));
    }
}

// Whether an attempt to connect was begun and has no outcome yet.
bool RuntimeState::is_connecting_by_event(const QpSlot& qp) noexcept {
    const std::lock_guard lock(waiting_mutex_);
    const auto found = attempts_.find({qp.device, qp.connection});
    return found != attempts_.end() && found->second.report == Report::by_event;
}

void RuntimeState::require_not_connecting(const QpSlot& qp) {
    if (is_connecting_by_event(qp)) {
        throw Error(EBUSY,
                    fmt::format("queue pair {} is being connected: wait for the event, or cancel it", qp.qp_num));
    }
}

// ---- Events ----

void RuntimeState::tell_of_qp_here(std::uint32_t client, Event&& event) noexcept {
    if (client == 0) {
        application_events.keep(std::move(event));
    } else if (host_ != nullptr) {
        host_->connection_event(client, std::move(event));
    }
}

// Called when the queue pair is in error, and its application may not have caused that.
void RuntimeState::tell_of_error_here(QpSlot& qp) noexcept {
    if (!qp.disconnected && !qp.ending && !std::exchange(qp.error_told, true)) {
        tell_of_qp_here(qp.client, {.type = EventType::qp_error, .qp = qp.handle});
    }
}

void RuntimeState::tell_outcome_here(Attempt&& attempt) noexcept {
    Event event{.type = EventType::established, .qp = attempt.qp};
    if (!attempt.established()) {
        event.type = EventType::connect_failed;
        event.error = attempt.event.error;
        try {
            event.text = why_failed(attempt.what, attempt.event);
        } catch (const std::bad_alloc&) {
            event.text = std::move(attempt.what);
        }
    }
    event.private_data = std::move(attempt.event.private_data);
    tell_of_qp_here(attempt.client, std::move(event));
}

// ---- Connecting and accepting ----

void RuntimeState::begin_connect(QpHandle handle, const std::string& address, const ConnectOptions& options) {
    executor_->run([&] { begin_connect_here(handle, address, options, Report::by_event); });
}

void RuntimeState::begin_accept(std::uint32_t device, ConnectionId request, QpHandle handle, const FlowBlock& flow,
                                const ConnectOptions& options) {
    executor_->run([&] { begin_accept_here(device, request, handle, flow, options, Report::by_event); });
}

// Returns the queue pair's attempt that was begun and has no outcome yet, or an empty node.
RuntimeState::Attempts::node_type RuntimeState::take_attempt_by_event(const QpSlot& qp) noexcept {
    const std::lock_guard lock(waiting_mutex_);
    const auto found = attempts_.find({qp.device, qp.connection});
    if (found == attempts_.end() || found->second.report != Report::by_event) {
        return {};
    }
    return attempts_.extract(found);
}

void RuntimeState::expire_attempts_here() noexcept {
    const auto now = platform->now();
    if (now < next_expiry_) {
        return;
    }
    next_expiry_ = std::chrono::steady_clock::time_point::max();
    Attempts expired;
    {
        const std::lock_guard lock(waiting_mutex_);
        for (auto at = attempts_.begin(); at != attempts_.end();) {
            const auto attempt = at++;
            if (attempt->second.report != Report::by_event) {
                continue;
            }
            if (now >= attempt->second.deadline) {
                expired.insert(attempts_.extract(attempt));
            } else {
                next_expiry_ = std::min(next_expiry_, attempt->second.deadline);
            }
        }
    }
    for (auto& [key, attempt] : expired) {
        if (QpSlot* qp = find_qp(attempt.qp); qp != nullptr) {
            fail_connection_here(*qp);
        }
        attempt.event.error = ETIMEDOUT;
        attempt.event.text.assign("not established within its time limit");
        tell_outcome_here(std::move(attempt));
    }
}

// ---- Closing and resetting ----

void RuntimeState::begin_reset(QpHandle handle, std::chrono::milliseconds timeout) {
    executor_->run([&] { begin_ending_here(handle, true, timeout); });
}

void RuntimeState::begin_close(QpHandle handle, std::chrono::milliseconds timeout) {
    executor_->run([&] { begin_ending_here(handle, false, timeout); });
}

std::unique_ptr<QpEnding> RuntimeState::new_ending(const QpSlot& qp, bool reset, Report report,
                                                   std::chrono::milliseconds timeout) {
    auto ending = std::make_unique<QpEnding>();
    ending->reset = reset;
    ending->report = report;
    ending->qp = qp.handle;
    ending->client = qp.client;
    ending->limit = timeout.count() <= 0 ? config.drain_timeout
                                         : std::min<std::chrono::milliseconds>(timeout, std::chrono::hours(24));
    return ending;
}

void RuntimeState::begin_ending_here(QpHandle handle, bool reset, std::chrono::milliseconds timeout) {
    const QpSlot& qp = reset ? live_qp_slot(handle) : qp_slot(handle);
    require_not_ending(qp);
    if (reset) {
        require_not_connecting(qp);
    }
    std::unique_ptr<QpEnding> ending = new_ending(qp, reset, Report::by_event, timeout);
    start_here(*ending.release());
}

// Begins the close or reset. Most are over within microseconds, so the control thread looks for that time.
void RuntimeState::start_here(QpEnding& ending) noexcept {
    if (QpSlot* qp = find_qp(ending.qp); qp != nullptr) {
        qp->ending = true;
    }
    if (first_ending_ == nullptr) {
        for (std::uint32_t looks = 0;; ++looks) {
            if (step_here(ending)) {
                return conclude_here(ending);
            }
            if (!platform->spin_for_worker(looks)) {
                break;
            }
        }
    }
    *behind_last_ending_ = &ending;
    behind_last_ending_ = &ending.next;
    post_endings_here();
}

void RuntimeState::await_end(QpEnding& ending) {
    std::unique_lock lock(waiting_mutex_);
    while (!platform->wait(lock, ending.ended_changed, kSomeTime, [&] { return ending.ended; })) {
    }
    lock.unlock();
    if (ending.failure) {
        std::rethrow_exception(ending.failure);
    }
}

// Does what can be done now. Returns whether the operation has ended. For lack of memory nothing is done, and a later
// call tries again (D29).
bool RuntimeState::step_here(QpEnding& ending) noexcept {
    try {
        if (!ending.begun) {
            ending.retirement = begin_retiring_here(ending.qp, platform->now() + ending.limit);
            ending.begun = true;
        }
        if (!ending.retired) {
            const std::optional<bool> drained =
                ending.retirement ? retired_here(*ending.retirement) : std::optional(true);
            if (!drained) {
                return false;
            }
            ending.drained = *drained;
            ending.retired = true;
        }
        if (ending.reset) {
            ending.renewed = restart_retired_here(ending.qp, ending.drained).first;
        } else {
            end_retired_here(ending.qp, ending.drained);
        }
    } catch (const NoRoomForCommand&) {
        return false;
    } catch (const std::bad_alloc&) {
        return false;
    } catch (...) {
        ending.failure = std::current_exception();
    }
    return true;
}

// Tells the outcome. Destroys `ending`, unless a waiter owns it.
void RuntimeState::conclude_here(QpEnding& ending) noexcept {
    if (QpSlot* qp = find_qp(ending.renewed.valid() ? ending.renewed : ending.qp); qp != nullptr) {
        qp->ending = false;
        if (ending.renewed.valid() && ending.report == Report::by_event) {
            qp->former = ending.qp;
        }
    }
    if (ending.report == Report::to_waiter) {
        const std::lock_guard lock(waiting_mutex_);
        ending.ended = true;
        ending.ended_changed.notify_one();  // under the lock, because the waiter may destroy `ending` after it
        return;
    }
    const std::unique_ptr<QpEnding> own(&ending);
    Event event{.type = ending.reset ? EventType::reset_done : EventType::closed, .qp = ending.qp};
    event.renewed = ending.renewed;
    event.drained = ending.drained;
    try {
        if (ending.failure) {
            std::rethrow_exception(ending.failure);
        }
    } catch (const Error& error) {
        event.error = error.code().value();
        event.text = reason(error);
    } catch (...) {
        event.error = ENOMEM;
    }
    if (ending.report == Report::to_nobody && event.error != 0) {
        log_error("a queue pair that nobody uses does not end; it ends with its session: {}", event.text);
    }
    // The daemon keeps its own account of the queue pairs of other processes, so it learns of each end.
    if (ending.report == Report::by_event || ending.client != 0) {
        tell_of_qp_here(ending.client, std::move(event));
    }
}

void RuntimeState::continue_endings_here() noexcept {
    int left = kEndingsInJob;
    int under_way = 0;
    std::array<int, 64> of_client{};  // how many of the client are under way; clients may share a place
    for (QpEnding** at = &first_ending_; *at != nullptr && left > 0 && under_way < kUnderWayMax;) {
        QpEnding& ending = **at;
        int& of_this_client = of_client[ending.client % of_client.size()];
        const bool begun = ending.begun;
        if (!begun && of_this_client >= kUnderWayOfOneMax) {
            at = &ending.next;
            continue;
        }
        if (!step_here(ending)) {
            left -= !begun && ending.begun;
            ++under_way;
            ++of_this_client;
            at = &ending.next;
            continue;
        }
        --left;
        *at = ending.next;
        if (behind_last_ending_ == &ending.next) {
            behind_last_ending_ = at;
        }
        conclude_here(ending);
    }
    idle_looks_ = left < kEndingsInJob ? 0 : idle_looks_ + 1;
}

// Called when all queue pairs are gone.
void RuntimeState::finish_endings_here() noexcept {
    while (first_ending_ != nullptr) {
        continue_endings_here();
    }
}

void RuntimeState::post_endings_here() noexcept {
    if (first_ending_ == nullptr || endings_posted_) {
        return;
    }
    try {
        executor_->post_always([this] {
            endings_posted_ = false;
            continue_endings_here();
            if (first_ending_ != nullptr && idle_looks_ != 0) {
                wait_a_little_here(idle_looks_);
            }
            post_endings_here();
        });
        endings_posted_ = true;
    } catch (const std::bad_alloc&) {
        // The next tick calls this function.
    }
}

// ---- Cancelling ----

QpEnding* RuntimeState::find_ending(QpHandle handle) noexcept {
    for (QpEnding* ending = first_ending_; ending != nullptr; ending = ending->next) {
        if (ending->qp == handle) {
            return ending;
        }
    }
    return nullptr;
}

void RuntimeState::cancel(QpHandle handle) {
    executor_->run([&] { cancel_here(handle); });
}

void RuntimeState::cancel_here(QpHandle handle) {
    QpSlot* const qp = find_qp(handle);
    if (qp == nullptr) {
        return;
    }
    if (QpEnding* ending = find_ending(qp->handle); ending != nullptr) {
        // If its drain has begun, the worker gets another command, with a deadline that is over.
        if (std::exchange(ending->limit, std::chrono::milliseconds(0)).count() != 0 && ending->retirement) {
            ending->retirement->deadline = platform->now();
            ending->retirement->command = 0;
        }
        return;
    }
    if (Attempts::node_type begun = take_attempt_by_event(*qp); !begun.empty()) {
        fail_connection_here(*qp);
        begun.mapped().event.text.assign("it was cancelled");
        tell_outcome_here(std::move(begun.mapped()));
    }
}

bool RuntimeState::abandon_qp(QpHandle handle) {
    return executor_->run([&] { return abandon_here(handle); }, Executor::Patience::unlimited);
}

bool RuntimeState::abandon_here(QpHandle handle) {
    QpSlot* const qp = running_.load() ? find_qp(handle) : nullptr;
    if (qp == nullptr) {
        return false;
    }
    if (QpEnding* ending = find_ending(qp->handle); ending != nullptr) {
        if (ending->report == Report::to_waiter) {
            return false;
        }
        ending->report = Report::to_nobody;
        ending->reset = false;
        return true;
    }
    if (!is_connecting_by_event(*qp)) {
        return false;
    }
    std::unique_ptr<QpEnding> ending = new_ending(*qp, false, Report::to_nobody, {});
    (void)take_attempt_by_event(*qp);
    fail_connection_here(*qp);
    start_here(*ending.release());
    return true;
}

void RuntimeState::close_instead_here(QpHandle handle) noexcept {
    if (QpEnding* ending = find_ending(handle); ending != nullptr) {
        ending->reset = false;
    }
}

QpHandle RuntimeState::current_handle_here(QpHandle handle) noexcept {
    const QpSlot* qp = find_qp(handle);
    return qp != nullptr ? qp->handle : QpHandle{};
}

}  // namespace pollcore
