#include "config/units.hpp"

#include <array>
#include <charconv>
#include <limits>
#include <span>

#include <fmt/format.h>

namespace pollcore::config {
namespace {

struct Unit {
    std::string_view name;
    std::uint64_t factor;
};

// In ascending order, because printing takes the last unit that divides the value.
constexpr std::array<Unit, 5> kByteUnits{
    {{"B", 1}, {"KiB", 1ull << 10}, {"MiB", 1ull << 20}, {"GiB", 1ull << 30}, {"TiB", 1ull << 40}}};
constexpr std::array<Unit, 4> kTimeUnits{{{"ns", 1}, {"us", 1'000}, {"ms", 1'000'000}, {"s", 1'000'000'000}}};

std::string names(std::span<const Unit> units) {
    std::string out;
    for (const Unit& unit : units) {
        out += out.empty() ? "" : ", ";
        out += unit.name;
    }
    return out;
}

Parsed<std::uint64_t> parse_with_unit(std::string_view text, std::span<const Unit> units) {
    if (text.empty()) {
        return Reason{"it is empty"};
    }
    if (text.front() == '-') {
        return Reason{"it is negative"};
    }
    std::uint64_t count = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), count);
    if (error == std::errc::invalid_argument) {
        return Reason{"it does not begin with a number"};
    }
    const std::string_view unit_name = text.substr(static_cast<std::size_t>(end - text.data()));
    if (unit_name.empty()) {
        return Reason{fmt::format("it has no unit; units are {}", names(units))};
    }
    if (unit_name.front() == '.' || unit_name.front() == ',') {
        return Reason{"it is no whole number of its unit"};
    }
    for (const Unit& unit : units) {
        if (unit.name == unit_name) {
            if (error == std::errc::result_out_of_range ||
                count > std::numeric_limits<std::uint64_t>::max() / unit.factor) {
                return Reason{"it does not fit into 64 bits"};
            }
            return count * unit.factor;
        }
    }
    return Reason{fmt::format("its unit is unknown; units are {}", names(units))};
}

}  // namespace

Parsed<std::uint64_t> parse_bytes(std::string_view text) {
    return parse_with_unit(text, kByteUnits);
}

std::string print_bytes(std::uint64_t bytes) {
    const Unit* best = &kByteUnits.front();
    for (const Unit& unit : kByteUnits) {
        if (bytes != 0 && bytes % unit.factor == 0) {
            best = &unit;
        }
    }
    return fmt::format("{}{}", bytes / best->factor, best->name);
}

Parsed<std::chrono::nanoseconds> parse_duration(std::string_view text) {
    auto parsed = parse_with_unit(text, kTimeUnits);
    if (auto* reason = std::get_if<Reason>(&parsed)) {
        return std::move(*reason);
    }
    const std::uint64_t count = std::get<std::uint64_t>(parsed);
    if (count > static_cast<std::uint64_t>(std::chrono::nanoseconds::max().count())) {
        return Reason{"it does not fit into 64 bits of nanoseconds"};
    }
    return std::chrono::nanoseconds(static_cast<std::int64_t>(count));
}

std::string print_duration(std::int64_t count, std::int64_t unit) {
    // Converts to larger units by division, because the count in nanoseconds might not fit into 64 bits.
    std::string_view name = kTimeUnits.front().name;
    for (const Unit& candidate : kTimeUnits) {
        const auto factor = static_cast<std::int64_t>(candidate.factor);
        if (factor == unit) {
            name = candidate.name;
        } else if (factor > unit && count != 0 && count % (factor / unit) == 0) {
            count /= factor / unit;
            unit = factor;
            name = candidate.name;
        }
    }
    return fmt::format("{}{}", count, name);
}

}  // namespace pollcore::config
