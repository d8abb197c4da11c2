// Queue pairs that the program drives by hand, what the device says of them and of itself, and requests to a queue pair
// in error.
#include "by_hand.hpp"

#include <cerrno>
#include <functional>
#include <utility>

#include "log_capture.hpp"

namespace pollcore::testing {
namespace {

class ByHand : public ByHandFixture {
protected:
    TestSession flushing = runtime.open_session({.flush_in_error = true});
};

TEST_F(ByHand, EachStateTakesWhatTheVerbsSay) {
    make_pair();
    EXPECT_EQ(a.query().attributes.qp_state, VerbsQpState::reset);
    EXPECT_EQ(session.state(a.handle()), QpState::reset);
    EXPECT_EQ(session.try_submit(recv(1, 64)), Refusal::not_connected);
    EXPECT_EQ(session.try_submit(send(1, 64)), Refusal::not_connected);

    a.modify(init());
    b.modify(init());
    EXPECT_EQ(b.query().attributes.qp_state, VerbsQpState::init);
    submit(recv(1, 64));
    EXPECT_EQ(session.try_submit(send(2, 64)), Refusal::not_connected);

    a.modify(rtr(b.qp_num(), kPsnOfB));
    b.modify(rtr(a.qp_num(), kPsnOfA));
    EXPECT_EQ(a.query().attributes.qp_state, VerbsQpState::rtr);
    EXPECT_EQ(session.try_submit(send(2, 64)), Refusal::not_connected);

    a.modify(rts(kPsnOfA));  // b stays in RTR, where it receives
    submit(send(2, 64));
    for (const Completion& completion : await(2)) {
        EXPECT_EQ(completion.status, Status::success);
    }
    b.modify(rts(kPsnOfB));
    expect_message(10);
    submit(rdma(Opcode::rdma_write, 20, 4096));
    EXPECT_EQ(await_one().status, Status::success);
    submit(rdma(Opcode::rdma_read, 21, 4096));
    EXPECT_EQ(await_one().status, Status::success);
    Exercised::get().note("queue pairs", "by hand");
}

TEST_F(ByHand, TheDeviceHasTheAttributesThatWereSet) {
    make_pair();
    connect();
    const QpQuery now = a.query();
    const QpAttributes& has = now.attributes;
    EXPECT_EQ(has.qp_state, VerbsQpState::rts);
    EXPECT_EQ(has.dest_qp_num, b.qp_num());
    EXPECT_EQ(has.rq_psn, kPsnOfB);
    EXPECT_EQ(has.sq_psn, kPsnOfA);
    EXPECT_EQ(has.path_mtu, 1024);
    EXPECT_EQ(has.timeout, 14);
    EXPECT_EQ(has.retry_cnt, 7);
    EXPECT_EQ(has.rnr_retry, 7);
    EXPECT_EQ(has.max_rd_atomic, 4);
    EXPECT_EQ(has.max_dest_rd_atomic, 4);
    EXPECT_EQ(has.min_rnr_timer, 12);
    EXPECT_EQ(has.remote_access, RemoteAccess::all());
    EXPECT_EQ(has.port_num, 1);
    ASSERT_TRUE(has.ah_attr.has_value());
    EXPECT_EQ(has.ah_attr->dgid, own_gid().gid);
    EXPECT_EQ(has.ah_attr->sgid_index, own_gid().gid_index);
    EXPECT_GE(now.cap.max_send_wr, 16u);
    EXPECT_GE(now.cap.max_recv_wr, 16u);
    EXPECT_EQ(a.info().psn, kPsnOfA);
    for (std::uint64_t i = 0; i < 4; ++i) {
        expect_message(2 * i);
    }
    Exercised::get().note("queue pairs", "query");
}

TEST_F(ByHand, AnyQueuePairCanBeQueried) {
    connect_pair();
    EXPECT_EQ(a.query().attributes.qp_state, VerbsQpState::rts);
    EXPECT_EQ(a.query().attributes.dest_qp_num, b.qp_num());
    expect_error(EINVAL, [&] { a.modify({.qp_state = VerbsQpState::err}); });
    submit(recv(1, 64));
    submit(send(2, 64));
    for (const Completion& completion : await(2)) {
        EXPECT_EQ(completion.status, Status::success);
    }
}

TEST_F(ByHand, AWrongModifyChangesNothing) {
    make_pair();
    expect_error(EINVAL, [&] { a.modify(rts(kPsnOfA)); });
    expect_error(EOPNOTSUPP, [&] { a.modify({.qp_state = VerbsQpState::sqd}); });
    expect_error(EINVAL, [&] { a.modify({.qp_state = VerbsQpState::sqe}); });
    expect_error(EINVAL, [&] { a.modify({.qp_state = static_cast<VerbsQpState>(77)}); });
    expect_error(EINVAL, [&] { a.modify({.qp_state = VerbsQpState::reset, .timeout = std::uint8_t{1}}); });
    expect_error(EINVAL, [&] {
        QpAttributes other_port = init();
        other_port.port_num = std::uint8_t{9};
        a.modify(other_port);
    });
    expect_error(EINVAL, [&] { a.connect(b.info()); });
    expect_error(EINVAL, [&] { (void)a.connect("nowhere"); });
    EXPECT_EQ(a.query().attributes.qp_state, VerbsQpState::reset);
    a.modify(init());
    b.modify(init());
    expect_error(EINVAL, [&] {
        QpAttributes no_mtu = rtr(b.qp_num(), kPsnOfB);
        no_mtu.path_mtu = std::uint16_t{1000};
        a.modify(no_mtu);
    });
    expect_error(EINVAL, [&] {
        QpAttributes incomplete = rtr(b.qp_num(), kPsnOfB);
        incomplete.rq_psn.reset();
        a.modify(incomplete);
    });
    a.modify(rtr(b.qp_num(), kPsnOfB));
    b.modify(rtr(a.qp_num(), kPsnOfA));
    a.modify(rts(kPsnOfA));
    b.modify(rts(kPsnOfB));
    expect_message(1);

    QueuePairOptions with_access = by_hand(session);
    with_access.remote_access = RemoteAccess::all();
    expect_error(EINVAL, [&] { (void)runtime.create_queue_pair(with_access); });
    QueuePairOptions with_flow = by_hand(session);
    with_flow.flow = FlowControl::credits;
    expect_error(EINVAL, [&] { (void)runtime.create_queue_pair(with_flow); });
}

TEST_F(ByHand, RightsCanBeTakenBack) {
    make_pair();
    connect();
    submit(rdma(Opcode::rdma_write, 1, 64));
    EXPECT_EQ(await_one().status, Status::success);
    b.modify({.remote_access = RemoteAccess{}});
    submit(rdma(Opcode::rdma_write, 2, 64));
    EXPECT_EQ(await_one().status, Status::rem_inv_req_err);
}

TEST_F(ByHand, InErrorRequestsAreRefusedOrFlushed) {
    make_pair();
    connect();
    submit(recv(1, 64));
    b.modify({.qp_state = VerbsQpState::err});
    EXPECT_EQ(await_one().status, Status::wr_flush_err);
    EXPECT_EQ(session.state(b.handle()), QpState::error);
    EXPECT_EQ(b.query().attributes.qp_state, VerbsQpState::err);
    EXPECT_EQ(session.try_submit(recv(2, 64)), Refusal::qp_in_error);

    b = runtime.create_queue_pair(by_hand(flushing));
    b.modify(init());
    submit(flushing, recv(10, 64));
    b.modify({.qp_state = VerbsQpState::err});
    submit(flushing, recv(11, 64));
    WorkRequest to_nobody = send(12, 64);
    to_nobody.qp = b.handle();
    submit(flushing, to_nobody);
    to_nobody.tag = 13;
    to_nobody.flags = 0;  // it fails, so it has a completion
    submit(flushing, to_nobody);
    const std::vector<Completion> flushed = await(flushing, 4);
    std::vector<std::uint64_t> receives;
    std::vector<std::uint64_t> sends;
    for (const Completion& completion : flushed) {
        EXPECT_EQ(completion.status, Status::wr_flush_err);
        (completion.from_recv_queue() ? receives : sends).push_back(completion.tag);
    }
    EXPECT_EQ(receives, (std::vector<std::uint64_t>{10, 11}));
    EXPECT_EQ(sends, (std::vector<std::uint64_t>{12, 13}));
    Exercised::get().note("queue pairs", "posts in error are flushed");
}

// More requests than the queues hold, and the session keeps its books right.
TEST_F(ByHand, PostsInErrorGoOnForEver) {
    b = runtime.create_queue_pair(by_hand(flushing));
    b.modify(init());
    b.modify({.qp_state = VerbsQpState::err});
    for (std::uint64_t i = 0; i < 200; ++i) {
        submit(flushing, recv(i, 64));
        WorkRequest one = send(1000 + i, 64);
        one.qp = b.handle();
        submit(flushing, one);
        for (const Completion& completion : await(flushing, 2)) {
            EXPECT_EQ(completion.status, Status::wr_flush_err);
        }
    }
    EXPECT_EQ(flushing.figures().in_flight(), 0u);
    b.close();
    EXPECT_EQ(flushing.try_submit(recv(1, 64)), Refusal::stale_handle);
}

TEST_F(ByHand, ResetCompletesEverythingAndBeginsAnew) {
    make_pair();
    connect();
    submit(recv(1, 64));
    const QpHandle before = b.handle();
    b.modify({.qp_state = VerbsQpState::reset});
    EXPECT_EQ(await_one().status, Status::wr_flush_err);
    EXPECT_NE(b.handle(), before);
    EXPECT_EQ(b.query().attributes.qp_state, VerbsQpState::reset);
    EXPECT_EQ(session.state(b.handle()), QpState::reset);
    EXPECT_EQ(session.try_submit(recv(1, 64)), Refusal::not_connected);
    a.modify({.qp_state = VerbsQpState::reset});
    connect();
    expect_message(20);
}

TEST_F(ByHand, UnreliableConnected) {
    make_pair(QpType::uc);
    connect(QpType::uc);
    expect_message(1);
    submit(rdma(Opcode::rdma_write, 5, 64));
    EXPECT_EQ(await_one().status, Status::success);
}

TEST_F(ByHand, Datagrams) {
    make_pair(QpType::ud);
    for (QueuePair* qp : {&a, &b}) {
        qp->modify({.qp_state = VerbsQpState::init,
                    .pkey_index = std::uint16_t{0},
                    .port_num = std::uint8_t{1},
                    .qkey = kKey});
        qp->modify({.qp_state = VerbsQpState::rtr});
        qp->modify({.qp_state = VerbsQpState::rts, .sq_psn = kPsnOfA});
    }
    EXPECT_EQ(b.info().qkey, kKey);
    EXPECT_EQ(b.query().attributes.qkey, kKey);
    const AddressHandle to_b = runtime.create_address_handle(b.info());
    submit(recv(1, 256));
    until([&] { return runtime.worker_counters(0).receives.value() >= 1; });
    WorkRequest datagram = send(2, 64);
    datagram.ud = {to_b.handle(), b.qp_num()};
    datagram.remote_qkey = kKey;
    submit(datagram);
    for (const Completion& completion : await(2)) {
        EXPECT_EQ(completion.status, Status::success);
    }
    EXPECT_EQ(std::memcmp(local.data(), remote.data() + kGrhBytes, 64), 0);
    b.modify({.qkey = kKey + 1});
    EXPECT_EQ(b.query().attributes.qkey, kKey + 1);
}

// The verbs let a region go while posted receives name it. A message then finds no memory.
TEST_F(ByHand, ARegionCanGoWhileReceivesNameIt) {
    make_pair();
    connect();
    MemoryRegion region = runtime.allocate(4096, Access::all());
    const auto into_region = [&](QpHandle qp) {
        return WorkRequest{
            .tag = 1, .sge = {region.addr(), 64, region.lkey()}, .qp = qp, .opcode = Opcode::recv, .num_sge = 1};
    };
    submit(into_region(b.handle()));
    region.deregister();
    submit(send(2, 64));
    for (const Completion& completion : await(2)) {
        EXPECT_EQ(completion.status, completion.from_recv_queue()
                                         ? expected(Status::loc_prot_err, Status::loc_qp_op_err)
                                         : Status::rem_op_err);
    }

    // Otherwise, the promise of MemoryRegion::deregister holds.
    connect_pair();
    region = runtime.allocate(4096, Access::all());
    submit(into_region(b.handle()));
    expect_error(EBUSY, [&] { region.deregister(); });
    submit(send(2, 64));
    for (const Completion& completion : await(2)) {
        EXPECT_EQ(completion.status, Status::success);
    }
    Exercised::get().note("memory", "deregistering under posted receives (queue pairs by hand)");
}

// The receives of a shared receive queue may complete on any of its queue pairs, so one of the usual kind is enough to
// keep their regions, and keeps them when it is gone, too.
TEST_F(ByHand, ASharedReceiveQueueKeepsRegionsForOneOfTheUsualKind) {
    SharedReceiveQueue srq = runtime.create_shared_receive_queue({.session = &session, .depth = 16});
    MemoryRegion region = runtime.allocate(4096, Access::all());
    const auto post = [&](std::uint64_t tag) {
        submit({.tag = tag, .sge = region.sge(0, 64), .srq = srq.handle(), .opcode = Opcode::srq_recv, .num_sge = 1});
    };
    post(1);
    expect_error(EBUSY, [&] { region.deregister(); });  // nobody has used the queue
    QueuePairOptions options = by_hand(session);
    options.srq = &srq;
    a = runtime.create_queue_pair(options);
    region.deregister();
    region = runtime.allocate(4096, Access::all());
    post(2);
    options.by_hand = false;
    b = runtime.create_queue_pair(options);
    expect_error(EBUSY, [&] { region.deregister(); });
    b.close();
    expect_error(EBUSY, [&] { region.deregister(); });
    a.close();
    srq.close();
    EXPECT_EQ(await(2).size(), 2u);
    region.deregister();
}

// In RESET a device takes no receives: rxe refuses them, and libmlx5 keeps them for the next life.
TEST_F(ByHand, InResetNoReceivesArePosted) {
    connect_pair();
    const QueuePair other_a = std::move(a);
    const QueuePair other_b = std::move(b);
    TestSession reader = runtime.open_session({.pool_buffers = 16});
    ReceivePool pool = runtime.create_receive_pool({.session = &reader, .buffers = 16, .buffer_bytes = 256});
    a = runtime.create_queue_pair(by_hand(session));
    QueuePairOptions pooled = by_hand(reader);
    pooled.pool = &pool;
    pooled.recv_depth = 4;
    b = runtime.create_queue_pair(pooled);
    const auto receives = [&] { return runtime.worker_counters(0).receives.value(); };
    // A message arrives, the queue pair is reset, and then its buffer is released.
    const auto expect_pooled_message = [&] {
        connect();
        submit(send(1, 64));
        EXPECT_EQ(await_one().status, Status::success);
        const std::vector<Completion> heard = await(reader, 1);
        EXPECT_TRUE(heard.at(0).pooled());
        EXPECT_EQ(std::memcmp(pool.message(heard.at(0)).data(), local.data(), 64), 0);
        return heard.at(0);
    };
    EXPECT_EQ(receives(), 0u) << "it begins in RESET";
    const Completion heard = expect_pooled_message();
    EXPECT_TRUE(b.reset());
    EXPECT_TRUE(a.reset());
    const std::vector<Completion> end = await(reader, 1);  // says that no more messages come
    const std::uint64_t before = receives();
    ASSERT_EQ(reader.release(end.at(0)), Refusal::none);
    ASSERT_EQ(reader.release(heard), Refusal::none);
    until([&] { return pool.counters().held.value() == 0; });
    // The worker has done whole steps after the release when it has answered these.
    for (std::uint64_t tag = 0; tag < 4; ++tag) {
        WorkRequest write = rdma(Opcode::rdma_write, tag, 64);
        write.qp = other_a.handle();
        submit(write);
        EXPECT_EQ(await_one().status, Status::success);
    }
    EXPECT_EQ(receives(), before);
    EXPECT_EQ(runtime.worker_counters(0).post_failures.value(), 0u);
    (void)expect_pooled_message();
}

TEST_F(ByHand, FromResetNoWayLeadsToError) {
    SharedReceiveQueue srq = runtime.create_shared_receive_queue({.session = &session, .depth = 16});
    for (const SharedReceiveQueue* const its_srq :
         {static_cast<const SharedReceiveQueue*>(nullptr), &std::as_const(srq)}) {
        QueuePairOptions options = by_hand(session);
        options.srq = its_srq;
        a = runtime.create_queue_pair(options);
        expect_error(EINVAL, [&] { a.modify({.qp_state = VerbsQpState::err}); });
        expect_error(EINVAL, [&] { a.disconnect(); });
        EXPECT_FALSE(a.disconnected());
        EXPECT_FALSE(runtime.poll_event().has_value());
        EXPECT_EQ(a.query().attributes.qp_state, VerbsQpState::reset);
        const QpHandle before = a.handle();
        EXPECT_TRUE(a.reset());
        EXPECT_NE(a.handle(), before);
        EXPECT_EQ(session.state(a.handle()), QpState::reset);
        a.modify(init());
        EXPECT_EQ(session.state(a.handle()), QpState::init);
        a.modify({.qp_state = VerbsQpState::reset});
        EXPECT_TRUE(a.close());
    }
}

// A process can close and reset queue pairs as often as it likes, so nothing must be said about each of them.
TEST_F(ByHand, InThisProcessTheEndInResetIsNoNews) {
    const test::LogCapture log(LogLevel::warning);
    for (int time = 0; time < 3; ++time) {
        a = runtime.create_queue_pair(by_hand(session));
        EXPECT_TRUE(a.reset());
        EXPECT_TRUE(a.close());
    }
    EXPECT_EQ(log.text(), "");
}

// Other processes' queue pairs may complete on the same CQs, and while a queue pair is parked its CQs are not polled.
TEST_F(ByHand, WhatTheTableForbidsParksNoQueuePair) {
    make_pair();
    a.modify(init());
    const std::uint64_t before = runtime.worker_counters(0).commands.value();
    expect_error(EINVAL, [&] { a.modify(rts(kPsnOfA)); });
    expect_error(EINVAL, [&] { a.modify({.timeout = std::uint8_t{14}}); });
    expect_error(EINVAL, [&] { b.modify({.qp_state = VerbsQpState::err}); });
    expect_error(EINVAL, [&] { a.modify({.qp_state = VerbsQpState::err, .timeout = std::uint8_t{14}}); });
    expect_error(EINVAL, [&] {
        QpAttributes mistaken = init();
        mistaken.cur_qp_state = VerbsQpState::rts;
        a.modify(mistaken);
    });
    EXPECT_EQ(runtime.worker_counters(0).commands.value(), before);
    EXPECT_EQ(a.query().attributes.qp_state, VerbsQpState::init);
}

TEST_F(ByHand, FromErrorOnlyResetLeadsOn) {
    make_pair();
    connect();
    submit(recv(1, 64));
    b.modify({.qp_state = VerbsQpState::err});
    EXPECT_EQ(await_one().status, Status::wr_flush_err);
    expect_error(EINVAL, [&] { b.modify({.min_rnr_timer = std::uint8_t{12}}); });
    expect_error(EINVAL, [&] { b.modify({}); });
    expect_error(EINVAL, [&] { b.modify(init()); });
    expect_error(EINVAL, [&] { b.modify(rts(kPsnOfB)); });
    b.modify({.qp_state = VerbsQpState::err});
    b.modify({.qp_state = VerbsQpState::reset});
    a.modify({.qp_state = VerbsQpState::reset});
    connect();
    expect_message(2);
}

// The verbs have a way from SQE back to RTS. The worker has none: for it the queue pair has failed.
TEST_F(ByHand, FromAFailedSendQueueOnlyResetLeadsOn) {
    make_pair(QpType::uc);
    connect(QpType::uc);
    WorkRequest bad = rdma(Opcode::rdma_write, 1, 8);
    bad.sge.lkey ^= 0x5500;
    submit(bad);
    EXPECT_EQ(await_one().status, expected(Status::loc_prot_err, Status::loc_qp_op_err));
    EXPECT_EQ(a.query().attributes.qp_state, expected(VerbsQpState::sqe, VerbsQpState::err));
    expect_error(expected(EOPNOTSUPP, EINVAL), [&] { a.modify({.qp_state = VerbsQpState::rts}); });
    expect_error(EINVAL, [&] { a.modify({.remote_access = RemoteAccess{}}); });
    a.modify({.qp_state = VerbsQpState::reset});
    b.modify({.qp_state = VerbsQpState::reset});
    connect(QpType::uc);
    expect_message(2);
}

TEST_F(ByHand, AQueuePairOfTheUsualKindIsNotMovedToReset) {
    connect_pair();
    const QpHandle before = a.handle();
    expect_error(EINVAL, [&] { a.modify({.qp_state = VerbsQpState::reset}); });
    EXPECT_EQ(a.handle(), before);
    expect_message(1);
}

TEST_F(ByHand, InfoSaysWhatTheDeviceHas) {
    make_pair(QpType::ud);
    a.modify(
        {.qp_state = VerbsQpState::init, .pkey_index = std::uint16_t{0}, .port_num = std::uint8_t{1}, .qkey = kKey});
    EXPECT_EQ(a.info().qkey, kKey);
    EXPECT_TRUE(a.reset());
    EXPECT_EQ(a.info().qkey, 0u);

    make_pair();
    EXPECT_EQ(a.info().psn, 0u);
    connect();
    EXPECT_EQ(a.info().psn, kPsnOfA);
    EXPECT_TRUE(a.reset());
    EXPECT_EQ(a.info().psn, 0u);
    // What has more bits than the device has room for.
    a.modify(init());
    const std::function<void(QpAttributes&)> changes[] = {
        [](QpAttributes& to) { to.rq_psn = 1u << 24; },
        [](QpAttributes& to) { to.dest_qp_num = 1u << 24; },
        [](QpAttributes& to) { to.ah_attr->flow_label = 1u << 20; },
    };
    for (const auto& change : changes) {
        QpAttributes to = rtr(b.qp_num(), kPsnOfB);
        change(to);
        expect_error(EINVAL, [&] { a.modify(to); });
    }
    a.modify(rtr(b.qp_num(), kPsnOfB));
    expect_error(EINVAL, [&] { a.modify(rts(1u << 24)); });
    EXPECT_EQ(a.query().attributes.qp_state, VerbsQpState::rtr);
}

TEST_F(ByHand, TheDeviceSaysWhatItIs) {
    const DeviceAttributes device = runtime.query_device();
    EXPECT_GT(device.max_qp, 0u);
    EXPECT_GT(device.max_qp_wr, 0u);
    EXPECT_GT(device.max_cqe, 0u);
    EXPECT_GT(device.max_mr_size, 0u);
    EXPECT_GE(device.phys_port_cnt, 1);
    EXPECT_EQ(device.fw_ver.back(), 0);
    const PortAttributes port = runtime.query_port();
    EXPECT_EQ(port.port_num, 1);
    EXPECT_EQ(port.state, 4) << "active";
    EXPECT_EQ(port.link_layer, 2) << "Ethernet";
    EXPECT_GE(port.max_mtu, port.active_mtu);
    EXPECT_GE(port.active_mtu, 256);
    EXPECT_GE(port.gid_tbl_len, runtime.gids().size());
    ASSERT_FALSE(runtime.gids().empty());
    EXPECT_EQ(runtime.query_pkey(0), 0xffff);
    EXPECT_THROW((void)runtime.query_pkey(60000), Error);
    EXPECT_THROW((void)runtime.query_device("no such device"), Error);
    Exercised::get().note("queue pairs", "device, port, GID and P_Key queries");
}

}  // namespace
}  // namespace pollcore::testing
