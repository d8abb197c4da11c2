// Counts of a session's requests in flight, as the application's side counts them: for each queue pair, for each shared
// receive queue, and in total. Also reads the words that the worker publishes in the session's block.
//
// Thread safety: only the session's thread.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "base/bare.hpp"
#include "pollcore/completion.hpp"
#include "pollcore/own_lines.hpp"
#include "pollcore/queue_pair.hpp"
#include "pollcore/work_request.hpp"
#include "session/layout.hpp"
#include "session/request_head.hpp"

namespace pollcore {

/// The account of one queue pair.
class QpAccount {
public:
    QpAccount() = default;
    explicit QpAccount(std::uint16_t generation) : generation_(generation) {}

    [[nodiscard]] std::uint16_t generation() const noexcept { return generation_; }
    [[nodiscard]] std::uint32_t sends() const noexcept { return sends_; }
    [[nodiscard]] std::uint32_t recvs() const noexcept { return recvs_; }
    /// Retired sends (unsignaled sends that succeeded), as last read from the worker's count.
    [[nodiscard]] std::uint32_t retired() const noexcept { return retired_seen_; }

    void count_sends(std::uint32_t n) noexcept { sends_ += n; }
    void count_recv() noexcept { ++recvs_; }
    void end_sends(std::uint32_t n) noexcept { sends_ -= n; }
    void end_recv() noexcept { --recvs_; }
    /// The worker has retired `count` sends in total, modulo 2^32.
    void retire(std::uint32_t count) noexcept {
        sends_ -= count - retired_seen_;
        retired_seen_ = count;
    }

    // Opcodes and limits of ordinary requests. They are valid as long as QpRecord::status does not change.
    [[nodiscard]] bool knows(std::uint64_t status) const noexcept { return known_status_ == status; }
    void learn(std::uint64_t status, OpcodeMask opcodes, std::uint32_t send_depth) noexcept;
    [[nodiscard]] bool admits(RequestHead head) const noexcept { return head.is_one_of(ordinary_); }
    /// Whether the request is admitted if its message is no longer than the peer's receives.
    [[nodiscard]] bool admits_short(RequestHead head) const noexcept { return head.is_one_of(short_); }
    [[nodiscard]] std::uint32_t send_depth() const noexcept { return send_depth_; }
    [[nodiscard]] std::uint32_t inline_max() const noexcept { return inline_max_; }

    /// The epoch (Life::epoch) of the queue pair's life to which these counts belong.
    [[nodiscard]] std::uint16_t epoch() const noexcept { return epoch_; }
    /// Begins to count a new life with the same generation. No request of the old life may be in flight.
    void begin_epoch(std::uint16_t epoch) noexcept {
        if (sends_ != 0 || recvs_ != 0) {
            *this = QpAccount(generation_);
        }
        epoch_ = epoch;
        retired_seen_ = 0;
    }

private:
    std::uint64_t known_status_ = 0;
    std::uint16_t send_depth_ = 0;
    OpcodeMask ordinary_ = 0;  // for admits()
    OpcodeMask short_ = 0;     // for admits_short()
    std::uint16_t inline_max_ = 0;

    std::uint16_t generation_ = 0;
    std::uint16_t epoch_ = 0;
    std::uint32_t sends_ = 0;  // in flight
    std::uint32_t recvs_ = 0;
    std::uint32_t retired_seen_ = 0;
};
static_assert(sizeof(QpAccount) == kCacheLine / 2);

class Accounts {
public:
    Accounts(void* block, const SessionLayout& layout)
        : header_(*session_header(block)),
          records_(at_offset<QpRecord>(block, layout.records())),
          retired_(at_offset<std::atomic<std::uint64_t>>(block, layout.retired())),
          qps_(layout.qps_max),
          qps_mask_(layout.qps_max - 1),
          completion_slots_(layout.completion_slots),
          srq_records_(at_offset<SrqRecord>(block, layout.srq_records())),
          srqs_(kSrqsMax) {}

    // ---- Words that the worker publishes ----

    [[nodiscard]] std::uint32_t qps_mask() const noexcept { return qps_mask_; }
    [[nodiscard]] const QpRecord& record(std::uint32_t index) const noexcept { return records_[index]; }
    // Acquire, pairs with the worker's release: the limits that are read afterwards belong to this status.
    [[nodiscard]] std::uint64_t status(std::uint32_t index) const noexcept {
        return records_[index].status.load(std::memory_order_acquire);
    }
    /// With flow control: the longest message that the peer receives, in bytes. Returns the largest number until the
    /// peer has announced its limit.
    [[nodiscard]] std::uint32_t message_max(std::uint32_t index) const noexcept {
        const std::uint32_t longest =
            MessageLimitsWord::unpack(records_[index].longest.load(std::memory_order_relaxed)).message_max;
        return longest != 0 ? longest : ~std::uint32_t{0};
    }
    [[nodiscard]] std::uint64_t srq_status(std::uint32_t index) const noexcept {
        return srq_records_[index].status.load(std::memory_order_acquire);
    }
    [[nodiscard]] RetiredWord retired_word(std::uint32_t index) const noexcept {
        // Acquire, pairs with the release in WorkerSession::retire: the buffers of retired requests are free.
        return RetiredWord::unpack(retired_[index].load(std::memory_order_acquire));
    }

