// Makes and destroys protection domains, regions, windows and address handles, as the kernel does.
#include <endian.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include <rdma/ib_user_verbs.h>
#include <rdma/mlx5-abi.h>

#include "device_limits.hpp"
#include "uverbs_file.hpp"

namespace mlx5_model {
namespace {

constexpr std::uint32_t kRemoteWriting = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;

// Whether this memory is mapped. The kernel cannot pin memory that is not mapped. msync(2) fails on such memory; with
// MS_ASYNC it has no effect on mapped memory.
bool mapped(std::uint64_t start, std::uint64_t length) {
    const auto page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
    const std::uint64_t first = start / page * page;
    return ::msync(reinterpret_cast<void*>(first), start + length - first, MS_ASYNC) == 0;
}

}  // namespace

int UverbsFile::allocate_pd(const Attributes& attributes) {
    if (pds_.size() >= kPdsMax) {
        return ENOMEM;
    }
    // The handle is the PD's number, which is unique in the process.
    const std::uint32_t number = hca_.fabric().new_number();
    pds_.insert(number);
    ib_uverbs_alloc_pd_resp core{};
    core.pd_handle = number;
    attributes.put(UVERBS_ATTR_CORE_OUT, core);
    mlx5_ib_alloc_pd_resp driver{};
    driver.pdn = number;
    attributes.put(UVERBS_ATTR_UHW_OUT, driver);
    return 0;
}

int UverbsFile::deallocate_pd(const Attributes& attributes) {
    const auto request = attributes.get<ib_uverbs_dealloc_pd>(UVERBS_ATTR_CORE_IN);
    if (!request || !pds_.contains(request->pd_handle)) {
        return EINVAL;
    }
    const std::uint32_t pd = request->pd_handle;
    bool used = hca_.keys.uses(pd);
    for (const auto& [handle, qp] : qps_) {
        used = used || qp->facts().pd == pd;
    }
    for (const auto& [handle, srq] : srqs_) {
        used = used || srq.queue->facts().pd == pd;
    }
    for (const auto& [handle, of] : ahs_) {
        used = used || of == pd;
    }
    if (used) {
        return EBUSY;
    }
    pds_.erase(pd);
    return 0;
}

int UverbsFile::register_memory(const Attributes& attributes) {
    const auto request = attributes.get<ib_uverbs_reg_mr>(UVERBS_ATTR_CORE_IN);
    if (!request || !pds_.contains(request->pd_handle)) {
        return EINVAL;
    }
    const auto page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
    if (request->start % page != request->hca_va % page || request->start + request->length < request->start) {
        return EINVAL;
    }
    if ((request->access_flags & kRemoteWriting) != 0 && (request->access_flags & IBV_ACCESS_LOCAL_WRITE) == 0) {
        return EINVAL;
    }
    if ((request->access_flags & IBV_ACCESS_ON_DEMAND) != 0) {
        return EOPNOTSUPP;
    }
    if (request->length == 0 || !mapped(request->start, request->length)) {
        return request->length == 0 ? EINVAL : EFAULT;
    }
    const std::uint64_t iova = (request->access_flags & IBV_ACCESS_ZERO_BASED) != 0 ? 0 : request->hca_va;
    const auto key = hca_.keys.add_region(this, request->pd_handle, request->start, request->length, iova,
                                          static_cast<int>(request->access_flags));
    if (!key) {
        return ENOMEM;
    }
    ib_uverbs_reg_mr_resp core{};
    core.mr_handle = *key >> 8;
    core.lkey = core.rkey = *key;
    attributes.put(UVERBS_ATTR_CORE_OUT, core);
    return 0;
}

UverbsFile::Mapping::~Mapping() {
    ::munmap(at, bytes);
}

int UverbsFile::register_dmabuf(const Attributes& attributes) {
    const ib_uverbs_attr* const pd = attributes.find(UVERBS_ATTR_REG_DMABUF_MR_PD_HANDLE);
    const ib_uverbs_attr* const fd = attributes.find(UVERBS_ATTR_REG_DMABUF_MR_FD);
    ib_uverbs_attr* const handle = attributes.find(UVERBS_ATTR_REG_DMABUF_MR_HANDLE);
    const auto offset = attributes.get<std::uint64_t>(UVERBS_ATTR_REG_DMABUF_MR_OFFSET);
    const auto length = attributes.get<std::uint64_t>(UVERBS_ATTR_REG_DMABUF_MR_LENGTH);
    const auto iova = attributes.get<std::uint64_t>(UVERBS_ATTR_REG_DMABUF_MR_IOVA);
    const auto access = attributes.get<std::uint32_t>(UVERBS_ATTR_REG_DMABUF_MR_ACCESS_FLAGS);
    if (pd == nullptr || fd == nullptr || handle == nullptr || !offset || !length || !iova || !access ||
        !pds_.contains(static_cast<std::uint32_t>(pd->data)) || *length == 0 || *offset + *length < *offset) {
        return EINVAL;
    }
    const auto page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
    if (*offset % page != *iova % page) {
        return EINVAL;
    }
    struct stat status {};
    if (::fstat(static_cast<int>(fd->data), &status) != 0) {
        return EBADF;
    }
    if (static_cast<std::uint64_t>(status.st_size) < *offset + *length) {
        return EINVAL;
    }
    const std::size_t bytes = *offset + *length;
    void* const at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, static_cast<int>(fd->data), 0);
    if (at == MAP_FAILED) {
        return errno;
    }
    auto mapping = std::make_unique<Mapping>(at, bytes);
    const auto key =
        hca_.keys.add_region(this, static_cast<std::uint32_t>(pd->data), reinterpret_cast<std::uintptr_t>(at) + *offset,
                             *length, *iova, static_cast<int>(*access));
    if (!key) {
        return ENOMEM;
    }
    dmabufs_[*key >> 8] = std::move(mapping);
    handle->data = *key >> 8;
    attributes.put(UVERBS_ATTR_REG_DMABUF_MR_RESP_LKEY, *key);
    attributes.put(UVERBS_ATTR_REG_DMABUF_MR_RESP_RKEY, *key);
    return 0;
}

