// A ring of fixed-size slots between one producer and one consumer, in one process or in two.
//
// Thread safety: exactly one thread holds the RingProducer and exactly one the RingConsumer at a time.
// Holding the object is the permission; both are move-only.
//
// Readiness is written into the slot itself (D1): the last byte of each slot holds the *lap* (how often the
// producer went round, plus one). It is stored last, in one store with the seven bytes before it, and read by an access
// of that size (D6). The consumer polls the line that it is going to read, so a hand-over moves one cache line; an
// index ring moves two. The producer stores nothing but the slot, in as few stores as possible (D5). The consumer gives
// slots back in batches (D13), through an index on a line of its own, which the producer reads only when its cached
// copy says that the ring is full.
//
// commit() publishes a batch through its first slot, which is held back until all others are written (D4). So each line
// is written in one go, and a consumer that takes slots in order does not look at one before it has seen all slots
// ahead of it.
//
// A consumer may write an answer into a slot that it took, until it tells the producer that the slot is given back
// (D50): the line goes to the producer's core anyway.
//
// Invariants
//   - Slot i of lap l, and all slots ahead of it, hold their laps if and only if all their bytes have been written.
//   - released <= produced <= released + capacity, in 64-bit arithmetic that may wrap.
//   - The layout holds no address: each side may map it where it likes.
// Neither side trusts the other: broken() reports an index that moved too far, and wrong lap bytes can at worst make
// slots look ready that hold nothing meaningful.
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

/// The header before the slots. Each writer has a line, so that neither slows the other down.
struct RingHeader {
    static constexpr std::uint32_t kMagic = 0x676e6952;  // "Ring"
    static constexpr std::uint32_t kVersion = 2;

    std::uint32_t magic = kMagic;
    std::uint32_t version = kVersion;
    std::uint32_t slot_bytes = 0;
    std::uint32_t capacity = 0;

    alignas(kCacheLine) std::atomic<std::uint64_t> released{0};  ///< written by the consumer
};
static_assert(sizeof(RingHeader) == 2 * kCacheLine && offsetof(RingHeader, released) == kCacheLine);
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

template <class T>
concept RingSlot = std::is_trivially_copyable_v<T> && kCacheLine % sizeof(T) == 0 && sizeof(T) % sizeof(Word) == 0 &&
                   alignof(T) % alignof(Word) == 0 &&
                   std::is_same_v<decltype(T::ring_lap), std::uint8_t>&& offsetof(T, ring_lap) == sizeof(T) - 1;

template <RingSlot T>
class RingProducer;
template <RingSlot T>
class RingConsumer;

/// Bytes that a ring of `capacity` slots (a power of two) takes.
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

// Takes the line into this core's cache in a writable state before it is needed. Without -mprfchw the
// compiler's builtin would only fetch it for reading.
inline void prefetch_for_write(const void* line) noexcept {
#if defined(__x86_64__)
    asm volatile("prefetchw %0" : : "m"(*static_cast<const char*>(line)));
#else
    __builtin_prefetch(line, 1);
#endif
}

}  // namespace ring_detail

