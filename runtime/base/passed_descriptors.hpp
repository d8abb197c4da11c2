// Descriptors that came beside a message of a Unix socket (SCM_RIGHTS, unix(7)).
#pragma once

#include <sys/socket.h>

#include <cstddef>
#include <cstring>

namespace pollcore {

/// The most that one message carries (SCM_MAX_FD of the kernel). The kernel closes descriptors that find no room, on
/// the thread that receives.
inline constexpr std::size_t kDescriptorsPerMessage = 253;

/// Calls `take` with each descriptor. They are this process's as soon as recvmsg() returns anything but an error, also
/// 0: a message of no bytes brings descriptors, too.
template <class F>
void for_each_descriptor(msghdr& message, F&& take) {
    for (cmsghdr* beside = CMSG_FIRSTHDR(&message); beside != nullptr; beside = CMSG_NXTHDR(&message, beside)) {
        if (beside->cmsg_level != SOL_SOCKET || beside->cmsg_type != SCM_RIGHTS) {
            continue;
        }
        for (std::size_t at = 0; at + sizeof(int) <= beside->cmsg_len - CMSG_LEN(0); at += sizeof(int)) {
            int descriptor = -1;
            std::memcpy(&descriptor, CMSG_DATA(beside) + at, sizeof(descriptor));
            take(descriptor);
        }
    }
}

}  // namespace pollcore
