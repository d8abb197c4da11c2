// The memory block that a session and its worker share: header, records, retired counts, stages and the two rings. It
// has only offsets and types of fixed size, because the two sides may be different processes.
//
// The writer of each part
//   header, constant part      the process that formats the block, before either side uses it
//   header, worker's line      the worker
//   header, `closed`           the worker, or the application's side after the daemon's death; once
//   header, sleep words        both sides, in turn: see SleepWord
//   records, retired counts    the worker (for queue pairs and shared receive queues)
//   stages                     see SessionStages
//   refusals                   the session
//   trace                      see SessionTrace
//   submission ring            slots: the session; also the worker, when it answers in a request's line
//                              (worker/worker_session.hpp); released: the worker
//   completion ring            slots: the worker; released: the session
#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/recent_log.hpp"
#include "base/sleep_word.hpp"
#include "pollcore/completion.hpp"
#include "pollcore/latency.hpp"
#include "pollcore/queue_pair.hpp"
#include "pollcore/session.hpp"
#include "pollcore/spsc_ring.hpp"
#include "pollcore/work_request.hpp"

namespace pollcore {

/// The worker's report to one session on one queue pair. Each field is one word, so that a reader gets a whole value.
/// The comments list the parts of a word and their bits, from the lowest bit on.
struct QpRecord {
    // generation 16 | epoch 16 | cause 8 | sges_max 6 | inline_max 11 | state 3 | flags 4
    std::atomic<std::uint64_t> status{0};
    // send depth of this session 24 (D18) | receive depth of this session 24 | opcodes 16 (D38)
    std::atomic<std::uint64_t> limits{0};
    // With flow control: longest message that the peer receives 32 | longest message that it reads by rendezvous 32
    std::atomic<std::uint64_t> longest{0};
};
static_assert(sizeof(QpRecord) == 24);

/// QpRecord::limits, unpacked.
struct QpLimitsWord {
    std::uint32_t send_depth = 0;
    std::uint32_t recv_depth = 0;
    OpcodeMask opcodes = 0;

    static constexpr unsigned kDepthBits = 24;
    static constexpr std::uint32_t kDepthMask = (1u << kDepthBits) - 1;
    static_assert(kQueueDepthMax <= kDepthMask);

    [[nodiscard]] static constexpr QpLimitsWord unpack(std::uint64_t word) noexcept {
        return {static_cast<std::uint32_t>(word) & kDepthMask,
                static_cast<std::uint32_t>(word >> kDepthBits) & kDepthMask,
                static_cast<OpcodeMask>(word >> 2 * kDepthBits)};
    }
    [[nodiscard]] constexpr std::uint64_t pack() const noexcept {
        return std::uint64_t{send_depth} | std::uint64_t{recv_depth} << kDepthBits |
               std::uint64_t{opcodes} << 2 * kDepthBits;
    }
};

/// QpRecord::longest, unpacked. The fields are 0 until the peer has announced its limits.
struct MessageLimitsWord {
    std::uint32_t message_max = 0;
    std::uint32_t rendezvous_max = 0;

    [[nodiscard]] static constexpr MessageLimitsWord unpack(std::uint64_t word) noexcept {
        return {static_cast<std::uint32_t>(word), static_cast<std::uint32_t>(word >> 32)};
    }
    [[nodiscard]] constexpr std::uint64_t pack() const noexcept {
        return std::uint64_t{rendezvous_max} << 32 | message_max;
    }
};

/// QpRecord::status, unpacked.
struct QpStatusWord {
    std::uint16_t generation = 0;
    std::uint16_t epoch = 0;  ///< Life::epoch (base/life.hpp)
    QpState state = QpState::closed;
    Status cause = Status::success;
    std::uint8_t sges_max = 0;
    std::uint8_t flags = 0;
    std::uint16_t inline_max = 0;

    static constexpr unsigned kEpoch = 16, kCause = 32, kSgesMaxAt = 40, kInlineMaxAt = 46, kState = 57, kFlags = 60;
    static_assert(pollcore::kSgesMax < 1u << (kInlineMaxAt - kSgesMaxAt) &&
                  pollcore::kInlineMax < 1u << (kState - kInlineMaxAt));

    static constexpr std::uint8_t kReceives = 1;  ///< this session owns the QP's receives
    static constexpr std::uint8_t kFlow = 2;      ///< the QP has flow control, and QpRecord::longest limits sends
    static constexpr std::uint8_t kSums = 4;      ///< the session must compute a checksum of the payload of each send

