#include "control_command.hpp"

#include <algorithm>
#include <array>
#include <iterator>
#include <limits>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/printable.hpp"
#include "common/control_wire.hpp"
#include "config/schema.hpp"

namespace pollcore::daemon {
namespace {

using nlohmann::json;
using What = ControlCommand::What;

constexpr std::size_t kTextMax = 256;

constexpr config::ChoiceRule<LogLevel> kLevelRule{config::kLogLevels};

/// A key of a command, and whether the command must have it.
struct CommandKey {
    std::string_view name;
    bool required = true;
};
struct CommandForm {
    std::string_view name;
    What what;
    std::array<CommandKey, 2> keys{};
};
constexpr CommandForm kForms[] = {
    {"status", What::status},
    {"list", What::list, {{{"kind"}}}},
    {"show-process", What::show_process, {{{"process"}}}},
    {"drain", What::drain},
    {"resume", What::resume},
    {"stop", What::stop},
    {"disconnect-process", What::disconnect_process, {{{"process"}, {"grace_ms", false}}}},
    {"disconnect-queue-pair", What::disconnect_queue_pair, {{{"queue_pair"}, {"device", false}}}},
    {"log-level", What::log_level},
    {"set-log-level", What::set_log_level, {{{"level"}}}},
    {"health", What::health},
    {"reload", What::reload},
    {"version", What::version},
};

// A command is one object of texts and numbers. Stops at the first thing that does not belong there, so that the parser
// makes nothing large of a small text.
json parse_flat(std::string_view text) {
    const auto flat = [](int depth, json::parse_event_t event, json&) {
        if (depth > 1 || event == json::parse_event_t::array_start ||
            (depth > 0 && event == json::parse_event_t::object_start)) {
            throw BadCommand("a command is one JSON object of strings and numbers");
        }
        return true;
    };
    json object;
    try {
        object = json::parse(text, flat);
    } catch (const json::exception&) {  // its text may contain what was sent
        throw BadCommand("this is no JSON");
    }
    if (!object.is_object()) {
        throw BadCommand("a command is one JSON object of strings and numbers");
    }
    return object;
}

std::string text_of(const json& object, std::string_view key) {
    const json& value = object.at(std::string(key));
    if (!value.is_string()) {
        throw BadCommand(fmt::format("\"{}\" is no string", key));
    }
    auto text = value.get<std::string>();
    if (text.empty() || text.size() > kTextMax || text.find('\0') != std::string::npos) {
        throw BadCommand(fmt::format("\"{}\" is empty, longer than {} bytes, or has a NUL", key, kTextMax));
    }
    return text;
}

std::uint64_t number_of(const json& object, std::string_view key, std::uint64_t most) {
    const json& value = object.at(std::string(key));
    if (!value.is_number_unsigned() || value.get<std::uint64_t>() > most) {
        throw BadCommand(fmt::format("\"{}\" is no integer from 0 to {}", key, most));
    }
    return value.get<std::uint64_t>();
}

const CommandForm& form_of(const json& object) {
    if (!object.contains("protocol") || object.at("protocol") != control_wire::kProtocol) {
        throw BadCommand(
            fmt::format("this daemon speaks protocol {} only: pollctl is of another version", control_wire::kProtocol));
    }
    if (!object.contains("command")) {
        throw BadCommand("\"command\" is missing");
    }
    const std::string name = text_of(object, "command");
    const auto* const form =
        std::find_if(std::begin(kForms), std::end(kForms), [&](const CommandForm& each) { return each.name == name; });
    if (form == std::end(kForms)) {
        throw BadCommand(fmt::format("there is no command {}", printable(name)));
    }
    for (const auto& [key, value] : object.items()) {
        const bool known = key == "protocol" || key == "command" ||
                           std::any_of(form->keys.begin(), form->keys.end(), [&wanted = key](const CommandKey& each) {
                               return !each.name.empty() && each.name == wanted;
                           });
        if (!known) {
            throw BadCommand(fmt::format("the command \"{}\" has no {}", name, printable(key)));
        }
    }
    for (const CommandKey& key : form->keys) {
        if (!key.name.empty() && key.required && !object.contains(std::string(key.name))) {
            throw BadCommand(fmt::format("the command \"{}\" needs \"{}\"", name, key.name));
        }
    }
    return *form;
}

}  // namespace

std::string_view level_name(LogLevel level) noexcept {
    return kLevelRule.word_of(level);
}

ControlCommand parse_command(std::string_view text) {
    if (text.size() > control_wire::kCommandMax) {
        throw BadCommand(fmt::format("a command has at most {} bytes", control_wire::kCommandMax));
    }
    const json object = parse_flat(text);
    ControlCommand command{.what = form_of(object).what};
    if (object.contains("kind")) {
        command.kind = text_of(object, "kind");
        if (std::find(control_wire::kKinds.begin(), control_wire::kKinds.end(), command.kind) ==
            control_wire::kKinds.end()) {
            throw BadCommand(fmt::format("there is no kind {}", printable(command.kind)));
        }
    }
    if (object.contains("process")) {
        command.process =
            static_cast<std::uint32_t>(number_of(object, "process", std::numeric_limits<std::uint32_t>::max()));
    }
    if (object.contains("grace_ms")) {
        command.grace =
            std::chrono::milliseconds(number_of(object, "grace_ms", static_cast<std::uint64_t>(kGraceMax.count())));
    }
    if (object.contains("queue_pair")) {
        command.queue_pair = text_of(object, "queue_pair");
    }
    if (object.contains("device")) {
        command.device = text_of(object, "device");
    }
    if (object.contains("level")) {
        const std::string name = text_of(object, "level");
        const auto level = std::find_if(kLevelRule.choices.begin(), kLevelRule.choices.end(),
                                        [&](const auto& each) { return each.word == name; });
        if (level == kLevelRule.choices.end()) {
            throw BadCommand(fmt::format("there is no level {}", printable(name)));
        }
        command.level = level->value;
    }
    return command;
}

}  // namespace pollcore::daemon
