// A process that sends the messages of the attach protocol itself.
#pragma once

#include <poll.h>

#include <chrono>
#include <cstdint>
#include <span>
#include <string>

#include <gtest/gtest.h>

#include "attach/packet_socket.hpp"
#include "attach/wire.hpp"
#include "base/unique_fd.hpp"

namespace pollcore::test {

/// Sends requests, and reads their answers only when the test asks for them.
class RawProcess {
public:
    explicit RawProcess(const std::string& path) : socket_(wire::connect_to(path)) {
        (void)answer<wire::Attach>(send(wire::Attach{.name = NameText("raw")}));
    }
    template <class Body>
    std::uint64_t send(const Body& body, std::span<const int> descriptors = {}) {
        const wire::Request<Body> request{{.kind = Body::kKind, .id = ++id_}, body};
        EXPECT_EQ(wire::send_packet(socket_.get(), std::as_bytes(std::span(&request, 1)), descriptors), 0);
        return id_;
    }
    /// Reads the next answer, which must be the answer to this request.
    template <class Body>
    typename Body::Answered answer(std::uint64_t id) {
        const auto answer = next<Body>(id);
        EXPECT_EQ(answer.outcome.error, 0) << answer.outcome.text.string();
        return answer.body;
    }
    /// Reads the next answer, and returns its error; 0 if there is none.
    template <class Body>
    int refusal(std::uint64_t id) {
        return next<Body>(id).outcome.error;
    }

private:
    template <class Body>
    wire::Answer<typename Body::Answered> next(std::uint64_t id) {
        pollfd readable{socket_.get(), POLLIN, 0};
        EXPECT_EQ(::poll(&readable, 1, std::chrono::milliseconds(std::chrono::minutes(1)).count()), 1)
            << "nobody answers";
        wire::Packet packet;
        EXPECT_EQ(wire::recv_packet(socket_.get(), packet), 0);
        EXPECT_EQ(packet.header().id, id);
        wire::Answer<typename Body::Answered> answer;
        EXPECT_TRUE(packet.read(answer));
        return answer;
    }

    UniqueFd socket_;
    std::uint64_t id_ = 0;
};

}  // namespace pollcore::test
