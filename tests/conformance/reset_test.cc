// A queue pair that begins again: it goes from error over reset to INIT and is connected again. Its handle has a new
// generation.
#include <future>
#include <set>

#include "fixture.hpp"
#include "give_way.hpp"

namespace pollcore::testing {
namespace {

class Reset : public Conformance {
protected:
    void reconnect(const PathAttributes& path = {}) {
        const QpInfo info_a = a.info();
        const QpInfo info_b = b.info();
        a.connect(info_b, path);
        b.connect(info_a, path);
    }

    /// Sends and writes from a to b, and reads by b, so that both send queues and b's receive queue have worked.
    void expect_traffic(std::uint64_t tag) {
        fill(local, static_cast<unsigned>(tag));
        submit(recv(tag, 64));
        submit(send(tag + 1, 64));
        submit(rdma(Opcode::rdma_write, tag + 2, 512));
        for (const Completion& completion : await(3)) {
            EXPECT_EQ(completion.status, Status::success) << "tag " << completion.tag;
        }
        EXPECT_EQ(std::memcmp(local.data(), remote.data(), 512), 0);
        WorkRequest back = rdma(Opcode::rdma_read, tag + 3, 64);
        back.qp = b.handle();
        submit(back);
        EXPECT_EQ(await_one().status, Status::success);
        EXPECT_EQ(session.figures().in_flight(), 0u);
    }

