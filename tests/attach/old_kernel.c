// Preloaded into a daemon. The kernel then seems to be older than Linux 6.16, which introduced SO_PASSRIGHTS.
#include <dlfcn.h>
#include <errno.h>
#include <sys/socket.h>

#ifndef SO_PASSRIGHTS
#define SO_PASSRIGHTS 83
#endif

int setsockopt(int socket, int level, int option, const void* value, socklen_t length) {
    if (level == SOL_SOCKET && option == SO_PASSRIGHTS) {
        errno = ENOPROTOOPT;
        return -1;
    }
    int (*real)(int, int, int, const void*, socklen_t) =
        (int (*)(int, int, int, const void*, socklen_t))dlsym(RTLD_NEXT, "setsockopt");
    return real(socket, level, option, value, length);
}
