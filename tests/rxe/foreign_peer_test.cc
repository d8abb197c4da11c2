// The raw form of private data, with a peer that knows nothing of pollcore: system/raw_peer.c, a C program that calls
// rdma_connect, rdma_accept and rdma_reject. Every byte that arrives at either end is compared. The tests run on the
// kernel's Soft-RoCE, embedded or attached, and fail where there is none.
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "conformance/fixture.hpp"
#include "connect/handshake.hpp"
#include "system/daemon_process.hpp"

namespace pollcore::testing {
namespace {

using Bytes = std::vector<std::byte>;

class ForeignPeer : public Conformance {
protected:
    void SetUp() override {
        ASSERT_TRUE(TestDevice::get().is_rxe()) << "needs the kernel's Soft-RoCE: run this by scripts/rxe-vm, with "
                                                   "POLLCORE_TEST_DEVICE=verbs:rxe0 POLLCORE_TEST_ADDRESS=10.77.0.1";
        const char* far = std::getenv("POLLCORE_RXE_PEER_ADDRESS");
        ASSERT_NE(far, nullptr) << "scripts/rxe-vm sets POLLCORE_RXE_PEER_ADDRESS";
        far_ = far;
        a = runtime.create_queue_pair(shape());
        Exercised::get().ignore();  // the table of what works says nothing about peers
    }

    /// Bytes of which none looks like its neighbour, with zeros among them. The last one is not 0, like the padding.
    [[nodiscard]] static Bytes data(std::size_t size, unsigned seed) {
        Bytes all(size);
        for (std::size_t i = 0; i < size; ++i) {
            all[i] = static_cast<std::byte>(i + 1 == size ? 0xfe : i % 7 == 3 ? 0 : i * 37 + seed);
        }
        return all;
    }
    [[nodiscard]] static std::string hex(const Bytes& data) {
        std::string text;
        for (const std::byte byte : data) {
            std::array<char, 3> digits{};
            (void)std::snprintf(digits.data(), digits.size(), "%02x", static_cast<unsigned>(byte));
            text += digits.data();
        }
        return text;
    }
    /// The bytes as they arrive in a message with room for `size` bytes.
    [[nodiscard]] static Bytes padded(Bytes data, std::size_t size) {
        data.resize(size);
        return data;
    }

    void start(std::vector<std::string> arguments) {
        arguments.insert(arguments.begin(), std::filesystem::read_symlink("/proc/self/exe").parent_path() / "raw-peer");
        peer_.emplace(arguments, std::vector<std::string>{}, directory_.path());
    }
    /// Waits until the peer has printed the line.
    void expect_said(const std::string& line) {
        const auto deadline = std::chrono::steady_clock::now() + kPatience;
        for (;;) {
            const bool ended = peer_->wait(std::chrono::milliseconds(0)).has_value();
            if (("\n" + peer_->out()).find("\n" + line + "\n") != std::string::npos) {
                return;
            }
            ASSERT_TRUE(!ended && std::chrono::steady_clock::now() < deadline)
                << "it did not say \"" << line << "\" but \"" << peer_->out() << "\"; " << peer_->err();
            test::give_way();
        }
    }
    void expect_end() { EXPECT_EQ(peer_->wait(kPatience), 0) << peer_->err(); }
    static std::string port_of(const Listener& listener) {
        return listener.address().substr(listener.address().rfind(':') + 1);
    }

    /// Takes the peer's message, and sends one of our own. The receive was posted before the connection.
    void talk() {
        const std::string ours = "from queue pair a";
        std::memcpy(local.data(), ours.c_str(), ours.size() + 1);
        submit(WorkRequest::send(a.handle(), local_sge(64)).with_tag(2));
        for (const Completion& completion : await(2)) {
            EXPECT_EQ(completion.status, Status::success);
        }
        EXPECT_STREQ(reinterpret_cast<const char*>(remote.data()), "from a program that knows only verbs");
        expect_said("message " + ours);
    }
    void post_receive() { submit(WorkRequest::recv(a.handle(), remote_sge(64)).with_tag(1)); }
    /// Waits until the event comes. Drops all others.
    [[nodiscard]] Event event_of(EventType type) {
        const std::optional<Event> event = await_event(type);
        EXPECT_TRUE(event.has_value()) << event_type_name(type);
        return event.value_or(Event{});
    }

