// The rules of the keys that set how a worker waits.
#include <array>

#include <fmt/format.h>

#include "config/rules.hpp"

namespace pollcore {
namespace config {
namespace {

constexpr std::array<std::string_view, kIdlePolicies> kWords{"spin", "pause", "monitor", "yield", "event"};
constexpr std::chrono::hours kRungMax{1};
constexpr std::uint32_t kVectorMax = 65535;

std::string_view word_of(IdlePolicy policy) noexcept {
    const auto index = static_cast<std::size_t>(policy);
    return index < kWords.size() ? kWords[index] : std::string_view();
}

Parsed<IdlePolicy> policy_of(std::string_view word) {
    for (std::size_t i = 0; i < kWords.size(); ++i) {
        if (kWords[i] == word) {
            return static_cast<IdlePolicy>(i);
        }
    }
    return Reason{fmt::format("there is no way to wait called {}", toml_quoted_short(word))};
}

// Reads one way to wait, such as "event" or {spin = "20us"}.
Parsed<IdleRung> read_rung(const TomlNode& node) {
    if (node.type == TomlNode::Type::text) {
        auto policy = policy_of(node.text);
        if (auto* reason = std::get_if<Reason>(&policy)) {
            return std::move(*reason);
        }
        return IdleRung{std::get<IdlePolicy>(policy), {}};
    }
    if (node.type != TomlNode::Type::table) {
        return wrong_type(node, "a way to wait, or one with its time such as {spin = \"20us\"},");
    }
    if (node.children.size() != 1) {
        return Reason{"each of its tables is one way to wait with its time, such as {spin = \"20us\"}"};
    }
    const TomlNode& rung = node.children.front();
    auto policy = policy_of(rung.key);
    if (auto* reason = std::get_if<Reason>(&policy)) {
        return std::move(*reason);
    }
    if (rung.type != TomlNode::Type::text) {
        return Reason{fmt::format("the time of {} is no string such as \"20us\"", toml_quoted_short(rung.key))};
    }
    auto time = parse_duration(rung.text);
    if (auto* reason = std::get_if<Reason>(&time)) {
        return Reason{fmt::format("the time of {}: {}", toml_quoted_short(rung.key), reason->text)};
    }
    if (std::get<std::chrono::nanoseconds>(time).count() == 0) {
        return Reason{fmt::format("the time of {} is 0", toml_quoted_short(rung.key))};
    }
    return IdleRung{std::get<IdlePolicy>(policy), std::get<std::chrono::nanoseconds>(time)};
}

}  // namespace

std::string IdleRule::accepted() const {
    return "\"spin\", \"pause\", \"monitor\", \"yield\" or \"event\", or a list in which each but the last has its "
           "time, such "
           "as [{spin = \"20us\"}, {pause = \"200us\"}, \"event\"]";
}

Parsed<IdleLadder> IdleRule::read(const TomlNode& node) const {
    IdleLadder ladder{};
    ladder.rungs.clear();
    if (node.type == TomlNode::Type::text) {
        auto rung = read_rung(node);
        if (auto* reason = std::get_if<Reason>(&rung)) {
            return std::move(*reason);
        }
        ladder.rungs.push_back(std::get<IdleRung>(rung));
        return ladder;
    }
    if (node.type != TomlNode::Type::list) {
        return wrong_type(node, "a way to wait, or a list of them,");
    }
    for (const TomlNode& child : node.children) {
        auto rung = read_rung(child);
        if (auto* reason = std::get_if<Reason>(&rung)) {
            return std::move(*reason);
        }
        ladder.rungs.push_back(std::get<IdleRung>(rung));
    }
    return ladder;
}

Refusal IdleRule::check(const Value& value) const {
    if (value.rungs.empty()) {
        return "it is empty";
    }
    std::array<bool, kIdlePolicies> seen{};
    for (const IdleRung& rung : value.rungs) {
        const std::string_view word = word_of(rung.policy);
        if (word.empty()) {
            return "it has a way to wait that is none of the enumeration's values";
        }
        if (std::exchange(seen[static_cast<std::size_t>(rung.policy)], true)) {
            return fmt::format("{} is in it twice", toml_quoted(word));
        }
        const bool last = &rung == &value.rungs.back();
        if (rung.policy == IdlePolicy::event && !last) {
            return "a worker sleeps until something wakes it, so that nothing follows \"event\"";
        }
        if (last && rung.time.count() != 0) {
            return fmt::format("the last one, {}, has a time, and nothing follows it", toml_quoted(word));
        }
        if (!last && rung.time.count() <= 0) {
            return fmt::format("{} has no time, and something follows it", toml_quoted(word));
        }
        if (rung.time > kRungMax) {
            return fmt::format("{} lasts for more than an hour", toml_quoted(word));
        }
        if (rung.policy == IdlePolicy::monitor && !cpus.waitpkg) {
            return "the CPUs of this machine have no TPAUSE (CPUID feature \"waitpkg\"), which \"monitor\" is; "
                   "\"pause\" is as "
                   "near as they come";
        }
    }
    return std::nullopt;
}

std::string IdleRule::print(const Value& value) const {
    const auto shown = [](const IdleRung& rung) {
        const std::string_view word = word_of(rung.policy);
        return word.empty() ? std::to_string(static_cast<int>(rung.policy)) : std::string(word);
    };
    if (value.rungs.size() == 1 && value.rungs.front().time.count() == 0) {
        return toml_quoted(shown(value.rungs.front()));
    }
    std::string out = "[";
    for (const IdleRung& rung : value.rungs) {
        out += out.size() == 1 ? "" : ", ";
        out += rung.time.count() == 0
                   ? toml_quoted(shown(rung))
                   : fmt::format("{{{} = {}}}", shown(rung), toml_quoted(print_duration(rung.time.count(), 1)));
    }
    return out + "]";
}

std::string VectorRule::accepted() const {
    return fmt::format("\"spread\", or an integer from 0 to {} that is below the device's num_comp_vectors",
                       kVectorMax);
}

Parsed<VectorRule::Value> VectorRule::read(const TomlNode& node) const {
    if (node.type == TomlNode::Type::text) {
        if (node.text == "spread") {
            return Value();
        }
        return Reason{"it is neither \"spread\" nor an integer"};
    }
    if (node.type != TomlNode::Type::integer) {
        return wrong_type(node, "\"spread\" or an integer");
    }
    if (node.integer < 0 || node.integer > kVectorMax) {
        return Reason{node.integer < 0 ? "it is negative" : "it is too large"};
    }
    return Value(static_cast<std::uint32_t>(node.integer));
}

Refusal VectorRule::check(Value value) const {
    return value && *value > kVectorMax ? Refusal("it is too large") : std::nullopt;
}

std::string VectorRule::print(Value value) const {
    return value ? std::to_string(*value) : toml_quoted("spread");
}

}  // namespace config

std::string IdleLadder::describe() const {
    std::string out;
    for (const IdleRung& rung : rungs) {
        out += fmt::format("{}{}", out.empty() ? "" : ", ", config::word_of(rung.policy));
        if (rung.time.count() != 0) {
            out += " " + config::print_duration(rung.time.count(), 1);
        }
    }
    return out;
}

}  // namespace pollcore
