// A link carries packets from one engine to another. It is a bounded ring of bytes in preallocated memory.
//
// A record is a header of one cache line, and the payload, rounded up to cache lines. A record never wraps: if it does
// not fit before the ring's end, a pad record fills the end. Positions count bytes in 64 bits, so they never wrap
// either.
//
// Thread safety: there is one producer and one consumer, each under its own engine's lock. On a local link both are the
// same engine, which may rewind the link to keep its working set small.
// Invariants: consumer_position_ <= producer_position_ <= tail_ <= consumer_position_ + kCapacity.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <utility>

#include "device/soft/doorbell.hpp"
#include "device/soft/protocol.hpp"

namespace pollcore::soft {

class Link {
public:
    /// Room for about 60 packets of the largest MTU, or 2048 small ones.
    static constexpr std::uint64_t kCapacity = 256 * 1024;
    static_assert((kCapacity & (kCapacity - 1)) == 0);

    Link() : memory_(static_cast<std::byte*>(::operator new (kCapacity, std::align_val_t{64}))) {}
    Link(const Link&) = delete;
    Link& operator=(const Link&) = delete;
    ~Link() { ::operator delete (memory_, std::align_val_t{64}); }

    // ---- producer ----

    /// Returns a blank packet with room for `payload` bytes, or null if the link is full. push() adds the packet to the
    /// link; a packet that is not pushed is overwritten by the next one.
    [[nodiscard]] Packet* prepare(std::uint32_t payload) noexcept {
        const std::uint32_t size = record_size_of(payload);
        const std::uint64_t offset = tail_ & (kCapacity - 1);
        const std::uint64_t pad = offset + size > kCapacity ? kCapacity - offset : 0;
        if (tail_ + pad + size - head_cached_ > kCapacity) {
            // Acquire: pairs with the release in release(); the consumer has read the bytes that we now overwrite.
            head_cached_ = consumer_position_.load(std::memory_order_acquire);
            if (tail_ + pad + size - head_cached_ > kCapacity)
                return nullptr;
        }
        if (pad != 0) {
            auto* filler = ::new (memory_ + offset) Packet{};
            filler->record_size = static_cast<std::uint32_t>(pad);
            tail_ += pad;
        }
        auto* packet = ::new (memory_ + (tail_ & (kCapacity - 1))) Packet{};
        packet->record_size = size;
        packet->payload_size = payload;
        return packet;
    }
    void push(const Packet& packet) noexcept { tail_ += packet.record_size; }
    /// Makes all pushed packets visible. Release: pairs with the acquire in peek().
    void publish() noexcept { producer_position_.store(tail_, std::memory_order_release); }
    /// publish() for a consumer that may sleep: see Doorbell.
    void publish_to_sleeper() noexcept { producer_position_.store(tail_, std::memory_order_seq_cst); }
    /// Whether the consumer has taken all published packets. A stale "no" does no harm, because the caller asks again.
    /// The load is an acquire only to be like the one in prepare().
    [[nodiscard]] bool drained() const noexcept { return consumer_position_.load(std::memory_order_acquire) == tail_; }

    // ---- consumer ----

    /// The time until which a fault plan's delay holds back the packet at the head; 0: no packet is held back. Relaxed:
    /// the producer's engine only asks whether a packet is late or lost, and around the moment of a change either
    /// answer is right.
    [[nodiscard]] std::uint64_t held_until_ns() const noexcept {
        return held_until_ns_.load(std::memory_order_relaxed);
    }
    void hold_until(std::uint64_t time_ns) noexcept { held_until_ns_.store(time_ns, std::memory_order_relaxed); }

    /// Whether the consumer has taken all published packets. For a consumer that is about to sleep: see Doorbell.
    [[nodiscard]] bool empty_for_sleeper() const noexcept {
        return head_ == producer_position_.load(std::memory_order_seq_cst);
    }

    /// The oldest packet, or null. The packet stays in the link until pop().
    [[nodiscard]] const Packet* peek() noexcept {
        for (;;) {
            if (head_ == tail_cached_) {
                // Acquire: pairs with the release in publish().
                tail_cached_ = producer_position_.load(std::memory_order_acquire);
                if (head_ == tail_cached_)
                    return nullptr;
            }
            const auto* packet = reinterpret_cast<const Packet*>(memory_ + (head_ & (kCapacity - 1)));
            if (packet->kind != PacketKind::pad) [[likely]]
                return packet;
            head_ += packet->record_size;
        }
    }
    void pop(const Packet& packet) noexcept { head_ += packet.record_size; }
    /// Gives the memory of popped packets back. Release: pairs with the acquire in prepare().
    void release() noexcept { consumer_position_.store(head_, std::memory_order_release); }

    /// Local links only: an empty link starts again at the beginning of its memory, so that few cache lines are in use
    /// and they stay in the cache.
    void rewind_if_empty() noexcept {
        if (head_ != tail_)
            return;
        head_ = tail_ = head_cached_ = tail_cached_ = 0;
        // Relaxed: both ends are this engine.
        producer_position_.store(0, std::memory_order_relaxed);
        consumer_position_.store(0, std::memory_order_relaxed);
    }

private:
    // written by the producer
    alignas(64) std::atomic<std::uint64_t> producer_position_{0};
    std::uint64_t tail_ = 0;
    std::uint64_t head_cached_ = 0;
    // written by the consumer
    alignas(64) std::atomic<std::uint64_t> consumer_position_{0};
    std::uint64_t head_ = 0;
    std::uint64_t tail_cached_ = 0;
    std::atomic<std::uint64_t> held_until_ns_{0};
    // constant
    alignas(64) std::byte* const memory_;
};

/// The two links from one engine to another: for requests and for responses. An engine that takes a request may need
/// room for the response. An engine that takes a response needs no room in any link. So requests and responses can
/// never wait for each other.
struct LinkPair {
    LinkPair(std::uint32_t from_engine, std::uint32_t to_engine, std::shared_ptr<Doorbell> at_far_end)
        : from(from_engine), to(to_engine), local(from_engine == to_engine), bell(std::move(at_far_end)) {}

    /// Makes the packets that were pushed to `link` visible, and wakes the thread that waits for them.
    void publish(Link& link) noexcept {
        if (!bell->used()) [[likely]] {
            link.publish();
            return;
        }
        link.publish_to_sleeper();
        bell->ring();
    }

    const std::uint32_t from;
    const std::uint32_t to;
    const bool local;
    const std::shared_ptr<Doorbell> bell;  ///< doorbell of the engine at the far end
    /// True if the engine at the far end is gone, so packets to it are lost. Relaxed: an engine that sees the change
    /// late only fills the link.
    std::atomic<bool> receiver_gone{false};
    /// True if the engine at the far end has QPs, so a thread polls for them. Relaxed: an engine that sees the change
    /// late only retries earlier or later.
    std::atomic<bool> attended{true};
    Link requests;
    Link responses;
};

}  // namespace pollcore::soft
