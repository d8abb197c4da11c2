// Arguments to make a path, and what the two sides of a connection tell each other.
//
// Thread safety: plain values.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "pollcore/queue_pair.hpp"
#include "pollperf/measure/workload.hpp"

namespace pollcore::perf {

/// The queue pairs of one measuring thread on one path, and their memory.
struct PathSetup {
    EndLayout layout;
    /// Ends in this process. If the process has both ends of each connection, the first half of them are the near ends,
    /// and end i is connected with end i + ends / 2.
    unsigned ends = 2;
    QpType transport = QpType::rc;
    std::uint32_t send_depth = 64;  ///< of each queue pair
    std::uint32_t post_list = 1;    ///< the most requests that are posted by one call
    std::uint32_t inline_max = 0;   ///< the most bytes that a work request can carry inline
    std::uint16_t mtu = 0;          ///< bytes; 0: the port's
    /// The address whose GID is used by connections without rdma_cm. If empty, the first GID of RoCE v2.
    std::string gid;
    Waiting wait = Waiting::spin;
    /// Whether another thread has to run for an operation to end. Only then does waiting plain verbs yield the CPU.
    bool others = false;
    FlowControl flow = FlowControl::off;  ///< only for a path through a worker
    unsigned sessions = 1;                ///< of this thread, on a path through workers; the ends are dealt out to them
    std::vector<std::string> workers;     ///< names; session i is at worker i modulo their number
};

/// What the peer needs to connect to an end and to use its memory.
struct EndInfo {
    QpInfo qp;
    RemoteBlock memory;
};

/// The connection request of a peer over rdma_cm. Answer it with accept() or reject() of the path that it came from.
struct PeerRequest {
    std::string peer;
    std::vector<std::byte> private_data;
};

/// The attributes of pollperf's connections. `mtu` is in bytes; 0 means the port's.
[[nodiscard]] inline PathAttributes measured_path(std::uint16_t mtu = 0) {
    PathAttributes path;
    path.mtu = mtu;
    path.rnr_retry = 7;  // without limit: a slow receiver slows the sender down, and is no failure
    return path;
}

/// The queue key of pollperf's datagrams.
inline constexpr std::uint32_t kQkey = 0x11111111;

}  // namespace pollcore::perf
