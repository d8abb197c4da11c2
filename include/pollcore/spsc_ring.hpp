// A ring of fixed-size slots between one producer and one consumer, in one process or in two.
//
// Thread safety: exactly one thread holds the RingProducer and exactly one the RingConsumer at a time.
// Holding the object is the permission; both are move-only.
//
// Readiness is written into the slot itself: the last byte of each slot holds the *lap* (how often the
// producer went round, plus one) and is stored last, in one store with the seven bytes before it. The consumer looks
// at the line that it wants to read anyway, so a hand-over costs one cache-line transfer where an index ring needs two,
// and the producer stores nothing but the slot, in as few stores as that takes: each store more keeps another line from
// being on its way at the same time. The consumer gives slots back in batches through an index on a line of its own,
// which the producer reads only when its cached copy says that the ring is full.
//
// Of a batch the first slot alone says that it is there: it is kept aside until the others have been written, with
// their laps, while their lines are at hand. So each line is written in one go, and who takes slots in their order does
// not look at one before it has seen all that stand ahead of it.
//
// A consumer may answer in a slot that it was given, as long as it has not told the producer that it gave it back: the
// line is on its way to the producer's core anyway.
//
// Invariants
//   - slot i of lap l, and all slots ahead of it, hold their laps if and only if all bytes of them were written before.
//   - released <= produced <= released + capacity, in 64-bit arithmetic that may wrap.
//   - The layout holds no address: each side may map it where it likes.
// The producer trusts nothing that the consumer writes, and the reverse: an index that moves too far is
// reported by broken(), lap bytes can at worst make slots look ready that hold nothing meaningful.
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

/// What stands before the slots. A line per writer, so that neither slows the other down.
struct RingHeader {
    static constexpr std::uint32_t kMagic = 0x676e6952;  // "Ring"
    static constexpr std::uint32_t kVersion = 2;

    std::uint32_t magic = kMagic;
    std::uint32_t version = kVersion;
    std::uint32_t slot_bytes = 0;
    std::uint32_t capacity = 0;

    alignas(kCacheLine) std::atomic<std::uint64_t> released{0};  ///< by the consumer
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

template <RingSlot T>
class RingProducer {
public:
    RingProducer() = default;
    /// Joins a formatted ring, where the one who had it before left off with nothing written that was not committed.
    /// `capacity` is what this side knows to be right; the header is not believed.
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

    /// Asks for the next slot's line, for a caller that has something to do before it writes there: fetching the
    /// line from the consumer, who watches it, takes as long as a hop. Nothing happens while the ring may be full.
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

    /// Writes the i-th reserved slot. The consumer does not see it before commit(), of which it has to be a part.
    void write(std::size_t i, const T& value) noexcept {
        write(i, [&](T& slot) { return all_but_last(slot, value); });
    }
    /// The same in place: `fill` is given the slot, writes all of it but the last eight bytes, and returns these, of
    /// which the highest is of no meaning. Nor is what the slot holds before.
    template <std::invocable<T&> Fill>
    void write(std::size_t i, Fill&& fill) noexcept {
        T& slot = written(i);
        // Relaxed: commit() tells of it.
        __atomic_store_n(ring_detail::last_word(slot), with_lap(fill(slot), lap_of(i)), __ATOMIC_RELAXED);
    }

    /// Publishes the first n reserved slots, at once: a consumer that sees the first sees all n. They are all that were
    /// written since the last commit (what is written and left out would be seen behind a later one), n >= 1.
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

    /// The i-th slot that was written and is not committed, to be changed, but for its last eight bytes.
    [[nodiscard]] T& written(std::size_t i) noexcept { return i == 0 ? first_ : at(i); }

    /// The slot of that index, which was committed, with its last eight bytes as the consumer has left them: see
    /// RingConsumer::answer.
    [[nodiscard]] const T& answered(std::uint64_t index, std::uint64_t& last) const noexcept {
        T& slot = slots_[index & mask_];
        // Acquire, with the release in RingConsumer::answer: all of the answer.
        last = __atomic_load_n(ring_detail::last_word(slot), __ATOMIC_ACQUIRE);
        return slot;
    }

    /// Slots written since the ring began; this side's own figure.
    [[nodiscard]] std::uint64_t produced() const noexcept { return tail_; }
    /// Slots that the consumer has not given back, as last seen.
    [[nodiscard]] std::uint64_t unreleased() noexcept {
        refresh();
        return tail_ - released_cached_;
    }
    /// The i-th slot that the consumer has not given back, as last seen; i < unreleased().
    [[nodiscard]] const T& unreleased_slot(std::size_t i) const noexcept {
        return slots_[(released_cached_ + i) & mask_];
    }
    /// The consumer's index moved backwards or past what was written: the peer cannot be trusted.
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

    /// The slot that was kept aside goes to its place, but for its last word, which is returned.
    std::uint64_t move_first() noexcept {
        constexpr std::size_t kLast = sizeof(T) / sizeof(Word) - 1;
        Word* const to = words_of(at(0));
        const SharedWords from(
            words_of(first_));  // word by word: a wider load would wait for the smaller stores that made it
        for (std::size_t i = 0; i < kLast; ++i) {
            to[i] = from[i];
        }
        return from[kLast];
    }

