#include "worker/worker_proxy.hpp"

#include <algorithm>
#include <new>

#include <fmt/format.h>

#include "base/log.hpp"

namespace pollcore {

WorkerProxy::WorkerProxy(Worker& worker, std::string name, ControlCounters& counters,
                         std::function<void(std::uint32_t)> wait, std::function<Clock::time_point()> now)
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

// If there is no memory for an unasked answer, the answer stays in the ring until there is memory.
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
            answered_.push_back(answer);  // allocates nothing: answered_ has as much room as awaited_
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

/// Returns the number of the next command. Somebody must take its answer or call ignore(). Allocates nothing, because
/// begin() always leaves room for the command of one call().
std::uint64_t WorkerProxy::await() noexcept {
    awaited_.push_back(next_id_);
    return next_id_++;
}

std::uint64_t WorkerProxy::begin(const command::Any& what) {
    if (commands_.reserve(kSlotsForCalls + 1) <= kSlotsForCalls) {
        counters_.command_ring_full.add();
        throw NoRoomForCommand(
            EAGAIN,
            fmt::format(
                "worker \"{}\" already has {} commands that it has not answered: it is stuck inside a provider's "
                "call, or another thread occupies its core",
                name_, kCommandSlots - kSlotsForCalls));
    }
    if (const std::size_t wanted = awaited_.size() + 2; wanted > awaited_.capacity()) {
        answered_.reserve(2 * wanted);
        awaited_.reserve(2 * wanted);
    }
    const std::uint64_t id = await();
    (void)commands_.try_push(Command{.id = id, .what = what});
    worker_.knock();
    return id;
}

std::optional<Answer> WorkerProxy::take_answer(std::uint64_t id) noexcept {
    drain_answers();
    const auto mine =
        std::find_if(answered_.begin(), answered_.end(), [&](const Answer& answer) { return answer.id == id; });
    if (mine == answered_.end()) {
        return std::nullopt;
    }
    const Answer answer = *mine;
    answered_.erase(mine);
    std::erase(awaited_, id);
    return answer;
}

Answer WorkerProxy::call(const command::Any& what, std::chrono::milliseconds usual) {
    const Command request{.id = await(), .what = what};
    auto warn_at = now_() + usual;
    std::uint32_t looks = 0;
    const auto wait = [&] {
        if (now_() > warn_at) {
            log_error(
                "worker \"{}\" has not answered command {} for {} ms: it is stuck inside a provider's call, or "
                "another thread occupies its core",
                name_, request.what.index(), usual.count());
            warn_at += usual;
        }
        wait_(looks++);
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
    call(command::AddSession{&session, index});
}
void WorkerProxy::remove_session(std::uint32_t index, bool abandoned) {
    call(command::RemoveSession{index, abandoned});
}
std::uint64_t WorkerProxy::begin_removing_session(std::uint32_t index, bool abandoned) {
    return begin(command::RemoveSession{index, abandoned});
}
void WorkerProxy::add_channel(CompletionChannel& channel) {
    call(command::AddChannel{&channel});
}
void WorkerProxy::remove_channel(CompletionChannel& channel) {
    call(command::RemoveChannel{&channel});
}
void WorkerProxy::add_cq(std::uint32_t index, WorkerCq& cq) {
    call(command::AddCq{&cq, index});
}
void WorkerProxy::remove_cq(std::uint32_t index) {
    call(command::RemoveCq{index});
}
void WorkerProxy::lose_cq(std::uint32_t index) {
    call(command::LoseCq{index});
}
void WorkerProxy::make_room(WorkerQp& qp) {
    call(command::AddQp{&qp, true});
}
void WorkerProxy::make_room(const BindableRegion& region) {
    call(command::AddRegion{&region, true});
}
void WorkerProxy::make_room(const WorkerAh& ah) {
    call(command::AddAh{&ah, true});
}
void WorkerProxy::add_qp(WorkerQp& qp) {
    call(command::AddQp{&qp, false});
}
void WorkerProxy::park(QpHandle qp) {
    call(command::ParkQp{qp.index});
}
void WorkerProxy::unpark(QpHandle qp, QpState state, Status cause, bool device_lags) {
    call(command::UnparkQp{qp.index, state, cause, device_lags});
}
bool WorkerProxy::retire(QpHandle qp, std::uint64_t deadline, std::chrono::milliseconds limit, std::uint32_t quiet) {
    const Answer answer = call(command::RetireQp{qp.index, quiet, deadline, false}, limit + kUsual);
    return answer.kind == AnswerKind::done;
}
std::uint64_t WorkerProxy::begin_retiring(QpHandle qp, std::uint64_t deadline, std::uint32_t quiet, bool device_lags) {
    return begin(command::RetireQp{qp.index, quiet, deadline, device_lags});
}
std::optional<bool> WorkerProxy::retired(std::uint64_t command) {
    const std::optional<Answer> answer = take_answer(command);
    return answer ? std::optional(answer->kind == AnswerKind::done) : std::nullopt;
}
void WorkerProxy::forget(QpHandle qp, Status leftovers) {
    call(command::ForgetQp{qp.index, leftovers});
}
void WorkerProxy::renew(QpHandle qp, std::uint32_t life, QpState state) {
    call(command::RenewQp{qp.index, life, state});
}
void WorkerProxy::lose(QpHandle qp) {
    call(command::LoseQp{qp.index});
}
void WorkerProxy::add_srq(WorkerSrq& srq) {
    call(command::AddSrq{&srq});
}
void WorkerProxy::retire(SrqHandle srq, Status leftovers) {
    call(command::RetireSrq{srq.index, leftovers});
}
void WorkerProxy::lose(SrqHandle srq) {
    call(command::LoseSrq{srq.index});
}
void WorkerProxy::forget(SrqHandle srq) {
    call(command::ForgetSrq{srq.index});
}
std::uint64_t WorkerProxy::begin_finding_key(std::uint32_t device, std::uint32_t pd, std::uint32_t lkey,
                                             MrHandle region, std::uint32_t client) {
    return begin(command::FindKey{device, pd, client, lkey, region});
}
std::uint64_t WorkerProxy::begin_finding_window(MwHandle window) {
    return begin(command::FindWindow{window});
}
std::uint64_t WorkerProxy::begin_finding_ah(const WorkerAh& ah) {
    return begin(command::FindAh{&ah});
}
std::uint64_t WorkerProxy::begin_removing_ah(const WorkerAh& ah) {
    return begin(command::RemoveAh{&ah, false});
}
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

void WorkerProxy::add_window(WorkerWindow& window) {
    call(command::AddWindow{&window});
}
bool WorkerProxy::remove_window(MwHandle window) {
    return call(command::RemoveWindow{window}).kind == AnswerKind::done;
}
void WorkerProxy::add_region(const BindableRegion& region) {
    call(command::AddRegion{&region, false});
}
bool WorkerProxy::remove_region(MrHandle region) {
    return call(command::RemoveRegion{region}).kind == AnswerKind::done;
}

void WorkerProxy::start_flow(QpHandle qp, const FlowStart& how) {
    call(command::StartFlow{qp.index, how});
}

void WorkerProxy::add_pool(WorkerPool& pool) {
    call(command::AddPool{&pool});
}
std::uint32_t WorkerProxy::remove_pool(PoolHandle pool) {
    return call(command::RemovePool{pool.index}).index;
}

void WorkerProxy::add_ah(const WorkerAh& ah) {
    call(command::AddAh{&ah, false});
}
void WorkerProxy::forget(const WorkerAh& ah) {
    call(command::RemoveAh{&ah, true});
}

std::vector<Answer> WorkerProxy::take_unasked() {
    drain_answers();
    std::vector<Answer> said;
    if (!unasked_.empty()) {
        said.reserve(kAnswersUsual);  // if this throws, the reports stay in unasked_, and the next call returns them
        said.swap(unasked_);
    }
    return said;
}

}  // namespace pollcore
