// Tests connection requests: how many may wait, how many a process may hold, and requests whose peer gives up.
#include <cerrno>
#include <chrono>
#include <deque>
#include <functional>
#include <future>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "attach/own_server.hpp"
#include "patient.hpp"
#include "pollcore/attach.hpp"
#include "pollcore/attach_server.hpp"
#include "pollcore/runtime.hpp"

namespace pollcore {
namespace {

using namespace std::chrono_literals;

class RequestTest : public ::testing::Test {
protected:
    static AttachConfig attach_config() { return test::socket_named("requests"); }

    Runtime runtime{test::one_soft_device(512)};
    AttachServer server{runtime, attach_config()};
    Session session = runtime.open_session();
    std::deque<QueuePair> callers;  // outlives the calls that use them

    std::future<int> call(const Listener& listener, std::vector<std::byte> private_data = {}) {
        QueuePair& qp =
            callers.emplace_back(runtime.create_queue_pair({.shares = {{.session = &session, .send_depth = 1}}}));
        return std::async(std::launch::async, [&qp, address = listener.address(), data = std::move(private_data)] {
            try {
                (void)qp.connect(address, {.private_data = data, .timeout = 60s});
                return 0;
            } catch (const Error& error) {
                return error.code().value();
            }
        });
    }
    /// Sends a connection request, and gives up after 1 ms.
    void call_in_vain(const Listener& listener) {
        QueuePair qp = runtime.create_queue_pair({.shares = {{.session = &session, .send_depth = 1}}});
        EXPECT_THROW((void)qp.connect(listener.address(), {.timeout = 1ms}), Error);
        qp.close();  // the withdrawal is under way when this returns; a destructor would not wait for it
    }
    /// The control thread counts the queue pairs from time to time.
    void await_no_queue_pairs() {
        const auto deadline = std::chrono::steady_clock::now() + 60s;
        while (runtime.control_counters().queue_pairs.value() != 0) {
            ASSERT_LT(std::chrono::steady_clock::now(), deadline);
            std::this_thread::sleep_for(1ms);
        }
    }
    [[nodiscard]] Attachment attach() const { return Attachment(test::patient({.path = attach_config().path})); }
};

TEST_F(RequestTest, BeyondAListenersBacklogTheyAreRejectedAndCounted) {
    constexpr std::size_t kBeyond = 8;
    Listener listener = runtime.listen("here");
    std::vector<std::future<int>> calls;
    for (std::size_t i = 0; i < kListenerBacklogMax + kBeyond; ++i) {
        calls.push_back(call(listener));
    }
    const auto refused = [&] {
        std::size_t n = 0;
        for (const auto& one : calls) {
            n += one.wait_for(0s) == std::future_status::ready;
        }
        return n;
    };
    while (refused() < kBeyond) {
        std::this_thread::sleep_for(1ms);
    }
    EXPECT_EQ(runtime.control_counters().requests_refused.value(), kBeyond);
    std::size_t handed_out = 0;
    while (std::optional<ConnectionRequest> request =
               listener.next_request(handed_out < kListenerBacklogMax ? 20s : 0s)) {
        ++handed_out;
    }
    EXPECT_EQ(handed_out, kListenerBacklogMax);
    for (auto& one : calls) {
        EXPECT_EQ(one.get(), ECONNREFUSED);
    }
}

TEST_F(RequestTest, ThoseWhosePeerHasGivenUpAreNotHandedOut) {
    Listener listener = runtime.listen("here");
    for (int i = 0; i < 300; ++i) {
        call_in_vain(listener);
    }
    const std::vector<std::byte> sign{std::byte{7}};
    std::future<int> lives = call(listener, sign);
    std::optional<ConnectionRequest> request = listener.next_request(20s);
    // The withdrawal of the last vain call may still be on its way.
    if (request.has_value() && request->private_data() != sign) {
        request = listener.next_request(20s);
    }
    ASSERT_TRUE(request.has_value());
    EXPECT_EQ(request->private_data(), sign);
    EXPECT_EQ(runtime.control_counters().requests_refused.value(), 0u);
    QueuePair answering = runtime.create_queue_pair({.shares = {{.session = &session, .send_depth = 1}}});
    request->accept(answering);
    EXPECT_EQ(lives.get(), 0);
}

TEST_F(RequestTest, AProcessHoldsNoMoreThanItMayWithoutAnAnswer) {
    constexpr std::size_t kHeld = 64;
    Attachment daemon = attach();
    Listener listener = daemon.listen("here");
    std::vector<std::future<int>> calls;
    for (std::size_t i = 0; i <= kHeld; ++i) {
        calls.push_back(call(listener));
    }
    std::vector<ConnectionRequest> held;
    int error = 0;
    try {
        while (std::optional<ConnectionRequest> request = listener.next_request(20s)) {
            held.push_back(std::move(*request));
        }
    } catch (const Error& refused) {
        error = refused.code().value();
    }
    EXPECT_EQ(error, EDQUOT);
    EXPECT_EQ(held.size(), kHeld);
    held.pop_back();  // rejects the request
    EXPECT_TRUE(listener.next_request(20s).has_value());
    held.clear();
    for (auto& one : calls) {
        EXPECT_EQ(one.get(), ECONNREFUSED);
    }
}

// The process has requests under way for the same queue pairs that end them.
TEST_F(RequestTest, ThatAreAbandonedWhileTheirSessionClosesHarmNobody) {
    Listener listener = runtime.listen("here");  // never answers
    for (int round = 0; round < 20; ++round) {
        Attachment daemon = attach();
        Session session_of_process = daemon.open_session();
        std::deque<QueuePair> qps;
        for (int i = 0; i < 60; ++i) {
            qps.push_back(daemon.create_queue_pair({.shares = {{.session = &session_of_process, .send_depth = 1}}}));
            qps.back().begin_connect("here", {.timeout = 1h});
        }
        std::thread closes([&] { session_of_process.close(); });
        while (!qps.empty()) {
            qps.pop_back();  // abandons the last one
        }
        closes.join();
    }
    EXPECT_EQ(server.counts().evicted, 0u);
    EXPECT_NO_THROW((void)attach().open_session());
}

// Some queue pairs are still being closed or reset when the process detaches.
TEST_F(RequestTest, OperationsUnderWayEndWithTheirProcess) {
    for (int round = 0; round < 20; ++round) {
        Attachment daemon = attach();
        Session session_of_process = daemon.open_session();
        std::deque<QueuePair> qps;
        for (int i = 0; i < 60; ++i) {
            qps.push_back(daemon.create_queue_pair({.shares = {{.session = &session_of_process, .send_depth = 1}}}));
        }
        for (std::size_t i = 0; i < qps.size(); ++i) {
            i % 2 == 0 ? qps[i].begin_close() : qps[i].begin_reset();
        }
        EXPECT_TRUE(daemon.stop());
    }
    await_no_queue_pairs();
}

// The account counts closed queue pairs until the process has taken their events.
TEST_F(RequestTest, AQueuePairThatWasClosedByEventCountsUntilTheEventIsTaken) {
    Attachment daemon = attach();
    Session session_of_process = daemon.open_session();
    for (int i = 0; i < 2000; ++i) {  // many more than a process may have at a time
        QueuePair qp = daemon.create_queue_pair({.shares = {{.session = &session_of_process, .send_depth = 1}}});
        qp.begin_close();
        std::optional<Event> event;
        do {
            event = daemon.next_event(20s);
            ASSERT_TRUE(event.has_value());
        } while (event->type != EventType::closed || event->qp != qp.handle());
    }
    await_no_queue_pairs();
}

}  // namespace
}  // namespace pollcore
