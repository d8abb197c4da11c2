// A stream of messages from one queue pair to another, which receives them in a receive pool or a write ring. Both
// queue pairs belong to one session and to the calling thread.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>

#include "pollcore/runtime.hpp"

namespace pollcore::test {

class MessageLine {
public:
    /// Bytes of a message: the message's number, then copies of the number's lowest byte.
    static constexpr std::uint32_t kBytes = 64;
    static constexpr std::uint32_t kOnTheirWay = 64;  ///< most messages in flight

    MessageLine(Runtime& runtime, FlowControl flow, std::uint32_t receives)
        : session_(runtime.open_session({.pool_buffers = 2 * receives})),
          pool_(flow == FlowControl::ring
                    ? runtime.create_write_ring({.session = &session_, .bytes = 64 * 1024, .messages = receives})
                    : runtime.create_receive_pool(
                          {.session = &session_, .buffers = 2 * receives, .buffer_bytes = kBytes})),
          memory_(runtime.allocate(std::size_t{kOnTheirWay} * kBytes, Access::all())),
          from_(runtime.create_queue_pair(
              {.shares = {{.session = &session_, .send_depth = kOnTheirWay}}, .recv_depth = 8, .flow = flow})),
          to_(runtime.create_queue_pair(
              {.shares = {{.session = &session_}}, .recv_depth = receives, .pool = &pool_, .flow = flow})) {
        const QpInfo info = from_.info();
        from_.connect(to_.info());
        to_.connect(info);
    }

    [[nodiscard]] Session& session() noexcept { return session_; }
    [[nodiscard]] std::uint64_t sent() const noexcept { return sent_; }
    [[nodiscard]] std::uint64_t received() const noexcept { return received_; }

    /// Sends until `on_their_way` messages are in flight or the send queue is full. Throws if a message is refused for
    /// any other reason.
    void send(std::uint64_t on_their_way) {
        while (sent_ - received_ < on_their_way) {
            const std::uint64_t at = sent_ % kOnTheirWay * kBytes;
            std::memcpy(memory_.data() + at, &sent_, sizeof sent_);
            std::memset(memory_.data() + at + sizeof sent_, static_cast<int>(sent_ & 0xff), kBytes - sizeof sent_);
            // Every 16th request is signaled, and its completion also retires the unsignaled requests before it.
            const std::uint8_t flags = sent_ % 16 == 15 ? kSignaled : 0;
            const Refusal refusal = session_.try_submit({.tag = sent_,
                                                         .sge = {memory_.addr() + at, kBytes, memory_.lkey()},
                                                         .qp = from_.handle(),
                                                         .opcode = Opcode::send,
                                                         .flags = flags,
                                                         .num_sge = 1});
            if (refusal == Refusal::send_queue_full) {
                return;  // messages have arrived, but their requests are not retired yet
            }
            require(refusal == Refusal::none, refusal_name(refusal));
            ++sent_;
        }
    }

    /// Takes up to `most` completions (at most 32) and releases their buffers. For each message, calls `look` with the
    /// bytes behind the message's number. Throws if a message failed or differs from the message that was sent.
    template <class Look>
    void receive(std::size_t most, Look look) {
        std::array<Completion, 32> some;
        const std::size_t n = session_.poll(std::span(some).first(most));
        const std::uint64_t before = received_;
        for (const Completion& one : std::span(some).first(n)) {
            require(one.ok(), status_name(one.status));
            if (one.pooled()) {
                const std::span<const std::byte> message = pool_.message(one);
                std::uint64_t number = 0;
                std::memcpy(&number, message.data(), sizeof number);
                require(number == received_, "a different message arrived than the one that was sent");
                look(number, message.subspan(sizeof number));
                ++received_;
            }
        }
        require(received_ == before || session_.release(std::span(some).first(n)).refusal == Refusal::none,
                "buffers cannot be given back");
    }

private:
    static void require(bool right, std::string_view what) {
        if (!right) {
            throw std::runtime_error("a line of messages: " + std::string(what));
        }
    }

    Session session_;
    ReceivePool pool_;
    MemoryRegion memory_;
    QueuePair from_;
    QueuePair to_;
    std::uint64_t sent_ = 0;
    std::uint64_t received_ = 0;
};

}  // namespace pollcore::test
