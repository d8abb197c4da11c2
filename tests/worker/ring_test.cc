// Write rings at a worker that is stepped by hand. One end sends, and the other end has a ring.
#include <gtest/gtest.h>

#include "flow/block_flow.hpp"
#include "post_each.hpp"
#include "worker_fixture.hpp"

namespace pollcore::testing {
namespace {

constexpr std::uint32_t kLines = 64;  // cache lines of the ring
constexpr RequestShape kTwoLines{.length = 100};

int (*real_post_send)(ibv_qp*, ibv_send_wr*, ibv_send_wr**) = nullptr;
std::uint32_t posts_left = 0;  ///< posts that are still accepted; the next is refused

int refusing_post_send(ibv_qp* qp, ibv_send_wr* wr, ibv_send_wr** bad) {
    return post_each(real_post_send, qp, wr, bad,
                     [](const ibv_send_wr& one) { return one.num_sge != 0 && posts_left-- == 0; });
}

class WorkerRingTest : public SenderReceiverFixture {
protected:
    WorkerRingTest() { make(); }

    void make() {
        make_world({.pool_buffers = 40});
        ring = &world->add_ring(kLines, 16, kReceiver);
        add_pair({.shares = {{kSender, 32, 0}}, .flow = FlowControl::ring},
                 {.shares = {{kReceiver, 16, 0}}, .pool = {.pool = ring}, .flow = FlowControl::ring});
    }
    void agree() {
        submit(send(100, kTwoLines));
        ASSERT_EQ(world->await(1, kSender).size(), 1u);
        ASSERT_EQ(world->await(1, kReceiver).size(), 1u);
    }
    /// From now on the provider accepts `posts` send work requests with an SGE and refuses the next one.
    void refuse_after(std::uint32_t posts) {
        ibv_context_ops& ops = world->device->context()->ops;
        real_post_send = ops.post_send;
        ops.post_send = &refusing_post_send;
        posts_left = posts;
    }
    /// The number of cache lines of the peer's ring that the sender has used.
    [[nodiscard]] static std::uint32_t consumed(const SteppedWorld::Qp& qp) {
        return dynamic_cast<const BlockFlow&>(qp.flow()).consumed();
    }
    void refuse_no_more() { world->device->context()->ops.post_send = real_post_send; }
    void expect_failed(const SteppedWorld::Qp& qp, std::uint32_t session, FlowFault fault,
                       Status cause = Status::flow_violation) {
        turn();
        EXPECT_EQ(world->session(session).state(qp.handle()), QpState::error);
        EXPECT_EQ(world->session(session).cause(qp.handle()), cause);
        const auto said = world->proxy.take_unasked();
        ASSERT_EQ(said.size(), 1u);
        EXPECT_EQ(said[0].kind, AnswerKind::flow_failed);
        EXPECT_EQ(said[0].index, qp.handle().index);
        EXPECT_EQ(said[0].object_id, std::uint32_t{qp.handle().generation} << 8 | static_cast<std::uint32_t>(fault));
    }
    void release(const std::vector<Completion>& completions) {
        ASSERT_EQ(world->session(kReceiver).release(completions).accepted, completions.size());
        turn(3);
    }

