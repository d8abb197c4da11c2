#include "attach/mappings.hpp"

#include <fcntl.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <sstream>

#include "base/unique_fd.hpp"
#include "pollcore/error.hpp"

namespace pollcore {
namespace {

std::string own_maps() {
    const char* path = "/proc/self/maps";
    const UniqueFd file(::open(path, O_RDONLY | O_CLOEXEC));
    std::string text;
    std::array<char, 16384> some{};
    for (;;) {
        const ssize_t got = file.valid() ? ::read(file.get(), some.data(), some.size()) : -1;
        if (got < 0 && (!file.valid() || errno != EINTR)) {
            throw Error(errno, std::string(path) + " cannot be read, so nobody knows what this memory is");
        }
        if (got == 0) {
            return text;
        }
        text.append(some.data(), static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
    }
}

}  // namespace

std::vector<Mapping> mappings_within(Pages pages) {
    std::vector<Mapping> found;
    std::istringstream lines(own_maps());
    for (std::string line; std::getline(lines, line);) {
        unsigned long begin = 0;
        unsigned long end = 0;
        std::array<char, 5> rights{};
        unsigned long offset = 0;
        unsigned int major = 0;
        unsigned int minor = 0;
        unsigned long inode = 0;
        int name = 0;
        if (std::sscanf(line.c_str(), "%lx-%lx %4s %lx %x:%x %lu %n", &begin, &end, rights.data(), &offset, &major,
                        &minor, &inode, &name) < 7) {
            throw Error(EPROTO, "/proc/self/maps has a line that is not understood: " + line);
        }
        auto* const from = std::max(reinterpret_cast<std::byte*>(begin), pages.begin);
        auto* const to = std::min(reinterpret_cast<std::byte*>(end), pages.end());
        if (from < to) {
            found.push_back({.pages = {from, static_cast<std::size_t>(to - from)},
                             .readable = rights[0] == 'r',
                             .writable = rights[1] == 'w',
                             .executable = rights[2] == 'x',
                             .shared = rights[3] == 's',
                             .offset = offset + (reinterpret_cast<std::uintptr_t>(from) - begin),
                             .device = makedev(major, minor),
                             .inode = inode,
                             .name = line.substr(static_cast<std::size_t>(name))});
        }
    }
    return found;
}

}  // namespace pollcore
