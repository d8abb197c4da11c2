// The workload of a measurement: the operation, its size, and the layout of an end's memory.
//
// Thread safety: plain values.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>

#include "pollcore/limits.hpp"
#include "pollcore/queue_pair.hpp"

namespace pollcore::perf {

/// A measurement that could not be finished: exit code 1.
class MeasurementError : public std::runtime_error {
public:
    using std::runtime_error::runtime_error;
};

enum class Op : std::uint8_t { send, write, read, fetch_add };
inline constexpr Op kOps[] = {Op::send, Op::write, Op::read, Op::fetch_add};

enum class PathKind : std::uint8_t {
    direct,    ///< plain verbs on the calling thread
    runtime,   ///< through a session and its worker
    event,     ///< plain verbs on the calling thread, which sleeps on a completion channel
    attached,  ///< through a session and its worker; the session belongs to an Attachment
};
inline constexpr PathKind kLastPath = PathKind::attached;
[[nodiscard]] constexpr bool has_worker(PathKind path) noexcept {
    return path == PathKind::runtime || path == PathKind::attached;
}

/// The part of this process in a measurement.
enum class Role : std::uint8_t {
    both,    ///< one thread serves both ends of the connection
    client,  ///< sends the first message
    server,  ///< answers the client
};

/// How the application's thread waits for a completion.
enum class Waiting : std::uint8_t {
    spin,
    yield,  ///< calls sched_yield(2) between polls, so that the thread and the worker can share one CPU
    sleep,
};

[[nodiscard]] constexpr std::string_view op_name(Op op) noexcept {
    switch (op) {
        case Op::send: return "send";
        case Op::write: return "write";
        case Op::read: return "read";
        case Op::fetch_add: return "fetch-add";
    }
    return "?";
}
[[nodiscard]] constexpr std::string_view path_name(PathKind path) noexcept {
    switch (path) {
        case PathKind::direct: return "direct";
        case PathKind::runtime: return "runtime";
        case PathKind::event: return "event";
        case PathKind::attached: return "attached";
    }
    return "?";
}

/// "off, credits, ..."
[[nodiscard]] inline std::string flow_names(std::string_view between = ", ") {
    std::string names;
    for (const FlowControl kind : kFlowControls) {
        names.append(names.empty() ? "" : between).append(flow_control_name(kind));
    }
    return names;
}

inline constexpr std::uint32_t kAtomicSize = 8;

/// The most receives that an end has posted. One would be enough, because only one message at a time is on its way.
/// With more, the next message never has to wait until a receive is posted again.
inline constexpr std::uint32_t kReceiveSlots = 64;
/// The receives that a path posts again together, with one call and one doorbell for all.
inline constexpr std::uint32_t kRepostBatch = 32;
static_assert(kReceiveSlots % kRepostBatch == 0 && kRepostBatch < kReceiveSlots);
/// The depth of a send queue. The queue never fills, because every kSignalEvery-th request is signaled.
inline constexpr std::uint32_t kSendDepth = 64;
inline constexpr std::uint32_t kSignalEvery = 16;
static_assert((kSignalEvery & (kSignalEvery - 1)) == 0 && 2 * kSignalEvery <= kSendDepth);

struct Workload {
    Op op = Op::send;
    std::uint32_t size = 2;
    bool inlined = false;  ///< the message is inline data of the work request
    bool verify = false;
    /// The peer does nothing. A sample is the time of an operation up to its completion.
    bool one_sided = false;

    /// How many reported samples an iteration has. An iteration of send or write is a round trip, and a reported sample
    /// is half of it, as in perftest.
    [[nodiscard]] double samples_per_iteration() const noexcept { return one_sided ? 1.0 : 2.0; }
    /// Whether each message is written into a buffer that the device may still read. The writer then has to wait for
    /// the completion of the previous message.
    [[nodiscard]] bool buffer_reused() const noexcept { return verify || (op == Op::write && !inlined); }
};

/// The layout of an end's memory. First comes `out`: the source of sends and writes, and the target of reads. Then
/// comes `in`: the peer writes, reads and does atomics there. The receive slots follow.
struct EndLayout {
    std::uint32_t size = 0;  ///< bytes of a message
    std::size_t stride = 0;  ///< bytes of each of these parts

    explicit EndLayout(std::uint32_t message_size)
        : size(message_size),
          stride((std::max<std::size_t>(message_size, kAtomicSize) + kCacheLine - 1) / kCacheLine * kCacheLine) {}
    [[nodiscard]] static constexpr std::size_t out() noexcept { return 0; }
    [[nodiscard]] std::size_t in() const noexcept { return stride; }
    [[nodiscard]] std::size_t slot(std::uint64_t n) const noexcept { return (2 + n % kReceiveSlots) * stride; }
    [[nodiscard]] std::size_t bytes() const noexcept { return (2 + kReceiveSlots) * stride; }
};

/// The target of an end's one-sided operations: memory of the other end.
struct RemoteBlock {
    std::uint64_t addr = 0;
    std::uint32_t rkey = 0;
};

/// The state of an end that the timed loops use. Counts only grow, except that `sequence` starts again with each
/// workload.
struct EndState {
    std::byte* memory = nullptr;
    RemoteBlock remote;
    std::uint64_t issued = 0;     ///< work requests posted to the send queue
    std::uint64_t signaled = 0;   ///< posted send-queue work requests that are signaled
    std::uint64_t completed = 0;  ///< completions of the send queue
    std::uint64_t received = 0;   ///< completions of the receive queue
    std::uint64_t reposted = 0;   ///< receives that were posted, the first kReceiveSlots included
    /// Number of the current message, from 1 in each workload. Both ends count in the same way.
    std::uint64_t sequence = 0;
    std::uint64_t received_before = 0;  ///< `received` when the workload began

    /// Whether enough receives have completed to post a batch again.
    [[nodiscard]] bool repost_due() const noexcept { return reposted + kRepostBatch <= received + kReceiveSlots; }
    [[nodiscard]] bool idle() const noexcept { return completed == signaled; }
    /// Whether the peer's message with the number `sequence` has arrived. Any poll may have taken it, perhaps long
    /// before a loop waits for the message.
    [[nodiscard]] bool has_message() const noexcept { return received >= received_before + sequence; }
};

inline constexpr unsigned kNear = 0;  ///< the measuring end
inline constexpr unsigned kFar = 1;   ///< the other end, if this process has both

}  // namespace pollcore::perf
