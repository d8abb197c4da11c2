// Carries out the control thread's commands. The functions here find the object that a command names, call the object,
// and answer.
#include <algorithm>
#include <new>

#include "worker/worker.hpp"

namespace pollcore {
namespace {

// Commands are rare and may be slow. A small number per step keeps steps short (I10).
constexpr std::size_t kCommandsPerStep = 4;

}  // namespace

std::uint32_t Worker::run_commands() noexcept {
    std::uint32_t work = 0;
    if (commands_.ready()) [[unlikely]] {
        const std::size_t n = commands_.peek(kCommandsPerStep);
        std::uint32_t done = 0;
        while (done < n && turn_.answers.room()) {
            turn_.counters.commands.add();  // first, so that the count has every command that was answered
            run(commands_.slot(done++));
        }
        commands_.release(done);
        commands_.publish();
        work += done;
    }
    for (std::size_t i = 0; i < closing_.size() && turn_.answers.room(); ++i) {
        if (closing_[i]->drained(turn_.number())) {
            remove(*closing_[i]);
        }
    }
    if (!in_use_.idle() && turn_.answers.room()) [[unlikely]] {
        if (const std::optional<InUse::Answer> answer = in_use_.turn()) {
            turn_.answers.answer(answer->command, answer->found ? AnswerKind::found : AnswerKind::not_found);
        }
        ++work;
    }
    if (turn_.answers.behind()) [[unlikely]] {
        turn_.answers.catch_up();
    }
    return work;
}

[[gnu::cold]] void Worker::run(const Command& command) noexcept {
    try {
        const Result result = std::visit([&](const auto& what) { return carry_out(command.id, what); }, command.what);
        if (result) {
            turn_.answers.answer(command.id, result->kind, result->index);
        }
    } catch (const std::bad_alloc&) {
        turn_.answers.answer(command.id, AnswerKind::no_memory);
    }
}

/// Makes room for one failure report of each session, CQ and queue pair, and of the object that is being added.
void Worker::make_room_to_tell() {
    turn_.answers.make_room(tables_.polled_sessions().size() + tables_.polled_cqs().size() + tables_.qps_used() + 1);
}

// ---- Sessions ----

Worker::Result Worker::carry_out(std::uint64_t, const command::AddSession& what) {
    const std::size_t sessions = tables_.polled_sessions().size() + 1;
    closing_.reserve(sessions);
    turn_.make_room_to_tell(sessions);
    make_room_to_tell();
    tables_.add(*what.session, what.index);
    what.session->set_index(what.index);
    return Answered{};
}

Worker::Result Worker::carry_out(std::uint64_t id, const command::RemoveSession& what) {
    WorkerSession& session = *tables_.sessions().at(what.index);
    session.begin_closing(id, turn_.number(), what.abandoned);
    closing_.push_back(&session);
    return std::nullopt;
}

void Worker::remove(WorkerSession& session) noexcept {
    session.detach();
    turn_.forget_told(session);
    for (WorkerCq* cq : tables_.polled_cqs()) {
        cq->forget(session);
    }
    std::erase(closing_, &session);
    const std::uint32_t index = session.index();
    tables_.remove(session);
    turn_.answers.withdraw(AnswerKind::session_broken, index);
    turn_.answers.answer(session.closing_command(), AnswerKind::done, index);
}

// ---- Channels and CQs ----

Worker::Result Worker::carry_out(std::uint64_t, const command::AddChannel& what) {
    sleeper_.add(*what.channel);
    return Answered{};
}

Worker::Result Worker::carry_out(std::uint64_t, const command::RemoveChannel& what) {
    sleeper_.remove(*what.channel);
    return Answered{};
}

Worker::Result Worker::carry_out(std::uint64_t, const command::AddCq& what) {
    make_room_to_tell();
    tables_.add(*what.cq, what.index);
    what.cq->set_index(what.index);
    if (!sleeper_.has(what.cq->options().channel)) {
        what.cq->leave_channel();  // the worker does not use this channel any more
    }
    return Answered{};
}

Worker::Result Worker::carry_out(std::uint64_t, const command::RemoveCq& what) {
    WorkerCq& cq = *tables_.cqs().at(what.index);
    // takes all pending events, because no event of this CQ may be taken while the CQ is being destroyed
    (void)sleeper_.take_events();
    sleeper_.acknowledge(cq);
    tables_.remove(cq);
    turn_.answers.withdraw(AnswerKind::cq_failed, what.index);
    return Answered{};
}

Worker::Result Worker::carry_out(std::uint64_t, const command::LoseCq& what) {
    WorkerCq& cq = *tables_.cqs().at(what.index);
    (void)sleeper_.take_events();
    sleeper_.acknowledge(cq);
    cq.fail();
    return Answered{};
}

// ---- Queue pairs ----

Worker::Result Worker::carry_out(std::uint64_t, const command::AddQp& what) {
    WorkerQp& qp = *what.qp;
    const std::size_t qps = tables_.qps_used() + 1;
    turn_.lives.make_room(qps);
    make_room_to_tell();
    turn_.refills.make_room(tables_.recv_queues() + 1);
    turn_.flows.make_room(qps);
    turn_.rings.make_room(qps);
    if (qp.srq() != nullptr) {
        qp.srq()->make_room();
    }
    if (!what.only_room) {
        tables_.add(qp);
        qp.add(turn_, tables_.sessions().all(), *tables_.cqs().at(qp.options().send_cq),
               *tables_.cqs().at(qp.options().recv_cq));
    }
    return Answered{};
}

Worker::Result Worker::carry_out(std::uint64_t, const command::ParkQp& what) {
    tables_.qps().at(what.index)->park();
    return Answered{};
}

Worker::Result Worker::carry_out(std::uint64_t, const command::UnparkQp& what) {
    tables_.qps().at(what.index)->unpark(turn_, what.state, what.cause, what.device_lags);
    return Answered{};
}

Worker::Result Worker::leave(std::uint32_t index, const WorkerQp::Leave& how) noexcept {
    tables_.qps().at(index)->leave(turn_, how);
    return std::nullopt;
}

Worker::Result Worker::carry_out(std::uint64_t id, const command::RetireQp& what) {
    return leave(what.index, {.way = WorkerQp::Leaving::retire,
                              .command = id,
                              .device_lags = what.device_lags,
                              .deadline = what.deadline,
                              .quiet = what.quiet});
}

Worker::Result Worker::carry_out(std::uint64_t id, const command::ForgetQp& what) {
    return leave(what.index, {.way = WorkerQp::Leaving::forget, .command = id, .cause = what.leftovers});
}

Worker::Result Worker::carry_out(std::uint64_t id, const command::RenewQp& what) {
    return leave(what.index, {.way = WorkerQp::Leaving::renew, .command = id, .life = what.life, .state = what.state});
}

Worker::Result Worker::carry_out(std::uint64_t id, const command::LoseQp& what) {
    return leave(what.index, {.way = WorkerQp::Leaving::lose, .command = id, .cause = Status::device_removed});
}

Worker::Result Worker::carry_out(std::uint64_t, const command::StartFlow& what) {
    tables_.qps().at(what.index)->start_flow(turn_, what.how);
    return Answered{};
}

// ---- Shared receive queues and pools ----

Worker::Result Worker::carry_out(std::uint64_t, const command::AddSrq& what) {
    WorkerSrq& srq = *what.srq;
    turn_.refills.make_room(tables_.recv_queues() + 1);
    tables_.add(srq);
    srq.add(turn_, *tables_.sessions().at(srq.options().session));
    return Answered{};
}

Worker::Result Worker::carry_out(std::uint64_t, const command::RetireSrq& what) {
    tables_.srqs().at(what.index)->retire(what.leftovers);
    return Answered{};
}

Worker::Result Worker::carry_out(std::uint64_t, const command::LoseSrq& what) {
    tables_.srqs().at(what.index)->complete_leftovers(turn_);
    return Answered{};
}

Worker::Result Worker::carry_out(std::uint64_t, const command::ForgetSrq& what) {
    WorkerSrq& srq = *tables_.srqs().at(what.index);
    srq.complete_leftovers(turn_);
    srq.recvs().dismiss(turn_);
    tables_.remove(srq);
    return Answered{};
}

Worker::Result Worker::carry_out(std::uint64_t, const command::AddPool& what) {
    WorkerPool& pool = *what.pool;
    pool.set_session(*tables_.sessions().at(pool.session_index()));
    tables_.add(pool);
    return Answered{};
}

Worker::Result Worker::carry_out(std::uint64_t, const command::RemovePool& what) {
    const WorkerPool& pool = *tables_.pools().at(what.index);
    tables_.remove(pool);
    return Answered{AnswerKind::done, pool.session().completions_written()};
}

// ---- Address handles, windows, regions ----

Worker::Result Worker::carry_out(std::uint64_t, const command::AddAh& what) {
    tables_.make_room_for_ah(what.ah->handle.index);
    if (!what.only_room) {
        tables_.add(*what.ah);
    }
    return Answered{};
}

Worker::Result Worker::carry_out(std::uint64_t id, const command::RemoveAh& what) {
    if (!what.unused) {
        in_use_.ask({.command = id, .pd = what.ah->pd, .ah = what.ah->handle, .skip_rings = true});
    }
    tables_.remove(*what.ah);
    return what.unused ? Result(Answered{AnswerKind::not_found}) : std::nullopt;
}

Worker::Result Worker::carry_out(std::uint64_t, const command::AddWindow& what) {
    turn_.binds.add(*what.window);
    return Answered{};
}

Worker::Result Worker::carry_out(std::uint64_t, const command::RemoveWindow& what) {
    return Answered{turn_.binds.remove(what.window) ? AnswerKind::done : AnswerKind::found};
}

Worker::Result Worker::carry_out(std::uint64_t, const command::AddRegion& what) {
    turn_.binds.make_room(what.region->handle);
    if (!what.only_room) {
        turn_.binds.add(*what.region);
    }
    return Answered{};
}

Worker::Result Worker::carry_out(std::uint64_t, const command::RemoveRegion& what) {
    return Answered{turn_.binds.remove(what.region) ? AnswerKind::done : AnswerKind::found};
}

// ---- Searches ----

Worker::Result Worker::carry_out(std::uint64_t id, const command::FindKey& what) {
    in_use_.ask({.command = id,
                 .device = what.device,
                 .pd = what.pd,
                 .client = what.client,
                 .lkey = what.lkey,
                 .region = what.region});
    return std::nullopt;
}

Worker::Result Worker::carry_out(std::uint64_t id, const command::FindAh& what) {
    in_use_.ask({.command = id, .pd = what.ah->pd, .client = what.ah->client, .ah = what.ah->handle});
    return std::nullopt;
}

Worker::Result Worker::carry_out(std::uint64_t id, const command::FindWindow& what) {
    // The worker does not have the window if the control thread could not create it again.
    const WorkerWindow* window = turn_.binds.find(what.window);
    if (window == nullptr) {
        return Answered{AnswerKind::not_found};
    }
    in_use_.ask({.command = id, .pd = window->options().pd, .client = window->options().client, .window = what.window});
    return std::nullopt;
}

}  // namespace pollcore
