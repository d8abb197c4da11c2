// Shared receive queues. Several queue pairs take their receives from one queue.
#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <thread>

#include "fixture.hpp"
#include "give_way.hpp"

namespace pollcore::testing {
namespace {

class SharedReceives : public Conformance {
protected:
    static constexpr std::uint32_t kBuffer = 1024;
    // With these attributes a send waits for its receive for ever, and retries often.
    static constexpr PathAttributes kPatient{.rnr_retry = 7, .min_rnr_timer = 1};

    [[nodiscard]] SharedReceiveQueue make_srq(std::uint32_t depth = 32) {
        return runtime.create_shared_receive_queue({.session = &session, .depth = depth, .sges_max = 4});
    }
    [[nodiscard]] QueuePairOptions receiver_shape() {
        QueuePairOptions options = shape();
        options.srq = &srq;
        return options;
    }
    void add_pair(const PathAttributes& path = kPatient) { add_pair(receiver_shape(), path); }
    void add_pair(const QueuePairOptions& receiver, const PathAttributes& path) {
        QueuePair one = runtime.create_queue_pair(shape());
        QueuePair other = runtime.create_queue_pair(receiver);
        const QpInfo info_one = one.info();
        const QpInfo info_other = other.info();
        one.connect(info_other, path);
        other.connect(info_one, path);
        from.push_back(std::move(one));
        to.push_back(std::move(other));
    }
    void add_pairs(std::size_t n) {
        for (std::size_t i = 0; i < n; ++i) {
            add_pair();
        }
    }

    /// A receive into a part of `remote` that depends on the tag.
    [[nodiscard]] WorkRequest receive(std::uint64_t tag, std::uint32_t length = kBuffer) const {
        return {.tag = tag,
                .sge = remote_sge(length, tag % (kBytes / kBuffer) * kBuffer),
                .srq = srq.handle(),
                .opcode = Opcode::srq_recv,
                .num_sge = 1};
    }
    [[nodiscard]] WorkRequest message(std::size_t pair, std::uint64_t tag, std::uint32_t length,
                                      std::size_t at = 0) const {
        return {.tag = tag,
                .sge = local_sge(length, at),
                .qp = from[pair].handle(),
                .opcode = Opcode::send,
                .flags = kSignaled,
                .num_sge = 1};
    }
    /// Waits for two completions. Returns the send's completion first, in whatever order they come.
    std::pair<Completion, Completion> await_message() {
        const auto both = await(2);
        if (both.size() < 2) {
            return {};
        }
        return both[0].from_recv_queue() ? std::pair{both[1], both[0]} : std::pair{both[0], both[1]};
    }
    void expect_message_goes_through(std::size_t pair, std::uint64_t receive_tag) {
        submit(message(pair, 77, 100));
        const auto [sent, received] = await_message();
        EXPECT_EQ(sent.status, Status::success);
        EXPECT_EQ(received.status, Status::success);
        EXPECT_EQ(received.tag, receive_tag);
        EXPECT_EQ(received.qp, to[pair].handle());
    }
    std::uint64_t in_flight() { return session.figures().in_flight(); }

