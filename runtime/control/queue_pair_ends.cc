// The end and the reset of queue pairs: the retiring sequence (H1).
#include <algorithm>
#include <array>
#include <memory>
#include <new>
#include <utility>

#include <fmt/format.h>

#include "base/life.hpp"
#include "base/log.hpp"
#include "base/planted.hpp"
#include "base/probe.hpp"
#include "control/runtime_state.hpp"

namespace pollcore {
namespace {

// The shortest time limit for a drain, even if the deadline has passed: the time that a healthy device needs.
constexpr std::chrono::milliseconds kDrainAtLeast{20};

// If a QP in ERR gets no completion for this time, its receives that were not flushed are given up (D27). A device
// flushes in microseconds, but another thread on the worker's core may delay the worker for longer.
constexpr std::chrono::milliseconds kQuiet{100};

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

bool RuntimeState::close_qp(QpHandle handle) {
    QpEnding ending{.qp = handle};
    executor_->run(
        [&] {
            const QpSlot* qp = running_.load() ? find_qp_or_former(handle) : nullptr;
            if (qp == nullptr) {
                ending.ended = true;  // the queue pair was closed with its session or the runtime
                return;
            }
            require_not_ending(*qp);
            ending.qp = qp->handle;
            ending.limit = config.drain_timeout;
            start_here(ending);
        },
        Executor::Patience::unlimited);
    await_end(ending);
    return ending.drained;
}

bool RuntimeState::close_qp_here(QpHandle handle, std::chrono::steady_clock::time_point deadline) {
    const bool drained = retire_qp_here(handle, deadline);
    end_retired_here(handle, drained);
    return drained;
}

void RuntimeState::end_retired_here(QpHandle handle, bool drained) {
    if (const QpSlot* qp = find_qp(handle); qp != nullptr && qp->qp != nullptr) {
        take_async_events(*devices_[qp->device]);  // events that still wait when their queue pair is destroyed are lost
    }
    QpSlot* qp = find_qp(handle);
    if (qp == nullptr) {
        return;  // an event has ended the queue pair meanwhile
    }
    const QpAndOwner which = with_owner(*qp);
    const Counter& cut_short = workers_[qp->worker]->worker->counters().cut_short;
    const std::uint64_t before = cut_short.value();
    destroy_qp_here(*qp);
    if (!drained) {
        log_of_qp(LogLevel::warning, which, "the runtime completed {} requests", cut_short.value() - before);
    }
}

// Carries out the sequence of H1 up to the point where the QP may be destroyed or RESET. Returns true if nothing is in
// flight any more: the device has flushed everything, or the QP or its device has ended meanwhile.
bool RuntimeState::retire_qp_here(QpHandle handle, std::chrono::steady_clock::time_point deadline) {
    std::optional<Retirement> retirement = begin_retiring_here(handle, deadline);
    if (!retirement) {
        return true;
    }
    for (std::uint32_t looks = 0;; ++looks) {
        if (const std::optional<bool> drained = begin_here([&] { return retired_here(*retirement); })) {
            return *drained;
        }
        wait_a_little_here(looks);
    }
}

std::optional<Retirement> RuntimeState::begin_retiring_here(QpHandle handle,
                                                            std::chrono::steady_clock::time_point deadline) {
    QpSlot* qp = find_qp(handle);
    if (qp == nullptr || qp->qp == nullptr) {
        return std::nullopt;  // there is no such QP, or it was lost with its device and has nothing in flight
    }
    forget_connection_here(*qp);
    qp->error_told = true;  // what puts it in error from now on is this call
    if (planted(Bug::given_back_early)) {
        return std::nullopt;
    }
    Retirement retirement{.handle = handle, .deadline = deadline, .last_wqe_deadline = platform->now() + kDrainAtLeast};
    try {
        if (qp->state != QpState::reset) {  // in RESET nothing is in flight, and the verbs have no move from it to ERR
            Transition error = to_state(IBV_QPS_ERR);
            modify_here(*qp, error.attr, error.mask, QpState::error, Status::qp_closed);
        }
        retirement.quiet = static_cast<std::uint32_t>(platform->cycles_from(kQuiet));
    } catch (const std::exception& error) {
        const auto* known = dynamic_cast<const Error*>(&error);
        if (known != nullptr && known->code() == std::errc::io_error && lost_meanwhile(*devices_[qp->device])) {
            return std::nullopt;
        }
        retirement.device_lags = true;
        log_of_qp(LogLevel::warning, with_owner(*qp), "{}; it is taken out of service as it is", error.what());
    }
    return retirement;
}

std::optional<bool> RuntimeState::retired_here(Retirement& retirement) {
    // A queue pair of an SRQ may have taken a receive whose message has only partly arrived. That receive completes
    // before the event LAST_WQE_REACHED, and would be lost if the queue pair were destroyed before that event (H1,
    // D22). Not every provider raises the event (Soft-RoCE in Linux 6.1 does not). So the wait for the event is not
    // longer than a healthy device needs. This function takes the events itself: the event loop's job for them waits
    // until the control thread has ended the job that runs now.
    const QpSlot* qp = find_qp(retirement.handle);
    if (retirement.command == 0 && qp != nullptr && qp->srq != nullptr && qp->state != QpState::reset) {
        take_async_events(*devices_[qp->device]);
        qp = find_qp(retirement.handle);
        if (qp != nullptr && qp->qp != nullptr && !qp->last_wqe_reached &&
            platform->now() <= retirement.last_wqe_deadline) {
            return std::nullopt;
        }
    }
    if (qp == nullptr || qp->qp == nullptr) {
        return true;  // an event has ended the queue pair, or its device was lost
    }
    WorkerProxy& worker = *workers_[qp->worker]->proxy;
    if (retirement.command == 0) {
        retirement.limit =
            std::max(std::chrono::duration_cast<std::chrono::milliseconds>(retirement.deadline - platform->now()),
                     kDrainAtLeast);
        worker.ignore(qp->retire_command);
        retirement.command =
            worker.begin_retiring(retirement.handle, platform->cycles() + platform->cycles_from(retirement.limit),
                                  retirement.quiet, retirement.device_lags);
        find_qp(retirement.handle)->retire_command = retirement.command;
    }
    if (qp->retire_command == 0) {
        retirement.command = 0;  // another call has retired the queue pair, and could not end it
        return std::nullopt;
    }
    if (qp->retire_command != retirement.command) {
        return std::nullopt;  // another call retires the queue pair, and will end it
    }
    const std::optional<bool> drained = worker.retired(retirement.command);
    if (drained == false) {
        counters.cut_short.add();
        log_of_qp(LogLevel::warning, with_owner(*qp),
                  "device \"{}\" did not flush its work within {} ms; the runtime completes it",
                  devices_[qp->device]->config.name, retirement.limit.count());
    } else if (!drained) {
        take_async_events(*devices_[qp->device]);  // one of them may say that the device is lost; then no flush comes
    }
    return drained;
}

void RuntimeState::destroy_qp_here(QpSlot& qp, Status leftovers) {
    WorkerProxy& worker = *workers_[qp.worker]->proxy;
    worker.park(qp.handle);
    stop_answering_here(qp);
    renew_windows_here(qp);  // the windows that are bound to this queue pair
    const bool early = planted(Bug::given_back_early);
    if (early) {
        worker.forget(qp.handle, leftovers);
        platform->sleep(std::chrono::microseconds(500));
    }
    destroy_verbs_qp(qp, leftovers);
    if (!early) {
        worker.forget(qp.handle, leftovers);
    }
    worker.ignore(qp.retire_command);
    renew_windows_here(qp);  // windows whose binds this queue pair did not complete
    release_entries(qp);
    close_idle_cqs(*workers_[qp.worker], *devices_[qp.device]);
    return_share(qp.pool);
    return_share(qp.rendezvous);
    POLLCORE_PROBE(qp_destroyed, qp.qp_num, qp.client);
    if (statistics_ != nullptr) {
        statistics_->enter(qp);
    }
    qps_[qp.handle.index].reset();
}

// Called while the QP is parked. If the QP was not retired, the device still answers the QP's peers. If a window ended
// before the QP, a peer's access would fail with a wrong key, and the peer would not learn that the QP is gone. So the
// QP is moved to ERR first.
void RuntimeState::stop_answering_here(const QpSlot& qp) {
    if (qp.qp == nullptr || qp.state == QpState::error || qp.state == QpState::reset) {
        return;
    }
    try {
        Transition error = to_state(IBV_QPS_ERR);
        devices_[qp.device]->device->modify(qp.qp.get(), error.attr, error.mask);
    } catch (const std::exception& error) {
        log_of_qp(LogLevel::warning, with_owner(qp), "{}; its device answers its peers until it is destroyed",
                  error.what());
    }
}

// Called while the QP is parked. The QP stays parked unless this function throws.
void RuntimeState::destroy_verbs_qp(QpSlot& qp, Status cause) {
    if (qp.qp == nullptr) {
        return;
    }
    WorkerProxy& worker = *workers_[qp.worker]->proxy;
    DeviceSlot& device = *devices_[qp.device];
    const int error = device.device->destroy(qp.qp.get());
    // EIO: the kernel has given up the device, and the device's QPs have ended with it.
    if (error != 0 && !(error == EIO && device.lost)) {
        // The QP was not destroyed, so the device may still write to its buffers. Therefore the runtime may complete
        // none of the QP's work (H2).
        keep_in_error(qp, cause);
        if (error == EIO && lost_meanwhile(device) && qp.qp == nullptr) {
            return worker.park(qp.handle);
        }
        throw Error(error,
                    fmt::format("device \"{}\" does not destroy queue pair {}", device.config.name, qp.called()));
    }
    (void)qp.qp.release();
}

// Called when the provider has refused to destroy or reset a parked queue pair. The worker goes on with the work in
// flight. On the device the queue pair may still be in RTS and answer its peers, although nobody uses the queue pair.
// So this function tries to move it to ERR, even if an earlier attempt failed.
void RuntimeState::keep_in_error(QpSlot& qp, Status cause) {
    bool device_lags = false;
    try {
        if (qp.state != QpState::reset) {
            Transition error = to_state(IBV_QPS_ERR);
            devices_[qp.device]->device->modify(qp.qp.get(), error.attr, error.mask);
        }
    } catch (const std::exception& error) {
        device_lags = true;
        log_of_qp(LogLevel::warning, with_owner(qp), "{}; its state at the device is unchanged", error.what());
    }
    workers_[qp.worker]->proxy->unpark(qp.handle, QpState::error, cause, device_lags);
    qp.state = QpState::error;
    workers_[qp.worker]->proxy->ignore(std::exchange(qp.retire_command, 0));
}

// ---- Beginning again ----

std::pair<QpHandle, bool> RuntimeState::reset(QpHandle handle) {
    QpEnding ending{.reset = true, .qp = handle};
    executor_->run([&] {
        require_not_ending(live_qp_slot(handle));
        require_not_connecting(qp_slot(handle));
        ending.limit = config.drain_timeout;
        start_here(ending);
    });
    await_end(ending);
    return {ending.renewed, ending.drained};
}

std::pair<QpHandle, bool> RuntimeState::restart_retired_here(QpHandle handle, bool drained) {
    // Take the events now, so that no event of the old life is mistaken for an event of the new life.
    take_async_events(*devices_[live_qp_slot(handle).device]);
    QpSlot& qp = live_qp_slot(handle);  // looked up again, because an event may have ended it
    WorkerProxy& worker = *workers_[qp.worker]->proxy;
    const std::uint32_t life = qp_lives_[handle.index];
    const QpHandle renewed{handle.index, life_of(life).generation};
    // Random, so that packets of the old connection do not fit the new one. By hand, modify() sets it.
    const std::uint32_t psn = qp.by_hand ? 0 : random_psn();
    renew_windows_here(qp);  // as before a destroy: see destroy_qp_here()
    worker.park(handle);
    try {
        restart_verbs_qp(qp, psn);
    } catch (...) {
        keep_in_error(qp, Status::qp_closed);
        throw;
    }
    const bool ready = qp.type == QpType::ud && !qp.by_hand;
    const QpState state = qp.by_hand ? QpState::reset : ready ? QpState::ready : QpState::init;
    workers_[qp.worker]->worker->failed_qps().forget(handle.index);
    worker.renew(qp.handle, life, state);
    renew_windows_here(qp);  // windows whose binds this queue pair did not complete
    ++qp_lives_[handle.index];
    qp.handle = renewed;
    qp.former = {};
    qp.state = state;
    qp.psn = psn;
    qp.qkey = qp.by_hand ? 0 : qp.qkey;
    qp.moved = ready;
    qp.disconnected = false;
    qp.error_told = false;
    qp.last_wqe_reached = false;
    return {renewed, drained};
}

// Moves the QP through RESET to the state in which a new QP of its type begins. Called while the QP is parked.
void RuntimeState::restart_verbs_qp(QpSlot& qp, std::uint32_t psn) {
    Device& device = *devices_[qp.device]->device;
    const auto move = [&](Transition to) { device.modify(qp.qp.get(), to.attr, to.mask); };
    move(to_state(IBV_QPS_RESET));
    if (qp.by_hand) {
        return;
    }
    if (qp.type != QpType::ud) {
        move(to_init(device.port(), access_flags(qp.remote_access)));
        return;
    }
    move(to_datagram_init(device.port(), qp.qkey));
    move(to_state(IBV_QPS_RTR));
    move(to_rts(psn, {}, QpType::ud));
}

// ---- Closing and resetting in steps ----
//
// A call begins a close or a reset, and the control thread continues it between its other jobs. So none of them delays
// other calls while it waits for a device. The end is told to the thread that waits for it, or to the application by an
// event.

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
    QpSlot* const qp = find_qp_or_former(handle);
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
    QpSlot* const qp = running_.load() ? find_qp_or_former(handle) : nullptr;
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
    const QpSlot* qp = find_qp_or_former(handle);
    return qp != nullptr ? qp->handle : QpHandle{};
}

}  // namespace pollcore
