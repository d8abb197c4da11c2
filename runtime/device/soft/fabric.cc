#include "device/soft/fabric.hpp"

#include <cstring>

#include <fmt/format.h>

#include "device/soft/engine.hpp"
#include "device/soft/link.hpp"
#include "pollcore/error.hpp"

namespace pollcore::soft {

std::shared_ptr<Fabric> Fabric::join(const std::string& name) {
    static std::mutex mutex;
    static std::map<std::string, std::weak_ptr<Fabric>> fabrics;
    const std::lock_guard guard(mutex);
    std::weak_ptr<Fabric>& known = fabrics[name];
    if (auto fabric = known.lock())
        return fabric;
    std::shared_ptr<Fabric> fabric(new Fabric(name));
    known = fabric;
    return fabric;
}

ibv_gid Fabric::new_gid() {
    const std::lock_guard guard(mutex_);
    // A unique local IPv6 address (RFC 4193); the device's number stands in the last four bytes.
    ibv_gid gid{};
    gid.raw[0] = 0xfd;
    gid.raw[1] = 0x50;
    const std::uint32_t number = ++devices_;
    for (unsigned i = 0; i < 4; ++i)
        gid.raw[12 + i] = static_cast<std::uint8_t>(number >> (24 - 8 * i));
    return gid;
}

std::uint32_t Fabric::add(Engine& engine) {
    const std::lock_guard guard(mutex_);
    // Numbers go round, so that one that was given back is not met again soon.
    for (std::uint32_t tried = 1; tried < kEnginesMax; ++tried) {
        last_engine_ = last_engine_ + 1 < kEnginesMax ? last_engine_ + 1 : 1;
        if (engines_.emplace(last_engine_, &engine).second)
            return last_engine_;
    }
    throw Error(
        std::errc::not_enough_memory,
        fmt::format("cannot make a thread domain on software fabric \"{}\": it has {} already, the most that "
                    "QP numbers can tell apart; close some, or put devices on another fabric",
                    name_, kEnginesMax - 1));
}

void Fabric::remove(Engine& engine) noexcept {
    const std::lock_guard guard(mutex_);
    engines_.erase(engine.id());
    for (const auto& [id, other] : engines_) {
        const std::lock_guard engine_guard(other->lock());
        other->drop_incoming(engine.id());
    }
    engine.mark_incoming_gone();
    std::erase_if(links_, [&engine](const auto& link) {
        return link.first.first == engine.id() || link.first.second == engine.id();
    });
}

std::shared_ptr<LinkPair> Fabric::route(Engine& from, const ibv_gid& gid, std::uint32_t qp_num) {
    const std::lock_guard guard(mutex_);
    const auto found = engines_.find(qp_num >> kQpIndexBits);
    if (found == engines_.end())
        return nullptr;
    Engine& to = *found->second;
    if (std::memcmp(&to.gid(), &gid, sizeof(gid)) != 0)
        return nullptr;
    std::weak_ptr<LinkPair>& known = links_[{from.id(), to.id()}];
    if (auto link = known.lock())
        return link;
    auto link = std::make_shared<LinkPair>(from.id(), to.id());
    {
        const std::lock_guard engine_guard(to.lock());
        to.add_incoming(link);
    }
    known = link;
    return link;
}

}  // namespace pollcore::soft
