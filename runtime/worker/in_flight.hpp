// What a worker knows of each work request between taking it from its session and completing it. One table per work
// queue, in post order (D19).
//
// Thread safety: the worker's alone.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

#include <infiniband/verbs.h>

#include "pollcore/completion.hpp"
#include "pollcore/handle.hpp"
#include "pollcore/own_lines.hpp"
#include "pollcore/words.hpp"
#include "pollcore/work_request.hpp"
#include "session/request_head.hpp"
#include "worker/wr_id.hpp"

namespace pollcore {

class WorkerSession;

/// True: the completion of a request with this opcode says how many bytes came.
[[nodiscard]] constexpr bool brings_bytes(Opcode opcode) noexcept {
    return opcode == Opcode::rdma_read || is_atomic(opcode);
}

struct InFlightEntry {
    enum class Kind : std::uint8_t {
        posted,     ///< the provider has it
        covered,    ///< the provider has it, without the signal that it asked for: completes with a request behind it
                    ///< (SendQueue::coalesce)
        pooled,     ///< the provider has it, and a receive pool posted it
        announced,  ///< the provider has the announcement of its message; the request ends later
        reading,    ///< the provider has it: reads an announced message into a pool's buffer; the runtime's own
        flow,       ///< the provider has it: terms or grants for the peer; reaches no session
        marker,     ///< the provider has it: the runtime's marker; reaches no session
        unposted,   ///< the provider never gets it: completes with `status` when its turn comes
        done,       ///< completed out of turn; only waits to leave the table
    };

    std::uint64_t tag = 0;
    WorkerSession* session = nullptr;
    union {
        std::uint32_t lkey = 0;  ///< the first SGE's; the others stand in the table's side array
        std::uint32_t new_rkey;  ///< bind: the window's key once the bind has succeeded
    };
    static constexpr std::uint8_t kSampled = 1 << 7;  ///< a bit of `flags`: see WorkerSession::begin_sample

    // The next four stand as in the last word of the request.
    Opcode opcode = Opcode::send;
    std::uint8_t flags = 0;  ///< the application's, RequestHead::kReplyInLine and kSampled
    std::uint8_t num_sge = 0;
    Kind kind = Kind::posted;
    Status status = Status::success;  ///< unposted: how it completes
    /// Indices of the window and the region that a bind names.
    struct Bind {
        std::uint16_t window;
        std::uint16_t region;
    };
    union {
        AhHandle ah{};          ///< for a datagram that is sent
        Bind bind;              ///< bind_mw
        std::uint32_t brought;  ///< covered, and brings_bytes(): how many bytes came
    };

    /// The flags that an entry takes over from its request. Only the worker may set its own bit, kSampled.
    [[nodiscard]] static constexpr std::uint8_t known(std::uint8_t flags) noexcept {
        return flags & (kFence | kSignaled | kSolicited | kInline | RequestHead::kReplyInLine);
    }
    [[nodiscard]] bool with_provider() const noexcept { return kind <= Kind::marker; }
    /// The completion may be written into the request's own line.
    [[nodiscard]] bool replies_in_line() const noexcept { return (flags & RequestHead::kReplyInLine) != 0; }
    /// The application asked for a completion.
    [[nodiscard]] bool signaled() const noexcept { return (flags & kSignaled) != 0; }

