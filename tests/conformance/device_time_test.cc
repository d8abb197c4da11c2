// Completions contain the device's time stamps if their session asks for them. A device without time stamps refuses the
// queue pairs of such a session.
#include <chrono>
#include <cstring>
#include <map>
#include <utility>

#include "fixture.hpp"

namespace pollcore::testing {
namespace {

const SessionOptions kWithTimes{.pool_buffers = 64, .wide_completions = true, .device_time = true};

class DeviceTime : public Conformance, public ::testing::WithParamInterface<bool> {
protected:
    explicit DeviceTime(const Config& config = test_config())
        : Conformance(config), device(runtime.report().devices.at(0)), timed(runtime.open_session(kWithTimes)) {}

    [[nodiscard]] QueuePairOptions of_session(Session& first) {
        QueuePairOptions options = shape();
        options.shares[0].session = &first;
        return options;
    }
    [[nodiscard]] QueuePairOptions of_timed() { return of_session(timed); }
    void expect_error(int error, auto call) {
        try {
            call();
            ADD_FAILURE() << "it was not refused";
        } catch (const Error& refused) {
            EXPECT_EQ(refused.code().value(), error) << refused.what();
        }
    }
    /// Returns true if the device has no time stamps. The test then ends, because has_none() has already checked that
    /// queue pairs of the timed session are refused with EOPNOTSUPP.
    bool has_none() {
        if (device.completion_timestamp_mask != 0) {
            return false;
        }
        EXPECT_EQ(device.hca_core_clock_khz, 0u);
        expect_error(EOPNOTSUPP, [&] { (void)runtime.create_queue_pair(of_timed()); });
        QueuePairOptions both = shape();
        both.shares.push_back({.session = &timed, .send_depth = 8});
        expect_error(EOPNOTSUPP, [&] { (void)runtime.create_queue_pair(both); });
        connect_pair();
        submit(rdma(Opcode::rdma_write, 1, 8));
        EXPECT_EQ(await_one().status, Status::success) << "that others can do without";
        return true;
    }
    void connect(const QueuePairOptions& near, const QueuePairOptions& far, const PathAttributes& path = {}) {
        a = runtime.create_queue_pair(near);
        b = runtime.create_queue_pair(far);
        const QpInfo info_a = a.info();
        const QpInfo info_b = b.info();
        a.connect(info_b, path);
        b.connect(info_a, path);
    }
    /// Checks that the times of each queue are in order. On the software device, it also checks that the times lie
    /// between two readings of the host's clock.
    void expect_times(const std::vector<WideCompletion>& completions) {
        for (const WideCompletion& completion : completions) {
            EXPECT_EQ(completion.status, Status::success);
            EXPECT_NE(completion.device_time, 0u) << completion.tag;
            EXPECT_EQ(completion.device_time & ~device.completion_timestamp_mask, 0u);
            const auto [last, first] =
                newest.try_emplace({completion.qp.index, completion.from_recv_queue()}, completion.device_time);
            if (!first) {
                EXPECT_LT((completion.device_time - last->second) & device.completion_timestamp_mask,
                          device.completion_timestamp_mask / 2)
                    << completion.tag << " was before the one before it";
                last->second = completion.device_time;
            }
            if (!TestDevice::get().verbs) {
                EXPECT_GE(completion.device_time, begin);
                EXPECT_LE(completion.device_time, host_now());
            }
        }
    }
    static std::uint64_t host_now() {
        return static_cast<std::uint64_t>(
            std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
                .count());
    }

