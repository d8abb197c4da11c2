// Sizes and durations with their units, as text and as numbers. Exact in both directions: a text without an
// exact value is refused with the reason.
//
// Thread safety: pure functions.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>

namespace pollcore::config {

/// Why a text is not what it should be: a sentence without its end.
struct Reason {
    std::string text;
};

template <class T>
using Parsed = std::variant<T, Reason>;

/// "4096B", "4KiB", "2MiB", "1GiB", "1TiB".
[[nodiscard]] Parsed<std::uint64_t> parse_bytes(std::string_view text);
[[nodiscard]] std::string print_bytes(std::uint64_t bytes);

/// "100ns", "50us", "5ms", "2s".
[[nodiscard]] Parsed<std::chrono::nanoseconds> parse_duration(std::string_view text);
/// Prints with the largest unit that is exact. `unit`: nanoseconds per count.
[[nodiscard]] std::string print_duration(std::int64_t count, std::int64_t unit);

inline constexpr std::string_view kBytesExample = "a size with unit B, KiB, MiB, GiB or TiB, such as \"2MiB\"";
inline constexpr std::string_view kDurationExample = "a duration with unit ns, us, ms or s, such as \"50us\"";

}  // namespace pollcore::config