    /// Fills the entry for an ordinary request, which goes to the provider. RequestHead::is_plain() holds, so the bit
    /// of kSampled is not set.
    void post(std::uint64_t its_tag, WorkerSession* its_session, std::uint32_t its_lkey, RequestHead head) noexcept {
        Word* const words = words_of(*this);
        words[0] = its_tag;
        session = its_session;
        words[2] = (head.word() & kWhat) | its_lkey;
        words[3] = 0;
    }
    /// The provider never gets it.
    void leave_unposted(Status why) noexcept {
        kind = Kind::unposted;
        status = why;
    }
    void end() noexcept { kind = Kind::done; }
    /// Its signal is left to a request behind it. `bytes`: how many it brings, if it brings any.
    void cover(std::uint32_t bytes) noexcept {
        kind = Kind::covered;
        if (brings_bytes(opcode)) {
            brought = bytes;
        }
    }
    /// byte_len for the completion of a covered request.
    [[nodiscard]] std::uint32_t covered_byte_len() const noexcept { return brings_bytes(opcode) ? brought : 0; }
    /// A request of the application's own that the provider has.
    [[nodiscard]] bool is_posted() const noexcept { return kind <= Kind::covered; }
    /// Its message is announced.
    void announce() noexcept { kind = Kind::announced; }
    void sample() noexcept { flags |= kSampled; }
    /// True: it is the entry of an ordinary signaled request that the provider has.
    [[nodiscard]] bool is_ordinary(Kind its_kind) const noexcept {
        constexpr std::uint64_t kSignal = std::uint64_t{kSignaled} << RequestHead::kFlags;
        constexpr std::uint64_t kOther = std::uint64_t{0xf8} << RequestHead::kOpcode | std::uint64_t{0xff} << kKind |
                                         std::uint64_t{kSampled} << RequestHead::kFlags;
        return (words_of(const_cast<InFlightEntry&>(*this))[2] & (kOther | kSignal)) ==
               (kSignal | std::uint64_t{static_cast<std::uint8_t>(its_kind)} << kKind);
    }

private:
    static constexpr unsigned kKind = 56;
    static constexpr std::uint64_t kWhat = std::uint64_t{0xffffff} << RequestHead::kOpcode;
};

static_assert(sizeof(InFlightEntry) == 32 && offsetof(InFlightEntry, opcode) == 20 &&
              offsetof(InFlightEntry, kind) == 23);
static_assert(InFlightEntry::Kind{} == InFlightEntry::Kind::posted);

/// The entry of a request that a session has submitted. No template: in one, clang 14 does not find a member of an
/// unnamed union by its name.
[[nodiscard, gnu::always_inline]] inline InFlightEntry entry_of(WorkerSession& session, const WorkRequest& request,
                                                                std::uint8_t flags, std::uint8_t num_sge) noexcept {
    return {.tag = request.tag,
            .session = &session,
            .lkey = request.sge.lkey,
            .opcode = request.opcode,
            .flags = flags,
            .num_sge = num_sge};
}

class InFlightTable {
public:
    InFlightTable() = default;
    /// Room for `depth` entries; `sges_max` keys each.
    InFlightTable(std::uint32_t depth, std::uint32_t sges_max)
        : mask_(std::bit_ceil(depth) - 1), entries_(make_own_lines<InFlightEntry>(mask_ + 1)) {
        if (sges_max > 1) {
            const std::uint32_t per_entry = sges_max - 1;
            more_keys_ = make_own_lines<std::uint32_t>(1 + std::size_t{mask_ + 1} * per_entry);
            more_keys_[0] = per_entry;
        }
    }

    [[nodiscard]] std::uint32_t size() const noexcept { return tail_ - head_; }
    [[nodiscard]] bool empty() const noexcept { return tail_ == head_; }
    [[nodiscard]] bool full() const noexcept { return size() > mask_; }
    [[nodiscard]] std::uint32_t room() const noexcept { return mask_ + 1 - size(); }
    [[nodiscard]] std::uint32_t next_position() const noexcept { return tail_; }
    [[nodiscard]] std::uint32_t head_position() const noexcept { return head_; }

