// The network below the RDMA devices: MTU, GIDs, and flow control of the link.
//
// Sources: Documentation/ABI/stable/sysfs-class-infiniband (gids, gid_attrs), ibv_query_port(3), IEEE 802.1Qaz and
// include/uapi/linux/dcbnl.h (PFC), include/rdma/ib_addr.h of the kernel (iboe_get_mtu), NVIDIA's documentation of
// /sys/class/net/NETDEV/ecn.
#include <arpa/inet.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "check_groups.hpp"
#include "network_queries.hpp"

namespace pollcore::doctor {
namespace {

bool is_ethernet(const Tree& tree, const JudgedDevice& device) {
    return tree.line(device.port_directory() + "/link_layer").value_or("Ethernet") == "Ethernet";
}

Finding of_infiniband(const JudgedDevice& device, const char* why) {
    return {.about = device.about(), .seen = why, .source = device.port_directory() + "/link_layer"};
}

/// The largest MTU of RDMA whose packets fit into the network device's MTU. The kernel takes 96 bytes for headers: GRH
/// 40, UDP 8, BTH 12, XRC 4, AtomicETH 28, ICRC 4 (iboe_get_mtu).
std::uint32_t rdma_mtu_of(double netdev_mtu) {
    constexpr std::uint32_t kHeaders = 96;
    for (const std::uint32_t mtu : {4096u, 2048u, 1024u, 512u, 256u}) {
        if (netdev_mtu >= mtu + kHeaders) {
            return mtu;
        }
    }
    return 0;
}

std::vector<Finding> mtu(const Facts& facts) {
    std::vector<Finding> found;
    for (const JudgedDevice& device : present_devices(facts)) {
        const std::string query = port_query_file(device.verbs_name, device.port);
        const auto active = asked_number(facts.now(), query, "active_mtu");
        const auto most = asked_number(facts.now(), query, "max_mtu");
        const auto netdev = netdev_of(facts.now(), device.verbs_name, device.port);
        const std::string file = netdev ? fmt::format("/sys/class/net/{}/mtu", *netdev) : "";
        const auto net_mtu = netdev ? facts.now().number(file) : std::nullopt;
        const std::string of_netdev = net_mtu ? fmt::format(", MTU {:.0f} of {}", *net_mtu, *netdev) : "";
        if (!active && !net_mtu) {
            found.push_back(not_judged(device.about(),
                                       asked_text(facts.now(), query, "not_asked").value_or("the port was not asked"),
                                       "ibv_query_port(3)"));
            continue;
        }
        const double mtu_now = active ? *active : rdma_mtu_of(*net_mtu);
        const std::string source = fmt::format("{}{}{}", active ? "ibv_query_port(3)" : "",
                                               active && net_mtu ? ", " : "", net_mtu ? file : "");
        const std::string seen =
            fmt::format("active MTU {:.0f}{}{}", mtu_now, active ? "" : " (by the kernel's rule)", of_netdev);
        if (mtu_now >= most.value_or(4096)) {
            found.push_back({.about = device.about(), .sure = active.has_value(), .seen = seen, .source = source});
            continue;
        }
        found.push_back({.about = device.about(),
                         .severity = Severity::warning,
                         .sure = active.has_value(),
                         .seen = seen,
                         .source = source,
                         .cost = Cost::stated(
                             fmt::format("a large message takes {:.0f} times the packets of MTU {:.0f}, each with its "
                                         "headers",
                                         mtu_now > 0 ? most.value_or(4096) / mtu_now : 16, most.value_or(4096))),
                         .mend = "raise the MTU at both ends and in each switch between them",
                         .commands = {}});
        if (netdev) {
            found.back().commands = {
                {Command::When::now,
                 fmt::format("ip link set dev {} mtu 4200  # switches must allow it", shell_word(*netdev))}};
        }
    }
    return found;
}

/// The GID in the notation of its file in sysfs.
std::string gid_text(const std::string& address) {
    std::array<unsigned char, 16> raw{};
    if (::inet_pton(AF_INET6, address.c_str(), raw.data()) != 1) {
        raw[10] = raw[11] = 0xff;  // an IPv4 address, mapped into IPv6
        if (::inet_pton(AF_INET, address.c_str(), &raw[12]) != 1) {
            return address;
        }
    }
    std::string text;
    for (std::size_t i = 0; i < raw.size(); i += 2) {
        text += fmt::format("{}{:02x}{:02x}", i == 0 ? "" : ":", raw[i], raw[i + 1]);
    }
    return text;
}

struct Gid {
    std::string index;
    std::string text;
    std::string type;  ///< "RoCE v2", "IB/RoCE v1"; empty if it cannot be read
};

bool is_v2(const Gid& gid) {
    return gid.type.find("v2") != gid.type.npos;
}

std::vector<Gid> gids(const Tree& tree, const JudgedDevice& device) {
    std::vector<Gid> all;
    for (const std::string& index : tree.list(device.port_directory() + "/gids")) {
        const auto text = tree.line(device.port_directory() + "/gids/" + index);
        if (text && text->find_first_not_of("0:") != text->npos) {
            all.push_back({.index = index,
                           .text = *text,
                           .type = tree.line(device.port_directory() + "/gid_attrs/types/" + index).value_or("")});
        }
    }
    std::sort(all.begin(), all.end(), [](const Gid& a, const Gid& b) {
        return a.index.size() != b.index.size() ? a.index.size() < b.index.size() : a.index < b.index;
    });
    return all;
}

/// The GID that a runtime with this configuration takes, as choose_gid() of runtime/connect does: of RoCE v2 with the
/// configured address; without an address the first of RoCE v2, else the first.
std::optional<Gid> chosen_gid(const Tree& tree, const JudgedDevice& device) {
    const std::vector<Gid> all = gids(tree, device);
    const std::string wanted = device.gid.empty() ? "" : gid_text(device.gid);
    const auto found = std::find_if(
        all.begin(), all.end(), [&](const Gid& gid) { return is_v2(gid) && (wanted.empty() || gid.text == wanted); });
    if (found != all.end()) {
        return *found;
    }
    return wanted.empty() && !all.empty() ? std::optional(all.front()) : std::nullopt;
}

std::vector<Finding> gid(const Facts& facts) {
    std::vector<Finding> found;
    for (const JudgedDevice& device : present_devices(facts)) {
        const std::string directory = device.port_directory() + "/gids";
        const std::size_t count = gids(facts.now(), device).size();
        if (facts.now().list(directory).empty()) {
            found.push_back(not_judged(device.about(), directory + ": not readable", directory));
        } else if (const auto chosen = chosen_gid(facts.now(), device)) {
            found.push_back({.about = device.about(),
                             .seen = fmt::format("GID {} ({}{}), of {}", chosen->index, chosen->text,
                                                 chosen->type.empty() ? "" : ", " + chosen->type, count),
                             .source = directory + "/" + chosen->index});
        } else {
            const auto netdev = netdev_of(facts.now(), device.verbs_name, device.port);
            found.push_back(
                {.about = device.about(),
                 .severity = Severity::fault,
                 .seen = device.gid.empty()
                             ? "the port has no GID: its network device has no address"
                             : fmt::format("none of {} GIDs is of RoCE v2 with the address {}", count, device.gid),
                 .source = directory,
                 .cost = Cost::stated("queue pairs cannot be connected"),
                 .mend = "give the network device an address, and bring it up; or correct gid in the configuration",
                 .commands = {
                     {Command::When::now,
                      fmt::format("ip addr add {} dev {}", device.gid.empty() ? "ADDRESS/BITS" : shell_word(device.gid),
                                  shell_word(netdev.value_or("NETDEV")))}}});
        }
    }
    return found;
}

std::vector<Finding> roce_version(const Facts& facts) {
    std::vector<Finding> found;
    for (const JudgedDevice& device : present_devices(facts)) {
        if (!is_ethernet(facts.now(), device)) {
            found.push_back(of_infiniband(device, "InfiniBand: no RoCE"));
            continue;
        }
        const auto chosen = chosen_gid(facts.now(), device);
        const std::string directory = device.port_directory() + "/gid_attrs/types";
        // rdma_cm takes another default where configfs says so (Documentation/ABI/testing/configfs-rdma_cm).
        const std::string by_cm =
            fmt::format("/sys/kernel/config/rdma_cm/{}/ports/{}/default_roce_mode", device.verbs_name, device.port);
        const auto cm = facts.now().line(by_cm);
        if (!chosen || chosen->type.empty()) {
            found.push_back(not_judged(device.about(), "no GID whose type can be read", directory));
        } else if (!is_v2(*chosen)) {
            found.push_back(
                {.about = device.about(),
                 .severity = Severity::warning,
                 .seen = fmt::format("GID {} is of {}, which is not routed", chosen->index, chosen->type),
                 .source = directory + "/" + chosen->index,
                 .cost = Cost::stated("peers behind a router cannot be reached, and switches see no UDP ports "
                                      "by which they could spread the traffic"),
                 .mend = "configure the address of a GID of RoCE v2"});
        } else if (cm && cm->find("v2") == cm->npos) {
            found.push_back(
                {.about = device.about(),
                 .severity = Severity::warning,
                 .seen = fmt::format("connections by rdma_cm take {}", *cm),
                 .source = by_cm,
                 .cost = Cost::stated("peers behind a router cannot be reached"),
                 .mend = "let rdma_cm take RoCE v2",
                 .commands = {{Command::When::now, fmt::format("echo 'RoCE v2' > {}", shell_word(by_cm))}}});
        } else {
            found.push_back({.about = device.about(), .seen = chosen->type, .source = directory + "/" + chosen->index});
        }
    }
    return found;
}

std::vector<Finding> pfc(const Facts& facts) {
    std::vector<Finding> found;
    for (const JudgedDevice& device : present_devices(facts)) {
        if (!is_ethernet(facts.now(), device)) {
            found.push_back(of_infiniband(device, "InfiniBand: the link itself loses no packets"));
            continue;
        }
        const auto netdev = netdev_of(facts.now(), device.verbs_name, device.port);
        const std::string query = netdev ? dcb_query_file(*netdev) : "";
        const auto enabled = netdev ? asked_number(facts.now(), query, "pfc_enabled") : std::nullopt;
        if (!enabled) {
            const auto why = netdev ? asked_text(facts.now(), query, "not_asked") : std::nullopt;
            found.push_back(
                not_judged(device.about(),
                           fmt::format("the driver does not tell PFC by DCB{}; a vendor's tool may (mlnx_qos -i {})",
                                       why ? " (" + *why + ")" : "", netdev.value_or("NETDEV")),
                           "RTM_GETDCB of rtnetlink(7)"));
            continue;
        }
        std::string priorities;
        for (int priority = 0; priority < 8; ++priority) {
            if ((static_cast<unsigned>(*enabled) >> priority & 1) != 0) {
                priorities += fmt::format("{}{}", priorities.empty() ? "" : ", ", priority);
            }
        }
        if (!priorities.empty()) {
            found.push_back({.about = device.about(),
                             .sure = false,  // the switch must have the same, and traffic must use the priority
                             .seen = fmt::format("on {} for priorities {}", *netdev, priorities),
                             .source = "RTM_GETDCB of rtnetlink(7)"});
            continue;
        }
        found.push_back(
            {.about = device.about(),
             .severity = Severity::note,
             .sure = false,
             .seen = fmt::format("off on {} for all priorities", *netdev),
             .source = "RTM_GETDCB of rtnetlink(7)",
             .cost = Cost::not_measured("a full switch drops packets, and the sender goes back to the first lost one; "
                                        "see device-counters (out_of_sequence, packet_seq_err)"),
             .mend = "a network for RoCE without losses has PFC for one priority, or ECN, at hosts and "
                     "switches alike",
             .commands = {
                 {Command::When::now, fmt::format("dcb pfc set dev {} prio-pfc 3:on  # if the switches use priority 3",
                                                  shell_word(*netdev))}}});
    }
    return found;
}

// NVIDIA's drivers (MLNX_OFED) have a file for each priority: 1 is on. The kernel's own driver has them in debugfs
// only, and not in this form.
std::vector<Finding> ecn(const Facts& facts) {
    std::vector<Finding> found;
    for (const JudgedDevice& device : present_devices(facts)) {
        if (!is_ethernet(facts.now(), device)) {
            found.push_back(of_infiniband(device, "InfiniBand: congestion is the subnet manager's"));
            continue;
        }
        const std::string marks = device.port_directory() + "/hw_counters/np_ecn_marked_roce_packets";
        const double marked = facts.now().number(marks).value_or(0);
        const auto netdev = netdev_of(facts.now(), device.verbs_name, device.port);
        const std::string directory = fmt::format("/sys/class/net/{}/ecn", netdev.value_or("NETDEV"));
        std::string on;
        std::string off;
        for (int priority = 0; netdev && priority < 8; ++priority) {
            const auto notifies = facts.now().number(fmt::format("{}/roce_np/enable/{}", directory, priority));
            const auto reacts = facts.now().number(fmt::format("{}/roce_rp/enable/{}", directory, priority));
            if (notifies && reacts) {
                std::string& list = *notifies != 0 && *reacts != 0 ? on : off;
                list += fmt::format("{}{}", list.empty() ? "" : ", ", priority);
            }
        }
        if (on.empty() && off.empty() && marked > 0) {
            found.push_back(
                {.about = device.about(),
                 .seen = fmt::format("switches marked {:.0f} packets that came here, so ECN is in use", marked),
                 .source = marks});
        } else if (on.empty() && off.empty()) {
            found.push_back(not_judged(
                device.about(),
                fmt::format("this driver shows it in no file; a vendor's tool may (mlxreg, or /sys/kernel/debug/mlx5 "
                            "for root), and only the switches say whether they mark packets"),
                directory));
        } else if (!on.empty()) {
            found.push_back({.about = device.about(),
                             .sure = marked > 0,
                             .seen = fmt::format("on for priorities {}{}", on,
                                                 marked > 0 ? fmt::format(", {:.0f} marked packets came", marked) : ""),
                             .source = directory});
        } else {
            found.push_back(
                {.about = device.about(),
                 .severity = Severity::note,
                 .sure = false,
                 .seen = "off for all priorities",
                 .source = directory,
                 .cost = Cost::not_measured("senders do not slow down before a switch drops packets or stops the link"),
                 .mend = "switch it on at both ends, and let the switches mark packets",
                 .commands = {
                     {Command::When::now, fmt::format("echo 1 > {}/roce_np/enable/3", shell_word(directory))},
                     {Command::When::now, fmt::format("echo 1 > {}/roce_rp/enable/3", shell_word(directory))}}});
        }
    }
    return found;
}

constexpr const char* kNoPort = "there is no verbs device";
constexpr Check kNetworkChecks[] = {
    {"mtu", "the MTU of ports and network devices", &mtu, kNoPort},
    {"gid", "whether the port has the GID that the configuration wants", &gid, kNoPort},
    {"roce-version", "the RoCE version of the GID", &roce_version, kNoPort},
    {"pfc", "priority flow control of the network device", &pfc, kNoPort},
    {"ecn", "congestion notification of the network device", &ecn, kNoPort},
};

}  // namespace

std::span<const Check> network_checks() noexcept {
    return kNetworkChecks;
}

}  // namespace pollcore::doctor