    const DeviceReport device;
    TestSession timed;
    const std::uint64_t begin = host_now();
    // The last time of each queue, by queue pair and kind of queue.
    std::map<std::pair<std::uint32_t, bool>, std::uint64_t> newest;
};

TEST_P(DeviceTime, StandsInTheCompletionsOfBothQueuesAndNeverGoesBack) {
    if (has_none()) {
        return;
    }
    EXPECT_NE(device.hca_core_clock_khz, 0u);
    QueuePairOptions options = of_timed();
    options.separate_cqs = GetParam();
    connect(options, options);
    for (std::uint64_t round = 0; round < 60; ++round) {
        submit(timed, recv(6 * round, 64));
        WorkRequest with = send(6 * round + 1, 24);
        with.opcode = Opcode::send_with_imm;
        submit(timed, with);
        // This request is unsignaled, so it has no completion. A later completion covers it.
        submit(timed, rdma(Opcode::rdma_write, 6 * round + 2, 8, 0));
        submit(timed, rdma(Opcode::rdma_write, 6 * round + 3, 8));
        submit(timed, rdma(Opcode::rdma_read, 6 * round + 4, 16));
        submit(timed, rdma(Opcode::atomic_fetch_and_add, 6 * round + 5, 8));
        if (round % 3 == 2) {
            const auto completions = await_wide(timed, 3 * 5);
            ASSERT_EQ(completions.size(), 15u);
            expect_times(completions);
        }
    }
    EXPECT_EQ(newest.size(), 2u);
    EXPECT_EQ(timed.figures().in_flight(), 0u);
}

TEST_P(DeviceTime, IsOfTheSessionsThatAskedAndZeroForOthersOnTheirQueuePairs) {
    if (has_none()) {
        return;
    }
    TestSession wide = runtime.open_session({.wide_completions = true});
    QueuePairOptions options = shape();
    options.separate_cqs = GetParam();
    options.shares = {{.session = &wide, .send_depth = 16},
                      {.session = &timed, .send_depth = 16},
                      {.session = &session, .send_depth = 16}};
    connect(options, options);
    for (std::uint64_t tag = 0; tag < 16; ++tag) {
        submit(wide, recv(100 + tag, 64));
        submit(timed, send(tag, 8));
        submit(wide, rdma(Opcode::rdma_write, tag, 8));
        submit(session, rdma(Opcode::rdma_write, tag, 8));
    }
    expect_times(await_wide(timed, 16));
    for (const WideCompletion& completion : await_wide(wide, 32)) {
        EXPECT_EQ(completion.status, Status::success);
        EXPECT_EQ(completion.device_time, 0u);
    }
    for (const WideCompletion& completion : await_wide(session, 16)) {
        EXPECT_EQ(completion.status, Status::success);
        EXPECT_EQ(completion.device_time, 0u);
    }
}

TEST_P(DeviceTime, IsZeroOfWhatFailed) {
    if (has_none()) {
        return;
    }
    QueuePairOptions options = of_timed();
    options.separate_cqs = GetParam();
    connect(options, options);
    submit(timed, recv(1, 64));
    WorkRequest bad = rdma(Opcode::rdma_write, 3, 8);
    bad.rkey ^= 0xabcd00;
    const WorkRequest requests[] = {rdma(Opcode::rdma_write, 2, 8), bad, rdma(Opcode::rdma_write, 4, 8), send(5, 8)};
    ASSERT_EQ(timed.try_submit(std::span(requests)).accepted, std::size(requests));
    const auto sent = [&] {
        std::vector<WideCompletion> some;
        while (some.size() < std::size(requests)) {
            const auto one = await_wide(timed, 1);
            if (one.empty()) {
                break;
            }
            if (one[0].from_recv_queue()) {  // the peer's receive, which was flushed
                EXPECT_EQ(one[0].device_time, 0u);
                EXPECT_FALSE(one[0].ok());
            } else {
                some.push_back(one[0]);
            }
        }
        return some;
    }();
    ASSERT_EQ(sent.size(), 4u);
    expect_times({sent[0]});
    EXPECT_EQ(sent[1].status, Status::rem_access_err);
    EXPECT_EQ(sent[2].status, Status::wr_flush_err);
    EXPECT_EQ(sent[3].status, Status::wr_flush_err);
    for (std::size_t i = 1; i < 4; ++i) {
        EXPECT_EQ(sent[i].device_time, 0u) << sent[i].tag;
    }
    // After a reset, completions have times again.
    EXPECT_TRUE(a.reset());
    EXPECT_TRUE(b.reset());
    WideCompletion left;
    while (timed.poll({&left, 1}) == 1) {
        EXPECT_EQ(left.device_time, 0u) << left.tag;
    }
    const QpInfo info_a = a.info();
    const QpInfo info_b = b.info();
    a.connect(info_b, PathAttributes{});
    b.connect(info_a, PathAttributes{});
    submit(timed, rdma(Opcode::rdma_write, 6, 8));
    expect_times(await_wide(timed, 1));
}

TEST_P(DeviceTime, StandsInWhatASharedReceiveQueueTookAndWhatItsPoolGave) {
    if (has_none()) {
        return;
    }
    ReceivePool pool = runtime.create_receive_pool({.session = &timed, .buffers = 32, .buffer_bytes = 256});
    SharedReceiveQueue srq = GetParam()
                                 ? runtime.create_shared_receive_queue({.session = &timed, .depth = 16, .pool = &pool})
                                 : runtime.create_shared_receive_queue({.session = &timed, .depth = 16});
    QueuePairOptions receiving = of_timed();
    receiving.srq = &srq;
    connect(shape(), receiving, {.rnr_retry = 7, .min_rnr_timer = 1});
    for (std::uint64_t tag = 0; tag < 40; ++tag) {
        if (!GetParam()) {
            submit(timed,
                   {.tag = tag, .sge = remote_sge(64), .srq = srq.handle(), .opcode = Opcode::srq_recv, .num_sge = 1});
        }
        submit(send(tag, 8));
        const auto received = await_wide(timed, 1);
        ASSERT_EQ(received.size(), 1u);
        expect_times(received);
        EXPECT_EQ(received[0].pooled(), GetParam());
        if (received[0].pooled()) {
            until([&] { return timed.release(received[0]) == Refusal::none; });
        }
        EXPECT_EQ(await_one().status, Status::success);
    }
}

TEST_P(DeviceTime, StandsBesideWhereADatagramCameFrom) {
    if (has_none()) {
        return;
    }
    QueuePairOptions options = of_timed();
    options.type = QpType::ud;
    options.sges_max = 1;
    options.separate_cqs = GetParam();
    a = runtime.create_queue_pair(options);
    b = runtime.create_queue_pair(options);
    const AddressHandle way = runtime.create_address_handle(b.info());
    submit(timed, recv(1, 256));
    WorkRequest datagram = send(2, 8);
    datagram.ud = {way.handle(), b.qp_num()};
    datagram.remote_qkey = b.info().qkey;
    submit(timed, datagram);
    const auto completions = await_wide(timed, 2);
    ASSERT_EQ(completions.size(), 2u);
    expect_times(completions);
    for (const WideCompletion& completion : completions) {
        EXPECT_EQ(completion.src_qp, completion.from_recv_queue() ? a.qp_num() : 0u);
    }
}

// For a rendezvous message the device completes only requests that the runtime has posted itself: a write at the
// sender, and a write and a read at the receiver.
TEST_P(DeviceTime, IsZeroOfWhatCameByRendezvousAtBothEnds) {
    if (has_none()) {
        return;
    }
    ReceivePool pool = runtime.create_receive_pool({.session = &timed, .buffers = 16, .buffer_bytes = 256});
    ReceivePool longs = runtime.create_receive_pool({.session = &timed, .buffers = 6, .buffer_bytes = 2048});
    QueuePairOptions options = of_timed();
    options.flow = FlowControl::credits;
    options.recv_depth = 8;
    options.separate_cqs = GetParam();
    QueuePairOptions receiving = options;
    receiving.pool = &pool;
    receiving.rendezvous_pool = &longs;
    receiving.rendezvous_share = 4;
    connect(options, receiving);
    for (std::uint64_t tag = 0; tag < 40; ++tag) {
        const bool is_long = tag % 2 == 0;
        WorkRequest request = send(tag, is_long ? 1024 : 64);
        request.rkey = is_long ? local.rkey() : 0;
        submit(timed, request);
        const auto completions = await_wide(timed, 2);
        ASSERT_EQ(completions.size(), 2u);
        for (const WideCompletion& completion : completions) {
            if (is_long) {
                EXPECT_EQ(completion.status, Status::success);
                EXPECT_EQ(completion.device_time, 0u);
            } else {
                expect_times({completion});
            }
            if (completion.pooled()) {
                until([&] { return timed.release(completion) == Refusal::none; });
            }
        }
    }
}

// Runs only in this process, because a daemon's counters include the CQs of other tests.
TEST_P(DeviceTime, InThisProcessHasCqsOfItsOwnThatGoWithItsQueuePairs) {
    if (has_none()) {
        return;
    }
    const auto expect_cqs = [&](std::uint64_t wanted) {
        until([&] { return runtime.control_counters().completion_queues.value() == wanted; });
    };
    const std::uint64_t queues = GetParam() ? 2 : 1;
    QueuePairOptions options = shape();
    options.separate_cqs = GetParam();
    connect_pair(options, PathAttributes{});
    expect_cqs(queues);
    {
        QueuePairOptions with = of_timed();
        with.separate_cqs = GetParam();
        const QueuePair first = runtime.create_queue_pair(with);
        const QueuePair second = runtime.create_queue_pair(with);
        const QueuePair other = runtime.create_queue_pair(options);
        expect_cqs(2 * queues);
    }
    expect_cqs(queues);
}

INSTANTIATE_TEST_SUITE_P(Cqs, DeviceTime, ::testing::Bool(), [](const auto& separate) {
    return std::string(separate.param ? "OneForEachQueue" : "OneForBoth");
});

class DeviceTimeOfRings : public DeviceTime {
protected:
    DeviceTimeOfRings() : DeviceTime(config_for_rings()) {}
};

// The worker finds messages in a write ring by looking at memory, so they have no time. At the sender the device
// completes a write, which has a time.
TEST_P(DeviceTimeOfRings, IsZeroOfWhatCameByAWriteRingAndThereForItsSender) {
    if (has_none()) {
        return;
    }
    ReceivePool ring = runtime.create_write_ring({.session = &timed, .bytes = 8192, .messages = 32});
    QueuePairOptions sending = of_timed();
    sending.flow = FlowControl::ring;
    sending.separate_cqs = GetParam();
    QueuePairOptions receiving = sending;
    receiving.pool = &ring;
    connect(sending, receiving);
    for (std::uint64_t tag = 0; tag < 40; ++tag) {
        submit(timed, send(tag, 64));
        for (const WideCompletion& completion : await_wide(timed, 2)) {
            if (completion.from_recv_queue()) {
                EXPECT_EQ(completion.status, Status::success);
                EXPECT_EQ(completion.device_time, 0u);
                until([&] { return timed.release(completion) == Refusal::none; });
            } else {
                expect_times({completion});
            }
        }
    }
}

INSTANTIATE_TEST_SUITE_P(Cqs, DeviceTimeOfRings, ::testing::Bool(), [](const auto& separate) {
    return std::string(separate.param ? "OneForEachQueue" : "OneForBoth");
});

class DeviceTimeOptions : public Conformance {};

TEST_F(DeviceTimeOptions, NeedWideCompletions) {
    try {
        (void)runtime.open_session({.device_time = true});
        ADD_FAILURE() << "it was opened";
    } catch (const Error& error) {
        EXPECT_EQ(error.code().value(), EINVAL);
        EXPECT_NE(std::strstr(error.what(), "device_time needs wide_completions"), nullptr) << error.what();
    }
    const TestSession after = runtime.open_session({.wide_completions = true, .device_time = true});
}

}  // namespace
}  // namespace pollcore::testing
