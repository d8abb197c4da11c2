// A page that shows documents of pollperf (FORMAT.md) as tables and charts. The page is one HTML file that needs no
// other file and no network, so it can be sent to somebody.
//
// Thread safety: a pure function.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

namespace pollcore::perf {

/// Several documents are compared with each other. Throws std::invalid_argument if there is no document, or if one of
/// them was not written by pollperf in the present format; the sentence has its position, counted from 1.
[[nodiscard]] std::string page(std::span<const nlohmann::ordered_json> documents, std::string_view title);

}  // namespace pollcore::perf
