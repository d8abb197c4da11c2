#include "config/users_and_groups.hpp"

#include <grp.h>
#include <pwd.h>

#include <cerrno>
#include <charconv>
#include <optional>
#include <system_error>
#include <vector>

#include <fmt/format.h>

namespace pollcore::config {
namespace {

// Calls `find` with larger and larger buffers while it fails with ERANGE. Returns the result of `find`, and sets
// `found` to true if there is a record.
template <class Record, class Find>
int find_record(Record& record, bool& found, Find find) {
    std::vector<char> buffer(1024);
    for (;;) {
        Record* result = nullptr;
        const int error = find(&record, buffer.data(), buffer.size(), &result);
        if (error != ERANGE) {
            found = result != nullptr;
            return error;
        }
        buffer.resize(2 * buffer.size());
    }
}

// getpwnam_r(3) lists these errors for a name that is not found.
bool means_not_found(int error) noexcept {
    return error == 0 || error == ENOENT || error == ESRCH || error == EBADF || error == EPERM;
}

std::optional<std::uint32_t> as_number(const std::string& text) noexcept {
    std::uint32_t number = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    return error == std::errc() && end == text.data() + text.size() ? std::optional(number) : std::nullopt;
}

}  // namespace

Parsed<std::uint32_t> account_number(AccountKind kind, const std::string& name) {
    const char* const what = kind == AccountKind::user ? "user" : "group";
    if (const std::optional<std::uint32_t> number = as_number(name)) {
        if (*number == kNoAccount) {
            return Reason{fmt::format("no {} has the number {}", what, *number)};
        }
        return *number;
    }
    passwd user{};
    group its_group{};
    bool found = false;
    const int error =
        kind == AccountKind::user
            ? find_record(user, found, [&](auto... rest) { return ::getpwnam_r(name.c_str(), rest...); })
            : find_record(its_group, found, [&](auto... rest) { return ::getgrnam_r(name.c_str(), rest...); });
    if (found) {
        return static_cast<std::uint32_t>(kind == AccountKind::user ? user.pw_uid : its_group.gr_gid);
    }
    if (means_not_found(error)) {
        return Reason{fmt::format("this machine has no {} \"{}\"", what, name)};
    }
    return Reason{fmt::format("{} \"{}\" cannot be looked up: {}", what, name, std::generic_category().message(error))};
}

}  // namespace pollcore::config
