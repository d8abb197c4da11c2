// A provider that posts the work requests of a chain one by one and refuses some of them.
#pragma once

#include <cerrno>

namespace pollcore::testing {

/// Behaves like ibv_post_send(3) and the other post verbs. Calls `post` for each work request of the chain. Stops at
/// the first work request for which `refuse` is true or `post` fails.
template <class Queue, class Wr, class Refuse>
int post_each(int (*post)(Queue*, Wr*, Wr**), Queue* queue, Wr* chain, Wr** bad, Refuse refuse) {
    for (Wr* wr = chain; wr != nullptr; wr = wr->next) {
        Wr one = *wr;
        one.next = nullptr;
        const int error = refuse(*wr) ? ENOMEM : post(queue, &one, bad);
        if (error != 0) {
            *bad = wr;
            return error;
        }
    }
    return 0;
}

}  // namespace pollcore::testing