    SharedReceiveQueue srq = make_srq();
    std::vector<QueuePair> from;
    std::vector<QueuePair> to;
};

TEST_F(SharedReceives, AreTakenByWhicheverQueuePairGetsAMessage) {
    add_pairs(4);
    for (std::uint64_t tag = 0; tag < 32; ++tag) {
        submit(receive(tag));
    }
    for (std::size_t pair = 0; pair < from.size(); ++pair) {
        local.data()[pair * 64] = static_cast<std::byte>(pair);
    }
    std::vector<Completion> received;
    for (std::uint64_t i = 0; i < 32; ++i) {
        const std::size_t pair = i * 7 % 4;
        submit(message(pair, 100 + i, 10 + static_cast<std::uint32_t>(pair), pair * 64));
    }
    for (const Completion& completion : await(64)) {
        EXPECT_EQ(completion.status, Status::success);
        if (completion.from_recv_queue()) {
            received.push_back(completion);
        } else {
            EXPECT_FALSE(completion.srq.valid());
        }
    }
    ASSERT_EQ(received.size(), 32u);
    std::set<std::uint64_t> tags;
    for (const Completion& completion : received) {
        tags.insert(completion.tag);
        EXPECT_EQ(completion.opcode, CompletionOpcode::recv);
        EXPECT_EQ(completion.srq, srq.handle());
        // The first byte of the message contains the number of its sender.
        const auto pair = static_cast<std::size_t>(remote.data()[completion.tag * kBuffer]);
        ASSERT_LT(pair, to.size());
        EXPECT_EQ(completion.qp, to[pair].handle());
        EXPECT_EQ(completion.byte_len, 10 + pair);
    }
    EXPECT_EQ(tags.size(), 32u);
    EXPECT_EQ(in_flight(), 0u);
}

// Messages of different lengths do not end in the order in which they began, so the shared receives complete out of
// order.
TEST_F(SharedReceives, ComeBackInAnyOrderForEver) {
    srq.close();
    srq = make_srq(4);
    add_pairs(4);
    std::mt19937 random(5);
    constexpr std::uint64_t kMessages = 400;
    std::vector<std::uint64_t> free_tags{0, 1, 2, 3};
    std::uint64_t sent = 0;
    std::uint64_t acknowledged = 0;
    std::uint64_t received = 0;
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    while ((acknowledged < kMessages || received < kMessages) && std::chrono::steady_clock::now() < deadline) {
        while (!free_tags.empty()) {
            WorkRequest request = receive(free_tags.back());
            request.sge = remote_sge(16 * kBuffer, free_tags.back() * 16 * kBuffer);
            submit(request);
            free_tags.pop_back();
        }
        EXPECT_EQ(session.try_submit(receive(9)), Refusal::srq_full);
        if (sent < kMessages && sent - acknowledged < 16) {
            const std::size_t pair = random() % from.size();
            submit(message(pair, 1000 + pair, random() % 4 == 0 ? 16 * kBuffer : 16));
            ++sent;
        }
        Completion some[16];
        const std::size_t n = session.poll(some);
        for (const Completion& completion : std::span(some, n)) {
            ASSERT_EQ(completion.status, Status::success) << status_name(completion.status);
            if (completion.from_recv_queue()) {
                ++received;
                ASSERT_EQ(std::count(free_tags.begin(), free_tags.end(), completion.tag), 0);
                free_tags.push_back(completion.tag);
            } else {
                ++acknowledged;
            }
        }
        if (n == 0) {
            test::give_way();
        }
    }
    EXPECT_EQ(received, kMessages);
    EXPECT_EQ(acknowledged, kMessages);
}

TEST_F(SharedReceives, AWriteWithImmediateTakesOne) {
    add_pairs(2);
    submit(receive(3));
    const std::byte before = remote.data()[3 * kBuffer];
    WorkRequest write = message(1, 5, 64);
    write.opcode = Opcode::rdma_write_with_imm;
    write.remote_addr = remote.addr() + 60 * kBuffer;
    write.rkey = remote.rkey();
    write.imm_data = 0x01020304;
    submit(write);
    const auto [sent, received] = await_message();
    EXPECT_EQ(sent.status, Status::success);
    EXPECT_EQ(received.tag, 3u);
    EXPECT_EQ(received.opcode, CompletionOpcode::recv_rdma_with_imm);
    EXPECT_EQ(received.imm_data, 0x01020304u);
    EXPECT_EQ(received.byte_len, 64u);
    EXPECT_EQ(received.qp, to[1].handle());
    EXPECT_EQ(remote.data()[3 * kBuffer], before) << "its buffer is not touched";
}

TEST_F(SharedReceives, ThatAreMissingMakeSendersWaitUntilSomeAreThere) {
    add_pairs(3);
    submit(message(0, 1, 64));
    submit(message(2, 2, 64));
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    Completion none;
    EXPECT_EQ(session.poll({&none, 1}), 0u);
    submit(receive(10));
    submit(receive(11));
    const auto all = await(4);
    ASSERT_EQ(all.size(), 4u);
    for (const Completion& completion : all) {
        EXPECT_EQ(completion.status, Status::success);
    }
    submit(receive(12));
    expect_message_goes_through(1, 12);
}

TEST_F(SharedReceives, ThatAreMissingForTooLongEndOneSenderAndNobodyElse) {
    add_pair({.rnr_retry = 1, .min_rnr_timer = 1});
    add_pairs(1);
    submit(message(0, 1, 64));
    const Completion failed = await_one();
    EXPECT_EQ(failed.status, Status::rnr_retry_exc_err);
    EXPECT_EQ(session.state(from[0].handle()), QpState::error);
    submit(receive(7));
    expect_message_goes_through(1, 7);
}

TEST_F(SharedReceives, SurviveAnErrorOfAQueuePairThatUsesThem) {
    add_pairs(3);
    submit(receive(1, 16));
    for (std::uint64_t tag = 2; tag < 6; ++tag) {
        submit(receive(tag));
    }
    submit(message(0, 50, 64));
    const auto [sent, received] = await_message();
    EXPECT_EQ(sent.status, expected(Status::rem_inv_req_err, Status::rem_op_err));
    EXPECT_EQ(received.status, expected(Status::loc_len_err, Status::loc_qp_op_err));
    EXPECT_EQ(received.tag, 1u);
    EXPECT_EQ(received.qp, to[0].handle());
    EXPECT_EQ(session.state(to[0].handle()), QpState::error);
    expect_message_goes_through(1, 2);
    expect_message_goes_through(2, 3);
    EXPECT_TRUE(to[0].close());
    expect_message_goes_through(1, 4);
    EXPECT_EQ(in_flight(), 1u);
}

TEST_F(SharedReceives, RaiseTheirLimitOnce) {
    add_pairs(1);
    for (std::uint64_t tag = 0; tag < 6; ++tag) {
        submit(receive(tag));
    }
    // This message can arrive only after all six receives were posted.
    expect_message_goes_through(0, 0);
    const std::uint64_t events = runtime.control_counters().async_events.value();
    srq.arm_limit(4);
    EXPECT_EQ(srq.limit(), 4u);
    expect_message_goes_through(0, 1);
    EXPECT_EQ(srq.limit(), 4u) << "four are left";
    expect_message_goes_through(0, 2);
    const std::optional<Event> event = await_event(EventType::srq_limit_reached);
    ASSERT_TRUE(event.has_value());
    EXPECT_EQ(event->srq, srq.handle());
    EXPECT_EQ(event->device, "net0");
    EXPECT_FALSE(event->qp.valid());
    expect_acknowledged();
    EXPECT_EQ(srq.limit(), 0u) << "three are left";
    Exercised::get().note("SRQ", "92 limit event");
    expect_message_goes_through(0, 3);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    EXPECT_EQ(runtime.control_counters().async_events.value(), events + 1);
    EXPECT_THROW(srq.arm_limit(33), Error);
}

// In every step the worker polls each CQ, so there should be few CQs.
TEST_F(SharedReceives, NearlyAsDeepAsACompletionQueueHaveFewOfThese) {
    const auto queue_pairs = [&] { return runtime.control_counters().queue_pairs.value(); };
    srq = make_srq(1000);  // test_config's CQs have 1024 entries
    QueuePairOptions receiver = receiver_shape();
    receiver.shares = {{.session = &session, .send_depth = 20}};
    std::vector<QueuePair> all;
    for (int i = 0; i < 32; ++i) {
        all.push_back(runtime.create_queue_pair(receiver));
    }
    // The control thread counts queue pairs and CQs only now and then. When it has counted the close, it has also
    // finished counting the CQs of the creations.
    until([&] { return queue_pairs() == 32; });
    EXPECT_TRUE(all.back().close());
    until([&] { return queue_pairs() == 31; });
    EXPECT_LE(runtime.control_counters().completion_queues.value(), 2u);
}

TEST_F(SharedReceives, TellThatAQueuePairTakesNoMore) {
    add_pairs(2);
    submit(receive(1));
    const QpHandle closed = to[0].handle();
    EXPECT_TRUE(to[0].close());
    const std::optional<Event> said = await_event(
        EventType::qp_last_wqe_reached, TestDevice::get().is_rxe() ? std::chrono::milliseconds(100) : kPatience);
    EXPECT_EQ(said.has_value(), expected(true, false));
    expect_acknowledged();
    if (said) {
        EXPECT_EQ(said->qp, closed);
        Exercised::get().note("SRQ", "93 last WQE reached");
    }
    expect_message_goes_through(1, 1);
}

TEST_F(SharedReceives, OutliveAResetOfAQueuePairThatUsesThem) {
    add_pairs(2);
    for (std::uint64_t tag = 0; tag < 8; ++tag) {
        submit(receive(tag));
    }
    std::uint64_t taken = 0;
    for (int life = 0; life < 3; ++life) {
        expect_message_goes_through(0, taken++);
        const QpHandle old = to[0].handle();
        const std::uint32_t number = to[0].qp_num();
        EXPECT_TRUE(to[0].reset());
        EXPECT_TRUE(from[0].reset());
        EXPECT_EQ(session.state(to[0].handle()), QpState::init);
        EXPECT_NE(to[0].handle(), old);
        EXPECT_EQ(to[0].qp_num(), number) << "by which its receives are known";
        EXPECT_EQ(in_flight(), 8 - taken) << "those that no message took stay";
        expect_message_goes_through(1, taken++);
        const QpInfo info_from = from[0].info();
        const QpInfo info_to = to[0].info();
        from[0].connect(info_to, kPatient);
        to[0].connect(info_from, kPatient);
    }
    expect_message_goes_through(0, taken++);
    expect_acknowledged();
    EXPECT_TRUE(to[0].close());
    expect_message_goes_through(1, taken);
    EXPECT_EQ(in_flight(), 0u);
}

TEST_F(SharedReceives, CompleteOnSeparateCqsToo) {
    QueuePairOptions options = receiver_shape();
    options.separate_cqs = true;
    add_pair(options, kPatient);
    add_pair(options, kPatient);
    for (std::uint64_t tag = 0; tag < 10; ++tag) {
        submit(receive(tag));
        expect_message_goes_through(tag % 2, tag);
    }
    EXPECT_TRUE(to[0].close());
    submit(receive(10));
    expect_message_goes_through(1, 10);
}

// The sends of each of the 40 queue pairs need 65 CQEs: 64 for the session and one for the worker itself. Each CQ must
// also have room for the whole shared queue. Therefore the queue pairs need several CQs.
TEST_F(SharedReceives, AreSharedAcrossAsManyCqsAsTheirQueuePairsNeed) {
    srq.close();
    srq = make_srq(256);
    add_pairs(40);
    for (std::uint64_t tag = 0; tag < 80; ++tag) {
        submit(receive(tag, 16));
    }
    for (std::size_t i = 0; i < 80; ++i) {
        submit(message(i % 40, 100 + i, 8));
    }
    std::map<std::uint16_t, int> by_qp;
    for (const Completion& completion : await(160)) {
        EXPECT_EQ(completion.status, Status::success);
        by_qp[completion.qp.index] += completion.from_recv_queue() ? 1 : 0;
    }
    for (const QueuePair& qp : to) {
        EXPECT_EQ(by_qp[qp.handle().index], 2);
    }
}

TEST_F(SharedReceives, UseTheKeysOfTheirOwnProtectionDomain) {
    const ProtectionDomain pd = runtime.create_protection_domain();
    MemoryRegion own = runtime.allocate(4096, Access::all(), "", &pd);
    srq.close();
    srq = runtime.create_shared_receive_queue({.pd = &pd, .session = &session, .depth = 8});
    add_pairs(1);
    WorkRequest request = receive(1);
    request.sge = {own.addr(), 64, own.lkey()};
    submit(request);
    submit(message(0, 2, 64));
    const auto [sent, received] = await_message();
    EXPECT_EQ(sent.status, expected(Status::success, Status::rem_op_err));
    EXPECT_EQ(received.status, expected(Status::success, Status::loc_qp_op_err));
    to.clear();
    srq.close();
}

TEST_F(SharedReceives, AreRefusedBeyondTheirLimits) {
    add_pairs(1);
    TestSession other = runtime.open_session();
    EXPECT_EQ(other.try_submit(receive(1)), Refusal::stale_handle) << "another session's";
    WorkRequest request = receive(1);
    request.opcode = Opcode::recv;
    request.qp = to[0].handle();
    EXPECT_EQ(session.try_submit(request), Refusal::not_receiver);
    request = receive(1);
    request.flags = kSolicited;
    EXPECT_EQ(session.try_submit(request), Refusal::bad_flags);
    const std::vector<Sge> sges(5, remote_sge(8));
    EXPECT_EQ(session.try_submit(receive(1), sges), Refusal::too_many_sges);
    for (std::uint64_t tag = 0; tag < 32; ++tag) {
        submit(receive(tag));
    }
    EXPECT_EQ(session.try_submit(receive(33)), Refusal::srq_full);
    const WorkRequest stale = receive(1);
    from.clear();
    to.clear();
    srq.close();
    EXPECT_EQ(session.try_submit(stale), Refusal::stale_handle);
}

TEST_F(SharedReceives, AreNotMadeOrUsedInWaysThatCannotWork) {
    const auto make = [&](SharedReceiveQueueOptions options) { (void)runtime.create_shared_receive_queue(options); };
    EXPECT_THROW(make({}), Error) << "no session";
    EXPECT_THROW(make({.session = &session, .depth = 0}), Error);
    EXPECT_THROW(make({.session = &session, .depth = kQueueDepthMax + 1}), Error);
    EXPECT_THROW(make({.session = &session, .sges_max = kSgesMax + 1}), Error);
    EXPECT_THROW(make({.device = "nowhere", .session = &session}), Error);

    TestSession other = runtime.open_session();
    QueuePairOptions options = receiver_shape();
    options.shares = {{.session = &other}, {.session = &session}};
    EXPECT_THROW((void)runtime.create_queue_pair(options), Error) << "receives would go to two sessions";
    options.shares = {{.session = &session}, {.session = &other}};
    EXPECT_NO_THROW((void)runtime.create_queue_pair(options)) << "others may send";

    // A CQ of the test's configuration has 1024 entries. This is too few for the shared queue and the queue pair's
    // sends.
    srq.close();
    srq = make_srq(1000);
    EXPECT_THROW((void)runtime.create_queue_pair(receiver_shape()), Error) << "no CQ has room for all of them";
    srq.close();
    options = receiver_shape();
    EXPECT_THROW((void)runtime.create_queue_pair(options), Error) << "it was closed";
}

// ---- Queue pairs, the queue, the session and the runtime end, in every order ----

TEST_F(SharedReceives, StayInTheQueueWhenItsQueuePairsCloseAndEndWithIt) {
    add_pairs(2);
    for (std::uint64_t tag = 0; tag < 5; ++tag) {
        submit(receive(tag));
    }
    EXPECT_THROW(srq.close(), Error) << "queue pairs use it";
    EXPECT_TRUE(srq.valid());
    expect_message_goes_through(0, 0);
    EXPECT_TRUE(to[0].close());
    EXPECT_TRUE(to[1].close());
    EXPECT_EQ(in_flight(), 4u);
    srq.close();
    const auto left = await(4);
    ASSERT_EQ(left.size(), 4u);
    for (const Completion& completion : left) {
        EXPECT_EQ(completion.status, Status::srq_closed);
        EXPECT_TRUE(completion.flags & kByRuntime);
        EXPECT_FALSE(completion.qp.valid());
    }
    EXPECT_EQ(in_flight(), 0u);
}

TEST_F(SharedReceives, EndWithTheirSession) {
    add_pairs(2);
    for (std::uint64_t tag = 0; tag < 5; ++tag) {
        submit(receive(tag));
    }
    submit(message(1, 9, 64));
    session.close();
    const SessionFigures figures = session.figures();
    EXPECT_EQ(figures.accepted, 6u);
    EXPECT_EQ(await(figures.in_flight()).size(), 6u);
    EXPECT_EQ(in_flight(), 0u);
    srq.close();  // has no effect, because the queue is closed already
}

TEST_F(SharedReceives, EndWithTheRuntimeWhateverGoesFirst) {
    add_pairs(2);
    for (std::uint64_t tag = 0; tag < 5; ++tag) {
        submit(receive(tag));
    }
    submit(message(1, 9, 64));
    { const SharedReceiveQueue dropped = std::move(srq); }  // the queue is in use, so it stays until its session ends
    EXPECT_TRUE(runtime.stop());
    EXPECT_EQ(await(6).size(), 6u);
    EXPECT_EQ(in_flight(), 0u);
    EXPECT_THROW((void)make_srq(), Error);
}

// A message of many packets is in flight when its receiver closes. The receive that the message has taken must
// complete, too.
TEST_F(SharedReceives, ThatWereTakenWhenTheirQueuePairClosesComplete) {
    for (int round = 0; round < 10; ++round) {
        add_pairs(1);
        for (std::uint64_t tag = 0; tag < 4; ++tag) {
            WorkRequest request = receive(tag);
            request.sge = remote_sge(static_cast<std::uint32_t>(kBytes));
            submit(request);
        }
        for (std::uint64_t tag = 10; tag < 13; ++tag) {
            submit(message(0, tag, static_cast<std::uint32_t>(kBytes)));
        }
        to[0].close();
        from[0].close();
        std::uint64_t taken = 0;
        std::uint64_t sent = 0;
        Completion some[16];
        while (const std::size_t n = session.poll(some)) {
            for (const Completion& completion : std::span(some, n)) {
                ++(completion.from_recv_queue() ? taken : sent);
                EXPECT_FALSE(completion.flags & kByRuntime) << "round " << round << ", tag " << completion.tag;
            }
        }
        EXPECT_EQ(sent, 3u);
        EXPECT_EQ(in_flight(), 4 - taken) << "the rest stays in the queue";
        from.clear();
        to.clear();
        srq.close();
        EXPECT_EQ(await(4 - taken).size(), 4 - taken);
        EXPECT_EQ(in_flight(), 0u) << "round " << round;
        srq = make_srq();
    }
}

class SharedConservation : public SharedReceives, public ::testing::WithParamInterface<unsigned> {};

// I1 (each accepted request ends once) with failures: receives are too short or missing, and queue pairs close while
// new ones are created.
TEST_P(SharedConservation, HoldsThroughRandomMixesWithFailures) {
    Exercised::get().ignore();
    static constexpr PathAttributes kHasty{.timeout = 12, .retry_count = 1, .rnr_retry = 1, .min_rnr_timer = 1};
    std::mt19937 random(GetParam());
    std::map<std::uint64_t, bool> outstanding;  // by tag: true if the request is a receive
    std::uint64_t next_tag = 0;
    const auto take = [&] {
        Completion some[16];
        while (const std::size_t n = session.poll(some)) {
            for (const Completion& completion : std::span(some, n)) {
                const auto found = outstanding.find(completion.tag);
                ASSERT_NE(found, outstanding.end())
                    << "tag " << completion.tag << " completed twice, or never submitted";
                ASSERT_EQ(found->second, completion.from_recv_queue());
                ASSERT_EQ(found->second, completion.srq.valid());
                outstanding.erase(found);
            }
        }
    };
    for (int life = 0; life < 3; ++life) {
        srq.close();
        srq = make_srq(1 + random() % 16);
        for (int turn = 0; turn < 300; ++turn) {
            if (from.size() < 3) {
                add_pair(kHasty);
            }
            const std::size_t pair = random() % from.size();
            WorkRequest request = random() % 2 == 0 ? receive(next_tag, random() % 20 == 0 ? 8 : kBuffer)
                                                    : message(pair, next_tag, random() % kBuffer);
            switch (const Refusal refusal = session.try_submit(request); refusal) {
                case Refusal::none: outstanding[next_tag++] = is_recv(request.opcode); break;
                case Refusal::qp_in_error:
                    (random() % 2 == 0 ? from : to)[pair].close();
                    from.erase(from.begin() + static_cast<std::ptrdiff_t>(pair));
                    to.erase(to.begin() + static_cast<std::ptrdiff_t>(pair));
                    break;
                default:
                    ASSERT_LE(refusal, Refusal::srq_full) << refusal_name(refusal);
                    test::give_way();
                    break;
            }
            ASSERT_NO_FATAL_FAILURE(take());
        }
        from.clear();
        to.clear();
        srq.close();
        ASSERT_NO_FATAL_FAILURE(take());
        EXPECT_TRUE(outstanding.empty()) << outstanding.size() << " never completed; life " << life;
        EXPECT_EQ(in_flight(), 0u);
    }
}

INSTANTIATE_TEST_SUITE_P(Seeds, SharedConservation, ::testing::Range(1u, 5u));

}  // namespace
}  // namespace pollcore::testing
