// Memory windows, and the regions to which they may be bound. A bind names the window and the region by handles, which
// the worker looks up (D24). Only the worker for which a window was made knows the window. All workers know a region.
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
    // First every worker makes room, so that no later worker can fail: a hostile process may bind to the region as soon
    // as one worker knows it, and then the region could not be taken back.
    for (const auto& worker : workers_) {
        worker->proxy->make_room(region);
    }
    for (const auto& worker : workers_) {
        worker->proxy->add_region(region);
    }
    take_back.keep();
    return *handle;
}

// Removes the region from all workers, and returns null. If a worker has binds in flight to the region, returns that
// worker, and all workers still know the region.
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
        windows_[handle.index].reset();  // the device's window has ended with the runtime
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
    // EIO: the kernel has given up the device, and the device's windows have ended with it.
    if (error != 0 && !(error == EIO && lost_meanwhile(*devices_[slot->device]))) {
        worker.proxy->add_window(*slot->end);
        throw Error(error,
                    fmt::format("device \"{}\" does not end a memory window", devices_[slot->device]->config.name));
    }
    (void)slot->mw.release();
    windows_[handle.index].reset();
    window_handles_.give_back(handle);
}

// Replaces windows of the queue pair by new ones with the same handles (D25). There are three reasons. First, a type 2
// window must end before the queue pair to which it is bound is destroyed. Otherwise Soft-RoCE waits for the window in
// vain, and then window and queue pair point to freed memory. Second, after a reset the queue pair has a new handle,
// but its windows would still name the old one. Third, if a window's last binds were lost with their queue pair, nobody
// knows the window's key, so the window cannot be bound again.
void RuntimeState::renew_windows_here(const QpSlot& qp) {
    if (devices_[qp.device]->lost) {
        return;  // a lost device's windows can only be deallocated
    }
    WorkerSlot& worker = *workers_[qp.worker];
    for (const auto& slot : windows_) {
        if (slot == nullptr || slot->worker != qp.worker || slot->device != qp.device || slot->mw == nullptr) {
            continue;
        }
        // The worker stored the values of bound_on() and lost() before it sent an answer that the control thread has
        // received, so they can be read here.
        const bool bound = slot->mw->type == IBV_MW_TYPE_2 && slot->end->bound_on() == bits_of(qp.handle) &&
                           !planted(Bug::window_kept);
        if (!bound && !slot->end->lost()) {
            continue;
        }
        if (!worker.proxy->remove_window(slot->end->options().handle)) {
            continue;  // binds of the window are in flight: on another queue pair, or on this one, which will lose them
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
                      qp.called(), error.what());
        }
    }
}

}  // namespace pollcore
