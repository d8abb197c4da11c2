// Taking the completions of a completion queue. All of it is inlined into the polls, because a program that waits for
// each completion pays for each call.
//
// Thread safety: the caller has the lock of the completion queue.
#pragma once

#include <algorithm>
#include <cstddef>
#include <new>
#include <span>

#include "served_objects.hpp"

namespace pollcore::served {

inline constexpr std::size_t kBurst = 32;  // most completions that are taken from a session at once

/// Makes room in Cq::taken for another burst. Throws std::bad_alloc.
void make_room(Cq& cq);

/// Moves what the session has into `taken`, behind what is there. Returns whether there was anything.
[[gnu::always_inline]] inline bool take_more(Cq& cq, std::size_t most) {
    if (!cq.session.valid()) {
        return false;
    }
    if (cq.next == cq.count) {
        cq.next = cq.count = 0;
    }
    if (cq.taken.size() - cq.count < kBurst) [[unlikely]] {
        make_room(cq);
    }
    cq.session.hand_over();
    const std::size_t got = cq.session.poll(std::span(cq.taken.data() + cq.count, std::min(most, kBurst)));
    cq.count += got;
    cq.taken_ever += got;
    return got != 0;
}

/// `completion` is null if there is none.
struct Found {
    const WideCompletion* completion = nullptr;
    Qp* qp = nullptr;
};

/// Returns the next completion that belongs to a queue pair which was not destroyed or reset since, and that queue
/// pair. It is valid until the next call. `wanted`: how many the caller can take.
[[nodiscard]] [[gnu::always_inline]] inline Found next_completion(Cq& cq, std::size_t wanted) noexcept {
    for (;;) {
        if (cq.next == cq.count) {
            try {
                if (!take_more(cq, wanted)) {
                    return {};
                }
            } catch (const std::bad_alloc&) {
                return {};
            }
        }
        const WideCompletion& completion = cq.taken[cq.next++];
        Qp* const qp = queue_pairs().find(completion.qp);
        // A completion of a dead daemon may name a handle that its successor has given out again.
        if (qp != nullptr && (qp->send_cq == &cq || qp->recv_cq == &cq)) {
            return {&completion, qp};
        }
    }
}

}  // namespace pollcore::served
