// The control block: words that one end of a connection with flow control writes into the other end's memory, so that
// no send finds a receiver that is not ready.
//
// Each end has a control block that the other end may write. The end that first has a message to send writes its terms
// (FlowTerms) into the other end's block, and the other end answers with its own terms. After that, with credits
// (pollcore/flow_control.h), the receiver writes how many receives it has posted in this life of the queue pair (its
// grants), and the sender sends no more messages than that. With write rings, the receiver's grants say up to which
// position the sender may fill the ring. The sender fills the ring by RDMA writes.
//
// A peer writes the block, so its contents may be torn (H11), stale or a lie. Each word is checked before it is used.
//
// Thread safety: the device writes the block, and the worker reads it.
#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "peer/announcement.hpp"
#include "peer/record.hpp"
#include "pollcore/completion.hpp"
#include "pollcore/limits.hpp"

namespace pollcore {

/// A cumulative count and its complement. In a torn word, which is half old and half new, the two halves do not match.
struct GrantWord {
    [[nodiscard]] static constexpr std::uint64_t pack(std::uint32_t grants) noexcept {
        return std::uint64_t{~grants} << 32 | grants;
    }
    /// Returns nothing if the word is torn, or if the peer has not written it yet.
    [[nodiscard]] static constexpr std::optional<std::uint32_t> unpack(std::uint64_t word) noexcept {
        const auto grants = static_cast<std::uint32_t>(word);
        return static_cast<std::uint32_t>(word >> 32) == ~grants ? std::optional(grants) : std::nullopt;
    }
};

/// The terms of one end of a connection. Each end writes its terms once in a life of the queue pair, by one RDMA write.
struct FlowTerms {
    static constexpr std::uint32_t kMagic = 0x77466350;  // "PcFw"
    static constexpr std::uint16_t kVersion = 1;
    // Features.
    /// Messages go through write rings. Both ends must have this feature, or neither.
    static constexpr std::uint16_t kRing = 1;
    /// A record in this end's ring needs no sum of its payload. The two ends may differ in this feature.
    static constexpr std::uint16_t kInOrder = 2;

    std::uint32_t magic = kMagic;
    std::uint16_t version = kVersion;
    std::uint16_t features = 0;
    /// With credits: the largest number of receives that this end has posted at a time, or that it grants to this peer
    /// from a shared receive queue. With write rings: the number of lines of this end's ring; 0 means that this end has
    /// no ring.
    std::uint32_t depth = 0;
    std::uint32_t message_max = 0;  ///< the longest message that this end's receives or ring take, in bytes
    std::uint64_t ring_addr = 0;
    std::uint64_t ring_seed = 0;  ///< the seed of the stamps and seals of records (record.hpp)
    std::uint32_t ring_rkey = 0;
    std::uint32_t ring_position = 0;  ///< the position of the first record (record.hpp)
    /// The longest message that this end reads from its sender's memory, in bytes; 0 if this end reads no messages.
    std::uint32_t rendezvous_max = 0;
    std::uint32_t reserved32 = 0;
    std::uint64_t reserved = 0;
    std::uint64_t check = 0;  ///< the checksum of all other words, from check_of(); never 0

    using Words = std::array<std::uint64_t, 8>;

    /// A checksum of all words except for the last.
    [[nodiscard]] static constexpr std::uint64_t check_of(const Words& words) noexcept {
        std::uint64_t sum = 0x9e3779b97f4a7c15;
        for (std::size_t i = 0; i + 1 < words.size(); ++i) {
            sum = std::rotl((sum ^ words[i]) * 0xd6e8feb86659fd93, 29);
        }
        return sum | 1;
    }
    /// The terms as words. The last word is the check.
    [[nodiscard]] Words sealed() const noexcept {
        Words words = std::bit_cast<Words>(*this);
        words.back() = check_of(words);
        return words;
    }
};
static_assert(sizeof(FlowTerms) == kCacheLine && sizeof(FlowTerms::Words) == sizeof(FlowTerms));

/// The reason why flow control ends a connection.
enum class FlowFault : std::uint8_t {
    none,
    not_terms,  ///< the check is right, but the magic number is wrong
    other_version,
    other_features,
    no_depth,         ///< the terms name no receives, or more receives than are possible
    no_ring,          ///< the terms name an impossible write ring
    too_many_grants,  ///< the peer granted more than its terms allow
    /// The peer sent more messages than it was granted, to a shared receive queue or into a write ring.
    too_many_messages,
    /// The peer announced a message that is too long, or announced a message before an earlier one was read.
    bad_announcement,
    // Faults of this end:
    post_refused,     ///< the provider refused a work request that the connection needs
    signal_refused,   ///< the provider refused a signaled work request whose CQE was to end unsignaled ones, too
    completion_lost,  ///< the provider lost the completion of an announcement, or of the read of a message
};
[[nodiscard]] constexpr bool is_own(FlowFault fault) noexcept {
    return fault >= FlowFault::post_refused;
}

/// The status with which a queue pair ends because of `fault`.
[[nodiscard]] constexpr Status status_of(FlowFault fault) noexcept {
    switch (fault) {
        case FlowFault::post_refused:
        case FlowFault::signal_refused: return Status::post_refused;
        case FlowFault::completion_lost: return Status::general_err;
        default: return Status::flow_violation;
    }
}

/// The control block of one queue pair, in registered memory.
struct alignas(kCacheLine) ControlBlock {
    using Line = std::array<std::atomic<std::uint64_t>, 8>;

