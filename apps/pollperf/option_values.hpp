// The values of single options: parses the text that was typed, and refuses it with the option's name and the reason.
//
// Thread safety: pure functions.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "pollcore/config.hpp"
#include "pollperf/measure/workload.hpp"

namespace pollcore::perf {

/// A command line that cannot be carried out: exit code 2.
class UsageError : public std::runtime_error {
public:
    using std::runtime_error::runtime_error;
};

/// Throws UsageError if the option was given though it does not fit.
void refuse_if(bool given, const char* option, const char* why);

/// Returns the value. Throws UsageError if it is less than `min` or more than `max`.
template <class T>
[[nodiscard]] T in_range(const char* option, T value, T min, T max) {
    if (value < min || value > max) {
        throw UsageError(fmt::format("{} {}: it takes {} to {}", option, value, min, max));
    }
    return value;
}

/// Whether the text has digits only.
[[nodiscard]] bool is_number(const std::string& text);

// Each parse function throws UsageError if the text has no proper value; the message begins with the option. A function
// without the argument `option` is for one option only.

/// --op: names with commas between them, or "all".
[[nodiscard]] std::vector<Op> parse_ops(const std::string& text);
/// --path: names with commas between them, "both" or "all". If `sleeps`, the path event replaces the path direct.
[[nodiscard]] std::vector<PathKind> parse_paths(const std::string& text, bool sleeps);
/// --size: a number of bytes, perhaps with a unit as in the configuration.
[[nodiscard]] std::uint32_t parse_size(const std::string& text);
/// "100000", "100k", "1.5M": a number with a decimal unit.
[[nodiscard]] double parse_rate(const char* option, const std::string& text);
/// --min-bw: "5GiB" or "5Gb", each for a second: bytes, or bits in decimal units. Returns bytes.
[[nodiscard]] double parse_bandwidth(const std::string& text);
/// --tolerance: "5%" or "0.05".
[[nodiscard]] double parse_tolerance(const std::string& text);
/// Whole milliseconds, from 100 ms to a day.
[[nodiscard]] std::chrono::milliseconds parse_time(const char* option, const std::string& text);
/// A duration as in the configuration.
[[nodiscard]] std::chrono::nanoseconds parse_ns(const char* option, const std::string& text);
/// --port, or the usual one.
[[nodiscard]] std::uint16_t parse_port(std::optional<std::uint32_t> given);
/// A worker's way to wait: a word, or a value in the syntax of the configuration.
[[nodiscard]] IdleLadder parse_idle(const char* option, const std::string& text);

}  // namespace pollcore::perf
