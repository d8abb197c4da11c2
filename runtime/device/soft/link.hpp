// A link carries packets one way between two engines: a bounded ring of bytes in preallocated memory.
//
// A record is a header line and the payload, in lines. Records never wrap: a pad record fills the end.
// Positions count bytes and never wrap either (64 bits).
//
// Thread safety: one producer and one consumer, each under its own engine's lock. On a local link both are one engine,
// which may rewind the link to keep a small working set.
// Invariants: consumed <= published <= prepared <= consumed + capacity.
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

    /// A blank packet with room for `payload` bytes, or null when the link is full. Nothing is sent until
    /// push(); a prepared packet that is not pushed is forgotten.
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
    /// Whether the consumer has taken everything that was published. Acquire only to be the same load as in prepare();
    /// the caller asks again after a stale "no".
    [[nodiscard]] bool drained() const noexcept { return consumer_position_.load(std::memory_order_acquire) == tail_; }

    // ---- consumer ----

    /// A fault plan's delay: until when the packet at the head is held up; 0: it is not. Relaxed: the producer's engine
    /// only asks whether a packet is late or lost, and around the moment of a change either answer is right.
    [[nodiscard]] std::uint64_t held_until_ns() const noexcept {
        return held_until_ns_.load(std::memory_order_relaxed);
    }
    void hold_until(std::uint64_t time_ns) noexcept { held_until_ns_.store(time_ns, std::memory_order_relaxed); }

    /// Whether everything that was published was taken, for a consumer that is about to sleep: see Doorbell.
    [[nodiscard]] bool empty_for_sleeper() const noexcept {
        return head_ == producer_position_.load(std::memory_order_seq_cst);
    }

    /// The oldest packet, or null. It stays until pop().
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

    /// Local links only: goes back to the start when everything was read, so that few lines stay in use and in cache.
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

/// The links from one engine to another. Responses have a link of their own: taking a request may need room for the
/// response, but taking a response needs no room anywhere. So requests and responses can never wait for each other.
struct LinkPair {
    LinkPair(std::uint32_t from_engine, std::uint32_t to_engine, std::shared_ptr<Doorbell> at_far_end)
        : from(from_engine), to(to_engine), local(from_engine == to_engine), bell(std::move(at_far_end)) {}

    /// Makes the packets pushed to one of the two links visible, and wakes the thread that waits for them.
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
    const std::shared_ptr<Doorbell> bell;  ///< of the engine at the far end
    /// The engine at the far end is gone: packets are lost. Relaxed: a late look only fills the link.
    std::atomic<bool> receiver_gone{false};
    /// The engine at the far end has QPs, and so a thread polls for them. Relaxed: a late look only shifts a retry.
    std::atomic<bool> attended{true};
    Link requests;
    Link responses;
};

}  // namespace pollcore::soft
