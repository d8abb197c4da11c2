// Memory windows at the worker: what a bind names, which key it gives to the window, and when a window or region may be
// removed.
#include <array>

#include <gtest/gtest.h>

#include "worker_fixture.hpp"

namespace pollcore::testing {
namespace {

constexpr int kBindable =
    IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_MW_BIND;

class WorkerWindows : public WorkerFixture {
protected:
    WorkerWindows() {
        make();
        bindable = &buffer(4096, kBindable);
        region = world->make_bindable(*bindable->mr);
        window = &world->add_window();
    }
    /// A request on b that binds the window to the beginning of `bindable`.
    [[nodiscard]] WorkRequest bind(std::uint64_t tag, std::uint32_t key, std::uint8_t flags = kSignaled) const {
        return {.tag = tag,
                .bind = {window->handle(), region, 256},
                .remote_addr = bindable->addr(),
                .bind_access = kWindowWrite | kWindowRead,
                .rkey = key,
                .qp = b->handle(),
                .opcode = Opcode::bind_mw,
                .flags = flags};
    }
    [[nodiscard]] WorkRequest invalidate(std::uint64_t tag, std::uint32_t key) const {
        return {.tag = tag, .invalidate_rkey = key, .qp = b->handle(), .opcode = Opcode::local_inv, .flags = kSignaled};
    }
    /// A request of the peer that writes to the memory that `key` opens.
    [[nodiscard]] WorkRequest write_by_key(std::uint64_t tag, std::uint32_t key) const {
        WorkRequest request = write(tag);
        request.remote_addr = bindable->addr();
        request.rkey = key;
        return request;
    }
    /// A request of the peer that sends `length` bytes and invalidates `key`.
    [[nodiscard]] WorkRequest send_with_inv(std::uint64_t tag, std::uint32_t key, std::uint32_t length) const {
        WorkRequest request = send(tag, {.length = length});
        request.opcode = Opcode::send_with_inv;
        request.invalidate_rkey = key;
        return request;
    }
    void expect_refused(const WorkRequest& request) {
        submit(request);
        const Completion completion = one();
        EXPECT_EQ(completion.status, Status::request_refused);
        EXPECT_EQ(world->session().state(request.qp), QpState::ready);
    }

