// One end of a connection, as the measuring loops see it.
//
// Thread safety: used by the measuring thread only.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "pollperf/measure/workload.hpp"

namespace pollcore::perf {

/// The receives that a path posts again together, with one call and one doorbell for all: the largest divisor of
/// `slots` that is at most 32 and leaves others posted.
[[nodiscard]] constexpr std::uint32_t repost_batch(std::uint32_t slots) noexcept {
    std::uint32_t batch = std::min<std::uint32_t>(32, std::max<std::uint32_t>(1, slots / 2));
    while (slots % batch != 0) {
        --batch;
    }
    return batch;
}

/// Counts only grow, except that `sequence` starts again with each workload.
struct EndState {
    std::byte* memory = nullptr;
    RemoteBlock remote;              ///< the peer's `in` buffers
    std::uint64_t issued = 0;        ///< work requests posted to the send queue
    std::uint64_t completed = 0;     ///< of these, how many are known to be done. They are done in order
    std::uint64_t received = 0;      ///< completions of the receive queue
    std::uint64_t reposted = 0;      ///< receives that were posted, those of the set-up included
    std::uint32_t until_signal = 1;  ///< requests until the next one with a completion
    /// Number of the current message, from 1 in each workload. Both ends count in the same way.
    std::uint64_t sequence = 0;
    std::uint64_t received_before = 0;  ///< `received` when the workload began
    std::uint64_t issued_before = 0;    ///< `issued` when the workload began

    /// Whether all requests are known to be done.
    [[nodiscard]] bool idle() const noexcept { return completed == issued; }
    [[nodiscard]] std::uint64_t in_flight() const noexcept { return issued - completed; }
    [[nodiscard]] std::uint64_t arrived() const noexcept { return received - received_before; }
    /// Whether the peer's message with the number `sequence` has arrived. Any poll may have taken it, perhaps long
    /// before a loop waits for the message.
    [[nodiscard]] bool has_message() const noexcept { return arrived() >= sequence; }
};

/// What a completion says, in its wr_id or tag: which end, whether it is a receive, and which request of the end.
struct RequestId {
    static constexpr unsigned kEndBits = 15;
    static constexpr unsigned kEndsMost = 1u << kEndBits;

    [[nodiscard]] static constexpr std::uint64_t send(unsigned end, std::uint64_t number) noexcept {
        return number << (kEndBits + 1) | std::uint64_t{end} << 1;
    }
    [[nodiscard]] static constexpr std::uint64_t receive(unsigned end) noexcept { return std::uint64_t{end} << 1 | 1; }

    std::uint64_t value = 0;
    [[nodiscard]] constexpr bool is_receive() const noexcept { return (value & 1) != 0; }
    [[nodiscard]] constexpr unsigned end() const noexcept {
        return static_cast<unsigned>(value >> 1) & (kEndsMost - 1);
    }
    /// A send's number: how many of the end's requests were posted before it, modulo 2^48.
    [[nodiscard]] constexpr std::uint64_t number() const noexcept { return value >> (kEndBits + 1); }
};

}  // namespace pollcore::perf
