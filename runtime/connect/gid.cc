#include "connect/gid.hpp"

#include <arpa/inet.h>

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

namespace pollcore {
namespace {

// Converts an address to a GID as the kernel does: an IPv6 address is used as it is, an IPv4 address is mapped to IPv6.
ibv_gid parse_gid(const std::string& address) {
    ibv_gid gid{};
    in_addr v4{};
    if (inet_pton(AF_INET6, address.c_str(), gid.raw) == 1) {
        return gid;
    }
    if (inet_pton(AF_INET, address.c_str(), &v4) == 1) {
        gid.raw[10] = gid.raw[11] = 0xff;
        std::memcpy(&gid.raw[12], &v4, sizeof(v4));
        return gid;
    }
    throw Error(EINVAL, fmt::format("gid = \"{}\": accepted is an IPv4 or IPv6 address", address));
}

}  // namespace

GidEntry choose_gid(Device& device, const std::string& address) {
    const std::vector<GidEntry> gids = device.gids();
    if (gids.empty()) {
        throw Error(EADDRNOTAVAIL,
                    fmt::format("device \"{}\" has no GID: its interface has no address", device.name()));
    }
    const auto usable = [&](const GidEntry& gid) { return gid.type == IBV_GID_TYPE_ROCE_V2 || device.is_software(); };
    if (!address.empty()) {
        const ibv_gid wanted = parse_gid(address);
        const auto found = std::find_if(gids.begin(), gids.end(), [&](const GidEntry& gid) {
            return usable(gid) && std::memcmp(gid.gid.raw, wanted.raw, sizeof(wanted.raw)) == 0;
        });
        if (found == gids.end()) {
            throw Error(EADDRNOTAVAIL,
                        fmt::format("device \"{}\" has no RoCE v2 GID of address {}", device.name(), address));
        }
        return *found;
    }
    const auto found = std::find_if(gids.begin(), gids.end(), usable);
    return found != gids.end() ? *found : gids.front();
}

}  // namespace pollcore
