// The file itself, the device, and the common parts of all commands. The formats are those of Linux's
// include/uapi/rdma.
#include "uverbs_file.hpp"

#include <endian.h>
#include <sys/mman.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <cerrno>
#include <new>
#include <system_error>

#include <rdma/ib_user_ioctl_cmds.h>
#include <rdma/ib_user_verbs.h>
#include <rdma/mlx5-abi.h>
#include <rdma/mlx5_user_ioctl_cmds.h>
#include <rdma/mlx5_user_ioctl_verbs.h>

#include "device_files.hpp"
#include "device_limits.hpp"
#include "refuse.hpp"

namespace mlx5_model {
namespace {

constexpr std::uint64_t kPage = 4096;
// Lower offsets are those of libmlx5's older ways to map UARs.
constexpr std::uint64_t kFirstUar = 0x10000;
constexpr std::uint32_t kUars = 4096;

template <class Command>
constexpr unsigned extended(Command command) {
    return IB_USER_VERBS_CMD_FLAG_EXTENDED | static_cast<unsigned>(command);
}

}  // namespace

// The descriptor is a file in memory: libmlx5 maps the UARs from this file, and the model reads from them which
// doorbells rang.
int UverbsFile::open(Hca& hca) {
    {
        const std::lock_guard guard(hca.fabric().lock);
        if (hca.removed()) {
            return -ENODEV;
        }
    }
    const int descriptor = ::memfd_create("uverbs", MFD_CLOEXEC);
    if (descriptor < 0) {
        return -errno;
    }
    if (::ftruncate(descriptor, static_cast<off_t>((kFirstUar + kUars) * kPage)) != 0) {
        const int error = errno;
        libc::close(descriptor);
        return -error;
    }
    void* uars =
        ::mmap(nullptr, kUars * kPage, PROT_READ, MAP_SHARED, descriptor, static_cast<off_t>(kFirstUar * kPage));
    if (uars == MAP_FAILED) {
        const int error = errno;
        libc::close(descriptor);
        return -error;
    }
    const std::shared_ptr<UverbsFile> file(new UverbsFile(hca));
    file->uars_ = static_cast<volatile std::uint8_t*>(uars);
    {
        const std::lock_guard guard(hca.fabric().lock);
        hca.add(file.get());
    }
    hca.fabric().opened();
    attach(descriptor, file);
    return descriptor;
}

UverbsFile::~UverbsFile() {
    ::munmap(const_cast<std::uint8_t*>(uars_), kUars * kPage);
}

void UverbsFile::describe(struct stat& out) const {
    out.st_mode = S_IFCHR | 0666;
    out.st_rdev = makedev(kUverbsMajor, hca_.facts().minor);
}

// Destroys the remaining objects as the kernel does, users before the objects that they use.
void UverbsFile::closed() {
    Fabric& fabric = hca_.fabric();
    {
        const std::lock_guard guard(fabric.lock);
        for (const auto& [handle, qp] : qps_) {
            fabric.drop(*qp);
        }
        for (const auto& [handle, cq] : cqs_) {
            fabric.drop(*cq);
        }
        qps_.clear();
        srqs_.clear();
        cqs_.clear();
        hca_.keys.remove_all(this);
        hca_.drop(this);
    }
    fabric.closed();
}

void UverbsFile::raise(ibv_event_type type, std::uint64_t element, const Reported& reported) {
    if (async_events_ == nullptr) {
        return;
    }
    ib_uverbs_async_event_desc event{};
    event.element = element;
    event.event_type = static_cast<std::uint32_t>(type);
    async_events_->push(event, reported);
}

void UverbsFile::forget(const Reported& reported) {
    if (async_events_ != nullptr) {
        async_events_->forget(reported);
    }
}

void UverbsFile::raise_srq_limit(const SharedReceiveQueue& queue) {
    for (const auto& [handle, srq] : srqs_) {
        if (srq.queue.get() == &queue) {
            raise(IBV_EVENT_SRQ_LIMIT_REACHED, srq.user_handle, srq.events);
        }
    }
}

void UverbsFile::end_events() {
    if (async_events_ != nullptr) {
        async_events_->end();
    }
    for (const auto& channel : channels_) {
        if (const auto queue = channel.lock()) {
            queue->forget_all();
            queue->end();
        }
    }
}

long UverbsFile::ioctl(unsigned long request, void* argument) {
    if (request != RDMA_VERBS_IOCTL) {
        return -ENOTTY;
    }
    auto* header = static_cast<ib_uverbs_ioctl_hdr*>(argument);
    const std::lock_guard guard(hca_.fabric().lock);
    if (hca_.removed()) {
        return -EIO;
    }
    try {
        return -carry_out(Attributes(header), header->object_id, header->method_id);
    } catch (const std::bad_alloc&) {
        return -ENOMEM;
    } catch (const std::system_error& error) {
        return -error.code().value();
    }
}

int UverbsFile::carry_out(const Attributes& attributes, std::uint16_t object, std::uint16_t method) {
    if (object == UVERBS_OBJECT_DEVICE && method == UVERBS_METHOD_INVOKE_WRITE) {
        return invoke_write(attributes);
    }
    if (object == UVERBS_OBJECT_MR && method == UVERBS_METHOD_REG_DMABUF_MR) {
        return register_dmabuf(attributes);
    }
    if (object == MLX5_IB_OBJECT_UAR && method == MLX5_IB_METHOD_UAR_OBJ_ALLOC) {
        return allocate_uar(attributes);
    }
    if (object == MLX5_IB_OBJECT_UAR && method == MLX5_IB_METHOD_UAR_OBJ_DESTROY) {
        return destroy_uar(attributes);
    }
    return EPROTONOSUPPORT;
}

int UverbsFile::invoke_write(const Attributes& attributes) {
    const auto command = attributes.get<std::uint32_t>(UVERBS_ATTR_WRITE_CMD);
    if (!command) {
        return EINVAL;
    }
    if (attributes.find(UVERBS_ATTR_CORE_OUT) == nullptr && attributes.size(UVERBS_ATTR_CORE_IN) == 0) {
        return ENOSPC;  // libibverbs probes for INVOKE_WRITE with such a command
    }
    if (async_events_ == nullptr && *command != IB_USER_VERBS_CMD_GET_CONTEXT) {
        return EINVAL;
    }
    switch (*command) {
        case IB_USER_VERBS_CMD_GET_CONTEXT: return get_context(attributes);
        case IB_USER_VERBS_CMD_QUERY_DEVICE: return query_device(attributes);
        case extended(IB_USER_VERBS_EX_CMD_QUERY_DEVICE): return query_device_extended(attributes);
        case IB_USER_VERBS_CMD_QUERY_PORT: return query_port(attributes);
        case IB_USER_VERBS_CMD_ALLOC_PD: return allocate_pd(attributes);
        case IB_USER_VERBS_CMD_DEALLOC_PD: return deallocate_pd(attributes);
        case IB_USER_VERBS_CMD_REG_MR: return register_memory(attributes);
        case IB_USER_VERBS_CMD_DEREG_MR: return deregister_memory(attributes);
        case IB_USER_VERBS_CMD_ALLOC_MW: return allocate_window(attributes);
        case IB_USER_VERBS_CMD_DEALLOC_MW: return deallocate_window(attributes);
        case IB_USER_VERBS_CMD_CREATE_AH: return create_ah(attributes);
        case IB_USER_VERBS_CMD_DESTROY_AH: return destroy_ah(attributes);
        case IB_USER_VERBS_CMD_CREATE_COMP_CHANNEL: return create_channel(attributes);
        case IB_USER_VERBS_CMD_CREATE_CQ: return create_cq(attributes, false);
        case extended(IB_USER_VERBS_EX_CMD_CREATE_CQ): return create_cq(attributes, true);
        case extended(IB_USER_VERBS_EX_CMD_MODIFY_CQ): return modify_cq(attributes);
        case IB_USER_VERBS_CMD_DESTROY_CQ: return destroy_cq(attributes);
        case IB_USER_VERBS_CMD_CREATE_QP: return create_qp(attributes);
        case IB_USER_VERBS_CMD_MODIFY_QP:
        case extended(IB_USER_VERBS_EX_CMD_MODIFY_QP): return modify_qp(attributes);
        case IB_USER_VERBS_CMD_QUERY_QP: return query_qp(attributes);
        case IB_USER_VERBS_CMD_DESTROY_QP: return destroy_qp(attributes);
        case IB_USER_VERBS_CMD_CREATE_SRQ: return create_srq(attributes);
        case IB_USER_VERBS_CMD_MODIFY_SRQ: return modify_srq(attributes);
        case IB_USER_VERBS_CMD_QUERY_SRQ: return query_srq(attributes);
        case IB_USER_VERBS_CMD_DESTROY_SRQ: return destroy_srq(attributes);
        default: return EOPNOTSUPP;
    }
}

// ---- The device ----

int UverbsFile::get_context(const Attributes& attributes) {
    const auto request =
        attributes.get<mlx5_ib_alloc_ucontext_req_v2>(UVERBS_ATTR_UHW_IN, sizeof(mlx5_ib_alloc_ucontext_req));
    if (!request || async_events_ != nullptr) {
        return EINVAL;
    }
    async_events_ = std::make_shared<EventQueue>();
    attach(async_events_->descriptor(), async_events_);
    ib_uverbs_get_context_resp core{};
    core.async_fd = static_cast<std::uint32_t>(async_events_->descriptor());
    core.num_comp_vectors = kCompletionVectors;
    attributes.put(UVERBS_ATTR_CORE_OUT, core);
    mlx5_ib_alloc_ucontext_resp driver{};
    driver.qp_tab_size = 1 << 18;
    driver.bf_reg_size = 512;
    driver.tot_bfregs = 0;  // since Linux 5.7, UARs are separate objects
    driver.cache_line_size = 64;
    driver.max_sq_desc_sz = 1024;
    driver.max_rq_desc_sz = 512;
    driver.max_send_wqebb = kSendBlocksMax;
    driver.max_recv_wr = kReceivesMax;
    driver.max_srq_recv_wr = kSharedReceivesMax;
    driver.num_ports = 1;
    driver.response_length = sizeof driver;
    driver.cqe_version = request->max_cqe_version >= 1 ? 1 : 0;
    driver.cmds_supp_uhw = MLX5_USER_CMDS_SUPP_UHW_QUERY_DEVICE | MLX5_USER_CMDS_SUPP_UHW_CREATE_AH;
    driver.eth_min_inline = MLX5_USER_INLINE_MODE_NONE;
    driver.log_uar_size = 12;
    driver.num_uars_per_page = 1;
    driver.num_dyn_bfregs = 1024;
    attributes.put(UVERBS_ATTR_UHW_OUT, driver);
    return 0;
}

int UverbsFile::query_device(const Attributes& attributes) {
    attributes.put(UVERBS_ATTR_CORE_OUT, device_limits(hca_.facts()));
    return 0;
}

int UverbsFile::query_device_extended(const Attributes& attributes) {
    ib_uverbs_ex_query_device_resp core{};
    core.base = device_limits(hca_.facts());
    core.response_length =
        static_cast<std::uint32_t>(attributes.size(UVERBS_ATTR_CORE_OUT) + attributes.size(UVERBS_ATTR_UHW_OUT));
    core.cq_moderation_caps.max_cq_moderation_count = kModerationCountMax;
    core.cq_moderation_caps.max_cq_moderation_period = kModerationPeriodMax;
    core.timestamp_mask = kTimestampMask;
    core.hca_core_clock = kCoreClockKhz;
    attributes.put(UVERBS_ATTR_CORE_OUT, core);
    mlx5_ib_query_device_resp driver{};
    driver.response_length = sizeof driver;
    attributes.put(UVERBS_ATTR_UHW_OUT, driver);
    return 0;
}

int UverbsFile::query_port(const Attributes& attributes) {
    const auto request = attributes.get<ib_uverbs_query_port>(UVERBS_ATTR_CORE_IN);
    if (!request || request->port_num != 1) {
        return EINVAL;
    }
    ib_uverbs_query_port_resp port{};
    port.state = hca_.port_up() ? IBV_PORT_ACTIVE : IBV_PORT_DOWN;
    port.max_mtu = port.active_mtu = Hca::kMtu;
    port.gid_tbl_len = Hca::kGids;
    port.pkey_tbl_len = 1;
    port.max_msg_sz = 1u << 30;
    port.active_width = 2;
    port.active_speed = 64;
    port.phys_state = hca_.port_up() ? 5 : 3;
    port.link_layer = IBV_LINK_LAYER_ETHERNET;
    port.max_vl_num = 1;
    port.port_cap_flags = IBV_PORT_CM_SUP | IBV_PORT_IP_BASED_GIDS;
    attributes.put(UVERBS_ATTR_CORE_OUT, port);
    return 0;
}

int UverbsFile::allocate_uar(const Attributes& attributes) {
    std::uint32_t page = 1;
    while (uars_in_use_.contains(page)) {
        ++page;
    }
    ib_uverbs_attr* handle = attributes.find(MLX5_IB_ATTR_UAR_OBJ_ALLOC_HANDLE);
    if (handle == nullptr || page >= kUars) {
        return handle == nullptr ? EINVAL : ENOMEM;
    }
    uars_in_use_.insert(page);
    handle->data = page;
    attributes.put(MLX5_IB_ATTR_UAR_OBJ_ALLOC_MMAP_OFFSET, std::uint64_t{(kFirstUar + page) * kPage});
    attributes.put(MLX5_IB_ATTR_UAR_OBJ_ALLOC_MMAP_LENGTH, static_cast<std::uint32_t>(kPage));
    attributes.put(MLX5_IB_ATTR_UAR_OBJ_ALLOC_PAGE_ID, page);
    return 0;
}

int UverbsFile::destroy_uar(const Attributes& attributes) {
    const ib_uverbs_attr* handle = attributes.find(MLX5_IB_ATTR_UAR_OBJ_DESTROY_HANDLE);
    return handle != nullptr && uars_in_use_.erase(static_cast<std::uint32_t>(handle->data)) == 1 ? 0 : EINVAL;
}

}  // namespace mlx5_model
