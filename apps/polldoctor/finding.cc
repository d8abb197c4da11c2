#include "finding.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

namespace pollcore::doctor {

std::string_view name_of(Severity severity) noexcept {
    switch (severity) {
        case Severity::ok: return "ok";
        case Severity::note: return "note";
        case Severity::warning: return "warning";
        case Severity::fault: return "fault";
    }
    return "?";
}

std::string_view name_of(Command::When when) noexcept {
    switch (when) {
        case Command::When::now: return "now";
        case Command::When::boot: return "boot";
        case Command::When::firmware: return "firmware";
    }
    return "?";
}

std::string text_of(const About& about) {
    std::string text = about.worker;
    if (about.core) {
        text += fmt::format("{}CPU {}", text.empty() ? "" : ", ", *about.core);
    }
    if (!about.device.empty()) {
        text += (text.empty() ? "" : ", ") + about.device;
    }
    return text.empty() ? "host" : text;
}

std::string shell_word(std::string_view text) {
    constexpr std::string_view kPlain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./:@,+-";
    if (!text.empty() && text.find_first_not_of(kPlain) == text.npos) {
        return std::string(text);
    }
    std::string quoted = "'";
    for (const char c : text) {
        quoted += c == '\'' ? "'\\''" : std::string(1, c);
    }
    return quoted + "'";
}

Severity worst_of(const std::vector<Finding>& findings) noexcept {
    Severity worst = Severity::ok;
    for (const Finding& each : findings) {
        worst = std::max(worst, each.severity);
    }
    return worst;
}

Finding not_judged(About about, std::string why, std::string source) {
    return {.about = std::move(about),
            .severity = Severity::note,
            .judged = false,
            .sure = false,
            .seen = std::move(why),
            .source = std::move(source)};
}

}  // namespace pollcore::doctor
