// Measurements between two processes: how the client and the server connect, and how they disconnect.
//
// Thread safety: used by the measuring thread only.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <thread>

#include <fmt/format.h>

#include "options.hpp"
#include "peer_letter.hpp"
#include "rounds.hpp"

namespace pollcore::perf {

/// The time limit for connecting: at least 10 s, because the first connection after the network came up may need
/// seconds to find the peer's link address (ARP).
[[nodiscard]] inline std::chrono::milliseconds connect_time(const LatOptions& options) {
    return std::max<std::chrono::milliseconds>(options.timeout, std::chrono::seconds(10));
}

[[nodiscard]] inline LatRequest request_of(const LatOptions& options, const Workload& workload, PathKind path,
                                           const RemoteBlock& memory) {
    return {.op = workload.op,
            .path = path,
            .verify = workload.verify,
            .size = workload.size,
            .iterations = options.iterations,
            .warmup = options.warmup,
            .memory = memory};
}

/// Waits for the client's last word, an additional message. A sender's request completes some time after the receiver
/// has got the message. If the receiver disconnected at once, the sender's request could fail. Therefore the client,
/// which gets the last message of the measurement, sends the last word when it is done. The server disconnects after
/// that.
template <class Path>
void await_last_word(Path& path, const Workload& workload, const LatOptions& options) {
    const EndState& state = path.end(kNear);
    const std::uint64_t messages = workload.op == Op::send ? state.sequence : 0;
    Watch watch(options.timeout);
    watch.until(path, kNear, "the client's last word",
                [&] { return state.received > state.received_before + messages; });
}

/// Returns false when the peer has not left within `time`.
template <class Path>
[[nodiscard]] bool wait_until_left(Path& path, std::chrono::milliseconds time) {
    const auto deadline = std::chrono::steady_clock::now() + time;
    while (!path.peer_left()) {
        if (std::chrono::steady_clock::now() >= deadline) {
            return false;
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    return true;
}

template <class Path>
void measure_rounds(const LatOptions& options, const Workload& workload, Path& path, LatResults& results) {
    Watch watch(options.timeout);
    const PinnedScope pinned(options.core);
    Measurement<Path> measurement(path, workload, options.role, options.iterations, watch);
    measurement.warm_up(options.warmup);
    measurement.round(options.iterations);
    results.paths.push_back(measurement.result());
}

template <class Path>
void run_client(const LatOptions& options, Workload workload, Path& path, LatResults& results) {
    begin_workload(path, workload, 1);
    const LatRequest request = request_of(options, workload, Path::kKind, path.own_block(kNear));
    const PeerKind peer =
        recognize_peer(path.connect(options.address, request.encode(), connect_time(options)), workload);
    results.peer = peer.description;
    path.end(kNear).remote = peer.memory;
    workload.one_sided = workload.one_sided || !peer.answers;
    measure_rounds(options, workload, path, results);
    if (peer.ends_connection && !workload.one_sided) {
        path.post_once(Op::send);  // the last word
        (void)wait_until_left(path, options.timeout);
    }
    if (!path.peer_left()) {
        path.disconnect(options.timeout);
    }
}

/// Waits for a client whose request fits this server's options. Rejects other clients with the reason.
template <class Path>
[[nodiscard]] LatRequest accept_client(const LatOptions& options, const Workload& workload, Path& path) {
    const LatRequest ours = request_of(options, workload, Path::kKind, path.own_block(kNear));
    const std::string address = path.listen(fmt::format("0.0.0.0:{}", options.port));
    fmt::print(stderr, "pollperf: {} of {} bytes, path {}: waiting for a client at {}\n", op_name(ours.op), ours.size,
               path_name(ours.path), address);
    const auto deadline = std::chrono::steady_clock::now() + options.client_timeout;
    for (;;) {
        const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
        const auto request = path.next_request(std::max(left, std::chrono::milliseconds(1)));
        if (!request) {
            if (std::chrono::steady_clock::now() >= deadline) {
                throw MeasurementError(fmt::format("no client came to {} within {} ms (--client-timeout)", address,
                                                   options.client_timeout.count()));
            }
            continue;
        }
        const auto theirs = LatRequest::decode(request->private_data);
        const std::string why = theirs ? mismatch(ours, *theirs) : "this server takes only pollperf clients";
        if (why.empty()) {
            path.accept(LatAnswer{.path = Path::kKind, .memory = ours.memory}.encode(), connect_time(options));
            return *theirs;
        }
        fmt::print(stderr, "pollperf: refused {}: {}\n", request->peer, why);
        path.reject(rejection(why));
    }
}

template <class Path>
void run_server(const LatOptions& options, const Workload& workload, Path& path, LatResults& results) {
    begin_workload(path, workload, 1);
    const LatRequest client = accept_client(options, workload, path);
    results.peer = fmt::format("pollperf, path {}", path_name(client.path));
    path.end(kNear).remote = client.memory;
    if (!workload.one_sided) {
        measure_rounds(options, workload, path, results);
        await_last_word(path, workload, options);
        path.disconnect(options.timeout);
        return;
    }
    // The server cannot see one-sided operations. It allows 1 ms for each, and more for a long one.
    const std::uint64_t operations = std::uint64_t{options.iterations} + options.warmup;
    const std::uint64_t ms_each = 1 + workload.size / 10000;
    const auto time = options.timeout + std::chrono::milliseconds(operations * ms_each);
    if (!wait_until_left(path, time)) {
        throw MeasurementError(
            fmt::format("the client has not left after {} ms, which {} operations of {} bytes do "
                        "not take",
                        time.count(), operations, workload.size));
    }
}

}  // namespace pollcore::perf
