#include "worker/send_queue.hpp"

#include <numeric>

namespace pollcore {
namespace {

[[nodiscard]] std::uint32_t length_of(const ibv_send_wr& wr) noexcept {
    return std::accumulate(wr.sg_list, wr.sg_list + wr.num_sge, 0u,
                           [](std::uint32_t sum, const ibv_sge& sge) { return sum + sge.length; });
}

}  // namespace

[[gnu::noinline]] void SendQueue::coalesce(ibv_send_wr& chain) noexcept {
    has_covered_ = false;
    ibv_send_wr* wr = &chain;
    for (; wr->next != nullptr; wr = wr->next) {
        if ((wr->send_flags & IBV_SEND_SIGNALED) == 0) {
            continue;
        }
        wr->send_flags &= ~unsigned{IBV_SEND_SIGNALED};
        has_covered_ = true;
        InFlightEntry& entry = entries_.at(WrId::unpack(wr->wr_id).position);
        if (entry.signaled()) {  // if it is not signaled, the worker had added the signal
            entry.cover(brings_bytes(entry.opcode) ? length_of(*wr) : 0);
        }
    }
    if (has_covered_) {
        wr->send_flags |= IBV_SEND_SIGNALED;
        count_signal(true);
    }
}

[[gnu::cold]] InFlightEntry SendQueue::take_refused(Turn& turn, ibv_send_wr& bad) noexcept {
    const std::uint32_t position = entries_.head_position() + entries_.offset_of(WrId::unpack(bad.wr_id).position);
    const InFlightEntry entry = entries_.at(position);
    entries_.erase(position);
    for (ibv_send_wr* wr = bad.next; wr != nullptr; wr = wr->next) {
        WrId id = WrId::unpack(wr->wr_id);
        --id.position;  // pack() drops the upper bits, so an underflow does no harm
        wr->wr_id = id.pack();
    }
    turn.counters.post_failures.add();
    signal_next();
    return entry;
}

}  // namespace pollcore
