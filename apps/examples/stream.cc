// A stream of messages to a reader that is slower than its writer. The writer waits for the reader, so that no message
// is lost and no device has to repeat one.
//
//   stream WHERE FLOW read ADDRESS [PAUSE_US]
//       waits for a writer, takes PAUSE_US on average for a message, and ends when the stream ends
//   stream WHERE FLOW write ADDRESS [MESSAGES]
//       starts again from the first message when its reader or its daemon goes away
//   stream WHERE FLOW both ADDRESS [MESSAGES [PAUSE_US]]
//       reads and writes, in two threads of one process
//
// WHERE is a configuration file, or the socket of a daemon to attach to. FLOW is credits or ring. With credits, short
// messages go into the reader's receives. The reader's worker reads long messages from the writer's memory
// (rendezvous). ADDRESS is an address as for Context::listen: 192.0.2.7:7471, or a name on a software device. Example:
//   stream config/loopback.toml credits both anywhere 100000 5
#include <cerrno>
#include <cstring>
#include <random>
#include <string>
#include <string_view>
#include <thread>

#include "example.hpp"

using namespace pollcore;

namespace {

constexpr std::uint32_t kShort = 1024;  // bytes of a receive
constexpr std::uint32_t kLongest = 4096;
constexpr std::uint32_t kSlots = 64;     // messages that the writer has in flight
constexpr std::uint32_t kReceives = 32;  // receives that are posted; the pool has twice as many buffers
constexpr std::uint32_t kLongOnes = 4;   // buffers for rendezvous

struct Header {
    std::uint64_t number;
    std::uint64_t messages;  // of the whole stream
    std::uint64_t sum;
};

std::uint64_t sum_of(const std::byte* bytes, std::size_t length) {
    std::uint64_t sum = 0;
    for (std::size_t i = 0; i < length; ++i) {
        sum = (sum ^ std::to_integer<std::uint64_t>(bytes[i])) * 0x100000001b3;
    }
    return sum;
}

std::uint32_t length_of(std::uint64_t number) {
    return sizeof(Header) + static_cast<std::uint32_t>(number * 997 % (kLongest - sizeof(Header)));
}

void write_message(std::byte* to, std::uint64_t number, std::uint64_t messages) {
    const std::uint32_t length = length_of(number);
    for (std::uint32_t i = sizeof(Header); i < length; ++i) {
        to[i] = static_cast<std::byte>(number + i);
    }
    const Header header{number, messages, sum_of(to + sizeof(Header), length - sizeof(Header))};
    std::memcpy(to, &header, sizeof header);
}

class Reader {
public:
    Reader(Context& runtime, FlowControl flow, const std::string& address, std::uint64_t pause_us)
        : session_(runtime.open_session({.pool_buffers = 2 * kReceives + kLongOnes})),
          pool_(flow == FlowControl::ring
                    ? runtime.create_write_ring({.session = &session_, .bytes = 128 * 1024, .messages = kReceives})
                    : runtime.create_receive_pool(
                          {.session = &session_, .buffers = 2 * kReceives, .buffer_bytes = kShort})),
          long_ones_(flow == FlowControl::ring
                         ? ReceivePool()
                         : runtime.create_receive_pool(
                               {.session = &session_, .buffers = kLongOnes, .buffer_bytes = kLongest})),
          qp_(runtime.create_queue_pair({.shares = {{.session = &session_}},
                                         .recv_depth = kReceives,
                                         .pool = &pool_,
                                         .rendezvous_pool = long_ones_.valid() ? &long_ones_ : nullptr,
                                         .rendezvous_share = kLongOnes,
                                         .flow = flow})),
          listener_(runtime.listen(address)),
          pause_us_(pause_us) {
        fmt::print("listening at {}\n", listener_.address());
        std::fflush(stdout);
    }

    void read() {
        auto request = listener_.next_request(std::chrono::minutes(1));
        if (!request) {
            throw std::runtime_error("nobody connected within a minute");
        }
        request->accept(qp_);
        std::mt19937 random(7);
        std::uint64_t messages = 1;
        for (std::uint64_t next = 0; next < messages; ++next) {
            const auto completion = example::next_completion(session_);
            const std::span<std::byte> message =
                completion.pool() == pool_.handle() ? pool_.message(completion) : long_ones_.message(completion);
            Header header;
            std::memcpy(&header, message.data(), sizeof header);
            if (header.number != next || message.size() != length_of(next) ||
                header.sum != sum_of(message.data() + sizeof header, message.size() - sizeof header)) {
                throw std::runtime_error(
                    fmt::format("message {} is not as it was sent: it says that it is number {}", next, header.number));
            }
            messages = header.messages;
            if (pause_us_ != 0) {
                const auto until =
                    std::chrono::steady_clock::now() + std::chrono::microseconds(random() % (2 * pause_us_));
                while (std::chrono::steady_clock::now() < until) {
                }
            }
            (void)session_.release(completion);  // succeeds: the ring has room for so few releases
        }
        await_writers_end();
        fmt::print("read {} messages, each once, in order and whole\n", messages);
    }

private:
    // Waits until the writer disconnects. If the reader disconnected now, it would flush the writer's requests in
    // flight: the writer may not have the completion of the last message yet.
    void await_writers_end() {
        const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(1);
        while (!qp_.disconnected()) {
            if (std::chrono::steady_clock::now() > deadline) {
                throw std::runtime_error("the writer does not leave");
            }
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
    }

    Session session_;
    ReceivePool pool_;
    ReceivePool long_ones_;
    QueuePair qp_;
    Listener listener_;
    std::uint64_t pause_us_;
};

class Writer {
public:
    Writer(Context& runtime, FlowControl flow, std::string address, std::uint64_t messages)
        : runtime_(runtime),
          session_(runtime.open_session()),
          memory_(runtime.allocate(std::size_t{kSlots} * kLongest, {.remote_read = true})),
          qp_(runtime.create_queue_pair(
              {.shares = {{.session = &session_, .send_depth = kSlots}}, .recv_depth = 1, .flow = flow})),
          address_(std::move(address)),
          messages_(messages) {}

