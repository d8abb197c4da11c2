// The RDMA devices: whether they are there, their ports, and their way to the memory over PCIe.
//
// Sources: Documentation/ABI/stable/sysfs-class-infiniband, ABI/testing/sysfs-bus-pci (current_link_speed and so on),
// PCI Express Base Specification (Device Control Register), lspci(8), setpci(8).
#include <algorithm>
#include <cstdint>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "check_groups.hpp"

namespace pollcore::doctor {
namespace {

std::vector<Finding> device_present(const Facts& facts) {
    std::vector<Finding> found;
    const std::string directory = "/sys/class/infiniband";
    const std::vector<std::string>& there = facts.now().list(directory);
    std::string names;
    for (const std::string& name : there) {
        names += (names.empty() ? "" : ", ") + name;
    }
    for (const JudgedDevice& device : facts.devices()) {
        const bool is_there = std::find(there.begin(), there.end(), device.verbs_name) != there.end();
        if (is_there) {
            const auto firmware = facts.now().line(device.directory() + "/fw_ver");
            found.push_back(
                {.about = device.about(),
                 .seen = fmt::format("there{}", firmware && !firmware->empty() ? ", firmware " + *firmware : ""),
                 .source = device.directory()});
            continue;
        }
        found.push_back(
            {.about = device.about(),
             .severity = Severity::fault,
             .seen = device.verbs_name.empty()
                         ? fmt::format("the configuration means the only device, and this host has {}",
                                       there.empty() ? "none" : names)
                         : fmt::format("not there; this host has {}", there.empty() ? "no RDMA device" : names),
             .source = directory,
             .cost = Cost::stated("pollcored does not start"),
             .mend = "load the device's driver, or correct verbs_name in the configuration",
             .commands = {{Command::When::now, "modprobe mlx5_ib  # the driver of your device"}}});
    }
    return found;
}

std::vector<Finding> port_state(const Facts& facts) {
    std::vector<Finding> found;
    for (const JudgedDevice& device : present_devices(facts)) {
        const std::string file = device.port_directory() + "/state";
        const auto state = facts.now().line(file);  // "4: ACTIVE"
        if (!state) {
            found.push_back(not_judged(device.about(), facts.now().why_not(file), file));
            continue;
        }
        const std::string seen = fmt::format(
            "port {} is {}, {}, {}", device.port, state->substr(std::min(state->find(' ') + 1, state->size())),
            facts.now().line(device.port_directory() + "/rate").value_or("rate unknown"),
            facts.now().line(device.port_directory() + "/link_layer").value_or("link layer unknown"));
        if (state->starts_with("4:")) {
            found.push_back({.about = device.about(), .seen = seen, .source = file});
        } else {
            found.push_back(
                {.about = device.about(),
                 .severity = Severity::fault,
                 .seen = seen,
                 .source = file,
                 .cost = Cost::stated("nothing arrives and nothing leaves"),
                 .mend = "bring the link up; on InfiniBand a subnet manager must run",
                 .commands = {{Command::When::now, fmt::format("rdma link show {}/{}  # and: ip link set dev NETDEV up",
                                                               shell_word(device.verbs_name), device.port)}}});
        }
    }
    return found;
}

/// Gbit/s of a lane: transfers times the share that the encoding leaves, 8b/10b up to 5 GT/s and 128b/130b above.
double lane_gbits(double transfers) {
    return transfers <= 5 ? transfers * 0.8 : transfers * 128 / 130;
}

struct Link {
    std::optional<double> now;
    std::optional<double> most;
};
/// `what` is "speed", such as "16.0 GT/s PCIe", or "width". Virtual functions and devices of hypervisors have no
/// figures: "Unknown", 0, 63 or 255.
Link link_of(const Tree& tree, const JudgedDevice& device, const std::string& what) {
    const auto figure = [&](const char* which) {
        auto value = tree.number(fmt::format("{}/device/{}_link_{}", device.directory(), which, what));
        if (value && (*value <= 0 || (what == "width" && *value > 32))) {
            value.reset();
        }
        return value;
    };
    return {.now = figure("current"), .most = figure("max")};
}

std::string bandwidth_text(const Tree& tree, const JudgedDevice& device) {
    const Link speed = link_of(tree, device, "speed");
    const Link width = link_of(tree, device, "width");
    if (!speed.now || !speed.most || !width.now || !width.most) {
        return "less bandwidth than the device could use";
    }
    return fmt::format(
        "the link carries at most {:.0f} Gbit/s each way, and the device could use {:.0f} (lanes, speed "
        "and encoding; packets take some more)",
        *width.now * lane_gbits(*speed.now), *width.most * lane_gbits(*speed.most));
}

Finding link_finding(const Facts& facts, const JudgedDevice& device, const std::string& what, const char* unit) {
    const std::string file = fmt::format("{}/device/current_link_{}", device.directory(), what);
    const Link link = link_of(facts.now(), device, what);
    if (!link.now || !link.most) {
        return not_judged(device.about(),
                          facts.now().read(file).ok() ? file + ": does not say, as for a virtual function"
                                                      : facts.now().why_not(file) + ", as for a device without PCIe",
                          file);
    }
    const std::string seen = fmt::format("{}{} of {}{}", *link.now, unit, *link.most, unit);
    if (*link.now >= *link.most) {
        return {.about = device.about(), .seen = seen, .source = file};
    }
    return {.about = device.about(),
            .severity = Severity::warning,
            .seen = seen,
            .source = file,
            .cost = Cost::stated(bandwidth_text(facts.now(), device)),
            .mend = "put the device into a slot that has what it can use, and see what its riser and the BIOS allow",
            .commands = {
                {Command::When::firmware, fmt::format("the PCIe slot of {}: {} {}{}, and not {}{}", device.verbs_name,
                                                      what, *link.most, unit, *link.now, unit)}}};
}

std::vector<Finding> pcie_speed(const Facts& facts) {
    std::vector<Finding> found;
    for (const JudgedDevice& device : present_devices(facts)) {
        found.push_back(link_finding(facts, device, "speed", " GT/s"));
    }
    return found;
}

std::vector<Finding> pcie_width(const Facts& facts) {
    std::vector<Finding> found;
    for (const JudgedDevice& device : present_devices(facts)) {
        found.push_back(link_finding(facts, device, "width", " lanes"));
    }
    return found;
}

/// The PCI address from the device's uevent: "PCI_SLOT_NAME=0000:3b:00.0".
std::string pci_address(const Tree& tree, const JudgedDevice& device) {
    std::istringstream lines(tree.read(device.directory() + "/device/uevent").text);
    constexpr std::string_view kKey = "PCI_SLOT_NAME=";
    for (std::string line; std::getline(lines, line);) {
        if (line.starts_with(kKey)) {
            return line.substr(kKey.size());
        }
    }
    return "";
}

/// Device Control of the PCI Express capability (id 0x10, offset 8). The list of capabilities begins at the offset in
/// byte 0x34 of the configuration space; each has its id and the offset of the next one in its first two bytes.
std::optional<unsigned> device_control(const std::string& space) {
    constexpr std::size_t kFirst = 0x34;
    constexpr unsigned kExpress = 0x10;
    constexpr std::size_t kControl = 8;
    constexpr std::size_t kCapabilitiesMax = 48;
    const auto byte = [&](std::size_t at) { return static_cast<unsigned char>(space[at]); };
    if (space.size() <= kFirst) {
        return std::nullopt;
    }
    std::size_t at = byte(kFirst) & ~3u;
    for (std::size_t i = 0; i < kCapabilitiesMax && at >= 0x40 && at + kControl + 1 < space.size(); ++i) {
        if (byte(at) == kExpress) {
            return byte(at + kControl) | static_cast<unsigned>(byte(at + kControl + 1)) << 8;
        }
        at = byte(at + 1) & ~3u;
    }
    return std::nullopt;
}

std::vector<Finding> relaxed_ordering(const Facts& facts) {
    constexpr unsigned kEnableRelaxedOrdering = 1u << 4;
    std::vector<Finding> found;
    for (const JudgedDevice& device : present_devices(facts)) {
        const std::string file = device.directory() + "/device/config";
        const Reading& space = facts.now().read(file);
        if (!space.ok()) {
            found.push_back(not_judged(device.about(), facts.now().why_not(file), file));
            continue;
        }
        const auto control = device_control(space.text);
        if (!control) {
            found.push_back(not_judged(device.about(),
                                       space.text.size() <= 64
                                           ? file + ": only root may read more than the first 64 bytes"
                                           : file + ": has no PCI Express capability, as a virtual device",
                                       file));
        } else if ((*control & kEnableRelaxedOrdering) != 0) {
            found.push_back({.about = device.about(),
                             .seen = "the device may use it (Device Control, bit 4); memory regions ask for it by "
                                     "IBV_ACCESS_RELAXED_ORDERING",
                             .source = file});
        } else {
            const std::string address = pci_address(facts.now(), device);
            found.push_back(
                {.about = device.about(),
                 .severity = Severity::warning,
                 .sure = false,
                 .seen = "the device may not use it (Device Control, bit 4 is 0)",
                 .source = file,
                 .cost = Cost::not_measured("writes to memory wait for earlier ones, also of regions with "
                                            "IBV_ACCESS_RELAXED_ORDERING; not measured here"),
                 .mend =
                     "allow it in the BIOS, or for this boot by setpci; the kernel forbids it behind some root ports",
                 .commands = {{Command::When::now, fmt::format("setpci -s {} CAP_EXP+8.w=10:10",
                                                               address.empty() ? "ADDRESS" : shell_word(address))},
                              {Command::When::firmware, "PCIe relaxed ordering: enabled"}}});
        }
    }
    return found;
}

constexpr const char* kNoDevice = "there is no verbs device";
constexpr Check kPcieChecks[] = {
    {"device-present", "whether the configured devices are there", &device_present, kNoDevice},
    {"port-state", "whether their ports are up", &port_state, kNoDevice},
    {"pcie-speed", "whether the PCIe link runs at the device's speed", &pcie_speed, kNoDevice},
    {"pcie-width", "whether the PCIe link has all of the device's lanes", &pcie_width, kNoDevice},
    {"relaxed-ordering", "whether the device may use PCIe's relaxed ordering", &relaxed_ordering, kNoDevice},
};

}  // namespace

std::span<const Check> pcie_checks() noexcept {
    return kPcieChecks;
}

}  // namespace pollcore::doctor
