// A fabric: the engines of all software devices of this process that can reach each other.
//
// QP numbers are unique in a fabric: the engine's number in the upper bits, the place in its table below.
// A fabric lives as long as one of its devices or engines.
//
// Thread safety: all functions, from any thread, not under an engine's lock (they take engines' locks, one
// at a time).
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

/// A QP number's 24 bits: 10 for the engine (never 0, since QP numbers 0 and 1 are special), 14 for the place.
inline constexpr std::uint32_t kQpIndexBits = 14;
inline constexpr std::uint32_t kQpsPerEngineMax = 1u << kQpIndexBits;
inline constexpr std::uint32_t kEnginesMax = 1u << (24 - kQpIndexBits);

class Fabric {
public:
    /// The fabric of this name, made if there is none.
    [[nodiscard]] static std::shared_ptr<Fabric> join(const std::string& name);

    [[nodiscard]] const std::string& name() const noexcept { return name_; }

    /// A GID that no other device of this fabric has.
    [[nodiscard]] ibv_gid new_gid();
    /// The engine's number. Throws pollcore::Error when there are kEnginesMax.
    [[nodiscard]] std::uint32_t add(Engine& engine);
    /// Takes the engine off the fabric. Packets that others send to it are lost from now on.
    void remove(Engine& engine) noexcept;
    /// Waits until no engine acts on an old value of another engine's Doorbell::used().
    void settle() noexcept;
    /// The link from an engine to the engine of a QP, made if there is none. Null when no engine with that
    /// GID has QPs of this number: packets on such a path vanish, as on a real network.
    [[nodiscard]] std::shared_ptr<LinkPair> route(Engine& from, const ibv_gid& gid, std::uint32_t qp_num);
    /// Lets datagrams go from each engine of the device `from` to each engine of the device `to`, including engines
    /// that are made later. Called before the first send, since a send cannot wait for it.
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
