// UCX and others look whether a device's file is there before they use the device. In a container that has the daemon's
// socket and no /dev/infiniband, the file is missing, but the daemon serves the device. So this library answers for the
// files of served devices: as for a character device that everybody may open.
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon_link.hpp"
#include "exported.hpp"
#include "symbol_lookup.hpp"

namespace pollcore::served {
namespace {

constexpr const char* kPresent = "/dev/null";

template <class Function>
Function* next(const char* name) noexcept {
    return reinterpret_cast<Function*>(genuine_dlsym(RTLD_NEXT, name));
}

const char* stand_in(const char* path) noexcept {
    return path != nullptr && is_served_file(path) ? kPresent : path;
}

}  // namespace
}  // namespace pollcore::served

using namespace pollcore::served;

POLLCORE_VERBS_EXPORT int access(const char* path, int mode) noexcept {
    static auto* const genuine = next<int(const char*, int)>("access");
    return genuine(stand_in(path), mode);
}

// The headers give one name to stat() and stat64(), whose structures are equal on 64-bit machines. A program may have
// been linked with either.

POLLCORE_VERBS_EXPORT int served_stat(const char* path, struct stat* status) noexcept __asm__("stat");
int served_stat(const char* path, struct stat* status) noexcept {
    static auto* const genuine = next<int(const char*, struct stat*)>("stat");
    return genuine(stand_in(path), status);
}

POLLCORE_VERBS_EXPORT int served_stat64(const char* path, struct stat* status) noexcept __asm__("stat64");
int served_stat64(const char* path, struct stat* status) noexcept {
    static auto* const genuine = next<int(const char*, struct stat*)>("stat64");
    return genuine(stand_in(path), status);
}
