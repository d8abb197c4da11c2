#include "session/admission.hpp"

namespace pollcore {

[[gnu::noinline]] void SessionCore::refresh_room() noexcept {
    inbox_.give_back();
    accounts_.refresh();
}

/// Begins to count a new life of a queue pair, with the same generation as an old life. The old life has no request in
/// flight. Returns false as long as the ring may have completions of the old life.
[[gnu::cold, gnu::noinline]] bool SessionCore::begin_epoch(QpAccount& account, std::uint16_t epoch) noexcept {
    if ((account.sends() != 0 || account.recvs() != 0) && (inbox_.ready() || inbox_.awaits_reply())) {
        return false;
    }
    account.begin_epoch(epoch);
    return true;
}

/// Refuses a request to a queue pair on which the worker has made no report to this session.
[[gnu::noinline]] Refusal SessionCore::refuse_unknown(QpHandle qp) const noexcept {
    return host_->has_queue_pair(qp) ? Refusal::no_share : Refusal::stale_handle;
}

[[gnu::noinline]] Refusal SessionCore::admit_without_sge(const WorkRequest& request, std::size_t ahead) noexcept {
    if (request.num_sge > 1) {
        return Refusal::too_many_sges;
    }
    if (request.sge.length != 0 && !is_local(request.opcode)) {  // a bind has its operands in the place of `sge`
        return Refusal::no_sge;
    }
    return admit(request, 0, 0, 0, 1, ahead);
}

[[gnu::noinline]] Refusal SessionCore::admit_shared(const WorkRequest& request, std::uint32_t num_sge,
                                                    std::uint32_t slots, std::size_t ahead) noexcept {
    const SrqHandle handle = request.srq;
    if (handle.index >= kSrqsMax || !handle.valid()) {
        return Refusal::stale_handle;
    }
    const auto srq = SrqStatusWord::unpack(accounts_.srq_status(handle.index));
    if (srq.generation != handle.generation) {
        return Refusal::stale_handle;
    }
    if (num_sge > srq.sges_max || slots > submissions_.capacity()) {
        return Refusal::too_many_sges;
    }
    if (request.flags != 0) {
        return Refusal::bad_flags;
    }
    if (srq.depth == 0) {
        return Refusal::not_receiver;
    }
    if (accounts_.shared_recvs(handle) >= srq.depth) {
        return Refusal::srq_full;
    }
    return admit_slots(slots, ahead);
}

}  // namespace pollcore
