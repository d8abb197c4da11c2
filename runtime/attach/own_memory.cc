#include "attach/own_memory.hpp"

#include <cerrno>
#include <utility>

#include "pollcore/error.hpp"

namespace pollcore {

void OwnMemory::require_not_ended() const {
    if (ended_) {
        throw Error(ECONNRESET, "the daemon is gone, or has ended this attachment; its log says why");
    }
}

void OwnMemory::add_context(const std::string& device, UniqueFd command, std::uint32_t driver_id, PdId pd,
                            std::uint32_t verbs_handle) {
    auto context = std::make_shared<OwnContext>(std::move(command), driver_id);
    const std::lock_guard lock(mutex_);
    require_not_ended();
    domains_[pd] = {std::move(context), verbs_handle};
    defaults_[device] = pd;
}

bool OwnMemory::has(const std::string& device) const {
    const std::lock_guard lock(mutex_);
    return defaults_.contains(device);
}

void OwnMemory::add_domain(const std::string& device, PdId pd, std::uint32_t verbs_handle) {
    const std::lock_guard lock(mutex_);
    if (const auto own = defaults_.find(device); own != defaults_.end()) {
        require_not_ended();
        domains_[pd] = {domains_.at(own->second).context, verbs_handle};
    }
}

void OwnMemory::remove_domain(PdId pd) noexcept {
    const std::lock_guard lock(mutex_);
    domains_.erase(pd);
}

RegionInfo OwnMemory::register_memory(const std::string& device, PdId pd, void* data, std::size_t bytes,
                                      std::uint64_t iova, const Access& access) {
    if (access.window_bind) {
        throw Error(EOPNOTSUPP,
                    "windows cannot be bound to memory that a process registers itself: Context::allocate "
                    "gives memory for them");
    }
    PdId in = pd;
    Domain domain;
    {
        const std::lock_guard lock(mutex_);
        require_not_ended();
        const auto own = defaults_.find(device);
        in = pd != 0 || own == defaults_.end() ? pd : own->second;
        const auto found = domains_.find(in);
        if (found == domains_.end()) {
            throw Error(EINVAL, "the protection domain was closed, or is of another device");
        }
        domain = found->second;
    }
    const OwnContext::Region made = domain.context->register_memory(domain.verbs_handle, data, bytes, iova, access);
    const std::lock_guard lock(mutex_);
    const std::uint64_t id = next_++;
    try {
        regions_.emplace(id, Region{domain.context, made.handle, {in, made.lkey}});
    } catch (...) {
        domain.context->deregister(made.handle);
        throw;
    }
    return {.id = id,
            .data = static_cast<std::byte*>(data),
            .size = bytes,
            .iova = iova,
            .lkey = made.lkey,
            .rkey = made.rkey};
}

std::optional<OwnMemory::Key> OwnMemory::key_of(std::uint64_t region) const {
    const std::lock_guard lock(mutex_);
    const auto found = regions_.find(region);
    return found != regions_.end() ? std::optional(found->second.key) : std::nullopt;
}

void OwnMemory::deregister(std::uint64_t region) {
    std::map<std::uint64_t, Region>::node_type ended;
    {
        const std::lock_guard lock(mutex_);
        ended = regions_.extract(region);
    }
    if (ended.empty()) {
        return;
    }
    try {
        ended.mapped().context->deregister(ended.mapped().handle);
    } catch (...) {
        const std::lock_guard lock(mutex_);
        regions_.insert(std::move(ended));
        throw;
    }
}

void OwnMemory::end() noexcept {
    std::map<PdId, Domain> all;
    {
        const std::lock_guard lock(mutex_);
        all.swap(domains_);
        ended_ = true;
    }
    for (const auto& [pd, domain] : all) {
        domain.context->end();
    }
}

}  // namespace pollcore