int UverbsFile::deregister_memory(const Attributes& attributes) {
    const auto request = attributes.get<ib_uverbs_dereg_mr>(UVERBS_ATTR_CORE_IN);
    if (!request) {
        return EINVAL;
    }
    const int error = hca_.keys.remove(this, request->mr_handle, false);
    if (error == 0) {
        dmabufs_.erase(request->mr_handle);
    }
    return error;
}

int UverbsFile::allocate_window(const Attributes& attributes) {
    // The structure ends with padding that libibverbs does not send.
    const auto request =
        attributes.get<ib_uverbs_alloc_mw>(UVERBS_ATTR_CORE_IN, offsetof(ib_uverbs_alloc_mw, reserved));
    if (!request || !pds_.contains(request->pd_handle) ||
        (request->mw_type != IBV_MW_TYPE_1 && request->mw_type != IBV_MW_TYPE_2)) {
        return EINVAL;
    }
    const auto key = hca_.keys.add_window(this, request->pd_handle, request->mw_type == IBV_MW_TYPE_1 ? 1 : 2);
    if (!key) {
        return ENOMEM;
    }
    ib_uverbs_alloc_mw_resp core{};
    core.mw_handle = *key >> 8;
    core.rkey = *key;
    attributes.put(UVERBS_ATTR_CORE_OUT, core);
    return 0;
}

int UverbsFile::deallocate_window(const Attributes& attributes) {
    const auto request = attributes.get<ib_uverbs_dealloc_mw>(UVERBS_ATTR_CORE_IN);
    return request ? hca_.keys.remove(this, request->mw_handle, true) : EINVAL;
}

int UverbsFile::create_ah(const Attributes& attributes) {
    const auto request = attributes.get<ib_uverbs_create_ah>(UVERBS_ATTR_CORE_IN);
    if (!request || !pds_.contains(request->pd_handle) || request->attr.is_global == 0 || request->attr.port_num != 1 ||
        request->attr.grh.sgid_index >= Hca::kGids) {
        return EINVAL;
    }
    ibv_gid to;
    std::memcpy(to.raw, request->attr.grh.dgid, sizeof to.raw);
    if (!hca_.fabric().knows(to)) {
        return EHOSTUNREACH;
    }
    ib_uverbs_create_ah_resp core{};
    core.ah_handle = next_handle_++;
    ahs_[core.ah_handle] = request->pd_handle;
    attributes.put(UVERBS_ATTR_CORE_OUT, core);
    mlx5_ib_create_ah_resp driver{};
    driver.response_length = sizeof driver;
    attributes.put(UVERBS_ATTR_UHW_OUT, driver);
    return 0;
}

int UverbsFile::destroy_ah(const Attributes& attributes) {
    const auto request = attributes.get<ib_uverbs_destroy_ah>(UVERBS_ATTR_CORE_IN);
    return request && ahs_.erase(request->ah_handle) == 1 ? 0 : EINVAL;
}

}  // namespace mlx5_model
