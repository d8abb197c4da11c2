// Tests a wire that loses requests, loses answers or repeats requests, and a port that goes down. Each request is
// carried out once, or the sender's connection ends with retry_exc_err because no answer came.
#include <atomic>
#include <thread>

#include "mlx5_fixture.hpp"

namespace pollcore::testing {
namespace {

class Wire : public OnMlx5 {
protected:
    // Requests are repeated after 1 ms.
    static constexpr PathAttributes kQuick{.timeout = 8, .retry_count = 7, .rnr_retry = 7, .min_rnr_timer = 1};
    static constexpr std::uint32_t kRetries = 7;

    ~Wire() override { Model::on_the_wire(0, 0, 0, 1); }

    [[nodiscard]] std::uint64_t& counter() { return *reinterpret_cast<std::uint64_t*>(remote.data() + 4096); }
    /// Each request writes the value that it fetches to its own place in `local`.
    [[nodiscard]] WorkRequest fetch_and_add(std::uint64_t tag) const {
        WorkRequest request = rdma(Opcode::atomic_fetch_and_add, tag, 8);
        request.sge = local_sge(8, 4096 + tag * 8);
        request.remote_addr = remote.addr() + 4096;
        request.compare_add = 1;
        return request;
    }
    [[nodiscard]] std::uint64_t found(std::uint64_t tag) const {
        return *reinterpret_cast<const std::uint64_t*>(local.data() + 4096 + tag * 8);
    }
    /// Submits messages with atomics between them, and calls `fate` before each burst. Expects that all messages and
    /// atomics are carried out once and in order.
    template <class Fate>
    void expect_carried_out_once(std::uint64_t messages, Fate fate) {
        counter() = 0;
        std::uint64_t next = 0;
        for (std::uint64_t first = 0; first < messages; first += kTogether) {
            std::vector<WorkRequest> requests;
            for (std::uint64_t tag = first; tag < first + kTogether; ++tag) {
                std::memcpy(local.data() + tag * 8 % 2048, &tag, 8);
                submit(recv(1000 + tag, 64, 2048 + tag * 8 % 1024));
                requests.push_back(fetch_and_add(tag));
                requests.push_back(send(tag, 8));
                requests.back().sge = local_sge(8, tag * 8 % 2048);
            }
            fate();
            submit(requests);
            const auto all = await(3 * kTogether);
            const auto sent = of(all, a.handle(), false);
            const auto received = of(all, b.handle(), true);
            ASSERT_EQ(sent.size(), 2 * kTogether);
            ASSERT_EQ(received.size(), kTogether);
            for (std::size_t i = 0; i < kTogether; ++i, ++next) {
                ASSERT_EQ(sent[2 * i].status, Status::success);
                ASSERT_EQ(sent[2 * i].opcode, CompletionOpcode::fetch_add);
                ASSERT_EQ(sent[2 * i + 1].status, Status::success);
                ASSERT_EQ(sent[2 * i + 1].tag, next);
                ASSERT_EQ(received[i].status, Status::success);
                ASSERT_EQ(received[i].tag, 1000 + next);
                ASSERT_EQ(found(next), next) << "each adds once";
                ASSERT_EQ(std::memcmp(remote.data() + 2048 + next * 8 % 1024, &next, 8), 0);
            }
        }
        EXPECT_EQ(counter(), messages);
        EXPECT_EQ(session.state(a.handle()), QpState::ready);
        expect_everything_accounted();
    }
    void expect_nobody_answers(std::uint64_t first, std::uint64_t count) {
        const auto sent = of(await(count), a.handle(), false);
        ASSERT_EQ(sent.size(), count);
        for (std::uint64_t i = 0; i < count; ++i) {
            EXPECT_EQ(sent[i].tag, first + i);
            EXPECT_EQ(sent[i].status, i == 0 ? Status::retry_exc_err : Status::wr_flush_err);
        }
        EXPECT_EQ(session.cause(a.handle()), Status::retry_exc_err);
        EXPECT_EQ(session.try_submit(send(0, 8)), Refusal::qp_in_error);
    }

