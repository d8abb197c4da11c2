// A ring of fixed-size slots between one producer and one consumer, in one process or in two.
//
// Thread safety: at any time, one thread holds the RingProducer and one thread holds the RingConsumer. The thread that
// holds an object may use it. Both classes are move-only.
//
// Each slot shows by itself whether it is ready (D1): its last byte holds the *lap*, the number of times that the
// producer went round the ring, plus one. The lap is stored last, in one store together with the seven bytes before it,
// and is read by a load of the same size (D6). The consumer polls the cache line that it is going to read, so a
// hand-over moves one line; a ring with a shared index moves two. The producer writes only the slot, in as few stores
// as possible (D5). The consumer gives slots back in batches (D13), by an index on a cache line of its own. Before it
// writes, the producer reads this index only if its own copy of the index shows too few free slots.
//
// commit() publishes a batch through its first slot, which is held back until all others are written (D4). The consumer
// polls the line of this slot, and looks at the others only after the slot is published. So while the producer writes
// the batch, the consumer fetches none of its lines.
//
// A consumer may write an answer into a slot that it took, until it tells the producer that the slot is given back
// (D50). The line goes back to the producer's core anyway.
//
// Invariants
//   - If the consumer finds that a slot and all slots before it hold their laps, all bytes of these slots are written.
//   - released <= produced <= released + capacity, in 64-bit arithmetic that may wrap.
//   - The layout contains no addresses, so each side may map the ring where it likes.
// The ring itself relies on neither side. broken() reports an index that moved too far. At worst, wrong lap bytes make
// slots look ready whose contents mean nothing.
#pragma once

#include <atomic>
#include <bit>
#include <cassert>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>
#include <type_traits>
#include <utility>

#include "pollcore/limits.hpp"
#include "pollcore/schedule_point.hpp"
#include "pollcore/words.hpp"

namespace pollcore {

/// The header before the slots. The consumer's index has a cache line of its own.
struct RingHeader {
    static constexpr std::uint32_t kMagic = 0x676e6952;  // "Ring"
    static constexpr std::uint32_t kVersion = 3;

    std::uint32_t magic = kMagic;
    std::uint32_t version = kVersion;
    std::uint32_t slot_bytes = 0;
    std::uint32_t capacity = 0;

