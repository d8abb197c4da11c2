// A fabric: the engines of all software devices of this process that can reach each other.
//
// QP numbers are unique in a fabric: the upper bits are the engine's number, the lower bits the QP's place in that
// engine's table. A fabric lives as long as any of its devices or engines.
//
// Thread safety: any thread may call all functions, but not under an engine's lock: they take engines' locks, one at a
// time.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>

#include <infiniband/verbs.h>

namespace pollcore::soft {

class Engine;
struct LinkPair;

/// A QP number has 24 bits: 10 for the engine's number (never 0, because QP numbers 0 and 1 are special), and 14 for
/// the place in the engine's table.
inline constexpr std::uint32_t kQpIndexBits = 14;
inline constexpr std::uint32_t kQpsPerEngineMax = 1u << kQpIndexBits;
inline constexpr std::uint32_t kEnginesMax = 1u << (24 - kQpIndexBits);

class Fabric {
public:
    /// Returns the fabric of this name. Makes the fabric if it does not exist.
    [[nodiscard]] static std::shared_ptr<Fabric> join(const std::string& name);

    [[nodiscard]] const std::string& name() const noexcept { return name_; }

    /// A GID that no other device of this fabric has.
    [[nodiscard]] ibv_gid new_gid();
    /// Adds the engine, and returns its number. Throws pollcore::Error when all numbers are in use.
    [[nodiscard]] std::uint32_t add(Engine& engine);
    /// Takes the engine off the fabric. From now on packets that other engines send to it are lost.
    void remove(Engine& engine) noexcept;
    /// Waits until no engine acts on an old value of another engine's Doorbell::used().
    void settle() noexcept;
    /// Returns the links from the engine `from` to the engine of QP `qp_num`. Makes them if there are none. Returns
    /// null if no engine of a device with this GID has QPs of this number: packets to such a QP vanish, as on a real
    /// network.
    [[nodiscard]] std::shared_ptr<LinkPair> route(Engine& from, const ibv_gid& gid, std::uint32_t qp_num);
    /// Lets datagrams go from each engine of the device with GID `from` to each engine of the device with GID `to`,
    /// including engines that are made later. Must be called before the first send, because a send cannot wait for the
    /// links.
    void open_path(const ibv_gid& from, const ibv_gid& to);

private:
    using Gid = std::array<std::uint8_t, 16>;
    using Path = std::pair<Gid, Gid>;  ///< from, to

    explicit Fabric(std::string name) : name_(std::move(name)) {}

    [[nodiscard]] static Gid bytes(const ibv_gid& gid) noexcept;
    [[nodiscard]] std::shared_ptr<LinkPair> link(std::uint32_t from, std::uint32_t to, Engine& receiver);
    void open_path(const Path& path);

    const std::string name_;
    std::mutex mutex_;
    std::uint32_t devices_ = 0;
    std::uint32_t last_engine_ = 0;
    std::map<std::uint32_t, Engine*> engines_;
    std::map<std::pair<std::uint32_t, std::uint32_t>, std::weak_ptr<LinkPair>> links_;
    std::set<Path> paths_;
};

}  // namespace pollcore::soft