    Buffer* bindable = nullptr;
    MrHandle region;  ///< handle of the region `bindable`
    SteppedWorld::Window* window = nullptr;
};

TEST_F(WorkerWindows, ABindsCompletionSaysTheKeyThatPeersUse) {
    const std::uint32_t first = window->mw->rkey;
    submit(bind(1, next_rkey(first)));
    const Completion bound = one();
    EXPECT_EQ(bound.status, Status::success);
    EXPECT_EQ(bound.opcode, CompletionOpcode::bind_mw);
    EXPECT_EQ(bound.window_rkey, next_rkey(first));
    EXPECT_FALSE(bound.from_recv_queue());
    submit(write_by_key(2, bound.window_rkey));
    EXPECT_EQ(one().status, Status::success);
    submit(invalidate(3, bound.window_rkey));
    const Completion ended = one();
    EXPECT_EQ(ended.status, Status::success);
    EXPECT_EQ(ended.opcode, CompletionOpcode::local_inv);
    submit(write_by_key(4, bound.window_rkey));
    EXPECT_EQ(one().status, Status::rem_access_err);
}

TEST_F(WorkerWindows, ABindThatIsRefusedBehindAnotherLeavesTheKeyOfThat) {
    const std::uint32_t key = next_rkey(window->mw->rkey);
    world->soft().inject({.kind = SoftFault::Kind::post_send, .nth = 2, .error = ENOMEM});
    submit(bind(1, key));
    submit(bind(2, next_rkey(key)));
    const auto ended = world->await(2);
    ASSERT_EQ(ended.size(), 2u);
    for (const Completion& completion : ended) {
        EXPECT_EQ(completion.status, completion.tag == 1 ? Status::success : Status::post_refused);
    }
    EXPECT_FALSE(window->end->lost());
    EXPECT_EQ(window->end->rkey(), key);
}

TEST_F(WorkerWindows, TheUpperBytesOfTheKeyAreTheDevices) {
    const std::uint32_t first = window->mw->rkey;
    submit(bind(1, 0xabcdef00u | 0x77));
    EXPECT_EQ(one().window_rkey, (first & ~0xffu) | 0x77);
}

TEST_F(WorkerWindows, BindsAndInvalidationsOfOneBurstFollowEachOther) {
    std::uint32_t key = window->mw->rkey;
    for (std::uint64_t tag = 0; tag < 12; tag += 3) {
        submit(write(tag, {.qp = b}));
        key = next_rkey(key);
        submit(bind(tag + 1, key));
        submit(invalidate(tag + 2, key));
    }
    const auto completions = world->await(12);
    ASSERT_EQ(completions.size(), 12u);
    for (std::uint64_t tag = 0; tag < 12; ++tag) {
        EXPECT_EQ(completions[tag].tag, tag);
        EXPECT_EQ(completions[tag].status, Status::success) << tag;
    }
    EXPECT_EQ(window->end->rkey(), key);
}

TEST_F(WorkerWindows, AnUnsignaledBindIsRetiredAndItsKeyIsTheWindows) {
    const std::uint32_t key = next_rkey(window->mw->rkey);
    submit(bind(1, key, 0));
    submit(write(2, {.qp = b}));
    EXPECT_EQ(one().tag, 2u);
    EXPECT_EQ(world->session().retired(b->handle()), 1u);
    EXPECT_EQ(window->end->rkey(), key);
    EXPECT_TRUE(world->proxy.remove_window(window->handle()));
}

TEST_F(WorkerWindows, ABindThatFailsTakesItsKeyBack) {
    const std::uint32_t first = window->mw->rkey;
    submit(bind(1, next_rkey(first)));
    submit(bind(2, next_rkey(next_rkey(first))));  // fails, because the window is bound already
    submit(invalidate(3, first));
    const auto completions = world->await(3);
    ASSERT_EQ(completions.size(), 3u);
    EXPECT_EQ(completions[0].status, Status::success);
    EXPECT_EQ(completions[1].status, Status::mw_bind_err);
    EXPECT_EQ(completions[1].opcode, CompletionOpcode::bind_mw);
    EXPECT_EQ(completions[2].status, Status::wr_flush_err);
    EXPECT_EQ(completions[2].opcode, CompletionOpcode::local_inv);
    EXPECT_EQ(window->mw->rkey, next_rkey(first));
    EXPECT_EQ(world->session().cause(b->handle()), Status::mw_bind_err);
    EXPECT_TRUE(world->proxy.remove_window(window->handle()));
}

TEST_F(WorkerWindows, ABindOnAQueuePairInErrorIsFlushedAndNamesNothingAfterwards) {
    world->proxy.park(b->handle());
    submit(bind(1, next_rkey(window->mw->rkey)));
    submit(bind(2, next_rkey(window->mw->rkey), 0));
    Transition error = to_state(IBV_QPS_ERR);
    world->device->modify(b->qp.get(), error.attr, error.mask);
    world->proxy.unpark(b->handle(), QpState::error, Status::wr_flush_err);
    for (const Completion& completion : world->await(2)) {
        EXPECT_FALSE(completion.ok());
    }
    EXPECT_EQ(world->session().figures().in_flight(), 0u);
    EXPECT_TRUE(world->close(*b));
    EXPECT_TRUE(world->proxy.remove_window(window->handle()));
    EXPECT_TRUE(world->proxy.remove_region(region));
}

TEST_F(WorkerWindows, ABindThatNoDeviceHasSeenLeavesTheOneBeforeItAlone) {
    submit(bind(1, next_rkey(window->mw->rkey)));
    ASSERT_EQ(one().status, Status::success);
    const std::uint32_t key = window->end->rkey();
    world->proxy.park(a->handle());
    WorkRequest late = bind(2, next_rkey(key));
    late.qp = a->handle();
    submit(late);
    Transition error = to_state(IBV_QPS_ERR);
    world->device->modify(a->qp.get(), error.attr, error.mask);
    world->proxy.unpark(a->handle(), QpState::error, Status::wr_flush_err);
    EXPECT_EQ(one().status, Status::wr_flush_err);
    EXPECT_FALSE(window->end->lost()) << "else it would be made anew, and the first one's key end";
    EXPECT_EQ(window->end->rkey(), key);
}

TEST_F(WorkerWindows, ARegionThatThereIsRoomForIsNotKnownBefore) {
    BindableRegion other{.handle = {.index = 200, .generation = 1}, .mr = bindable->mr};
    world->proxy.make_room(other);
    WorkRequest early = bind(1, next_rkey(window->mw->rkey));
    early.bind.region_index = other.handle.index;
    early.bind.region_generation = other.handle.generation;
    expect_refused(early);
}

TEST_F(WorkerWindows, WhatABindNamesMustBeThereAndOfTheSameProtectionDomain) {
    WorkRequest request = bind(1, 1);
    request.bind = {{window->handle().index, 2}, region, 256};
    expect_refused(request);
    request.bind = {{1000, 1}, region, 256};
    expect_refused(request);
    request.bind = {{}, region, 256};
    expect_refused(request);
    request.bind = {window->handle(), {region.index, 7}, 256};
    expect_refused(request);
    request.bind = {window->handle(), {60'000, 1}, 256};
    expect_refused(request);
    request.bind = {window->handle(), {}, 0};
    expect_refused(request);
    WorkRequest foreign = bind(1, 1);
    foreign.qp = pair({.pd = 1}).first->handle();
    expect_refused(foreign);
}

TEST_F(WorkerWindows, ABindWithAnEmptyListOfSgesIsABind) {
    const std::uint32_t key = next_rkey(window->mw->rkey);
    EXPECT_EQ(world->session().try_submit(bind(1, key), std::span<const Sge>{}), Refusal::none);
    EXPECT_EQ(one().window_rkey, key);
}

// In the table of requests in flight, address handles and binds use the same field.
TEST_F(WorkerWindows, AnAddressHandleIsNotTakenForWhatABindNames) {
    region = world->make_bindable(*bindable->mr);
    const AhHandle same_bits{window->handle().index, region.index};
    ASSERT_TRUE(same_bits.valid());
    submit(send(1, {.qp = b}));  // has no receive yet, so the bind waits behind it
    submit(bind(2, next_rkey(window->mw->rkey)));
    world->step(20);
    EXPECT_TRUE(world->uses_window(window->handle()));
    EXPECT_FALSE(world->uses_ah({.handle = same_bits}));
    submit(recv(3, {.qp = a}));
    EXPECT_EQ(world->await(3).size(), 3u);
}

TEST_F(WorkerWindows, WhatNoDeviceCouldTakeIsRefusedBySubmission) {
    WorkRequest request = bind(1, 1);
    request.num_sge = 1;
    EXPECT_EQ(world->session().try_submit(request), Refusal::too_many_sges);
    EXPECT_EQ(world->session().try_submit(bind(1, 1), std::array{Sge{}}), Refusal::too_many_sges);
    EXPECT_EQ(world->session().try_submit(bind(1, 1, kSignaled | kSolicited)), Refusal::bad_flags);
    EXPECT_EQ(world->session().try_submit_inline(bind(1, 1), {}), Refusal::bad_opcode);
    request = bind(1, 1);
    request.bind_access = IBV_ACCESS_LOCAL_WRITE;
    EXPECT_EQ(world->session().try_submit(request), Refusal::bad_flags);
    // The session accepts this, because only the device can judge the key.
    EXPECT_EQ(world->session().try_submit(invalidate(1, 1)), Refusal::none);
    EXPECT_EQ(one().status, Status::mw_bind_err);
}

TEST_F(WorkerWindows, AWindowOrRegionStaysWhileABindThatNamesItIsInARingOrInFlight) {
    submit(send(1, {.qp = b}));  // has no receive yet, so later requests wait behind it
    submit(bind(2, next_rkey(window->mw->rkey)));
    EXPECT_TRUE(world->uses_window(window->handle())) << "in the ring, or since then in flight";
    world->step(20);
    EXPECT_TRUE(world->uses_window(window->handle()));
    EXPECT_TRUE(world->uses_key(0, 0, bindable->lkey(), region));
    EXPECT_FALSE(world->proxy.remove_window(window->handle()));
    EXPECT_FALSE(world->proxy.remove_region(region));
    submit(recv(3, {.qp = a}));
    for (const Completion& completion : world->await(3)) {
        EXPECT_EQ(completion.status, Status::success);
    }
    EXPECT_FALSE(world->uses_window(window->handle()));
    EXPECT_FALSE(world->uses_key(0, 0, bindable->lkey(), region));
    EXPECT_TRUE(world->proxy.remove_window(window->handle()));
    EXPECT_TRUE(world->proxy.remove_region(region));
    expect_refused(bind(4, 1));
}

TEST_F(WorkerWindows, ABindThatStandsInARingIsFoundThere) {
    world->proxy.park(b->handle());  // while b is parked, the worker does not take the bind
    submit(bind(1, next_rkey(window->mw->rkey)));
    EXPECT_TRUE(world->uses_window(window->handle()));
    EXPECT_TRUE(world->uses_key(0, 0, 12345, region));
    EXPECT_FALSE(world->uses_window(world->add_window().handle()));
    EXPECT_FALSE(world->uses_key(0, 0, 12345));
    world->proxy.unpark(b->handle(), QpState::ready);
    EXPECT_EQ(one().status, Status::success);
}

TEST_F(WorkerWindows, ASendWithInvalidateTellsTheReceiverTheKey) {
    const std::uint32_t key = next_rkey(window->mw->rkey);
    submit(bind(1, key));
    EXPECT_EQ(one().status, Status::success);
    submit(recv(2));
    submit(send_with_inv(3, key, 16));
    for (const Completion& completion : world->await(2)) {
        EXPECT_EQ(completion.status, Status::success);
        if (completion.from_recv_queue()) {
            EXPECT_EQ(completion.flags, kFromRecvQueue | kWithInv);
            EXPECT_EQ(completion.invalidated_rkey, key);
            EXPECT_EQ(completion.byte_len, 16u);
        } else {
            EXPECT_EQ(completion.opcode, CompletionOpcode::send);
            EXPECT_EQ(completion.flags, 0);
        }
    }
    submit(write_by_key(4, key));
    EXPECT_EQ(one().status, Status::rem_access_err);
}

TEST_F(WorkerWindows, AReceiveThatIsSharedTellsTheKeyToo) {
    SteppedWorld::Srq& srq = world->add_srq({});
    const auto [sender, receiver] = pair({}, {.shares = {{0, 16, 0}}, .srq = &srq});
    const std::uint32_t key = next_rkey(window->mw->rkey);
    WorkRequest request = bind(1, key);
    request.qp = receiver->handle();
    submit(request);
    EXPECT_EQ(one().status, Status::success);
    submit(recv(2, {.srq = &srq}));
    submit({.tag = 3, .invalidate_rkey = key, .qp = sender->handle(), .opcode = Opcode::send_with_inv});
    const Completion received = one();
    EXPECT_EQ(received.tag, 2u);
    EXPECT_EQ(received.status, Status::success);
    EXPECT_EQ(received.srq, srq.handle());
    EXPECT_EQ(received.qp, receiver->handle());
    EXPECT_EQ(received.flags, kFromRecvQueue | kWithInv);
    EXPECT_EQ(received.invalidated_rkey, key);
}

TEST_F(WorkerWindows, ASendWithInvalidateMayBeInline) {
    const std::uint32_t key = next_rkey(window->mw->rkey);
    submit(bind(1, key));
    EXPECT_EQ(one().status, Status::success);
    submit(recv(2));
    const std::array payload{std::byte{1}, std::byte{2}};
    ASSERT_EQ(world->session().try_submit_inline(send_with_inv(3, key, 0), payload), Refusal::none);
    EXPECT_EQ(world->await(2).size(), 2u);
    EXPECT_EQ(*target->data(kReceived + 1), std::byte{2});
}

TEST_F(WorkerWindows, TypeOneIsBoundByItsVerbAndARefusalOfItComesAtOnce) {
    SteppedWorld::Window& type_1 = world->add_window(IBV_MW_TYPE_1);
    const std::uint32_t first = type_1.mw->rkey;
    WorkRequest request = bind(1, 0);
    request.bind = {type_1.handle(), region, 256};
    submit(request);
    EXPECT_EQ(one().window_rkey, next_rkey(first));
    submit(write_by_key(2, next_rkey(first)));
    EXPECT_EQ(one().status, Status::success);

    ibv_context_ops& ops = world->device->context()->ops;
    const auto verb = ops.bind_mw;
    ops.bind_mw = [](ibv_qp*, ibv_mw*, ibv_mw_bind*) { return ENOMEM; };
    submit(request);
    EXPECT_EQ(one().status, Status::post_refused);
    ops.bind_mw = verb;
    EXPECT_EQ(type_1.mw->rkey, next_rkey(first));
    request.bind = {type_1.handle(), region, 64};
    submit(request);  // the refused bind left the key; this one advances it
    EXPECT_EQ(one().window_rkey, next_rkey(next_rkey(first)));
    EXPECT_TRUE(world->proxy.remove_window(type_1.handle()));
}

}  // namespace
}  // namespace pollcore::testing
