#include "device/soft/faults.hpp"

#include <cerrno>
#include <chrono>
#include <thread>

#include <fmt/format.h>

#include "pollcore/error.hpp"

namespace pollcore::soft {

void FaultPlan::add(const SoftFault& fault) {
    const bool has_status = fault.kind == Kind::send || fault.kind == Kind::receive;
    if (fault.nth == 0 || fault.count == 0 || !(fault.probability > 0 && fault.probability <= 1) ||
        (has_status && fault.status == IBV_WC_SUCCESS) ||
        ((fault.kind == Kind::delay_packet || fault.kind == Kind::hang) && fault.delay_ns == 0)) {
        throw Error(
            EINVAL,
            fmt::format("a planned fault has nth = {}, count = {}, probability = {}, status {} and a delay of {} "
                        "ns; accepted is nth and count from 1, a probability above 0 and up to 1, a status that "
                        "is an error, and a delay for packets that are to be late and calls that are to hang",
                        fault.nth, fault.count, fault.probability, static_cast<int>(fault.status), fault.delay_ns));
    }
    const std::lock_guard guard(mutex_);
    planned_.push_back({fault, 0});
    if (planned_.back().fault.error == 0) {
        planned_.back().fault.error = EIO;
    }
    armed_.fetch_or(bit(fault.kind), std::memory_order_relaxed);
}

void FaultPlan::clear() {
    const std::lock_guard guard(mutex_);
    planned_.clear();
    armed_.store(0, std::memory_order_relaxed);
    cleared_.fetch_add(1, std::memory_order_relaxed);
}

void FaultPlan::wait_out(std::uint64_t ns) const noexcept {
    const std::uint32_t cleared = cleared_.load(std::memory_order_relaxed);
    const auto until = std::chrono::steady_clock::now() + std::chrono::nanoseconds(ns);
    while (cleared_.load(std::memory_order_relaxed) == cleared && std::chrono::steady_clock::now() < until) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
}

std::optional<SoftFault> FaultPlan::meet(Kind kind, std::uint32_t qp_num, std::optional<ibv_qp_state> state) noexcept {
    const std::lock_guard guard(mutex_);
    std::optional<SoftFault> met;
    for (Planned& planned : planned_) {
        const SoftFault& fault = planned.fault;
        if (fault.kind != kind || (fault.qp_num != 0 && fault.qp_num != qp_num) ||
            (fault.state && fault.state != state)) {
            continue;
        }
        // Each fault counts the occasion, even if another fault hits it.
        ++planned.seen;
        if (planned.seen < fault.nth || planned.seen - fault.nth >= fault.count || met) {
            continue;
        }
        if (fault.probability == 1 || std::uniform_real_distribution<>()(random_) < fault.probability) {
            met = fault;
            met_[static_cast<std::size_t>(kind)].fetch_add(1, std::memory_order_relaxed);
        }
    }
    return met;
}

}  // namespace pollcore::soft
