#include "ucma_address.hpp"

#include <arpa/inet.h>

#include <cstring>

#include <infiniband/ib.h>

namespace mlx5_model {
namespace {

template <class Raw>
Raw& as(sockaddr_storage& storage) {
    return reinterpret_cast<Raw&>(storage);
}

template <class Raw>
const Raw& as(const sockaddr_storage& storage) {
    return reinterpret_cast<const Raw&>(storage);
}

/// The port in the service ID of an InfiniBand address.
std::uint16_t service_port(const sockaddr_ib& address) {
    return static_cast<std::uint16_t>(be64toh(address.sib_sid) & be64toh(address.sib_sid_mask));
}

}  // namespace

std::size_t address_size(sa_family_t family) {
    switch (family) {
        case AF_INET: return sizeof(sockaddr_in);
        case AF_INET6: return sizeof(sockaddr_in6);
        case AF_IB: return sizeof(sockaddr_ib);
        default: return 0;
    }
}

CmAddress::CmAddress(const void* from) {
    sa_family_t family = 0;
    std::memcpy(&family, from, sizeof family);
    std::memcpy(&raw_, from, address_size(family));
}

CmAddress CmAddress::any(sa_family_t family) {
    CmAddress address;
    address.raw_.ss_family = family;
    return address;
}

std::uint16_t CmAddress::port() const {
    switch (family()) {
        case AF_INET: return ntohs(as<sockaddr_in>(raw_).sin_port);
        case AF_INET6: return ntohs(as<sockaddr_in6>(raw_).sin6_port);
        case AF_IB: return service_port(as<sockaddr_ib>(raw_));
        default: return 0;
    }
}

void CmAddress::set_port(std::uint16_t port) {
    if (family() == AF_INET) {
        as<sockaddr_in>(raw_).sin_port = htons(port);
    } else if (family() == AF_INET6) {
        as<sockaddr_in6>(raw_).sin6_port = htons(port);
    } else if (family() == AF_IB) {
        auto& address = as<sockaddr_ib>(raw_);
        address.sib_sid = htobe64((be64toh(address.sib_sid) & ~std::uint64_t{0xffff}) | port);
        address.sib_sid_mask = htobe64(~std::uint64_t{0});
    }
}

bool CmAddress::is_any() const {
    switch (family()) {
        // All of 0.0.0.0/8 counts as any address.
        case AF_INET: return (ntohl(as<sockaddr_in>(raw_).sin_addr.s_addr) >> 24) == 0;
        case AF_INET6: return IN6_IS_ADDR_UNSPECIFIED(&as<sockaddr_in6>(raw_).sin6_addr);
        case AF_IB: {
            const ib_addr none{};
            return std::memcmp(&as<sockaddr_ib>(raw_).sib_addr, &none, sizeof none) == 0;
        }
        default: return true;
    }
}

bool CmAddress::same_host(const CmAddress& other) const {
    if (family() != other.family()) {
        return false;
    }
    switch (family()) {
        case AF_INET: return as<sockaddr_in>(raw_).sin_addr.s_addr == as<sockaddr_in>(other.raw_).sin_addr.s_addr;
        case AF_INET6:
            return IN6_ARE_ADDR_EQUAL(&as<sockaddr_in6>(raw_).sin6_addr, &as<sockaddr_in6>(other.raw_).sin6_addr);
        default:
            return std::memcmp(&as<sockaddr_ib>(raw_).sib_addr, &as<sockaddr_ib>(other.raw_).sib_addr,
                               sizeof(ib_addr)) == 0;
    }
}

CmAddress CmAddress::at(const CmAddress& host) const {
    CmAddress address = host;
    address.set_port(port());
    return address;
}

CmAddress CmAddress::of(const DeviceFacts& device, sa_family_t family) {
    CmAddress address = any(family);
    if (family == AF_INET) {
        as<sockaddr_in>(address.raw_).sin_addr.s_addr = device.address;
    } else {
        auto& bytes = as<sockaddr_in6>(address.raw_).sin6_addr.s6_addr;
        bytes[10] = bytes[11] = 0xff;
        std::memcpy(bytes + 12, &device.address, sizeof device.address);
    }
    return address;
}

const DeviceFacts* CmAddress::device() const {
    const std::optional<std::uint32_t> wanted = ipv4();
    for (const DeviceFacts& device : devices()) {
        if (wanted && device.address == *wanted) {
            return &device;
        }
    }
    return nullptr;
}

std::optional<std::uint32_t> CmAddress::ipv4() const {
    if (family() == AF_INET) {
        return as<sockaddr_in>(raw_).sin_addr.s_addr;
    }
    if (family() == AF_INET6 && IN6_IS_ADDR_V4MAPPED(&as<sockaddr_in6>(raw_).sin6_addr)) {
        std::uint32_t address = 0;
        std::memcpy(&address, as<sockaddr_in6>(raw_).sin6_addr.s6_addr + 12, sizeof address);
        return address;
    }
    return std::nullopt;
}

}  // namespace mlx5_model
