// Descriptors that came together with a message of a Unix socket (SCM_RIGHTS, unix(7)).
#pragma once

#include <sys/socket.h>

#include <cstddef>
#include <cstring>

namespace pollcore {

/// The largest number of descriptors that one message can bring (SCM_MAX_FD of the kernel). If the receiver's buffer
/// has no room for a descriptor, the kernel closes that descriptor, on the thread that receives.
inline constexpr std::size_t kDescriptorsPerMessage = 253;

/// Calls `take` with each descriptor of `message`. Unless recvmsg() returned an error, the descriptors belong to this
/// process. This holds for a result of 0, too: a message of no bytes may bring descriptors.
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
