// The worker has an entry for each work request in a work queue, until the request has completed. It has none for a
// request that its flow control keeps. Each work queue has one table of entries, in post order (D19), except a shared
// receive queue, whose table has no order (recv_table.hpp).
//
// Thread safety: only the worker's thread uses it.
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

/// Returns true if the completion of a request with this opcode contains the number of bytes that the request brought.
[[nodiscard]] constexpr bool brings_bytes(Opcode opcode) noexcept {
    return opcode == Opcode::rdma_read || is_atomic(opcode);
}

struct InFlightEntry {
    enum class Kind : std::uint8_t {
        posted,  ///< the provider has it
        /// the provider has it without the signal that the application asked for; it completes together with a later
        /// request (SendQueue::coalesce)
        covered,
        pooled,     ///< a receive with a buffer of a receive pool; the provider has it
        announced,  ///< the provider has the announcement of the request's message; the request itself ends later
        reading,    ///< the runtime's own read of an announced message into a pool's buffer; the provider has it
        flow,       ///< the runtime's own message to the peer about flow control; the provider has it
        marker,     ///< the runtime's marker (WorkerQp::post_marker); the provider has it
        unposted,   ///< the provider never gets it; it completes with `status` after all entries before it
        done,       ///< it completed before entries in front of it, and stays in the table until those have left
    };

    std::uint64_t tag = 0;
    WorkerSession* session = nullptr;
    union {
        std::uint32_t lkey = 0;  ///< lkey of the first SGE; the table keeps the other lkeys (push_more_keys)
        std::uint32_t new_rkey;  ///< for a bind: the window's rkey if the bind succeeds
    };
    /// bit in `flags` of a request whose latency is measured (WorkerSession::begin_sample)
    static constexpr std::uint8_t kSampled = 1 << 7;

    // The next three members have the layout of the request's last word, from which post() copies them.
    Opcode opcode = Opcode::send;
    std::uint8_t flags = 0;  ///< the application's flags, RequestHead::kReplyInLine and kSampled
    std::uint8_t num_sge = 0;
    Kind kind = Kind::posted;
    Status status = Status::success;  ///< unposted: status of its completion
    /// Indices of the window and the region that a bind names.
    struct Bind {
        std::uint16_t window;
        std::uint16_t region;
    };
    union {
        AhHandle ah{};          ///< UD send: the request's address handle
        Bind bind;              ///< bind_mw
        std::uint32_t brought;  ///< for a covered read or atomic: the number of bytes that it brought
    };

    /// The flags that an entry copies from its request. kSampled is not among them: only the worker sets this bit.
    [[nodiscard]] static constexpr std::uint8_t known(std::uint8_t flags) noexcept {
        return flags & (kFence | kSignaled | kSolicited | kInline | RequestHead::kReplyInLine);
    }
    [[nodiscard]] bool with_provider() const noexcept { return kind <= Kind::marker; }
    /// Returns true if the worker may write the completion into the request's own cache line (D50).
    [[nodiscard]] bool replies_in_line() const noexcept { return (flags & RequestHead::kReplyInLine) != 0; }
    /// Returns true if the application asked for a completion.
    [[nodiscard]] bool signaled() const noexcept { return (flags & kSignaled) != 0; }

