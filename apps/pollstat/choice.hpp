// Which runtimes there are on this host, and which one the user means.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "pollcore/statistics.hpp"

namespace pollcore::stat {

struct Found {
    std::filesystem::path file;
    statistics::Snapshot snapshot;  ///< valid if `error` is empty
    std::string error;              ///< why the segment cannot be read
};

/// All segments of this host.
[[nodiscard]] std::vector<Found> find_all();
/// The file that `wanted` names: a runtime's name, the number of its process, or a file. An empty text means the only
/// runtime that is alive and may be read. If several have the name, those that are dead do not count beside one that is
/// alive. Throws Error, which lists those that there are.
[[nodiscard]] std::filesystem::path choose(const std::string& wanted);
/// Whether the runtime has this name, or its process this number, or its segment is this file.
[[nodiscard]] bool is_called(const statistics::Snapshot& snapshot, const std::filesystem::path& file,
                             const std::string& wanted);
/// The runtime's name, with characters that do no harm to a terminal.
[[nodiscard]] std::string name_of(const statistics::Snapshot& snapshot);

}  // namespace pollcore::stat