    alignas(kCacheLine) std::atomic<std::uint64_t> released{0};  ///< written by the consumer
    /// The most occupied slots that the producer has seen. It looks when the ring may be full, so at least once in each
    /// lap. Written by the producer.
    alignas(kCacheLine) std::atomic<std::uint64_t> high_water{0};
};
static_assert(sizeof(RingHeader) == 3 * kCacheLine && offsetof(RingHeader, released) == kCacheLine);
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

template <class T>
concept RingSlot = std::is_trivially_copyable_v<T> && kCacheLine % sizeof(T) == 0 && sizeof(T) % sizeof(Word) == 0 &&
                   alignof(T) % alignof(Word) == 0 &&
                   std::is_same_v<decltype(T::ring_lap), std::uint8_t>&& offsetof(T, ring_lap) == sizeof(T) - 1;

template <RingSlot T>
class RingProducer;
template <RingSlot T>
class RingConsumer;

/// Bytes of memory for a ring of `capacity` slots (a power of two).
template <RingSlot T>
[[nodiscard]] constexpr std::size_t ring_bytes(std::uint32_t capacity) noexcept {
    return sizeof(RingHeader) + std::size_t{capacity} * sizeof(T);
}

namespace ring_detail {

[[nodiscard]] constexpr std::uint8_t lap_of(std::uint64_t index, unsigned capacity_log2) noexcept {
    return static_cast<std::uint8_t>((index >> capacity_log2) + 1);
}

inline constexpr unsigned kLapShift = 56;
inline constexpr std::uint64_t kBelowLap = (std::uint64_t{1} << kLapShift) - 1;

template <class T>
[[nodiscard]] Word* last_word(T& slot) noexcept {
    return words_of(slot) + sizeof(T) / sizeof(Word) - 1;
}

// Takes the cache line into this core's cache, in a writable state. Without -mprfchw, the compiler's builtin would
// fetch the line only for reading.
inline void prefetch_for_write(const void* line) noexcept {
#if defined(__x86_64__)
    asm volatile("prefetchw %0" : : "m"(*static_cast<const char*>(line)));
#else
    __builtin_prefetch(line, 1);
#endif
}

}  // namespace ring_detail

/// Makes an empty ring in `memory`, which must be cache-line aligned and ring_bytes<T>(capacity) long. Both indices
/// start at `start`. A value other than 0 is for tests of wrap-around.
template <RingSlot T>
void format_ring(void* memory, std::uint32_t capacity, std::uint64_t start = 0) noexcept {
    auto* header = new (memory) RingHeader;
    header->slot_bytes = sizeof(T);
    header->capacity = capacity;
    header->released.store(start, std::memory_order_relaxed);
    auto* slots = reinterpret_cast<T*>(static_cast<std::byte*>(memory) + sizeof(RingHeader));
    const auto log2 = static_cast<unsigned>(std::countr_zero(capacity));
    for (std::uint64_t i = 0; i < capacity; ++i) {
        // Each slot gets the lap before the one that it will get at its first use.
        const std::uint64_t last_use = start + i - capacity;
        T& slot = slots[last_use & (capacity - 1)];
        std::memset(static_cast<void*>(&slot), 0, sizeof(T));
        slot.ring_lap = ring_detail::lap_of(last_use, log2);
    }
}

/// The side that writes slots. Move-only; one thread at a time.
template <RingSlot T>
class RingProducer {
public:
    RingProducer() = default;
    /// Joins a formatted ring at the place where the previous producer stopped. The previous producer must have
    /// committed all slots that it wrote. The caller must pass the right `capacity`, because the header is not trusted.
    RingProducer(void* memory, std::uint32_t capacity) noexcept
        : header_(static_cast<RingHeader*>(memory)),
          slots_(reinterpret_cast<T*>(static_cast<std::byte*>(memory) + sizeof(RingHeader))),
          mask_(capacity - 1),
          capacity_log2_(static_cast<unsigned>(std::countr_zero(capacity))),
          released_cached_(header_->released.load(std::memory_order_acquire)) {
        tail_ = released_cached_;
        for (std::uint32_t i = 0;
             i < capacity &&
             __atomic_load_n(ring_detail::last_word(at(0)), __ATOMIC_RELAXED) >> ring_detail::kLapShift == lap_of(0);
             ++i) {
            ++tail_;
        }
    }

    RingProducer(RingProducer&& other) noexcept { *this = std::move(other); }
    RingProducer& operator=(RingProducer&& other) noexcept {
        header_ = std::exchange(other.header_, nullptr);
        slots_ = other.slots_;
        mask_ = other.mask_;
        capacity_log2_ = other.capacity_log2_;
        broken_ = other.broken_;
        tail_ = other.tail_;
        released_cached_ = other.released_cached_;
        first_ = other.first_;
        return *this;
    }
    RingProducer(const RingProducer&) = delete;
    RingProducer& operator=(const RingProducer&) = delete;

    [[nodiscard]] std::uint32_t capacity() const noexcept { return static_cast<std::uint32_t>(mask_ + 1); }

    /// Begins to fetch the next slot's line for writing (D3). A caller that has other things to do before it writes the
    /// slot should call this first: the consumer polls that line, so the fetch takes as long as a transfer between the
    /// two cores. Does nothing while the ring may be full.
    void prefetch() const noexcept {
        if (tail_ - released_cached_ <= mask_) [[likely]] {
            ring_detail::prefetch_for_write(&at(0));
        }
    }

    /// Returns how many slots may be written now: `wanted`, or fewer if the ring has fewer free slots.
    [[nodiscard]] std::size_t reserve(std::size_t wanted) noexcept {
        std::size_t room = capacity() - static_cast<std::size_t>(tail_ - released_cached_);
        if (room < wanted) [[unlikely]] {
            refresh();
            room = capacity() - static_cast<std::size_t>(tail_ - released_cached_);
        }
        return room < wanted ? room : wanted;
    }

