// An attached process registers memory: on another thread, since what is pinned takes time.
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "attach/answering.hpp"
#include "attach/attached_client.hpp"

namespace pollcore {

// On another thread.
void AttachedClient::Registration::carry_out() noexcept {
    try {
        if (!cancelled.load(std::memory_order_relaxed)) {
            mr = plan.carry_out();
        }
    } catch (...) {
        failure = std::current_exception();
    }
    over.store(true, std::memory_order_release);
}

void AttachedClient::begin(std::uint64_t id, const wire::RegisterMemory& asked, Handed& handed) {
    require_room(regions_.size() + registrations_.size(), kSmallThingsMax, "memory regions");
    const auto registration = std::make_shared<Registration>();
    OwnRegion& own = registration->region;
    if (asked.parent == 0) {
        if (handed.failure) {
            std::rethrow_exception(handed.failure);
        }
        if (handed.memory == nullptr) {
            throw Error(EPROTO, "memory to register comes as one memfd");
        }
        own.memory = std::move(handed.memory);
        own.data = static_cast<std::byte*>(own.memory->mapping.data());
    } else {
        const auto parent = regions_.find(asked.parent);
        if (parent == regions_.end() || asked.bytes == 0 || asked.offset > parent->second.length ||
            asked.bytes > parent->second.length - asked.offset) {
            throw Error(EINVAL, "a part of a memory region that is not this process's, or not so long");
        }
        own.memory = parent->second.memory;
        own.data = parent->second.data + asked.offset;
    }
    const std::string device = device_name(asked.device);
    own.length = asked.bytes;
    own.pd = pd_for(device, asked.pd);
    registration->plan = runtime_.plan_region_here(own.data, asked.bytes, asked.iova, asked.access, device, own.pd);
    registrations_.push_back(registration);
    later<wire::RegisterMemory>(
        id,
        [this, registration](Clock::time_point) -> std::optional<wire::Registered> {
            return registration->over.load(std::memory_order_acquire) ? std::optional(conclude(*registration)) : std::nullopt;
        },
        kSeldom);
    register_next();
}

// One of a process at a time, so that those of many take turns.
void AttachedClient::register_next() {
    if (registrations_.empty() || registrations_.front()->begun) {
        return;
    }
    const std::shared_ptr<Registration>& next = registrations_.front();
    next->begun = true;
    ways_.elsewhere([next] { next->carry_out(); });
}

wire::Registered AttachedClient::conclude(Registration& registration) {
    std::erase_if(registrations_, [&](const auto& each) { return each.get() == &registration; });
    register_next();
    OwnRegion region = std::exchange(registration.region, {});
    if (registration.failure) {
        std::rethrow_exception(registration.failure);
    }
    if (registration.mr == nullptr) {
        throw Error(ESHUTDOWN, "the daemon is stopping");
    }
    const RegionInfo info = runtime_.add_region_here(registration.plan, std::move(registration.mr), {});
    regions_.emplace(info.id, std::move(region));
    return {.id = info.id, .lkey = info.lkey, .rkey = info.rkey, .handle = info.handle};
}

// Those that have not begun never do.
void AttachedClient::cancel_registrations() noexcept {
    for (const auto& registration : registrations_) {
        registration->cancelled.store(true, std::memory_order_relaxed);
        if (!registration->begun) {
            registration->region = {};
            registration->over.store(true, std::memory_order_release);
        }
    }
}

// What has come to an end for nobody any more is given back, here: who carried it out may still hold it.
bool AttachedClient::registers_nothing() noexcept {
    std::erase_if(registrations_, [](const auto& registration) {
        if (!registration->over.load(std::memory_order_acquire)) {
            return false;
        }
        registration->mr.reset();
        registration->region = {};
        return true;
    });
    return registrations_.empty();
}

void AttachedClient::runtime_stops() noexcept {
    cancel_registrations();
    while (!registers_nothing()) {
        runtime_.platform->sleep(std::chrono::milliseconds(1));
    }
}

}  // namespace pollcore
