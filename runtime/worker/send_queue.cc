#include "worker/send_queue.hpp"

namespace pollcore {

[[gnu::cold]] InFlightEntry SendQueue::take_refused(Turn& turn, ibv_send_wr& bad) noexcept {
    const std::uint32_t position = entries_.head_position() + entries_.offset_of(WrId::unpack(bad.wr_id).position);
    const InFlightEntry entry = entries_.at(position);
    entries_.erase(position);
    for (ibv_send_wr* wr = bad.next; wr != nullptr; wr = wr->next) {
        WrId id = WrId::unpack(wr->wr_id);
        --id.position;  // modulo what travels
        wr->wr_id = id.pack();
    }
    turn.counters.post_failures.add();
    signal_next();
    return entry;
}

}  // namespace pollcore
