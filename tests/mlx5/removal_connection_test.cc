// Tests that unplugging a device ends everything that rdma_cm has made on the device.
#include <atomic>
#include <thread>

#include "removal_fixture.hpp"

namespace pollcore::testing {
namespace {

using namespace std::chrono_literals;

TEST_F(Removal, EndsAConnectionAttempt) {
    Listener listener = runtime.listen(unplugged.address + ":0", "net0");
    QueuePair waiting = runtime.create_queue_pair(shape("net0"));
    std::thread connecting([&] {
        EXPECT_THROW(waiting.connect(listener.address(), {.timeout = std::chrono::milliseconds(600'000)}), Error);
    });
    const std::optional<ConnectionRequest> unanswered = listener.next_request(kPatience);
    EXPECT_TRUE(unanswered.has_value());
    lose();
    connecting.join();
    EXPECT_TRUE(waiting.close());
    expect_others_go_on();
}

TEST_F(Removal, WhileConnectionsAreMadeEndsThem) {
    Listener listener = runtime.listen(unplugged.address + ":0", "net0");
    std::atomic<bool> stop = false;
    std::atomic<std::uint64_t> connected = 0;
    std::thread accepting([&] {
        std::vector<QueuePair> accepted;
        while (!stop) {
            try {
                if (std::optional<ConnectionRequest> request = listener.next_request(10ms)) {
                    accepted.push_back(runtime.create_queue_pair(shape("net0")));
                    request->accept(accepted.back());
                }
            } catch (const Error&) {
                // The device was unplugged in the middle of a connection attempt. Then the caller's call also fails.
            }
            if (accepted.size() > 20) {
                accepted.clear();
            }
        }
    });
    std::thread unplugging([&] {
        until([&] { return connected >= 10 + static_cast<std::uint64_t>(unplugged.number); });
        unplug();
    });
    bool refused = false;
    until([&] {
        try {
            QueuePair caller = runtime.create_queue_pair(shape("net0"));
            caller.connect(listener.address(), {.timeout = std::chrono::milliseconds(600'000)});
            ++connected;
        } catch (const Error& error) {
            refused = error.code() == std::errc::no_such_device;
        }
        return refused;
    });
    unplugging.join();
    stop = true;
    accepting.join();
    EXPECT_TRUE(refused);
    expect_told();
    expect_others_go_on();
}

TEST_F(Removal, EndsConnectionsAndListeners) {
    Listener listener = runtime.listen(unplugged.address + ":0", "net0");
    QueuePair caller = runtime.create_queue_pair(shape("net0"));
    QueuePair called = runtime.create_queue_pair(shape("net0"));
    std::thread connecting([&] { caller.connect(listener.address(), {.timeout = kPatience}); });
    std::optional<ConnectionRequest> request = listener.next_request(kPatience);
    ASSERT_TRUE(request.has_value());
    request->accept(called);
    connecting.join();
    WorkRequest receive = recv(first, 1);
    receive.qp = called.handle();
    submit(receive);
    WorkRequest message = send(first, 2);
    message.qp = caller.handle();
    submit(message);
    EXPECT_EQ(await(2).size(), 2u);
    submit(receive);
    lose();
    expect_removed(await(1));
    for (QueuePair* qp : {&caller, &called}) {
        EXPECT_EQ(session.state(qp->handle()), QpState::error);
        EXPECT_EQ(session.cause(qp->handle()), Status::device_removed);
        EXPECT_TRUE(qp->close());
    }
    // The listener gets no more requests, and next_request() does not hang.
    try {
        EXPECT_FALSE(listener.next_request(20ms).has_value());
    } catch (const Error& error) {
        EXPECT_EQ(error.code(), std::errc::no_such_device) << error.what();
    }
    listener = Listener();
    expect_others_go_on();
}

TEST_F(Removal, OfTheCalledSideIsTheEndForItsCaller) {
    Listener listener = runtime.listen(unplugged.address + ":0", "net0");
    QueuePair caller = runtime.create_queue_pair(shape("net1"));
    QueuePair called = runtime.create_queue_pair(shape("net0"));
    std::thread connecting(
        [&] { caller.connect(listener.address(), {.path = {.timeout = 8, .retry_count = 2}, .timeout = kPatience}); });
    std::optional<ConnectionRequest> request = listener.next_request(kPatience);
    ASSERT_TRUE(request.has_value());
    request->accept(called);
    connecting.join();
    lose();
    WorkRequest message = write(second, 2);
    message.qp = caller.handle();
    if (session.try_submit(message) == Refusal::none) {
        const Status status = await(1).at(0).status;
        EXPECT_TRUE(status == Status::retry_exc_err || status == Status::wr_flush_err) << status_name(status);
    }
    EXPECT_NE(session.cause(caller.handle()), Status::success);
    EXPECT_TRUE(caller.close());
    EXPECT_TRUE(called.close());
    expect_others_go_on();
}

}  // namespace
}  // namespace pollcore::testing
