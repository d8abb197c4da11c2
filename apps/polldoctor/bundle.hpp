// An archive for a bug report: configuration, versions, findings, the files of the host that were read, the statistics
// and events of runtimes, and logs.
//
// Thread safety: one thread.
#pragma once

#include <filesystem>
#include <string>

#include "facts.hpp"
#include "tree.hpp"

namespace pollcore::doctor {

struct Printed {
    std::string json;  ///< findings_json()
    std::string text;  ///< findings_text()
};

/// Writes the bundle of this host. `facts` is what was judged, `later` the second reading. Throws Error, and leaves no
/// file, if it cannot be written. Parts that cannot be read are left out, and the archive says why.
void write_bundle(const std::filesystem::path& file, const Facts& facts, const Tree& later, const Printed& printed);

}  // namespace pollcore::doctor
