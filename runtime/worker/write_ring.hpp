// The reading end of a write ring. A peer writes records into the ring with RDMA writes. The worker finds the records
// by looking at memory, and keeps track of those that the application has not given back. The ring is filled from its
// end to its beginning (peer/record.hpp).
//
// The contents of the ring may be half written, old, or false. A record is valid only if its seal is right. A valid
// record must lie within the lines that the peer was granted.
//
// Thread safety: only the worker's thread uses it, but any thread may call held().
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <utility>
#include <vector>

#include "peer/record.hpp"
#include "pollcore/receive_pool.hpp"

namespace pollcore {

class alignas(kCacheLine) WriteRing {
public:
    /// Buffer number of the final completion of a queue pair. No place has this number.
    static constexpr std::uint32_t kEnd = 0xffffffff;

    struct Record {
        RecordHeader header;
        std::uint32_t place = 0;  ///< index of the record's last line in the ring
    };
    enum class Look : std::uint8_t { nothing, record, lie };

    /// A ring of `lines` lines (a power of two) in the zeroed memory at `memory`. The application may have at most
    /// `held_max` records at a time. The seeds of stamps and seals are computed from `secret`. The first record begins
    /// at `position`.
    WriteRing(std::byte* memory, std::uint32_t lines, std::uint32_t held_max, std::uint64_t secret,
              std::uint32_t position = 0)
        : memory_(memory),
          mask_(lines - 1),
          held_max_(held_max),
          secret_(secret),
          next_(position),
          freed_(position),
          places_(lines) {}

    [[nodiscard]] std::uint32_t lines() const noexcept { return mask_ + 1; }
    [[nodiscard]] std::uint32_t message_max() const noexcept { return ring_message_max(lines()); }
    /// The position of the next record. A new writer begins there.
    [[nodiscard]] std::uint32_t next() const noexcept { return next_.load(std::memory_order_relaxed); }
    /// The writer may fill all positions before this one.
    [[nodiscard]] std::uint32_t granted() const noexcept { return freed_.load(std::memory_order_relaxed) + lines(); }
    [[nodiscard]] std::uint64_t seed() const noexcept { return seed_; }
    [[nodiscard]] bool full() const noexcept { return held_ == held_max_; }

    /// A new writer, the peer of `qp`, begins at next(). Records of the previous writer become invalid. `in_order` is
    /// true if the device writes memory in order.
    void begin(QpHandle qp, bool in_order) noexcept {
        seed_ = std::rotl((secret_ ^ ++lives_) * 0x9fb21c651e98df25, 31);
        qp_.store(std::uint32_t{qp.index} << 16 | qp.generation, std::memory_order_relaxed);
        in_order_ = in_order;
        misses_ = wait_ = 0;
        await_next();
    }

    /// Returns true if the next record has begun to arrive. Looks at two places in memory, because a writer skips the
    /// remaining lines of a lap if they are too few for the record.
    [[nodiscard]] [[gnu::always_inline]] bool begun() const noexcept {
        return begun(awaited_[0]) || begun(awaited_[1]);
    }
    /// Looks for the next record. Returns `nothing` if there is no record or it is incomplete. Returns `lie` if the
    /// record is complete but lies outside the granted lines.
    [[nodiscard]] Look look(Record& record) noexcept {
        for (const Awaited& awaited : awaited_) {
            if (!begun(awaited)) {
                continue;
            }
            const Look found =
                read(awaited.position, awaited.position - next(), load(place_of(awaited.position), 0), record);
            if (found != Look::nothing) {
                return found;
            }
        }
        return Look::nothing;
    }
    /// Counts the record as held by the application, and goes on to the next record.
    void hand_out(const Record& record) noexcept {
        const std::uint32_t position = next();
        const std::uint32_t lines = record_lines(record.header.length);
        if (record.header.skipped != 0) {
            places_[place_of(position)].store(record.header.skipped | kReleased, std::memory_order_relaxed);
        }
        places_[record.place].store(lines, std::memory_order_relaxed);
        next_.store(position + record.header.skipped + lines, std::memory_order_relaxed);
        ++held_;
        await_next();
    }
    /// Takes a record back from the application. Returns false if the application does not have this record.
    [[nodiscard]] bool release(std::uint32_t place) noexcept {
        if (place > mask_) {
            return place == kEnd && std::exchange(end_held_, false);
        }
        const std::uint32_t lines = places_[place].load(std::memory_order_relaxed);
        if (lines == 0 || (lines & kReleased) != 0) {
            return false;
        }
        places_[place].store(lines | kReleased, std::memory_order_relaxed);
        --held_;
        std::uint32_t freed = freed_.load(std::memory_order_relaxed);
        for (;;) {
            std::atomic<std::uint32_t>& oldest = places_[place_of(freed)];
            const std::uint32_t word = oldest.load(std::memory_order_relaxed);
            if ((word & kReleased) == 0) {
                break;
            }
            oldest.store(0, std::memory_order_relaxed);
            freed += word & ~kReleased;
        }
        freed_.store(freed, std::memory_order_relaxed);
        return true;
    }
    /// Counts the final completion as held by the application. Returns false if the application still has an earlier
    /// one.
    [[nodiscard]] bool hold_end() noexcept { return !std::exchange(end_held_, true); }
    [[nodiscard]] std::uint64_t torn() const noexcept { return torn_; }

