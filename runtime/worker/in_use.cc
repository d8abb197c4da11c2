#include "worker/in_use.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <utility>

namespace pollcore {
namespace {

// A step looks at this many requests of a ring at most. The limit keeps steps short even if a ring is long.
constexpr std::uint32_t kSlotsToLookAt = 64;

// A step skips at most this many sessions, queue pairs and shared receive queues that do not concern the search.
constexpr std::uint32_t kPassedInStep = 64;

// Marks in Search::whose that distinguish a session from a queue pair.
constexpr std::uint64_t kOfSession = std::uint64_t{1} << 32;
constexpr std::uint64_t kOfQp = std::uint64_t{2} << 32;

}  // namespace

void InUse::ask(const Question& question) {
    Search search{.what = question};
    if (question.skip_rings) {
        search.next_session = static_cast<std::uint32_t>(tables_.sessions().size());
    }
    if (question.window.valid()) {
        search.next_srq = static_cast<std::uint32_t>(tables_.srqs().size());  // receives name no windows
    }
    if (idle()) {
        current_ = search;
    } else {
        others_.push_back(search);
    }
}

std::optional<InUse::Answer> InUse::turn() noexcept {
    std::optional<Answer> answer;
    if (const Looked looked = look_further(); looked != Looked::more) {
        // The search does not look at binds in flight, because turn_.binds counts them.
        const bool found = looked == Looked::found || turn_.binds.in_use(current_.what.window) ||
                           turn_.binds.in_use(current_.what.region);
        answer = Answer{std::exchange(current_.what.command, 0), found};
    }
    if (!others_.empty()) {
        next_other_ %= others_.size();
        std::swap(current_, others_[next_other_]);
        if (others_[next_other_].what.command != 0) {
            ++next_other_;
        } else {
            others_[next_other_] = others_.back();
            others_.pop_back();
        }
    }
    return answer;
}

bool InUse::may_name_it(const WorkerSession& session) const noexcept {
    const ClientShare* const client = session.options().client;
    return current_.what.client == (client != nullptr ? client->id() : 0);
}

InUse::Looked InUse::look_further() noexcept {
    // An object that does not concern the search costs little time, so a step skips several of them.
    for (std::uint32_t passed = 0; passed < kPassedInStep; ++passed) {
        if (current_.next_session < tables_.sessions().size()) {
            const WorkerSession* session = tables_.sessions().at(current_.next_session);
            if (session == nullptr || !may_name_it(*session)) {
                ++current_.next_session;
                continue;
            }
            const Looked looked = look_through(kOfSession | session->options().id, session->submissions());
            current_.next_session += looked == Looked::over;
            return looked == Looked::found ? looked : Looked::more;
        }
        if (const WorkerQp* qp = tables_.qps().next(current_.next_qp); qp != nullptr) {
            if (qp->pd() != current_.what.pd) {
                continue;
            }
            const Looked looked = look_through(kOfQp | bits_of(qp->handle()), qp->flow().waiting());
            current_.next_qp -= looked == Looked::more;
            return looked == Looked::found || (looked == Looked::over && has_in_flight(*qp)) ? Looked::found
                                                                                             : Looked::more;
        }
        const WorkerSrq* srq = tables_.srqs().next(current_.next_srq);
        if (srq == nullptr) {
            return Looked::over;
        }
        if (!current_.what.ah.valid() && concerns(srq)) {
            return srq->recvs().uses_key(current_.what.lkey) ? Looked::found : Looked::more;
        }
    }
    return Looked::more;
}

// Returns true if a posted or announced request of the queue pair uses the lkey or address handle. Binds are not
// searched, because turn_.binds counts them.
bool InUse::has_in_flight(const WorkerQp& qp) const noexcept {
    if (current_.what.ah.valid()) {
        return qp.datagram() && qp.sends().entries().uses_ah(current_.what.ah);
    }
    if (current_.what.window.valid() || !concerns(&qp)) {
        return false;
    }
    const std::uint32_t lkey = current_.what.lkey;
    return qp.sends().entries().uses_key(lkey) || qp.recvs().uses_key(lkey) || qp.flow().uses_key(lkey);
}

// Returns true if the request names the wanted object by a handle. A request whose queue pair has another protection
// domain does not count, because the worker will refuse it. If it counted, one process could keep the object of another
// process in use.
bool InUse::names_it(const WorkRequest& request) const noexcept {
    if (request.opcode == Opcode::release || request.opcode == Opcode::srq_recv) {
        return false;
    }
    const WorkerQp* qp = tables_.find(request.qp);
    if (qp == nullptr || qp->pd() != current_.what.pd) {
        return false;
    }
    if (request.opcode == Opcode::bind_mw) {
        return (current_.what.window.valid() && request.bind.window() == current_.what.window) ||
               (current_.what.region.valid() && request.bind.region() == current_.what.region);
    }
    if (!current_.what.ah.valid() || is_recv(request.opcode)) {
        return false;
    }
    return qp->datagram() && request.ud.ah() == current_.what.ah;
}

// Searches a session's ring, or the requests that wait for a flow control. It looks at kSlotsToLookAt requests in a
// step. It ends at the first empty slot, or after as many slots as the ring has. Requests that are taken meanwhile are
// found in the in-flight tables.
template <class Slots>
InUse::Looked InUse::look_through(std::uint64_t whose, const Slots& slots) noexcept {
    if (current_.whose != whose) {
        current_.whose = whose;
        current_.slot = slots.released();
        current_.slots_end = current_.slot + slots.capacity();
    }
    for (std::uint32_t n = 0; n < kSlotsToLookAt; ++n) {
        current_.slot = std::max(current_.slot, slots.released());
        const std::size_t i = current_.slot - slots.released();
        if (current_.slot >= current_.slots_end || !slots.ready(i)) {
            current_.whose = 0;
            return Looked::over;
        }
        const WorkRequest request = slots.copy(i);
        if (names_it(request) || names_key(request, slots, i)) {
            return Looked::found;
        }
        current_.slot += slots_of(request);
    }
    return Looked::more;
}

// Returns true if the request, or one of its continuations, names the lkey.
template <class Slots>
bool InUse::names_key(const WorkRequest& request, const Slots& slots, std::size_t at) const noexcept {
    const std::uint32_t lkey = current_.what.lkey;
    const bool is_inline = !is_recv(request.opcode) && (request.flags & kInline) != 0;
    if (current_.what.ah.valid() || current_.what.window.valid() || is_inline) {
        return false;
    }
    if (request.opcode == Opcode::srq_recv) {
        const WorkerSrq* srq = tables_.find(request.srq);
        if (!concerns(srq)) {
            return false;
        }
    } else if (!concerns(tables_.find(request.qp))) {
        return false;
    }
    const std::uint32_t num_sge = std::min<std::uint32_t>(request.num_sge, kSgesMax);
    if (num_sge > 0 && request.sge.lkey == lkey) {
        return true;
    }
    for (std::uint32_t next = 1; next < num_sge && slots.ready(++at);) {
        const auto more = std::bit_cast<WorkRequestContinuation>(slots.copy(at));
        const auto sges = std::bit_cast<std::array<Sge, WorkRequestContinuation::kSges>>(
            *reinterpret_cast<const std::array<std::byte, sizeof(Sge) * WorkRequestContinuation::kSges>*>(
                more.payload.data()));
        for (std::size_t k = 0; k < sges.size() && next < num_sge; ++k, ++next) {
            if (sges[k].lkey == lkey) {
                return true;
            }
        }
    }
    return false;
}

}  // namespace pollcore