    /// The last word of the slot, and with it all that was written.
    static void publish(T& slot, std::uint64_t last) noexcept {
        schedule_point(SchedulePoint::publish);
        // Release, with the acquire in RingConsumer::ready: the bytes of all slots, and the others' laps, before this.
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
    // Not a member function, so that a loop that pushes may keep what this object holds in registers: a store into it
    // beside each slot would keep other lines from being on their way.
    [[nodiscard, gnu::noinline]] static std::uint64_t read_released(const RingHeader* header) noexcept {
        // Acquire, with the release in RingConsumer::publish: the consumer's reads before our next writes.
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

template <RingSlot T>
class RingConsumer {
public:
    /// Rings of fewer slots are not answered in: see release_later().
    static constexpr std::uint32_t kAnsweredInFrom = 32;

    RingConsumer() = default;
    RingConsumer(void* memory, std::uint32_t capacity) noexcept
        : header_(static_cast<RingHeader*>(memory)),
          slots_(reinterpret_cast<T*>(static_cast<std::byte*>(memory) + sizeof(RingHeader))),
          mask_(capacity - 1),
          capacity_log2_(static_cast<unsigned>(std::countr_zero(capacity))),
          // Lazily, but so that a small ring never waits for slots that are free.
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

    /// True when the i-th slot from the front was published, if those ahead of it were.
    [[nodiscard]] bool ready(std::size_t i = 0) const noexcept {
        std::uint64_t last = 0;
        return ready(i, last);
    }

    /// As ready(), by one who will answer in that slot: its line is asked for to be written to. From one who only reads
    /// it the producer has to fetch it back, too.
    [[nodiscard]] bool ready_to_answer() const noexcept {
        T& slot = slots_[head_ & mask_];
        ring_detail::prefetch_for_write(&slot);
        // Acquire, with the release in RingProducer::publish.
        return __atomic_load_n(ring_detail::last_word(slot), __ATOMIC_ACQUIRE) >> ring_detail::kLapShift ==
               ring_detail::lap_of(head_, capacity_log2_);
    }
    /// As ready(), with the slot's last word, which holds the lap and was read once.
    [[nodiscard]] bool ready(std::size_t i, std::uint64_t& last) const noexcept { return front().ready(i, last); }

    /// Slots that lie beside each other, for a loop that gives none back.
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

    /// The slots at the front as they are now, for a loop that gives none back: by values, which a compiler keeps in
    /// registers whatever is written meanwhile.
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
        /// The slots from the i-th on, up to the end of the ring's memory: of these all that are ready have one lap.
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

    /// A copy of the i-th ready slot. Each byte was read once, whatever a hostile producer does meanwhile: what
    /// is checked in the copy is what is used.
    [[nodiscard, gnu::always_inline]] T copy(std::size_t i) const noexcept {
        schedule_point(SchedulePoint::take);
        T value;
        std::memcpy(static_cast<void*>(&value), &slots_[(head_ + i) & mask_], sizeof(T));
        // For all that the compiler knows this changes the copy, so it cannot go back to the slot for a field.
        asm volatile("" : "+m"(value));
        return value;
    }

    /// The i-th ready slot by its words, for who does not need them all.
    [[nodiscard]] SharedWords words(std::size_t i) const noexcept { return front().words(i); }

    /// Gives back the first n slots. The producer learns of it in batches, or by publish().
    void release(std::size_t n) noexcept {
        head_ += n;
        if (head_ - published_ >= release_batch_) {
            publish();
        }
    }

    /// As release(), where what was given back is to be answered in: the producer is told later, though not of more
    /// than a quarter of the ring. A small ring has no slots to spare, and tells at once.
    void release_later(std::size_t n) noexcept {
        head_ += n;
        if (head_ - published_ >= 2 * release_batch_ || capacity() < kAnsweredInFrom) {
            publish();
        }
    }

    /// Whether the slot of that index was given back and the producer does not know yet.
    [[nodiscard]] bool holds(std::uint64_t index) const noexcept { return index - published_ < head_ - published_; }

    /// Asks for the next `n` slots' lines, which have likely been written: one that has not goes to and fro once more.
    void prefetch_next(std::size_t n) const noexcept {
        constexpr std::size_t kPerLine = kCacheLine / sizeof(T);
        for (std::size_t i = kPerLine; i < n; i += kPerLine) {
            __builtin_prefetch(&slots_[(head_ + i) & mask_]);
        }
    }
    /// Asks for the line of a slot that is to be answered in.
    void prefetch(std::uint64_t index) const noexcept { ring_detail::prefetch_for_write(&slots_[index & mask_]); }

    /// Puts `value` in place of the slot's word `at`, and then sets `bits`, which the producer looks for, in its last
    /// word. Only of a slot that it holds().
    void answer(std::uint64_t index, std::size_t at, std::uint64_t value, std::uint64_t bits) noexcept {
        T& slot = slots_[index & mask_];
        schedule_point(SchedulePoint::publish);
        __atomic_store_n(words_of(slot) + at, value, __ATOMIC_RELAXED);
        // Relaxed, and nobody else's: the producer wrote it before it was seen here, and will not again before it is
        // told.
        const std::uint64_t last = __atomic_load_n(ring_detail::last_word(slot), __ATOMIC_RELAXED);
        // Release, with the acquire in RingProducer::answered.
        __atomic_store_n(ring_detail::last_word(slot), last | bits, __ATOMIC_RELEASE);
    }

    /// Tells the producer of every slot given back so far.
    void publish() noexcept {
        if (unpublished()) {
            schedule_point(SchedulePoint::release);
            published_ = head_;
            // Release, with the acquire in RingProducer::refresh: our reads and answers before its next writes.
            header_->released.store(head_, std::memory_order_release);
        }
    }

    [[nodiscard]] bool unpublished() const noexcept { return published_ != head_; }
    [[nodiscard]] std::uint64_t released() const noexcept { return head_; }
    /// What the producer can know of.
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
