// A peer for rping(1) that uses this runtime without flow control. It shows that the runtime can exchange messages with
// a plain verbs program.
//
//   rping_peer CONFIG serve ADDRESS PINGS     for: rping -c -a ... -C PINGS
//   rping_peer CONFIG call ADDRESS PINGS      for: rping -s -a ... -C PINGS
//
// The protocol is that of librdmacm's examples/rping.c: each message is 16 bytes in network order, with the address,
// rkey and size of a buffer. First the caller names the buffer with its text. The server reads the text and tells the
// caller to go on. Then the caller names a second buffer. The server writes the same text there and tells the caller.
#include <endian.h>

#include <array>
#include <chrono>
#include <cstring>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "pollcore/runtime.hpp"

using namespace pollcore;

namespace {

struct Named {
    std::uint64_t addr;
    std::uint32_t rkey;
    std::uint32_t size;
};
static_assert(sizeof(Named) == 16);

class Peer {
public:
    explicit Peer(const char* config)
        : runtime_(load_config(config)),
          session_(runtime_.open_session()),
          memory_(runtime_.allocate(4096, Access::all())),
          qp_(runtime_.create_queue_pair(
              {.shares = {{.session = &session_}}, .recv_depth = 4, .remote_access = RemoteAccess::all()})) {
        post_receive();
        post_receive();
    }

    void serve(const std::string& address, unsigned pings) {
        Listener listener = runtime_.listen(address);
        fmt::print("listening\n");
        std::fflush(stdout);
        auto request = listener.next_request(std::chrono::minutes(1));
        if (!request) {
            throw std::runtime_error("nobody called");
        }
        request->accept(qp_);
        for (unsigned ping = 0; ping < pings; ++ping) {
            const Named source = hear();
            if (source.size > kText) {
                throw std::runtime_error(fmt::format("a text of {} bytes", source.size));
            }
            move(Opcode::rdma_read, source);
            const std::string text(reinterpret_cast<const char*>(memory_.data() + kTextAt));
            if (!text.starts_with(fmt::format("rdma-ping-{}: ", ping))) {
                throw std::runtime_error(fmt::format("ping {} reads: {}", ping, text));
            }
            say({});
            const Named sink = hear();
            move(Opcode::rdma_write, sink);
            say({});
        }
        fmt::print("served {} pings\n", pings);
        std::fflush(stdout);
    }

    void call(const std::string& address, unsigned pings) {
        qp_.connect(address);
        for (unsigned ping = 0; ping < pings; ++ping) {
            const std::string text = fmt::format("rdma-ping-{}: {:x<32}", ping, "");
            std::memcpy(memory_.data() + kTextAt, text.c_str(), text.size() + 1);
            std::memset(memory_.data() + kSinkAt, 0, kText);
            const auto size = static_cast<std::uint32_t>(text.size() + 1);
            say({memory_.addr() + kTextAt, memory_.rkey(), size});
            (void)hear();
            say({memory_.addr() + kSinkAt, memory_.rkey(), size});
            (void)hear();
            if (std::memcmp(memory_.data() + kTextAt, memory_.data() + kSinkAt, size) != 0) {
                throw std::runtime_error(fmt::format("ping {} came back as something else", ping));
            }
        }
        fmt::print("called with {} pings\n", pings);
        std::fflush(stdout);
    }

private:
    static constexpr std::uint32_t kText = 1024;
    static constexpr std::size_t kTextAt = 1024;
    static constexpr std::size_t kSinkAt = 2048;
    static constexpr std::size_t kOutAt = 512;  // outgoing messages; received messages are before them

    void submit(const WorkRequest& request) {
        if (const Refusal refusal = session_.try_submit(request); refusal != Refusal::none) {
            throw std::runtime_error(fmt::format("refused: {}", refusal_name(refusal)));
        }
    }
    void post_receive() {
        const std::uint64_t slot = posted_++ % 4;
        submit({.tag = slot,
                .sge = {memory_.addr() + slot * sizeof(Named), sizeof(Named), memory_.lkey()},
                .qp = qp_.handle(),
                .opcode = Opcode::recv,
                .num_sge = 1});
    }
    Completion next(bool from_recv_queue) {
        Completion& kept = kept_[!from_recv_queue];
        if (Completion& mine = kept_[from_recv_queue]; mine.qp.valid()) {
            return std::exchange(mine, {});
        }
        const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
        for (;;) {
            Completion completion;
            if (session_.poll({&completion, 1}) == 0) {
                if (std::chrono::steady_clock::now() > deadline) {
                    throw std::runtime_error("nothing came");
                }
                continue;
            }
            if (!completion.ok()) {
                throw std::runtime_error(fmt::format("{} failed: {}", completion.tag, status_name(completion.status)));
            }
            if (completion.from_recv_queue() == from_recv_queue) {
                return completion;
            }
            kept = completion;
        }
    }
    Named hear() {
        const Completion completion = next(true);
        if (completion.byte_len != sizeof(Named)) {
            throw std::runtime_error(fmt::format("a message of {} bytes", completion.byte_len));
        }
        Named named;
        std::memcpy(&named, memory_.data() + completion.tag * sizeof(Named), sizeof named);
        post_receive();
        return {be64toh(named.addr), be32toh(named.rkey), be32toh(named.size)};
    }
    void say(Named named) {
        named = {htobe64(named.addr), htobe32(named.rkey), htobe32(named.size)};
        std::memcpy(memory_.data() + kOutAt, &named, sizeof named);
        submit({.tag = 100,
                .sge = {memory_.addr() + kOutAt, sizeof named, memory_.lkey()},
                .qp = qp_.handle(),
                .opcode = Opcode::send,
                .flags = kSignaled,
                .num_sge = 1});
        (void)next(false);
    }
    void move(Opcode opcode, const Named& named) {
        submit({.tag = 101,
                .sge = {memory_.addr() + kTextAt, std::min(named.size, kText), memory_.lkey()},
                .remote_addr = named.addr,
                .rkey = named.rkey,
                .qp = qp_.handle(),
                .opcode = opcode,
                .flags = kSignaled,
                .num_sge = 1});
        (void)next(false);
    }

    Runtime runtime_;
    Session session_;
    MemoryRegion memory_;
    QueuePair qp_;
    std::uint64_t posted_ = 0;
    // by queue: a completion that came while the program waited for the other queue; may be empty
    std::array<Completion, 2> kept_{};
};

}  // namespace

int main(int argc, char** argv) {
    const std::string_view role = argc == 5 ? argv[2] : "";
    if (role != "serve" && role != "call") {
        fmt::print(stderr, "usage: rping_peer CONFIG (serve|call) ADDRESS PINGS\n");
        return 2;
    }
    try {
        Peer peer(argv[1]);
        const auto pings = static_cast<unsigned>(std::stoul(argv[4]));
        role == "serve" ? peer.serve(argv[3], pings) : peer.call(argv[3], pings);
        return 0;
    } catch (const std::exception& error) {
        fmt::print(stderr, "{}\n", error.what());
        return 1;
    }
}