    void write() {
        while (!write_once()) {
            fmt::print("the reader went away; beginning again\n");
            std::fflush(stdout);
            qp_.reset();
            Completion completion;
            while (session_.poll({&completion, 1}) != 0) {  // completions of requests that the reset ended
            }
        }
        fmt::print("wrote {} messages in {} us; {} had to wait for the reader\n", messages_,
                   took_ / std::chrono::microseconds(1),
                   runtime_.worker_counters(session_.worker()).waits_for_credit.value());
    }

private:
    /// Returns false if the connection ended before the stream did.
    bool write_once() {
        connect();
        fmt::print("writing to {}\n", address_);
        std::fflush(stdout);
        const auto began = std::chrono::steady_clock::now();
        std::uint64_t done = 0;
        for (std::uint64_t number = 0; done < messages_;) {
            if (number < messages_ && number - done < kSlots) {
                const std::size_t slot = number % kSlots * kLongest;
                write_message(memory_.data() + slot, number, messages_);
                const Sge message = memory_.sge(slot, length_of(number));
                // The reader's worker reads long messages by rendezvous, with the remote key.
                const Refusal refusal = session_.try_submit(
                    WorkRequest::send(qp_.handle(), message).with_tag(number).with_rkey(memory_.rkey()));
                // stale_handle: a daemon that ends has closed the queue pair. The reset then says why.
                if (refusal == Refusal::qp_in_error || refusal == Refusal::stale_handle) {
                    return false;
                }
                if (refusal != Refusal::none) {
                    throw std::runtime_error(
                        fmt::format("message {} was not accepted: {}", number, refusal_name(refusal)));
                }
                ++number;
            }
            Completion completion;
            while (session_.poll({&completion, 1}) != 0) {
                if (completion.status == Status::daemon_gone) {
                    throw Error(ECONNRESET, "the daemon is gone");
                }
                if (!completion.ok()) {
                    return false;
                }
                ++done;
            }
        }
        took_ = std::chrono::steady_clock::now() - began;
        return true;
    }

    // Tries for a minute, because the reader may not listen yet.
    void connect() {
        const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(1);
        for (;;) {
            try {
                qp_.connect(address_);
                return;
            } catch (const Error&) {
                if (std::chrono::steady_clock::now() > deadline) {
                    throw;
                }
                qp_.reset();
                std::this_thread::sleep_for(std::chrono::milliseconds(100));
            }
        }
    }

    Context& runtime_;
    Session session_;
    MemoryRegion memory_;
    QueuePair qp_;
    std::string address_;
    std::uint64_t messages_;
    std::chrono::nanoseconds took_{};
};

// Starts again with new objects when the daemon has died and a new daemon runs.
void write(example::Place& place, FlowControl flow, const std::string& address, std::uint64_t messages) {
    for (;;) {
        try {
            return Writer(place.context(), flow, address, messages).write();
        } catch (const Error& error) {
            fmt::print("{}\n", error.what());
            std::fflush(stdout);
            if (!place.came_back()) {
                throw;
            }
            fmt::print("attached again; beginning again\n");
            std::fflush(stdout);
        }
    }
}

}  // namespace

int main(int argc, char** argv) {
    const std::string_view kind = argc > 2 ? argv[2] : "";
    const std::string_view role = argc > 3 ? argv[3] : "";
    const int most = role == "both" ? 7 : role == "read" || role == "write" ? 6 : 0;
    if (argc < 5 || argc > most || (kind != "credits" && kind != "ring")) {
        fmt::print(stderr,
                   "usage: stream (CONFIG|SOCKET) (credits|ring) (read ADDRESS [PAUSE_US] | write ADDRESS [MESSAGES] | "
                   "both ADDRESS "
                   "[MESSAGES [PAUSE_US]])\n");
        return 2;
    }
    return example::run([&] {
        example::Place place(argv[1]);
        const FlowControl flow = kind == "ring" ? FlowControl::ring : FlowControl::credits;
        const std::string address = argv[4];
        const std::uint64_t messages = role != "read" && argc > 5 ? example::number(argv[5], 0) : 100'000;
        const std::uint64_t pause_us = role == "read" && argc > 5 ? example::number(argv[5], 0)
                                       : argc > 6                 ? example::number(argv[6], 0)
                                                                  : 0;
        if (role == "read") {
            Reader(place.context(), flow, address, pause_us).read();
        } else if (role == "write") {
            write(place, flow, address, messages);
        } else {
            Reader reader(place.context(), flow, address, pause_us);
            int failed = 0;
            std::thread writer(
                [&] { failed = example::run([&] { Writer(place.context(), flow, address, messages).write(); }); });
            const int unread = example::run([&] { reader.read(); });
            writer.join();
            if (failed + unread != 0) {
                throw std::runtime_error("the stream is not whole");
            }
        }
    });
}
