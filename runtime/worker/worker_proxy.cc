#include "worker/worker_proxy.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <new>

#include "base/log.hpp"

namespace pollcore {

WorkerProxy::WorkerProxy(Worker& worker, std::string name, ControlCounters& counters, std::function<void()> wait,
                         std::function<Clock::time_point()> now)
    : worker_(worker),
      name_(std::move(name)),
      counters_(counters),
      wait_(std::move(wait)),
      now_(std::move(now)),
      commands_(worker.command_memory(), kCommandSlots),
      answers_(worker.answer_memory(), kAnswerSlots) {
    awaited_.reserve(kAnswersUsual);
    answered_.reserve(kAnswersUsual);
    unasked_.reserve(kAnswersUsual);
}

// What is unasked and has no memory stays in the ring until there is some.
void WorkerProxy::drain_answers() noexcept {
    const std::size_t n = answers_.peek(kAnswerSlots);
    std::size_t taken = 0;
    while (taken < n && keep(answers_.slot(taken))) {
        ++taken;
    }
    answers_.release(taken);
    answers_.publish();
}

bool WorkerProxy::keep(const Answer& answer) noexcept {
    if (answer.id != 0) {
        if (std::binary_search(awaited_.begin(), awaited_.end(), answer.id)) {
            answered_.push_back(answer);  // it has as much room as awaited_
        } else {
            counters_.answers_untaken.add();
        }
        return true;
    }
    try {
        unasked_.push_back(answer);
        return true;
    } catch (const std::bad_alloc&) {
        return false;
    }
}

/// The number of the next command, whose answer somebody will take, or ignore. Allocates nothing: what is begun leaves room for one call.
std::uint64_t WorkerProxy::await() noexcept {
    awaited_.push_back(next_id_);
    return next_id_++;
}

std::uint64_t WorkerProxy::begin(Command command) {
    if (commands_.reserve(kSlotsForCalls + 1) <= kSlotsForCalls) {
        counters_.command_ring_full.add();
        throw NoRoomForCommand(EAGAIN, fmt::format("worker \"{}\" has {} commands to come to already; it is stuck inside a provider's call, or "
                                                   "its core is taken",
                                                   name_, kCommandSlots - kSlotsForCalls));
    }
    if (const std::size_t wanted = awaited_.size() + 2; wanted > awaited_.capacity()) {
        answered_.reserve(2 * wanted);
        awaited_.reserve(2 * wanted);
    }
    command.id = await();
    (void)commands_.try_push(command);
    worker_.knock();
    return command.id;
}

std::optional<Answer> WorkerProxy::take_answer(std::uint64_t id) noexcept {
    drain_answers();
    const auto mine = std::find_if(answered_.begin(), answered_.end(), [&](const Answer& answer) { return answer.id == id; });
    if (mine == answered_.end()) {
        return std::nullopt;
    }
    const Answer answer = *mine;
    answered_.erase(mine);
    std::erase(awaited_, id);
    return answer;
}

Answer WorkerProxy::call(Command request, std::chrono::milliseconds usual) {
    request.id = await();
    auto warn_at = now_() + usual;
    const auto wait = [&] {
        if (now_() > warn_at) {
            log_error("worker \"{}\" has not answered command {} for {} ms: it is stuck inside a provider's call, or its "
                      "core is taken",
                      name_, static_cast<int>(request.kind), usual.count());
            warn_at += usual;
        }
        wait_();
    };
    while (!commands_.try_push(request)) {
        drain_answers();
        wait();
    }
    worker_.knock();
    for (;;) {
        if (const std::optional<Answer> answer = take_answer(request.id)) {
            if (answer->kind == AnswerKind::no_memory) {
                throw std::bad_alloc();
            }
            return *answer;
        }
        wait();
    }
}

void WorkerProxy::add_session(std::uint32_t index, WorkerSession& session) {
    call({.kind = CommandKind::add_session, .index = index, .session = &session});
}
void WorkerProxy::remove_session(std::uint32_t index, bool abandoned) {
    call({.kind = CommandKind::remove_session, .index = index, .abandoned = abandoned});
}
std::uint64_t WorkerProxy::begin_removing_session(std::uint32_t index, bool abandoned) {
    return begin({.kind = CommandKind::remove_session, .index = index, .abandoned = abandoned});
}
void WorkerProxy::add_cq(std::uint32_t index, WorkerCq& cq) {
    call({.kind = CommandKind::add_cq, .index = index, .cq = &cq});
}
void WorkerProxy::remove_cq(std::uint32_t index) { call({.kind = CommandKind::remove_cq, .index = index}); }
void WorkerProxy::lose_cq(std::uint32_t index) { call({.kind = CommandKind::lose_cq, .index = index}); }
void WorkerProxy::make_room(WorkerQp& qp) { call({.kind = CommandKind::add_qp, .qp = &qp, .only_room = true}); }
void WorkerProxy::make_room(const WorkerRegion& region) { call({.kind = CommandKind::add_region, .region = &region, .only_room = true}); }
void WorkerProxy::make_room(const WorkerAh& ah) { call({.kind = CommandKind::add_ah, .ah = &ah, .only_room = true}); }
void WorkerProxy::add_qp(WorkerQp& qp) { call({.kind = CommandKind::add_qp, .qp = &qp}); }
void WorkerProxy::park(QpHandle qp) { call({.kind = CommandKind::park_qp, .index = qp.index}); }
void WorkerProxy::unpark(QpHandle qp, QpState state, Status cause, bool device_lags) {
    call({.kind = CommandKind::unpark_qp, .state = state, .cause = cause, .index = qp.index, .device_lags = device_lags});
}
bool WorkerProxy::retire(QpHandle qp, std::uint64_t deadline, std::chrono::milliseconds limit, std::uint32_t quiet) {
    const Answer answer =
        call({.kind = CommandKind::retire_qp,
              .cause = Status::qp_closed,
              .index = qp.index,
              .quiet = quiet,
              .deadline = deadline},
             limit + kUsual);
    return answer.kind == AnswerKind::done;
}
std::uint64_t WorkerProxy::begin_retiring(QpHandle qp, std::uint64_t deadline, std::uint32_t quiet, bool device_lags) {
    return begin({.kind = CommandKind::retire_qp,
                  .cause = Status::qp_closed,
                  .index = qp.index,
                  .quiet = quiet,
                  .deadline = deadline,
                  .device_lags = device_lags});
}
std::optional<bool> WorkerProxy::retired(std::uint64_t command) {
    const std::optional<Answer> answer = take_answer(command);
    return answer ? std::optional(answer->kind == AnswerKind::done) : std::nullopt;
}
void WorkerProxy::forget(QpHandle qp, Status leftovers) {
    call({.kind = CommandKind::forget_qp, .cause = leftovers, .index = qp.index});
}
void WorkerProxy::renew(QpHandle qp, std::uint32_t life, QpState state) {
    call({.kind = CommandKind::renew_qp,
          .state = state,
          .cause = Status::qp_closed,
          .index = qp.index,
          .life = life});
}
void WorkerProxy::lose(QpHandle qp) {
    call({.kind = CommandKind::lose_qp, .cause = Status::device_removed, .index = qp.index});
}
void WorkerProxy::add_srq(WorkerSrq& srq) { call({.kind = CommandKind::add_srq, .srq = &srq}); }
void WorkerProxy::retire(SrqHandle srq, Status leftovers) {
    call({.kind = CommandKind::retire_srq, .cause = leftovers, .index = srq.index});
}
void WorkerProxy::lose(SrqHandle srq) { call({.kind = CommandKind::lose_srq, .index = srq.index}); }
void WorkerProxy::forget(SrqHandle srq) { call({.kind = CommandKind::forget_srq, .index = srq.index}); }
std::uint64_t WorkerProxy::begin_finding_key(std::uint32_t device, std::uint32_t pd, std::uint32_t lkey, MrHandle region,
                                             std::uint32_t client) {
    return begin({.kind = CommandKind::find_key, .index = device, .lkey = lkey, .region_handle = region, .pd = pd, .client = client});
}
std::uint64_t WorkerProxy::begin_finding_window(MwHandle window) {
    return begin({.kind = CommandKind::find_window, .window_handle = window});
}
std::uint64_t WorkerProxy::begin_finding_ah(const WorkerAh& ah) { return begin({.kind = CommandKind::find_ah, .ah = &ah}); }
std::uint64_t WorkerProxy::begin_removing_ah(const WorkerAh& ah) { return begin({.kind = CommandKind::remove_ah, .ah = &ah}); }
std::optional<bool> WorkerProxy::found(std::uint64_t search) {
    const std::optional<Answer> answer = take_answer(search);
    if (answer && answer->kind == AnswerKind::no_memory) {
        throw std::bad_alloc();
    }
    return answer ? std::optional(answer->kind == AnswerKind::found) : std::nullopt;
}
void WorkerProxy::ignore(std::uint64_t command) noexcept {
    std::erase(awaited_, command);
    counters_.answers_untaken.add(std::erase_if(answered_, [&](const Answer& answer) { return answer.id == command; }));
}

void WorkerProxy::add_window(WorkerWindow& window) { call({.kind = CommandKind::add_window, .window = &window}); }
bool WorkerProxy::remove_window(MwHandle window) {
    return call({.kind = CommandKind::remove_window, .window_handle = window}).kind == AnswerKind::done;
}
void WorkerProxy::add_region(const WorkerRegion& region) {
    call({.kind = CommandKind::add_region, .region = &region});
}
bool WorkerProxy::remove_region(MrHandle region) {
    return call({.kind = CommandKind::remove_region, .region_handle = region}).kind == AnswerKind::done;
}

void WorkerProxy::start_flow(QpHandle qp, const FlowBlock& peer, FlowPath path) {
    call({.kind = CommandKind::start_flow,
          .index = qp.index,
          .lkey = peer.rkey,
          .peer_addr = peer.addr,
          .in_order = path.in_order,
          .reads = path.reads,
          .readable = path.readable});
}

void WorkerProxy::add_pool(WorkerPool& pool) { call({.kind = CommandKind::add_pool, .pool = &pool}); }
std::uint32_t WorkerProxy::remove_pool(PoolHandle pool) {
    return call({.kind = CommandKind::remove_pool, .index = pool.index}).index;
}

void WorkerProxy::add_ah(const WorkerAh& ah) { call({.kind = CommandKind::add_ah, .ah = &ah}); }
void WorkerProxy::forget(const WorkerAh& ah) { call({.kind = CommandKind::remove_ah, .ah = &ah, .abandoned = true}); }

std::vector<Answer> WorkerProxy::take_unasked() {
    drain_answers();
    std::vector<Answer> said;
    if (!unasked_.empty()) {
        said.reserve(kAnswersUsual);  // where there is no memory for that, they are said later
        said.swap(unasked_);
    }
    return said;
}

}  // namespace pollcore
