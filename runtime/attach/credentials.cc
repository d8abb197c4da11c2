#include "attach/credentials.hpp"

#include <linux/capability.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <string_view>

#include <fmt/format.h>

#include "base/printable.hpp"
#include "config/users_and_groups.hpp"
#include "pollcore/error.hpp"

#ifndef SO_PEERGROUPS
#define SO_PEERGROUPS 59
#endif

namespace pollcore {
namespace {

using config::AccountKind;

std::uint32_t number_of(AccountKind kind, const std::string& name) {
    if (name.empty()) {
        return config::kNoAccount;
    }
    const auto number = config::account_number(kind, name);
    if (const auto* unknown = std::get_if<config::Reason>(&number)) {
        throw Error(EINVAL, unknown->text);
    }
    return std::get<std::uint32_t>(number);
}

// The owner of /proc/PID/status is the effective user of the process, or root if the process got rights from the file
// of its program (proc(5)). Such rights must not count: the process may have started this program after it connected,
// and left the socket to another process.
bool is_owned_by(const std::string& file, uid_t uid) noexcept {
    struct stat status {};
    return ::stat(file.c_str(), &status) == 0 && status.st_uid == uid;
}

// The effective capabilities: CapEff of proc(5). Returns 0 if they cannot be read.
std::uint64_t effective_capabilities(const std::string& file) {
    constexpr std::string_view kKey = "CapEff:\t";
    std::ifstream status(file);
    for (std::string line; std::getline(status, line);) {
        if (line.starts_with(kKey)) {
            std::uint64_t bits = 0;
            const auto [end, error] = std::from_chars(line.data() + kKey.size(), line.data() + line.size(), bits, 16);
            return error == std::errc() ? bits : 0;
        }
    }
    return 0;
}

// The maker of a user namespace has all capabilities inside the namespace, and gets none outside it
// (user_namespaces(7)). To see the namespace of another user's process, this process needs CAP_SYS_PTRACE. A namespace
// that cannot be seen counts as a different one.
bool is_in_our_user_namespace(pid_t pid) {
    struct stat its {};
    struct stat ours {};
    return ::stat(fmt::format("/proc/{}/ns/user", pid).c_str(), &its) == 0 &&
           ::stat("/proc/self/ns/user", &ours) == 0 && its.st_dev == ours.st_dev && its.st_ino == ours.st_ino;
}

// While the process lives, no other process has its number in /proc.
bool lives(int pidfd) noexcept {
    pollfd ended{.fd = pidfd, .events = POLLIN, .revents = 0};
    return ::poll(&ended, 1, 0) == 0;
}

bool has_net_raw(const Peer& peer) {
    const std::string status = fmt::format("/proc/{}/status", peer.pid);
    return is_owned_by(status, peer.uid) && is_in_our_user_namespace(peer.pid) &&
           (effective_capabilities(status) >> CAP_NET_RAW & 1) != 0 && is_owned_by(status, peer.uid) &&
           lives(peer.pidfd.get());
}

}  // namespace

uid_t user_id(const std::string& name) {
    return number_of(AccountKind::user, name);
}
gid_t group_id(const std::string& name) {
    return number_of(AccountKind::group, name);
}

std::string Peer::describe() const {
    std::ifstream comm(fmt::format("/proc/{}/comm", pid));
    std::string name{std::istreambuf_iterator<char>(comm), {}};
    if (name.ends_with('\n')) {  // the file ends with a newline (proc(5)); the name itself may contain others
        name.pop_back();
    }
    return fmt::format("pid {}{}, uid {}", pid, name.empty() ? "" : " " + printable(name), uid);
}

Peer peer_of(int socket) {
    ucred credentials{};
    socklen_t length = sizeof(credentials);
    if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0) {
        const int error = errno;
        throw Error(error, "the kernel does not say who connects");
    }
    Peer peer{.pid = credentials.pid,
              .uid = credentials.uid,
              .gid = credentials.gid,
              .groups = {},
              .pidfd = {},
              .net_raw = false};
    std::vector<gid_t> groups(64);
    length = static_cast<socklen_t>(groups.size() * sizeof(gid_t));
    while (::getsockopt(socket, SOL_SOCKET, SO_PEERGROUPS, groups.data(), &length) != 0) {
        if (errno != ERANGE) {
            length = 0;  // the peer counts as a member of no group
            break;
        }
        groups.resize(length / sizeof(gid_t));
    }
    groups.resize(length / sizeof(gid_t));
    peer.groups = std::move(groups);
    peer.pidfd.reset(static_cast<int>(::syscall(SYS_pidfd_open, peer.pid, 0)));
    if (!peer.pidfd.valid()) {
        const int error = errno;
        throw Error(error, fmt::format("pid {} of uid {}, which connects, cannot be watched", peer.pid, peer.uid));
    }
    peer.net_raw = has_net_raw(peer);
    return peer;
}

AllowList::AllowList(const AttachConfig& config) : all_(config.users.empty() && config.groups.empty()) {
    for (const std::string& user : config.users) {
        users_.push_back(user_id(user));
    }
    for (const std::string& group : config.groups) {
        groups_.push_back(group_id(group));
    }
}

AllowList::AllowList(const AttachConfig::OwnMemory& config) : all_(config.all) {
    for (const std::string& user : config.users) {
        users_.push_back(user_id(user));
    }
}

AllowList::AllowList(const ControlConfig& config) : all_(false), users_{0, ::geteuid()} {
    if (!config.group.empty()) {
        groups_.push_back(group_id(config.group));
    }
}

bool AllowList::names(const Peer& peer) const noexcept {
    const auto in_group = [&](gid_t group) {
        return peer.gid == group || std::find(peer.groups.begin(), peer.groups.end(), group) != peer.groups.end();
    };
    return std::find(users_.begin(), users_.end(), peer.uid) != users_.end() ||
           std::any_of(groups_.begin(), groups_.end(), in_group);
}

}  // namespace pollcore
