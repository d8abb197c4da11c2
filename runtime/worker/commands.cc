// What the control thread asks of a worker.
#include <algorithm>
#include <new>

#include "base/event_fd.hpp"
#include "worker/worker.hpp"

namespace pollcore {
namespace {

// Commands are rare and may be slow; few per step keep a step short (I10).
constexpr std::size_t kCommandsPerStep = 4;

// Requests of a ring in a step, for a search: what a process may have in its ring is no measure for how long a step takes.
constexpr std::uint32_t kSlotsToLookAt = 64;

// Sessions, queue pairs and shared receive queues in a step that a search passes by.
constexpr std::uint32_t kPassedInStep = 64;

// Search::whose
constexpr std::uint64_t kOfSession = std::uint64_t{1} << 32;
constexpr std::uint64_t kOfQp = std::uint64_t{2} << 32;

template <class T>
void make_place(OwnLines<T>& table, std::uint32_t index) {
    if (table.size() <= index) {
        table.resize(index + 1, T{});
    }
}

template <class T>
void place(OwnLines<T>& table, std::uint32_t index, const T& value) {
    make_place(table, index);
    table[index] = value;
}

/// The next that there is at or behind `from`, which moves past it; null when there is none.
template <class T>
T* next_of(const OwnLines<T*>& table, std::uint32_t& from) {
    while (from < table.size()) {
        if (T* value = table[from++]; value != nullptr) {
            return value;
        }
    }
    return nullptr;
}

}  // namespace

std::uint32_t Worker::run_commands() noexcept {
    std::uint32_t work = 0;
    if (commands_.ready()) [[unlikely]] {
        const std::size_t n = commands_.peek(kCommandsPerStep);
        std::uint32_t done = 0;
        while (done < n && turn_.answers.room()) {
            run(commands_.slot(done++));
        }
        commands_.release(done);
        commands_.publish();
        turn_.counters.commands.add(done);
        work += done;
    }
    for (std::size_t i = 0; i < closing_.size() && turn_.answers.room(); ++i) {
        remove_if_drained(*closing_[i]);
    }
    if (search_.command != 0 && turn_.answers.room()) [[unlikely]] {
        work += search();
    }
    if (turn_.answers.behind()) [[unlikely]] {
        turn_.answers.catch_up();
    }
    return work;
}

[[gnu::cold]] void Worker::run(const Command& command) noexcept {
    try {
        carry_out(command);
    } catch (const std::bad_alloc&) {
        turn_.answers.answer(command.id, AnswerKind::no_memory);
    }
}

void Worker::carry_out(const Command& command) {
    switch (command.kind) {
        case CommandKind::add_session:
            add_session(*command.session, command.index);
            break;
        case CommandKind::remove_session: {
            WorkerSession& session = *sessions_[command.index];
            session.begin_closing(command.id, turn_.number(), command.abandoned);
            closing_.push_back(&session);
            return;
        }
        case CommandKind::add_cq:
            add_cq(*command.cq, command.index);
            break;
        case CommandKind::remove_cq:
            (void)take_events();  // its own too: none is taken once whoever destroys it looks
            std::erase(polled_cqs_, cqs_[command.index]);
            acknowledge(*cqs_[command.index]);
            cqs_[command.index] = nullptr;
            turn_.answers.withdraw(AnswerKind::cq_failed, command.index);
            break;
        case CommandKind::lose_cq:
            (void)take_events();
            acknowledge(*cqs_[command.index]);
            cqs_[command.index]->failed = true;
            break;
        case CommandKind::add_qp:
            make_room(*command.qp);
            if (!command.only_room) {
                add_qp(*command.qp);
            }
            break;
        case CommandKind::park_qp: {
            WorkerQp& qp = *qps_[command.index];
            ++qp.parked;
            choose_way(qp);
            ++cqs_[qp.send_cq]->parked;
            ++cqs_[qp.recv_cq]->parked;
            break;
        }
        case CommandKind::unpark_qp: {
            WorkerQp& qp = *qps_[command.index];
            --qp.parked;
            --cqs_[qp.send_cq]->parked;
            --cqs_[qp.recv_cq]->parked;
            if (command.state == QpState::error) {
                fail(qp, command.cause, !command.device_lags);
                if (!command.device_lags) {
                    device_follows(qp);
                }
            } else if (qp.state != QpState::error && qp.state != command.state) {
                qp.state = command.state;
                publish_record(qp);
            }
            choose_way(qp);
            if (qp.state == QpState::error) {
                due(qp);  // its marker was put off
            }
            if (qp.pool.pool != nullptr && qp.state != QpState::error) {
                list(qp.pool);  // in INIT it takes receives for the first time
            }
            break;
        }
        case CommandKind::retire_qp: return begin(*qps_[command.index], WorkerQp::Phase::retiring, command);
        case CommandKind::forget_qp: return begin(*qps_[command.index], WorkerQp::Phase::forgetting, command);
        case CommandKind::renew_qp: return begin(*qps_[command.index], WorkerQp::Phase::renewing, command);
        case CommandKind::lose_qp: return begin(*qps_[command.index], WorkerQp::Phase::losing, command);
        case CommandKind::add_srq:
            add_srq(*command.srq);
            break;
        case CommandKind::retire_srq: {
            WorkerSrq& srq = *srqs_[command.index];
            srq.closing = true;
            srq.leftover_status = command.cause;
            publish_record(srq);
            break;
        }
        case CommandKind::lose_srq:
            srqs_[command.index]->srq = nullptr;
            complete_leftovers(*srqs_[command.index]);
            break;
        case CommandKind::forget_srq:
            complete_leftovers(*srqs_[command.index]);
            dismiss(srqs_[command.index]->pool);
            srqs_[command.index] = nullptr;
            break;
        case CommandKind::find_key:
            return begin(Search{.command = command.id,
                                .device = command.index,
                                .pd = command.pd,
                                .client = command.client,
                                .lkey = command.lkey,
                                .region = command.region_handle});
        case CommandKind::add_ah:
            make_place(ahs_, command.ah->handle.index);
            if (!command.only_room) {
                ahs_[command.ah->handle.index] = command.ah;
            }
            break;
        case CommandKind::find_ah:
            return begin(Search{.command = command.id, .pd = command.ah->pd, .client = command.ah->client, .ah = command.ah->handle});
        case CommandKind::remove_ah:
            if (!command.abandoned) {
                // What is still in a ring will be refused, so only what was posted counts.
                begin(Search{.command = command.id,
                             .pd = command.ah->pd,
                             .ah = command.ah->handle,
                             .next_session = static_cast<std::uint32_t>(sessions_.size())});
                ahs_[command.ah->handle.index] = nullptr;
                return;
            }
            ahs_[command.ah->handle.index] = nullptr;
            turn_.answers.answer(command.id, AnswerKind::not_found);
            return;
        case CommandKind::add_window:
            place(windows_, command.window->handle.index, command.window);
            break;
        case CommandKind::find_window:
            // It is unknown here when it could not be made anew. The window itself says whether binds of it are in flight.
            if (const WorkerWindow* window = find_window(command.window_handle); window != nullptr) {
                return begin(Search{.command = command.id,
                                    .pd = window->pd,
                                    .client = window->client,
                                    .window = command.window_handle,
                                    .next_srq = static_cast<std::uint32_t>(srqs_.size())});
            }
            turn_.answers.answer(command.id, AnswerKind::not_found);
            return;
        case CommandKind::remove_window:
            turn_.answers.answer(command.id, remove_window(command.window_handle) ? AnswerKind::done : AnswerKind::found);
            return;
        case CommandKind::add_region:
            make_place(regions_, command.region->handle.index);
            if (!command.only_room) {
                regions_[command.region->handle.index] = *command.region;
            }
            break;
        case CommandKind::add_pool:
            command.pool->session = sessions_[command.pool->session_index];
            place(pools_, command.pool->handle.index, command.pool);
            break;
        case CommandKind::remove_pool: {
            const WorkerPool& pool = *std::exchange(pools_[command.index], nullptr);
            turn_.answers.answer(command.id, AnswerKind::done, pool.session->completions_written());
            return;
        }
        case CommandKind::start_flow:
            start_flow(*qps_[command.index], command);
            break;
        case CommandKind::remove_region:
            turn_.answers.answer(command.id, remove_region(command.region_handle) ? AnswerKind::done : AnswerKind::found);
            return;
    }
    turn_.answers.answer(command.id, AnswerKind::done, command.index);
}

// What takes several steps, and is answered by advance().
void Worker::begin(WorkerQp& qp, WorkerQp::Phase phase, const Command& command) noexcept {
    qp.phase = phase;
    qp.command = command.id;
    qp.deadline = command.deadline;
    qp.timed_out = false;
    qp.quiet = command.quiet;
    qp.quiet_since = turn_.now();
    qp.next_life = command.life;
    qp.next_state = command.state;
    qp.waiting_empty = false;
    if (phase != WorkerQp::Phase::retiring) {
        --qp.parked;
        --cqs_[qp.send_cq]->parked;
        --cqs_[qp.recv_cq]->parked;
    }
    if (phase == WorkerQp::Phase::forgetting || phase == WorkerQp::Phase::losing) {
        qp.qp = nullptr;
    }
    if (phase == WorkerQp::Phase::forgetting && qp.leftover_status == Status::qp_closed) {
        qp.leftover_status = command.cause;
    }
    // Nothing more is posted, even where the provider did not take it to ERR.
    fail(qp, command.cause, !command.device_lags);
    if (!command.device_lags) {
        device_follows(qp);
    }
    due(qp);
}

void Worker::open_shares(WorkerQp& qp) noexcept {
    for (const ShareOptions& options : qp.shares) {
        sessions_[options.session]->open_share(qp, qp.handle, options.send_depth, options.recv_depth);
    }
}

/// Each session, CQ and queue pair, with the one that is added, may say unasked that it has failed.
void Worker::make_room_to_tell() { turn_.answers.make_room(polled_sessions_.size() + polled_cqs_.size() + qps_used_ + 1); }

void Worker::add_session(WorkerSession& session, std::uint32_t index) {
    const std::size_t sessions = polled_sessions_.size() + 1;
    make_place(sessions_, index);
    polled_sessions_.reserve(sessions);
    closing_.reserve(sessions);
    turn_.make_room_to_tell(sessions);
    make_room_to_tell();
    session.set_index(index);
    sessions_[index] = &session;
    polled_sessions_.push_back(&session);
}

void Worker::add_cq(WorkerCq& cq, std::uint32_t index) {
    make_place(cqs_, index);
    polled_cqs_.reserve(polled_cqs_.size() + 1);
    make_room_to_tell();
    cq.index = index;
    if (std::find(channels_.begin(), channels_.end(), cq.channel) == channels_.end()) {
        cq.channel = nullptr;  // it was given up
    }
    cqs_[index] = &cq;
    polled_cqs_.push_back(&cq);
}

void Worker::make_room(const WorkerQp& qp) {
    lives_.reserve(qps_used_ + 1);
    make_room_to_tell();
    to_fill_.reserve(takers_ + 2);
    if (qp.flow != nullptr) {
        flows_.reserve(flow_qps_ + 1);
        rings_.reserve(flow_qps_ + 1);
    }
    if (qp.srq != nullptr) {
        qp.srq->qps.make_room();  // of its creditors it has room for as many as there may be
    }
}

void Worker::add_qp(WorkerQp& qp) noexcept {
    qps_[qp.handle.index] = &qp;
    qp.send_end = &qp.send_head;
    choose_way(qp);
    cqs_[qp.recv_cq]->datagram_qps += qp.datagram;
    open_shares(qp);
    count_qps(1);
    if (qp.srq != nullptr) {
        qp.srq->qps.add(qp.qp_num, &qp);
    }
    qp.pool.qp = &qp;
    add_taker(qp.pool);
    qp.rendezvous.qp = &qp;
    add_taker(qp.rendezvous);
    if (qp.flow != nullptr) {
        ++flow_qps_;
        if (qp.srq != nullptr) {
            qp.srq->creditors.push_back(&qp);
            grant(*qp.srq, qp);
        }
    }
    publish_record(qp);
}

void Worker::add_taker(PoolTaker& taker) noexcept {
    takers_ += taker.pool != nullptr;
}

void Worker::add_srq(WorkerSrq& srq) {
    to_fill_.reserve(takers_ + 1);
    srqs_[srq.handle.index] = &srq;
    srq.session = sessions_[srq.session_index];
    srq.pool.srq = &srq;
    add_taker(srq.pool);
    publish_record(srq);
    if (srq.pool.pool != nullptr) {
        list(srq.pool);
    }
}

void Worker::remove_if_drained(WorkerSession& session) noexcept {
    if (!session.drained(turn_.number())) {
        return;
    }
    session.detach();
    turn_.forget_told(session);
    std::erase(polled_sessions_, &session);
    for (WorkerCq* cq : polled_cqs_) {
        if (cq->served == &session) {
            cq->served = nullptr;
        }
    }
    std::erase(closing_, &session);
    const std::uint32_t index = session.index();
    sessions_[index] = nullptr;
    turn_.answers.withdraw(AnswerKind::session_broken, index);
    turn_.answers.answer(session.closing_command(), AnswerKind::done, index);
}

void Worker::begin(const Search& search) {
    if (search_.command == 0) {
        search_ = search;
    } else {
        searches_.push_back(search);
    }
}

// A part of a ring, or some queue pairs or shared receive queues, per step. Requests move from rings to tables and never back,
// so looking at the rings first misses none that was submitted before the question. Searches take turns, and an attached process has one
// at a time: what one has in its rings is no measure for how long another's search takes.
std::uint32_t Worker::search() noexcept {
    const Looked looked = look_further();
    if (looked != Looked::more) {
        const bool found = looked == Looked::found || binds_use_it();
        turn_.answers.answer(std::exchange(search_.command, 0), found ? AnswerKind::found : AnswerKind::not_found);
    }
    if (!searches_.empty()) {
        next_search_ %= searches_.size();
        std::swap(search_, searches_[next_search_]);
        if (searches_[next_search_].command != 0) {
            ++next_search_;
        } else {
            searches_[next_search_] = searches_.back();
            searches_.pop_back();
        }
    }
    return 1;
}

Worker::Looked Worker::look_further() noexcept {
    // What has nothing to do with the search costs little, so several are passed in a step.
    for (std::uint32_t passed = 0; passed < kPassedInStep; ++passed) {
        if (search_.next_session < sessions_.size()) {
            const WorkerSession* session = sessions_[search_.next_session];
            if (session == nullptr || !may_name_it(*session)) {
                ++search_.next_session;
                continue;
            }
            const Looked looked = look_through(kOfSession | session->options().id, session->submissions());
            search_.next_session += looked == Looked::over;
            return looked == Looked::found ? looked : Looked::more;
        }
        if (const WorkerQp* qp = next_of(qps_, search_.next_qp); qp != nullptr) {
            if (qp->pd != search_.pd) {
                continue;
            }
            const Looked looked = qp->flow == nullptr ? Looked::over : look_through(kOfQp | pack(qp->handle), qp->flow->waiting);
            search_.next_qp -= looked == Looked::more;
            return looked == Looked::found || (looked == Looked::over && has_in_flight(*qp)) ? Looked::found : Looked::more;
        }
        const WorkerSrq* srq = next_of(srqs_, search_.next_srq);
        if (srq == nullptr) {
            return Looked::over;
        }
        if (!search_.ah.valid() && concerns_search(srq)) {
            return srq->receives.uses_key(search_.lkey) ? Looked::found : Looked::more;
        }
    }
    return Looked::more;
}

// What is looked for, in a request of it that is posted, or announced. Binds are counted elsewhere.
bool Worker::has_in_flight(const WorkerQp& qp) const noexcept {
    if (search_.ah.valid()) {
        return qp.datagram && qp.pd == search_.pd && qp.sends.uses_ah(search_.ah);
    }
    if (search_.window.valid() || !concerns_search(&qp)) {
        return false;
    }
    return qp.sends.uses_key(search_.lkey) || qp.recvs.uses_key(search_.lkey) ||
           (qp.flow != nullptr && qp.flow->announced.arrived() && qp.flow->announced.lkey == search_.lkey);
}

// Of the binds in flight.
bool Worker::binds_use_it() noexcept {
    const WorkerWindow* window = find_window(search_.window);
    const WorkerRegion* region = find_region(search_.region);
    return (window != nullptr && window->binds != 0) || (region != nullptr && region->binds != 0);
}

// By a handle. What names a thing of another protection domain will be refused: it does not keep the thing from ending, or one
// process could keep another's.
bool Worker::names_it(const WorkRequest& request) noexcept {
    if (request.opcode == Opcode::release || request.opcode == Opcode::srq_recv) {
        return false;
    }
    const WorkerQp* qp = find_qp(request.qp);
    if (qp == nullptr || qp->pd != search_.pd) {
        return false;
    }
    if (request.opcode == Opcode::bind_mw) {
        return (search_.window.valid() && request.bind.window() == search_.window) ||
               (search_.region.valid() && request.bind.region() == search_.region);
    }
    if (!search_.ah.valid() || is_recv(request.opcode)) {
        return false;
    }
    return qp->datagram && request.ud.ah() == search_.ah;
}

// A session's ring, or what waits for credit: so much of it in a step, and no more than stood there at the beginning. What is
// taken meanwhile will be found in the tables.
template <class Slots>
Worker::Looked Worker::look_through(std::uint64_t whose, const Slots& slots) noexcept {
    if (search_.whose != whose) {
        search_.whose = whose;
        search_.slot = slots.released();
        search_.slots_end = search_.slot + slots.capacity();
    }
    for (std::uint32_t n = 0; n < kSlotsToLookAt; ++n) {
        search_.slot = std::max(search_.slot, slots.released());
        const std::size_t i = search_.slot - slots.released();
        if (search_.slot >= search_.slots_end || !slots.ready(i)) {
            search_.whose = 0;
            return Looked::over;
        }
        const WorkRequest request = slots.copy(i);
        if (names_it(request) || names_key(request, slots, i)) {
            return Looked::found;
        }
        search_.slot += slots_of(request);
    }
    return Looked::more;
}

// With the continuations behind it.
template <class Slots>
bool Worker::names_key(const WorkRequest& request, const Slots& slots, std::size_t at) noexcept {
    const bool is_inline = !is_recv(request.opcode) && (request.flags & kInline) != 0;
    if (search_.ah.valid() || search_.window.valid() || is_inline ||
        !(request.opcode == Opcode::srq_recv ? concerns_search(find_srq(request.srq)) : concerns_search(find_qp(request.qp)))) {
        return false;
    }
    const std::uint32_t num_sge = std::min<std::uint32_t>(request.num_sge, kSgesMax);
    if (num_sge > 0 && request.sge.lkey == search_.lkey) {
        return true;
    }
    for (std::uint32_t next = 1; next < num_sge && slots.ready(++at);) {
        const auto more = std::bit_cast<WorkRequestContinuation>(slots.copy(at));
        const auto sges = std::bit_cast<std::array<Sge, WorkRequestContinuation::kSges>>(
            *reinterpret_cast<const std::array<std::byte, sizeof(Sge) * WorkRequestContinuation::kSges>*>(more.payload.data()));
        for (std::size_t k = 0; k < sges.size() && next < num_sge; ++k, ++next) {
            if (sges[k].lkey == search_.lkey) {
                return true;
            }
        }
    }
    return false;
}

}  // namespace pollcore
