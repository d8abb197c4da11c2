// Preloaded into a daemon: the kernel seems to be one that knows no SO_PASSRIGHTS (before Linux 6.16).
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
