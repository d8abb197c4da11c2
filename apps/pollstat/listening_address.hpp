// The address at which the metrics are offered.
//
// Thread safety: pure functions.
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <string>

#include "base/unique_fd.hpp"

namespace pollcore::stat {

struct ListeningAddress {
    sockaddr_storage address{};
    socklen_t bytes = 0;
    bool any = false;  ///< no host was named: all IPv6 and IPv4 addresses

    /// Only processes of this host reach it.
    [[nodiscard]] bool is_loopback() const noexcept;
};

/// Reads "192.0.2.1:9187", "[::1]:9187" or ":9187". A host is a number, because a name may have several addresses.
/// Port 0 lets the kernel choose. Throws Error(EINVAL).
[[nodiscard]] ListeningAddress parse_listening_address(const std::string& text);
/// A socket that listens there and does not block. Throws Error.
[[nodiscard]] UniqueFd listen_at(const ListeningAddress& address, int backlog);
/// "127.0.0.1:9187": where the socket listens.
[[nodiscard]] std::string address_of_socket(const UniqueFd& socket);

}  // namespace pollcore::stat
