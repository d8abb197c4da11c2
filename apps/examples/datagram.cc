// Datagrams: a server answers clients that it does not know. The completion of a question names the sender; the
// completion and the received bytes have the network path back to the sender.
//
//   datagram CONFIG        for example: datagram config/loopback.toml
#include <cstring>
#include <string>
#include <string_view>

#include "example.hpp"

using namespace pollcore;

namespace {

constexpr std::uint32_t kQkey = 0x2026;  // the Q_Key that a datagram to either end must have
constexpr std::uint32_t kBuffer = 2048;

// One end: a queue pair without a peer, a buffer to send from and one to receive into.
class End {
public:
    End(Runtime& runtime, Session& session)
        : session_(session),
          memory_(runtime.allocate(2 * kBuffer, Access::local())),
          qp_(runtime.create_queue_pair({.type = QpType::ud, .qkey = kQkey, .shares = {{.session = &session}}})) {
        example::submit(session_, WorkRequest::recv(qp_.handle(), memory_.sge(kBuffer, kBuffer)));
    }

    [[nodiscard]] QpInfo info() const { return qp_.info(); }
    [[nodiscard]] std::span<std::byte> received() const { return memory_.bytes().subspan(kBuffer); }

    void send(std::string_view text, const AddressHandle& way, std::uint32_t qp_num, std::uint32_t qkey) {
        std::memcpy(memory_.data(), text.data(), text.size());
        const Sge message = memory_.sge(0, static_cast<std::uint32_t>(text.size()));
        example::submit(session_, WorkRequest::send(qp_.handle(), message).to({way.handle(), qp_num}, qkey));
    }

    // The completion of the receive. Skips the completions of this end's own sends.
    WideCompletion receive() {
        for (;;) {
            const auto completion = example::next_completion<WideCompletion>(session_);
            if (completion.from_recv_queue()) {
                return completion;
            }
        }
    }
    [[nodiscard]] std::string text(const WideCompletion& completion) const {
        const std::byte* message = received().data() + completion.payload_offset();
        return {reinterpret_cast<const char*>(message), completion.payload_length()};
    }

private:
    Session& session_;
    MemoryRegion memory_;
    QueuePair qp_;
};

}  // namespace

int main(int argc, char** argv) {
    if (argc != 2) {
        fmt::print(stderr, "usage: datagram CONFIG\n");
        return 2;
    }
    return example::run([&] {
        Runtime runtime(load_config(argv[1]));
        Session servers = runtime.open_session({.wide_completions = true});  // to see who sent a datagram
        Session clients = runtime.open_session({.wide_completions = true});
        AddressHandle to_server;
        AddressHandle back;  // declared before the ends: an end may send with a handle until the end is closed
        End server(runtime, servers);
        End client(runtime, clients);

        // A client needs the server's QpInfo: plain data, which programs exchange as they like.
        const QpInfo address = server.info();
        to_server = runtime.create_address_handle(address);
        client.send("what is the time?", to_server, address.qp_num, address.qkey);

        // The server makes an address handle from the question. The handle is good for every datagram to the same port,
        // so a real server keeps it.
        const WideCompletion question = server.receive();
        fmt::print("queue pair {} asks: \"{}\"\n", question.src_qp, server.text(question));
        back = runtime.create_address_handle(question, server.received());
        server.send("time to send a datagram", back, question.src_qp, kQkey);

        fmt::print("the answer: \"{}\"\n", client.text(client.receive()));
    });
}
