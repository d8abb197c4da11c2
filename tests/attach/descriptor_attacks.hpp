// Attacks on a daemon by the command descriptor of a context. Each returns whether it did something.
#pragma once

#include <poll.h>
#include <unistd.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "attach/command_descriptor.hpp"
#include "worker/wr_id.hpp"

namespace pollcore::test {

// The daemon's objects are made before the attack: the CQ has one of the first handles.
inline std::vector<std::uint32_t> first_handles() {
    std::vector<std::uint32_t> all;
    for (std::uint32_t handle = 0; handle < CommandDescriptor::kHandles; ++handle) {
        all.push_back(handle);
    }
    return all;
}

/// The wr_ids that the first requests of the first queue pairs of a daemon have.
inline std::vector<std::uint64_t> wr_ids_of_others() {
    std::vector<std::uint64_t> all;
    for (std::uint16_t index = 0; index < 4; ++index) {
        for (std::uint32_t position = 0; position < 64; ++position) {
            for (const bool recv : {false, true}) {
                all.push_back(WrId{.qp = {index, 1}, .recv = recv, .position = position}.pack());
            }
        }
    }
    return all;
}

inline bool complete_requests_of_others(CommandDescriptor& descriptor) {
    const std::optional<std::uint32_t> pd = descriptor.create_pd();
    int done = 0;
    for (const std::uint32_t cq : first_handles()) {
        done += pd && descriptor.complete(*pd, cq, wr_ids_of_others());
    }
    return done > 0;
}

// A CQ that overruns raises an event with this pointer in the daemon.
inline bool raise_events_of_nothing(CommandDescriptor& descriptor) {
    const std::optional<std::uint32_t> pd = descriptor.create_pd();
    int done = 0;
    for (int i = 0; i < 8; ++i) {
        const auto cq = descriptor.create_cq(1, 0x1000);
        done += pd && cq && descriptor.complete(*pd, *cq, wr_ids_of_others());
    }
    return done == 8;
}

// Puts CQs in the places of those of the daemon, and takes an event of each. libibverbs waits at their end until the
// daemon has acknowledged this event.
inline bool put_cqs_in_the_places_of_others(CommandDescriptor& descriptor) {
    descriptor.destroy_qps();
    const int destroyed = descriptor.destroy_cqs();
    const int channel = descriptor.create_channel();
    const std::optional<std::uint32_t> pd = descriptor.create_pd();
    if (destroyed == 0 || channel < 0 || !pd) {
        return false;
    }
    int taken = 0;
    for (std::uint32_t i = 0; i < CommandDescriptor::kHandles; ++i) {
        const auto cq = descriptor.create_cq(16, 0x1000, channel);
        const std::uint64_t wr_id = 1;
        if (!cq || !descriptor.arm(*cq) || !descriptor.complete(*pd, *cq, {&wr_id, 1})) {
            continue;
        }
        pollfd event{.fd = channel, .events = POLLIN, .revents = 0};
        ib_uverbs_comp_event_desc which{};
        taken += ::poll(&event, 1, 1000) == 1 && ::read(channel, &which, sizeof(which)) == sizeof(which);
    }
    ::close(channel);
    return taken > 0;
}

}  // namespace pollcore::test
