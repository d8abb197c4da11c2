// Memory windows, and the regions that they may be bound to. A bind names both by handles, which its worker looks up
// (D24). A window is known to the one worker that it was made for, a region to all workers.
#include <algorithm>

#include <fmt/format.h>

#include "base/log.hpp"
#include "base/planted.hpp"
#include "base/undo.hpp"
#include "control/runtime_state.hpp"
#include "pollcore/memory.hpp"

namespace pollcore {

// ---- regions ----

MrHandle RuntimeState::add_bindable_here(ibv_mr& mr, std::uint32_t pd) {
    const std::optional<MrHandle> handle = region_handles_.take();
    if (!handle) {
        throw Error(ENOSPC,
                    fmt::format("all {} memory regions that windows may be bound to are in use", kBindableRegionsMax));
    }
    const BindableRegion region{.handle = *handle, .pd = pd, .mr = &mr};
    Undo take_back([&]() noexcept { region_handles_.give_back(*handle); });
    // Every worker makes room before the first one is told: a hostile process may bind to the region as soon as one
    // worker knows it, and then the region could not be taken back.
    for (const auto& worker : workers_) {
        worker->proxy->make_room(region);
    }
    for (const auto& worker : workers_) {
        worker->proxy->add_region(region);
    }
    take_back.keep();
    return *handle;
}

// Null: no worker knows the region any more. Else the worker whose binds in flight name it; all workers still know it.
WorkerSlot* RuntimeState::remove_bindable_here(const RegionSlot& region) {
    if (!region.handle.valid()) {
        return nullptr;
    }
    for (std::size_t i = 0; i < workers_.size(); ++i) {
        if (!workers_[i]->proxy->remove_region(region.handle)) {
            restore_bindable_here(region, i);
            return workers_[i].get();
        }
    }
    return nullptr;
}

void RuntimeState::restore_bindable_here(const RegionSlot& region, std::size_t workers) noexcept {
    if (!region.handle.valid()) {
        return;
    }
    for (std::size_t i = 0; i < workers; ++i) {
        workers_[i]->proxy->add_region({.handle = region.handle, .pd = region.pd, .mr = region.mr.get()});
    }
}

void RuntimeState::give_back_bindable_here(MrHandle handle) noexcept {
    if (handle.valid()) {
        region_handles_.give_back(handle);
    }
}

// ---- windows ----

MwHandle RuntimeState::create_window(std::uint32_t session, WindowType type, const std::string& device_name, PdId pd) {
    return executor_->run([&] {
        DeviceSlot& device = device_slot(device_name);
        const SessionSlot& owner = session_slot(session);
        const PdId pd_id = pd_of(device, pd);
        auto slot = std::make_unique<WindowSlot>();
        slot->device = device.index;
        slot->worker = owner.worker;
        slot->mw = UniqueMw(device.device->create_mw(pds_.at(pd_id).pd.get(), static_cast<ibv_mw_type>(type)),
                            {device.device.get()});
        const std::optional<MwHandle> handle = window_handles_.take();
        if (!handle) {
            throw Error(ENOSPC, fmt::format("all {} memory windows are in use", kMemoryWindowsMax));
        }
        slot->end = std::make_unique<WorkerWindow>(
            WorkerWindow::Options{.handle = *handle, .pd = pd_id, .client = pds_.at(pd_id).client});
        slot->end->renew(*slot->mw);
        Undo give_back([&]() noexcept { window_handles_.give_back(*handle); });
        windows_.resize(std::max<std::size_t>(windows_.size(), handle->index + std::size_t{1}));
        workers_[slot->worker]->proxy->add_window(*slot->end);
        give_back.keep();
        windows_[handle->index] = std::move(slot);
        return *handle;
    });
}

WindowSlot* RuntimeState::window_slot(MwHandle handle) noexcept {
    WindowSlot* slot = handle.index < windows_.size() ? windows_[handle.index].get() : nullptr;
    return slot != nullptr && slot->end->options().handle == handle ? slot : nullptr;
}

std::uint32_t RuntimeState::window_rkey(MwHandle handle) {
    return executor_->run([&] {
        require_running();
        return window_slot(handle)->end->rkey();
    });
}

void RuntimeState::deallocate(MwHandle handle) {
    executor_->run(
        [&] {
            UseSearch search = begin_here([&] { return search_window_here(handle); });
            await_here(search);
            end_window_here(handle, search);
        },
        Executor::Patience::unlimited);
}

UseSearch RuntimeState::search_window_here(MwHandle handle) {
    UseSearch search;
    if (running_.load()) {
        WorkerSlot& worker = *workers_[window_slot(handle)->worker];
        search.add(worker, *worker.proxy, [&](WorkerProxy& proxy) { return proxy.begin_finding_window(handle); });
    }
    return search;
}

void RuntimeState::end_window_here(MwHandle handle, const UseSearch& search) {
    if (!running_.load()) {
        windows_[handle.index].reset();  // the device's window ended with the runtime
        return;
    }
    WindowSlot* slot = window_slot(handle);
    WorkerSlot& worker = *workers_[slot->worker];
    if (search.user() != nullptr || !worker.proxy->remove_window(handle)) {
        throw Error(
            EBUSY, fmt::format(
                       "memory window {}.{} is named by binds in flight on worker \"{}\"; poll their completions first",
                       handle.index, handle.generation, worker.config.name));
    }
    const int error = slot->mw != nullptr ? devices_[slot->device]->device->destroy(slot->mw.get()) : 0;
    // A device that the kernel has let go of answers EIO; its windows have ended with it.
    if (error != 0 && !(error == EIO && lost_meanwhile(*devices_[slot->device]))) {
        worker.proxy->add_window(*slot->end);
        throw Error(error,
                    fmt::format("device \"{}\" does not end a memory window", devices_[slot->device]->config.name));
    }
    (void)slot->mw.release();
    windows_[handle.index].reset();
    window_handles_.give_back(handle);
}

// Makes windows of the queue pair anew; each keeps its handle (D25). A type 2 window must end before the queue pair
// that it is bound to is destroyed: otherwise Soft-RoCE waits for the window in vain, and then window and queue pair
// point to memory that is gone. A queue pair that is reset begins a new life, which its windows know nothing of. And a
// window whose last binds were lost with their queue pair cannot be bound again, since nobody knows its key.
void RuntimeState::renew_windows_here(const QpSlot& qp) {
    if (devices_[qp.device]->lost) {
        return;  // its windows can only be deallocated
    }
    WorkerSlot& worker = *workers_[qp.worker];
    for (const auto& slot : windows_) {
        if (slot == nullptr || slot->worker != qp.worker || slot->device != qp.device || slot->mw == nullptr) {
            continue;
        }
        // The worker stored bound_on() and lost() before it sent the answer that the control thread has received.
        const bool bound = slot->mw->type == IBV_MW_TYPE_2 && slot->end->bound_on() == bits_of(qp.handle) &&
                           !planted(Bug::window_kept);
        if (!bound && !slot->end->lost()) {
            continue;
        }
        if (!worker.proxy->remove_window(slot->end->options().handle)) {
            continue;  // binds are in flight: on another queue pair, or on this one, which is about to lose them
        }
        Device& device = *devices_[slot->device]->device;
        try {
            const ibv_mw_type type = slot->mw->type;
            slot->mw.reset();
            slot->mw = UniqueMw(device.create_mw(pds_.at(slot->end->options().pd).pd.get(), type), {&device});
            slot->end->renew(*slot->mw);
            worker.proxy->add_window(*slot->end);
        } catch (const std::exception& error) {
            log_error("a memory window is lost with queue pair {}, on which it was bound: making it anew failed: {}",
                      qp.qp_num, error.what());
        }
    }
}

}  // namespace pollcore