    // Written by the peer.
    Line grants{};  ///< word 0: the peer's grants; word 1: how many announced messages the peer has read
    Line terms{};
    Line announcement{};  ///< the announcement of the message whose receive completes next
    // This end's own terms. The device reads them here when they are sent. The peer could write here, too.
    Line own{};

    static constexpr std::size_t kGrants = 0;
    static constexpr std::size_t kTerms = kCacheLine;
    static constexpr std::size_t kAnnouncement = 2 * kCacheLine;

    void clear() noexcept {
        for (Line* line : {&grants, &terms, &announcement}) {
            for (auto& word : *line) {
                word.store(0, std::memory_order_relaxed);
            }
        }
    }
    void set_own(FlowTerms mine) noexcept {
        const FlowTerms::Words words = mine.sealed();
        for (std::size_t i = 0; i < words.size(); ++i) {
            own[i].store(words[i], std::memory_order_relaxed);
        }
    }
    /// The peer's terms. Returns nothing until all words have arrived.
    [[nodiscard]] std::optional<FlowTerms> read_terms() const noexcept {
        FlowTerms::Words words{};
        // Acquire: a software device writes the last word after the others, with release.
        words.back() = terms.back().load(std::memory_order_acquire);
        if (words.back() == 0) {
            return std::nullopt;
        }
        for (std::size_t i = 0; i + 1 < words.size(); ++i) {
            words[i] = terms[i].load(std::memory_order_relaxed);
        }
        return words.back() == FlowTerms::check_of(words) ? std::optional(std::bit_cast<FlowTerms>(words))
                                                          : std::nullopt;
    }
    /// The result is valid after the receive that the announcement took has completed.
    [[nodiscard]] Announcement read_announcement() const noexcept {
        Announcement::Words words{};
        for (std::size_t i = 0; i < words.size(); ++i) {
            words[i] = announcement[i].load(std::memory_order_relaxed);
        }
        return Announcement::unpack(words);
    }
    /// Call this before the peer learns that the announced message was read. After that, the peer may write the next
    /// announcement.
    void forget_announcement() noexcept { announcement[2].store(0, std::memory_order_relaxed); }
};
static_assert(sizeof(ControlBlock) == 4 * kCacheLine);

/// Returns why a peer's terms cannot be accepted, or FlowFault::none. Both ends must have these `features`.
[[nodiscard]] constexpr FlowFault check_terms(const FlowTerms& terms, std::uint16_t features) noexcept {
    if (terms.magic != FlowTerms::kMagic) {
        return FlowFault::not_terms;
    }
    if (terms.version != FlowTerms::kVersion) {
        return FlowFault::other_version;
    }
    const std::uint16_t choices = (features & FlowTerms::kRing) != 0 ? FlowTerms::kInOrder : 0;
    if ((terms.features & ~choices) != features) {
        return FlowFault::other_features;
    }
    if ((features & FlowTerms::kRing) == 0) {
        return terms.depth == 0 || terms.depth > kQueueDepthMax ? FlowFault::no_depth : FlowFault::none;
    }
    const bool possible = std::has_single_bit(terms.depth) && terms.depth >= kRingLinesMin &&
                          terms.depth <= kRingLinesMax && terms.message_max <= ring_message_max(terms.depth) &&
                          terms.ring_addr % kCacheLine == 0;
    return terms.depth == 0 || possible ? FlowFault::none : FlowFault::no_ring;
}

}  // namespace pollcore
