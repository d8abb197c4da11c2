// What both paths are made from, and what a connecting path says and hears.
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
    unsigned ends = 2;             ///< 2: both are this process's
    std::uint32_t inline_max = 0;  ///< bytes that a work request shall carry
    /// To connect the two ends with each other: the address whose GID is used. Empty: the first of RoCE v2.
    std::string gid;
    Waiting wait = Waiting::spin;
    FlowControl flow = FlowControl::off;  ///< of the runtime's path
};

/// A peer that asks for a connection; the path that offered it answers with accept() or reject().
struct PeerRequest {
    std::string peer;
    std::vector<std::byte> private_data;
};

}  // namespace pollcore::perf
