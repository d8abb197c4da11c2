// The rules for the values of the configuration's keys. Each rule reads a value from TOML, checks a value (from a file
// or from code), prints it as TOML, and describes the accepted values in words.
//
// schema.hpp names a rule for each key. All rules have the same four members, so the code that reads, checks and prints
// works with any rule:
//   accepted()     the text of a message after "accepted: "
//   read(node)     the value, or the reason why there is none; accepts only exact values
//   check(value)   the reason why the value is refused, or nothing
//   print(value)   the value as TOML; also of a refused value, because the message shows it
//
// Thread safety: immutable values.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "config/cpus.hpp"
#include "config/toml_tree.hpp"
#include "config/units.hpp"
#include "config/users_and_groups.hpp"
#include "pollcore/config.hpp"

namespace pollcore::config {

using Refusal = std::optional<std::string>;

/// Returns a reason such as "it is a string where an integer belongs". `wanted` is a noun with its article.
[[nodiscard]] Reason wrong_type(const TomlNode& node, std::string_view wanted);
/// Whether `text` is UTF-8 without control characters, with each character in its shortest encoding.
[[nodiscard]] bool is_printable_utf8(std::string_view text);
/// The text of a string node.
[[nodiscard]] Parsed<std::string> read_text(const TomlNode& node);

/// A plain integer.
struct CountRule {
    using Value = std::uint64_t;
    std::uint64_t min = 0;
    std::uint64_t max = 0;
    bool power_of_two = false;

    [[nodiscard]] std::string accepted() const;
    [[nodiscard]] Parsed<Value> read(const TomlNode& node) const;
    [[nodiscard]] Refusal check(Value value) const;
    [[nodiscard]] std::string print(Value value) const;
};

/// true or false.
struct BooleanRule {
    using Value = bool;

    [[nodiscard]] std::string accepted() const;
    [[nodiscard]] Parsed<Value> read(const TomlNode& node) const;
    [[nodiscard]] Refusal check(Value value) const;
    [[nodiscard]] std::string print(Value value) const;
};

/// The number of a CPU that this process may use.
struct CoreRule {
    using Value = std::uint64_t;
    const Cpus& cpus;

    [[nodiscard]] std::string accepted() const;
    [[nodiscard]] Parsed<Value> read(const TomlNode& node) const;
    [[nodiscard]] Refusal check(Value value) const;
    [[nodiscard]] std::string print(Value value) const;
};

/// A number of bytes, with its unit.
struct BytesRule {
    using Value = std::uint64_t;
    std::uint64_t min = 0;
    std::uint64_t max = 0;
    std::uint64_t multiple_of = 1;

    [[nodiscard]] std::string accepted() const;
    [[nodiscard]] Parsed<Value> read(const TomlNode& node) const;
    [[nodiscard]] Refusal check(Value value) const;
    [[nodiscard]] std::string print(Value value) const;
};

/// A duration: a whole number and a unit.
template <class Duration>
struct DurationRule {
    using Value = Duration;
    Duration min{0};
    Duration max{0};

    [[nodiscard]] std::string accepted() const;
    [[nodiscard]] Parsed<Value> read(const TomlNode& node) const;
    [[nodiscard]] Refusal check(Value value) const;
    [[nodiscard]] std::string print(Value value) const;
};
using MillisecondsRule = DurationRule<std::chrono::milliseconds>;
using MicrosecondsRule = DurationRule<std::chrono::microseconds>;

/// The common part of the string rules: reading and printing.
struct TextRule {
    using Value = std::string;
    [[nodiscard]] Parsed<Value> read(const TomlNode& node) const { return read_text(node); }
    [[nodiscard]] std::string print(const Value& value) const { return toml_quoted_short(value); }
};

/// A name. It may be empty if an empty name has a meaning.
struct NameRule : TextRule {
    constexpr explicit NameRule(std::string_view meaning_of_empty = {}) : empty_means(meaning_of_empty) {}
    std::string_view empty_means;

    [[nodiscard]] std::string accepted() const;
    [[nodiscard]] Refusal check(const Value& value) const;
};

/// The numeric IP address of a GID, or empty.
struct GidRule : TextRule {
    [[nodiscard]] std::string accepted() const;
    [[nodiscard]] Refusal check(const Value& value) const;
};

/// An address to listen at. Its syntax depends on the device: see check_address() in validation.cc.
struct AddressRule : TextRule {
    [[nodiscard]] std::string accepted() const;
    [[nodiscard]] Refusal check(const Value& value) const;
};

/// The absolute path of a directory. An empty path means the user's own directory.
struct DirectoryRule : TextRule {
    [[nodiscard]] std::string accepted() const;
    [[nodiscard]] Refusal check(const Value& value) const;
    [[nodiscard]] std::string print(const Value& value) const { return toml_quoted(value); }
};

/// The path of a Unix socket, or empty.
struct SocketPathRule : TextRule {
    constexpr explicit SocketPathRule(std::string_view meaning_of_empty) : empty_means(meaning_of_empty) {}
    std::string_view empty_means;

