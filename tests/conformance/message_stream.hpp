// Sends messages with a number and a checksum from one session to another, which reads them at its own pace.
#pragma once

#include <cstring>
#include <random>
#include <thread>

#include "fixture.hpp"
#include "give_way.hpp"

namespace pollcore::testing {

class MessageStream : public Conformance {
protected:
    explicit MessageStream(const Config& config = test_config())
        : Conformance(config), reader(runtime.open_session({.pool_buffers = kPoolBuffers})) {}

    static constexpr std::uint32_t kPoolBuffers = 80;

    [[nodiscard]] std::uint64_t rnrs() {
        std::this_thread::sleep_for(
            std::chrono::milliseconds(30));  // the kernel updates these counters only now and then
        const RnrCounts counts = runtime.rnr_counts().value();
        return counts.received + counts.sent;
    }
    [[nodiscard]] static std::uint64_t sum_of(std::span<const std::byte> bytes) {
        std::uint64_t sum = 1469598103934665603;
        for (const std::byte byte : bytes) {
            sum = (sum ^ static_cast<std::uint64_t>(byte)) * 1099511628211;
        }
        return sum;
    }
    /// Writes a message into `to`: its number, the checksum of its payload, and the payload.
    void write_message(std::span<std::byte> to, std::uint64_t number) {
        for (std::size_t i = 16; i < to.size(); ++i) {
            to[i] = static_cast<std::byte>(number * 7 + i);
        }
        const std::uint64_t sum = sum_of(to.subspan(16));
        std::memcpy(to.data(), &number, 8);
        std::memcpy(to.data() + 8, &sum, 8);
    }
    void expect_message(std::span<const std::byte> message, std::uint64_t number) {
        ASSERT_GE(message.size(), 16u);
        std::uint64_t there = 0;
        std::uint64_t sum = 0;
        std::memcpy(&there, message.data(), 8);
        std::memcpy(&sum, message.data() + 8, 8);
        ASSERT_EQ(there, number);
        ASSERT_EQ(sum, sum_of(message.subspan(16)));
    }
    /// The bytes of a received message, from the pool of `pools` that holds it.
    [[nodiscard]] static std::span<const std::byte> message_in(std::initializer_list<const ReceivePool*> pools,
                                                               const Completion& completion) {
        for (const ReceivePool* pool : pools) {
            if (pool->handle() == completion.pool()) {
                return pool->message(completion);
            }
        }
        return {};
    }
    /// Sends messages from queue pair a. The reader may pause at random, takes the messages from its pools, and
    /// releases them in another order. `local` must have room for 32 messages of the length `longest`.
    void stream(std::initializer_list<const ReceivePool*> pools, std::uint32_t longest, std::uint64_t messages,
                bool pauses) {
        std::mt19937 random(11);
        std::uint64_t sent = 0;
        std::uint64_t read = 0;
        std::uint64_t done = 0;
        std::vector<Completion> held;
        const auto deadline = std::chrono::steady_clock::now() + 2 * kPatience;
        while ((read < messages || done < messages) && std::chrono::steady_clock::now() < deadline) {
            Completion some[16];
            const std::size_t ended = session.poll(some);
            for (std::size_t i = 0; i < ended; ++i) {
                ASSERT_EQ(some[i].status, Status::success);
            }
            done += ended;
            while (sent < messages && sent - done < 32) {
                const std::uint32_t length = 16 + static_cast<std::uint32_t>(sent * 37 % (longest - 15));
                const std::size_t at = sent % 32 * longest;
                write_message(local.bytes().subspan(at, length), sent);
                WorkRequest request = send(sent, length);
                request.sge = local_sge(length, at);
                request.rkey = local.rkey();  // needed for rendezvous
                ASSERT_EQ(session.try_submit(request), Refusal::none);
                ++sent;
            }
            if (!pauses || random() % 8 == 0) {
                const std::size_t heard = reader.poll({some, 1 + random() % 4});
                for (std::size_t i = 0; i < heard; ++i) {
                    ASSERT_EQ(some[i].status, Status::success);
                    expect_message(message_in(pools, some[i]), read++);
                    held.push_back(some[i]);
                }
                if (held.size() > random() % 12) {
                    std::shuffle(held.begin(), held.end(), random);
                    const Submitted released = reader.release(held);
                    held.erase(held.begin(), held.begin() + static_cast<std::ptrdiff_t>(released.accepted));
                }
            }
            test::give_way();
        }
        for (std::size_t released = 0; released < held.size();) {
            released += reader.release(std::span(held).subspan(released)).accepted;
        }
        EXPECT_EQ(read, messages);
        EXPECT_EQ(done, messages);
    }

    TestSession reader;
};

}  // namespace pollcore::testing
