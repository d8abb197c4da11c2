// Gives buffers back to receive pools.
#include "session/admission.hpp"

namespace pollcore {

// Successive buffers of the same pool share a slot of the submission ring.
[[gnu::always_inline]] inline Submitted SessionCore::release(std::span<const Completion> completions) noexcept {
    Submitted result;
    if ((attention_ & kUnusable) != 0) {
        result.refusal = Refusal::session_closed;
        return result;
    }
    std::size_t slots = 0;
    // First tell the worker which slots of the completion ring are free: the message of a released buffer may need one.
    inbox_.give_back();
    while (result.accepted < completions.size()) {
        if (!completions[result.accepted].pooled()) {
            ++result.accepted;
            continue;
        }
        if (reserve_slots(slots + 1) < slots + 1) {
            wants_slots_ = true;
            count_refused(Refusal::submission_ring_full);
            result.refusal = Refusal::submission_ring_full;
            break;
        }
        ReleaseRequest request{.pool = completions[result.accepted].pool()};
        for (; result.accepted < completions.size() && request.count < ReleaseRequest::kBuffers; ++result.accepted) {
            const Completion& completion = completions[result.accepted];
            if (completion.pooled() && completion.pool() == request.pool) {
                request.buffers[request.count++] = completion.buffer();
            } else if (completion.pooled()) {
                break;
            }
        }
        submissions_.write(slots++, std::bit_cast<WorkRequest>(request));
    }
    if (slots > 0) {
        submissions_.commit(slots);
        submitted();
    }
    return result;
}

Submitted Session::release(std::span<const Completion> completions) noexcept {
    if (core_ == nullptr) [[unlikely]] {
        return without_session(completions.size());
    }
    core_->check_thread(user_.thread);
    return core_->release(completions);
}

}  // namespace pollcore
