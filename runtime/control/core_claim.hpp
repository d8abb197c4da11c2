// Tells other users of the machine that this process polls on a core.
//
// The process listens on an abstract Unix socket. The socket's name is "pollcore-core-N-" followed by a random word.
// Other processes find the name in /proc/net/unix, connect to the socket, and ask the kernel which process listens
// (SO_PEERCRED). Anybody can bind such a name, so a claim only causes a warning and never a refusal (D31). Only
// processes in the same network namespace see a claim.
//
// A forked child has a copy of the object. Destroying the copy does not end the claim.
//
// Thread safety: one thread at a time: first the thread that makes the runtime, later the thread that stops it.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

#include "base/unique_fd.hpp"

namespace pollcore {

class CoreClaim {
public:
    /// Throws Error if the kernel provides no such socket.
    explicit CoreClaim(std::uint32_t core);
    CoreClaim(CoreClaim&& other) noexcept = default;
    CoreClaim& operator=(CoreClaim&& other) noexcept;
    ~CoreClaim();

    /// The other processes that claim this core, for example: process 12 "name" of user 1000. Names the first few and
    /// counts the others. Empty if there are none.
    [[nodiscard]] std::string others() const;

private:
    void end() noexcept;

    std::uint32_t core_ = 0;
    std::string name_;
    UniqueFd socket_;
    pid_t owner_ = 0;
};

}  // namespace pollcore