    void break_connection() {
        WorkRequest bad = rdma(Opcode::rdma_write, 1000, 8);
        bad.rkey ^= 0xabcd00;
        submit(bad);
        EXPECT_EQ(await_one().status, Status::rem_access_err);
        EXPECT_EQ(session.state(a.handle()), QpState::error);
    }
};

TEST_F(Reset, FromErrorLeadsToANewConnection) {
    connect_pair();
    expect_traffic(1);
    break_connection();
    EXPECT_TRUE(a.reset());
    EXPECT_TRUE(b.reset());
    EXPECT_EQ(session.state(a.handle()), QpState::init);
    EXPECT_EQ(session.cause(a.handle()), Status::success);
    EXPECT_EQ(session.try_submit(send(1, 8)), Refusal::not_connected);
    reconnect();
    EXPECT_EQ(session.state(a.handle()), QpState::ready);
    expect_traffic(10);
    Exercised::get().note("queue pairs", "reset");
}

// After a failure the worker expects a completion of each request, even of an unsignaled one. After the reset the
// worker must not expect this any more.
TEST_F(Reset, AFailureBeforeItIsNotHeldAgainstWhatComesAfterIt) {
    connect_pair();
    break_connection();
    EXPECT_TRUE(a.reset());
    EXPECT_TRUE(b.reset());
    reconnect();
    const std::uint64_t retired = session.figures().retired;
    for (std::uint64_t tag = 1; tag <= 2; ++tag) {
        WorkRequest quiet = rdma(Opcode::rdma_write, tag, 8);
        quiet.flags = 0;
        submit(quiet);
    }
    submit(rdma(Opcode::rdma_write, 3, 8));
    const Completion last = await_one();
    EXPECT_EQ(last.tag, 3u);
    EXPECT_EQ(last.status, Status::success);
    EXPECT_EQ(session.figures().retired, retired + 2);
    EXPECT_EQ(session.figures().in_flight(), 0u);
}

TEST_F(Reset, FromReadyAndFromInitLeadsToANewConnection) {
    connect_pair();
    EXPECT_TRUE(a.reset());
    EXPECT_TRUE(b.reset());
    submit(recv(7, 64));  // is posted in INIT, and the next reset flushes it
    EXPECT_TRUE(b.reset());
    const Completion ended = await_one();
    EXPECT_EQ(ended.tag, 7u);
    EXPECT_EQ(ended.status, Status::wr_flush_err);
    reconnect();
    expect_traffic(10);
}

TEST_F(Reset, WithWorkInFlightCompletesAllOfItInOrder) {
    connect_pair(shape(), {.timeout = 14, .retry_count = 6, .rnr_retry = 7, .min_rnr_timer = 20});
    // On queue pair a, sends wait for a receive of the peer, and receives wait for a message.
    for (std::uint64_t tag = 0; tag < 60; ++tag) {
        const bool signal = tag % 3 == 0;
        submit(send(tag, 16, signal ? std::uint8_t{kSignaled} : std::uint8_t{0}));
        WorkRequest waiting = recv(100 + tag, 64);
        waiting.qp = a.handle();
        submit(waiting);
    }
    const QpHandle old = a.handle();
    EXPECT_TRUE(a.reset());
    EXPECT_EQ(session.figures().accepted, 120u);
    EXPECT_EQ(session.figures().retired, 0u) << "no send had succeeded";
    const auto completions = await(120);
    const auto sends = of(completions, old, false);
    const auto recvs = of(completions, old, true);
    ASSERT_EQ(sends.size(), 60u);
    ASSERT_EQ(recvs.size(), 60u);
    for (std::uint64_t i = 0; i < 60; ++i) {
        EXPECT_EQ(sends[i].tag, i);
        EXPECT_EQ(recvs[i].tag, 100 + i);
        EXPECT_NE(sends[i].status, Status::success);
        EXPECT_NE(recvs[i].status, Status::success);
    }
    EXPECT_EQ(session.figures().in_flight(), 0u);
    EXPECT_TRUE(b.reset());
    reconnect();
    expect_traffic(1000);
}

TEST_F(Reset, AStaleHandleIsRefused) {
    connect_pair();
    const WorkRequest old_write = rdma(Opcode::rdma_write, 1, 8);
    const WorkRequest old_recv = recv(2, 64);
    const QpHandle old = a.handle();
    EXPECT_TRUE(a.reset());
    EXPECT_TRUE(b.reset());
    EXPECT_EQ(a.handle().index, old.index);
    EXPECT_NE(a.handle().generation, old.generation);
    EXPECT_EQ(session.try_submit(old_write), Refusal::stale_handle);
    EXPECT_EQ(session.try_submit(old_recv), Refusal::stale_handle);
    EXPECT_EQ(session.state(old), QpState::closed);
    EXPECT_EQ(session.cause(old), Status::qp_closed);
    reconnect();
    EXPECT_EQ(session.try_submit(old_write), Refusal::stale_handle) << "also once the QP is ready";
    EXPECT_EQ(session.try_submit(old_recv), Refusal::stale_handle);
    expect_traffic(10);
}

TEST_F(Reset, WhatIsNotTakenUntilThenCompletesToo) {
    connect_pair();
    // Another thread submits without pause while this thread resets the queue pair. Every request that was accepted
    // under the old handle completes.
    std::atomic<bool> stop{false};
    std::set<std::uint64_t> outstanding;
    std::uint64_t wrong = 0;
    const WorkRequest pattern = rdma(Opcode::rdma_write, 0, 8);  // contains the handle from before the reset
    std::thread submitting([&] {
        Session moved = std::move(session);
        Completion some[32];
        const auto take = [&] {
            const std::size_t n = moved.poll(some);
            for (std::size_t i = 0; i < n; ++i) {
                wrong += outstanding.erase(some[i].tag) != 1;
            }
            return n;
        };
        std::uint64_t tag = 0;
        while (!stop.load()) {
            WorkRequest request = pattern;
            request.tag = tag;
            if (moved.try_submit(request) == Refusal::none) {
                outstanding.insert(tag++);
            }
            take();
        }
        const auto deadline = std::chrono::steady_clock::now() + kPatience;
        while (!outstanding.empty() && std::chrono::steady_clock::now() < deadline) {
            if (take() == 0) {
                test::give_way();
            }
        }
        session = std::move(moved);
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    EXPECT_TRUE(a.reset());
    stop.store(true);
    submitting.join();
    EXPECT_EQ(wrong, 0u) << "completed twice, or never submitted";
    EXPECT_TRUE(outstanding.empty()) << outstanding.size() << " never completed";
    EXPECT_EQ(session.figures().in_flight(), 0u);
}

TEST_F(Reset, ManyInARowWithLateCompletionsGiveNoneToTheWrongLife) {
    connect_pair();
    for (std::uint64_t life = 0; life < 30; ++life) {
        const std::uint64_t base = life * 1000;
        for (std::uint64_t i = 0; i < 40; ++i) {
            submit(recv(base + i, 64));
            submit(send(base + 100 + i, 16, i % 2 == 0 ? std::uint8_t{kSignaled} : std::uint8_t{0}));
        }
        if (life % 3 == 0) {
            WorkRequest bad = rdma(Opcode::rdma_write, base + 500, 8);
            bad.rkey ^= 0xabcd00;
            (void)session.try_submit(bad);
        }
        const QpHandle old_a = a.handle();
        const QpHandle old_b = b.handle();
        EXPECT_TRUE(life % 2 == 0 ? a.reset() : b.reset());
        EXPECT_TRUE(life % 2 == 0 ? b.reset() : a.reset());
        const auto deadline = std::chrono::steady_clock::now() + kPatience;
        std::set<std::uint64_t> seen;
        while (session.figures().in_flight() != 0 && std::chrono::steady_clock::now() < deadline) {
            Completion some[32];
            const std::size_t n = session.poll(some);
            for (std::size_t i = 0; i < n; ++i) {
                EXPECT_EQ(some[i].tag / 1000, life);
                EXPECT_TRUE(some[i].qp == old_a || some[i].qp == old_b);
                EXPECT_TRUE(seen.insert(some[i].tag).second) << "tag " << some[i].tag << " completed twice";
            }
        }
        ASSERT_EQ(session.figures().in_flight(), 0u) << "life " << life;
        reconnect();
        ASSERT_EQ(session.state(a.handle()), QpState::ready);
    }
    expect_traffic(100'000);
}

TEST_F(Reset, OfOneQueuePairLeavesTheOthersOfItsCqAlone) {
    connect_pair();
    QueuePair c = std::move(a);
    QueuePair d = std::move(b);
    connect_pair();
    std::uint64_t written = 0;
    for (int round = 0; round < 10; ++round) {
        for (int i = 0; i < 20; ++i) {
            submit(rdma(Opcode::rdma_write, written++, 64));
        }
        EXPECT_TRUE(c.reset());
        EXPECT_TRUE(d.reset());
        const QpInfo info_c = c.info();
        const QpInfo info_d = d.info();
        c.connect(info_d);
        d.connect(info_c);
        for (const Completion& completion : await(20)) {
            EXPECT_EQ(completion.status, Status::success);
            EXPECT_EQ(completion.qp, a.handle());
        }
    }
    EXPECT_EQ(session.figures().in_flight(), 0u);
}

TEST_F(Reset, AConnectionByAddressIsEndedAndMadeAgain) {
    a = runtime.create_queue_pair(shape());
    b = runtime.create_queue_pair(shape());
    Listener listener = runtime.listen(listen_address());
    for (std::uint64_t life = 0; life < 3; ++life) {
        std::future<void> accepted = std::async(std::launch::async, [&] {
            std::optional<ConnectionRequest> request = listener.next_request(kPatience);
            ASSERT_TRUE(request.has_value());
            request->accept(b, patient());
        });
        a.connect(listener.address(), patient());
        accepted.get();
        expect_traffic(100 * life);
        EXPECT_TRUE(a.reset());
        // The peer learns that the connection has ended.
        until([&] { return b.disconnected(); });
        EXPECT_FALSE(a.disconnected()) << "a new life";
        EXPECT_TRUE(b.reset());
        EXPECT_FALSE(b.disconnected());
    }
}

TEST_F(Reset, OfAnUnreliableConnectionLeadsToANewOne) {
    QueuePairOptions options = shape();
    options.type = QpType::uc;
    connect_pair(options, {});
    for (std::uint64_t life = 0; life < 3; ++life) {
        fill(local, static_cast<unsigned>(life));
        submit(recv(1, 64));
        submit(send(2, 64));
        for (const Completion& completion : await(2)) {
            EXPECT_EQ(completion.status, Status::success) << "tag " << completion.tag;
        }
        EXPECT_EQ(std::memcmp(local.data(), remote.data(), 64), 0);
        submit(recv(3, 64));
        EXPECT_TRUE(a.reset());
        EXPECT_TRUE(b.reset());
        const Completion ended = await_one();
        EXPECT_EQ(ended.tag, 3u);
        EXPECT_EQ(ended.status, Status::wr_flush_err);
        EXPECT_EQ(session.state(b.handle()), QpState::init);
        reconnect();
    }
    EXPECT_EQ(session.figures().in_flight(), 0u);
}

TEST_F(Reset, OfADatagramQueuePairIsReadyAgain) {
    QueuePairOptions options = shape();
    options.type = QpType::ud;
    options.qkey = 0x1234567;
    a = runtime.create_queue_pair(options);
    b = runtime.create_queue_pair(options);
    const std::uint32_t number = b.info().qp_num;
    AddressHandle to_b = runtime.create_address_handle(b.info());
    const auto datagram = [&](std::uint64_t tag) {
        WorkRequest request = send(tag, 64);
        request.ud = {to_b.handle(), number};
        request.remote_qkey = options.qkey;
        return request;
    };
    const auto expect_datagram = [&](std::uint64_t tag) {
        fill(local, static_cast<unsigned>(tag));
        submit(recv(tag, 256));
        submit(datagram(tag + 1));
        for (const Completion& completion : await(2)) {
            EXPECT_EQ(completion.status, Status::success) << "tag " << completion.tag;
            EXPECT_EQ(completion.qp, completion.tag == tag ? b.handle() : a.handle());
        }
        EXPECT_EQ(std::memcmp(local.data(), remote.data() + kGrhBytes, 64), 0);
    };
    expect_datagram(1);
    submit(recv(3, 256));
    const WorkRequest old = datagram(4);
    EXPECT_TRUE(a.reset());
    EXPECT_TRUE(b.reset());
    const Completion ended = await_one();
    EXPECT_EQ(ended.tag, 3u);
    EXPECT_EQ(ended.status, Status::wr_flush_err);
    EXPECT_EQ(session.state(a.handle()), QpState::ready) << "there is no peer to wait for";
    EXPECT_EQ(session.try_submit(old), Refusal::stale_handle);
    EXPECT_EQ(b.info().qp_num, number);
    expect_datagram(10);  // uses the address handle from before the reset

    WorkRequest bad = datagram(20);
    bad.sge.lkey ^= 0xabcd00;
    submit(bad);
    EXPECT_NE(await_one().status, Status::success);
    EXPECT_EQ(session.state(a.handle()), QpState::error);
    EXPECT_TRUE(a.reset());
    EXPECT_EQ(session.cause(a.handle()), Status::success);
    expect_datagram(30);
    EXPECT_EQ(session.figures().in_flight(), 0u);
}

TEST_F(Reset, OfAClosedQueuePairIsRefused) {
    connect_pair();
    EXPECT_TRUE(a.close());
    EXPECT_THROW(a.reset(), Error);
    runtime.stop();
    EXPECT_THROW(b.reset(), Error);
}

}  // namespace
}  // namespace pollcore::testing
