#include "peer_letter.hpp"

#include <fmt/format.h>

namespace pollcore::perf {

std::vector<std::byte> LatRequest::encode() const {
    std::vector<std::byte> out;
    out.reserve(kWireLength);
    append_service_header(out, kMagic, kWireLength);
    append_little_endian(out, static_cast<std::uint8_t>(op));
    append_little_endian(out, static_cast<std::uint8_t>(path));
    append_little_endian(out, static_cast<std::uint8_t>(verify));
    append_little_endian(out, std::uint8_t{0});
    append_little_endian(out, size);
    append_little_endian(out, iterations);
    append_little_endian(out, warmup);
    append_little_endian(out, memory.addr);
    append_little_endian(out, memory.rkey);
    return out;
}

std::optional<LatRequest> LatRequest::decode(std::span<const std::byte> in) {
    if (!take_service_header(in, kMagic, kWireLength)) {
        return std::nullopt;
    }
    LatRequest request;
    const auto op = take_little_endian<std::uint8_t>(in);
    const auto path = take_little_endian<std::uint8_t>(in);
    const auto verify = take_little_endian<std::uint8_t>(in);
    const auto reserved = take_little_endian<std::uint8_t>(in);
    if (op > static_cast<std::uint8_t>(Op::fetch_add) || path > static_cast<std::uint8_t>(kLastPath) || verify > 1 ||
        reserved != 0) {
        return std::nullopt;
    }
    request.op = static_cast<Op>(op);
    request.path = static_cast<PathKind>(path);
    request.verify = verify != 0;
    request.size = take_little_endian<std::uint32_t>(in);
    request.iterations = take_little_endian<std::uint32_t>(in);
    request.warmup = take_little_endian<std::uint32_t>(in);
    request.memory.addr = take_little_endian<std::uint64_t>(in);
    request.memory.rkey = take_little_endian<std::uint32_t>(in);
    return request;
}

std::vector<std::byte> LatAnswer::encode() const {
    std::vector<std::byte> out;
    out.reserve(kWireLength);
    append_service_header(out, kMagic, kWireLength);
    append_little_endian(out, static_cast<std::uint32_t>(path));
    append_little_endian(out, memory.addr);
    append_little_endian(out, memory.rkey);
    return out;
}

std::optional<LatAnswer> LatAnswer::decode(std::span<const std::byte> in) {
    if (!take_service_header(in, kMagic, kWireLength)) {
        return std::nullopt;
    }
    const auto path = take_little_endian<std::uint32_t>(in);
    if (path > static_cast<std::uint32_t>(kLastPath)) {
        return std::nullopt;
    }
    LatAnswer answer;
    answer.path = static_cast<PathKind>(path);
    answer.memory.addr = take_little_endian<std::uint64_t>(in);
    answer.memory.rkey = take_little_endian<std::uint32_t>(in);
    return answer;
}

std::string mismatch(const LatRequest& server, const LatRequest& client) {
    if (server.op != client.op) {
        return fmt::format("client has -o {}, server has -o {}", op_name(client.op), op_name(server.op));
    }
    if (server.size != client.size) {
        return fmt::format("client has -s {}, server has -s {}", client.size, server.size);
    }
    if (server.iterations != client.iterations) {
        return fmt::format("client has -n {}, server has -n {}", client.iterations, server.iterations);
    }
    if (server.warmup != client.warmup) {
        return fmt::format("client has --warmup {}, server has --warmup {}", client.warmup, server.warmup);
    }
    if (server.verify != client.verify) {
        return fmt::format("{} has --verify and {} has not", client.verify ? "client" : "server",
                           client.verify ? "server" : "client");
    }
    return {};
}

std::vector<std::byte> rejection(std::string_view sentence) {
    std::vector<std::byte> out;
    for (const char c : sentence.substr(0, kRejectPrivateDataMax)) {
        out.push_back(static_cast<std::byte>(c));
    }
    return out;
}

PeerKind recognize_peer(std::span<const std::byte> answer, const Workload& workload) {
    if (const auto server = LatAnswer::decode(answer)) {
        return {fmt::format("pollperf, path {}", path_name(server->path)), true, true, server->memory};
    }
    if (const auto offer = MemoryOffer::decode(answer)) {
        if (workload.op == Op::send) {
            throw MeasurementError(
                "the peer is a memory service and takes no messages: use -o write, read or "
                "fetch-add, or the address of an echo service");
        }
        if (offer->size < workload.size) {
            throw MeasurementError(
                fmt::format("the peer's memory service has {} bytes, -s {} needs more", offer->size, workload.size));
        }
        return {fmt::format("memory service of {} bytes", offer->size), false, false, {offer->addr, offer->rkey}};
    }
    if (const auto offer = EchoOffer::decode(answer)) {
        if (workload.op != Op::send) {
            throw MeasurementError(
                "the peer is an echo service and offers no memory: use -o send, or the address of "
                "a memory service");
        }
        if (offer->message_size_max < workload.size) {
            throw MeasurementError(fmt::format("the peer's echo service takes messages of at most {} bytes, not {}",
                                               offer->message_size_max, workload.size));
        }
        return {fmt::format("echo service, messages of at most {} bytes", offer->message_size_max), true, false, {}};
    }
    if (workload.op != Op::send) {
        throw MeasurementError(
            fmt::format("the peer did not say where its memory is, which -o {} needs: it is "
                        "neither a pollperf server nor a memory service",
                        op_name(workload.op)));
    }
    return {"a program that did not say who it is, taken for an echo service", true, false, {}};
}

}  // namespace pollcore::perf
