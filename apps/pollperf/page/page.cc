#include "page.hpp"

#include <stdexcept>

#include <fmt/format.h>

#include "page_parts.hpp"

namespace pollcore::perf {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kFormat = 2;

/// Why a document is none of pollperf's. Empty if it is one.
std::string objection(const Json& document) {
    if (!document.is_object()) {
        return "it is no JSON object";
    }
    const auto program = document.find("program");
    if (program == document.end() || !program->is_string() ||
        !program->get_ref<const std::string&>().starts_with("pollperf")) {
        return "its `program` is not pollperf";
    }
    const auto format = document.find("format");
    if (format == document.end() || !format->is_number_integer()) {
        return "it has no `format`";
    }
    if (*format != kFormat) {
        return fmt::format("its `format` is {}, and only {} can be shown", format->dump(), kFormat);
    }
    return {};
}

/// The text as the content of an HTML element.
std::string escaped(std::string_view text) {
    std::string out;
    for (const char c : text) {
        switch (c) {
            case '&': out += "&amp;"; break;
            case '<': out += "&lt;"; break;
            case '>': out += "&gt;"; break;
            default: out += c;
        }
    }
    return out;
}

/// JSON as the content of a script element. Only strings of JSON can have a '<', and they may have any character as \u.
/// Without it, no string can end the element or begin a comment.
std::string in_script(const Json& json) {
    std::string out;
    for (const char c : json.dump(-1, ' ', false, Json::error_handler_t::replace)) {
        if (c == '<') {
            out += "\\u003c";
        } else {
            out += c;
        }
    }
    return out;
}

}  // namespace

std::string page(std::span<const Json> documents, std::string_view title) {
    if (documents.empty()) {
        throw std::invalid_argument("a page needs a document");
    }
    Json all = Json::array();
    for (const Json& document : documents) {
        if (const std::string why = objection(document); !why.empty()) {
            throw std::invalid_argument(
                fmt::format("document {} of {} cannot be shown: {}", all.size() + 1, documents.size(), why));
        }
        all.push_back(document);
    }
    std::string out;
    out += kBeforeTitle;
    out += escaped(title);
    out += kBeforeData;
    out += in_script(all);
    out += kAfterData;
    return out;
}

}  // namespace pollcore::perf
