// Ends objects of an attached process: queue pairs and sessions at its request, and all objects when the process ends.
#include <algorithm>
#include <memory>
#include <type_traits>
#include <utility>

#include "attach/answering.hpp"
#include "attach/attached_client.hpp"
#include "base/log.hpp"
#include "base/undo.hpp"

namespace pollcore {
namespace {

using namespace std::chrono_literals;

// The largest number of queue pairs of one closing session, or of one ending process, that are drained at the same
// time. A turn may look at all of them.
constexpr std::size_t kRetiringMax = 256;

}  // namespace

QpHandle AttachedClient::present(QpHandle handle) noexcept {
    const QpHandle now = qps_.contains(handle) ? handle : runtime_.current_handle_here(handle);
    return qps_.contains(now) ? now : handle;
}

void AttachedClient::begin(std::uint64_t id, const wire::CloseQp& asked) {
    const QpHandle present_handle = present(asked.handle);
    if (!qps_.contains(present_handle)) {
        return reply<wire::CloseQp>(id, {.handle = asked.handle, .drained = 1});  // it was closed with its session
    }
    OwnQp& own = require_qp(present_handle);
    later<wire::CloseQp>(
        id,
        [this, handle = present_handle, deadline = runtime_.platform->now() + runtime_.config.drain_timeout](
            Clock::time_point) -> std::optional<wire::QpNamed> {
            const std::optional<bool> drained = retire(handle, deadline);
            if (!drained) {
                return std::nullopt;
            }
            runtime_.end_retired_here(handle, *drained);
            qps_.erase(handle);
            events_.remove(handle);
            return wire::QpNamed{.handle = handle, .drained = *drained};
        },
        0ms);
    own.busy = true;
}

void AttachedClient::begin(std::uint64_t id, const wire::ResetQp& asked) {
    OwnQp& own = require_qp(asked.handle);
    runtime_.require_resettable_here(asked.handle);
    later<wire::ResetQp>(
        id,
        [this, handle = asked.handle, deadline = runtime_.platform->now() + runtime_.config.drain_timeout](
            Clock::time_point) -> std::optional<wire::QpNamed> {
            const std::optional<bool> drained = retire(handle, deadline);
            if (!drained) {
                return std::nullopt;
            }
            const QpHandle renewed = runtime_.restart_retired_here(handle, *drained).first;
            auto its = qps_.extract(handle);
            its.key() = renewed;
            qps_.insert(std::move(its));
            events_.rename(handle, renewed);
            return wire::QpNamed{.handle = renewed, .drained = *drained};
        },
        0ms);
    own.busy = true;
}

// Begins to retire the queue pair, if this has not begun yet: moves it to error, so that its work requests are flushed.
// Returns the result of is_drained().
std::optional<bool> AttachedClient::retire(QpHandle handle, Clock::time_point deadline) {
    OwnQp& own = qps_.at(handle);
    if (!own.retirement) {
        try {
            own.retirement = runtime_.begin_retiring_here(handle, deadline);
        } catch (const std::exception& error) {
            if (is_for_later(error)) {
                return std::nullopt;
            }
            own.busy = false;
            throw;
        }
    }
    return is_drained(handle);
}

// Returns nothing while the queue pair is being drained, or if this turn must not end more objects. Otherwise returns
// whether the queue pair was flushed in time. The caller then ends or restarts the queue pair.
std::optional<bool> AttachedClient::is_drained(QpHandle handle) noexcept {
    if (left_in_turn_ <= 0) {
        return std::nullopt;
    }
    const auto found = qps_.find(handle);
    if (found == qps_.end()) {
        return true;  // a close that was begun before has ended
    }
    OwnQp& own = found->second;
    std::optional<bool> drained = true;
    try {
        drained = own.retirement ? runtime_.retired_here(*own.retirement) : std::optional(true);
    } catch (const std::exception& error) {
        if (is_for_later(error)) {
            return std::nullopt;
        }
        log_error("client {}: a queue pair is not drained: {}", number_, error.what());
        drained = false;
    }
    if (drained) {
        --left_in_turn_;
        own.retirement.reset();
        own.busy = false;
    }
    return drained;
}

// Retires the session's queue pairs, and then closes the session.
void AttachedClient::begin(std::uint64_t id, const wire::CloseSession& asked) {
    if (!sessions_.contains(asked.id)) {
        return reply<wire::CloseSession>(id, {});  // the session is closed already
    }
    later<wire::CloseSession>(
        id,
        [this, session = asked.id,
         ends = std::optional<Retirements>()](Clock::time_point) mutable -> std::optional<wire::Nothing> {
            if (!sessions_.contains(session)) {
                return wire::Nothing{};  // another request has closed the session
            }
            if (!ends) {
                const std::vector<QpHandle> its = qps_of(session);
                if (std::any_of(its.begin(), its.end(), [&](QpHandle handle) { return qps_.at(handle).busy; })) {
                    return std::nullopt;  // waits until the busy queue pair is closed or reset
                }
                closing_.insert(session);  // from now on, no object is made for this session
                Undo open_again([&]() noexcept { closing_.erase(session); });
                ends = begin_retiring(its, runtime_.platform->now() + runtime_.config.drain_timeout);
                open_again.keep();
            }
            if (!retire_some(*ends)) {
                return std::nullopt;
            }
            try {
                runtime_.begin_closing_session_here(session, runtime_.platform->now());
            } catch (const std::exception& error) {
                if (is_for_later(error)) {
                    return std::nullopt;
                }
                closing_.erase(session);
                throw;
            }
            if (!runtime_.session_closed_here(session)) {
                return std::nullopt;
            }
            drop_session(session);
            return wire::Nothing{};
        },
        0ms);
}

// ---- The end of the process ----

AttachedClient::Retirements AttachedClient::begin_retiring(const std::vector<QpHandle>& handles,
                                                           Clock::time_point deadline) {
    Retirements ends{.deadline = deadline, .waiting = {handles.begin(), handles.end()}, .under_way = {}};
    ends.under_way.reserve(std::min(handles.size(), kRetiringMax));
    for (const QpHandle handle : handles) {
        qps_.at(handle).busy = true;
        runtime_.close_instead_here(handle);
    }
    return ends;
}

bool AttachedClient::retire_some(Retirements& ends) noexcept {
    for (; left_in_turn_ > 0 && !ends.waiting.empty() && ends.under_way.size() < kRetiringMax; --left_in_turn_) {
        const QpHandle handle = ends.waiting.front();
        ends.waiting.pop_front();
        const auto found = qps_.find(handle);
        if (found == qps_.end()) {
            continue;  // a close that was begun before has ended
        }
        OwnQp& own = found->second;
        try {
            if (!own.retirement) {  // otherwise the queue pair is being closed or reset already
                own.retirement = runtime_.begin_retiring_here(handle, ends.deadline);
            }
            ends.under_way.push_back(handle);
            own.busy = true;
        } catch (const std::exception& error) {
            if (is_for_later(error)) {
                ends.waiting.push_front(handle);
                break;
            }
            own.busy = false;
            log_error("client {}: a queue pair does not end: {}", number_, error.what());
        }
    }
    for (auto end = ends.under_way.begin(); left_in_turn_ > 0 && end != ends.under_way.end();) {
        const std::optional<bool> drained = is_drained(*end);
        if (!drained) {
            ++end;
            continue;
        }
        ends.whole = ends.whole && *drained;
        attempt("a queue pair", [&] {
            runtime_.end_retired_here(*end, *drained);
            qps_.erase(*end);
            events_.remove(*end);
        });
        end = ends.under_way.erase(end);
    }
    return ends.waiting.empty() && ends.under_way.empty();
}

std::vector<QpHandle> AttachedClient::qps_of(std::uint32_t session) const {
    std::vector<QpHandle> its;
    for (const auto& [handle, own] : qps_) {
        if (own.sessions.contains(session)) {
            its.push_back(handle);
        }
    }
    return its;
}

void AttachedClient::begin(std::uint64_t id, const wire::Detach&) {
    detaching_.emplace(Detaching{.id = id, .node = node_for<wire::Detach>()});
    end(runtime_.config.drain_timeout, false);
}

// Must not fail for lack of memory, because a process whose end has begun and then failed would stay for ever.
void AttachedClient::end(std::chrono::milliseconds drain, bool abandoned) noexcept {
    ending_ = true;
    abandoned_ = abandoned;
    drained_by_ = runtime_.platform->now() + drain;
    later_.clear();  // a process that still waits for these requests learns that the attachment has ended
    for (const ConnectionKey& key : std::exchange(attempts_, {})) {
        runtime_.drop_attempt_here(key);
    }
    cancel_errands();
    for (const auto& [device, own] : own_devices_) {
        runtime_.let_go_of_client_device_here(own);
    }
    log_refusals();
}

void AttachedClient::end_some() noexcept {
    if (!last_ends_) {
        try {
            std::vector<QpHandle> all;
            all.reserve(qps_.size());
            for (const auto& [handle, own] : qps_) {
                all.push_back(handle);
            }
            last_ends_ = begin_retiring(all, drained_by_);
        } catch (const std::bad_alloc&) {
            return;  // the next turn tries again
        }
    }
    closed_ = closed_ || (stop_listening_at_some() && retire_some(*last_ends_) && close_some());
    if (!closed_ || account_->has(Thing::leaving_byte) != 0) {
        return;
    }
    whole_ = last_ends_->whole;
    ended_ = true;
    if (detaching_) {
        reply<wire::Detach>(std::move(detaching_->node), detaching_->id, {.whole = whole_});
    }
}

// Ends only one listener in a turn, because many connection requests may wait at the listener and end with it.
bool AttachedClient::stop_listening_at_some() noexcept {
    if (left_in_turn_ > 0 && !listeners_.empty()) {
        left_in_turn_ = 0;
        const auto [device, listener] = listeners_.begin()->first;
        runtime_.stop_listening(device, listener);
        listeners_.erase(listeners_.begin());
        return false;
    }
    for (; left_in_turn_ > 0 && !requests_.empty(); --left_in_turn_) {
        const auto [device, request] = requests_.begin()->first;
        runtime_.reject(device, request, {});
        requests_.erase(requests_.begin());
    }
    return listeners_.empty() && requests_.empty();
}

bool AttachedClient::close_some() noexcept {
    // Closes some of `things`. Returns whether all of them are gone.
    const auto close = [&](auto& things, const char* what, auto&& how) {
        for (; left_in_turn_ > 0 && !things.empty(); --left_in_turn_) {
            const auto one = things.begin();
            try {
                how(one->first);
                things.erase(one);
            } catch (const std::exception& error) {
                if (is_for_later(error)) {
                    return false;
                }
                log_error("client {}: {} does not end: {}", number_, what, error.what());
                // The object remains, and still counts in the user's account.
                runtime_.keep_until_end(std::make_shared<std::decay_t<decltype(one->second)>>(std::move(one->second)));
                things.erase(one);
            }
        }
        return things.empty();
    };
    if (!close(srqs_, "a shared receive queue", [&](SrqHandle srq) { runtime_.close_srq(srq); })) {
        return false;
    }
    close_some_sessions();
    if (!sessions_.empty() || !errands_.empty()) {
        return false;
    }
    const bool unnamed =
        close(pools_, "a receive pool",
              [&](PoolHandle pool) {
                  runtime_.begin_closing_pool_here(pool);
                  runtime_.end_closing_pool_here(pool);
              }) &&
        close(windows_, "a memory window", [&](MwHandle window) { runtime_.end_window_here(window, UseSearch()); }) &&
        close(ahs_, "an address handle", [&](AhHandle ah) { runtime_.end_unused_ah_here(ah); });
    if (!unnamed) {
        return false;
    }
    if (!regions_.empty()) {
        attempt("memory", [&] { end_regions(); });
        return false;
    }
    const bool empty = close(pds_, "a protection domain", [&](PdId pd) {
        if (!runtime_.release_pd_here(pd)) {
            throw Error(EBUSY, "something is left in it");
        }
    });
    if (!empty) {
        return false;
    }
    for (const auto& [device, pd] : default_pds_) {
        attempt("a protection domain", [&, its = pd] { (void)runtime_.release_pd_here(its); });
    }
    default_pds_.clear();
    look_for_abuse();
    for (const auto& [device, own] : std::exchange(own_devices_, {})) {
        runtime_.remove_client_device_here(own);
    }
    qps_.clear();
    closed_qps_.clear();
    return true;
}

// Closes sessions. A worker releases a session in its own time, so this may take several turns.
void AttachedClient::close_some_sessions() noexcept {
    for (auto session = sessions_.begin(); left_in_turn_ > 0 && session != sessions_.end(); --left_in_turn_) {
        bool closed = true;  // also true if the session cannot be closed at all
        try {
            runtime_.begin_closing_session_here(session->first, runtime_.platform->now(), abandoned_);
            closed = runtime_.session_closed_here(session->first);
        } catch (const std::exception& error) {
            closed = !is_for_later(error);
            if (closed) {
                log_error("client {}: a session does not end: {}", number_, error.what());
            }
        }
        if (closed) {
            runtime_.release_session(session->first);
            session = sessions_.erase(session);
        } else {
            ++session;
        }
    }
}

}  // namespace pollcore
