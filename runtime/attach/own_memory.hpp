// The memory that this process registers itself: its contexts, and the regions in them.
//
// Thread safety: any thread.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "attach/own_context.hpp"
#include "session/control_side.hpp"

namespace pollcore {

class OwnMemory {
public:
    struct Key {
        PdId pd = 0;
        std::uint32_t lkey = 0;
    };

    /// `pd` is the process's default protection domain on the device, and `verbs_handle` its ibv_pd::handle.
    void add_context(const std::string& device, UniqueFd command, std::uint32_t driver_id, PdId pd,
                     std::uint32_t verbs_handle);
    [[nodiscard]] bool has(const std::string& device) const;
    /// Call this for a protection domain that the process has made on the device.
    void add_domain(const std::string& device, PdId pd, std::uint32_t verbs_handle);
    void remove_domain(PdId pd) noexcept;
    /// `pd` 0 is the device's default. Throws Error.
    [[nodiscard]] RegionInfo register_memory(const std::string& device, PdId pd, void* data, std::size_t bytes,
                                             std::uint64_t iova, const Access& access);
    /// As register_memory(), for a range of a dma-buf.
    [[nodiscard]] RegionInfo register_dmabuf(const std::string& device, PdId pd, const DmabufRange& range,
                                             std::uint64_t iova, const Access& access);
    /// The key by which work requests name the region. Nothing if the region is not one of this object.
    [[nodiscard]] std::optional<Key> key_of(std::uint64_t region) const;
    void deregister(std::uint64_t region);
    /// Ends all regions and contexts. Afterwards no device writes to the regions.
    void end() noexcept;

private:
    struct Domain {
        std::shared_ptr<OwnContext> context;
        std::uint32_t verbs_handle = 0;
    };
    struct Region {
        std::shared_ptr<OwnContext> context;
        std::uint32_t handle = 0;
        Key key;
    };
    // Ids of the daemon's regions do not have this bit.
    static constexpr std::uint64_t kOwn = std::uint64_t{1} << 63;

    /// Registers by `call`, which gets the context and the domain's ibv_pd::handle. `as` says where the region lies.
    template <class Call>
    RegionInfo register_by(const std::string& device, PdId pd, const Access& access, RegionInfo as, Call&& call);
    /// Call this with mutex_ held. Throws Error(ECONNRESET) after end().
    void require_not_ended() const;

    mutable std::mutex mutex_;
    bool ended_ = false;
    std::map<std::string, PdId> defaults_;  // the default domain of each device with a context
    std::map<PdId, Domain> domains_;
    std::map<std::uint64_t, Region> regions_;
    std::uint64_t next_ = kOwn;
};

}  // namespace pollcore
