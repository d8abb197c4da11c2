// Ends of a ring for a stream: a thread that does nothing but write one, and one that does nothing but read it. pollcore's own threads look
// at other things in between and use RingProducer and RingConsumer; these show what the ring could do.
//
// Thread safety: as of RingProducer and RingConsumer, in whose place each stands.
#pragma once

#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "pollcore/spsc_ring.hpp"

namespace pollcore::bench {

template <RingSlot T>
class StreamProducer {
public:
    /// Of a formatted ring in which nothing was written yet.
    StreamProducer(void* memory, std::uint32_t capacity) noexcept
        : header_(*static_cast<RingHeader*>(memory)),
          slots_(reinterpret_cast<T*>(static_cast<std::byte*>(memory) + sizeof(RingHeader))),
          mask_(capacity - 1),
          capacity_log2_(static_cast<unsigned>(std::countr_zero(capacity))),
          tail_(header_.released.load(std::memory_order_acquire)),
          released_(tail_) {}

    /// As many of `wanted` slots as there is room for, written in place by `fill(slot, i)` as for RingProducer::write(), each published when
    /// it is written. Returns how many.
    template <std::invocable<T&, std::size_t> Fill>
    [[nodiscard]] std::size_t produce(std::size_t wanted, Fill&& fill) noexcept {
        const std::size_t n = room(wanted);
        // Here and not there: in registers, whatever `fill` does.
        T* const slots = slots_;
        const std::uint64_t mask = mask_;
        const std::uint64_t tail = tail_;
        const unsigned capacity_log2 = capacity_log2_;
        for (std::size_t i = 0; i < n; ++i) {
            T& slot = slots[(tail + i) & mask];
            const std::uint64_t last = fill(slot, i) & ring_detail::kBelowLap;
            const std::uint64_t lap = std::uint64_t{ring_detail::lap_of(tail + i, capacity_log2)} << ring_detail::kLapShift;
            // Release, with the acquire in StreamConsumer::is_ready: the bytes of the slot before its lap.
            __atomic_store_n(ring_detail::last_word(slot), last | lap, __ATOMIC_RELEASE);
        }
        tail_ += n;
        return n;
    }

private:
    [[nodiscard]] std::size_t room(std::size_t wanted) noexcept {
        std::uint64_t room = mask_ + 1 - (tail_ - released_);
        if (room < wanted) {
            // Acquire, with the release in StreamConsumer::consume: the consumer's reads before our next writes.
            released_ = header_.released.load(std::memory_order_acquire);
            room = mask_ + 1 - (tail_ - released_);
        }
        return room < wanted ? static_cast<std::size_t>(room) : wanted;
    }

    RingHeader& header_;
    T* slots_;
    std::uint64_t mask_;
    unsigned capacity_log2_;
    std::uint64_t tail_;
    std::uint64_t released_;
};

/// One that follows its producer closely takes lines from it that are just being written, and each goes to and fro twice. So it stays behind:
/// after 64 slots without an empty look it says 0 until 64 more are there, or has been asked 256 times, which is half a microsecond or so.
template <RingSlot T>
class StreamConsumer {
public:
    StreamConsumer(void* memory, std::uint32_t capacity) noexcept
        : header_(*static_cast<RingHeader*>(memory)),
          slots_(reinterpret_cast<T*>(static_cast<std::byte*>(memory) + sizeof(RingHeader))),
          mask_(capacity - 1),
          capacity_log2_(static_cast<unsigned>(std::countr_zero(capacity))),
          release_batch_(capacity / 8 > 64 ? 64 : (capacity / 8 == 0 ? 1 : capacity / 8)),
          behind_(capacity >= 8 * kBehind ? kBehind : kAnything),
          head_(header_.released.load(std::memory_order_relaxed)),
          published_(head_),
          gate_(head_ + behind_) {}

    /// Gives slots that are ready to `use`, in their order and in place, at most `most`, and then back to the producer. Returns how many.
    template <std::invocable<const T&> Use>
    [[nodiscard]] std::size_t consume(std::size_t most, Use&& use) noexcept {
        std::uint64_t left = gate_ - head_;
        if (left == 0) [[unlikely]] {
            if (behind_ != kAnything) {
                looks_ = look_ahead(slots_[(head_ + behind_ - 1) & mask_], ring_detail::lap_of(head_ + behind_ - 1, capacity_log2_), looks_);
            }
            if (looks_ != 0) {
                return 0;
            }
            gate_ = head_ + behind_;
            left = behind_;
        }
        T* const slots = slots_;  // here and not there: in registers, whatever `use` does
        const std::uint64_t mask = mask_;
        const unsigned capacity_log2 = capacity_log2_;
        const std::uint64_t end = head_ + (most < left ? most : left);
        std::uint64_t index = head_;
        for (; index != end && is_ready(slots[index & mask], ring_detail::lap_of(index, capacity_log2)); ++index) {
            use(std::as_const(slots[index & mask]));
        }
        const std::uint64_t n = index - head_;
        if (n == 0) {
            gate_ = head_ + behind_;
            return 0;
        }
        head_ = index;
        if (head_ - published_ >= release_batch_) {
            publish();
        }
        return n;
    }
    /// Tells the producer of every slot given back so far.
    void publish() noexcept {
        published_ = head_;
        // Release, with the acquire in StreamProducer::room: our reads before its next writes.
        header_.released.store(head_, std::memory_order_release);
    }

private:
    // How far behind its producer it likes to be; in a ring in which that is much, not at all.
    static constexpr std::uint32_t kBehind = 64;
    static constexpr std::uint32_t kAnything = ~std::uint32_t{0};

    [[nodiscard]] static bool is_ready(T& slot, std::uint8_t lap) noexcept {
        return __atomic_load_n(ring_detail::last_word(slot), __ATOMIC_ACQUIRE) >> ring_detail::kLapShift == lap;
    }
    /// Whether the producer is so far ahead that it is not disturbed, or does not seem to come so far: 0; else one look more than `looks`.
    /// Most looks are at nothing, since each takes the line from the producer.
    // Not a member function, so that a loop may keep what this object holds in registers.
    [[nodiscard, gnu::noinline]] static std::uint32_t look_ahead(T& slot, std::uint8_t lap, std::uint32_t looks) noexcept {
        constexpr std::uint32_t kOneIn = 16;
        constexpr std::uint32_t kPatience = 256;
        return (looks % kOneIn == 0 && is_ready(slot, lap)) || looks == kPatience ? 0 : looks + 1;
    }

    RingHeader& header_;
    T* slots_;
    std::uint64_t mask_;
    unsigned capacity_log2_;
    std::uint32_t release_batch_;
    std::uint32_t behind_;      // kBehind or kAnything
    std::uint32_t looks_ = 0;   // at a producer that was too close
    std::uint64_t head_;
    std::uint64_t published_;
    std::uint64_t gate_;        // the index where it looks how far the producer is
};

}  // namespace pollcore::bench