    /// Returns the records that the application has, as far as the calling thread can see. All contain the handle of
    /// the last queue pair. Any thread.
    [[nodiscard]] std::vector<HeldBuffer> held() const {
        const std::uint32_t word = qp_.load(std::memory_order_relaxed);
        const QpHandle qp{static_cast<std::uint16_t>(word >> 16), static_cast<std::uint16_t>(word)};
        std::vector<HeldBuffer> all;
        std::uint32_t records = 0;
        std::uint32_t position = freed_.load(std::memory_order_relaxed);
        const std::uint32_t end = next();
        while (position != end && records <= mask_) {
            const std::uint32_t lines = places_[place_of(position)].load(std::memory_order_relaxed);
            if (lines == 0) {
                break;  // the record was given back meanwhile
            }
            ++records;
            if ((lines & kReleased) == 0) {
                all.push_back({.buffer = place_of(position), .qp = qp, .later = records});
            }
            position += lines & ~kReleased;
        }
        for (HeldBuffer& buffer : all) {
            buffer.later = records - buffer.later;
        }
        return all;
    }

private:
    static constexpr std::uint32_t kReleased = 1u << 31;
    // At most this many looks are skipped before an incomplete record is read again.
    static constexpr std::uint32_t kWaitMax = 256;

    /// The last line of a record that begins at `position`.
    [[nodiscard]] std::uint32_t place_of(std::uint32_t position) const noexcept { return mask_ - (position & mask_); }
    /// Reads word number `word` of the words at the end of a record.
    [[nodiscard]] std::uint64_t load(std::uint32_t place, std::size_t word) const noexcept {
        return load(words_of(place) + word * sizeof(std::uint64_t));
    }
    [[nodiscard]] std::byte* words_of(std::uint32_t place) const noexcept {
        return memory_ + (std::size_t{place} + 1) * kCacheLine - kRecordTail;
    }
    [[nodiscard]] [[gnu::always_inline]] static std::uint64_t load(std::byte* word) noexcept {
        // Acquire, pairs with the release store of a packet's last word in the software device.
        return std::atomic_ref<std::uint64_t>(*reinterpret_cast<std::uint64_t*>(word)).load(std::memory_order_acquire);
    }

    /// The word in which the next record's stamp arrives if the record begins at `position`. The stamp distinguishes
    /// the record from older contents.
    struct Awaited {
        std::byte* word = nullptr;
        std::uint32_t stamp = 0;
        std::uint32_t position = 0;
    };
    [[nodiscard]] [[gnu::always_inline]] bool begun(const Awaited& awaited) const noexcept {
        return static_cast<std::uint32_t>(load(awaited.word) >> 32) == awaited.stamp;
    }
    void await_next() noexcept {
        const std::uint32_t to_end = lines() - (next() & mask_);
        const std::uint32_t skipped = to_end < lines() / 4 ? to_end : 0;
        for (std::uint32_t i = 0; i < awaited_.size(); ++i) {
            const std::uint32_t position = next() + i * skipped;
            awaited_[i].word = words_of(place_of(position));
            awaited_[i].stamp = RecordHeader::stamp(position, seed_);
            awaited_[i].position = position;
        }
    }

    [[nodiscard]] Look read(std::uint32_t position, std::uint32_t skipped, std::uint64_t first,
                            Record& record) noexcept {
        if (wait_ != 0) {
            --wait_;
            return Look::nothing;
        }
        const std::uint32_t place = place_of(position);
        // The seal is read first. If the device writes in order, the seal arrives last, so the record is complete.
        const std::uint64_t seal = load(place, 2);
        const RecordHeader::Words words{first, load(place, 1)};
        const RecordHeader header = RecordHeader::unpack(words);
        if (header.length > message_max() || header.skipped != skipped || record_lines(header.length) > place + 1 ||
            seal != seal_of(words, seed_, in_order_ ? 0 : sum(place, header.length))) {
            torn_ += misses_ == 0;
            misses_ = std::min(misses_ + 1, kWaitMax);
            wait_ = in_order_ ? 0 : misses_;  // a sum takes long to compute, so each failed look makes the pause longer
            return Look::nothing;
        }
        misses_ = 0;
        record = {header, place};
        return position + record_lines(header.length) - freed_.load(std::memory_order_relaxed) > lines() ? Look::lie
                                                                                                         : Look::record;
    }

    [[nodiscard]] std::uint64_t sum(std::uint32_t place, std::uint32_t length) const noexcept {
        PayloadSum sum;
        const std::byte* bytes = memory_ + (std::size_t{place} + 1) * kCacheLine - record_bytes(length);
        for (std::uint32_t at = 0; at < length; at += sizeof(std::uint64_t)) {
            // Relaxed: the sum shows whether the words belong together.
            auto* word = reinterpret_cast<std::uint64_t*>(const_cast<std::byte*>(bytes + at));
            sum.add(std::atomic_ref<std::uint64_t>(*word).load(std::memory_order_relaxed));
        }
        return sum.finish();
    }

    std::array<Awaited, 2> awaited_{};
    std::byte* memory_;
    std::uint32_t mask_;
    std::uint32_t held_max_;
    std::uint32_t held_ = 0;
    bool in_order_ = false;
    bool end_held_ = false;
    std::uint64_t secret_;
    std::uint64_t seed_ = 0;
    std::uint64_t lives_ = 0;
    std::uint32_t misses_ = 0;  ///< looks in a row that found the next record incomplete
    std::uint32_t wait_ = 0;    ///< looks that must still be skipped
    std::uint64_t torn_ = 0;
    std::atomic<std::uint32_t> qp_{0};
    std::atomic<std::uint32_t> next_{0};
    std::atomic<std::uint32_t> freed_{0};  ///< the application has given back all records before this position
    /// For each line: the length, in lines, of the record or gap whose place this line is, or 0 if there is none.
    /// kReleased is set for a gap, and for a record that was given back.
    std::vector<std::atomic<std::uint32_t>> places_;
};

}  // namespace pollcore
