// Finds a device, opens it, and learns what it can do.
#include <endian.h>
#include <fcntl.h>

#include <algorithm>
#include <bit>
#include <climits>
#include <filesystem>
#include <fstream>
#include <limits>
#include <span>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <infiniband/mlx5dv.h>

#include "base/without_capabilities.hpp"
#include "device/verbs/verbs_device.hpp"
#include "device/verbs/verbs_error.hpp"
#include "pollcore/limits.hpp"

namespace pollcore {
namespace {

class DeviceList {
public:
    DeviceList() : list_(ibv_get_device_list(&size_)), error_(list_ == nullptr ? errno : 0) {}
    ~DeviceList() {
        if (list_ != nullptr) {
            ibv_free_device_list(list_);
        }
    }
    DeviceList(const DeviceList&) = delete;
    DeviceList& operator=(const DeviceList&) = delete;

    [[nodiscard]] int error() const noexcept { return error_; }
    [[nodiscard]] ibv_device** begin() const noexcept { return list_; }
    [[nodiscard]] ibv_device** end() const noexcept { return list_ == nullptr ? nullptr : list_ + size_; }
    [[nodiscard]] std::vector<std::string> names() const {
        std::vector<std::string> names;
        for (ibv_device* device : *this) {
            names.emplace_back(ibv_get_device_name(device));
        }
        return names;
    }

private:
    int size_ = 0;
    ibv_device** list_;
    int error_;
};

/// Names of the kernel's RDMA devices. libibverbs may not have a provider for each of them.
std::vector<std::string> kernel_devices() {
    std::vector<std::string> names;
    std::error_code ignored;  // a kernel without RDMA has no such directory
    for (const auto& entry : std::filesystem::directory_iterator("/sys/class/infiniband", ignored)) {
        names.push_back(entry.path().filename().string());
    }
    std::sort(names.begin(), names.end());
    return names;
}

std::string why_no_devices() {
    const auto kernel = kernel_devices();
    if (kernel.empty()) {
        return "this machine has no RDMA device. `rdma link` lists them; load the NIC's driver, or make a "
               "Soft-RoCE "
               "device with `rdma link add rxe0 type rxe netdev INTERFACE`";
    }
    std::error_code ignored;
    if (!std::filesystem::exists("/dev/infiniband", ignored)) {
        return fmt::format(
            "the kernel has {}, but there is no /dev/infiniband: load the module ib_uverbs, and in a "
            "container pass the devices in",
            fmt::join(kernel, ", "));
    }
    return fmt::format(
        "the kernel has {}, but libibverbs has no provider for it, or /dev/infiniband lacks its uverbs "
        "node: install ibverbs-providers, and in a container pass the devices in",
        fmt::join(kernel, ", "));
}

ibv_device* find(const DeviceList& list, const std::string& name) {
    const auto names = list.names();
    const std::string wanted = name.empty() ? std::string("an RDMA device") : fmt::format("RDMA device {}", name);
    if (names.empty()) {
        // libibverbs returns ENOSYS for a kernel without RDMA. For a person, this is a machine without a device.
        const int error = list.error() != 0 && list.error() != ENOSYS ? list.error() : ENODEV;
        throw Error(error, fmt::format("cannot open {}: {}", wanted, why_no_devices()));
    }
    if (name.empty()) {
        if (names.size() > 1) {
            throw Error(EINVAL, fmt::format("cannot open an RDMA device without a name: there are {}. Say which",
                                            fmt::join(names, ", ")));
        }
        return *list.begin();
    }
    const auto found = std::find(names.begin(), names.end(), name);
    if (found == names.end()) {
        throw Error(ENODEV, fmt::format("cannot open {}: there is none of this name. There {} {}", wanted,
                                        names.size() == 1 ? "is" : "are", fmt::join(names, ", ")));
    }
    return list.begin()[found - names.begin()];
}

int read_numa_node(const ibv_device& device) {
    std::ifstream file(std::string(device.ibdev_path) + "/device/numa_node");
    int node = -1;  // Soft-RoCE has no such file, and no NUMA node
    return file >> node ? node : -1;
}

// Soft-RoCE's vendor id. When Soft-RoCE's ibv_next_poll finds no completion, it advances the CQ and releases the CQ's
// lock, at least in rdma-core 44. The ibv_end_poll that must follow does both again. Then the CQ shows old entries as
// new ones (D35).
constexpr std::uint32_t kSoftRoceVendor = 0xffffff;

std::uint32_t at_least_zero(int value) {
    return static_cast<std::uint32_t>(std::max(value, 0));
}

}  // namespace

std::unique_ptr<VerbsDevice> VerbsDevice::open(const std::string& name, std::uint8_t port, bool to_share) {
    const DeviceList list;
    ibv_device* device = find(list, name);
    // mlx5 gives whoever uses a context what the capabilities of its opener permit (DEVX). With another driver the
    // threads that post keep the credentials of the opener, because Soft-RoCE posts by write(2), which only they may
    // do.
    std::optional<WithoutCapabilities> without;
    if (to_share && mlx5dv_is_supported(device)) {
        without.emplace();
    }
    UniqueContext context(ibv_open_device(device));
    without.reset();
    if (context == nullptr) {
        const int error = errno != 0 ? errno : EIO;
        throw verbs_error(error, fmt::format("cannot open RDMA device {} (/dev/infiniband/{})",
                                             ibv_get_device_name(device), device->dev_name));
    }
    return std::unique_ptr<VerbsDevice>(new VerbsDevice(std::move(context), port));
}

VerbsDevice::VerbsDevice(UniqueContext context, std::uint8_t port)
    : Device(ibv_get_device_name(context->device), port),
      context_(std::move(context)),
      numa_node_(read_numa_node(*context_->device)) {
    const int flags = ::fcntl(context_->async_fd, F_GETFL);
    if (flags < 0 || ::fcntl(context_->async_fd, F_SETFL, flags | O_NONBLOCK) < 0) {
        throw verbs_error(errno,
                          fmt::format("cannot make the asynchronous events of RDMA device {} non-blocking", name()));
    }
    query_limits();
    check_port();
    probe();
}

VerbsDevice::~VerbsDevice() {
    if (cq_pd_ != nullptr) {
        (void)ibv_dealloc_pd(cq_pd_);
    }
}

std::string VerbsDevice::describe() const {
    return fmt::format("verbs {} port {} (firmware {})", name(), port(), firmware_.empty() ? "unknown" : firmware_);
}

void VerbsDevice::query_limits() {
    ibv_device_attr attr{};
    if (const int error = verbs_result(ibv_query_device(context_.get(), &attr)); error != 0) {
        throw verbs_error(error, fmt::format("cannot ask RDMA device {} for its limits", name()));
    }
    if (port() < 1 || port() > attr.phys_port_cnt) {
        throw Error(EINVAL, fmt::format("RDMA device {} has no port {}: its ports are 1 to {}", name(), port(),
                                        attr.phys_port_cnt));
    }
    firmware_ = attr.fw_ver;
    limits_.qps_max = at_least_zero(attr.max_qp);
    limits_.cqes_max = at_least_zero(attr.max_cqe);
    limits_.qp_depth_max = at_least_zero(attr.max_qp_wr);
    // A read may have fewer SGEs than other work requests. We use the smaller limit for all.
    limits_.sges_max = at_least_zero(attr.max_sge_rd > 0 ? std::min(attr.max_sge, attr.max_sge_rd) : attr.max_sge);
    limits_.rd_atomic_max = at_least_zero(std::min(attr.max_qp_rd_atom, attr.max_qp_init_rd_atom));
    limits_.srqs_max = at_least_zero(attr.max_srq);
    limits_.srq_depth_max = at_least_zero(attr.max_srq_wr);
    limits_.srq_sges_max = at_least_zero(attr.max_srq_sge);
    limits_.memory_region_max = attr.max_mr_size;
    limits_.comp_vectors = at_least_zero(context_->num_comp_vectors);
    limits_.atomics = attr.atomic_cap != IBV_ATOMIC_NONE;
    const bool soft_roce = attr.vendor_id == kSoftRoceVendor;
    const bool mlx5 = mlx5dv_is_supported(context_->device);
    limits_.next_poll = !soft_roce;
    limits_.poll = soft_roce ? kPollOfSoftRoce : mlx5 ? kPollOfMlx5 : kPollOfOthers;
    // Soft-RoCE's library leaves all memory of SGEs to the kernel. mlx5's library can be told to leave this memory to
    // the NIC. The behaviour of other providers is not known.
    limits_.leaves_memory = soft_roce || mlx5;
    ibv_device_attr_ex more{};
    if (ibv_query_device_ex(context_.get(), nullptr, &more) == 0) {  // otherwise the device has none of these features
        limits_.moderation_count_max = more.cq_mod_caps.max_cq_count;
        limits_.moderation_period_max_us = more.cq_mod_caps.max_cq_period;
        limits_.completion_timestamp_mask = more.completion_timestamp_mask;
        limits_.hca_core_clock_khz = more.hca_core_clock;
    }
    const unsigned caps = attr.device_cap_flags;
    limits_.memory_windows_max = at_least_zero(attr.max_mw);
    limits_.memory_windows_1 = (caps & IBV_DEVICE_MEM_WINDOW) != 0;
    limits_.memory_windows_2 = (caps & (IBV_DEVICE_MEM_WINDOW_TYPE_2A | IBV_DEVICE_MEM_WINDOW_TYPE_2B)) != 0;
    limits_.invalidation = (caps & IBV_DEVICE_MEM_MGT_EXTENSIONS) != 0;
}

void VerbsDevice::check_port() {
    const ibv_port_attr attr = query_port();
    if (attr.state != IBV_PORT_ACTIVE) {
        throw Error(ENETDOWN,
                    fmt::format("port {} of RDMA device {} is {}, not active: check its cable and its network "
                                "interface (`rdma link`, `ip link`)",
                                port(), name(), ibv_port_state_str(attr.state)));
    }
}

ibv_device_attr_ex VerbsDevice::query_device() {
    ibv_device_attr_ex attr{};
    if (const int error = verbs_result(ibv_query_device_ex(context_.get(), nullptr, &attr)); error != 0) {
        throw verbs_error(error, fmt::format("cannot query RDMA device {}", name()));
    }
    return attr;
}

std::uint16_t VerbsDevice::query_pkey(std::uint32_t index) {
    __be16 pkey = 0;
    errno = 0;
    if (ibv_query_pkey(context_.get(), port(), static_cast<int>(std::min<std::uint32_t>(index, INT_MAX)), &pkey) != 0) {
        throw verbs_error(errno != 0 ? errno : EINVAL, fmt::format("RDMA device {} has no P_Key {}", name(), index));
    }
    return be16toh(pkey);
}

ibv_port_attr VerbsDevice::query_port() {
    ibv_port_attr attr{};
    if (const int error = verbs_result(ibv_query_port(context_.get(), port(), &attr)); error != 0) {
        throw verbs_error(error, fmt::format("cannot query port {} of RDMA device {}", port(), name()));
    }
    return attr;
}

std::vector<GidEntry> VerbsDevice::gids() {
    const ibv_port_attr port_attr = query_port();
    ibv_device_attr device_attr{};
    if (const int error = verbs_result(ibv_query_device(context_.get(), &device_attr)); error != 0) {
        throw verbs_error(error, fmt::format("cannot ask RDMA device {} for its ports", name()));
    }
    // The call returns the entries of all ports. So there is room for as many entries of each port as this port may
    // have.
    std::vector<ibv_gid_entry> table(at_least_zero(port_attr.gid_tbl_len) * device_attr.phys_port_cnt);
    const ssize_t count = ibv_query_gid_table(context_.get(), table.data(), table.size(), 0);
    if (count < 0) {
        throw verbs_error(static_cast<int>(-count), fmt::format("cannot read the GID table of RDMA device {}", name()));
    }
    std::vector<GidEntry> entries;
    for (const auto& entry : std::span(table).first(static_cast<std::size_t>(count))) {
        if (entry.port_num == port()) {
            entries.push_back({.index = entry.gid_index,
                               .gid = entry.gid,
                               .type = static_cast<ibv_gid_type>(entry.gid_type),
                               .ifindex = entry.ndev_ifindex});
        }
    }
    return entries;
}

void VerbsDevice::probe() {
    const UniquePd pd(create_pd(), {this});
    const UniqueCq cq(create_cq({.cqe = 1}), {this});
    limits_.inline_max = probe_inline_max(pd.get(), cq.get());
    limits_.thread_domains = probe_thread_domains(pd.get());
    limits_.extended_cqs = probe_extended_cqs(false);
    if (limits_.completion_timestamp_mask == 0 || !limits_.extended_cqs || !probe_extended_cqs(true)) {
        limits_.completion_timestamp_mask = limits_.hca_core_clock_khz = 0;
    }
}

bool VerbsDevice::probe_extended_cqs(bool device_time) {
    ibv_cq* cq = create_extended_cq({.cqe = 1, .device_time = device_time});
    if (cq != nullptr) {
        (void)ibv_destroy_cq(cq);
    }
    return cq != nullptr;  // after any failure, CQs are polled by ibv_poll_cq, or have no time stamps
}

std::uint32_t VerbsDevice::probe_inline_max(ibv_pd* pd, ibv_cq* cq) {
    // Makes a QP for `asked` inline bytes. Returns how many inline bytes the QP takes, or -1 if it was refused.
    int error = 0;
    const auto try_inline = [&](std::uint32_t asked) -> std::int64_t {
        ibv_qp_init_attr attr{};
        attr.send_cq = cq;
        attr.recv_cq = cq;
        attr.qp_type = IBV_QPT_RC;
        attr.cap = {1, 1, 1, 1, asked};
        ibv_qp* qp = ibv_create_qp(pd, &attr);
        if (qp == nullptr) {
            error = errno;
            return -1;
        }
        (void)ibv_destroy_qp(qp);
        return std::min(std::max(attr.cap.max_inline_data, asked), kInlineMax);
    };
    // A refusal's errno does not tell its cause (providers use EINVAL, ENOMEM and others). So each refusal is
    // understood as "too many bytes". Only a QP without inline data must be possible.
    const std::int64_t least = try_inline(0);
    if (least < 0) {
        throw verbs_error(error, fmt::format("cannot make a first RC queue pair on RDMA device {}", name()));
    }
    auto fits = static_cast<std::uint32_t>(least);
    std::uint32_t refused = kInlineMax + 1;
    std::uint32_t asked = kInlineMax;  // most devices accept this, and then no other is tried
    while (fits + 1 < refused) {
        const std::int64_t got = try_inline(asked);
        if (got < 0) {
            refused = asked;
        } else {
            fits = static_cast<std::uint32_t>(got);
        }
        asked = fits + (refused - fits) / 2;
    }
    return fits;
}

bool VerbsDevice::probe_thread_domains(ibv_pd* pd) {
    ibv_td_init_attr td_attr{};
    ibv_td* td = ibv_alloc_td(context_.get(), &td_attr);
    if (td == nullptr) {
        if (errno == EOPNOTSUPP || errno == ENOSYS) {
            return false;
        }
        throw verbs_error(errno, fmt::format("cannot make a thread domain on RDMA device {}", name()));
    }
    ibv_parent_domain_init_attr attr{};
    attr.pd = pd;
    attr.td = td;
    ibv_pd* parent = ibv_alloc_parent_domain(context_.get(), &attr);
    const bool both = parent != nullptr;
    if (both) {
        (void)ibv_dealloc_pd(parent);
    }
    (void)ibv_dealloc_td(td);
    return both;
}

}  // namespace pollcore