    /// Writes the i-th reserved slot. The next commit() must include this slot, and only then the consumer sees it.
    void write(std::size_t i, const T& value) noexcept {
        write(i, [&](T& slot) { return all_but_last(slot, value); });
    }
    /// Writes the i-th reserved slot. `fill` gets the slot, or its copy, whose old bytes mean nothing. It writes all
    /// bytes except for the last eight, and returns the last eight as a number. The ring replaces the highest of these
    /// eight bytes by the lap.
    template <std::invocable<T&> Fill>
    void write(std::size_t i, Fill&& fill) noexcept {
        T& slot = written(i);
        // Relaxed: commit() publishes the slot.
        __atomic_store_n(ring_detail::last_word(slot), with_lap(fill(slot), lap_of(i)), __ATOMIC_RELAXED);
    }

    /// Publishes the first n reserved slots together: a consumer that sees the first slot sees all n. n >= 1. All
    /// slots written since the last commit must be among them: the consumer would take a slot that is left out, and the
    /// producer would write it again.
    void commit(std::size_t n) noexcept {
        assert(n >= 1);
        publish(at(0), move_first());
        tail_ += n;
    }

    /// Does reserve(1), write() and commit(1) in one call. Returns false if the ring is full.
    [[nodiscard]] bool try_push(const T& value) noexcept {
        return try_push([&](T& slot) { return all_but_last(slot, value); });
    }
    template <std::invocable<T&> Fill>
    [[nodiscard]] bool try_push(Fill&& fill) noexcept {
        if (reserve(1) == 0) {
            return false;
        }
        publish(at(0), with_lap(fill(at(0)), lap_of(0)));
        ++tail_;
        return true;
    }

    /// The i-th slot that was written and is not committed yet. The caller may change all bytes of the slot except for
    /// the last eight.
    [[nodiscard]] T& written(std::size_t i) noexcept { return i == 0 ? first_ : at(i); }

    /// The committed slot number `index`, counted as produced() counts. `last` receives the last eight bytes of the
    /// slot as the consumer has left them: see RingConsumer::answer.
    [[nodiscard]] const T& answered(std::uint64_t index, std::uint64_t& last) const noexcept {
        T& slot = slots_[index & mask_];
        // Acquire, pairs with the release in RingConsumer::answer: the whole answer is visible.
        last = __atomic_load_n(ring_detail::last_word(slot), __ATOMIC_ACQUIRE);
        return slot;
    }

    /// Slots committed since the ring was made, as this side counts them.
    [[nodiscard]] std::uint64_t produced() const noexcept { return tail_; }
    /// Committed slots that the consumer has not given back. Reads the consumer's index again.
    [[nodiscard]] std::uint64_t unreleased() noexcept {
        refresh();
        return tail_ - released_cached_;
    }
    /// The i-th of the slots that the last call of unreleased() has counted.
    [[nodiscard]] const T& unreleased_slot(std::size_t i) const noexcept {
        return slots_[(released_cached_ + i) & mask_];
    }
    /// Whether the consumer's index moved backwards or past the committed slots. Such a consumer cannot be trusted.
    [[nodiscard]] bool broken() const noexcept { return broken_; }

private:
    [[nodiscard]] T& at(std::size_t i) const noexcept { return slots_[(tail_ + i) & mask_]; }

    [[nodiscard]] std::uint8_t lap_of(std::size_t i) const noexcept {
        return ring_detail::lap_of(tail_ + i, capacity_log2_);
    }
    [[nodiscard]] static std::uint64_t with_lap(std::uint64_t last, std::uint8_t lap) noexcept {
        return (last & ring_detail::kBelowLap) | std::uint64_t{lap} << ring_detail::kLapShift;
    }

    static std::uint64_t all_but_last(T& slot, const T& value) noexcept {
        constexpr std::size_t kBytes = sizeof(T) - sizeof(Word);
        if constexpr (kBytes > 0) {
            std::memcpy(static_cast<void*>(&slot), &value, kBytes);
        }
        std::uint64_t last;
        std::memcpy(&last, reinterpret_cast<const std::byte*>(&value) + kBytes, sizeof(last));
        return last;
    }

