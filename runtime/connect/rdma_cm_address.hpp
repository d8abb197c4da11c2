// Addresses for rdma_cm, and their text: "192.0.2.1:7471", "[2001:db8::1]:7471", "[fe80::1%eth0]:7471". Host and port
// are numeric, because looking up a host name would block the control thread.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdint>
#include <string>

namespace pollcore {

class CmAddress {
public:
    CmAddress() noexcept = default;
    /// Throws pollcore::Error (EINVAL), which explains the format of an address.
    [[nodiscard]] static CmAddress parse(const std::string& text);
    /// Copies an address of librdmacm. Its family is AF_INET, AF_INET6, or none.
    explicit CmAddress(const sockaddr& address) noexcept;
    /// The IPv4 or IPv6 address that a RoCE GID stands for, with port 0. `ifindex`: the network interface, which a
    /// link-local address needs.
    [[nodiscard]] static CmAddress from_gid(const std::uint8_t (&raw)[16], std::uint32_t ifindex = 0) noexcept;

    [[nodiscard]] const sockaddr* get() const noexcept { return &any_.sa; }
    /// librdmacm reads through pointers to non-const.
    [[nodiscard]] sockaddr* get() noexcept { return &any_.sa; }
    [[nodiscard]] sa_family_t family() const noexcept { return any_.sa.sa_family; }
    [[nodiscard]] bool is_wildcard() const noexcept;
    [[nodiscard]] bool is_link_local() const noexcept;
    /// The text that parse() accepts.
    [[nodiscard]] std::string text() const;

private:
    union {
        sockaddr_storage storage;  ///< the first member, so that the whole union starts as zeros
        sockaddr sa;
        sockaddr_in v4;
        sockaddr_in6 v6;
    } any_{};
};

}  // namespace pollcore
