// The process at the other end of a Unix socket, and whether it may attach or command.
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
    /// The peer has CAP_NET_RAW (capabilities(7)) in the user namespace of this process. False if this process cannot
    /// see the peer's capabilities or namespace.
    bool net_raw = false;

    /// Such as `pid 123 "name", uid 0`. The process chooses this name itself (prctl(2), PR_SET_NAME), so printable()
    /// quotes the name.
    [[nodiscard]] std::string describe() const;
};

/// What a process may do beyond attaching.
struct Rights {
    bool net_raw = false;     ///< Peer::net_raw
    bool own_memory = false;  ///< AttachConfig::own_memory permits it to this user
    bool trusted = false;     ///< AttachConfig::own_memory names this user
};

/// Returns the process that connected `socket`, with the user and the groups that it had when it connected. Throws
/// Error if the process has ended.
[[nodiscard]] Peer peer_of(int socket);

/// The users and groups of a configuration, as numbers.
class AllowList {
public:
    AllowList() = default;
    /// Throws Error(EINVAL) for a user or group that this machine does not know.
    explicit AllowList(const AttachConfig& config);
    explicit AllowList(const AttachConfig::OwnMemory& config);
    /// Root, the user of this process, and the members of the group if the configuration names one.
    explicit AllowList(const ControlConfig& config);
    [[nodiscard]] bool allows(const Peer& peer) const noexcept { return all_ || names(peer); }
    /// The peer's user, or one of its groups, is in the list.
    [[nodiscard]] bool names(const Peer& peer) const noexcept;

private:
    bool all_ = true;
    std::vector<uid_t> users_;
    std::vector<gid_t> groups_;
};

/// The number of a user or group. `name` is its name, or its number in digits. Returns -1 for "". Throws Error(EINVAL)
/// if this machine does not know the name.
[[nodiscard]] uid_t user_id(const std::string& name);
[[nodiscard]] gid_t group_id(const std::string& name);

}  // namespace pollcore