    /// Copies the held-back first slot to its place in the ring, except for its last word. Returns the last word.
    std::uint64_t move_first() noexcept {
        constexpr std::size_t kLast = sizeof(T) / sizeof(Word) - 1;
        Word* const to = words_of(at(0));
        const SharedWords from(
            words_of(first_));  // word by word: a wider load would wait for the smaller stores to first_ (D10)
        for (std::size_t i = 0; i < kLast; ++i) {
            to[i] = from[i];
        }
        return from[kLast];
    }

    /// Stores the last word of the slot. This publishes all slots that were written.
    static void publish(T& slot, std::uint64_t last) noexcept {
        schedule_point(SchedulePoint::publish);
        // Release, pairs with the acquire in RingConsumer::ready: the bytes of all slots, and the laps of the other
        // slots, are visible before this store.
        __atomic_store_n(ring_detail::last_word(slot), last, __ATOMIC_RELEASE);
    }

    void refresh() noexcept {
        const std::uint64_t released = read_released(header_, tail_);
        if (released - released_cached_ > tail_ - released_cached_) {
            broken_ = true;
            return;
        }
        released_cached_ = released;
    }
    // Static, so that a compiler can keep this object's members in registers in a loop that pushes (D5). Otherwise each
    // turn of the loop would also store to this object, which delays the fetching of other lines.
    [[nodiscard, gnu::noinline]] static std::uint64_t read_released(RingHeader* header, std::uint64_t tail) noexcept {
        // Acquire, pairs with the release in RingConsumer::publish: the consumer's reads come before our next writes.
        const std::uint64_t released = header->released.load(std::memory_order_acquire);
        // Relaxed: a statistic with one writer. It means nothing if the consumer has tampered with its index.
        if (tail - released > header->high_water.load(std::memory_order_relaxed)) [[unlikely]] {
            header->high_water.store(tail - released, std::memory_order_relaxed);
        }
        return released;
    }

    RingHeader* header_ = nullptr;
    T* slots_ = nullptr;
    std::uint64_t mask_ = 0;
    unsigned capacity_log2_ = 0;
    bool broken_ = false;
    std::uint64_t tail_ = 0;
    std::uint64_t released_cached_ = 0;  // private copy of RingHeader::released
    T first_{};                          // the slot at the tail, until commit() writes it
};

/// The side that reads slots and gives them back. Move-only; one thread at a time.
template <RingSlot T>
class RingConsumer {
public:
    /// A consumer answers only in rings of at least this many slots: see release_later().
    static constexpr std::uint32_t kAnsweredInFrom = 32;

    RingConsumer() = default;
    RingConsumer(void* memory, std::uint32_t capacity) noexcept
        : header_(static_cast<RingHeader*>(memory)),
          slots_(reinterpret_cast<T*>(static_cast<std::byte*>(memory) + sizeof(RingHeader))),
          mask_(capacity - 1),
          capacity_log2_(static_cast<unsigned>(std::countr_zero(capacity))),
          // Slots are given back in batches (D13). A small ring has small batches: its producer must not wait for slots
          // that are free already.
          release_batch_(capacity / 8 > 64 ? 64 : (capacity / 8 == 0 ? 1 : capacity / 8)),
          head_(header_->released.load(std::memory_order_relaxed)),
          published_(head_) {}

    RingConsumer(RingConsumer&& other) noexcept { *this = std::move(other); }
    RingConsumer& operator=(RingConsumer&& other) noexcept {
        header_ = std::exchange(other.header_, nullptr);
        slots_ = other.slots_;
        mask_ = other.mask_;
        capacity_log2_ = other.capacity_log2_;
        release_batch_ = other.release_batch_;
        head_ = other.head_;
        published_ = other.published_;
        return *this;
    }
    RingConsumer(const RingConsumer&) = delete;
    RingConsumer& operator=(const RingConsumer&) = delete;

    [[nodiscard]] std::uint32_t capacity() const noexcept { return static_cast<std::uint32_t>(mask_ + 1); }

    /// Whether the i-th slot from the front is published. All slots before it must be published.
    [[nodiscard]] bool ready(std::size_t i = 0) const noexcept {
        std::uint64_t last = 0;
        return ready(i, last);
    }

