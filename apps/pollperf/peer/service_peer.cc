#include "pollperf/peer/service_peer.hpp"

#include <fmt/format.h>

namespace pollcore::perf {

PeerKind recognize_peer(std::span<const std::byte> answer, Op op, std::uint32_t size) {
    if (const auto offer = MemoryOffer::decode(answer)) {
        if (op == Op::send) {
            throw MeasurementError(
                "the peer is a memory service and takes no messages: use -o write, read or "
                "fetch-add, or the address of an echo service");
        }
        if (offer->size < size) {
            throw MeasurementError(
                fmt::format("the peer's memory service has {} bytes, -s {} needs more", offer->size, size));
        }
        return {fmt::format("memory service of {} bytes", offer->size), false, {offer->addr, offer->rkey}};
    }
    if (const auto offer = EchoOffer::decode(answer)) {
        if (op != Op::send) {
            throw MeasurementError(
                "the peer is an echo service and offers no memory: use -o send, or the address of "
                "a memory service");
        }
        if (offer->message_size_max < size) {
            throw MeasurementError(fmt::format("the peer's echo service takes messages of at most {} bytes, not {}",
                                               offer->message_size_max, size));
        }
        return {fmt::format("echo service, messages of at most {} bytes", offer->message_size_max), true, {}};
    }
    if (op != Op::send) {
        throw MeasurementError(fmt::format(
            "the peer did not say where its memory is, which -o {} needs: it is no memory service", op_name(op)));
    }
    return {"a program that did not say who it is, taken for an echo service", true, {}};
}

}  // namespace pollcore::perf