    [[nodiscard]] static constexpr QpStatusWord unpack(std::uint64_t word) noexcept {
        return {static_cast<std::uint16_t>(word),
                static_cast<std::uint16_t>(word >> kEpoch),
                static_cast<QpState>(word >> kState & 0x7),
                static_cast<Status>(static_cast<std::uint8_t>(word >> kCause)),
                static_cast<std::uint8_t>(word >> kSgesMaxAt & 0x3f),
                static_cast<std::uint8_t>(word >> kFlags),
                static_cast<std::uint16_t>(word >> kInlineMaxAt & 0x7ff)};
    }
    [[nodiscard]] constexpr std::uint64_t pack() const noexcept {
        return std::uint64_t{generation} | std::uint64_t{epoch} << kEpoch |
               std::uint64_t{static_cast<std::uint8_t>(cause)} << kCause | std::uint64_t{sges_max} << kSgesMaxAt |
               std::uint64_t{inline_max} << kInlineMaxAt | std::uint64_t{static_cast<std::uint8_t>(state)} << kState |
               std::uint64_t{flags} << kFlags;
    }
};

/// The worker's report to a session on one shared receive queue of this session. 0 if the queue belongs to another
/// session, or is closed.
struct SrqRecord {
    // generation 16 | sges_max 8 | 8 bits of 0 | depth 32
    std::atomic<std::uint64_t> status{0};
};

/// SrqRecord::status, unpacked.
struct SrqStatusWord {
    std::uint16_t generation = 0;  ///< 0: there is no such queue
    std::uint8_t sges_max = 0;
    std::uint32_t depth = 0;  ///< 0: a pool posts its receives

    [[nodiscard]] static constexpr SrqStatusWord unpack(std::uint64_t word) noexcept {
        return {static_cast<std::uint16_t>(word), static_cast<std::uint8_t>(word >> 16),
                static_cast<std::uint32_t>(word >> 32)};
    }
    [[nodiscard]] constexpr std::uint64_t pack() const noexcept {
        return std::uint64_t{generation} | std::uint64_t{sges_max} << 16 | std::uint64_t{depth} << 32;
    }
};

/// How many unsignaled requests of one session on one queue pair have succeeded. A new generation shows that the count
/// has begun again at 0.
struct RetiredWord {
    std::uint16_t generation = 0;
    std::uint32_t count = 0;  ///< modulo 2^32

    [[nodiscard]] static constexpr RetiredWord unpack(std::uint64_t word) noexcept {
        return {static_cast<std::uint16_t>(word >> 32), static_cast<std::uint32_t>(word)};
    }
    [[nodiscard]] constexpr std::uint64_t pack() const noexcept { return std::uint64_t{generation} << 32 | count; }
};

/// The counters for StageLatency.
struct SessionStages {
    LatencyCounters submission_ring;  ///< written by the worker
    LatencyCounters device;           ///< written by the worker
    LatencyCounters completion_ring;  ///< written by the session's thread
};

/// Why the session's library refused requests. Written by the session's thread.
struct SessionRefusals {
    std::array<Counter, kRefusalKinds> by_cause;  ///< by the value of Refusal
};

/// The last requests that were followed through their stages. Times are the lower half of the time stamp counter.
struct SessionTrace {
    /// Written by the worker: submitted 32 | taken 32; completed 32; queue pair 32 | opcode 8.
    alignas(kCacheLine) RecentLog<3> worker;
    /// Written by the session's thread: completed 32 | polled 32.
    alignas(kCacheLine) RecentLog<1> application;
};

struct SessionHeader {
    static constexpr std::uint32_t kMagic = 0x73736553;  // "Sess"
    static constexpr std::uint16_t kVersion = 6;
    static constexpr std::uint16_t kWideCompletions = 1;  ///< feature: completions take two slots of their ring
    static constexpr std::uint16_t kWorkerSleeps = 2;     ///< feature: the worker may sleep, so submitters wake it
    /// A value of `closed`: the worker takes no more requests, and all requests that it took have completed.
    static constexpr std::uint32_t kDetached = 1;
    /// A value of `closed`: the worker's process has ended. The application's side writes this value.
    static constexpr std::uint32_t kDaemonGone = 2;

    std::uint32_t magic = kMagic;
    std::uint16_t version = 0;  ///< set to kVersion after the rest of the block was written
    std::uint16_t features = 0;
    std::uint32_t qps_max = 0;
    std::uint32_t submission_slots = 0;
    std::uint32_t completion_slots = 0;
    std::uint32_t pool_buffers = 0;