/// Makes an empty ring in `memory`, which is cache-line aligned and ring_bytes<T>(capacity) long. Both
/// indices start at `start`; anything but 0 is for tests of wrap-around.
template <RingSlot T>
void format_ring(void* memory, std::uint32_t capacity, std::uint64_t start = 0) noexcept {
    auto* header = new (memory) RingHeader;
    header->slot_bytes = sizeof(T);
    header->capacity = capacity;
    header->released.store(start, std::memory_order_relaxed);
    auto* slots = reinterpret_cast<T*>(static_cast<std::byte*>(memory) + sizeof(RingHeader));
    const auto log2 = static_cast<unsigned>(std::countr_zero(capacity));
    for (std::uint64_t i = 0; i < capacity; ++i) {
        // Each slot looks as if its latest use was one lap before the index that will write it next.
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
    /// Joins a formatted ring at the place where the previous producer stopped; that one must have committed all that
    /// it wrote. This side must know that `capacity` is right: the header is not trusted.
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

    /// Fetches the next slot's line for writing (D3), for a caller that has something to do before it writes there: the
    /// consumer polls that line, and fetching it takes as long as a hop. Does nothing while the ring may be full.
    void prefetch() const noexcept {
        if (tail_ - released_cached_ <= mask_) [[likely]] {
            ring_detail::prefetch_for_write(&at(0));
        }
    }

    /// Slots that may be written now: `wanted`, or fewer when the ring has no more.
    [[nodiscard]] std::size_t reserve(std::size_t wanted) noexcept {
        std::size_t room = capacity() - static_cast<std::size_t>(tail_ - released_cached_);
        if (room < wanted) [[unlikely]] {
            refresh();
            room = capacity() - static_cast<std::size_t>(tail_ - released_cached_);
        }
        return room < wanted ? room : wanted;
    }

    /// Writes the i-th reserved slot. The consumer does not see it before the commit() that follows, which must include
    /// it.
    void write(std::size_t i, const T& value) noexcept {
        write(i, [&](T& slot) { return all_but_last(slot, value); });
    }
    /// Writes the i-th reserved slot in place. `fill` gets the slot, whose old bytes mean nothing, writes all but the
    /// last eight bytes, and returns those eight; the ring replaces the highest of them.
    template <std::invocable<T&> Fill>
    void write(std::size_t i, Fill&& fill) noexcept {
        T& slot = written(i);
        // Relaxed: commit() publishes it.
        __atomic_store_n(ring_detail::last_word(slot), with_lap(fill(slot), lap_of(i)), __ATOMIC_RELAXED);
    }

    /// Publishes the first n reserved slots together: a consumer that sees the first sees all n. n >= 1. They must be
    /// all slots written since the last commit: a slot left out would be seen behind a later commit.
    void commit(std::size_t n) noexcept {
        assert(n >= 1);
        publish(at(0), move_first());
        tail_ += n;
    }

    /// reserve(1), write and commit(1) in one. False when the ring is full.
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

    /// The i-th slot that was written and is not committed. The caller may change all but its last eight bytes.
    [[nodiscard]] T& written(std::size_t i) noexcept { return i == 0 ? first_ : at(i); }

    /// The committed slot of that index. `last` gets its last eight bytes as the consumer has left them: see
    /// RingConsumer::answer.
    [[nodiscard]] const T& answered(std::uint64_t index, std::uint64_t& last) const noexcept {
        T& slot = slots_[index & mask_];
        // Acquire, with the release in RingConsumer::answer: the whole answer is visible.
        last = __atomic_load_n(ring_detail::last_word(slot), __ATOMIC_ACQUIRE);
        return slot;
    }

    /// Slots written since the ring began; this side's own figure.
    [[nodiscard]] std::uint64_t produced() const noexcept { return tail_; }
    /// Slots that the consumer has not given back; reads its index anew.
    [[nodiscard]] std::uint64_t unreleased() noexcept {
        refresh();
        return tail_ - released_cached_;
    }
    /// The i-th slot that the consumer had not given back at the last unreleased(); i < unreleased().
    [[nodiscard]] const T& unreleased_slot(std::size_t i) const noexcept {
        return slots_[(released_cached_ + i) & mask_];
    }
    /// The consumer's index moved backwards or past the written slots: the peer cannot be trusted.
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

    /// Copies the held-back first slot to its place, all but its last word, which is returned.
    std::uint64_t move_first() noexcept {
        constexpr std::size_t kLast = sizeof(T) / sizeof(Word) - 1;
        Word* const to = words_of(at(0));
        const SharedWords from(
            words_of(first_));  // word by word: a wider load would wait for the smaller stores that made it (D10)
        for (std::size_t i = 0; i < kLast; ++i) {
            to[i] = from[i];
        }
        return from[kLast];
    }

    /// Stores the last word of the slot, which publishes all that was written.
    static void publish(T& slot, std::uint64_t last) noexcept {
        schedule_point(SchedulePoint::publish);
        // Release, with the acquire in RingConsumer::ready: the bytes of all slots, and the other slots' laps, come
        // before this.
        __atomic_store_n(ring_detail::last_word(slot), last, __ATOMIC_RELEASE);
    }

    void refresh() noexcept {
        const std::uint64_t released = read_released(header_);
        if (released - released_cached_ > tail_ - released_cached_) {
            broken_ = true;
            return;
        }
        released_cached_ = released;
    }
    // Static, so that a loop that pushes may keep this object's members in registers (D5): a store to the object beside
    // each slot would delay the fetching of other lines.
    [[nodiscard, gnu::noinline]] static std::uint64_t read_released(const RingHeader* header) noexcept {
        // Acquire, with the release in RingConsumer::publish: the consumer's reads come before our next writes.
        return header->released.load(std::memory_order_acquire);
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
    /// In rings of fewer slots nothing is answered: see release_later().
    static constexpr std::uint32_t kAnsweredInFrom = 32;

    RingConsumer() = default;
    RingConsumer(void* memory, std::uint32_t capacity) noexcept
        : header_(static_cast<RingHeader*>(memory)),
          slots_(reinterpret_cast<T*>(static_cast<std::byte*>(memory) + sizeof(RingHeader))),
          mask_(capacity - 1),
          capacity_log2_(static_cast<unsigned>(std::countr_zero(capacity))),
          // Lazily (D13), but not so that a small ring waits for slots that are free.
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

    /// Whether the i-th slot from the front is published, given that all slots ahead of it are.
    [[nodiscard]] bool ready(std::size_t i = 0) const noexcept {
        std::uint64_t last = 0;
        return ready(i, last);
    }

    /// As ready(), for a consumer that will answer in that slot: fetches the line for writing (D16). The producer would
    /// have to fetch back a line that was only read, too.
    [[nodiscard]] bool ready_to_answer() const noexcept {
        T& slot = slots_[head_ & mask_];
        ring_detail::prefetch_for_write(&slot);
        // Acquire, with the release in RingProducer::publish.
        return __atomic_load_n(ring_detail::last_word(slot), __ATOMIC_ACQUIRE) >> ring_detail::kLapShift ==
               ring_detail::lap_of(head_, capacity_log2_);
    }
    /// As ready(); `last` gets the slot's last word, which holds the lap and is read only once.
    [[nodiscard]] bool ready(std::size_t i, std::uint64_t& last) const noexcept { return front().ready(i, last); }

    /// Slots that lie beside each other, for a loop that gives no slots back.
    class Run {
    public:
        Run(const T* slots, std::size_t size, std::uint8_t lap) noexcept : slots_(slots), size_(size), lap_(lap) {}
        [[nodiscard]] std::size_t size() const noexcept { return size_; }
        /// As RingConsumer::ready.
        [[nodiscard]] bool ready(std::size_t i, std::uint64_t& last) const noexcept {
            // Acquire, with the release in RingProducer::publish.
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

    /// The front of the ring, for a loop that gives no slots back. It is a copy of values, which a compiler can keep in
    /// registers whatever the loop writes.
    class Front {
    public:
        explicit Front(const RingConsumer& ring) noexcept
            : slots_(ring.slots_), mask_(ring.mask_), head_(ring.head_), capacity_log2_(ring.capacity_log2_) {}
        /// As RingConsumer::ready and words.
        [[nodiscard]] bool ready(std::size_t i, std::uint64_t& last) const noexcept {
            const std::uint64_t index = head_ + i;
            // Acquire, with the release in RingProducer::publish.
            last = __atomic_load_n(ring_detail::last_word(slots_[index & mask_]), __ATOMIC_ACQUIRE);
            return last >> ring_detail::kLapShift == ring_detail::lap_of(index, capacity_log2_);
        }
        /// The slots from the i-th on, up to the end of the ring's memory. All ready ones among them have one lap.
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

    /// The byte whose change makes the next slot ready, for a CPU that can watch its line.
    [[nodiscard]] const std::uint8_t* next_lap() const noexcept { return &slots_[head_ & mask_].ring_lap; }

    /// Slots ready at the front, at most `wanted`.
    [[nodiscard]] std::size_t peek(std::size_t wanted) const noexcept {
        const std::size_t most = wanted < capacity() ? wanted : capacity();
        std::size_t n = 0;
        while (n < most && ready(n)) {
            ++n;
        }
        return n;
    }

    /// The i-th ready slot, in place. Only for a producer that is trusted not to change it.
    [[nodiscard]] const T& slot(std::size_t i) const noexcept {
        schedule_point(SchedulePoint::take);
        return slots_[(head_ + i) & mask_];
    }

    /// A copy of the i-th ready slot. Each byte is read once, so a hostile producer cannot change it between a check
    /// and its use.
    [[nodiscard, gnu::always_inline]] T copy(std::size_t i) const noexcept {
        schedule_point(SchedulePoint::take);
        T value;
        std::memcpy(static_cast<void*>(&value), &slots_[(head_ + i) & mask_], sizeof(T));
        // The compiler must assume that this changes the copy, so it cannot read a field from the slot again.
        asm volatile("" : "+m"(value));
        return value;
    }

    /// The i-th ready slot by its words, for a caller that does not need them all.
    [[nodiscard]] SharedWords words(std::size_t i) const noexcept { return front().words(i); }

    /// Gives back the first n slots. The producer learns of it in batches, or by publish().
    void release(std::size_t n) noexcept {
        head_ += n;
        if (head_ - published_ >= release_batch_) {
            publish();
        }
    }

    /// As release(), for slots that may still be answered in: the producer is told later, but at most a quarter of the
    /// ring is held back. A small ring has no slots to spare: there the producer is told at once.
    void release_later(std::size_t n) noexcept {
        head_ += n;
        if (head_ - published_ >= 2 * release_batch_ || capacity() < kAnsweredInFrom) {
            publish();
        }
    }

    /// Whether the slot of that index was given back and the producer has not been told yet.
    [[nodiscard]] bool holds(std::uint64_t index) const noexcept { return index - published_ < head_ - published_; }

    /// Fetches the lines of the next `n` slots (D3). Most should be written already: the line of a slot that is not
    /// makes one more round trip.
    void prefetch_next(std::size_t n) const noexcept {
        constexpr std::size_t kPerLine = kCacheLine / sizeof(T);
        for (std::size_t i = kPerLine; i < n; i += kPerLine) {
            __builtin_prefetch(&slots_[(head_ + i) & mask_]);
        }
    }
    /// Fetches the line of a slot for an answer.
    void prefetch(std::uint64_t index) const noexcept { ring_detail::prefetch_for_write(&slots_[index & mask_]); }

    /// Answers in a slot (D50): stores `value` as the slot's word `at`, and then sets `bits`, which the producer looks
    /// for, in its last word. Only for a slot that it holds().
    void answer(std::uint64_t index, std::size_t at, std::uint64_t value, std::uint64_t bits) noexcept {
        T& slot = slots_[index & mask_];
        schedule_point(SchedulePoint::publish);
        __atomic_store_n(words_of(slot) + at, value, __ATOMIC_RELAXED);
        // Relaxed: nobody else writes it now. The producer wrote it before this side saw it, and writes it again only
        // after it is told.
        const std::uint64_t last = __atomic_load_n(ring_detail::last_word(slot), __ATOMIC_RELAXED);
        // Release, with the acquire in RingProducer::answered.
        __atomic_store_n(ring_detail::last_word(slot), last | bits, __ATOMIC_RELEASE);
    }

    /// Tells the producer of every slot given back so far.
    void publish() noexcept {
        if (unpublished()) {
            schedule_point(SchedulePoint::release);
            published_ = head_;
            // Release, with the acquire in RingProducer::refresh: our reads and answers come before its next writes.
            header_->released.store(head_, std::memory_order_release);
        }
    }

    [[nodiscard]] bool unpublished() const noexcept { return published_ != head_; }
    [[nodiscard]] std::uint64_t released() const noexcept { return head_; }
    /// Slots that the producer has been told of.
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
