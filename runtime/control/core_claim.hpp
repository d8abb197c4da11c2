// Tells all users of the machine that this process polls on a core.
//
// The process listens at an abstract Unix socket named "pollcore-core-N-" and a random word. Others find the name in
// /proc/net/unix and ask the kernel by SO_PEERCRED who listens. Anybody can bind such a name, so a claim is a reason
// for a warning, and never for a refusal (D31). A claim is seen within one network namespace.
//
// A copy of the object in a forked child ends nothing.
//
// Thread safety: none; the thread that makes the runtime, and then the one that stops it.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

#include "base/unique_fd.hpp"

namespace pollcore {

class CoreClaim {
public:
    /// Throws Error if the kernel gives no such socket.
    explicit CoreClaim(std::uint32_t core);
    CoreClaim(CoreClaim&& other) noexcept = default;
    CoreClaim& operator=(CoreClaim&& other) noexcept;
    ~CoreClaim();

    /// Who claims the same core: "process 12 (name) of user 1000, ...", or empty. Names a few and counts the rest.
    [[nodiscard]] std::string others() const;

private:
    void end() noexcept;

    std::uint32_t core_ = 0;
    std::string name_;
    UniqueFd socket_;
    pid_t owner_ = 0;
};

}  // namespace pollcore
