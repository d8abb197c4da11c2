#include "device/soft/fabric.hpp"

#include <algorithm>
#include <bit>
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
    // A unique local IPv6 address (RFC 4193). The last four bytes are the device's number.
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
    // Numbers are given out in turn, so that the number of a removed engine is not used again soon.
    for (std::uint32_t tried = 1; tried < kEnginesMax; ++tried) {
        last_engine_ = last_engine_ + 1 < kEnginesMax ? last_engine_ + 1 : 1;
        if (!engines_.emplace(last_engine_, &engine).second)
            continue;
        for (const Path& path : paths_) {
            if (path.first == bytes(engine.gid()) || path.second == bytes(engine.gid()))
                open_path(path);
        }
        return last_engine_;
    }
    throw Error(std::errc::not_enough_memory,
                fmt::format("cannot make a thread domain on software fabric \"{}\": it has {} already, the most that "
                            "QP numbers can tell apart; close some, or put devices on another fabric",
                            name_, kEnginesMax - 1));
}

void Fabric::remove(Engine& engine) noexcept {
    const std::lock_guard guard(mutex_);
    const auto found = engines_.find(engine.id());
    if (found == engines_.end() || found->second != &engine)
        return;  // the engine was removed when it failed; another engine may have its number by now
    engines_.erase(found);
    for (const auto& [id, other] : engines_) {
        const std::lock_guard engine_guard(other->lock());
        other->drop_incoming(engine.id());
        other->drop_outgoing(engine.id());
    }
    const Gid gid = bytes(engine.gid());
    // No GID is given twice, so the paths of a device without engines are not needed any more.
    if (std::none_of(engines_.begin(), engines_.end(),
                     [&](const auto& other) { return bytes(other.second->gid()) == gid; }))
        std::erase_if(paths_, [&](const Path& path) { return path.first == gid || path.second == gid; });
    engine.mark_incoming_gone();
    std::erase_if(links_, [&engine](const auto& link) {
        return link.first.first == engine.id() || link.first.second == engine.id();
    });
}

void Fabric::settle() noexcept {
    const std::lock_guard guard(mutex_);
    for (const auto& [id, engine] : engines_)
        const std::lock_guard engine_guard(engine->lock());
}

std::shared_ptr<LinkPair> Fabric::route(Engine& from, const ibv_gid& gid, std::uint32_t qp_num) {
    const std::lock_guard guard(mutex_);
    const auto found = engines_.find(qp_num >> kQpIndexBits);
    if (found == engines_.end())
        return nullptr;
    Engine& to = *found->second;
    if (std::memcmp(&to.gid(), &gid, sizeof(gid)) != 0)
        return nullptr;
    return link(from.id(), to.id(), to);
}

std::shared_ptr<LinkPair> Fabric::link(std::uint32_t from, std::uint32_t to, Engine& receiver) {
    std::weak_ptr<LinkPair>& known = links_[{from, to}];
    if (auto link = known.lock())
        return link;
    auto link = std::make_shared<LinkPair>(from, to, receiver.doorbell());
    {
        const std::lock_guard engine_guard(receiver.lock());
        receiver.add_incoming(link);
    }
    known = link;
    return link;
}

Fabric::Gid Fabric::bytes(const ibv_gid& gid) noexcept {
    return std::bit_cast<Gid>(gid);
}

void Fabric::open_path(const ibv_gid& from, const ibv_gid& to) {
    const std::lock_guard guard(mutex_);
    const Path path{bytes(from), bytes(to)};
    if (paths_.insert(path).second)
        open_path(path);
}

void Fabric::open_path(const Path& path) {
    for (const auto& [from, sender] : engines_) {
        if (bytes(sender->gid()) != path.first)
            continue;
        for (const auto& [to, receiver] : engines_) {
            if (bytes(receiver->gid()) != path.second)
                continue;
            auto way = link(from, to, *receiver);
            const std::lock_guard engine_guard(sender->lock());
            sender->add_outgoing(std::move(way));
        }
    }
}

}  // namespace pollcore::soft