    SteppedWorld::Pool* ring = nullptr;
};

TEST_F(WorkerRingTest, TellsWhatWasReadAQuarterAtATime) {
    for (std::uint64_t i = 0; i < 160; ++i) {
        submit(send(i, kTwoLines));
        const auto heard = world->await(1, kReceiver);
        ASSERT_EQ(heard.size(), 1u);
        release(heard);
        ASSERT_EQ(world->await(1, kSender).size(), 1u);
    }
    // The reader sends one grant for the whole ring at first, and then one for every sixteen lines.
    EXPECT_EQ(world->worker.counters().grants.value(), 1u + 160 * 2 / 16);
    EXPECT_EQ(consumed(*from[0]), 320u);
}

TEST_F(WorkerRingTest, MoreThanWasGrantedEndsTheConnectionAtTheReader) {
    for (std::uint64_t i = 0; i < 17; ++i) {
        submit(send(i, {.length = 200}));  // each record takes four lines
    }
    turn();
    EXPECT_EQ(world->poll(kReceiver).size(), 16u);
    EXPECT_EQ(world->poll(kSender).size(), 16u) << "the last one waits";
    EXPECT_EQ(world->worker.counters().flow_faults.value(), 0u);
    // The sender is made to ignore its grants: it writes eight lines more than the reader has room for.
    from[0]->block->grants[0].store(GrantWord::pack(consumed(*from[0]) + 8));
    turn();
    EXPECT_EQ(world->worker.counters().flow_faults.value(), 0u)
        << "the reader does not look while the application may have no more messages";
    const Completion any{.tag = pool_tag(ring->handle(), kLines - 1 - 20), .flags = kPooled};
    release({any});
    expect_failed(*to[0], kReceiver, FlowFault::too_many_messages);
}

TEST_F(WorkerRingTest, TermsThatCannotBeAreRefused) {
    struct Case {
        FlowTerms terms;
        FlowFault fault;
    };
    const std::uint64_t good = 1 << 20;
    const std::uint16_t ring_feature = FlowTerms::kRing;
    const Case cases[] = {
        {{.features = 0, .depth = 64}, FlowFault::other_features},
        {{.features = 5, .depth = 64, .ring_addr = good}, FlowFault::other_features},
        {{.features = ring_feature, .depth = 63, .ring_addr = good}, FlowFault::no_ring},
        {{.features = ring_feature, .depth = 32, .ring_addr = good}, FlowFault::no_ring},
        {{.features = ring_feature, .depth = kRingLinesMax * 2, .ring_addr = good}, FlowFault::no_ring},
        {{.features = ring_feature, .depth = 64, .ring_addr = good + 8}, FlowFault::no_ring},
        {{.features = ring_feature, .depth = 64, .message_max = ring_message_max(64) + 1, .ring_addr = good},
         FlowFault::no_ring},
    };
    for (const Case& bad : cases) {
        SCOPED_TRACE(&bad - cases);
        make();
        FlowTerms terms = bad.terms;
        const FlowTerms::Words words = terms.sealed();
        for (std::size_t i = 0; i < words.size(); ++i) {
            from[0]->block->terms[i].store(words[i]);
        }
        expect_failed(*from[0], kSender, bad.fault);
    }
}

// If the refused record were left out, the peer would wait for it for ever.
TEST_F(WorkerRingTest, AProviderThatRefusesARequestEndsTheConnection) {
    agree();
    refuse_after(2);
    for (std::uint64_t i = 0; i < 6; ++i) {
        submit(send(i, {.flags = signaled_if(i % 2 == 0), .length = 100}));
    }
    world->step();
    refuse_no_more();
    expect_failed(*from[0], kSender, FlowFault::post_refused, Status::post_refused);
    EXPECT_EQ(try_submit(send(7)), Refusal::qp_in_error);
    world->to_error(*from[0], QpState::error);  // the control thread does this after a flow fault
    turn();
    const auto ended = world->poll(kSender);
    std::vector<std::uint64_t> failed;
    for (const Completion& completion : ended) {
        if (!completion.ok()) {
            failed.push_back(completion.tag);
        }
    }
    EXPECT_EQ(failed, (std::vector<std::uint64_t>{2, 3, 4, 5}));
    EXPECT_EQ(world->session(kSender).figures().in_flight(), 0u);
    EXPECT_EQ(world->poll(kReceiver).size(), 2u);
}

// The frame of a record depends on the record's position in the send queue. If the provider refuses a request, the
// position of each later record changes.
TEST_F(WorkerRingTest, ARefusedWriteEndsTheConnectionWhereRecordsStandBehindIt) {
    agree();
    refuse_after(0);
    submit(write(1));
    submit(send(2, kTwoLines));
    world->step();
    refuse_no_more();
    expect_failed(*from[0], kSender, FlowFault::post_refused, Status::post_refused);
    world->to_error(*from[0], QpState::error);
    turn();
    const auto ended = world->poll(kSender);
    ASSERT_EQ(ended.size(), 2u);
    EXPECT_EQ(ended[0].status, Status::post_refused);
    EXPECT_EQ(ended[1].status, Status::wr_flush_err);
    EXPECT_TRUE(world->poll(kReceiver).empty());
}

// The first waiting request is posted and refused while other requests wait behind it. Each request ends once.
TEST_F(WorkerRingTest, WhatWaitedAndIsRefusedEndsOnceWithAllBehindIt) {
    const Buffer& bindable = buffer(64, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND);
    SteppedWorld::Window& window = world->add_window();
    const MrHandle region = world->make_bindable(*bindable.mr);
    submit(send(1, kTwoLines));  // waits for the peer's terms; the other two requests wait behind it
    submit(bind(2, *from[0], window, bindable, region));
    submit(send(3, kTwoLines));
    refuse_after(3);  // three writes pass: the terms of both ends, and the reader's first grant
    turn();
    refuse_no_more();
    world->to_error(*from[0], QpState::error);
    turn();
    const auto ended = world->poll(kSender);
    ASSERT_EQ(ended.size(), 3u);
    for (std::uint64_t i = 0; i < 3; ++i) {
        EXPECT_EQ(ended[i].tag, i + 1);
        EXPECT_EQ(ended[i].status, i == 0 ? Status::post_refused : Status::wr_flush_err);
    }
    EXPECT_EQ(world->session(kSender).figures().in_flight(), 0u);
    EXPECT_FALSE(window.end->in_use());
}

// The peer ends in the middle of a record: half of the record arrives, and the other half never does.
TEST_F(WorkerRingTest, HalfARecordIsNeverSeenAndTheEndIsTold) {
    submit(send(1, kTwoLines));
    const auto first = world->await(1, kReceiver);
    ASSERT_EQ(first.size(), 1u);
    const WriteRing& reading = ring->ring->ring();
    const RecordHeader::Words words = RecordHeader{.length = 100}.pack(reading.next(), reading.seed());
    auto* last =
        reinterpret_cast<std::uint64_t*>(ring->memory.data() + (kLines - 1 - reading.next()) * std::size_t{kCacheLine});
    last[5] = words[0];
    last[6] = words[1];
    turn();
    EXPECT_TRUE(world->poll(kReceiver).empty());
    world->to_error(*to[0]);
    const auto end = world->await(1, kReceiver);
    ASSERT_EQ(end.size(), 1u);
    EXPECT_EQ(end[0].status, Status::wr_flush_err);
    EXPECT_TRUE(end[0].pooled());
    EXPECT_EQ(ring->counters().held.value(), 2u);
    release({first[0], end[0]});
    EXPECT_EQ(ring->counters().held.value(), 0u);
    EXPECT_EQ(ring->counters().bad_releases.value(), 0u);
    // The next life uses this ring again.
    world->reset(*to[0]);
    world->reset(*from[0]);
    connect(*from[0], *to[0]);
    submit(send(2, kTwoLines));
    EXPECT_EQ(world->await(1, kReceiver).at(0).status, Status::success);
}

TEST_F(WorkerRingTest, WhatCameBeforeTheEndIsDeliveredBeforeIt) {
    for (std::uint64_t i = 0; i < 16; ++i) {
        submit(send(i, kTwoLines));
    }
    turn();
    auto held = world->poll(kReceiver);
    EXPECT_EQ(held.size(), 16u);
    for (std::uint64_t i = 0; i < 4; ++i) {
        submit(send(i, kTwoLines));
    }
    turn();
    world->to_error(*to[0]);
    turn();
    EXPECT_TRUE(world->poll(kReceiver).empty()) << "the application has as many as it may";
    release(held);
    turn();
    const auto rest = world->poll(kReceiver);
    ASSERT_EQ(rest.size(), 5u);
    for (std::size_t i = 0; i < 4; ++i) {
        EXPECT_TRUE(rest[i].ok());
    }
    EXPECT_FALSE(rest[4].ok());
    release(rest);
    turn();
    EXPECT_TRUE(world->poll(kReceiver).empty()) << "the end is told once";
}

class WorkerRingOfOneSession : public WorkerFixture {
protected:
    WorkerRingOfOneSession() {
        make_world({.pool_buffers = 40});
        world->add_session();
        world->add_cq();
        pair({.shares = {{0, 32, 0}}, .flow = FlowControl::ring},
             {.shares = {{0, 16, 0}}, .pool = {.pool = &world->add_ring(kLines, 16)}, .flow = FlowControl::ring});
    }
    /// Receives a message that the application does not release.
    void expect_a_message() {
        submit(send(1));
        ASSERT_EQ(world->await(2).size(), 2u);
        EXPECT_EQ(world->worker.only_source(), nullptr) << "a message may come";
    }
    void expect_nobody_looks_after_closing() {
        world->close(*b);
        world->close(*a);
        turn();
        (void)world->poll();
        EXPECT_NE(world->worker.only_source(), nullptr);
    }
};

TEST_F(WorkerRingOfOneSession, WhenItsQueuePairIsGoneNobodyLooksAtIt) {
    expect_a_message();
    expect_nobody_looks_after_closing();
}

TEST_F(WorkerRingOfOneSession, NobodyLooksAtOneWhoseEndCannotBeTold) {
    expect_a_message();
    world->reset(*b);
    world->reset(*a);
    ASSERT_EQ(world->poll().size(), 1u) << "the end of the first life, which is kept";
    connect(*a, *b);
    expect_a_message();
    expect_nobody_looks_after_closing();
}

}  // namespace
}  // namespace pollcore::testing
