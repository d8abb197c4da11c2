// What a measurement does: the operation, the transport, the path, and how an end's memory is laid out.
//
// Thread safety: plain values.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>

#include "pollcore/flow_control.hpp"
#include "pollcore/limits.hpp"
#include "pollcore/queue_pair.hpp"

namespace pollcore::perf {

/// A measurement that could not be finished: exit code 1.
class MeasurementError : public std::runtime_error {
public:
    using std::runtime_error::runtime_error;
};

/// What a command measures.
enum class Test : std::uint8_t {
    lat,   ///< latency: an operation, or a message to and fro, at a time
    bw,    ///< bandwidth: many operations in flight
    rate,  ///< operations per second: many small operations in flight, posted in lists
};

enum class Op : std::uint8_t { send, write, write_imm, read, fetch_add, compare_swap };
inline constexpr Op kOps[] = {Op::send, Op::write, Op::write_imm, Op::read, Op::fetch_add, Op::compare_swap};
inline constexpr Op kLastOp = Op::compare_swap;

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
    both,    ///< one thread serves both ends of the connections
    client,  ///< sends the first message
    server,  ///< answers the client
};

/// How the application's thread waits for a completion.
enum class Waiting : std::uint8_t {
    spin,
    yield,  ///< calls sched_yield(2) between polls, so that the thread and the worker can share one CPU
    sleep,
};

[[nodiscard]] constexpr std::string_view test_name(Test test) noexcept {
    switch (test) {
        case Test::lat: return "lat";
        case Test::bw: return "bw";
        case Test::rate: return "rate";
    }
    return "?";
}
[[nodiscard]] constexpr std::string_view op_name(Op op) noexcept {
    switch (op) {
        case Op::send: return "send";
        case Op::write: return "write";
        case Op::write_imm: return "write-imm";
        case Op::read: return "read";
        case Op::fetch_add: return "fetch-add";
        case Op::compare_swap: return "cmp-swap";
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
[[nodiscard]] constexpr std::string_view transport_name(QpType type) noexcept {
    switch (type) {
        case QpType::rc: return "RC";
        case QpType::uc: return "UC";
        case QpType::ud: return "UD";
    }
    return "?";
}
[[nodiscard]] constexpr bool is_atomic(Op op) noexcept {
    return op == Op::fetch_add || op == Op::compare_swap;
}
/// Whether the operation ends at its own completion and the peer's program does not notice it.
[[nodiscard]] constexpr bool is_answered(Op op) noexcept {
    return op == Op::read || is_atomic(op);
}
/// Whether the operation uses up a receive of the peer.
[[nodiscard]] constexpr bool takes_receive(Op op) noexcept {
    return op == Op::send || op == Op::write_imm;
}
/// Whether the specification has the operation on this transport (ibv_post_send(3)).
[[nodiscard]] constexpr bool can_do(QpType type, Op op) noexcept {
    return type == QpType::rc || (type == QpType::uc ? !is_answered(op) : op == Op::send);
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
/// The global routing header before a datagram in its receive buffer (InfiniBand specification, 8.3).
inline constexpr std::uint32_t kGrhSize = 40;

/// One measurement: what is done with the connections that exist.
struct Workload {
    Test test = Test::lat;
    Op op = Op::send;
    QpType transport = QpType::rc;
    std::uint32_t size = 2;
    bool inlined = false;  ///< the message is inline data of the work request
    bool verify = false;
    /// A sample is the time of an operation up to its own completion, and the peer's program does not answer.
    bool one_sided = false;
    bool bidirectional = false;      ///< both ends of each connection send
    std::uint32_t tx_depth = 1;      ///< operations in flight on each queue pair
    std::uint32_t post_list = 1;     ///< operations that are posted by one call, with one doorbell
    std::uint32_t signal_every = 1;  ///< every so many operations have a completion (perftest: -Q)

    /// How many reported samples an iteration has. A round trip has two, because a reported sample is half of it, as in
    /// perftest.
    [[nodiscard]] double samples_per_iteration() const noexcept { return one_sided ? 1.0 : 2.0; }
    /// Whether each message is written into a buffer that the device may still read. The writer then has to wait for
    /// the completion of the previous message.
    [[nodiscard]] bool buffer_reused() const noexcept { return verify || (op == Op::write && !inlined); }
};

/// The layout of an end's memory. First come `out_slots` buffers for outgoing messages and for the results of reads and
/// atomics. Then come `in_slots` buffers that the peer writes and reads, and does atomics on. `receive_buffers`
/// buffers follow, in which messages arrive.
struct EndLayout {
    std::uint32_t size = 0;  ///< the most bytes of a message
    std::uint32_t out_slots = 1;
    std::uint32_t in_slots = 1;
    std::uint32_t receive_slots = 1;
    /// The receives use so many buffers in turn. Fewer than receives if nobody looks at the bytes and they are long.
    std::uint32_t receive_buffers = 1;
    std::uint32_t receive_offset = 0;  ///< bytes before a message in its receive buffer: UD's header
    std::size_t stride = 0;            ///< bytes of a buffer, without that header
    std::size_t receive_stride = 0;

    EndLayout() = default;
    EndLayout(std::uint32_t message_size, std::uint32_t slots, std::uint32_t receives, QpType transport)
        : EndLayout(message_size, slots, receives, receives, transport) {}
    EndLayout(std::uint32_t message_size, std::uint32_t slots, std::uint32_t receives, std::uint32_t buffers,
              QpType transport)
        : size(message_size),
          out_slots(slots),
          in_slots(slots),
          receive_slots(receives),
          receive_buffers(buffers),
          receive_offset(transport == QpType::ud ? kGrhSize : 0),
          stride(lines(std::max(message_size, kAtomicSize))),
          receive_stride(lines(std::max(message_size, kAtomicSize) + receive_offset)) {}

    [[nodiscard]] std::size_t out(std::uint64_t n) const noexcept { return n % out_slots * stride; }
    [[nodiscard]] std::size_t in(std::uint64_t n) const noexcept { return (out_slots + n % in_slots) * stride; }
    /// Where receive number n begins, with UD's header.
    [[nodiscard]] std::size_t receive(std::uint64_t n) const noexcept {
        return (std::size_t{out_slots} + in_slots) * stride + n % receive_buffers * receive_stride;
    }
    [[nodiscard]] std::uint32_t receive_length() const noexcept { return size + receive_offset; }
    [[nodiscard]] std::size_t bytes() const noexcept {
        return (std::size_t{out_slots} + in_slots) * stride + receive_buffers * receive_stride;
    }

private:
    [[nodiscard]] static std::size_t lines(std::size_t bytes) noexcept {
        return (bytes + kCacheLine - 1) / kCacheLine * kCacheLine;
    }
};

/// Memory of the peer that one-sided operations are done on.
struct RemoteBlock {
    std::uint64_t addr = 0;
    std::uint32_t rkey = 0;
};

inline constexpr unsigned kNear = 0;  ///< the measuring end of the first connection

}  // namespace pollcore::perf
