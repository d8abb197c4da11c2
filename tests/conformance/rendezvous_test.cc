// Messages that are longer than the receives of the receiver. The receiver reads them from the sender's memory.
#include <thread>

#include "message_stream.hpp"

namespace pollcore::testing {
namespace {

class Rendezvous : public MessageStream {
protected:
    static constexpr std::uint32_t kShort = 256;
    static constexpr std::uint32_t kLong = 2048;
    static constexpr PathAttributes kNoRetries{.rnr_retry = 0, .min_rnr_timer = 1};

    Rendezvous()
        : pool(runtime.create_receive_pool({.session = &reader, .buffers = 64, .buffer_bytes = kShort})),
          longs(runtime.create_receive_pool({.session = &reader, .buffers = 6, .buffer_bytes = kLong})) {}

    [[nodiscard]] QueuePairOptions sending() {
        QueuePairOptions options = shape(FlowControl::credits);
        options.recv_depth = 4;
        options.coalesce_signals = coalesces;
        return options;
    }
    [[nodiscard]] QueuePairOptions receiving() {
        QueuePairOptions options = sending();
        options.shares[0].session = &reader;
        options.recv_depth = 8;
        options.pool = &pool;
        options.rendezvous_pool = &longs;
        options.rendezvous_share = 4;
        return options;
    }
    void connect_ends() {
        const QpInfo info_a = a.info();
        const QpInfo info_b = b.info();
        a.connect(info_b, kNoRetries);
        b.connect(info_a, kNoRetries);
    }
    void connect_new() {
        a = runtime.create_queue_pair(sending());
        b = runtime.create_queue_pair(receiving());
        connect_ends();
    }
    void stream(std::uint64_t messages, bool pauses) {
        MessageStream::stream({&pool, &longs}, kLong, messages, pauses);
    }
    [[nodiscard]] WorkRequest long_send(std::uint64_t tag, std::uint32_t length) {
        WorkRequest request = send(tag, length);
        request.sge = local_sge(length);
        request.rkey = local.rkey();
        return request;
    }
    Completion hear() {
        const auto all = await(reader, 1);
        return all.empty() ? Completion{} : all.front();
    }

