#include "sim/troubles.hpp"

#include <algorithm>
#include <iterator>

namespace pollcore::sim {
namespace {

constexpr std::string_view kTroubleNames[] = {
    "delay",          "loss",           "outage",     "port flap",   "send status",   "receive status", "refuse send",
    "refuse receive", "overrun",        "fail poll",  "fail modify", "fail destroy",  "fail create",    "fail arm",
    "device fatal",   "device removed", "local key",  "remote key",  "too long",      "reset",          "end way",
    "end shared",     "arm limit",      "disconnect", "close qp",    "close session", "stop runtime",   "stop polling",
};
static_assert(std::size(kTroubleNames) == kTroubles);

constexpr std::string_view kDoingNames[] = {"unconnected", "idle", "busy", "failed", "ending"};
static_assert(std::size(kDoingNames) == kDoings);

}  // namespace

std::string_view trouble_name(Trouble trouble) noexcept {
    return kTroubleNames[static_cast<std::size_t>(trouble)];
}
std::string_view doing_name(Doing doing) noexcept {
    return kDoingNames[static_cast<std::size_t>(doing)];
}

bool can_meet(Trouble trouble, Doing doing) noexcept {
    switch (trouble) {
        // Nothing is posted to a queue pair that has failed.
        case Trouble::send_status:
        case Trouble::receive_status:
        case Trouble::refuse_send:
        case Trouble::refuse_receive: return doing != Doing::failed;
        // Nothing completes on an unconnected queue pair.
        case Trouble::overrun:
        case Trouble::fail_poll: return doing != Doing::unconnected;
        // A worker that sleeps may have queue pairs in any state.
        case Trouble::fail_arm: return true;
        // A queue pair is modified when it is connected, and when it ends.
        case Trouble::fail_modify: return doing == Doing::unconnected || doing == Doing::ending;
        // A queue pair is destroyed when it ends, or when its CQ is lost. A CQ is lost only after something completes.
        case Trouble::fail_destroy: return doing != Doing::unconnected;
        // A UD queue pair is ready at once, so it is never unconnected.
        case Trouble::end_way: return doing != Doing::unconnected;
        default: return true;
    }
}

std::vector<Planned> draw_plan(Random& random, std::uint32_t most, std::uint64_t steps,
                               const std::vector<Trouble>& among) {
    std::vector<Planned> plan(random.below(most + 1));
    for (Planned& planned : plan) {
        planned.trouble = among.empty() ? static_cast<Trouble>(random.below(kTroubles))
                                        : among[random.below(static_cast<std::uint32_t>(among.size()))];
        planned.step = random.below(static_cast<std::uint32_t>(steps));
        planned.where = static_cast<std::uint32_t>(random.next() >> 33);
        planned.chance = random.next();
    }
    std::sort(plan.begin(), plan.end(), [](const Planned& a, const Planned& b) { return a.step < b.step; });
    return plan;
}

}  // namespace pollcore::sim
