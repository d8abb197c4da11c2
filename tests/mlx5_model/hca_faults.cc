#include "hca_faults.hpp"

namespace mlx5_model {

void FaultPlan::on_the_wire(const WireFaults& faults) {
    wire_ = faults;
    random_.seed(faults.seed);
}

void FaultPlan::meet(std::uint32_t qpn, Fate fate, std::uint32_t count) {
    if (count == 0) {
        met_.erase(qpn);
        return;
    }
    met_.insert_or_assign(qpn, Met{fate, count});
}

void FaultPlan::fail_send(std::uint32_t qpn, std::uint32_t after, PlannedError error) {
    send_errors_.insert_or_assign(qpn, Planned{after, error});
}

void FaultPlan::fail_receive(std::uint32_t qpn, std::uint32_t after, PlannedError error) {
    receive_errors_.insert_or_assign(qpn, Planned{after, error});
}

Fate FaultPlan::next_fate(std::uint32_t qpn, bool reliable) {
    if (const auto found = met_.find(qpn); found != met_.end()) {
        const Fate fate = found->second.fate;
        if (--found->second.count == 0) {
            met_.erase(found);
        }
        return fate;
    }
    if (!reliable || wire_.requests_lost + wire_.answers_lost + wire_.requests_repeated == 0) {
        return Fate::arrives;
    }
    const std::uint64_t drawn = random_() % 1024;
    if (drawn < wire_.requests_lost) {
        return Fate::is_lost;
    }
    if (drawn < wire_.requests_lost + wire_.answers_lost) {
        return Fate::answer_is_lost;
    }
    return drawn < wire_.requests_lost + wire_.answers_lost + wire_.requests_repeated ? Fate::arrives_twice
                                                                                      : Fate::arrives;
}

std::optional<PlannedError> FaultPlan::next(std::map<std::uint32_t, Planned>& plans, std::uint32_t qpn) {
    const auto found = plans.find(qpn);
    if (found == plans.end() || found->second.after-- != 0) {
        return std::nullopt;
    }
    const PlannedError error = found->second.error;
    plans.erase(found);
    return error;
}

void FaultPlan::forget(std::uint32_t qpn) {
    met_.erase(qpn);
    send_errors_.erase(qpn);
    receive_errors_.erase(qpn);
}

}  // namespace mlx5_model