    /// Whether the front slot is published. Fetches the line for writing, because the consumer will answer in that slot
    /// (D16). The producer has to fetch the line back in any case, so a fetch only for reading saves nothing.
    [[nodiscard]] bool ready_to_answer() const noexcept {
        T& slot = slots_[head_ & mask_];
        ring_detail::prefetch_for_write(&slot);
        // Acquire, pairs with the release in RingProducer::publish.
        return __atomic_load_n(ring_detail::last_word(slot), __ATOMIC_ACQUIRE) >> ring_detail::kLapShift ==
               ring_detail::lap_of(head_, capacity_log2_);
    }
    /// As ready(i). `last` receives the slot's last word, which holds the lap and is read only once.
    [[nodiscard]] bool ready(std::size_t i, std::uint64_t& last) const noexcept { return front().ready(i, last); }

    /// Slots that are contiguous in memory, for a loop that gives no slots back.
    class Run {
    public:
        Run(const T* slots, std::size_t size, std::uint8_t lap) noexcept : slots_(slots), size_(size), lap_(lap) {}
        [[nodiscard]] std::size_t size() const noexcept { return size_; }
        /// As RingConsumer::ready.
        [[nodiscard]] bool ready(std::size_t i, std::uint64_t& last) const noexcept {
            // Acquire, pairs with the release in RingProducer::publish.
            last = __atomic_load_n(ring_detail::last_word(const_cast<T&>(slots_[i])), __ATOMIC_ACQUIRE);
            return last >> ring_detail::kLapShift == lap_;
        }
        /// As RingConsumer::slot.
        [[nodiscard]] const T& slot(std::size_t i) const noexcept {
            schedule_point(SchedulePoint::take);
            return slots_[i];
        }

    private:
        const T* slots_;
        std::size_t size_;
        std::uint64_t lap_;
    };

    /// The front of the ring, for a loop that gives no slots back. It holds copies of the RingConsumer's values. A
    /// compiler can keep the copies in registers, whatever the loop writes.
    class Front {
    public:
        explicit Front(const RingConsumer& ring) noexcept
            : slots_(ring.slots_), mask_(ring.mask_), head_(ring.head_), capacity_log2_(ring.capacity_log2_) {}
        /// As RingConsumer::ready.
        [[nodiscard]] bool ready(std::size_t i, std::uint64_t& last) const noexcept {
            const std::uint64_t index = head_ + i;
            // Acquire, pairs with the release in RingProducer::publish.
            last = __atomic_load_n(ring_detail::last_word(slots_[index & mask_]), __ATOMIC_ACQUIRE);
            return last >> ring_detail::kLapShift == ring_detail::lap_of(index, capacity_log2_);
        }
        /// The slots from the i-th on, up to the end of the ring's memory. All ready slots among them have the same
        /// lap.
        [[nodiscard]] Run run(std::size_t i) const noexcept {
            const std::uint64_t index = head_ + i;
            return Run(&slots_[index & mask_], static_cast<std::size_t>(mask_ + 1 - (index & mask_)),
                       ring_detail::lap_of(index, capacity_log2_));
        }
        [[nodiscard]] SharedWords words(std::size_t i) const noexcept {
            schedule_point(SchedulePoint::take);
            return SharedWords(words_of(slots_[(head_ + i) & mask_]));
        }

    private:
        T* const slots_;
        const std::uint64_t mask_;
        const std::uint64_t head_;
        const unsigned capacity_log2_;
    };
    [[nodiscard]] Front front() const noexcept { return Front(*this); }

    /// The lap of the next slot. A CPU that can watch a cache line may wait for a change of this byte.
    [[nodiscard]] const std::uint8_t* next_lap() const noexcept { return &slots_[head_ & mask_].ring_lap; }

    /// The number of ready slots at the front, at most `wanted`.
    [[nodiscard]] std::size_t peek(std::size_t wanted) const noexcept {
        const std::size_t most = wanted < capacity() ? wanted : capacity();
        std::size_t n = 0;
        while (n < most && ready(n)) {
            ++n;
        }
        return n;
    }

    /// The i-th ready slot, in place. The producer must be trusted not to change the slot.
    [[nodiscard]] const T& slot(std::size_t i) const noexcept {
        schedule_point(SchedulePoint::take);
        return slots_[(head_ + i) & mask_];
    }

