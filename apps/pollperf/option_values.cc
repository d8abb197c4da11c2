#include "option_values.hpp"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstddef>
#include <iterator>
#include <sstream>
#include <string_view>
#include <system_error>
#include <utility>
#include <variant>

#include "config/cpus.hpp"
#include "config/refusal.hpp"
#include "config/rules.hpp"
#include "config/toml_tree.hpp"
#include "config/units.hpp"

namespace pollcore::perf {
namespace {

constexpr std::uint32_t kSizeMax = 64u << 20;
constexpr std::uint32_t kPortDefault = 18515;  // as in perftest

}  // namespace

void refuse_if(bool given, const char* option, const char* why) {
    if (given) {
        throw UsageError(fmt::format("{}: {}", option, why));
    }
}

bool is_number(const std::string& text) {
    return !text.empty() && std::all_of(text.begin(), text.end(), [](unsigned char c) { return std::isdigit(c) != 0; });
}

std::vector<Op> parse_ops(const std::string& text) {
    if (text == "all") {
        return {std::begin(kOps), std::end(kOps)};
    }
    std::vector<Op> ops;
    std::istringstream words(text);
    for (std::string word; std::getline(words, word, ',');) {
        const auto at = std::find_if(std::begin(kOps), std::end(kOps), [&](Op op) { return op_name(op) == word; });
        if (at == std::end(kOps)) {
            throw UsageError(
                fmt::format("--op {}: there is no operation '{}'; there are send, write, write-imm, read, fetch-add, "
                            "cmp-swap, several with commas between them, and all",
                            text, word));
        }
        if (std::find(ops.begin(), ops.end(), *at) != ops.end()) {
            throw UsageError(fmt::format("--op {}: '{}' is there twice", text, word));
        }
        ops.push_back(*at);
    }
    return ops;
}

std::vector<PathKind> parse_paths(const std::string& text, bool sleeps) {
    const PathKind plain = sleeps ? PathKind::event : PathKind::direct;
    if (text == "both") {
        return {plain, PathKind::runtime};
    }
    if (text == "all") {
        return {plain, PathKind::runtime, PathKind::attached};
    }
    std::vector<PathKind> paths;
    std::istringstream words(text);
    for (std::string word; std::getline(words, word, ',');) {
        std::optional<PathKind> path;
        for (const PathKind kind : {PathKind::direct, PathKind::event, PathKind::runtime, PathKind::attached}) {
            path = path_name(kind) == word ? kind : path;
        }
        if (!path) {
            throw UsageError(fmt::format(
                "--path {}: there are direct, event, runtime, attached, several with commas between them, both and all",
                text));
        }
        path = *path == PathKind::direct ? plain : *path;
        if (std::find(paths.begin(), paths.end(), *path) == paths.end()) {
            paths.push_back(*path);
        }
    }
    if (paths.empty()) {
        throw UsageError("--path: it names no path");
    }
    return paths;
}

std::uint32_t parse_size(const std::string& text) {
    const auto parsed = config::parse_bytes(is_number(text) ? text + "B" : text);
    if (const auto* reason = std::get_if<config::Reason>(&parsed)) {
        throw UsageError(
            fmt::format("--size {}: {}; it takes bytes, or {}", text, reason->text, config::kBytesExample));
    }
    return static_cast<std::uint32_t>(in_range<std::uint64_t>("--size", std::get<std::uint64_t>(parsed), 1, kSizeMax));
}

double parse_rate(const char* option, const std::string& text) {
    double value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    const std::string_view unit(end, static_cast<std::size_t>(text.data() + text.size() - end));
    const double factor = unit.empty() ? 1 : unit == "k" ? 1e3 : unit == "M" ? 1e6 : unit == "G" ? 1e9 : 0;
    if (error != std::errc() || factor == 0 || !(value > 0)) {
        throw UsageError(fmt::format("{} {}: it takes a number, perhaps with k, M or G, such as 100k", option, text));
    }
    return value * factor;
}

double parse_bandwidth(const std::string& text) {
    if (text.ends_with("b")) {
        return parse_rate("--min-bw", text.substr(0, text.size() - 1)) / 8;
    }
    const auto parsed = config::parse_bytes(text);
    if (const auto* reason = std::get_if<config::Reason>(&parsed)) {
        throw UsageError(fmt::format("--min-bw {}: {}; it takes bytes a second such as 500MiB, or bits such as 100Gb",
                                     text, reason->text));
    }
    return static_cast<double>(std::get<std::uint64_t>(parsed));
}

double parse_tolerance(const std::string& text) {
    double value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    const std::string_view unit(end, static_cast<std::size_t>(text.data() + text.size() - end));
    value = unit == "%" ? value / 100 : value;
    if (error != std::errc() || (unit != "%" && !unit.empty()) || !(value >= 0) || value > 1000) {
        throw UsageError(fmt::format("--tolerance {}: it takes a share such as 5% or 0.05", text));
    }
    return value;
}

std::chrono::milliseconds parse_time(const char* option, const std::string& text) {
    const auto parsed = config::parse_duration(text);
    if (const auto* reason = std::get_if<config::Reason>(&parsed)) {
        throw UsageError(fmt::format("{} {}: {}; it takes {}", option, text, reason->text, config::kDurationExample));
    }
    const auto time = std::get<std::chrono::nanoseconds>(parsed);
    if (time < std::chrono::milliseconds(100) || time > std::chrono::hours(24) ||
        time % std::chrono::milliseconds(1) != std::chrono::nanoseconds(0)) {
        throw UsageError(fmt::format("{} {}: it takes whole milliseconds from 100ms to 86400s", option, text));
    }
    return std::chrono::duration_cast<std::chrono::milliseconds>(time);
}

std::chrono::nanoseconds parse_ns(const char* option, const std::string& text) {
    const auto parsed = config::parse_duration(text);
    if (const auto* reason = std::get_if<config::Reason>(&parsed)) {
        throw UsageError(fmt::format("{} {}: {}; it takes {}", option, text, reason->text, config::kDurationExample));
    }
    return std::get<std::chrono::nanoseconds>(parsed);
}

std::uint16_t parse_port(std::optional<std::uint32_t> given) {
    return static_cast<std::uint16_t>(in_range<std::uint32_t>("--port", given.value_or(kPortDefault), 1, 65535));
}

IdleLadder parse_idle(const char* option, const std::string& text) {
    const auto cpus = config::Cpus::of_this_process();
    const config::IdleRule rule{cpus};
    const auto refuse = [&](const std::string& why) {
        return UsageError(fmt::format("{} {}: {}; accepted: {}", option, text, why, rule.accepted()));
    };
    // The value has the syntax of the configuration file, but a single word needs no quotes.
    const bool word = std::all_of(text.begin(), text.end(), [](unsigned char c) { return std::isalpha(c) != 0; });
    try {
        const config::TomlNode document =
            config::read_toml(word ? fmt::format("idle = \"{}\"", text) : "idle = " + text, config::Origin(option));
        const config::TomlNode* node = document.find("idle");
        if (node == nullptr) {
            throw refuse("it is empty");
        }
        auto ladder = rule.read(*node);
        if (const auto* reason = std::get_if<config::Reason>(&ladder)) {
            throw refuse(reason->text);
        }
        if (const auto why = rule.check(std::get<IdleLadder>(ladder))) {
            throw refuse(*why);
        }
        return std::get<IdleLadder>(std::move(ladder));
    } catch (const ConfigError&) {
        throw refuse("it is neither a word nor a value as in TOML");
    }
}

}  // namespace pollcore::perf
