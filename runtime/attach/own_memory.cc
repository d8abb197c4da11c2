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

template <class Call>
RegionInfo OwnMemory::register_by(const std::string& device, PdId pd, const Access& access, RegionInfo as,
                                  Call&& call) {
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
    const OwnContext::Region made = call(*domain.context, domain.verbs_handle);
    const std::lock_guard lock(mutex_);
    as.id = next_++;
    as.lkey = made.lkey;
    as.rkey = made.rkey;
    try {
        regions_.emplace(as.id, Region{domain.context, made.handle, {in, made.lkey}});
    } catch (...) {
        domain.context->deregister(made.handle);
        throw;
    }
    return as;
}

RegionInfo OwnMemory::register_memory(const std::string& device, PdId pd, void* data, std::size_t bytes,
                                      std::uint64_t iova, const Access& access) {
    return register_by(device, pd, access, {.data = static_cast<std::byte*>(data), .size = bytes, .iova = iova},
                       [&](OwnContext& context, std::uint32_t verbs_pd) {
                           return context.register_memory(verbs_pd, data, bytes, iova, access);
                       });
}

RegionInfo OwnMemory::register_dmabuf(const std::string& device, PdId pd, const DmabufRange& range, std::uint64_t iova,
                                      const Access& access) {
    return register_by(device, pd, access, {.size = range.bytes, .iova = iova},
                       [&](OwnContext& context, std::uint32_t verbs_pd) {
                           return context.register_dmabuf(verbs_pd, range, iova, access);
                       });
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
