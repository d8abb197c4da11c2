// The report for programs: one JSON object with all results. ../FORMAT.md describes its keys.
//
// Thread safety: pure functions.
#pragma once

#include <string>

#include <nlohmann/json.hpp>

#include "pollperf/report/results.hpp"

namespace pollcore::perf {

/// Raised by a change that a reader of the JSON could trip over.
inline constexpr int kJsonFormat = 2;

[[nodiscard]] nlohmann::ordered_json to_json(const Results& results);
/// A host in that object. A client and a server tell each other of their hosts in this form, too.
[[nodiscard]] nlohmann::ordered_json host_json(const HostFacts& host);
/// The content of the file. Bytes that are not UTF-8, as a command line may have them, become U+FFFD.
[[nodiscard]] std::string json_text(const Results& results);

}  // namespace pollcore::perf