    /// A copy of the i-th ready slot. Each byte is read once, so a hostile producer cannot change a byte between its
    /// check and its use.
    [[nodiscard, gnu::always_inline]] T copy(std::size_t i) const noexcept {
        schedule_point(SchedulePoint::take);
        T value;
        std::memcpy(static_cast<void*>(&value), &slots_[(head_ + i) & mask_], sizeof(T));
        // The compiler must assume that this statement changes the copy, so it cannot read a field from the slot again.
        asm volatile("" : "+m"(value));
        return value;
    }

    /// The words of the i-th ready slot, for a caller that does not need all of them.
    [[nodiscard]] SharedWords words(std::size_t i) const noexcept { return front().words(i); }

    /// Gives back the first n slots. The producer learns of given-back slots in batches, or by publish().
    void release(std::size_t n) noexcept {
        head_ += n;
        if (head_ - published_ >= release_batch_) {
            publish();
        }
    }

    /// As release(), for slots in which the consumer may still answer. The producer learns later that the slots are
    /// free, but at most a quarter of the ring is held back. In a ring of fewer than kAnsweredInFrom slots the producer
    /// learns at once, because such a ring has no slots to spare.
    void release_later(std::size_t n) noexcept {
        head_ += n;
        if (head_ - published_ >= 2 * release_batch_ || capacity() < kAnsweredInFrom) {
            publish();
        }
    }

    /// Whether slot number `index` was given back and the producer does not know it yet.
    [[nodiscard]] bool holds(std::uint64_t index) const noexcept { return index - published_ < head_ - published_; }

    /// Fetches the lines of the next `n` slots, but for the line of the front slot (D3). Most of these slots should be
    /// written already: the line of a slot that is not written yet makes one more round trip.
    void prefetch_next(std::size_t n) const noexcept {
        constexpr std::size_t kPerLine = kCacheLine / sizeof(T);
        for (std::size_t i = kPerLine; i < n; i += kPerLine) {
            __builtin_prefetch(&slots_[(head_ + i) & mask_]);
        }
    }
    /// Fetches the line of slot number `index` for writing, before an answer.
    void prefetch(std::uint64_t index) const noexcept { ring_detail::prefetch_for_write(&slots_[index & mask_]); }

    /// Answers in slot number `index` (D50): stores `value` in word `at` of the slot, and then sets `bits` in the
    /// slot's last word, where the producer looks for them. holds(index) must be true.
    void answer(std::uint64_t index, std::size_t at, std::uint64_t value, std::uint64_t bits) noexcept {
        T& slot = slots_[index & mask_];
        schedule_point(SchedulePoint::publish);
        __atomic_store_n(words_of(slot) + at, value, __ATOMIC_RELAXED);
        // Relaxed: nobody else writes this word now. The producer wrote it before this side saw the slot, and writes it
        // again only after it has learned that the slot is given back.
        const std::uint64_t last = __atomic_load_n(ring_detail::last_word(slot), __ATOMIC_RELAXED);
        // Release, pairs with the acquire in RingProducer::answered.
        __atomic_store_n(ring_detail::last_word(slot), last | bits, __ATOMIC_RELEASE);
    }

    /// Tells the producer of every slot given back so far.
    void publish() noexcept {
        if (unpublished()) {
            schedule_point(SchedulePoint::release);
            published_ = head_;
            // Release, pairs with the acquire in RingProducer::read_released: our reads and answers come before the
            // producer's next writes.
            header_->released.store(head_, std::memory_order_release);
        }
    }

    [[nodiscard]] bool unpublished() const noexcept { return published_ != head_; }
    [[nodiscard]] std::uint64_t released() const noexcept { return head_; }
    /// Given-back slots that the producer knows of.
    [[nodiscard]] std::uint64_t published() const noexcept { return published_; }

private:
    RingHeader* header_ = nullptr;
    T* slots_ = nullptr;
    std::uint64_t mask_ = 0;
    unsigned capacity_log2_ = 0;
    std::uint32_t release_batch_ = 1;
    std::uint64_t head_ = 0;
    std::uint64_t published_ = 0;  // RingHeader::released as this side last wrote it
};

}  // namespace pollcore