    // The worker's line.
    alignas(kCacheLine) std::atomic<std::uint64_t> retired{0};  ///< retired requests on all queue pairs together
    std::atomic<std::uint64_t> throttled{0};                    ///< see SessionFigures::throttled
    // Written once. On a line of its own, which stays in the cache of a session that polls and finds nothing.
    alignas(kCacheLine) std::atomic<std::uint32_t> closed{0};  ///< kDetached, kDaemonGone, or 0
    // Each of the two sleepers has a line (D23). The sleeper writes its line until a waking thread takes the word. From
    // then on the waking thread writes the line, until the sleeper is awake.
    alignas(kCacheLine) SleepWord worker_sleep;
    std::atomic<std::uint64_t> woken_at{0};  ///< cycles_now() when worker_sleep was taken
    alignas(kCacheLine) SleepWord application_sleep;
};
static_assert(sizeof(SessionHeader) == 5 * kCacheLine);
static_assert(offsetof(SessionHeader, worker_sleep) == 3 * kCacheLine &&
              offsetof(SessionHeader, application_sleep) == 4 * kCacheLine);
static_assert(offsetof(SessionHeader, retired) == kCacheLine);

/// Sizes and offsets of a session block, and the numbers that determine them.
struct SessionLayout {
    std::uint32_t qps_max = 0;           ///< a power of two
    std::uint32_t submission_slots = 0;  ///< a power of two
    std::uint32_t completion_slots = 0;  ///< completions of requests that the ring can hold, a power of two
    bool wide = false;                   ///< completions are WideCompletions, in two slots of the ring each (D39)
    bool worker_sleeps = false;          ///< SessionHeader::kWorkerSleeps
    std::uint32_t pool_buffers = 0;      ///< further completions that the ring can hold, for messages of receive pools

    [[nodiscard]] constexpr std::uint32_t completion_ring_slots() const noexcept {
        return std::bit_ceil(completion_slots + pool_buffers) << wide;
    }

    static constexpr std::size_t align(std::size_t n) noexcept {
        return (n + kCacheLine - 1) / kCacheLine * kCacheLine;
    }

    [[nodiscard]] constexpr std::size_t records() const noexcept { return sizeof(SessionHeader); }
    [[nodiscard]] constexpr std::size_t retired() const noexcept {
        return records() + align(qps_max * sizeof(QpRecord));
    }
    [[nodiscard]] constexpr std::size_t srq_records() const noexcept {
        return retired() + align(qps_max * sizeof(std::atomic<std::uint64_t>));
    }
    [[nodiscard]] constexpr std::size_t stages() const noexcept {
        return srq_records() + align(kSrqsMax * sizeof(SrqRecord));
    }
    [[nodiscard]] constexpr std::size_t refusals() const noexcept { return stages() + sizeof(SessionStages); }
    [[nodiscard]] constexpr std::size_t trace() const noexcept { return refusals() + align(sizeof(SessionRefusals)); }
    [[nodiscard]] constexpr std::size_t submissions() const noexcept { return trace() + sizeof(SessionTrace); }
    [[nodiscard]] constexpr std::size_t completions() const noexcept {
        return submissions() + ring_bytes<WorkRequest>(submission_slots);
    }
    [[nodiscard]] constexpr std::size_t bytes() const noexcept {
        return align(completions() + ring_bytes<Completion>(completion_ring_slots()));
    }
};

/// Throws Error(EINVAL) for ring sizes that are not allowed, and for device_time without wide_completions.
void require_valid(const SessionOptions& options);
/// Throws Error(EINVAL) unless `name` may be the name of a session or a queue pair.
void require_name(std::string_view name);

/// Makes an empty session block in `block`: zeroed, cache-line aligned memory of layout.bytes() bytes.
void format_session(void* block, const SessionLayout& layout) noexcept;
/// Whether another process has formatted the whole block, with this layout.
[[nodiscard]] bool is_formatted(void* block, const SessionLayout& layout) noexcept;

[[nodiscard]] inline SessionHeader* session_header(void* block) noexcept {
    return static_cast<SessionHeader*>(block);
}
template <class T>
[[nodiscard]] T* at_offset(void* block, std::size_t offset) noexcept {
    return reinterpret_cast<T*>(static_cast<std::byte*>(block) + offset);
}

}  // namespace pollcore
