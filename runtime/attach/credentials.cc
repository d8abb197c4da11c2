#include "attach/credentials.hpp"

#include <grp.h>
#include <pwd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <fstream>

#include <fmt/format.h>

#include "pollcore/error.hpp"

#ifndef SO_PEERGROUPS
#define SO_PEERGROUPS 59
#endif

namespace pollcore {
namespace {

// By getpwnam_r and its kin, which say ERANGE when the buffer is short.
template <class Record, class Find>
bool find_record(Record& record, Find find) {
    std::vector<char> buffer(1024);
    for (;;) {
        Record* found = nullptr;
        const int error = find(&record, buffer.data(), buffer.size(), &found);
        if (error != ERANGE) {
            return error == 0 && found != nullptr;
        }
        buffer.resize(2 * buffer.size());
    }
}

template <class Id>
bool is_number(const std::string& text, Id& id) noexcept {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), id);
    return error == std::errc() && end == text.data() + text.size();
}

}  // namespace

uid_t user_id(const std::string& name) {
    uid_t id = static_cast<uid_t>(-1);
    if (name.empty() || is_number(name, id)) {
        return id;
    }
    passwd record{};
    if (!find_record(record, [&](auto... rest) { return ::getpwnam_r(name.c_str(), rest...); })) {
        throw Error(EINVAL, fmt::format("this machine has no user \"{}\"", name));
    }
    return record.pw_uid;
}

gid_t group_id(const std::string& name) {
    gid_t id = static_cast<gid_t>(-1);
    if (name.empty() || is_number(name, id)) {
        return id;
    }
    group record{};
    if (!find_record(record, [&](auto... rest) { return ::getgrnam_r(name.c_str(), rest...); })) {
        throw Error(EINVAL, fmt::format("this machine has no group \"{}\"", name));
    }
    return record.gr_gid;
}

std::string Peer::describe() const {
    std::string name;
    std::getline(std::ifstream(fmt::format("/proc/{}/comm", pid)), name);
    return fmt::format("pid {}{}, uid {}", pid, name.empty() ? "" : fmt::format(" ({})", name), uid);
}

Peer peer_of(int socket) {
    ucred credentials{};
    socklen_t length = sizeof(credentials);
    if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0) {
        const int error = errno;
        throw Error(error, "the kernel does not say who attaches");
    }
    Peer peer{.pid = credentials.pid, .uid = credentials.uid, .gid = credentials.gid, .groups = {}, .pidfd = {}};
    std::vector<gid_t> groups(64);
    length = static_cast<socklen_t>(groups.size() * sizeof(gid_t));
    while (::getsockopt(socket, SOL_SOCKET, SO_PEERGROUPS, groups.data(), &length) != 0) {
        if (errno != ERANGE) {
            length = 0;  // then it counts as a member of none
            break;
        }
        groups.resize(length / sizeof(gid_t));
    }
    groups.resize(length / sizeof(gid_t));
    peer.groups = std::move(groups);
    peer.pidfd.reset(static_cast<int>(::syscall(SYS_pidfd_open, peer.pid, 0)));
    if (!peer.pidfd.valid()) {
        const int error = errno;
        throw Error(error, fmt::format("pid {} of uid {}, which attaches, cannot be watched", peer.pid, peer.uid));
    }
    return peer;
}

void check_accounts(const AttachConfig& config) {
    (void)user_id(config.owner);
    (void)group_id(config.group);
    (void)AllowList(config);
}

AllowList::AllowList(const AttachConfig& config) : all_(config.users.empty() && config.groups.empty()) {
    for (const std::string& user : config.users) {
        users_.push_back(user_id(user));
    }
    for (const std::string& group : config.groups) {
        groups_.push_back(group_id(group));
    }
}

bool AllowList::allows(const Peer& peer) const noexcept {
    const auto in_group = [&](gid_t group) {
        return peer.gid == group || std::find(peer.groups.begin(), peer.groups.end(), group) != peer.groups.end();
    };
    return all_ || std::find(users_.begin(), users_.end(), peer.uid) != users_.end() ||
           std::any_of(groups_.begin(), groups_.end(), in_group);
}

}  // namespace pollcore
