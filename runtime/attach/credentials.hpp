// The process at the other end of a Unix socket, and whether it may attach.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "base/unique_fd.hpp"
#include "pollcore/config.hpp"

namespace pollcore {

struct Peer {
    pid_t pid = 0;
    uid_t uid = 0;
    gid_t gid = 0;
    std::vector<gid_t> groups;  ///< supplementary groups
    UniqueFd pidfd;             ///< readable when the process has ended
    /// The peer has CAP_NET_RAW (capabilities(7)) in the user namespace of this process, as far as can be seen.
    bool net_raw = false;

    /// `pid 123 "name", uid 0`: the process has chosen the name itself (prctl(2), PR_SET_NAME), so printable()
    /// quotes it.
    [[nodiscard]] std::string describe() const;
};

/// As the kernel noted it when the socket was connected. Throws Error when the process has ended since.
[[nodiscard]] Peer peer_of(int socket);

/// The users and groups of AttachConfig, as numbers.
class AllowList {
public:
    AllowList() = default;
    /// Throws Error(EINVAL) for a user or group that this machine does not know.
    explicit AllowList(const AttachConfig& config);
    [[nodiscard]] bool allows(const Peer& peer) const noexcept;

private:
    bool all_ = true;
    std::vector<uid_t> users_;
    std::vector<gid_t> groups_;
};

/// The number of a user or a group, given by name or in digits; -1 for "". Throws Error(EINVAL) if this machine does
/// not know it.
[[nodiscard]] uid_t user_id(const std::string& name);
[[nodiscard]] gid_t group_id(const std::string& name);

}  // namespace pollcore
