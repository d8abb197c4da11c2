// Devices that were opened once more for one attached process, so that the process registers its own memory there.
#include <algorithm>

#include <fmt/format.h>

#include "base/disposal.hpp"
#include "base/log.hpp"
#include "base/undo.hpp"
#include "control/runtime_state.hpp"

namespace pollcore {
namespace {

// The kernel destroys what the process has left in the context: it unpins the process's memory, and destroys queue
// pairs that the process has made itself. This may take seconds, so no other thread waits for it.
void close_elsewhere(std::unique_ptr<Device> device) noexcept {
    if (device == nullptr) {
        return;
    }
    Device* const closing = device.release();
    if (!closing->must_stay()) {
        dispose(reinterpret_cast<DisposalOwner>(closing), [closing] { delete closing; });
    }
}

}  // namespace

std::string RuntimeState::add_client_device_here(const std::string& name, std::uint32_t client,
                                                 std::unique_ptr<Device> opened) {
    const DeviceSlot& original = device_slot(name);
    auto ended =
        std::find_if(devices_.begin(), devices_.end(), [](const auto& slot) { return slot->device == nullptr; });
    if (ended == devices_.end()) {
        devices_.push_back(std::make_unique<DeviceSlot>());
        ended = devices_.end() - 1;
    }
    DeviceSlot& device = **ended;
    device.index = static_cast<std::uint32_t>(ended - devices_.begin());
    device.number = ++device_numbers_;
    device.config = original.config;
    device.config.name = fmt::format("{} of client {}", name, client);
    device.client = client;
    device.shared_name = name;
    device.device = std::move(opened);
    device.description = device.device->describe();
    Undo take_back([&]() noexcept { remove_client_device_here(device); });
    device.connector = make_connector(*device.device);
    for (std::uint32_t i = 0; i < workers_.size(); ++i) {
        if (CompletionChannel* const channel = make_worker_objects(device, i, *workers_[i])) {
            workers_[i]->proxy->add_channel(*channel);
        }
    }
    loop_->watch(device.device->async_fd(), [this, &device] { take_async_events(device); });
    loop_->watch(device.connector->fd(), [this, &device] { take_connect_events(device); });
    take_back.keep();
    return device.config.name;
}

void RuntimeState::let_go_of_client_device_here(const std::string& name) noexcept {
    if (DeviceSlot* const device = client_device_here(name); device != nullptr && device->device != nullptr) {
        device->device->let_go();
    }
}

bool RuntimeState::is_client_device_abused_here(const std::string& name) noexcept {
    const DeviceSlot* const device = client_device_here(name);
    return device != nullptr && device->device != nullptr && device->device->abused();
}

void RuntimeState::remove_client_device_here(const std::string& name) noexcept {
    if (DeviceSlot* const device = client_device_here(name)) {
        remove_client_device_here(*device);
    }
}

bool RuntimeState::is_device_in_use(const DeviceSlot& device) const noexcept {
    const auto is_on_it = [&](const auto& slot) { return slot != nullptr && slot->device == device.index; };
    const auto is_in_its_domain = [&](const auto& region) {
        const auto pd = pds_.find(region.second.pd);
        return pd != pds_.end() && pd->second.device == device.index;
    };
    return std::any_of(qps_.begin(), qps_.end(), is_on_it) || std::any_of(srqs_.begin(), srqs_.end(), is_on_it) ||
           std::any_of(ahs_.begin(), ahs_.end(), is_on_it) || std::any_of(windows_.begin(), windows_.end(), is_on_it) ||
           std::any_of(regions_.begin(), regions_.end(), is_in_its_domain);
}

// The slot stays in its place, empty, because the index of a device must not change.
void RuntimeState::remove_client_device_here(DeviceSlot& device) noexcept {
    if (is_device_in_use(device)) {
        log_error("device \"{}\" stays open, because objects on it did not end", device.config.name);
        return;
    }
    if (device.device != nullptr) {
        device.device->let_go();
    }
    std::erase_if(pds_, [&](const auto& pd) { return pd.second.device == device.index; });
    for (const auto& worker : workers_) {
        for (std::uint32_t i = 0; i < worker->cqs.size(); ++i) {
            if (worker->cqs[i] == nullptr || worker->cqs[i]->device != device.index) {
                continue;
            }
            try {
                worker->proxy->remove_cq(i);
                worker->cqs[i].reset();
            } catch (const std::exception& error) {
                log_error("a completion queue of device \"{}\" does not end: {}", device.config.name, error.what());
                return;  // the worker polls it, so the device must stay
            }
        }
    }
    for (const auto& [worker, channel] : device.channels) {
        workers_[worker]->proxy->remove_channel(*channel);
    }
    if (device.connector != nullptr) {
        loop_->forget(device.connector->fd());
        device.connector.reset();
    }
    if (device.device != nullptr) {
        loop_->forget(device.device->async_fd());
    }
    device.channels.clear();
    device.domains.clear();
    device.polls_logged.clear();
    close_elsewhere(std::move(device.device));
    device.config = {};
    device.shared_name.clear();
    device.client = 0;
    device.lost = device.removed = false;
}

}  // namespace pollcore
