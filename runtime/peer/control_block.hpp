// The words that each end of a connection with flow control writes into the other's memory, so that no send meets a
// receiver that is not ready.
//
// Each end has a control block that the other may write. The end that first has something to send writes its terms, and
// the other end answers with its own. Then the receiver writes how many receives it has posted in this life (grants),
// and the sender sends no more messages than that. With write rings the receiver says up to where its ring may be
// filled, and the sender fills it by RDMA writes.
//
// A peer writes the block, so its contents may be torn (H11), stale or a lie. Nothing is used before it was checked.
//
// Thread safety: the block is written by the device, and read by the worker.
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

/// A cumulative count with its complement, which shows a word that is half old and half new.
struct GrantWord {
    [[nodiscard]] static constexpr std::uint64_t pack(std::uint32_t grants) noexcept {
        return std::uint64_t{~grants} << 32 | grants;
    }
    /// Nothing: the word is torn, or nobody has written it.
    [[nodiscard]] static constexpr std::optional<std::uint32_t> unpack(std::uint64_t word) noexcept {
        const auto grants = static_cast<std::uint32_t>(word);
        return static_cast<std::uint32_t>(word >> 32) == ~grants ? std::optional(grants) : std::nullopt;
    }
};

/// What an end says of itself, once. The peer writes it by one RDMA write.
struct FlowTerms {
    static constexpr std::uint32_t kMagic = 0x77466350;  // "PcFw"
    static constexpr std::uint16_t kVersion = 1;
    // Features.
    static constexpr std::uint16_t kRing = 1;     ///< both ends must have it: messages go by write rings
    static constexpr std::uint16_t kInOrder = 2;  ///< each end for itself: a record in its ring needs no sum

    std::uint32_t magic = kMagic;
    std::uint16_t version = kVersion;
    std::uint16_t features = 0;
    /// The most receives that it has posted at a time; with write rings the lines of its ring, 0: it has none.
    std::uint32_t depth = 0;
    std::uint32_t message_max = 0;  ///< the longest message that its receives or its ring take
    std::uint64_t ring_addr = 0;
    std::uint64_t ring_seed = 0;  ///< of the stamps and seals of records
    std::uint32_t ring_rkey = 0;
    std::uint32_t ring_position = 0;   ///< where the first record goes
    std::uint32_t rendezvous_max = 0;  ///< the longest message that it reads from its sender's memory; 0: none
    std::uint32_t reserved32 = 0;
    std::uint64_t reserved = 0;
    std::uint64_t check = 0;  ///< of the words before it; never 0

    using Words = std::array<std::uint64_t, 8>;

    [[nodiscard]] static constexpr std::uint64_t check_of(const Words& words) noexcept {
        std::uint64_t sum = 0x9e3779b97f4a7c15;
        for (std::size_t i = 0; i + 1 < words.size(); ++i) {
            sum = std::rotl((sum ^ words[i]) * 0xd6e8feb86659fd93, 29);
        }
        return sum | 1;
    }
    /// The terms as words, with their check.
    [[nodiscard]] Words sealed() const noexcept {
        Words words = std::bit_cast<Words>(*this);
        words.back() = check_of(words);
        return words;
    }
};
static_assert(sizeof(FlowTerms) == kCacheLine && sizeof(FlowTerms::Words) == sizeof(FlowTerms));

/// Why a peer's terms or grants are not accepted.
enum class FlowFault : std::uint8_t {
    none,
    not_terms,  ///< their check is right, but they are something else
    other_version,
    other_features,
    no_depth,           ///< terms with no receive, or with more than is possible
    no_ring,            ///< terms with an impossible write ring
    too_many_grants,    ///< more than its terms allow
    too_many_messages,  ///< more than it was granted, from a shared receive queue or in a write ring
    bad_announcement,   ///< announces a message that is too long, or while another is being read
    // Not the peer's fault:
    post_refused,     ///< the provider refused a request that the next ones must not go without
    signal_refused,   ///< the provider refused the request with which others were to complete
    completion_lost,  ///< the provider lost the completion of an announcement, or of a read
};
[[nodiscard]] constexpr bool is_own(FlowFault fault) noexcept {
    return fault >= FlowFault::post_refused;
}

/// The status with which the fault ends a queue pair.
[[nodiscard]] constexpr Status status_of(FlowFault fault) noexcept {
    switch (fault) {
        case FlowFault::post_refused:
        case FlowFault::signal_refused: return Status::post_refused;
        case FlowFault::completion_lost: return Status::general_err;
        default: return Status::flow_violation;
    }
}

/// Registered memory, of one queue pair.
struct alignas(kCacheLine) ControlBlock {
    using Line = std::array<std::atomic<std::uint64_t>, 8>;

    // Written by the peer.
    Line grants{};  ///< its grants, and how many announced messages it has read
    Line terms{};
    Line announcement{};  ///< of the message whose receive completes next
    // Our terms, while they are sent; the peer could write here too.
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
    /// The peer's terms, when they are whole.
    [[nodiscard]] std::optional<FlowTerms> read_terms() const noexcept {
        FlowTerms::Words words{};
        // Acquire: on a software device the last word is written last, with release.
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
    /// Valid once the announcement's receive has completed.
    [[nodiscard]] Announcement read_announcement() const noexcept {
        Announcement::Words words{};
        for (std::size_t i = 0; i < words.size(); ++i) {
            words[i] = announcement[i].load(std::memory_order_relaxed);
        }
        return Announcement::unpack(words);
    }
    /// The peer writes the next announcement when it has been told that this one's message was read.
    void forget_announcement() noexcept { announcement[2].store(0, std::memory_order_relaxed); }
};
static_assert(sizeof(ControlBlock) == 4 * kCacheLine);

/// Whether a peer's terms can be accepted. `features`: those that both ends must have.
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
