// Protection domains of the software device, and the objects in them: memory regions, windows, address handles.
#include <arpa/inet.h>

#include <algorithm>
#include <cerrno>

#include <fmt/format.h>

#include "device/soft/engine.hpp"
#include "device/soft/queues.hpp"
#include "device/soft/soft_device.hpp"

namespace pollcore {

using soft::SoftAh;
using soft::SoftMr;
using soft::SoftMw;
using soft::SoftPd;

// ---- PDs and memory ----

ibv_pd* SoftDevice::create_pd() {
    meet_fault(SoftFault::Kind::create_pd, "make a PD");
    const std::lock_guard guard(control_mutex_);
    require_working("make a protection domain");
    auto* pd = new SoftPd{};
    pd->context = &context_;
    return pd;
}

int SoftDevice::destroy(ibv_pd* pd) noexcept {
    const std::lock_guard guard(control_mutex_);
    auto* own = static_cast<SoftPd*>(pd);
    if (ended(own))
        return EIO;
    if (own->users != 0)
        return EBUSY;
    return end(std::unique_ptr<SoftPd>(own));
}

ibv_mr* SoftDevice::register_dmabuf(ibv_pd*, const DmabufRange&, std::uint64_t, int) {
    throw Error(EOPNOTSUPP, "a software device takes no dma-buf: map it, and register the mapping");
}

ibv_mr* SoftDevice::register_memory(ibv_pd* pd, void* addr, std::size_t length, std::uint64_t iova, int access) {
    const auto refuse = [&](int error, std::string_view why) {
        return Error(error, fmt::format("cannot register {} bytes by the address {:#x} (access {:#x}) on {}: {}",
                                        length, iova, static_cast<unsigned>(access), describe(), why));
    };
    constexpr int kRemoteChange = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;
    constexpr int kKnown = IBV_ACCESS_LOCAL_WRITE | kRemoteChange | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_MW_BIND |
                           IBV_ACCESS_RELAXED_ORDERING;
    if ((access & ~kKnown) != 0) {
        throw refuse(EOPNOTSUPP,
                     "it takes local write, remote read, write and atomic, window bind, and relaxed ordering only");
    }
    if ((access & kRemoteChange) != 0 && (access & IBV_ACCESS_LOCAL_WRITE) == 0) {
        throw refuse(EINVAL, "remote write and remote atomic need local write too; add IBV_ACCESS_LOCAL_WRITE");
    }
    if (addr == nullptr || length == 0)
        throw refuse(EINVAL, "there is no memory in it");
    if (length > options_.limits.memory_region_max) {
        throw refuse(EINVAL,
                     fmt::format("the device takes regions of at most {} bytes", options_.limits.memory_region_max));
    }
    if (reinterpret_cast<std::uint64_t>(addr) + length < length || iova + length < length) {
        throw refuse(EINVAL, "it ends behind the end of the address space");
    }
    meet_fault(SoftFault::Kind::register_memory, "register memory");
    const std::lock_guard guard(control_mutex_);
    require_working("register memory");
    const std::uint32_t key = core_->memory.add({pd, static_cast<std::byte*>(addr), iova, length, access});
    if (key == 0) {
        throw refuse(ENOMEM, fmt::format("all {} memory regions of the device are taken; deregister some, or raise "
                                         "memory_regions_max",
                                         options_.memory_regions_max));
    }
    auto* mr = new SoftMr{};
    mr->context = &context_;
    mr->pd = pd;
    mr->addr = addr;
    mr->length = length;
    mr->handle = key;
    mr->lkey = mr->rkey = key;
    ++static_cast<SoftPd*>(pd)->users;
    return mr;
}

int SoftDevice::destroy(ibv_mr* mr) noexcept {
    const std::lock_guard guard(control_mutex_);
    if (ended(static_cast<SoftMr*>(mr)))
        return EIO;
    if (core_->memory.windows_of(mr->lkey) != 0)
        return EBUSY;
    core_->memory.remove(mr->lkey);
    settle_engines();
    if (core_->memory.windows_of(mr->lkey) != 0) {  // a window was bound just now
        core_->memory.restore(mr->lkey);
        return EBUSY;
    }
    core_->memory.retire(mr->lkey);
    --static_cast<SoftPd*>(mr->pd)->users;
    return end(std::unique_ptr<SoftMr>(static_cast<SoftMr*>(mr)));
}

// An engine looks up a key and uses the memory under its lock, which it does not release in between. So after this
// thread has held each engine's lock once, no engine uses the removed key any more.
void SoftDevice::settle_engines() noexcept {
    for (const auto& known : engines_) {
        if (const auto engine = known.lock()) {
            engine->lock().lock();
            engine->lock().unlock();
        }
    }
}

ibv_mw* SoftDevice::create_mw(ibv_pd* pd, ibv_mw_type type) {
    const DeviceLimits& limits = options_.limits;
    if (!(type == IBV_MW_TYPE_1 ? limits.memory_windows_1 : type == IBV_MW_TYPE_2 && limits.memory_windows_2)) {
        throw Error(std::errc::operation_not_supported,
                    fmt::format("cannot make a memory window of type {} on {}: it has none of these",
                                static_cast<int>(type), describe()));
    }
    const std::lock_guard guard(control_mutex_);
    require_working("make a memory window");
    require_within("memory windows", windows_.size() + 1, limits.memory_windows_max);
    auto window = std::make_unique<SoftMw>(pd, type);
    windows_.reserve(windows_.size() + 1);
    const std::uint32_t key = core_->memory.add(window->window);
    if (key == 0) {
        throw Error(std::errc::not_enough_memory,
                    fmt::format("cannot make a memory window on {}: all {} places for regions and windows are taken; "
                                "deregister some, or raise memory_regions_max",
                                describe(), options_.memory_regions_max));
    }
    window->rkey = window->handle = key;
    windows_.push_back(window.get());
    ++static_cast<SoftPd*>(pd)->users;
    return window.release();
}

int SoftDevice::destroy(ibv_mw* window) noexcept {
    const std::lock_guard guard(control_mutex_);
    auto* own = static_cast<SoftMw*>(window);
    if (ended(own))
        return EIO;
    core_->memory.remove(own->handle);
    settle_engines();
    core_->memory.unbind(own->window);
    core_->memory.retire(own->handle);
    std::erase(windows_, own);
    --static_cast<SoftPd*>(own->pd)->users;
    return end(std::unique_ptr<SoftMw>(own));
}

// ---- Address handles ----

ibv_ah* SoftDevice::create_ah(ibv_pd* pd, ibv_ah_attr& attr) {
    const auto refuse = [&](std::string_view why) {
        return Error(std::errc::invalid_argument,
                     fmt::format("cannot make an address handle on {}: {}", describe(), why));
    };
    if (attr.is_global == 0)
        throw refuse("it has no GRH; set is_global and grh.dgid");
    if (attr.port_num != port())
        throw refuse(fmt::format("port_num is {}, the device has port {}", attr.port_num, port()));
    if (attr.grh.sgid_index != 0)
        throw refuse(fmt::format("grh.sgid_index is {}, the device has GID 0 only", attr.grh.sgid_index));
    auto ah = std::make_unique<SoftAh>();
    ah->context = &context_;
    ah->pd = pd;
    ah->attr = attr;
    const std::lock_guard guard(control_mutex_);
    require_working("make an address handle");
    fabric_->open_path(core_->gid, attr.grh.dgid);
    ++static_cast<SoftPd*>(pd)->users;
    return ah.release();
}

ibv_ah_attr SoftDevice::way_back(ibv_wc& wc, ibv_grh& grh) {
    if ((wc.wc_flags & IBV_WC_GRH) == 0) {
        throw Error(std::errc::invalid_argument,
                    fmt::format("cannot answer a message on {} that brought no GRH", describe()));
    }
    const std::uint32_t word = ntohl(grh.version_tclass_flow);
    ibv_ah_attr attr{};
    attr.is_global = 1;
    attr.port_num = port();
    attr.sl = wc.sl;
    attr.grh.dgid = grh.sgid;
    attr.grh.flow_label = word & 0xfffff;
    attr.grh.traffic_class = static_cast<std::uint8_t>(word >> 20);
    attr.grh.hop_limit = 0xff;
    return attr;
}

int SoftDevice::destroy(ibv_ah* ah) noexcept {
    const std::lock_guard guard(control_mutex_);
    auto* own = static_cast<SoftAh*>(ah);
    if (ended(own))
        return EIO;
    --static_cast<SoftPd*>(ah->pd)->users;
    return end(std::unique_ptr<SoftAh>(own));
}

}  // namespace pollcore
