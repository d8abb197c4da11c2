// Socket addresses, with the comparisons that rdma_cm makes.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdint>
#include <optional>

#include "hca_fabric.hpp"

namespace mlx5_model {

/// The size of a socket address of this family; 0 for families that rdma_cm does not know.
std::size_t address_size(sa_family_t family);

/// A socket address of IPv4, IPv6 or InfiniBand. Its family is 0 while it holds no address.
class CmAddress {
public:
    CmAddress() = default;
    /// Copies the address from `from`, a structure that must be as large as its family requires.
    explicit CmAddress(const void* from);
    static CmAddress any(sa_family_t family);

    [[nodiscard]] sa_family_t family() const { return raw_.ss_family; }
    [[nodiscard]] std::size_t size() const { return address_size(family()); }
    [[nodiscard]] const void* data() const { return &raw_; }
    /// In host byte order.
    [[nodiscard]] std::uint16_t port() const;
    void set_port(std::uint16_t port);
    [[nodiscard]] bool is_any() const;
    /// Whether both addresses belong to one host, whatever the ports.
    [[nodiscard]] bool same_host(const CmAddress& other) const;
    /// Returns the address of `host` with the port of this address.
    [[nodiscard]] CmAddress at(const CmAddress& host) const;
    /// Returns the device's address in the given family; for IPv6, its IPv4-mapped address.
    static CmAddress of(const DeviceFacts& device, sa_family_t family);
    /// Returns the device with this address, even if the device was removed. Returns null if there is no such device.
    [[nodiscard]] const DeviceFacts* device() const;

private:
    [[nodiscard]] std::optional<std::uint32_t> ipv4() const;

    sockaddr_storage raw_{};
};

}  // namespace mlx5_model
