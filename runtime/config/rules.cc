#include "config/rules.hpp"

#include <arpa/inet.h>
#include <net/if.h>
#include <netinet/in.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <ratio>

#include <fmt/format.h>

#include "pollcore/limits.hpp"

namespace pollcore::config {
namespace {

bool is_word_character(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-' ||
           c == '.';
}

// The number of bytes after `first` in a UTF-8 sequence; -1 if no sequence begins with `first`.
int continuation_bytes(unsigned char first) {
    if (first < 0x80) {
        return 0;
    }
    if (first >= 0xc2 && first <= 0xdf) {
        return 1;
    }
    if ((first & 0xf0) == 0xe0) {
        return 2;
    }
    return first >= 0xf0 && first <= 0xf4 ? 3 : -1;
}

bool is_ip_address(int family, std::string_view text) {
    in6_addr parsed{};  // large enough for both families
    return ::inet_pton(family, std::string(text).c_str(), &parsed) == 1;
}

Parsed<std::uint64_t> read_count(const TomlNode& node) {
    if (node.type != TomlNode::Type::integer) {
        return wrong_type(node, "an integer");
    }
    if (node.integer < 0) {
        return Reason{"it is negative"};
    }
    return static_cast<std::uint64_t>(node.integer);
}

}  // namespace

// Whether TOML can contain the text, and a message can show it. Overlong forms, surrogates and values above U+10FFFF
// are not valid UTF-8.
bool is_printable_utf8(std::string_view text) {
    for (std::size_t i = 0; i < text.size();) {
        const auto first = static_cast<unsigned char>(text[i]);
        const int more = continuation_bytes(first);
        if (more < 0 || first < 0x20 || first == 0x7f || text.size() - i <= static_cast<std::size_t>(more)) {
            return false;
        }
        for (int k = 1; k <= more; ++k) {
            const auto byte = static_cast<unsigned char>(text[i + static_cast<std::size_t>(k)]);
            const bool too_small = k == 1 && ((first == 0xe0 && byte < 0xa0) || (first == 0xf0 && byte < 0x90));
            const bool too_large = k == 1 && ((first == 0xed && byte > 0x9f) || (first == 0xf4 && byte > 0x8f));
            if ((byte & 0xc0) != 0x80 || too_small || too_large) {
                return false;
            }
        }
        i += 1 + static_cast<std::size_t>(more);
    }
    return true;
}

Reason wrong_type(const TomlNode& node, std::string_view wanted) {
    return Reason{fmt::format("it is {} where {} belongs", node.type_name(), wanted)};
}

Parsed<std::string> read_text(const TomlNode& node) {
    if (node.type != TomlNode::Type::text) {
        return wrong_type(node, "a string");
    }
    return node.text;
}

// ---- BooleanRule

std::string BooleanRule::accepted() const {
    return "true, false";
}

Parsed<bool> BooleanRule::read(const TomlNode& node) const {
    if (node.type != TomlNode::Type::boolean) {
        return wrong_type(node, "a boolean");
    }
    return node.text == "true";
}

Refusal BooleanRule::check(Value) const {
    return std::nullopt;
}

std::string BooleanRule::print(Value value) const {
    return value ? "true" : "false";
}

// ---- CountRule

std::string CountRule::accepted() const {
    return fmt::format("{} from {} to {}", power_of_two ? "a power of two" : "an integer", min, max);
}

Parsed<std::uint64_t> CountRule::read(const TomlNode& node) const {
    return read_count(node);
}

Refusal CountRule::check(Value value) const {
    if (value < min) {
        return "it is too small";
    }
    if (value > max) {
        return "it is too large";
    }
    if (power_of_two && !std::has_single_bit(value)) {
        return "it is no power of two";
    }
    return std::nullopt;
}

std::string CountRule::print(Value value) const {
    return fmt::format("{}", value);
}

// ---- CoreRule

std::string CoreRule::accepted() const {
    return print_cpu_list(cpus.allowed);
}

Parsed<std::uint64_t> CoreRule::read(const TomlNode& node) const {
    return read_count(node);
}

Refusal CoreRule::check(Value value) const {
    const auto holds = [value](const std::set<std::uint32_t>& set) {
        return std::any_of(set.begin(), set.end(), [value](std::uint32_t cpu) { return cpu == value; });
    };
    if (!holds(cpus.online)) {
        return "this machine has no such core";
    }
    if (!holds(cpus.allowed)) {
        return "this process may not run on that core (its cpuset leaves it out)";
    }
    return std::nullopt;
}

std::string CoreRule::print(Value value) const {
    return fmt::format("{}", value);
}

// ---- BytesRule

std::string BytesRule::accepted() const {
    const std::string range = fmt::format("from \"{}\" to \"{}\"", print_bytes(min), print_bytes(max));
    return multiple_of == 1 ? fmt::format("a size {}", range)
                            : fmt::format("a multiple of \"{}\" {}", print_bytes(multiple_of), range);
}

Parsed<std::uint64_t> BytesRule::read(const TomlNode& node) const {
    if (node.type == TomlNode::Type::integer) {
        return Reason{
            "a size is a string with a unit (B, KiB, MiB, GiB or TiB), so that nobody takes one unit for "
            "another"};
    }
    if (node.type != TomlNode::Type::text) {
        return wrong_type(node, "a size such as \"2MiB\"");
    }
    return parse_bytes(node.text);
}

Refusal BytesRule::check(Value value) const {
    if (value < min) {
        return "it is too small";
    }
    if (value > max) {
        return "it is too large";
    }
    if (value % multiple_of != 0) {
        return fmt::format("it is no multiple of {}", print_bytes(multiple_of));
    }
    return std::nullopt;
}

std::string BytesRule::print(Value value) const {
    return toml_quoted(print_bytes(value));
}

// ---- DurationRule

namespace {

template <class Duration>
constexpr std::int64_t kUnit = std::chrono::nanoseconds(Duration(1)).count();

template <class Duration>
constexpr std::string_view kUnits =
    std::is_same_v<Duration, std::chrono::milliseconds> ? "milliseconds" : "microseconds";

Parsed<std::chrono::nanoseconds> read_duration(const TomlNode& node) {
    if (node.type == TomlNode::Type::integer) {
        return Reason{
            "a duration is a string with a unit (ns, us, ms or s), so that nobody takes one unit for "
            "another"};
    }
    if (node.type != TomlNode::Type::text) {
        return wrong_type(node, "a duration such as \"5ms\"");
    }
    return parse_duration(node.text);
}

}  // namespace

template <class Duration>
std::string DurationRule<Duration>::accepted() const {
    return fmt::format("a duration from \"{}\" to \"{}\" in whole {}", print_duration(min.count(), kUnit<Duration>),
                       print_duration(max.count(), kUnit<Duration>), kUnits<Duration>);
}

template <class Duration>
Parsed<Duration> DurationRule<Duration>::read(const TomlNode& node) const {
    auto parsed = read_duration(node);
    if (auto* reason = std::get_if<Reason>(&parsed)) {
        return std::move(*reason);
    }
    const auto exact = std::get<std::chrono::nanoseconds>(parsed);
    const auto whole = std::chrono::duration_cast<Duration>(exact);
    if (whole != exact) {
        return Reason{fmt::format("it is no whole number of {}", kUnits<Duration>)};
    }
    return whole;
}

template <class Duration>
Refusal DurationRule<Duration>::check(Value value) const {
    if (value < Duration::zero()) {
        return "it is negative";
    }
    if (value < min) {
        return "it is too short";
    }
    if (value > max) {
        return "it is too long";
    }
    return std::nullopt;
}

template <class Duration>
std::string DurationRule<Duration>::print(Value value) const {
    return toml_quoted(print_duration(value.count(), kUnit<Duration>));
}

template struct DurationRule<std::chrono::milliseconds>;
template struct DurationRule<std::chrono::microseconds>;

// ---- the string rules

std::string NameRule::accepted() const {
    const std::string words =
        fmt::format("a word of letters, digits, '_', '-' and '.', at most {} characters", kNameLengthMax);
    return !empty_means.empty() ? fmt::format("{}, or \"\" for {}", words, empty_means) : words;
}

Refusal NameRule::check(const Value& value) const {
    if (value.empty()) {
        return !empty_means.empty() ? std::nullopt : Refusal("it is empty");
    }
    if (value.size() > kNameLengthMax) {
        return fmt::format("it has {} characters", value.size());
    }
    if (!std::all_of(value.begin(), value.end(), is_word_character)) {
        return "it is not one word";
    }
    return std::nullopt;
}

std::string GidRule::accepted() const {
    return "a numeric IPv4 or IPv6 address, such as \"192.0.2.1\", or \"\" for the first RoCE v2 entry";
}

Refusal GidRule::check(const Value& value) const {
    // Checks the characters first, because inet_pton stops reading at a NUL.
    const bool taken = value.empty() ||
                       (is_printable_utf8(value) && (is_ip_address(AF_INET, value) || is_ip_address(AF_INET6, value)));
    return taken ? std::nullopt : Refusal("it is no numeric IP address");
}

std::string AddressRule::accepted() const {
    return fmt::format("on a soft device a word, on a verbs device {}", kSocketAddressAccepted);
}

Refusal AddressRule::check(const Value& value) const {
    return value.empty() ? Refusal("it is empty") : std::nullopt;
}

std::string DirectoryRule::accepted() const {
    return "the absolute path of a directory, or \"\" for this user's own";
}

Refusal DirectoryRule::check(const Value& value) const {
    if (value.empty()) {
        return std::nullopt;
    }
    if (value.front() != '/') {
        return "it is relative, and the daemon's working directory is not the operator's";
    }
    if (!is_printable_utf8(value)) {
        return "it holds control characters or is no UTF-8";
    }
    return std::nullopt;
}

Refusal check_socket_address(std::string_view text) {
    if (!is_printable_utf8(text)) {
        return "it holds control characters or is no UTF-8";
    }
    const bool bracket = text.starts_with('[');
    const std::size_t host_end = bracket ? text.find(']') : text.rfind(':');
    if (host_end == std::string_view::npos) {
        return bracket ? "its '[' is not closed" : "it has no port";
    }
    std::string_view host = text.substr(bracket ? 1 : 0, host_end - (bracket ? 1 : 0));
    std::string_view port = text.substr(host_end + (bracket ? 1 : 0));
    if (!port.starts_with(':') || port.size() == 1) {
        return "it has no port";
    }
    port.remove_prefix(1);

    if (!bracket && host.find(':') != std::string_view::npos) {
        return "an IPv6 address stands in brackets here, or its last part is taken for the port";
    }
    const std::size_t percent = host.find('%');
    if (percent != std::string_view::npos) {
        const std::string_view zone = host.substr(percent + 1);
        const bool word = !zone.empty() && zone.size() < IFNAMSIZ && zone.find_first_of("/ %:") == zone.npos;
        if (!bracket || !word) {
            return "a zone is the name or number of a network interface, after an IPv6 address in brackets";
        }
        host = host.substr(0, percent);
    }
    if (!is_ip_address(bracket ? AF_INET6 : AF_INET, host)) {
        return bracket ? "between the brackets is no numeric IPv6 address" : "its host is no numeric IPv4 address";
    }
    std::uint16_t number = 0;
    const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), number);
    if (error != std::errc{} || end != port.data() + port.size() || port.size() > 5) {
        return "its port is no number from 0 to 65535";
    }
    return std::nullopt;
}

}  // namespace pollcore::config
