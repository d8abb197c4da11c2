// A trace of the requests that a runtime follows, and of its workers' stalls, in the format of Chrome's trace viewer,
// which Perfetto reads (https://ui.perfetto.dev): "Trace Event Format" of the Chromium project.
#pragma once

#include <cstdint>
#include <set>
#include <string>

#include "pollcore/statistics.hpp"

namespace pollcore::stat {

/// Collects from snapshots of one runtime. A request appears once, in however many snapshots it is.
///
/// Thread safety: one thread.
class Trace {
public:
    void add(const statistics::Snapshot& snapshot);
    [[nodiscard]] std::size_t requests() const noexcept { return requests_.size(); }
    [[nodiscard]] std::size_t stalls() const noexcept { return stalls_.size(); }
    /// The JSON text. Each session is a process, with its name, and each request has a track with its three stages.
    [[nodiscard]] std::string json() const;

private:
    std::set<std::uint64_t> requests_;  // their ids
    std::set<std::uint64_t> stalls_;
    std::set<std::pair<bool, std::uint64_t>> named_;  // (it is a session, its id)
    std::string events_;                              // JSON objects, each with a comma before it
};

}  // namespace pollcore::stat