    /// Fills the entry of an ordinary request that is about to be posted. RequestHead::is_plain() is true for `head`,
    /// so the bit kSampled is not set.
    void post(std::uint64_t its_tag, WorkerSession* its_session, std::uint32_t its_lkey, RequestHead head) noexcept {
        Word* const words = words_of(*this);
        words[0] = its_tag;
        session = its_session;
        words[2] = (head.word() & kWhat) | its_lkey;
        words[3] = 0;
    }
    /// Makes a send that invalidates a key an ordinary one, because its completion says no more.
    void end_as_send() noexcept { opcode = Opcode::send; }
    /// Marks the request as one that the provider will never get. It completes with status `why`.
    void leave_unposted(Status why) noexcept {
        kind = Kind::unposted;
        status = why;
    }
    void end() noexcept { kind = Kind::done; }
    /// Marks the request as covered. `bytes` is the number of bytes that it brings, if brings_bytes().
    void cover(std::uint32_t bytes) noexcept {
        kind = Kind::covered;
        if (brings_bytes(opcode)) {
            brought = bytes;
        }
    }
    /// byte_len for the completion of a covered request.
    [[nodiscard]] std::uint32_t covered_byte_len() const noexcept { return brings_bytes(opcode) ? brought : 0; }
    /// Returns true if the provider has the request and a session submitted it.
    [[nodiscard]] bool is_posted() const noexcept { return kind <= Kind::covered; }
    /// Marks the request as one whose message is announced.
    void announce() noexcept { kind = Kind::announced; }
    void sample() noexcept { flags |= kSampled; }
    /// Returns true if the entry has kind `its_kind` and belongs to an ordinary, signaled request whose latency is not
    /// measured.
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

/// Returns the entry of a request that a session has submitted. This function is not a template, because in a template
/// clang 14 cannot initialize a member of an unnamed union by its name.
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
    /// Has room for `depth` entries with `sges_max` lkeys each.
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

    /// Adds an entry at next_position(). The caller fills it in. The reference is valid until the next push().
    [[nodiscard]] InFlightEntry& push() noexcept {
        base_ = empty() ? tail_ : base_;
        return at(tail_++);
    }
    /// Stores the lkeys of the newest entry's SGEs, without the first SGE.
    void push_more_keys(std::span<const ibv_sge> more) noexcept {
        const std::size_t most = std::min<std::size_t>(more.size(), more_keys_per_entry());
        for (std::size_t i = 0; i < most; ++i) {
            more_keys_of(tail_ - 1)[i] = more[i].lkey;
        }
    }
    [[nodiscard]] InFlightEntry& front() noexcept { return at(head_); }
    [[nodiscard]] const InFlightEntry& front() const noexcept { return entries_[slot(head_)]; }
    /// Removes the front entry. The reference is valid until the next push().
    InFlightEntry& pop() noexcept { return at(head_++); }
    /// Removes the newest entry. The reference is valid until the next push().
    InFlightEntry& pop_back() noexcept { return at(--tail_); }
    /// Removes the entry at `position`. The entries behind it move up by one position, so none of them may be posted
    /// yet.
    void erase(std::uint32_t position) noexcept {
        for (std::uint32_t next = position + 1; next != tail_; ++next) {
            at(next - 1) = at(next);
            std::copy_n(more_keys_of(next), more_keys_per_entry(), more_keys_of(next - 1));
        }
        --tail_;
    }
    [[nodiscard]] InFlightEntry& at(std::uint32_t position) noexcept { return entries_[slot(position)]; }

    /// Prefetches the cache line of the entry that push() will return.
    void prefetch_next() const noexcept { __builtin_prefetch(&entries_[empty() ? 0 : slot(tail_)], 1); }
    void prefetch(std::uint32_t position) const noexcept { __builtin_prefetch(&entries_[slot(position)], 1); }

    /// `travelled` is the low bits of a position, from a wr_id. Returns the position's offset from the head, or size()
    /// or more if no entry is there.
    [[nodiscard]] std::uint32_t offset_of(std::uint32_t travelled) const noexcept {
        return (travelled - head_) & WrId::kPositionMask;
    }

    /// Returns true if an entry that the provider has uses this lkey.
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

    /// Returns true if a posted entry uses this address handle.
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
    // When the table becomes empty, it begins again at its first slot. So it occupies cache only for entries in flight,
    // even if the queue is long (D12).
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
    std::uint32_t base_ = 0;  // the position of the first slot
    OwnLinesArray<InFlightEntry> entries_;
    // the first word is the number of further lkeys for each entry; null if each entry has only one lkey
    OwnLinesArray<std::uint32_t> more_keys_;
};
static_assert(sizeof(InFlightTable) == 32, "half a line of a WorkerQp");

}  // namespace pollcore
