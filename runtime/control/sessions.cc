// Opening and closing sessions.
#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <exception>

#include <fmt/format.h>

#include "base/event_fd.hpp"
#include "base/log.hpp"
#include "base/undo.hpp"
#include "control/runtime_state.hpp"

namespace pollcore {
namespace {

// A worker that does not hang releases a session in less time.
constexpr std::chrono::milliseconds kLettingGoUsual{5000};

}  // namespace

std::uint32_t RuntimeState::choose_worker(const std::string& name) const {
    if (name.empty()) {
        const auto sessions = [](const auto& worker) {
            return std::count_if(worker->sessions.begin(), worker->sessions.end(), [](auto id) { return id != 0; });
        };
        const auto least = std::min_element(workers_.begin(), workers_.end(),
                                            [&](const auto& a, const auto& b) { return sessions(a) < sessions(b); });
        return static_cast<std::uint32_t>(least - workers_.begin());
    }
    for (std::size_t i = 0; i < workers_.size(); ++i) {
        if (workers_[i]->config.name == name) {
            return static_cast<std::uint32_t>(i);
        }
    }
    throw Error(EINVAL, fmt::format("no worker \"{}\" in the configuration", name));
}

OpenedSession RuntimeState::open_session(const SessionOptions& options) {
    require_valid(options);
    return executor_->run([&] {
        require_running();
        UniqueFd application_fd;
        if (options.events) {
            application_fd = make_event_fd("a session that waits");
        }
        const std::uint32_t id =
            open_session_here(options, {}, {.visitor = {}, .application = std::move(application_fd)}, nullptr);
        const SessionSlot& slot = sessions_.at(id);
        return OpenedSession{
            .id = id,
            .worker = slot.worker,
            .worker_name = workers_[slot.worker]->config.name,
            .block = slot.block.data(),
            .layout = slot.layout,
            .waking = {workers_[slot.worker]->bell.get(), slot.application_fd.get(), options.wait_spin}};
    });
}

std::uint32_t RuntimeState::open_session_here(const SessionOptions& options, HostMemory block, SessionBells bells,
                                              std::shared_ptr<ClientShare> client) {
    const bool shared = client != nullptr;
    const std::uint32_t worker_index = choose_worker(options.worker);
    WorkerSlot& worker = *workers_[worker_index];
    const auto free = std::find(worker.sessions.begin(), worker.sessions.end(), 0u);
    const auto index = static_cast<std::uint32_t>(free - worker.sessions.begin());
    if (index >= kSessionsPerWorkerMax) {
        throw Error(ENOSPC, fmt::format("worker \"{}\" has {} sessions, the most one serves", worker.config.name,
                                        kSessionsPerWorkerMax));
    }
    SessionSlot slot;
    slot.id = next_session_++;
    slot.name = NameText(options.name);
    slot.worker = worker_index;
    slot.index = index;
    slot.layout = {config.qps_max,           options.submission_slots, options.completion_slots,
                   options.wide_completions, worker.bell.valid(),      options.pool_buffers};
    slot.visitor_fd = std::move(bells.visitor);
    slot.application_fd = std::move(bells.application);
    slot.block =
        block.data() != nullptr
            ? std::move(block)
            : platform->allocate(slot.layout.bytes(), devices_.front()->device->numa_node(), "rings of a session");
    format_session(slot.block.data(), slot.layout);
    slot.end = std::make_unique<WorkerSession>(
        slot.block.data(), slot.layout,
        WorkerSession::Options{.id = slot.id,
                               .client = client.get(),
                               .application_fd = options.events ? slot.application_fd.get() : -1,
                               .application_socket = shared,
                               .device_time = options.device_time});
    slot.client = std::move(client);
    if (free == worker.sessions.end()) {
        worker.sessions.push_back(0);
    }
    // The session gets its place in sessions_ first: after the worker knows an object, storing it must not fail for
    // lack of memory (D29).
    const std::uint32_t id = slot.id;
    const auto placed = sessions_.emplace(id, std::move(slot)).first;
    Undo take_back([&]() noexcept {
        unwatch_visitor_here(placed->second);
        sessions_.erase(placed);
    });
    SessionSlot& session = placed->second;
    if (session.visitor_fd.valid()) {
        watch_visitor(worker.visitors.get(), session.visitor_fd.get());
    }
    worker.proxy->add_session(index, *session.end);
    take_back.keep();
    worker.sessions[index] = id;
    return id;
}

void RuntimeState::unwatch_visitor_here(const SessionSlot& session) noexcept {
    if (session.visitor_fd.valid()) {
        (void)::epoll_ctl(workers_[session.worker]->visitors.get(), EPOLL_CTL_DEL, session.visitor_fd.get(), nullptr);
    }
}

std::uint64_t RuntimeState::submissions_refused(std::uint32_t session) const noexcept {
    const auto found = sessions_.find(session);
    if (found == sessions_.end()) {
        return 0;
    }
    return found->second.figures_now().refused;
}

Called RuntimeState::called_session(std::uint32_t id) const noexcept {
    const auto found = sessions_.find(id);
    return found == sessions_.end() ? Called{id} : found->second.called();
}

SessionSlot& RuntimeState::session_slot(std::uint32_t id) {
    const auto found = sessions_.find(id);
    if (found == sessions_.end() || found->second.end == nullptr || found->second.remove_command) {
        throw Error(EINVAL, "the session is closed");
    }
    return found->second;
}

bool RuntimeState::close_session_here(std::uint32_t session_id, std::chrono::steady_clock::time_point deadline,
                                      bool abandoned) {
    const Counter& cut_short = counters.cut_short;
    const std::uint64_t before = cut_short.value();
    begin_here([&] { begin_closing_session_here(session_id, deadline, abandoned); });
    auto warn_at = platform->now() + kLettingGoUsual;
    for (std::uint32_t looks = 0; !session_closed_here(session_id); ++looks) {
        if (platform->now() > warn_at) {
            log_error(
                "the worker of session {} has not released it for {} ms: it is stuck inside a provider's call, or "
                "another thread occupies its core",
                called_session(session_id), kLettingGoUsual.count());
            warn_at += kLettingGoUsual;
        }
        wait_a_little_here(looks);
    }
    return cut_short.value() == before;
}

void RuntimeState::begin_closing_session_here(std::uint32_t session_id, std::chrono::steady_clock::time_point deadline,
                                              bool abandoned) {
    const auto found = sessions_.find(session_id);
    if (found == sessions_.end() || found->second.end == nullptr || found->second.remove_command) {
        return;
    }
    SessionSlot& session = found->second;
    std::exception_ptr kept;  // the provider did not destroy a queue pair; the others must still be closed
    for (std::size_t i = 0; i < qps_.size(); ++i) {
        if (qps_[i] != nullptr && qps_[i]->worker == session.worker && qps_[i]->end != nullptr &&
            std::any_of(qps_[i]->end->options().shares.begin(), qps_[i]->end->options().shares.end(),
                        [&](const ShareOptions& share) { return share.session == session.index; })) {
            try {
                (void)close_qp_here(qps_[i]->handle, deadline);
            } catch (const std::exception&) {
                kept = std::current_exception();
            }
        }
    }
    // The session has a share of each queue pair that uses one of its shared receive queues. So these queue pairs were
    // closed above, unless the provider did not destroy one.
    for (const auto& srq : srqs_) {
        if (srq != nullptr && srq->session == session_id && (!kept || srq->qps == 0)) {
            close_srq_here(*srq);
        }
    }
    if (kept) {
        // The worker goes on with the work in flight of the queue pair that was not destroyed.
        std::rethrow_exception(kept);
    }
    detach_pools_here(session_id);
    unwatch_visitor_here(session);
    session.remove_command = workers_[session.worker]->proxy->begin_removing_session(session.index, abandoned);
}

bool RuntimeState::session_closed_here(std::uint32_t session_id) {
    const auto found = sessions_.find(session_id);
    if (found == sessions_.end() || found->second.end == nullptr) {
        return true;
    }
    SessionSlot& session = found->second;
    WorkerSlot& worker = *workers_[session.worker];
    if (!worker.proxy->answered(*session.remove_command)) {
        return false;
    }
    worker.sessions[session.index] = 0;
    session.figures = session.end->figures();
    session.end.reset();
    return true;
}

// Called after the workers have ended. Ends a session that could not be closed before, for example because a provider
// did not destroy a queue pair.
void RuntimeState::end_session_here(SessionSlot& session) noexcept {
    if (session.end == nullptr) {
        return;
    }
    session.end->detach();
    session.end.reset();
}

void RuntimeState::close_session(std::uint32_t session_id) noexcept {
    try {
        executor_->run([&] { return close_session_here(session_id, platform->now() + config.drain_timeout); },
                       Executor::Patience::unlimited);
    } catch (const std::exception& error) {
        log_error("closing session {}: {}", session_id, error.what());
    }
}

void RuntimeState::release_session(std::uint32_t session_id) noexcept {
    try {
        executor_->run(
            [&] {
                const auto found = sessions_.find(session_id);
                // If the worker has not released the session, it may still write to the session's rings. Then the
                // memory stays.
                if (found != sessions_.end() && found->second.end == nullptr) {
                    sessions_.erase(found);
                }
            },
            Executor::Patience::unlimited);
    } catch (const std::exception& error) {
        log_error("releasing session {}: {}", session_id, error.what());
    }
}

}  // namespace pollcore
