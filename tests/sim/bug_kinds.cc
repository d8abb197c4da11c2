#include "sim/bug_kinds.hpp"

#include <algorithm>

namespace pollcore {
namespace {

Bug present = Bug::none;
std::uint64_t once_in = 1;
std::uint64_t occasions = 0;

}  // namespace

bool planted(Bug bug) noexcept {
    return present == bug && ++occasions % once_in == 0;
}

namespace sim {

const std::vector<BugKind>& bug_kinds() {
    static const std::vector<BugKind> kinds{
        {Bug::lost, "lost", "calm", 100'000},
        {Bug::lost_ordinary, "lost-ordinary", "calm", 30'000},
        {Bug::lost_in_line, "lost-in-line", "calm", 3'000},
        {Bug::twice, "twice", "calm", 10'000},
        {Bug::swapped, "swapped", "calm", 1'000},
        {Bug::misread_status, "misread-status", "storm"},
        {Bug::wedged, "wedged", "calm"},
        {Bug::kept_reservation, "kept-reservation", "calm", 1'000},
        {Bug::stale_handle, "stale-handle", "ends"},
        {Bug::published_early, "published-early", "calm"},
        {Bug::given_back_early, "given-back-early", "ends"},
        {Bug::unacknowledged, "unacknowledged", "any", 10},
        {Bug::missed_rearm, "missed-rearm", "calm"},
        {Bug::no_last_look, "no-last-look", "calm"},
        {Bug::late_word, "late-word", "calm"},
        {Bug::careless_sleeper, "careless-sleeper", "calm"},
        {Bug::kept_shared, "kept-shared", "shared"},
        {Bug::ended_early, "ended-early", "datagrams"},
        {Bug::window_kept, "window-kept", "windows"},
        {Bug::ring_first, "ring-first", "calm"},
    };
    return kinds;
}

void plant(Bug bug) noexcept {
    const auto kind =
        std::find_if(bug_kinds().begin(), bug_kinds().end(), [&](const BugKind& each) { return each.bug == bug; });
    present = bug;
    once_in = kind != bug_kinds().end() ? kind->once_in : 1;
    occasions = 0;
}

}  // namespace sim
}  // namespace pollcore
