#include "hang_check.hpp"

#include <algorithm>

namespace pollcore::daemon {

HangCheck::Nanoseconds HangCheck::limit(const ThreadHealth& thread) const noexcept {
    return thread.kind == ThreadHealth::Kind::worker ? limits_.worker : limits_.other;
}

HangCheck::Findings HangCheck::check(const Health& health) {
    Findings findings;
    for (const ThreadHealth& thread : health.threads) {
        const bool busy = thread.state == ThreadHealth::State::working || thread.state == ThreadHealth::State::hangs;
        // If the limit is shorter than kHangsAfter, a hang is reported at the limit, when the feeding stops.
        const bool hangs = busy && thread.busy >= std::min(kHangsAfter, limit(thread));
        const std::pair key(thread.kind, thread.name);
        auto known = hangs_.find(key);
        // A smaller `busy` means that the last hang is over, and that the thread now hangs in something else.
        if (known != hangs_.end() && (!hangs || thread.busy < known->second.busy)) {
            findings.over.push_back(thread);
            findings.over.back().busy = known->second.busy;
            hangs_.erase(known);
            known = hangs_.end();
        }
        if (!hangs) {
            continue;
        }
        if (known == hangs_.end()) {
            known = hangs_.emplace(key, Hang{}).first;
            findings.begun.push_back(thread);
        }
        Hang& hang = known->second;
        hang.busy = thread.busy;
        if (thread.busy >= limit(thread)) {
            findings.feed = false;
            if (!hang.starves) {
                hang.starves = true;
                findings.starving.push_back(thread);
            }
        }
    }
    return findings;
}

}  // namespace pollcore::daemon