    static constexpr std::size_t kTogether = 4;
};

TEST_F(Wire, LosesRequestsWhichAreSentAgain) {
    connect_pair(shape(), kQuick);
    std::uint32_t lost = 0;
    expect_carried_out_once(40, [&] { Model::lose_requests(a.qp_num(), ++lost % (kRetries + 1)); });
}

TEST_F(Wire, LosesAcknowledgementsOfWhatIsNotDoneAgain) {
    connect_pair(shape(), kQuick);
    std::uint32_t lost = 0;
    expect_carried_out_once(40, [&] { Model::lose_answers(a.qp_num(), ++lost % (kRetries + 1)); });
}

TEST_F(Wire, BringsRequestsTwiceOfWhichOneCounts) {
    connect_pair(shape(), kQuick);
    expect_carried_out_once(400, [&] { Model::repeat_requests(a.qp_num(), 5); });
}

TEST_F(Wire, OfAllFaultsTogetherLosesNothing) {
    connect_pair(shape(), kQuick);
    for (std::uint64_t seed = 1; seed <= 5; ++seed) {
        SCOPED_TRACE(seed);
        Model::on_the_wire(30, 30, 100, seed);
        expect_carried_out_once(200, [] {});
    }
}

TEST_F(Wire, ThatStaysSilentLongerThanTheRetriesEndsTheConnection) {
    for (const std::uint8_t retries : {0, 2, 7}) {
        SCOPED_TRACE(retries);
        reconnect(shape(), {.timeout = 8, .retry_count = retries});
        Model::lose_requests(a.qp_num(), retries);
        submit(rdma(Opcode::rdma_write, 1, 8));
        EXPECT_EQ(await_one().status, Status::success) << "in time";
        Model::lose_requests(a.qp_num(), retries + 1);
        submit({rdma(Opcode::rdma_write, 2, 8, 0), rdma(Opcode::rdma_read, 3, 8), rdma(Opcode::rdma_write, 4, 8, 0)});
        expect_nobody_answers(2, 3);
        expect_everything_accounted();
    }
}

TEST_F(Wire, ThatLosesTheLastAcknowledgementEndsTheSenderAndNotTheReceiver) {
    connect_pair(shape(), {.timeout = 8, .retry_count = 2});
    submit({recv(1, 64), recv(2, 64)});
    Model::lose_answers(a.qp_num(), 3);
    submit({send(11, 8), send(12, 8)});
    const auto all = await(3);
    const auto received = of(all, b.handle(), true);
    const auto sent = of(all, a.handle(), false);
    ASSERT_EQ(received.size(), 1u) << "it arrived, once";
    EXPECT_EQ(received[0].status, Status::success);
    ASSERT_EQ(sent.size(), 2u);
    EXPECT_EQ(sent[0].status, Status::retry_exc_err);
    EXPECT_EQ(sent[1].status, Status::wr_flush_err);
    EXPECT_EQ(session.state(b.handle()), QpState::ready);
    EXPECT_TRUE(b.close());
    EXPECT_EQ(await_one().tag, 2u);
    expect_everything_accounted();
}

// ---- The port ----

class Port : public Wire {
protected:
    ~Port() override { Model::set_port("mlx5_0", true); }
    void expect_event(EventType type) {
        const std::optional<Event> event = await_event(type);
        ASSERT_TRUE(event.has_value()) << event_type_name(type);
        EXPECT_EQ(event->port, 1);
        expect_acknowledged();
    }
};

TEST_F(Port, ThatComesBackInTimeUnderTrafficLosesNothing) {
    connect_pair(shape(), {.timeout = 14, .retry_count = 7});
    const Counter& completed = runtime.worker_counters(0).completions;
    std::atomic<bool> stop = false;
    std::uint64_t outages = 0;
    std::thread flapping([&] {
        for (; !stop; ++outages) {
            Model::set_port("mlx5_0", false);
            std::this_thread::sleep_for(std::chrono::milliseconds(2));
            const std::uint64_t before = completed.value();
            Model::set_port("mlx5_0", true);
            // Eight outages, one at each try of a request, would end the connection.
            while (!stop && completed.value() == before) {
                test::give_way();
            }
            std::this_thread::sleep_for(std::chrono::milliseconds(10));
        }
    });
    // A request that finds the port down is repeated 67 ms later.
    expect_carried_out_once(8, [] {});
    for (std::uint64_t tag = 0; told(EventType::port_active) < 20 && !HasFailure(); ++tag) {
        submit(rdma(Opcode::rdma_write, tag, 8));
        const Completion completion = await_one();
        EXPECT_EQ(completion.status, Status::success);
        EXPECT_EQ(completion.tag, tag);
    }
    stop = true;
    flapping.join();
    until([&] { return told(EventType::port_active) == outages; });
    expect_event(EventType::port_err);
    expect_event(EventType::port_active);
    expect_everything_accounted();
}

TEST_F(Port, ThatStaysDownEndsItsConnectionsAndServesNewOnesWhenItIsBack) {
    connect_two_pairs(shape(), {.timeout = 10, .retry_count = 2});
    submit(recv(100, 64));
    Model::set_port("mlx5_0", false);
    expect_event(EventType::port_err);
    submit({send(1, 8), rdma(Opcode::rdma_write, 2, 8, 0), rdma(Opcode::rdma_read, 3, 8)});
    expect_nobody_answers(1, 3);
    EXPECT_EQ(session.state(b.handle()), QpState::ready);
    EXPECT_EQ(session.state(c.handle()), QpState::ready) << "which sent nothing";
    Model::set_port("mlx5_0", true);
    expect_event(EventType::port_active);
    expect_message(c, d);
    EXPECT_TRUE(a.close());
    EXPECT_TRUE(b.close());
    EXPECT_EQ(await_one().tag, 100u);
    expect_new_pairs_work();
    expect_everything_accounted();
}

}  // namespace
}  // namespace pollcore::testing
