// Facts about ports and network devices that the kernel tells by calls. They become files below /asked in the tree of
// this host.
//
// Thread safety: any thread; each call opens what it needs. The calls change nothing.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "tree.hpp"

namespace pollcore::doctor {

/// Lines "active_mtu 1024" and "max_mtu 4096" in bytes, or "not_asked WHY".
[[nodiscard]] std::string port_query_file(const std::string& verbs_name, std::uint32_t port);
/// "pfc_enabled 8": a bit for each priority that has priority flow control; or "not_asked WHY".
[[nodiscard]] std::string dcb_query_file(const std::string& netdev);

/// Asks the port by ibv_query_port(3), and returns the lines.
[[nodiscard]] std::string ask_port(const std::string& verbs_name, std::uint32_t port);
/// Asks the driver of the network device by RTM_GETDCB (include/uapi/linux/dcbnl.h), for which nobody needs
/// privileges, and returns the line.
[[nodiscard]] std::string ask_dcb(const std::string& netdev);

/// The network device of a port: that of the port's first GID, or the only one of the RDMA device's PCI function.
[[nodiscard]] std::optional<std::string> netdev_of(const Tree& tree, const std::string& verbs_name, std::uint32_t port);

}  // namespace pollcore::doctor
