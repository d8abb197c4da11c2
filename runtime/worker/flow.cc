#include "worker/flow.hpp"

#include "worker/worker_qp.hpp"

namespace pollcore {

void Flow::keep(Turn& turn, WorkerSession& session, const WorkRequest& request, std::size_t slot) noexcept {
    waiting_.push(session, request, session.submissions(), slot);
    if (request.opcode == Opcode::bind_mw) {
        turn.binds.hold(request);
    }
    turn.flows.add(*this);
}

bool Flow::post_front(Turn& turn, const WorkRequest& request) noexcept {
    if (!turn.chains.room_for_any() || request.opcode == Opcode::bind_mw) {
        turn.chains.ring(turn);
        if (qp_.in_error()) {
            return false;
        }
    }
    if (request.opcode == Opcode::bind_mw) {
        turn.binds.let_go(request);
    }
    WorkerSession& session = waiting_.front_session();
    qp_.post(turn, session, session.share(qp_.handle().index), request, waiting_, 0, nullptr);
    waiting_.pop(slots_of(request));
    return true;
}

}  // namespace pollcore