    /// Adds an entry at next_position(), to be filled in by the caller. The reference holds until the next push.
    [[nodiscard]] InFlightEntry& push() noexcept {
        base_ = empty() ? tail_ : base_;
        return at(tail_++);
    }
    /// The keys of the newest entry's SGEs after the first.
    void push_more_keys(std::span<const ibv_sge> more) noexcept {
        const std::size_t most = std::min<std::size_t>(more.size(), more_keys_per_entry());
        for (std::size_t i = 0; i < most; ++i) {
            more_keys_of(tail_ - 1)[i] = more[i].lkey;
        }
    }
    [[nodiscard]] InFlightEntry& front() noexcept { return at(head_); }
    [[nodiscard]] const InFlightEntry& front() const noexcept { return entries_[slot(head_)]; }
    /// Removes the front. The reference holds until the next push.
    InFlightEntry& pop() noexcept { return at(head_++); }
    /// Removes the newest. The reference holds until the next push.
    InFlightEntry& pop_back() noexcept { return at(--tail_); }
    /// Removes one from the middle. Those behind it, which no provider may know yet, move up by one position.
    void erase(std::uint32_t position) noexcept {
        for (std::uint32_t next = position + 1; next != tail_; ++next) {
            at(next - 1) = at(next);
            std::copy_n(more_keys_of(next), more_keys_per_entry(), more_keys_of(next - 1));
        }
        --tail_;
    }
    [[nodiscard]] InFlightEntry& at(std::uint32_t position) noexcept { return entries_[slot(position)]; }

    /// Prefetch the line of the entry that push() will give, or that at() gives.
    void prefetch_next() const noexcept { __builtin_prefetch(&entries_[empty() ? 0 : slot(tail_)], 1); }
    void prefetch(std::uint32_t position) const noexcept { __builtin_prefetch(&entries_[slot(position)], 1); }

    /// The offset from the head of the position whose low bits these are; size() or more when it names nothing in
    /// flight.
    [[nodiscard]] std::uint32_t offset_of(std::uint32_t travelled) const noexcept {
        return (travelled - head_) & WrId::kPositionMask;
    }

    /// True when a posted entry uses this key.
    [[nodiscard]] bool uses_key(std::uint32_t lkey) const noexcept {
        for (std::uint32_t p = head_; p != tail_; ++p) {
            const InFlightEntry& entry = entries_[slot(p)];
            if (!entry.with_provider() || entry.num_sge == 0) {
                continue;
            }
            if (entry.lkey == lkey) {
                return true;
            }
            const std::uint32_t* const more = more_keys_of(p);
            const std::uint32_t most = std::min<std::uint32_t>(entry.num_sge - 1u, more_keys_per_entry());
            if (std::find(more, more + most, lkey) != more + most) {
                return true;
            }
        }
        return false;
    }

    /// True when a posted entry uses this address handle.
    [[nodiscard]] bool uses_ah(AhHandle ah) const noexcept {
        for (std::uint32_t p = head_; p != tail_; ++p) {
            const InFlightEntry& entry = entries_[slot(p)];
            if (entry.is_posted() && entry.ah == ah) {
                return true;
            }
        }
        return false;
    }

private:
    // A table that was empty begins again at its first slot, so it takes cache only for what is in flight, however long
    // the queue is (D12).
    [[nodiscard]] std::size_t slot(std::uint32_t position) const noexcept { return (position - base_) & mask_; }

    [[nodiscard]] std::uint32_t more_keys_per_entry() const noexcept {
        return more_keys_ == nullptr ? 0 : more_keys_[0];
    }
    [[nodiscard]] std::uint32_t* more_keys_of(std::uint32_t position) const noexcept {
        return more_keys_ == nullptr ? nullptr : &more_keys_[1 + slot(position) * more_keys_[0]];
    }

    std::uint32_t head_ = 0;
    std::uint32_t tail_ = 0;
    std::uint32_t mask_ = 0;
    std::uint32_t base_ = 0;  // the position whose slot is the first
    OwnLinesArray<InFlightEntry> entries_;
    OwnLinesArray<std::uint32_t> more_keys_;  // the first word says how many each entry has; null: none
};
static_assert(sizeof(InFlightTable) == 32, "half a line of a WorkerQp");

}  // namespace pollcore
