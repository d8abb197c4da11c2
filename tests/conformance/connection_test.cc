// Connections by address. A verbs device uses rdma_cm, and a software device uses names.
#include <future>

#include "fixture.hpp"

namespace pollcore::testing {
namespace {

class Connections : public Conformance {
protected:
    /// Connects QP a, while another thread calls `answer` with the next connection request.
    template <class F>
    std::vector<std::byte> connect_while(Listener& listener, const ConnectOptions& options, F&& answer) {
        std::future<void> answered = std::async(std::launch::async, [&] {
            std::optional<ConnectionRequest> request = listener.next_request(kPatience);
            ASSERT_TRUE(request.has_value());
            answer(*request);
        });
        try {
            std::vector<std::byte> reply = a.connect(listener.address(), patient(options));
            answered.get();
            return reply;
        } catch (...) {
            answered.get();
            throw;
        }
    }
};

TEST_F(Connections, CarryPrivateDataBothWaysAndThenMessages) {
    a = runtime.create_queue_pair(shape());
    b = runtime.create_queue_pair(shape());
    Listener listener = runtime.listen(listen_address());
    submit(recv(1, 64));  // posted before the peer can send (H13)
    const auto reply =
        connect_while(listener, {.private_data = bytes("from the caller")}, [&](ConnectionRequest& request) {
            EXPECT_EQ(request.private_data(), bytes("from the caller"));
            EXPECT_FALSE(request.peer().empty());
            request.accept(b, patient({.private_data = bytes("from the listener")}));
        });
    EXPECT_EQ(reply, bytes("from the listener"));
    submit(send(2, 32));
    for (const Completion& completion : await(2)) {
        EXPECT_EQ(completion.status, Status::success);
    }
    Exercised::get().note("connections", "by address");
    Exercised::get().note("connections", "private data");
    EXPECT_EQ(std::memcmp(local.data(), remote.data(), 32), 0);
}

TEST_F(Connections, AnEmptyPrivateDataArrivesEmpty) {
    a = runtime.create_queue_pair(shape());
    b = runtime.create_queue_pair(shape());
    Listener listener = runtime.listen(listen_address());
    const auto reply = connect_while(listener, {}, [&](ConnectionRequest& request) {
        EXPECT_TRUE(request.private_data().empty());
        request.accept(b, patient());
    });
    EXPECT_TRUE(reply.empty());
}

/// `text` as it arrives in the raw form, in a message with room for `size` bytes.
std::vector<std::byte> padded(const std::string& text, std::size_t size) {
    std::vector<std::byte> all = bytes(text);
    all.resize(size);
    return all;
}

TEST_F(Connections, CarryExactlyTheUsersBytesInTheRawForm) {
    a = runtime.create_queue_pair(shape());
    b = runtime.create_queue_pair(shape());
    Listener listener = runtime.listen(listen_address(), "", PrivateDataForm::raw);
    const std::string longest(kRawRequestPrivateDataMax, 'q');
    const ConnectOptions raw{.private_data = bytes(longest), .form = PrivateDataForm::raw};
    const auto reply = connect_while(listener, raw, [&](ConnectionRequest& request) {
        EXPECT_EQ(request.private_data(), bytes(longest));
        EXPECT_EQ(request.flow(), FlowControl::off);
        request.accept(b, patient({.private_data = bytes("answer")}));
    });
    EXPECT_EQ(reply, padded("answer", kRawReplyPrivateDataMax));
    Exercised::get().note("connections", "raw private data");
}

TEST_F(Connections, OfTheRawFormAreRejectedWithRawBytes) {
    a = runtime.create_queue_pair(shape());
    Listener listener = runtime.listen(listen_address(), "", PrivateDataForm::raw);
    a.begin_connect(listener.address(), patient({.private_data = bytes("ask"), .form = PrivateDataForm::raw}));
    std::optional<ConnectionRequest> request = listener.next_request(kPatience);
    ASSERT_TRUE(request.has_value());
    EXPECT_EQ(request->private_data(), padded("ask", kRawRequestPrivateDataMax));
    request->reject(bytes("refused"));
    for (;;) {
        const std::optional<Event> event = runtime.next_event(kPatience);
        ASSERT_TRUE(event.has_value());
        if (event->type == EventType::connect_failed) {
            EXPECT_EQ(event->private_data, padded("refused", kRawRejectPrivateDataMax));
            EXPECT_NE(event->text.find("it says \"refused\""), std::string::npos) << event->text;
            break;
        }
    }
}

TEST_F(Connections, OfTwoFormsShowTheHeaderAndThePadding) {
    a = runtime.create_queue_pair(shape());
    b = runtime.create_queue_pair(shape());
    Listener raw = runtime.listen(listen_address(), "", PrivateDataForm::raw);
    const auto reply = connect_while(raw, {.private_data = bytes("x")}, [&](ConnectionRequest& request) {
        ASSERT_EQ(request.private_data().size(), kRawRequestPrivateDataMax);
        EXPECT_EQ(request.private_data()[kPrivateDataHeader], bytes("x")[0]) << "behind the caller's header";
        request.accept(b, patient({.private_data = bytes("plain")}));
    });
    EXPECT_EQ(reply, padded("plain", kRawReplyPrivateDataMax)) << "without a header nothing is cut off";
}

TEST_F(Connections, WithFlowControlHaveNoRawForm) {
    a = runtime.create_queue_pair(shape(FlowControl::credits));
    Listener listener = runtime.listen(listen_address(), "", PrivateDataForm::raw);
    try {
        a.connect(listener.address(), patient({.form = PrivateDataForm::raw}));
        FAIL() << "was connected";
    } catch (const Error& error) {
        EXPECT_EQ(error.code(), std::errc::invalid_argument) << error.what();
        EXPECT_NE(std::string(error.what()).find("framed"), std::string::npos) << error.what();
    }
}

TEST_F(Connections, OfTheRawFormHaveALimitOfTheirOwn) {
    a = runtime.create_queue_pair(shape());
    const ConnectOptions one_too_many{.private_data = std::vector<std::byte>(kRawRequestPrivateDataMax + 1),
                                      .form = PrivateDataForm::raw};
    EXPECT_THROW(a.connect("10.0.0.1:1", one_too_many), Error);
}

TEST_F(Connections, ARejectionSaysWhyAndARequestWhatItsPeerServes) {
    a = runtime.create_queue_pair(shape());
    Listener listener = runtime.listen(listen_address());
    PathAttributes path;
    path.max_dest_rd_atomic = 3;
    try {
        connect_while(listener, {.path = path}, [&](ConnectionRequest& request) {
            EXPECT_EQ(request.max_dest_rd_atomic(), 3);
            request.reject_because("the book is closed");
        });
        FAIL() << "was accepted";
    } catch (const Error& error) {
        EXPECT_EQ(error.code(), std::errc::connection_refused);
        EXPECT_NE(std::string(error.what()).find("the book is closed"), std::string::npos) << error.what();
    }
}

TEST_F(Connections, ARejectedOneSaysSoAndMayTryAgain) {
    a = runtime.create_queue_pair(shape());
    b = runtime.create_queue_pair(shape());
    Listener listener = runtime.listen(listen_address());
    try {
        connect_while(listener, {}, [&](ConnectionRequest& request) { request.reject(bytes("no")); });
        FAIL() << "was accepted";
    } catch (const Error& error) {
        EXPECT_EQ(error.code(), std::errc::connection_refused) << error.what();
    }
    connect_while(listener, {}, [&](ConnectionRequest& request) { request.accept(b, patient()); });
    EXPECT_EQ(session.state(a.handle()), QpState::ready);
}

TEST_F(Connections, WithoutAListenerAreRefused) {
    a = runtime.create_queue_pair(shape());
    std::string address;
    {
        Listener listener = runtime.listen(listen_address());
        address = listener.address();
    }
    EXPECT_THROW(a.connect(address), Error);
    EXPECT_EQ(session.state(a.handle()), QpState::init);
}

TEST_F(Connections, AnAddressIsTakenOnlyOnce) {
    Listener listener = runtime.listen(listen_address());
    EXPECT_THROW((void)runtime.listen(listener.address()), Error);
}

TEST_F(Connections, NobodyWhoAnswersEndsInATimeout) {
    a = runtime.create_queue_pair(shape());
    Listener listener = runtime.listen(listen_address());
    try {
        a.connect(listener.address(), {.timeout = std::chrono::milliseconds(200)});
        FAIL() << "was established";
    } catch (const Error& error) {
        EXPECT_EQ(error.code(), std::errc::timed_out) << error.what();
    }
}

TEST_F(Connections, TooMuchPrivateDataIsRefused) {
    a = runtime.create_queue_pair(shape());
    EXPECT_THROW(a.connect("10.0.0.1:1", {.private_data = std::vector<std::byte>(kRequestPrivateDataMax + 1)}), Error);
}

TEST_F(Connections, ADisconnectFlushesBothSides) {
    a = runtime.create_queue_pair(shape());
    b = runtime.create_queue_pair(shape());
    Listener listener = runtime.listen(listen_address());
    connect_while(listener, {}, [&](ConnectionRequest& request) { request.accept(b, patient()); });
    submit(recv(1, 64));
    a.disconnect();
    EXPECT_EQ(await_one().status, Status::wr_flush_err);
    until([&] { return b.disconnected(); });
    EXPECT_TRUE(a.disconnected());
    EXPECT_EQ(session.try_submit(rdma(Opcode::rdma_write, 1, 8)), Refusal::qp_in_error);
    EXPECT_TRUE(a.close());
    EXPECT_TRUE(b.close());
}

TEST_F(Connections, ClosingOneSideTellsTheOther) {
    a = runtime.create_queue_pair(shape());
    b = runtime.create_queue_pair(shape());
    Listener listener = runtime.listen(listen_address());
    connect_while(listener, {}, [&](ConnectionRequest& request) { request.accept(b, patient()); });
    EXPECT_TRUE(a.close());
    until([&] { return b.disconnected(); });
}

TEST_F(Connections, AConnectedQueuePairIsNotConnectedAgain) {
    connect_pair();
    EXPECT_THROW(a.connect(b.info()), Error);
    EXPECT_THROW(a.connect("10.0.0.1:1"), Error);
}

}  // namespace
}  // namespace pollcore::testing
