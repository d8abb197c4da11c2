// Converts sizes and durations between text with units and numbers. Both directions are exact: a text without an exact
// value is refused, with the reason.
//
// Thread safety: pure functions.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>

namespace pollcore::config {

/// Why a text is refused: a sentence without its full stop.
struct Reason {
    std::string text;
};

template <class T>
using Parsed = std::variant<T, Reason>;

/// Reads a size such as "4096B", "4KiB", "2MiB", "1GiB" or "1TiB".
[[nodiscard]] Parsed<std::uint64_t> parse_bytes(std::string_view text);
[[nodiscard]] std::string print_bytes(std::uint64_t bytes);

/// Reads a duration such as "100ns", "50us", "5ms" or "2s".
[[nodiscard]] Parsed<std::chrono::nanoseconds> parse_duration(std::string_view text);
/// Prints `count` times `unit` nanoseconds, with the largest unit that is exact.
[[nodiscard]] std::string print_duration(std::int64_t count, std::int64_t unit);

inline constexpr std::string_view kBytesExample = "a size with unit B, KiB, MiB, GiB or TiB, such as \"2MiB\"";
inline constexpr std::string_view kDurationExample = "a duration with unit ns, us, ms or s, such as \"50us\"";

}  // namespace pollcore::config
