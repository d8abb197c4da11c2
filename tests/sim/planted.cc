#include "sim/planted.hpp"

namespace pollcore::sim {
namespace {

Bug present = Bug::none;
std::uint64_t occasions = 0;

}  // namespace

const std::vector<BugKind>& bug_kinds() {
    static const std::vector<BugKind> kinds{
        {Bug::lost, "lost", "calm"},
        {Bug::twice, "twice", "calm"},
        {Bug::swapped, "swapped", "calm"},
        {Bug::misread_status, "misread-status", "storm"},
        {Bug::wedged, "wedged", "calm"},
        {Bug::kept_reservation, "kept-reservation", "calm"},
        {Bug::stale_handle, "stale-handle", "ends"},
        {Bug::published_early, "published-early", "calm"},
        {Bug::given_back_early, "given-back-early", "ends"},
        {Bug::unacknowledged, "unacknowledged", "any"},
        {Bug::missed_rearm, "missed-rearm", "calm"},
        {Bug::no_last_look, "no-last-look", "calm"},
        {Bug::late_word, "late-word", "calm"},
        {Bug::careless_sleeper, "careless-sleeper", "calm"},
        {Bug::ring_first, "ring-first", "calm"},
    };
    return kinds;
}

void plant(Bug bug) noexcept { present = bug; }
bool planted(Bug bug) noexcept { return present == bug; }
bool planted(Bug bug, std::uint64_t n) noexcept { return present == bug && ++occasions % n == 0; }

}  // namespace pollcore::sim
