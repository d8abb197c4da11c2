// Arguments to make a path, and the request of a peer that connects to it.
//
// Thread safety: plain values.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "pollcore/queue_pair.hpp"
#include "workload.hpp"

namespace pollcore::perf {

struct PathSetup {
    EndLayout layout{0};
    unsigned ends = 2;             ///< ends of the connection in this process: 1 or 2
    std::uint32_t inline_max = 0;  ///< the most bytes that a work request can carry inline
    /// The address whose GID the two ends use to connect with each other. If empty, they use the first GID of RoCE v2.
    std::string gid;
    Waiting wait = Waiting::spin;
    FlowControl flow = FlowControl::off;  ///< only for a path through a worker
};

/// The connection request of a peer, from a path's next_request(). Answer it with accept() or reject() of that path.
struct PeerRequest {
    std::string peer;
    std::vector<std::byte> private_data;
};

}  // namespace pollcore::perf