    [[nodiscard]] std::string accepted() const;
    [[nodiscard]] Refusal check(const Value& value) const;
    [[nodiscard]] std::string print(const Value& value) const { return toml_quoted(value); }
};

/// A user or group of the machine, or empty.
struct AccountRule : TextRule {
    constexpr explicit AccountRule(AccountKind account_kind, std::string_view meaning_of_empty = "the daemon's own")
        : kind(account_kind), empty_means(meaning_of_empty) {}
    AccountKind kind;
    std::string_view empty_means;

    [[nodiscard]] std::string accepted() const;
    [[nodiscard]] Refusal check(const Value& value) const;
};

/// Several users or groups of the machine.
struct AccountsRule {
    using Value = std::vector<std::string>;
    AccountKind kind{};

    [[nodiscard]] std::string accepted() const;
    [[nodiscard]] Parsed<Value> read(const TomlNode& node) const;
    [[nodiscard]] Refusal check(const Value& value) const;
    [[nodiscard]] std::string print(const Value& value) const;
};

/// "on", "off", or several users of the machine.
struct OwnMemoryRule {
    using Value = AttachConfig::OwnMemory;

    [[nodiscard]] std::string accepted() const;
    [[nodiscard]] Parsed<Value> read(const TomlNode& node) const;
    [[nodiscard]] Refusal check(const Value& value) const;
    [[nodiscard]] std::string print(const Value& value) const;
};

/// Permissions of a socket, in octal.
struct ModeRule {
    using Value = std::uint32_t;

    [[nodiscard]] std::string accepted() const;
    [[nodiscard]] Parsed<Value> read(const TomlNode& node) const;
    [[nodiscard]] Refusal check(Value value) const;
    [[nodiscard]] std::string print(Value value) const;
};

/// One word of a fixed list.
template <class Enum>
struct ChoiceRule {
    using Value = Enum;
    struct Choice {
        std::string_view word;
        Enum value;
    };
    std::span<const Choice> choices;

    [[nodiscard]] std::string accepted() const {
        std::string out;
        for (const Choice& choice : choices) {
            out += out.empty() ? "" : ", ";
            out += toml_quoted(choice.word);
        }
        return out;
    }
    [[nodiscard]] Parsed<Value> read(const TomlNode& node) const {
        if (node.type != TomlNode::Type::text) {
            return wrong_type(node, "a string");
        }
        for (const Choice& choice : choices) {
            if (choice.word == node.text) {
                return choice.value;
            }
        }
        return Reason{"there is no such choice"};
    }
    [[nodiscard]] Refusal check(Value value) const {
        return word_of(value).empty() ? Refusal("this is none of the enumeration's values") : std::nullopt;
    }
    [[nodiscard]] std::string print(Value value) const {
        const std::string_view word = word_of(value);
        return word.empty() ? std::to_string(static_cast<int>(value)) : toml_quoted(word);
    }
    [[nodiscard]] std::string_view word_of(Value value) const {
        for (const Choice& choice : choices) {
            if (choice.value == value) {
                return choice.word;
            }
        }
        return {};
    }
};

/// One way in which a worker waits, or a list of ways. Each way but the last has a time. After this time, the worker
/// goes on to the next way.
struct IdleRule {
    using Value = IdleLadder;
    const Cpus& cpus;

    [[nodiscard]] std::string accepted() const;
    [[nodiscard]] Parsed<Value> read(const TomlNode& node) const;
    [[nodiscard]] Refusal check(const Value& value) const;
    [[nodiscard]] std::string print(const Value& value) const;
};

/// The number of a completion vector, or "spread" for no particular vector.
struct VectorRule {
    using Value = std::optional<std::uint32_t>;

    [[nodiscard]] std::string accepted() const;
    [[nodiscard]] Parsed<Value> read(const TomlNode& node) const;
    [[nodiscard]] Refusal check(Value value) const;
    [[nodiscard]] std::string print(Value value) const;
};

/// Checks an address "ADDRESS:PORT" or "[ADDRESS%ZONE]:PORT". Every part but the zone must be numeric.
[[nodiscard]] Refusal check_socket_address(std::string_view text);
inline constexpr std::string_view kSocketAddressAccepted =
    "a numeric ADDRESS:PORT or [ADDRESS%ZONE]:PORT, such as \"192.0.2.1:7471\" or \"[fe80::1%eth0]:7471\"";

}  // namespace pollcore::config
