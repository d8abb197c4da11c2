// Protection domains and registered memory.
#include "pollcore/memory.hpp"

#include <fmt/format.h>

#include "base/log.hpp"
#include "base/undo.hpp"
#include "control/runtime_state.hpp"

namespace pollcore {
namespace {

int verbs_access(Access access) noexcept {
    return (access.local_write ? IBV_ACCESS_LOCAL_WRITE : 0) | (access.remote_read ? IBV_ACCESS_REMOTE_READ : 0) |
           (access.remote_write ? IBV_ACCESS_REMOTE_WRITE : 0) | (access.remote_atomic ? IBV_ACCESS_REMOTE_ATOMIC : 0) |
           (access.window_bind ? IBV_ACCESS_MW_BIND : 0) | (access.relaxed_ordering ? IBV_ACCESS_RELAXED_ORDERING : 0);
}

// Names the region by the address that work requests use. The text may go to another process, which must not learn any
// other address of the region.
std::string region_text(const RegionSlot& region) {
    return fmt::format("the memory region of {} bytes at {:#x}", region.mr->length, region.iova);
}

}  // namespace

PdId RuntimeState::create_pd(const std::string& device_name) {
    return executor_->run([&] {
        DeviceSlot& device = device_slot(device_name);
        const PdId id = next_pd_++;
        pds_.emplace(id, PdSlot{device.index, 0, UniquePd(device.device->create_pd(), {device.device.get()})});
        return id;
    });
}

PdId RuntimeState::create_foreign_pd_here(const std::string& device_name, std::uint32_t client) {
    if (const DeviceSlot& device = device_slot(device_name); !device.device->limits().leaves_memory) {
        throw Error(
            EOPNOTSUPP,
            fmt::format(
                "device \"{}\" serves no attached process: its provider is not known to leave the memory of work "
                "requests to the device",
                device.config.name));
    }
    const PdId pd = create_pd(device_name);
    pds_.at(pd).client = client;
    return pd;
}

void RuntimeState::release_pd(PdId id) noexcept {
    try {
        std::unique_lock lock(outside_mutex_);
        await_outside_calls(lock);
        // If the domain is still in use, it is destroyed with the runtime, after the objects in it.
        (void)executor_->run([&] { return release_pd_here(id); }, Executor::Patience::unlimited);
    } catch (const std::exception& error) {
        log_error("releasing a protection domain: {}", error.what());
    }
}

bool RuntimeState::release_pd_here(PdId id) {
    const auto found = pds_.find(id);
    if (found == pds_.end()) {
        return true;
    }
    if (devices_[found->second.device]->device->destroy(found->second.pd.get()) != 0) {
        return false;
    }
    (void)found->second.pd.release();
    pds_.erase(found);
    return true;
}

PdId RuntimeState::pd_of(DeviceSlot& device, PdId pd) const {
    if (pd == 0) {
        return device.default_pd;
    }
    const auto found = pds_.find(pd);
    if (found == pds_.end() || found->second.device != device.index) {
        throw Error(EINVAL, fmt::format("the protection domain is not one of device \"{}\"", device.config.name));
    }
    return pd;
}

RegionPlan RuntimeState::plan_region_here(void* data, std::size_t bytes, std::uint64_t iova, Access access,
                                          const std::string& device_name, PdId pd) {
    DeviceSlot& device = device_slot(device_name);
    const PdId domain = pd_of(device, pd);
    return {.device = device.device.get(),
            .pd = domain,
            .verbs_pd = pds_.at(domain).pd.get(),
            .data = data,
            .bytes = bytes,
            .iova = iova,
            .access = access};
}

UniqueMr RegionPlan::carry_out() const {
    return {device->register_memory(verbs_pd, data, bytes, iova, verbs_access(access)), {device}};
}

RegionInfo RuntimeState::add_region_here(const RegionPlan& plan, UniqueMr& mr, HostMemory memory) {
    const auto placed = regions_.try_emplace(next_region_++).first;
    Undo take_back([&]() noexcept { regions_.erase(placed); });
    RegionSlot& slot = placed->second;
    slot.pd = plan.pd;
    slot.data = plan.data;
    slot.iova = plan.iova;
    if (plan.access.window_bind) {
        slot.handle = add_bindable_here(*mr, slot.pd);
    }
    take_back.keep();
    slot.mr = std::move(mr);
    slot.memory = std::move(memory);
    return {.id = placed->first,
            .data = static_cast<std::byte*>(plan.data),
            .size = plan.bytes,
            .iova = plan.iova,
            .lkey = slot.mr->lkey,
            .rkey = slot.mr->rkey,
            .handle = slot.handle};
}

RegionInfo RuntimeState::add_region(HostMemory memory, void* data, std::size_t bytes, std::uint64_t iova, Access access,
                                    const std::string& device_name, PdId pd) {
    return executor_->run([&] {
        const RegionPlan plan = plan_region_here(data, bytes, iova, access, device_name, pd);
        UniqueMr mr = plan.carry_out();
        return add_region_here(plan, mr, std::move(memory));
    });
}

RegionInfo RuntimeState::allocate(std::size_t bytes, Access access, const std::string& device_name, PdId pd) {
    const int node = executor_->run([&] { return device_slot(device_name).device->numa_node(); });
    HostMemory memory = platform->allocate(bytes, node, "Context::allocate");
    void* data = memory.data();
    return add_region(std::move(memory), data, bytes, reinterpret_cast<std::uintptr_t>(data), access, device_name, pd);
}

RegionInfo RuntimeState::register_memory(void* data, std::size_t bytes, std::uint64_t iova, Access access,
                                         const std::string& device_name, PdId pd) {
    return add_region({}, data, bytes, iova, access, device_name, pd);
}

RegionInfo RuntimeState::register_dmabuf(const DmabufRange& range, std::uint64_t iova, Access access,
                                         const std::string& device_name, PdId pd) {
    return executor_->run([&] {
        const RegionPlan plan = plan_region_here(nullptr, range.bytes, iova, access, device_name, pd);
        UniqueMr mr(plan.device->register_dmabuf(plan.verbs_pd, range, iova, verbs_access(access)), {plan.device});
        return add_region_here(plan, mr, {});
    });
}

void RuntimeState::deregister(std::uint64_t id) {
    executor_->run(
        [&] {
            UseSearch search = begin_here([&] { return search_region_here(id); });
            await_here(search);
            if (const std::optional<RegionEnd> end = begin_deregistering_here(id, search)) {
                end_deregistering_here(id, end->carry_out());
            }
        },
        Executor::Patience::unlimited);
}

UseSearch RuntimeState::search_region_here(std::uint64_t id) {
    const RegionSlot& region = regions_.at(id);
    return region.mr != nullptr ? search_key_here(region.pd, region.mr->lkey, region.handle) : UseSearch();
}

UseSearch RuntimeState::search_key_here(PdId id, std::uint32_t lkey, MrHandle region) {
    const PdSlot& pd = pds_.at(id);
    UseSearch search;
    for (const auto& worker : workers_) {
        search.add(*worker, *worker->proxy,
                   [&](WorkerProxy& proxy) { return proxy.begin_finding_key(pd.device, id, lkey, region, pd.client); });
    }
    return search;
}

std::optional<RegionEnd> RuntimeState::begin_deregistering_here(std::uint64_t id, const UseSearch& search) {
    const auto found = regions_.find(id);
    RegionSlot& region = found->second;
    if (region.mr == nullptr) {
        regions_.erase(found);
        return std::nullopt;
    }
    const WorkerSlot* user = search.user() != nullptr ? search.user() : remove_bindable_here(region);
    if (user != nullptr) {
        throw Error(EBUSY,
                    fmt::format("{} is named by work requests in flight on worker \"{}\"; poll their completions first",
                                region_text(region), user->config.name));
    }
    region.ending = true;
    return RegionEnd{.region = id, .device = devices_[pds_.at(region.pd).device]->device.get(), .mr = region.mr.get()};
}

void RuntimeState::end_deregistering_here(std::uint64_t id, int error) {
    const auto found = regions_.find(id);
    RegionSlot& region = found->second;
    DeviceSlot& device = *devices_[pds_.at(region.pd).device];
    // EIO: the kernel has given up the device, and the device's regions have ended with it.
    if (error != 0 && !(error == EIO && lost_meanwhile(device))) {
        region.ending = false;
        restore_bindable_here(region, workers_.size());
        if (error == ECANCELED) {
            throw Error(error, "the end of " + region_text(region) + " was given up");
        }
        throw Error(error, fmt::format("device \"{}\" does not end {}{}", device.config.name, region_text(region),
                                       region.handle.valid() ? "; are windows bound to it?" : ""));
    }
    give_back_bindable_here(region.handle);
    (void)region.mr.release();
    regions_.erase(found);
}

}  // namespace pollcore
