// Rules of [attach] and [control].
#include <sys/un.h>

#include <algorithm>

#include <fmt/format.h>

#include "config/rules.hpp"

namespace pollcore::config {
namespace {

constexpr std::size_t kPathMax = sizeof(sockaddr_un::sun_path) - 1;
// The longest name that useradd(8) and groupadd(8) accept.
constexpr std::size_t kAccountMax = 32;
constexpr std::uint32_t kModeMax = 0777;
// connect(2) needs the right to write to the socket's file.
constexpr std::uint32_t kMayWrite = 0222;
constexpr std::size_t kNamesMax = 64;

Refusal check_spelling(const std::string& name) {
    if (name.empty()) {
        return "it is empty";
    }
    if (name.size() > kAccountMax) {
        return "it is longer than the names of users and groups are";
    }
    const bool plain = std::all_of(name.begin(), name.end(),
                                   [](unsigned char c) { return c > ' ' && c < 0x7f && c != ':' && c != '/'; });
    return plain ? std::nullopt : Refusal("it holds characters that names of users and groups do not have");
}

Refusal check_known(AccountKind kind, const std::string& name) {
    const auto number = account_number(kind, name);
    const auto* unknown = std::get_if<Reason>(&number);
    return unknown != nullptr ? Refusal(unknown->text) : std::nullopt;
}

}  // namespace

std::string SocketPathRule::accepted() const {
    return fmt::format("an absolute path of at most {} characters, or \"\": {}", kPathMax, empty_means);
}

Refusal SocketPathRule::check(const Value& value) const {
    if (value.empty()) {
        return std::nullopt;
    }
    if (value.front() != '/') {
        return "it is relative, and the daemon's working directory is not the operator's";
    }
    if (value.size() > kPathMax) {
        return "it is longer than a socket's path may be";
    }
    return is_printable_utf8(value) ? std::nullopt : Refusal("it holds control characters or is no UTF-8");
}

std::string AccountRule::accepted() const {
    return fmt::format("the name of a {} of this machine, or a number up to {}, or \"\": {}",
                       kind == AccountKind::user ? "user" : "group", kNoAccount - 1, empty_means);
}

Refusal AccountRule::check(const Value& value) const {
    if (value.empty()) {
        return std::nullopt;
    }
    const Refusal why = check_spelling(value);
    return why ? why : check_known(kind, value);
}

std::string AccountsRule::accepted() const {
    return fmt::format("a list of up to {} {} of this machine, by name or by number up to {}, such as [\"root\"]",
                       kNamesMax, kind == AccountKind::user ? "users" : "groups", kNoAccount - 1);
}

Parsed<AccountsRule::Value> AccountsRule::read(const TomlNode& node) const {
    if (node.type != TomlNode::Type::list) {
        return wrong_type(node, "a list of strings");
    }
    Value names;
    for (const TomlNode& name : node.children) {
        if (name.type != TomlNode::Type::text) {
            return wrong_type(name, "a string");
        }
        names.push_back(name.text);
    }
    return names;
}

Refusal AccountsRule::check(const Value& value) const {
    if (value.size() > kNamesMax) {
        return "there are too many";
    }
    for (const std::string& name : value) {
        if (const Refusal why = check_spelling(name)) {
            return fmt::format("{}: {}", toml_quoted_short(name), *why);
        }
        if (const Refusal why = check_known(kind, name)) {
            return why;
        }
    }
    return std::nullopt;
}

std::string AccountsRule::print(const Value& value) const {
    std::string out;
    for (const std::string& name : value) {
        out += (out.empty() ? "" : ", ") + toml_quoted_short(name);
    }
    return "[" + out + "]";
}

std::string OwnMemoryRule::accepted() const {
    return fmt::format("\"on\", \"off\", or {}", AccountsRule{AccountKind::user}.accepted());
}

Parsed<OwnMemoryRule::Value> OwnMemoryRule::read(const TomlNode& node) const {
    if (node.type == TomlNode::Type::text && (node.text == "on" || node.text == "off")) {
        return Value{.all = node.text == "on", .users = {}};
    }
    if (node.type != TomlNode::Type::list) {
        return wrong_type(node, "\"on\", \"off\" or a list of strings");
    }
    auto users = AccountsRule{AccountKind::user}.read(node);
    if (const auto* reason = std::get_if<Reason>(&users)) {
        return *reason;
    }
    return Value{.all = false, .users = std::get<AccountsRule::Value>(std::move(users))};
}

Refusal OwnMemoryRule::check(const Value& value) const {
    if (value.all && !value.users.empty()) {
        return "all processes are named, and single users, too";
    }
    return AccountsRule{AccountKind::user}.check(value.users);
}

std::string OwnMemoryRule::print(const Value& value) const {
    return value.all ? "\"on\"" : value.users.empty() ? "\"off\"" : AccountsRule{AccountKind::user}.print(value.users);
}

std::string ModeRule::accepted() const {
    return "the permissions in octal, as chmod(1) takes them, such as \"0660\"";
}

Parsed<ModeRule::Value> ModeRule::read(const TomlNode& node) const {
    const auto text = read_text(node);
    if (const auto* reason = std::get_if<Reason>(&text)) {
        return *reason;
    }
    const std::string& digits = std::get<std::string>(text);
    if (digits.empty() || digits.size() > 4 || digits.find_first_not_of("01234567") != std::string::npos) {
        return Reason{"it is no octal number of up to four digits"};
    }
    return static_cast<Value>(std::stoul(digits, nullptr, 8));
}

Refusal ModeRule::check(Value value) const {
    if (value > kModeMax) {
        return "a socket has no such permissions";
    }
    return (value & kMayWrite) == 0 ? Refusal("nobody may write, and whoever attaches must be allowed to")
                                    : std::nullopt;
}

std::string ModeRule::print(Value value) const {
    return fmt::format("\"{:04o}\"", value);
}

}  // namespace pollcore::config
