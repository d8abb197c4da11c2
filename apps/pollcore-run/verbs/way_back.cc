// The address of a datagram's sender, from its completion and the GRH before its payload.
#include <arpa/inet.h>
#include <netinet/ip.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "opened_device.hpp"
#include "refused_call.hpp"
#include "served_memory.hpp"

namespace pollcore::served {
namespace {

using GidBytes = std::array<std::uint8_t, 16>;

// RoCE v2 over IPv4 has an IPv4 header in the last 20 of the 40 bytes (InfiniBand specification, annex A17).
bool has_ipv4_header(const ibv_grh& grh) noexcept {
    const auto* bytes = reinterpret_cast<const std::uint8_t*>(&grh);
    return bytes[20] == 0x45 && (bytes[0] >> 4) != 6;
}

GidBytes mapped(const std::uint8_t* address) noexcept {
    GidBytes gid{};
    gid[10] = gid[11] = 0xff;
    std::memcpy(gid.data() + 12, address, 4);
    return gid;
}

}  // namespace

int way_back(ibv_context& context, std::uint8_t port_num, const ibv_wc& wc, const ibv_grh& grh,
             ibv_ah_attr& attr) noexcept {
    Opened& opened = of(&context);
    attr = {};
    attr.dlid = wc.slid;
    attr.sl = wc.sl;
    attr.src_path_bits = wc.dlid_path_bits;
    attr.port_num = port_num;
    if ((wc.wc_flags & IBV_WC_GRH) == 0) {
        return 0;
    }
    GidBytes sender{};
    GidBytes own{};
    attr.is_global = 1;
    if (has_ipv4_header(grh)) {
        const auto* ip = reinterpret_cast<const std::uint8_t*>(&grh) + 20;
        sender = mapped(ip + offsetof(iphdr, saddr));
        own = mapped(ip + offsetof(iphdr, daddr));
        attr.grh.hop_limit = 64;
        attr.grh.traffic_class = ip[1];
    } else {
        std::memcpy(sender.data(), grh.sgid.raw, sender.size());
        std::memcpy(own.data(), grh.dgid.raw, own.size());
        const std::uint32_t head = ntohl(grh.version_tclass_flow);
        attr.grh.flow_label = head & 0xfffff;
        attr.grh.traffic_class = static_cast<std::uint8_t>(head >> 20);
        attr.grh.hop_limit = 64;
    }
    std::memcpy(attr.grh.dgid.raw, sender.data(), sender.size());
    const int error = error_of("ibv_init_ah_from_wc()", [&] {
        const auto gids = opened.attachment->gids(opened.device->name);
        // RoCE v2 of an address stands behind v1 of it, and datagrams with a GRH in UDP came by v2.
        const auto found = std::find_if(gids.rbegin(), gids.rend(), [&](const auto& one) { return one.gid == own; });
        if (found == gids.rend()) {
            throw Error(ENOENT, "the datagram did not come to an address of this port");
        }
        attr.grh.sgid_index = static_cast<std::uint8_t>(found->gid_index);
    });
    return error == 0 ? 0 : failed(error, -1);
}

}  // namespace pollcore::served
