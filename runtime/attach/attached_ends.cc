// How what an attached process has ends: queue pairs and sessions by its wish, and all of it with the process.
#include <algorithm>
#include <utility>

#include "attach/answering.hpp"
#include "attach/attached_client.hpp"
#include "base/log.hpp"

namespace pollcore {
namespace {

using namespace std::chrono_literals;

}  // namespace

void AttachedClient::begin(std::uint64_t id, const wire::CloseQp& asked) {
    if (!qps_.contains(asked.handle)) {
        return reply<wire::CloseQp>(id, {.handle = asked.handle, .drained = 1});  // closed with its session
    }
    OwnQp& own = require_qp(asked.handle);
    std::optional<Retirement> retirement =
        runtime_.begin_retiring_here(asked.handle, runtime_.platform->now() + runtime_.config.drain_timeout);
    own.busy = true;
    later<wire::CloseQp>(id, [this, handle = asked.handle, retirement](Clock::time_point) mutable -> std::optional<wire::QpNamed> {
        const std::optional<bool> drained = retirement ? runtime_.retired_here(*retirement) : std::optional(true);
        if (!drained) {
            return std::nullopt;
        }
        try {
            runtime_.end_retired_here(handle, *drained);
        } catch (...) {
            if (const auto kept = qps_.find(handle); kept != qps_.end()) {
                kept->second.busy = false;
            }
            throw;
        }
        forget_qp(handle);
        return wire::QpNamed{.handle = handle, .drained = *drained};
    }, 0ms);
}

void AttachedClient::begin(std::uint64_t id, const wire::ResetQp& asked) {
    OwnQp& own = require_qp(asked.handle);
    (void)runtime_.info(asked.handle);  // of one that was lost with its device there is none
    std::optional<Retirement> retirement =
        runtime_.begin_retiring_here(asked.handle, runtime_.platform->now() + runtime_.config.drain_timeout);
    own.busy = true;
    later<wire::ResetQp>(id, [this, handle = asked.handle, retirement](Clock::time_point) mutable -> std::optional<wire::QpNamed> {
        const std::optional<bool> drained = retirement ? runtime_.retired_here(*retirement) : std::optional(true);
        if (!drained) {
            return std::nullopt;
        }
        const auto known = qps_.find(handle);
        if (known != qps_.end()) {
            known->second.busy = false;
        }
        const QpHandle renewed = runtime_.restart_retired_here(handle, *drained).first;
        if (known != qps_.end()) {
            OwnQp was = std::move(known->second);
            qps_.erase(known);
            qps_.emplace(renewed, std::move(was));
        }
        return wire::QpNamed{.handle = renewed, .drained = *drained};
    }, 0ms);
}

// Its queue pairs first, all at a time, so that the control thread does not wait for them one by one.
void AttachedClient::begin(std::uint64_t id, const wire::CloseSession& asked) {
    if (!sessions_.contains(asked.id)) {
        return reply<wire::CloseSession>(id, {});  // closed before
    }
    later<wire::CloseSession>(
        id,
        [this, session = asked.id,
         ends = std::optional<std::vector<Retiring>>()](Clock::time_point) mutable -> std::optional<wire::Nothing> {
            if (!sessions_.contains(session)) {
                return wire::Nothing{};  // asked for twice
            }
            if (!ends) {
                const std::vector<QpHandle> its = qps_of(session);
                if (std::any_of(its.begin(), its.end(), [&](QpHandle handle) { return qps_.at(handle).busy; })) {
                    return std::nullopt;  // being closed or reset, which ends by itself
                }
                ends = retire(its, runtime_.config.drain_timeout);
            }
            if (!all_retired(*ends)) {
                return std::nullopt;
            }
            // What it may have made meanwhile ends here too, and is waited for.
            (void)runtime_.close_session_here(session, runtime_.platform->now());
            drop_session(session);
            return wire::Nothing{};
        },
        0ms);
}

// ---- Its end ----

std::vector<AttachedClient::Retiring> AttachedClient::retire(const std::vector<QpHandle>& handles, std::chrono::milliseconds within) {
    std::vector<Retiring> ends;
    const Clock::time_point deadline = runtime_.platform->now() + within;
    for (const QpHandle handle : handles) {
        attempt("a queue pair", [&] {
            ends.push_back({handle, runtime_.begin_retiring_here(handle, deadline), std::nullopt});
            if (const auto own = qps_.find(handle); own != qps_.end()) {
                own->second.busy = true;
            }
        });
    }
    return ends;
}

bool AttachedClient::all_retired(std::vector<Retiring>& ends) noexcept {
    bool all = true;
    for (Retiring& end : ends) {
        if (end.drained) {
            continue;
        }
        try {
            end.drained = end.retirement ? runtime_.retired_here(*end.retirement) : std::optional(true);
        } catch (const std::exception& error) {
            const auto* known = dynamic_cast<const Error*>(&error);
            if (known == nullptr || known->code() != std::errc::resource_unavailable_try_again) {
                log_error("client {}: a queue pair is not drained: {}", number_, error.what());
                end.drained = false;
            }
        }
        if (!end.drained) {
            all = false;
            continue;
        }
        const auto own = qps_.find(end.handle);
        if (own != qps_.end()) {
            own->second.busy = false;
        }
        attempt("a queue pair", [&] {
            runtime_.end_retired_here(end.handle, *end.drained);
            forget_qp(end.handle);
        });
    }
    return all;
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
    end(runtime_.config.drain_timeout, false, [this, id](bool whole) { reply<wire::Detach>(id, {.whole = whole}); });
}

void AttachedClient::end(std::chrono::milliseconds drain, bool abandoned, std::function<void(bool whole)> done) {
    ending_ = true;
    later_.clear();  // who waits for these waits no more, or will be told that it has ended
    cancel_registrations();
    // Queue pairs first, all at a time.
    const auto ends = std::make_shared<std::vector<Retiring>>();
    later_.push_back({.over =
                          [this, abandoned, done = std::move(done), ends, closed = false](Clock::time_point) mutable {
                              if (!closed) {
                                  const bool retired = all_retired(*ends);
                                  if (!registers_nothing() || !retired) {
                                      return false;
                                  }
                                  close_resources(abandoned);
                                  closed = true;
                              }
                              if (account_->has(Thing::leaving_byte) != 0) {
                                  return false;
                              }
                              whole_ = std::all_of(ends->begin(), ends->end(), [](const Retiring& end) { return *end.drained; });
                              ended_ = true;
                              done(whole_);
                              return true;
                          },
                      .next = {}});
    log_refusals();
    for (const auto& [listener, place] : listeners_) {
        runtime_.stop_listening(listener.first, listener.second);
    }
    listeners_.clear();
    for (const auto& [request, flow] : requests_) {
        runtime_.reject(request.first, request.second, {});
    }
    requests_.clear();
    std::vector<QpHandle> all;
    for (const auto& [handle, own] : qps_) {
        all.push_back(handle);
    }
    *ends = retire(all, drain);
}

// What one of them cannot do must not keep the others from ending.
template <class F>
void AttachedClient::attempt(const char* what, F&& step) noexcept {
    try {
        step();
    } catch (const std::exception& error) {
        log_error("client {}: {} does not end: {}", number_, what, error.what());
    }
}

void AttachedClient::close_resources(bool abandoned) noexcept {
    const auto deadline = runtime_.platform->now();
    for (const auto& [session, place] : sessions_) {
        attempt("a session", [&, id = session] { (void)runtime_.close_session_here(id, deadline, abandoned); });
    }
    for (const auto& [handle, own] : srqs_) {
        attempt("a shared receive queue", [&, srq = handle] { runtime_.close_srq(srq); });
    }
    for (const auto& [handle, own] : pools_) {
        attempt("a receive pool", [&, pool = handle, region = own.region] {
            runtime_.close_pool(pool, region);
            regions_.erase(region);
        });
    }
    for (const MwHandle handle : windows_) {
        attempt("a memory window", [&] { runtime_.deallocate(handle); });
    }
    for (const AhHandle handle : ahs_) {
        attempt("an address handle", [&] { runtime_.destroy_ah(handle); });
    }
    for (auto region = regions_.begin(); region != regions_.end();) {
        bool over = false;
        attempt("a memory region", [&] {
            runtime_.deregister(region->first);
            over = true;
        });
        // What is registered stays mapped: the device may reach it.
        region = over ? regions_.erase(region) : std::next(region);
    }
    for (const PdId pd : pds_) {
        runtime_.release_pd(pd);
    }
    for (const auto& [device, pd] : default_pds_) {
        runtime_.release_pd(pd);
    }
    for (const auto& [session, place] : sessions_) {
        runtime_.release_session(session);
    }
    for (const auto& [id, region] : regions_) {
        runtime_.keep_mapped(region.memory);
    }
    sessions_.clear();
    qps_.clear();
    srqs_.clear();
    pools_.clear();
    windows_.clear();
    ahs_.clear();
    regions_.clear();
    pds_.clear();
    default_pds_.clear();
}

}  // namespace pollcore
