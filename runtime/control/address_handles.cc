// Address handles. The caller's thread makes them, because that may block (H15). Then the control thread tells every
// worker (D40).
#include <cstring>

#include <fmt/format.h>

#include "base/log.hpp"
#include "base/planted.hpp"
#include "base/undo.hpp"
#include "connect/gid.hpp"
#include "control/runtime_state.hpp"
#include "pollcore/address_handle.hpp"

namespace pollcore {

ibv_ah_attr RuntimeState::address_here(DeviceSlot& device, const QpInfo& peer, const PathAttributes& path) {
    const GidEntry gid = choose_gid(*device.device, device.config.gid);
    return to_address(peer, path, device.device->port(), static_cast<std::uint8_t>(gid.index));
}

UniqueAh AhPlan::carry_out() const {
    ibv_ah_attr to = address;
    return {device->create_ah(verbs_pd, to), {device}};
}

void AhPlan::find_neighbour() const {
    ibv_ah_attr to = address;
    device->find_neighbour(verbs_pd, to);
}

template <class Plan>
AhHandle RuntimeState::create_ah_by(const Plan& plan_here) {
    const OutsideCall outside(*this);
    const AhPlan plan = executor_->run(plan_here);
    UniqueAh ah = plan.carry_out();
    return executor_->run([&] { return add_ah_here(plan, std::move(ah)); });
}

AhHandle RuntimeState::create_ah(const QpInfo& peer, const PathAttributes& path, const std::string& device_name,
                                 PdId pd) {
    return create_ah_by([&] { return plan_ah_here(peer, path, device_name, pd); });
}

AhHandle RuntimeState::create_ah(const AddressAttributes& address, const std::string& device_name, PdId pd) {
    return create_ah_by([&] { return plan_ah_here(address, device_name, pd); });
}

AhHandle RuntimeState::create_ah(const WideCompletion& received, std::span<const std::byte, kGrhBytes> begins,
                                 const std::string& device_name, PdId pd) {
    return create_ah_by([&] { return plan_ah_here(received, begins, device_name, pd); });
}

AhPlan RuntimeState::plan_ah_here(const QpInfo& peer, const PathAttributes& path, const std::string& device_name,
                                  PdId pd) {
    DeviceSlot& device = device_slot(device_name);
    return plan_ah_here(device, pd, address_here(device, peer, path));
}

AhPlan RuntimeState::plan_ah_here(const AddressAttributes& address, const std::string& device_name, PdId pd) {
    DeviceSlot& device = device_slot(device_name);
    require_port(address.port_num, *device.device);
    return plan_ah_here(device, pd, to_verbs(address));
}

AhPlan RuntimeState::plan_ah_here(const WideCompletion& received, std::span<const std::byte, kGrhBytes> begins,
                                  const std::string& device_name, PdId pd) {
    ibv_wc wc{};
    wc.opcode = IBV_WC_RECV;
    wc.byte_len = received.byte_len;
    wc.src_qp = received.src_qp;
    wc.slid = received.slid;
    wc.sl = received.sl;
    wc.pkey_index = received.pkey_index;
    wc.dlid_path_bits = received.dlid_path_bits;
    wc.wc_flags = (received.flags & kWithGrh) != 0 ? IBV_WC_GRH : 0;
    ibv_grh grh{};
    static_assert(sizeof(grh) == kGrhBytes);
    std::memcpy(&grh, begins.data(), sizeof(grh));
    DeviceSlot& device = device_slot(device_name);
    return plan_ah_here(device, pd, device.device->way_back(wc, grh));
}

void RuntimeState::require_port(std::uint8_t asked, const Device& device) {
    if (asked != device.port()) {
        throw Error(EINVAL, fmt::format("the port is {}, and the configuration has port {} of {}", asked, device.port(),
                                        device.describe()));
    }
}

AhPlan RuntimeState::plan_ah_here(DeviceSlot& device, PdId pd, const ibv_ah_attr& address) {
    const PdId pd_id = pd_of(device, pd);
    return {.device = device.device.get(),
            .device_index = device.index,
            .pd = pd_id,
            .verbs_pd = pds_.at(pd_id).pd.get(),
            .address = address};
}

AhHandle RuntimeState::add_ah_here(const AhPlan& plan, UniqueAh ah) {
    const auto free = std::find(ahs_.begin(), ahs_.end(), nullptr);
    const auto index = static_cast<std::size_t>(free - ahs_.begin());
    if (index >= kAhsMax) {
        throw Error(ENOSPC, fmt::format("all {} address handles are in use", kAhsMax));
    }
    auto slot = std::make_unique<AhSlot>();
    slot->device = plan.device_index;
    slot->ah = std::move(ah);
    if (free == ahs_.end()) {
        ah_generations_.resize(index + 1);
        ahs_.emplace_back();
    }
    const auto next = static_cast<std::uint16_t>(ah_generations_[index] + 1);
    ah_generations_[index] = next == 0 ? std::uint16_t{1} : next;
    slot->end = {.handle = {static_cast<std::uint16_t>(index), ah_generations_[index]},
                 .pd = plan.pd,
                 .client = pds_.at(plan.pd).client,
                 .ah = slot->ah.get()};
    // First every worker makes room, so that no later worker can fail: a hostile process may use the address handle as
    // soon as one worker knows it, and then the handle could not be taken back (D29).
    for (const auto& worker : workers_) {
        worker->proxy->make_room(slot->end);
    }
    for (const auto& worker : workers_) {
        worker->proxy->add_ah(slot->end);
    }
    ahs_[index] = std::move(slot);
    return ahs_[index]->end.handle;
}

// A worker may take a send after a search has found nothing, and before the handle is removed. So, when new sends
// cannot use the handle any more, the workers search their work in flight once more (D40).
void RuntimeState::destroy_ah(AhHandle handle) {
    executor_->run(
        [&] {
            UseSearch search = begin_here([&] { return search_ah_here(handle); });
            await_here(search);
            UseSearch removal = begin_here([&] { return begin_removing_ah_here(handle, search); });
            Undo restore([&]() noexcept { restore_ah_here(handle); });
            await_here(removal);
            restore.keep();  // if end_ah_here() fails, it restores the handle itself
            end_ah_here(handle, removal);
        },
        Executor::Patience::unlimited);
}

AhSlot* RuntimeState::find_ah(AhHandle handle) noexcept {
    AhSlot* slot = handle.index < ahs_.size() ? ahs_[handle.index].get() : nullptr;
    return slot != nullptr && slot->end.handle == handle ? slot : nullptr;
}

UseSearch RuntimeState::search_ah_here(AhHandle handle) {
    UseSearch search;
    if (const AhSlot* slot = find_ah(handle); slot != nullptr) {
        for (const auto& worker : workers_) {
            search.add(*worker, *worker->proxy, [&](WorkerProxy& proxy) { return proxy.begin_finding_ah(slot->end); });
        }
    }
    return search;
}

UseSearch RuntimeState::begin_removing_ah_here(AhHandle handle, const UseSearch& search) {
    require_unused(handle, search);
    UseSearch removal;
    if (const AhSlot* slot = find_ah(handle); slot != nullptr) {
        try {
            for (const auto& worker : workers_) {
                removal.add(*worker, *worker->proxy,
                            [&](WorkerProxy& proxy) { return proxy.begin_removing_ah(slot->end); });
            }
        } catch (...) {
            restore_ah_here(handle);
            throw;
        }
    }
    return removal;
}

void RuntimeState::end_ah_here(AhHandle handle, const UseSearch& removal) {
    AhSlot* slot = find_ah(handle);
    if (slot == nullptr) {
        return;  // the address handle has ended with the runtime
    }
    try {
        require_unused(handle, removal);
        const int error = devices_[slot->device]->device->destroy(slot->ah.get());
        // EIO: the kernel has given up the device, and the device's address handles have ended with it.
        if (error != 0 && !(error == EIO && lost_meanwhile(*devices_[slot->device]))) {
            throw Error(error, fmt::format("device \"{}\" does not end an address handle",
                                           devices_[slot->device]->config.name));
        }
    } catch (...) {
        restore_ah_here(handle);
        throw;
    }
    (void)slot->ah.release();
    ahs_[handle.index].reset();
}

void RuntimeState::end_unused_ah_here(AhHandle handle) {
    if (const AhSlot* slot = find_ah(handle); slot != nullptr) {
        for (const auto& worker : workers_) {
            worker->proxy->forget(slot->end);
        }
        end_ah_here(handle, {});
    }
}

void RuntimeState::restore_ah_here(AhHandle handle) noexcept {
    if (const AhSlot* slot = find_ah(handle); slot != nullptr) {
        for (const auto& worker : workers_) {
            worker->proxy->add_ah(slot->end);
        }
    }
}

void RuntimeState::require_unused(AhHandle handle, const UseSearch& search) {
    if (search.user() != nullptr && !planted(Bug::ended_early)) {
        throw Error(
            EBUSY,
            fmt::format(
                "address handle {}.{} is named by sends in flight on worker \"{}\"; poll their completions first",
                handle.index, handle.generation, search.user()->config.name));
    }
}

}  // namespace pollcore
