// The completion of a work request that is completed without a device.
#pragma once

#include "pollcore/completion.hpp"
#include "pollcore/work_request.hpp"
#include "session/completion_opcode.hpp"

namespace pollcore {

[[nodiscard]] inline Completion refused_completion(const WorkRequest& request, Status status) noexcept {
    Completion completion{.tag = request.tag};
    completion.status = status;
    completion.opcode = completion_opcode(request.opcode);
    completion.flags = is_recv(request.opcode) ? kByRuntime | kFromRecvQueue : kByRuntime;
    // The session subtracts the request from the account of this queue.
    if (request.opcode == Opcode::srq_recv) {
        completion.srq = request.srq;
    } else {
        completion.qp = request.qp;
    }
    return completion;
}

}  // namespace pollcore