    std::string far_;  // the address of the device at the other end of the wire, where the peer is
    test::TemporaryDirectory directory_;
    std::optional<test::Process> peer_;
};

TEST_F(ForeignPeer, CallsAndSeesTheDisconnect) {
    for (const std::size_t length : {std::size_t{0}, std::size_t{5}, kRawRequestPrivateDataMax}) {
        SCOPED_TRACE(length);
        a = runtime.create_queue_pair(shape());
        post_receive();
        Listener listener = runtime.listen(listen_address(), "", PrivateDataForm::raw);
        const Bytes asks = data(length, 1);
        const Bytes answers = data(length == 5 ? 9 : kRawReplyPrivateDataMax, 2);
        start({"call", far_, TestDevice::get().address, port_of(listener), hex(asks), "stay"});
        std::optional<ConnectionRequest> request = listener.next_request(kPatience);
        ASSERT_TRUE(request.has_value()) << peer_->err();
        EXPECT_EQ(request->private_data(), padded(asks, kRawRequestPrivateDataMax));
        EXPECT_TRUE(request->peer().starts_with(far_ + ":")) << request->peer();
        EXPECT_EQ(request->max_dest_rd_atomic(), 1);
        request->accept(a, patient({.private_data = answers}));
        expect_said("established " + hex(padded(answers, kRawReplyPrivateDataMax)));
        talk();
        a.disconnect();
        expect_said("disconnected");
        expect_end();
    }
}

// The peer's bytes begin like those of the framed form. In the raw form nobody looks for that.
TEST_F(ForeignPeer, CallsAndDisconnects) {
    post_receive();
    Listener listener = runtime.listen(listen_address(), "", PrivateDataForm::raw);
    Bytes asks = data(20, 3);
    std::copy(kPrivateDataMagic.begin(), kPrivateDataMagic.end(), asks.begin());
    start({"call", far_, TestDevice::get().address, port_of(listener), hex(asks), "leave"});
    std::optional<ConnectionRequest> request = listener.next_request(kPatience);
    ASSERT_TRUE(request.has_value()) << peer_->err();
    EXPECT_EQ(request->private_data(), padded(asks, kRawRequestPrivateDataMax));
    request->accept(a, patient({.private_data = asks}));
    expect_said("established " + hex(padded(asks, kRawReplyPrivateDataMax)));
    talk();
    EXPECT_EQ(event_of(EventType::disconnected).qp, a.handle());
    EXPECT_TRUE(a.disconnected());
    EXPECT_EQ(session.try_submit(WorkRequest::send(a.handle(), local_sge(8))), Refusal::qp_in_error);
    expect_said("disconnected");
    expect_end();
}

TEST_F(ForeignPeer, IsRejectedWithTheBytesThatItIsToGet) {
    for (const std::size_t length : {std::size_t{0}, std::size_t{7}, kRawRejectPrivateDataMax}) {
        SCOPED_TRACE(length);
        Listener listener = runtime.listen(listen_address(), "", PrivateDataForm::raw);
        const Bytes reason = data(length, 5);
        start({"call", far_, TestDevice::get().address, port_of(listener), hex(data(8, 6)), "stay"});
        std::optional<ConnectionRequest> request = listener.next_request(kPatience);
        ASSERT_TRUE(request.has_value()) << peer_->err();
        EXPECT_EQ(request->private_data(), padded(data(8, 6), kRawRequestPrivateDataMax));
        request->reject(reason);
        // 28 is IB_CM_REJ_CONSUMER_DEFINED.
        expect_said("rejected 28 " + hex(padded(reason, kRawRejectPrivateDataMax)));
        expect_end();
    }
}

TEST_F(ForeignPeer, IsCalledAndDisconnects) {
    post_receive();
    const Bytes asks = data(kRawRequestPrivateDataMax, 7);
    Bytes answers = data(kRawReplyPrivateDataMax, 8);
    std::copy(kPrivateDataMagic.begin(), kPrivateDataMagic.end(), answers.begin());
    start({"serve", far_, "7493", hex(answers), "leave"});
    expect_said("listening");
    const Bytes reply = a.connect(far_ + ":7493", patient({.private_data = asks, .form = PrivateDataForm::raw}));
    EXPECT_EQ(reply, answers);
    expect_said("request " + hex(asks));
    talk();
    EXPECT_EQ(event_of(EventType::disconnected).qp, a.handle());
    EXPECT_TRUE(a.disconnected());
    expect_said("disconnected");
    expect_end();
}

TEST_F(ForeignPeer, IsCalledAndSeesTheDisconnect) {
    post_receive();
    const Bytes answers = data(3, 9);
    start({"serve", far_, "7494", hex(answers), "stay"});
    expect_said("listening");
    a.begin_connect(far_ + ":7494", patient({.private_data = data(2, 10), .form = PrivateDataForm::raw}));
    const Event established = event_of(EventType::established);
    EXPECT_EQ(established.qp, a.handle());
    EXPECT_EQ(established.private_data, padded(answers, kRawReplyPrivateDataMax));
    expect_said("request " + hex(padded(data(2, 10), kRawRequestPrivateDataMax)));
    talk();
    a.disconnect();
    expect_said("disconnected");
    expect_end();
}

TEST_F(ForeignPeer, RejectsWithBytesThatArriveAsTheyAre) {
    for (const std::size_t length : {std::size_t{0}, std::size_t{11}, kRawRejectPrivateDataMax}) {
        SCOPED_TRACE(length);
        a = runtime.create_queue_pair(shape());
        const Bytes reason = data(length, 11);
        start({"refuse", far_, "7495", hex(reason)});
        expect_said("listening");
        a.begin_connect(far_ + ":7495", patient({.private_data = data(4, 12), .form = PrivateDataForm::raw}));
        const Event failed = event_of(EventType::connect_failed);
        EXPECT_EQ(failed.qp, a.handle());
        EXPECT_EQ(failed.private_data, padded(reason, kRawRejectPrivateDataMax));
        expect_said("request " + hex(padded(data(4, 12), kRawRequestPrivateDataMax)));
        expect_end();
    }
    a = runtime.create_queue_pair(shape());
    start({"refuse", far_, "7496", hex(bytes("not today"))});
    expect_said("listening");
    try {
        a.connect(far_ + ":7496", patient({.form = PrivateDataForm::raw}));
        FAIL() << "was connected";
    } catch (const Error& error) {
        EXPECT_EQ(error.code(), std::errc::connection_refused) << error.what();
        EXPECT_NE(std::string(error.what()).find("not today"), std::string::npos) << error.what();
    }
    expect_end();
}

}  // namespace
}  // namespace pollcore::testing
