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
    unsigned ends = 2;             ///< 2: both are in this process
    std::uint32_t inline_max = 0;  ///< bytes that a work request can carry inline
    /// The address whose GID connects the two ends with each other. Empty: the first GID of RoCE v2.
    std::string gid;
    Waiting wait = Waiting::spin;
    FlowControl flow = FlowControl::off;  ///< for the runtime's path
};

/// A peer that asks for a connection; the path that offered it answers with accept() or reject().
struct PeerRequest {
    std::string peer;
    std::vector<std::byte> private_data;
};

}  // namespace pollcore::perf
