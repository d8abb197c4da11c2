#include "attach/socket_file.hpp"

#include <fcntl.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <system_error>

#include <fmt/format.h>

#include "base/unique_fd.hpp"
#include "pollcore/error.hpp"

namespace pollcore {

sockaddr_un socket_address(const std::filesystem::path& path, std::string_view key) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    const std::string& text = path.native();
    if (text.empty() || text.size() >= sizeof(address.sun_path)) {
        throw Error(ENAMETOOLONG, fmt::format("{} = \"{}\": a socket's path has 1 to {} characters", key, text,
                                              sizeof(address.sun_path) - 1));
    }
    std::memcpy(address.sun_path, text.c_str(), text.size());
    return address;
}

std::optional<struct stat> look_at(const std::filesystem::path& path) noexcept {
    struct stat status {};
    return ::lstat(path.c_str(), &status) == 0 ? std::optional(status) : std::nullopt;
}

// Connects with a datagram socket. The kernel returns ECONNREFUSED only if no socket of any type is bound to the file.
// If a stream or a seqpacket socket is bound to the file, the kernel returns EPROTOTYPE, even before that socket
// listens. Connecting with a seqpacket socket would fail with ECONNREFUSED between another daemon's bind and its
// listen, and the daemon would seem dead.
void require_dead(const std::filesystem::path& path, std::string_view key) {
    const sockaddr_un address = socket_address(path, key);
    const auto fail = [&](int error, const char* what) {
        return Error(error, fmt::format("{} = \"{}\": {}", key, path.native(), what));
    };
    const UniqueFd asking(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!asking.valid()) {
        throw fail(errno, "no socket to see whether another process listens there");
    }
    if (::connect(asking.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0 ||
        errno == EPROTOTYPE) {
        throw fail(EADDRINUSE,
                   "another process has its socket there ('ss -xp' names it); stop it, or name another path");
    }
    if (errno != ECONNREFUSED) {
        throw fail(
            EADDRINUSE,
            "a socket is there to which this process may not connect, so that it cannot see whether another process "
            "listens; remove it if none does, or name another path");
    }
}

// No system call removes a name only if it names a certain file. So this function first renames the file to a name that
// no other process knows. Under that name, it can check the file before it removes the name.
bool remove_only(const std::filesystem::path& path, const SocketFile& file) {
    const std::string aside = fmt::format("{}.removed-by-{}", path.native(), ::getpid());
    const auto fail = [&](const char* call) {
        const int error = errno;
        return Error(error, fmt::format("{}: a socket that is left there cannot be removed ({}); remove it",
                                        path.native(), call));
    };
    if (::renameat2(AT_FDCWD, path.c_str(), AT_FDCWD, aside.c_str(), RENAME_NOREPLACE) != 0) {
        if (errno == ENOENT) {
            return true;
        }
        throw fail("rename");
    }
    const std::optional<struct stat> moved = look_at(aside);
    if (!moved || SocketFile::of(*moved) != file) {
        if (::renameat2(AT_FDCWD, aside.c_str(), AT_FDCWD, path.c_str(), RENAME_NOREPLACE) != 0) {
            throw fail("rename back");
        }
        return false;
    }
    if (::unlink(aside.c_str()) != 0) {
        throw fail("unlink");
    }
    return true;
}

}  // namespace pollcore
