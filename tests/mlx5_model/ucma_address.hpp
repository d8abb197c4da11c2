// Addresses as rdma_cm compares them.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdint>
#include <optional>

#include "hca_fabric.hpp"

namespace mlx5_model {

/// The size of a socket address of this family; 0 for families that rdma_cm does not know.
std::size_t address_size(sa_family_t family);

/// A socket address of IPv4, IPv6 or InfiniBand; family 0 until there is one.
class CmAddress {
public:
    CmAddress() = default;
    /// From a structure that has room for its family's address.
    explicit CmAddress(const void* from);
    static CmAddress any(sa_family_t family);

    [[nodiscard]] sa_family_t family() const { return raw_.ss_family; }
    [[nodiscard]] std::size_t size() const { return address_size(family()); }
    [[nodiscard]] const void* data() const { return &raw_; }
    /// In host byte order.
    [[nodiscard]] std::uint16_t port() const;
    void set_port(std::uint16_t port);
    [[nodiscard]] bool is_any() const;
    /// Whether both are of one host, whatever the ports.
    [[nodiscard]] bool same_host(const CmAddress& other) const;
    /// The address of `host`, with this port.
    [[nodiscard]] CmAddress at(const CmAddress& host) const;
    /// The device's address in the given family; an IPv4-mapped one for IPv6.
    static CmAddress of(const DeviceFacts& device, sa_family_t family);
    /// The device with this address, removed or not; null if there is none.
    [[nodiscard]] const DeviceFacts* device() const;

private:
    [[nodiscard]] std::optional<std::uint32_t> ipv4() const;

    sockaddr_storage raw_{};
};

}  // namespace mlx5_model
