// How messages name a queue pair or a session: by its number and, if the program has given it a name, by that name,
// too.
//
// Thread safety: plain values.
#pragma once

#include <cstdint>
#include <string_view>

#include <fmt/format.h>

#include "base/printable.hpp"

namespace pollcore {

/// Is formatted as 17, or as 17 "orders". The formatting may throw, but making the object does not, so a function that
/// does not throw may pass it to the log.
struct Called {
    std::uint32_t number = 0;
    std::string_view name{};  ///< another process may have chosen it
};

}  // namespace pollcore

template <>
struct fmt::formatter<pollcore::Called> {
    constexpr auto parse(fmt::format_parse_context& context) { return context.begin(); }
    template <class Context>
    auto format(const pollcore::Called& called, Context& context) const {
        return called.name.empty()
                   ? fmt::format_to(context.out(), "{}", called.number)
                   : fmt::format_to(context.out(), "{} {}", called.number, pollcore::printable(called.name));
    }
};
