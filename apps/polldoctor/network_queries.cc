#include "network_queries.hpp"

#include <linux/dcbnl.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>
#include <system_error>

#include <fmt/format.h>
#include <infiniband/verbs.h>

#include "base/unique_fd.hpp"
#include "in_child.hpp"

namespace pollcore::doctor {
namespace {

// Opening a device and asking its port may wait for its firmware.
constexpr std::chrono::milliseconds kPortWithin{5000};
constexpr std::size_t kPortBytesMax = 4096;

std::string not_asked(const std::string& what, int error) {
    return fmt::format("not_asked {}: {}\n", what, std::generic_category().message(error));
}

std::uint32_t bytes_of(ibv_mtu mtu) {
    return mtu >= IBV_MTU_256 && mtu <= IBV_MTU_4096 ? 128u << mtu : 0;
}

/// The attribute of this type among those in `size` bytes, or null. Each is checked against what is left.
const nlattr* find_attribute(const void* begin, std::size_t size, std::uint16_t type) {
    const auto* at = static_cast<const std::byte*>(begin);
    while (size >= sizeof(nlattr)) {
        const auto* const attribute = reinterpret_cast<const nlattr*>(at);
        if (attribute->nla_len < sizeof(nlattr) || attribute->nla_len > size) {
            return nullptr;
        }
        if ((attribute->nla_type & NLA_TYPE_MASK) == type) {
            return attribute;
        }
        const std::size_t step = std::min<std::size_t>(NLA_ALIGN(attribute->nla_len), size);
        at += step;
        size -= step;
    }
    return nullptr;
}

const std::byte* payload(const nlattr* attribute) {
    return reinterpret_cast<const std::byte*>(attribute) + NLA_HDRLEN;
}
std::size_t payload_size(const nlattr* attribute) {
    return attribute->nla_len - NLA_HDRLEN;
}

struct DcbRequest {
    nlmsghdr header{};
    dcbmsg message{};
    nlattr name{};
    std::array<char, IFNAMSIZ> text{};
};

}  // namespace

std::string port_query_file(const std::string& verbs_name, std::uint32_t port) {
    return fmt::format("/asked/port/{}/{}", verbs_name, port);
}

std::string dcb_query_file(const std::string& netdev) {
    return "/asked/dcb/" + netdev;
}

namespace {

std::string port_answer(const std::string& verbs_name, std::uint32_t port) {
    int count = 0;
    const std::unique_ptr<ibv_device*, void (*)(ibv_device**)> list(::ibv_get_device_list(&count),
                                                                    &::ibv_free_device_list);
    if (list == nullptr) {
        return not_asked("ibv_get_device_list", errno);
    }
    for (int i = 0; i < count; ++i) {
        ibv_device* const device = list.get()[i];
        if (verbs_name != ::ibv_get_device_name(device)) {
            continue;
        }
        const std::unique_ptr<ibv_context, int (*)(ibv_context*)> context(::ibv_open_device(device),
                                                                          &::ibv_close_device);
        if (context == nullptr) {
            return not_asked("ibv_open_device", errno);
        }
        ibv_port_attr attributes{};
        if (const int error = ::ibv_query_port(context.get(), static_cast<std::uint8_t>(port), &attributes)) {
            return not_asked("ibv_query_port", error);
        }
        return fmt::format("active_mtu {}\nmax_mtu {}\n", bytes_of(attributes.active_mtu),
                           bytes_of(attributes.max_mtu));
    }
    return not_asked("libibverbs does not list it", ENODEV);
}

}  // namespace

std::string ask_port(const std::string& verbs_name, std::uint32_t port) {
    const ChildAnswer answer =
        in_child([&](const auto& write) { write(port_answer(verbs_name, port)); }, kPortWithin, kPortBytesMax);
    return answer.whole ? answer.text : not_asked("the device does not answer", ETIMEDOUT);
}

std::string ask_dcb(const std::string& netdev) {
    if (netdev.empty() || netdev.size() >= IFNAMSIZ) {
        return not_asked("no name of a network device", EINVAL);
    }
    const UniqueFd socket(::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE));
    if (!socket.valid()) {
        return not_asked("socket", errno);
    }
    // The kernel answers at once; the limit only keeps polldoctor from hanging.
    const timeval limit{.tv_sec = 2, .tv_usec = 0};
    (void)::setsockopt(socket.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    DcbRequest request;
    request.header.nlmsg_len = sizeof request;
    request.header.nlmsg_type = RTM_GETDCB;
    request.header.nlmsg_flags = NLM_F_REQUEST;
    request.message.dcb_family = AF_UNSPEC;
    request.message.cmd = DCB_CMD_IEEE_GET;
    request.name.nla_type = DCB_ATTR_IFNAME;
    request.name.nla_len = static_cast<std::uint16_t>(NLA_HDRLEN + netdev.size() + 1);
    std::memcpy(request.text.data(), netdev.c_str(), netdev.size() + 1);
    if (::send(socket.get(), &request, sizeof request, 0) != static_cast<ssize_t>(sizeof request)) {
        return not_asked("RTM_GETDCB", errno);
    }
    alignas(nlmsghdr) std::array<std::byte, 16384> answer{};
    const ssize_t got = ::recv(socket.get(), answer.data(), answer.size(), 0);
    if (got < static_cast<ssize_t>(sizeof(nlmsghdr))) {
        return not_asked("RTM_GETDCB", got < 0 ? errno : EPROTO);
    }
    nlmsghdr header{};
    std::memcpy(&header, answer.data(), sizeof header);
    const std::size_t size = std::min<std::size_t>(header.nlmsg_len, static_cast<std::size_t>(got));
    if (header.nlmsg_type == NLMSG_ERROR) {
        nlmsgerr error{};
        if (size < sizeof header + sizeof error) {
            return not_asked("RTM_GETDCB", EPROTO);
        }
        std::memcpy(&error, answer.data() + sizeof header, sizeof error);
        return not_asked("RTM_GETDCB", -error.error);
    }
    constexpr std::size_t kAttributes = NLMSG_ALIGN(sizeof(nlmsghdr)) + NLMSG_ALIGN(sizeof(dcbmsg));
    const nlattr* const all =
        size > kAttributes ? find_attribute(answer.data() + kAttributes, size - kAttributes, DCB_ATTR_IEEE) : nullptr;
    const nlattr* const pfc =
        all != nullptr ? find_attribute(payload(all), payload_size(all), DCB_ATTR_IEEE_PFC) : nullptr;
    if (pfc == nullptr || payload_size(pfc) < sizeof(ieee_pfc)) {
        return not_asked("RTM_GETDCB has no PFC", EOPNOTSUPP);
    }
    ieee_pfc values{};
    std::memcpy(&values, payload(pfc), sizeof values);
    return fmt::format("pfc_enabled {}\n", values.pfc_en);
}

std::optional<std::string> netdev_of(const Tree& tree, const std::string& verbs_name, std::uint32_t port) {
    const std::string device = "/sys/class/infiniband/" + verbs_name;
    const auto by_gid = tree.line(fmt::format("{}/ports/{}/gid_attrs/ndevs/0", device, port));
    if (by_gid && !by_gid->empty() && by_gid->find('/') == by_gid->npos) {
        return by_gid;
    }
    const std::vector<std::string>& by_function = tree.list(device + "/device/net");
    return by_function.size() == 1 ? std::optional(by_function.front()) : std::nullopt;
}

}  // namespace pollcore::doctor
