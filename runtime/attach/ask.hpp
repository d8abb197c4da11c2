// The templates by which AttachedState sends a request and waits for the answer.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstring>

#include "attach/attached_state.hpp"
#include "base/log.hpp"

namespace pollcore {

template <class Body>
typename Body::Answered AttachedState::ask(const Body& body, std::span<const int> descriptors,
                                           std::vector<UniqueFd>* back) {
    // A request has no padding at its end. Otherwise every other program that implements the protocol would have to
    // send the padding, too.
    static_assert(wire::Plain<Body> && sizeof(wire::Request<Body>) == sizeof(wire::Header) + sizeof(Body));
    const std::uint64_t id = next_id();
    const wire::Request<Body> request{{.kind = Body::kKind, .id = id}, body};
    constexpr std::chrono::milliseconds kLongest = std::chrono::hours(24);  // keeps the sum within the clock's range
    auto within =
        std::min(answer_within_, kLongest) + std::min(std::chrono::milliseconds(attached_.drain_ms), kLongest);
    if constexpr (requires { body.timeout_ms; }) {
        within += std::chrono::milliseconds(body.timeout_ms);  // the daemon may wait this long for a peer
    }
    wire::Packet packet = exchange(id, std::as_bytes(std::span(&request, 1)), descriptors, within);
    wire::Answer<typename Body::Answered> answer;
    if (packet.header().magic != wire::kMagic || packet.header().version != wire::kVersion || !packet.read(answer)) {
        throw Error(EPROTO, "the daemon's answer does not fit the request: daemon and library must have one version");
    }
    if (answer.outcome.error != 0) {
        throw Error(answer.outcome.error, answer.outcome.text.string());
    }
    if (packet.descriptors_lost) {
        if constexpr (std::is_same_v<Body, wire::OpenSession>) {
            tell(wire::CloseSession{.id = answer.body.id});  // without the descriptors, neither side can wake the other
        }
        throw Error(EMFILE, "the daemon has answered, and this process has no descriptors left for what came along");
    }
    if (back != nullptr) {
        *back = std::move(packet.descriptors);
    }
    return answer.body;
}

template <class Body>
void AttachedState::tell(const Body& body) noexcept {
    try {
        (void)ask(body);
    } catch (const std::exception& error) {
        if (!lost()) {
            log_warning("{}", error.what());
        }
    }
}

}  // namespace pollcore
