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
    attached,  ///< as `runtime`, but through an Attachment, as in a process that is not the worker's
};
inline constexpr PathKind kLastPath = PathKind::attached;
[[nodiscard]] constexpr bool has_worker(PathKind path) noexcept {
    return path == PathKind::runtime || path == PathKind::attached;
}

/// How the ends of a connection share the work.
enum class Role : std::uint8_t {
    both,    ///< one process, one thread, both ends
    client,  ///< sends first
    server,  ///< answers
};

/// What the application's thread does until something has completed.
enum class Waiting : std::uint8_t {
    spin,
    yield,  ///< polls, and yields its CPU in between (sched_yield(2)): thread and worker may share one CPU
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

/// Receives that an end keeps posted. Only one message at a time is on its way; with the other receives the next
/// message never waits until one is given back.
inline constexpr std::uint32_t kReceiveSlots = 64;
/// Receives that both paths give back together: one call and one doorbell for all of them.
inline constexpr std::uint32_t kRepostBatch = 32;
static_assert(kReceiveSlots % kRepostBatch == 0 && kRepostBatch < kReceiveSlots);
/// Slots of a send queue, and the interval of signaled sends and writes: the queue never fills.
inline constexpr std::uint32_t kSendDepth = 64;
inline constexpr std::uint32_t kSignalEvery = 16;
static_assert((kSignalEvery & (kSignalEvery - 1)) == 0 && 2 * kSignalEvery <= kSendDepth);

struct Workload {
    Op op = Op::send;
    std::uint32_t size = 2;
    bool inlined = false;  ///< the message travels in the work request
    bool verify = false;
    bool one_sided = false;  ///< the peer does nothing: a sample is the time of the operation up to its completion

    /// Send and write go to and fro: a reported sample is half a round trip, as in perftest.
    [[nodiscard]] double samples_per_iteration() const noexcept { return one_sided ? 1.0 : 2.0; }
    /// The buffer is written for each message, and the device may still read it until its completion.
    [[nodiscard]] bool buffer_reused() const noexcept { return verify || (op == Op::write && !inlined); }
};

/// The memory of one end, in this order: `out` is sent and written from, or read into; `in` is what the peer
/// writes, reads and adds to; then the receive slots.
struct EndLayout {
    std::uint32_t size = 0;
    std::size_t stride = 0;

    explicit EndLayout(std::uint32_t message_size)
        : size(message_size),
          stride((std::max<std::size_t>(message_size, kAtomicSize) + kCacheLine - 1) / kCacheLine * kCacheLine) {}
    [[nodiscard]] static constexpr std::size_t out() noexcept { return 0; }
    [[nodiscard]] std::size_t in() const noexcept { return stride; }
    [[nodiscard]] std::size_t slot(std::uint64_t n) const noexcept { return (2 + n % kReceiveSlots) * stride; }
    [[nodiscard]] std::size_t bytes() const noexcept { return (2 + kReceiveSlots) * stride; }
};

/// The memory that is the target of an end's one-sided operations.
struct RemoteBlock {
    std::uint64_t addr = 0;
    std::uint32_t rkey = 0;
};

/// An end as the timed loops see it. Counts only grow.
struct EndState {
    std::byte* memory = nullptr;
    RemoteBlock remote;
    std::uint64_t issued = 0;     ///< send-queue work requests
    std::uint64_t signaled = 0;   ///< send-queue work requests that make a completion
    std::uint64_t completed = 0;  ///< completions of the send queue
    std::uint64_t received = 0;
    std::uint64_t reposted = 0;         ///< receives given back
    std::uint64_t sequence = 0;         ///< number of the message, from 1 in each workload; both ends count alike
    std::uint64_t received_before = 0;  ///< `received` when the workload began

    /// Whether the program holds enough receives to give back a batch.
    [[nodiscard]] bool repost_due() const noexcept { return reposted + kRepostBatch <= received + kReceiveSlots; }
    [[nodiscard]] bool idle() const noexcept { return completed == signaled; }
    /// Whether the peer's message of the present number is here. Any poll takes it, perhaps long before anybody waits
    /// for it.
    [[nodiscard]] bool has_message() const noexcept { return received >= received_before + sequence; }
};

inline constexpr unsigned kNear = 0;  ///< the measuring end
inline constexpr unsigned kFar = 1;   ///< the other end, if this process has both

}  // namespace pollcore::perf