    ReceivePool pool;
    ReceivePool longs;
    bool coalesces = false;
};

TEST_F(Rendezvous, CarriesWhatIsTooLongForAReceiveInItsPlace) {
    connect_new();
    const std::uint64_t before = rnrs();
    stream(2000, true);
    EXPECT_EQ(rnrs(), before);
    EXPECT_GT(longs.counters().delivered.value(), 1000u);
    EXPECT_EQ(longs.counters().delivered.value(), runtime.worker_counters(0).rendezvous.value());
    EXPECT_EQ(pool.counters().delivered.value() + longs.counters().delivered.value(), 2000u);
    EXPECT_EQ(runtime.worker_counters(0).flow_faults.value(), 0u);
    EXPECT_EQ(session.message_max(a.handle()), kShort);
    EXPECT_EQ(session.rendezvous_max(a.handle()), kLong);
    Exercised::get().note("flow control", "rendezvous");
}

TEST_F(Rendezvous, CarriesMessagesWhoseSignalsAreCoalesced) {
    coalesces = true;
    connect_new();
    stream(600, true);
    EXPECT_EQ(pool.counters().delivered.value() + longs.counters().delivered.value(), 600u);
    EXPECT_EQ(runtime.worker_counters(0).flow_faults.value(), 0u);
}

TEST_F(Rendezvous, ServesManyByASharedReceiveQueue) {
    SharedReceiveQueue srq =
        runtime.create_shared_receive_queue({.session = &reader, .depth = 16, .pool = &pool, .credit_connections = 2});
    QueuePairOptions options = receiving();
    options.pool = nullptr;
    options.srq = &srq;
    a = runtime.create_queue_pair(sending());
    b = runtime.create_queue_pair(options);
    connect_ends();
    stream(500, true);
    EXPECT_GT(longs.counters().delivered.value(), 200u);
    EXPECT_TRUE(a.close());
    EXPECT_TRUE(b.close());
}

TEST_F(Rendezvous, RefusesWhatThePeerCannotRead) {
    connect_new();
    stream(4, false);
    EXPECT_EQ(session.try_submit(long_send(1, kLong + 1)), Refusal::message_too_long);
    WorkRequest request = long_send(1, kShort + 1);
    request.rkey = 0;
    EXPECT_EQ(session.try_submit(request), Refusal::message_too_long);
}

// If the ends connect with path attributes that allow no RDMA reads, they do not agree on rendezvous.
TEST_F(Rendezvous, IsNotAgreedWhereNothingCanBeRead) {
    for (const bool at_reader : {true, false}) {
        a = runtime.create_queue_pair(sending());
        b = runtime.create_queue_pair(receiving());
        const QpInfo info_a = a.info();
        const QpInfo info_b = b.info();
        PathAttributes none = kNoRetries;
        (at_reader ? none.max_rd_atomic : none.max_dest_rd_atomic) = 0;
        a.connect(info_b, at_reader ? kNoRetries : none);
        b.connect(info_a, at_reader ? none : kNoRetries);
        submit(long_send(1, kShort + 1));
        EXPECT_EQ(await_one().status, Status::message_too_long);
        submit(send(2, kShort));
        EXPECT_EQ(await_one().status, Status::success);
        EXPECT_EQ(reader.release(hear()), Refusal::none);
        EXPECT_TRUE(a.close());
        EXPECT_TRUE(b.close());
        EXPECT_EQ(reader.release(hear()), Refusal::none);  // releases the final completion
    }
}

TEST_F(Rendezvous, NeedsCreditsAndAPoolForLongerMessages) {
    const auto refused = [&](const QueuePairOptions& options) {
        EXPECT_THROW((void)runtime.create_queue_pair(options), Error);
    };
    QueuePairOptions options = receiving();
    options.flow = FlowControl::off;
    refused(options);
    options = receiving();
    options.pool = nullptr;
    refused(options);
    options = receiving();
    options.rendezvous_pool = &pool;
    refused(options);
    options = receiving();
    options.rendezvous_share = 7;
    refused(options);
    b = runtime.create_queue_pair(receiving());
    EXPECT_THROW(longs.close(), Error) << "it is in use";
}

// One end resets while messages are announced or wait for a buffer.
TEST_F(Rendezvous, EndsWithItsConnectionAndTheNextOneBegins) {
    a = runtime.create_queue_pair(sending());
    b = runtime.create_queue_pair(receiving());
    for (int life = 0; life < 12; ++life) {
        connect_ends();
        if (life % 3 == 0) {
            stream(20, false);
        }
        for (std::uint64_t i = 0; i < 10; ++i) {
            submit(long_send(i, kLong));
        }
        std::vector<Completion> held;
        for (int i = 0; i < life % 5; ++i) {
            held.push_back(hear());  // four held messages leave no buffer for the next message
        }
        EXPECT_TRUE(life % 2 == 0 ? a.reset() : b.reset());
        EXPECT_TRUE(life % 2 == 0 ? b.reset() : a.reset());
        const auto ended = await(10);
        ASSERT_EQ(ended.size(), 10u);
        for (std::uint64_t i = 0; i < 10; ++i) {
            EXPECT_EQ(ended[i].tag, i);
        }
        for (bool over = false; !over;) {
            const Completion last = hear();
            ASSERT_TRUE(last.pooled());
            over = !last.ok();
            EXPECT_EQ(reader.release(last), Refusal::none);
        }
        for (const Completion& completion : held) {
            EXPECT_EQ(reader.release(completion), Refusal::none);
        }
        until([&] { return longs.counters().held.value() + longs.counters().posted.value() == 0; });
        EXPECT_EQ(session.figures().in_flight(), 0u);
    }
    connect_ends();
    stream(100, true);
    EXPECT_EQ(runtime.worker_counters(0).flow_faults.value(), 0u);
}

// A region cannot be deregistered as long as the peer may read it.
TEST_F(Rendezvous, KeepsTheRegionThatItReadsFrom) {
    connect_new();
    MemoryRegion region = runtime.allocate(kLong, Access::all());
    std::vector<Completion> held;
    const auto announce = [&](std::uint64_t tag) {
        WorkRequest request = long_send(tag, kLong);
        request.sge = {region.addr(), kLong, region.lkey()};
        request.rkey = region.rkey();
        submit(request);
    };
    for (std::uint64_t i = 0; i < 4; ++i) {
        announce(i);
        held.push_back(hear());
        EXPECT_EQ(await_one().tag, i);
    }
    announce(4);
    until([&] { return runtime.worker_counters(0).rendezvous.value() == 5; });
    EXPECT_THROW(region.deregister(), Error);
    for (const Completion& completion : held) {
        EXPECT_EQ(reader.release(completion), Refusal::none);
    }
    EXPECT_EQ(reader.release(hear()), Refusal::none);
    EXPECT_EQ(await_one().tag, 4u);
    region.deregister();
}

}  // namespace
}  // namespace pollcore::testing