    // ---- Room (I3) ----

    /// Returns how many more requests may be accepted. Counts completions in flight, not slots (D13). `given_back`
    /// counts the taken completions whose slots the worker knows to be free. `owed` may be larger than
    /// completion_slots_, because messages of pools use slots, too, until these are given back.
    [[nodiscard]] [[gnu::always_inline]] std::uint64_t room(std::uint64_t given_back) const noexcept {
        const std::uint64_t owed = accepted_ + pooled_taken_ - retired_seen_ - given_back;
        return completion_slots_ - std::min<std::uint64_t>(owed, completion_slots_);
    }
    /// Reads how many requests the worker has retired.
    void refresh() noexcept { retired_seen_ = header_.retired.load(std::memory_order_acquire); }

    // ---- Queue pairs ----

    [[nodiscard]] QpAccount& at(std::uint32_t index) noexcept { return qps_[index]; }
    [[nodiscard]] const QpAccount& at(std::uint32_t index) const noexcept { return qps_[index]; }
    /// The account at the handle's index. The index may be any number.
    [[nodiscard]] QpAccount& of(QpHandle qp) noexcept { return qps_[qp.index & qps_mask_]; }
    /// The account of `qp`. If the index has a new queue pair, or the queue pair has a new life, the account is emptied
    /// first: the old queue pair or life has no request in flight.
    [[nodiscard]] [[gnu::always_inline]] QpAccount& renewed(QpHandle qp) noexcept {
        QpAccount& account = qps_[qp.index];
        if (account.generation() != qp.generation) [[unlikely]] {
            // The ring may still have completions of the old life.
            past_lives_ = past_lives_ || account.sends() != 0;
            account = QpAccount(qp.generation);
        }
        return account;
    }
    /// Whether the ring may hold completions of a queue pair's earlier life.
    [[nodiscard]] bool past_lives() const noexcept { return past_lives_; }
    /// To be called when the ring was seen to be empty.
    void forget_past_lives() noexcept { past_lives_ = false; }
    void refresh_retired(QpHandle qp) noexcept;

    // ---- Accepted and completed requests ----

    [[nodiscard]] std::uint64_t accepted() const noexcept { return accepted_; }
    [[nodiscard]] std::uint64_t retired() const noexcept { return retired_seen_; }
    /// Taken completions of pools' receives, which are no requests of this session.
    [[nodiscard]] std::uint64_t pooled_taken() const noexcept { return pooled_taken_; }

    /// Counts `n` ordinary requests that are in the accounts of their queue pairs already.
    void count_ordinary(std::uint64_t n) noexcept { accepted_ += n; }
    [[gnu::always_inline]] void count(const WorkRequest& request) noexcept {
        ++accepted_;
        if (request.opcode == Opcode::srq_recv) [[unlikely]] {
            count_shared(request.srq);
        } else if (QpAccount& mine = renewed(request.qp); is_recv(request.opcode)) {
            mine.count_recv();
        } else {
            mine.count_sends(1);
        }
    }
    [[gnu::always_inline]] void end_sends(QpHandle qp, std::uint32_t n) noexcept {
        if (QpAccount& mine = of(qp); mine.generation() == qp.generation) [[likely]] {
            mine.end_sends(n);
        }
    }
    void count_pooled() noexcept { ++pooled_taken_; }

    // ---- Shared receive queues ----

    /// Receives of this session in flight on a shared receive queue.
    [[nodiscard]] std::uint32_t shared_recvs(SrqHandle srq) const noexcept {
        const SrqAccount& mine = srqs_[srq.index % kSrqsMax];
        return mine.generation == srq.generation ? mine.outstanding : 0;
    }
    void end_shared_recv(SrqHandle srq) noexcept {
        if (SrqAccount& mine = srqs_[srq.index % kSrqsMax]; mine.generation == srq.generation) {
            --mine.outstanding;
        }
    }
    [[nodiscard]] SrqHandle srq_at(std::uint16_t index) const noexcept { return {index, srqs_[index].generation}; }

    /// Computes the number of retired requests after the daemon's death: the accepted requests that neither have
    /// completed nor are in flight. `left` requests are in flight, and `polled` completions were taken. The worker's
    /// own counts are not used, because there are two, and one may be a burst behind the other.
    void settle_retired(std::uint64_t left, std::uint64_t polled) noexcept {
        retired_seen_ = accepted_ - polled + pooled_taken_ - left;
    }

private:
    struct SrqAccount {
        std::uint16_t generation = 0;
        std::uint32_t outstanding = 0;
    };
    void count_shared(SrqHandle srq) noexcept;

    SessionHeader& header_;
    QpRecord* records_;                    // written by the worker
    std::atomic<std::uint64_t>* retired_;  // for each queue pair, written by the worker
    OwnLines<QpAccount> qps_;              // by the index of the queue pair
    std::uint32_t qps_mask_;
    std::uint32_t completion_slots_;
    std::uint64_t accepted_ = 0;
    std::uint64_t retired_seen_ = 0;  // the worker's count for all queue pairs, as last read
    std::uint64_t pooled_taken_ = 0;
    bool past_lives_ = false;
    SrqRecord* srq_records_;     // written by the worker
    OwnLines<SrqAccount> srqs_;  // by the index of the shared receive queue
};

}  // namespace pollcore
