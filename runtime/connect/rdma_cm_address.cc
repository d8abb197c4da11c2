#include "connect/rdma_cm_address.hpp"

#include <arpa/inet.h>
#include <net/if.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <string_view>

#include <fmt/format.h>

#include "pollcore/error.hpp"

namespace pollcore {
namespace {

[[noreturn]] void refuse(const std::string& text, std::string_view why) {
    throw Error(EINVAL, fmt::format("'{}' is no address for rdma_cm: {}. It looks like 192.0.2.1:7471, "
                                    "[2001:db8::1]:7471 or [fe80::1%eth0]:7471, numbers only",
                                    text, why));
}

in_port_t parse_port(const std::string& text, std::string_view digits) {
    std::uint16_t port = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), port);
    if (digits.empty() || error != std::errc{} || end != digits.data() + digits.size()) {
        refuse(text, "the port is a number from 0 to 65535");
    }
    return htons(port);
}

std::uint32_t parse_zone(const std::string& text, const std::string& zone) {
    const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
    std::uint32_t index = ::if_nametoindex(zone.c_str());
    if (index == 0 && !zone.empty() && std::all_of(zone.begin(), zone.end(), is_digit)) {
        (void)std::from_chars(zone.data(), zone.data() + zone.size(), index);
    }
    if (index == 0) {
        refuse(text, fmt::format("there is no network interface '{}'", zone));
    }
    return index;
}

}  // namespace

CmAddress CmAddress::parse(const std::string& text) {
    const auto colon = text.rfind(':');
    if (colon == std::string::npos) {
        refuse(text, "it has no port");
    }
    std::string host = text.substr(0, colon);
    const in_port_t port = parse_port(text, std::string_view(text).substr(colon + 1));
    CmAddress address;
    if (host.empty()) {
        refuse(text, "it has no host; 0.0.0.0 and [::] stand for every address of this one");
    }
    if (host.front() != '[') {
        address.any_.v4.sin_family = AF_INET;
        address.any_.v4.sin_port = port;
        if (::inet_pton(AF_INET, host.c_str(), &address.any_.v4.sin_addr) != 1) {
            refuse(text, "the host is neither an IPv4 address nor an IPv6 address in brackets");
        }
        return address;
    }
    if (host.back() != ']') {
        refuse(text, "a bracket is not closed");
    }
    host = host.substr(1, host.size() - 2);
    const auto percent = host.find('%');
    address.any_.v6.sin6_family = AF_INET6;
    address.any_.v6.sin6_port = port;
    if (::inet_pton(AF_INET6, host.substr(0, percent).c_str(), &address.any_.v6.sin6_addr) != 1) {
        refuse(text, "what is in the brackets is no IPv6 address");
    }
    if (percent != std::string::npos) {
        address.any_.v6.sin6_scope_id = parse_zone(text, host.substr(percent + 1));
    } else if (address.is_link_local()) {
        refuse(text, "a link-local address needs its network interface behind a %");
    }
    return address;
}

CmAddress::CmAddress(const sockaddr& address) noexcept {
    if (address.sa_family == AF_INET) {
        std::memcpy(&any_.v4, &address, sizeof any_.v4);
    } else if (address.sa_family == AF_INET6) {
        std::memcpy(&any_.v6, &address, sizeof any_.v6);
    }
}

CmAddress CmAddress::from_gid(const std::uint8_t (&raw)[16], std::uint32_t ifindex) noexcept {
    CmAddress address;
    in6_addr v6{};
    std::memcpy(&v6, raw, sizeof v6);
    if (IN6_IS_ADDR_V4MAPPED(&v6)) {
        address.any_.v4.sin_family = AF_INET;
        std::memcpy(&address.any_.v4.sin_addr, raw + 12, 4);
    } else {
        address.any_.v6.sin6_family = AF_INET6;
        address.any_.v6.sin6_addr = v6;
        if (IN6_IS_ADDR_LINKLOCAL(&v6)) {
            address.any_.v6.sin6_scope_id = ifindex;
        }
    }
    return address;
}

bool CmAddress::is_wildcard() const noexcept {
    return family() == AF_INET ? any_.v4.sin_addr.s_addr == INADDR_ANY
                               : family() == AF_INET6 && IN6_IS_ADDR_UNSPECIFIED(&any_.v6.sin6_addr);
}

bool CmAddress::is_link_local() const noexcept {
    return family() == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&any_.v6.sin6_addr);
}

std::string CmAddress::text() const {
    char host[INET6_ADDRSTRLEN] = "";
    if (family() == AF_INET) {
        (void)::inet_ntop(AF_INET, &any_.v4.sin_addr, host, sizeof host);
        return fmt::format("{}:{}", host, ntohs(any_.v4.sin_port));
    }
    if (family() != AF_INET6) {
        return "an unknown address";
    }
    (void)::inet_ntop(AF_INET6, &any_.v6.sin6_addr, host, sizeof host);
    std::string zone;
    if (any_.v6.sin6_scope_id != 0) {
        char name[IF_NAMESIZE] = "";
        zone = ::if_indextoname(any_.v6.sin6_scope_id, name) != nullptr ? fmt::format("%{}", name)
                                                                        : fmt::format("%{}", any_.v6.sin6_scope_id);
    }
    return fmt::format("[{}{}]:{}", host, zone, ntohs(any_.v6.sin6_port));
}

}  // namespace pollcore
