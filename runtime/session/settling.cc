// Subtracts completed requests from a session's accounts: the rare cases.
#include "session/session_core.hpp"

namespace pollcore {

[[gnu::noinline]] void SessionCore::settle_other(const Completion& completion) noexcept {
    if (completion.pooled()) {
        accounts_.count_pooled();
        return;
    }
    if (const std::uint32_t in_flight = accounts_.shared_recvs(completion.srq); in_flight != 0 && logs()) {
        log_->srq(completion.srq.index % kSrqsMax).forget(completion.tag, in_flight);
    }
    accounts_.end_shared_recv(completion.srq);
}

/// Removes a failed request from the log. It may have been refused while earlier requests are still in flight.
[[gnu::noinline]] void SessionCore::settle_out_of_turn(const Completion& completion, std::uint32_t in_flight) noexcept {
    const std::uint16_t qp = completion.qp.index & static_cast<std::uint16_t>(accounts_.qps_mask());
    (completion.from_recv_queue() ? log_->recvs(qp) : log_->sends(qp)).forget(completion.tag, in_flight);
}

}  // namespace pollcore
