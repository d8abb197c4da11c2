#include "remedy.hpp"

#include <pwd.h>
#include <unistd.h>

#include <array>
#include <cerrno>

#include <fmt/format.h>

namespace pollcore::served {
namespace {

// The name of this process's user; its number if it has none.
std::string user_name() {
    passwd entry{};
    passwd* found = nullptr;
    std::array<char, 4096> buffer;
    const bool known = ::getpwuid_r(::geteuid(), &entry, buffer.data(), buffer.size(), &found) == 0;
    return known && found != nullptr ? entry.pw_name : fmt::to_string(::geteuid());
}

}  // namespace

std::string remedy(int error, const std::string& socket) {
    switch (error) {
        case ENOENT:
        case ECONNREFUSED: return fmt::format("start pollcored, or name its socket (now {})", socket);
        case EPERM:
            return fmt::format("ask the operator of pollcored for [attach] own_memory = [\"{}\"] in its configuration",
                               user_name());
        case EACCES:
            return fmt::format(
                "ask the operator of pollcored to let user {} attach: mode, group and users in [attach] "
                "of its configuration",
                user_name());
        default: return "the log of pollcored may say more";
    }
}

}  // namespace pollcore::served
