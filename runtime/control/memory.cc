// Protection domains and registered memory.
#include "pollcore/memory.hpp"

#include <fmt/format.h>

#include "base/log.hpp"
#include "control/runtime_state.hpp"

namespace pollcore {
namespace {

int verbs_access(Access access) noexcept {
    return (access.local_write ? IBV_ACCESS_LOCAL_WRITE : 0) | (access.remote_read ? IBV_ACCESS_REMOTE_READ : 0) |
           (access.remote_write ? IBV_ACCESS_REMOTE_WRITE : 0) |
           (access.remote_atomic ? IBV_ACCESS_REMOTE_ATOMIC : 0) | (access.window_bind ? IBV_ACCESS_MW_BIND : 0) |
           (access.relaxed_ordering ? IBV_ACCESS_RELAXED_ORDERING : 0);
}

}  // namespace

ProtectionDomain RuntimeState::create_protection_domain(const std::string& device_name) {
    return executor_->run([&] {
        DeviceSlot& device = device_slot(device_name);
        const std::uint32_t id = next_pd_++;
        pds_.emplace(id, PdSlot{device.index, UniquePd(device.device->create_pd(), {device.device.get()})});
        return ProtectionDomain(shared_from_this(), id);
    });
}

void RuntimeState::release_protection_domain(std::uint32_t id) noexcept {
    try {
        executor_->run([&] {
            const auto found = pds_.find(id);
            if (found == pds_.end()) {
                return;
            }
            Device& owner = *devices_[found->second.device]->device;
            const int error = owner.destroy(found->second.pd.get());
            if (error == 0) {
                (void)found->second.pd.release();
                pds_.erase(found);
            }
            // In use: it ends with the runtime, after what is in it.
        });
    } catch (const std::exception& error) {
        log_error("releasing a protection domain: {}", error.what());
    }
}

std::uint32_t RuntimeState::pd_of(DeviceSlot& device, const ProtectionDomain* pd) const {
    if (pd == nullptr) {
        return device.default_pd;
    }
    const auto found = pds_.find(pd->id());
    if (found == pds_.end() || found->second.device != device.index) {
        throw Error(EINVAL, fmt::format("the protection domain is not one of device \"{}\"", device.config.name));
    }
    return found->first;
}

MemoryRegion RuntimeState::add_region(HostMemory memory, void* data, std::size_t bytes, std::uint64_t iova,
                                      Access access, const std::string& device_name, const ProtectionDomain* pd) {
    return executor_->run([&] {
        DeviceSlot& device = device_slot(device_name);
        const std::uint32_t pd_id = pd_of(device, pd);
        RegionSlot slot;
        slot.pd = pd_id;
        slot.mr = UniqueMr(device.device->register_memory(pds_.at(pd_id).pd.get(), data, bytes, iova,
                                                          verbs_access(access)),
                           {device.device.get()});
        MemoryRegion region;
        region.runtime_ = shared_from_this();
        region.id_ = next_region_++;
        region.data_ = static_cast<std::byte*>(data);
        region.size_ = bytes;
        region.iova_ = iova;
        region.lkey_ = slot.mr->lkey;
        region.rkey_ = slot.mr->rkey;
        if (access.window_bind) {
            region.handle_ = slot.handle = add_bindable_here(*slot.mr, pd_id);
        }
        slot.memory = std::move(memory);
        regions_.emplace(region.id_, std::move(slot));
        return region;
    });
}

MemoryRegion RuntimeState::allocate(std::size_t bytes, Access access, const std::string& device_name,
                                    const ProtectionDomain* pd) {
    const int node = executor_->run([&] { return device_slot(device_name).device->numa_node(); });
    HostMemory memory = platform->allocate(bytes, node, "Runtime::allocate");
    void* data = memory.data();
    return add_region(std::move(memory), data, bytes, reinterpret_cast<std::uintptr_t>(data), access, device_name, pd);
}

MemoryRegion RuntimeState::register_memory(void* data, std::size_t bytes, std::uint64_t iova, Access access,
                                           const std::string& device_name, const ProtectionDomain* pd) {
    return add_region({}, data, bytes, iova, access, device_name, pd);
}

void RuntimeState::deregister(std::uint64_t id) {
    executor_->run([&] {
        const auto found = regions_.find(id);
        RegionSlot& region = found->second;
        if (region.mr == nullptr) {
            regions_.erase(found);  // the registration ended with the runtime
            return;
        }
        const auto busy = [&](const WorkerSlot& worker) {
            return Error(EBUSY, fmt::format("memory region of {} bytes at {} is named by work requests in flight on "
                                            "worker \"{}\"; poll their completions first",
                                            region.mr->length, fmt::ptr(region.mr->addr), worker.config.name));
        };
        for (const auto& worker : workers_) {
            if (worker->proxy->uses_key(pds_.at(region.pd).device, region.mr->lkey, region.handle)) {
                throw busy(*worker);
            }
        }
        if (WorkerSlot* user = remove_bindable_here(region); user != nullptr) {
            throw busy(*user);
        }
        Device& owner = *devices_[pds_.at(region.pd).device]->device;
        const int error = owner.destroy(region.mr.get());
        // A device that the kernel has let go of answers EIO, and its regions have ended with it.
        if (error != 0 && !(error == EIO && lost_meanwhile(*devices_[pds_.at(region.pd).device]))) {
            restore_bindable_here(region, workers_.size());
            throw Error(error, fmt::format("device \"{}\" does not end the memory region of {} bytes at {}{}",
                                           devices_[pds_.at(region.pd).device]->config.name, region.mr->length,
                                           fmt::ptr(region.mr->addr),
                                           region.handle.valid() ? "; are windows bound to it?" : ""));
        }
        give_back_bindable_here(region.handle);
        (void)region.mr.release();
        regions_.erase(found);
    });
}

// ---- The objects ----

ProtectionDomain::ProtectionDomain(std::shared_ptr<RuntimeState> runtime, std::uint32_t id) noexcept
    : runtime_(std::move(runtime)), id_(id) {}

ProtectionDomain::~ProtectionDomain() {
    if (runtime_ != nullptr) {
        runtime_->release_protection_domain(id_);
    }
}

ProtectionDomain& ProtectionDomain::operator=(ProtectionDomain&& other) noexcept {
    std::swap(runtime_, other.runtime_);
    std::swap(id_, other.id_);
    return *this;
}

MemoryRegion::~MemoryRegion() {
    try {
        deregister();
    } catch (const std::exception& error) {
        log_warning("a memory region stays registered until the runtime stops: {}", error.what());
    }
}

MemoryRegion::MemoryRegion(MemoryRegion&& other) noexcept { *this = std::move(other); }

MemoryRegion& MemoryRegion::operator=(MemoryRegion&& other) noexcept {
    std::swap(runtime_, other.runtime_);
    std::swap(id_, other.id_);
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    std::swap(iova_, other.iova_);
    std::swap(handle_, other.handle_);
    std::swap(lkey_, other.lkey_);
    std::swap(rkey_, other.rkey_);
    return *this;
}

void MemoryRegion::deregister() {
    if (runtime_ == nullptr) {
        return;
    }
    runtime_->deregister(id_);
    runtime_.reset();
    data_ = nullptr;
    size_ = 0;
    iova_ = 0;
    lkey_ = rkey_ = 0;
    handle_ = {};
}

}  // namespace pollcore
