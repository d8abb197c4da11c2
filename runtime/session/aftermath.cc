// Makes the completions that no worker makes: for requests that no worker has taken, and for requests that were in
// flight when the daemon died.
#include <utility>

#include "session/refused_completion.hpp"
#include "session/session_core.hpp"

namespace pollcore {

/// Whether poll() still has to make completions itself, in a session that has ended.
bool SessionCore::left_to_complete() noexcept {
    if (logs() && header_.closed.load(std::memory_order_acquire) == SessionHeader::kDaemonGone) {
        take_stock();
        return gone_left_ != 0;
    }
    return untaken_slots_ < submissions_.unreleased();
}

template <class Record>
[[gnu::cold, gnu::noinline]] std::size_t SessionCore::complete_rest(std::uint32_t closed,
                                                                    std::span<Record> out) noexcept {
    return closed == SessionHeader::kDaemonGone && logs() ? complete_gone(out) : complete_untaken(out);
}
template std::size_t SessionCore::complete_rest(std::uint32_t, std::span<Completion>) noexcept;
template std::size_t SessionCore::complete_rest(std::uint32_t, std::span<WideCompletion>) noexcept;

/// Counts the requests in flight after the daemon's death, when no worker can change their number.
[[gnu::cold]] void SessionCore::take_stock() noexcept {
    if (std::exchange(stock_taken_, true)) {
        return;
    }
    attention_ |= kUnusable;
    for (std::uint32_t index = 0; index <= accounts_.qps_mask(); ++index) {
        const QpAccount& mine = accounts_.at(index);
        if (mine.generation() != 0) {
            accounts_.refresh_retired({static_cast<std::uint16_t>(index), mine.generation()});
            gone_left_ += mine.sends() + mine.recvs();
        }
    }
    for (std::uint16_t index = 0; index < kSrqsMax; ++index) {
        gone_left_ += accounts_.shared_recvs(accounts_.srq_at(index));
    }
    accounts_.settle_retired(gone_left_, inbox_.taken());
}

// Completes requests that were in flight when the daemon died (I1). Some may be in the ring, and the daemon may have
// taken the others.
template <class Record>
[[gnu::cold, gnu::noinline]] std::size_t SessionCore::complete_gone(std::span<Record> out) noexcept {
    take_stock();
    const auto end = static_cast<std::uint32_t>(accounts_.qps_mask() + 1 + kSrqsMax);
    std::size_t n = 0;
    while (n < out.size() && gone_left_ > 0 && gone_index_ < end) {
        WorkRequest request{};
        LoggedRequest logged;
        if (gone_index_ <= accounts_.qps_mask()) {
            const auto index = static_cast<std::uint16_t>(gone_index_);
            QpAccount& mine = accounts_.at(index);
            request.qp = QpHandle{index, mine.generation()};
            if (mine.sends() != 0) {
                logged = log_->sends(index).oldest(mine.sends());
                mine.end_sends(1);
            } else if (mine.recvs() != 0) {
                logged = log_->recvs(index).oldest(mine.recvs());
                mine.end_recv();
            } else {
                ++gone_index_;
                continue;
            }
        } else {
            const auto index = static_cast<std::uint16_t>(gone_index_ - accounts_.qps_mask() - 1);
            request.srq = accounts_.srq_at(index);
            const std::uint32_t left = accounts_.shared_recvs(request.srq);
            if (left == 0) {
                ++gone_index_;
                continue;
            }
            logged = log_->srq(index).oldest(left);
            accounts_.end_shared_recv(request.srq);
        }
        request.tag = logged.tag;
        request.opcode = logged.opcode;
        out[n] = Record{};
        static_cast<Completion&>(out[n++]) = refused_completion(request, Status::daemon_gone);
        --gone_left_;
        ++untaken_requests_;
    }
    return n;
}

// Completes requests that were accepted while another thread stopped the runtime, so that no worker will take them
// (I1).
template <class Record>
[[gnu::cold, gnu::noinline]] std::size_t SessionCore::complete_untaken(std::span<Record> out) noexcept {
    attention_ |= kUnusable;
    const std::uint64_t untaken = submissions_.unreleased();
    std::size_t n = 0;
    while (n < out.size() && untaken_slots_ < untaken) {
        const WorkRequest& request = submissions_.unreleased_slot(untaken_slots_);
        untaken_slots_ += slots_of(request);
        if (request.opcode == Opcode::release) {
            continue;
        }
        ++untaken_requests_;
        out[n] = Record{};
        Completion& completion = out[n++];
        completion = refused_completion(request, Status::session_closed);
        settle(completion);
    }
    return n;
}

}  // namespace pollcore
