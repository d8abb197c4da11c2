// The templates by which AttachedClient reads requests and answers them.
#pragma once

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <type_traits>
#include <vector>

#include <fmt/format.h>

#include "attach/attached_client.hpp"
#include "attach/told_error.hpp"
#include "base/log.hpp"

namespace pollcore {

// The largest number of connection requests that one process may hold unanswered.
inline constexpr std::size_t kRequestsInHandMax = 64;

inline void require_room(std::size_t things, std::size_t most, const char* what) {
    if (things >= most) {
        throw Error(EDQUOT, fmt::format("this process has {} {}, as many as it may", things, what));
    }
}

template <class Things, class Thing>
void require_own(const Things& things, const Thing& thing, const char* what) {
    if (!things.contains(thing)) {
        throw Error(EINVAL, fmt::format("the {} was closed, or is not this process's", what));
    }
}

inline wire::PrivateData packed(const std::vector<std::byte>& bytes) noexcept {
    wire::PrivateData data;
    data.size = static_cast<std::uint32_t>(std::min(bytes.size(), data.bytes.size()));
    std::copy_n(bytes.begin(), data.size, data.bytes.begin());
    return data;
}

inline std::vector<std::byte> unpacked(const wire::PrivateData& data) {
    if (data.size > data.bytes.size()) {
        throw Error(EMSGSIZE, "private data is longer than a message has room for");
    }
    return {data.bytes.begin(), data.bytes.begin() + data.size};
}

// Whether the byte of `value` is 0 or 1. Another process has written this byte, and any other byte must not be read as
// a bool.
inline bool is_bool(const bool& value) noexcept {
    unsigned char byte = 0;
    std::memcpy(&byte, &value, 1);
    return byte <= 1;
}
inline bool are_bools(const auto&) noexcept {
    return true;
}
inline bool are_bools(const wire::CreateQp& asked) noexcept {
    const RemoteAccess& access = asked.spec.remote_access;
    return is_bool(access.read) && is_bool(access.write) && is_bool(access.atomic) &&
           is_bool(asked.spec.separate_cqs) && is_bool(asked.spec.coalesce_signals) && is_bool(asked.spec.by_hand);
}
inline bool are_bools(const wire::CreatePool& asked) noexcept {
    return is_bool(asked.spec.ring);
}
inline bool are_bools(const wire::RegisterMemory& asked) noexcept {
    const Access& access = asked.access;
    return is_bool(access.local_write) && is_bool(access.remote_read) && is_bool(access.remote_write) &&
           is_bool(access.remote_atomic) && is_bool(access.window_bind) && is_bool(access.relaxed_ordering);
}

// Returns true if a worker has no room for another command at the moment. The caller then tries again later.
inline bool is_for_later(const std::exception& error) noexcept {
    return dynamic_cast<const NoRoomForCommand*>(&error) != nullptr;
}

// Runs `step`, and logs its exception, because other objects must end even if one object cannot end.
template <class F>
void AttachedClient::attempt(const char* what, F&& step) noexcept {
    try {
        step();
    } catch (const std::exception& error) {
        log_error("client {}: {} does not end: {}", number_, what, error.what());
    }
}

template <class Body>
ReplyNode AttachedClient::node_for() {
    ReplyNode node(1);
    node.front().bytes.resize(sizeof(wire::Answer<typename Body::Answered>));
    return node;
}

template <class Body>
void AttachedClient::reply(ReplyNode&& node, std::uint64_t id, const typename Body::Answered& body,
                           std::vector<UniqueFd> descriptors) noexcept {
    using Answered = typename Body::Answered;
    // Padding between members would send leftover bytes of the daemon's memory to the process.
    static_assert(std::has_unique_object_representations_v<Answered> || std::is_same_v<Answered, QpInfo>);
    const wire::Answer<Answered> answered{{.kind = Body::kKind, .id = id}, {}, body};
    static_assert(sizeof(answered) == sizeof(wire::Header) + sizeof(wire::Outcome) + sizeof(Answered));
    std::memcpy(node.front().bytes.data(), &answered, sizeof(answered));
    node.front().descriptors = std::move(descriptors);
    ways_.send(std::move(node));
}

template <class Body>
void AttachedClient::refuse(ReplyNode&& node, std::uint64_t id, const std::exception& why) noexcept {
    const wire::Answer<typename Body::Answered> answered{{.kind = Body::kKind, .id = id}, refusal(why), {}};
    std::memcpy(node.front().bytes.data(), &answered, sizeof(answered));
    ways_.send(std::move(node));
}

template <class Body>
void AttachedClient::later(std::uint64_t id,
                           std::function<std::optional<typename Body::Answered>(Clock::time_point now)> turn,
                           std::chrono::milliseconds within) {
    const Clock::time_point next = runtime_.platform->now() + within;
    const auto node = std::make_shared<ReplyNode>(node_for<Body>());
    later_.push_back({.over =
                          [this, id, node, turn = std::move(turn)](Clock::time_point now) {
                              try {
                                  const std::optional<typename Body::Answered> answered = turn(now);
                                  if (answered) {
                                      reply<Body>(std::move(*node), id, *answered);
                                  }
                                  return answered.has_value();
                              } catch (const std::exception& error) {
                                  refuse<Body>(std::move(*node), id, error);
                                  return true;
                              }
                          },
                      .next = next});
}

template <class Body>
bool AttachedClient::answer(const wire::Packet& packet, Handed& handed) {
    wire::Request<Body> request;
    if (!packet.read(request) || !are_bools(request.body)) {
        return false;
    }
    const std::uint64_t id = request.header.id;
    ReplyNode node = node_for<Body>();
    try {
        if (packet.descriptors_lost) {
            throw Error(EMFILE, "the daemon has no descriptors left; raise its limit (LimitNOFILE)");
        }
        if constexpr (requires { begin(id, request.body); }) {
            begin(id, request.body);
        } else if constexpr (requires { begin(id, request.body, handed); }) {
            begin(id, request.body, handed);
        } else {
            std::vector<UniqueFd> back;
            if constexpr (requires { carry_out(request.body, handed, back); }) {
                const auto answered = carry_out(request.body, handed, back);
                reply<Body>(std::move(node), id, answered, std::move(back));
            } else if constexpr (requires { carry_out(request.body, back); }) {
                const auto answered = carry_out(request.body, back);
                reply<Body>(std::move(node), id, answered, std::move(back));
            } else {
                const auto answered = carry_out(request.body);
                reply<Body>(std::move(node), id, answered);
            }
        }
    } catch (const std::exception& error) {
        // Gives the memory back before the process learns of the refusal, because the process's next request may need
        // these bytes of its limit.
        handed = {};
        refuse<Body>(std::move(node), id, error);
    }
    return true;
}

}  // namespace pollcore
